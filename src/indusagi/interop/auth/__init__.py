"""OAuth client for servers behind a URL: a pure state machine, its driver, credential storage and the user prompt.

https://modelcontextprotocol.io/specification/draft/basic/authorization
"""
