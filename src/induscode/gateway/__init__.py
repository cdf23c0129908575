"""The gateway: one MCP server in front of all others, and its web page."""
