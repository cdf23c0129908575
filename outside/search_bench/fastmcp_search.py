"""Ranks tools by the search of FastMCP; runs in an environment that has it, and imports nothing of ours.

Standard input is a JSON object with `tools` and `queries`; standard output is a list of names for each query.
"""

import asyncio
import json
import sys
from importlib import import_module
from typing import Any

BM25SearchTransform: Any = import_module("fastmcp.server.transforms.search").BM25SearchTransform
Tool: Any = import_module("fastmcp.tools.base").Tool


async def main() -> None:
    """Rank, and print."""
    asked = json.load(sys.stdin)
    tools: list[Any] = [
        Tool(name=tool["name"], description=tool["description"], parameters=tool["schema"]) for tool in asked["tools"]
    ]
    transform = BM25SearchTransform(max_results=asked["limit"])
    search = transform._search  # noqa: SLF001 — its index without a server around it
    ranked = [[tool.name for tool in await search(tools, query)] for query in asked["queries"]]
    json.dump(ranked, sys.stdout)


asyncio.run(main())
