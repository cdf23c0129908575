"""The short way to MCP: a client for one server, and a server for a box of tools.

`MCPClient` holds one endpoint of `indusagi.interop` per connection; `MCPServer` is a provider host.
Both add nothing but their vocabulary: whatever they do not offer is there in `interop`.
"""

from indusagi.mcp.client import MCPClient as MCPClient
from indusagi.mcp.server import MCPServer as MCPServer

__all__ = ["MCPClient", "MCPServer"]
