"""Run `outside.conformance`: `python -m outside.conformance`."""

import sys

from outside.conformance import main

sys.exit(main(sys.argv[1:]))
