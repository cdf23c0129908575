"""Run `bench.soak`: `python -m bench.soak`."""

import sys

from bench.soak import main

sys.exit(main(sys.argv[1:]))
