"""HTTP checks and limits of the MCP client."""
