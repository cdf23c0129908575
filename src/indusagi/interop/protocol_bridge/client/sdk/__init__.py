"""Adapters to the official MCP SDK; the only importer of `mcp`."""
