"""Run `bench.tools`: `python -m bench.tools`."""

import sys

from bench.tools import main

sys.exit(main(sys.argv[1:]))
