"""The nodes' shared state: ledgers, decisions about servers, servers, rules and call records.

Each node has local files and keeps working with them while the broker is away. It publishes its additions, and applies
other nodes' additions. All data at the broker is sealed with the cluster key. Decision 74 has the reasons.
"""
