"""The gateway: one MCP server in front of all servers, and the page that shows it."""
