"""The state that the nodes of a cluster share: ledgers, decisions about servers, servers, rules and call records.

Each node keeps its own files and goes on with them when the broker is away; what it adds is published, and what others
have added is applied here. Everything that rests at the broker is sealed with the key of the cluster. Decision 74 has
the reasons.
"""
