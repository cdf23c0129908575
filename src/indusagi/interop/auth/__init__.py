"""OAuth client for servers behind a URL: its procedures, their driver, credential storage and the user prompt.

https://modelcontextprotocol.io/specification/draft/basic/authorization
"""
