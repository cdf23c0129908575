"""`python -m induscode` is `indus`."""

import sys

from induscode.cli import main

sys.exit(main())
