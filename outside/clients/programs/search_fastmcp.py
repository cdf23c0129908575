"""The client of FastMCP before a gateway whose tools are searched: `python search_fastmcp.py '{"command": …}'`.

Writes what it was given as one line of JSON; it judges nothing. It runs in an environment of its
own, so none of what it imports is known to the checks of this project.
"""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import sys

from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport


def _transport(asked: dict):
    if "url" in asked:
        return StreamableHttpTransport(asked["url"], headers=asked["headers"])
    command, *args = asked["command"]
    return StdioTransport(command, args, env=asked["env"])


def _text(result) -> str:
    return "".join(block.text for block in result.content)


async def _report(asked: dict) -> dict:
    async with Client(_transport(asked)) as client:
        tools = await client.list_tools()
        found = await client.call_tool("find_tools", {"queries": [asked["query"]]})
        echo = {"text": asked["text"]}
        by_card = await client.call_tool("call_tool", {"name": "shelf__echo", "arguments": echo})
        picture = await client.call_tool("call_tool", {"name": "shelf__picture"})
        return {
            "tools": [tool.name for tool in tools],
            "found": _text(found),
            "by_card": _text(by_card),
            "by_name": _text(await client.call_tool("shelf__echo", echo)),
            "image": picture.content[0].data,
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_report(json.loads(sys.argv[1])))))
