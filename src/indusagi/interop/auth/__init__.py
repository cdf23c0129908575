"""OAuth client for servers behind a URL: a pure state machine, its driver, and what they share with storage and people.

https://modelcontextprotocol.io/specification/draft/basic/authorization
"""
