"""Connectors: services described by an OpenAPI document, as actions of the card `saas-action`.

Every operation of a document is an action with a slug. Requests go through the web tools' guarded HTTP client, only to
the connector's base URL origin.
"""
