"""MCP clients of others: where they keep servers, and how indus is written down there."""
