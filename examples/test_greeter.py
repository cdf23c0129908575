"""Test tools through MCP, in memory: the client and the server share this process."""

import pytest
from serve_tools import server

from indusagi.interop import StdioServerConfig, linked_pair
from indusagi.mcp import MCPClient


@pytest.mark.anyio
async def test_greet_answers_by_name():
    client_end, server_end = linked_pair()
    await server.connect(server_end)
    # The linked pair replaces the transport of this configuration; no process is started.
    async with MCPClient(StdioServerConfig("greeter", "unused"), client_end) as client:
        result = await client.call_tool("greet", {"name": "Ada"})
    assert result.content == ({"type": "text", "text": "hello Ada"},)
