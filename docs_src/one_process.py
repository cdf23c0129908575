import asyncio

from indusagi.capabilities import ToolSpec, define_tool
from indusagi.interop import StdioServerConfig, linked_pair
from indusagi.mcp import MCPClient, MCPServer


async def greet(arguments, ctx):
    return f"hello {arguments['name']}"


PARAMETERS = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def main() -> None:
    server = MCPServer(
        [define_tool(ToolSpec("greet", "Greets somebody.", PARAMETERS, greet))], name="greeter", version="1.0"
    )
    here, there = linked_pair()
    await server.connect(there)
    # Nothing is started: the pair stands in for the transport of the configuration.
    async with MCPClient(StdioServerConfig("greeter", "not-started"), here) as client:
        for tool in await client.list_tools():
            print(tool.descriptor.name)
        answer = await client.call_tool("greet", {"name": "Ada"})
        print(answer.is_error, answer.content)


asyncio.run(main())
