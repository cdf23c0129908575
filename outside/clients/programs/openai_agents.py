"""The servers of openai-agents: `python openai_agents.py '{"command" or "url": …}'`.

Writes what it was given as one line of JSON; it judges nothing. It runs in an environment of its
own, so none of what it imports is known to the checks of this project.
"""
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from agents.mcp import MCPServerStdio, MCPServerStreamableHttp


def _server(asked: dict):
    if "url" in asked:
        return MCPServerStreamableHttp({"url": asked["url"], "headers": asked["headers"]})
    command, *args = asked["command"]
    return MCPServerStdio({"command": command, "args": args, "env": asked["env"]})


def _text(result) -> str:
    return "".join(block.text for block in result.content)


def _wait(call: asyncio.Task, journal: Path) -> None:
    while not call.done() and "started" not in journal.read_text("utf-8"):
        time.sleep(0.01)


async def _check_cancel(server, journal: Path) -> str:
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(server.call_tool("shelf__slow", {}))
        await asyncio.to_thread(_wait, call, journal)
        call.cancel()
    return "" if call.cancelled() else f"it ended: {_text(call.result())}"


async def _report(asked: dict) -> dict:
    async with _server(asked) as server:
        tools = await server.list_tools()
        echo = await server.call_tool("shelf__echo", {"text": asked["text"]})
        picture = (await server.call_tool("shelf__picture", {})).content[0]
        failed = await server.call_tool("shelf__fail", {})
        read = await server.read_resource(asked["resource"])
        got = await server.get_prompt(asked["prompt"], {"book": asked["book"]})
        uncancelled = await _check_cancel(server, Path(asked["journal"]))
        after = await server.call_tool("shelf__echo", {"text": asked["text"]})
        return {
            "protocol": server.session.protocol_version,
            "tools": [tool.name for tool in tools],
            "echoed": _text(echo),
            "image": [picture.mime_type, picture.data],
            "resource": read.contents[0].text,
            "prompt": got.messages[0].content.text,
            "error": _text(failed) if failed.is_error else "",
            "steps": None,
            "uncancelled": uncancelled,
            "after": _text(after),
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_report(json.loads(sys.argv[1])))))
