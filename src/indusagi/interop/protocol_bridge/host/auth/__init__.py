"""The host as an OAuth protected resource: access tokens of one authorization server instead of the one-user token.

https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization. Tokens are JWT (RFC 9068) or are
introspected (RFC 7662), and may be bound to a key of the client (DPoP, RFC 9449). A token is checked and never passed
on. This package knows nothing of connections: `host/http` reads the headers and sends the refusals.
"""
