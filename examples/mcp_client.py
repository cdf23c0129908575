"""Connect to one MCP server, list its tools, call one, and handle a fault."""

import asyncio
import sys
from pathlib import Path

from indusagi.interop import ProtocolFault, StdioServerConfig
from indusagi.mcp import MCPClient

NOTES = Path(__file__).parent / "notes_server.py"


async def main() -> None:
    server = StdioServerConfig(id="notes", command=sys.executable, args=(str(NOTES),))
    async with MCPClient(server) as client:
        for tool in await client.list_tools():
            print(tool.descriptor.name, "-", tool.descriptor.description)
        result = await client.call_tool("add", {"text": "call Ada"})
        print(result.is_error, result.content)
        try:
            await client.call_tool("remove")
        except ProtocolFault as fault:
            print("fault:", fault.kind, fault.detail.rpc_code)
    print(client.connected)


asyncio.run(main())
# Prints:
# notes__add - Add a note.
# False ({'type': 'text', 'text': '1 note(s)'},)
# fault: tool_error -32601
# False
