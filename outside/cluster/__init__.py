"""Faults in clusters: seeded runs of nodes, brokers and servers that fail, and a checker of what clients saw."""
