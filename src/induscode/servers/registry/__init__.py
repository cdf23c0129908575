"""The MCP registry: finds published servers by name and turns them into rows of our file."""
