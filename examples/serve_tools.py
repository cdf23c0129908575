"""Serve your own tools to any MCP client, which starts this program and speaks over stdio."""

import asyncio

from indusagi.capabilities import ToolSpec, define_tool
from indusagi.mcp import MCPServer


async def greet(arguments, ctx):
    return f"hello {arguments['name']}"


NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
TOOLS = [define_tool(ToolSpec("greet", "Greet a person by name.", NAME, greet, read_only=True))]
server = MCPServer(TOOLS, name="greeter", version="1.0")

if __name__ == "__main__":
    asyncio.run(server.serve_stdio())
