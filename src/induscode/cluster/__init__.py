"""Gateways on several machines: nodes that share servers over a NATS broker.

Every node serves clients; each stdio server runs on one node at a time, its owner, and the others reach it there. The
broker does membership, routing and replication. `docs/cluster.md` has the design in full, decision 72 its reasons.
Nothing of this package is loaded without `--cluster`.
"""
