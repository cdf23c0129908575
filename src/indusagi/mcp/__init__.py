"""Facade for MCP: a client for one server, and a server for a tool box.

`MCPClient` holds one endpoint of `indusagi.interop` per connection; `MCPServer` is a provider host. `indusagi.interop`
has everything else.
"""

from indusagi.mcp.client import MCPClient as MCPClient
from indusagi.mcp.server import MCPServer as MCPServer

__all__ = ["MCPClient", "MCPServer"]
