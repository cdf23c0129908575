"""The MCP client: sessions with servers over stdio and HTTP."""
