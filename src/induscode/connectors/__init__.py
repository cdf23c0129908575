"""Connectors: services described by an OpenAPI document, as actions of the card `saas-action`.

Every operation of a document is an action with a slug. Requests go through the guarded HTTP client of the web tools, to
the base URL of the connector and to no other origin.
"""
