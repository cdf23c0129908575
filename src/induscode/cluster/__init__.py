"""Gateways on several machines: nodes that share servers over a NATS broker.

Every node serves clients. Each stdio server runs on one node at a time, its owner, and the others reach it there. The
broker handles membership, routing and replication. `docs/guides/cluster.md` explains it; decision 72 has the reasons.
Nothing in this package is loaded without `--cluster`.
"""
