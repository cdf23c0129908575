"""Gateways on several machines: nodes that share servers over a NATS broker.

Every node serves clients. Each stdio server runs on one node at a time, its owner, and the others reach it there. The
broker handles membership, routing and replication. `docs/guides/cluster.md` describes the design, decision 72 its reasons.
Nothing in this package is loaded without `--cluster`.
"""
