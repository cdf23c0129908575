"""Run `bench.gateway`: `python -m bench.gateway`."""

import sys

from bench.gateway import main

sys.exit(main(sys.argv[1:]))
