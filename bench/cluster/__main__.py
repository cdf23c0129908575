"""Print the cost of clusters by their size: `python -m bench.cluster`; `--simulate` prints the simulation instead."""

import sys

from bench.cluster.scale import list_table, simulate

if "--simulate" in sys.argv[1:]:
    print(simulate())
else:
    list_table()
