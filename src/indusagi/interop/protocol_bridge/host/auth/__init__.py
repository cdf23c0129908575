"""The host as an OAuth protected resource: access tokens of one authorization server instead of the one-user token.

https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization. Tokens are JWT (RFC 9068) or are
introspected (RFC 7662), and may be bound to a client key (DPoP, RFC 9449). Tokens are checked but never passed on. This
package doesn't know about connections: `host/http` reads the headers and sends the refusals.
"""
