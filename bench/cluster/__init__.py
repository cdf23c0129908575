"""Clusters: what forwarding costs, how many calls three nodes answer, how long faults are felt, and what grows.

`python -m bench --only cluster-forward` and so on; `python -m bench.cluster` prints the table of sizes.
"""

from __future__ import annotations

from bench.cluster import calls, failover, scale

ROWS = (*calls.ROWS, *failover.ROWS, *scale.ROWS)
