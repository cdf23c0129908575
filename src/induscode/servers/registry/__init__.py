"""The MCP registry: servers that their authors have published, found by name and turned into rows of our file."""
