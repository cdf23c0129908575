"""The tools of langchain-mcp-adapters: `python langchain.py '{"command" or "url": …}'`.

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

from langchain_mcp_adapters.callbacks import Callbacks
from langchain_mcp_adapters.client import MultiServerMCPClient


def _connection(asked: dict) -> dict:
    if "url" in asked:
        return {"transport": "http", "url": asked["url"], "headers": asked["headers"]}
    command, *args = asked["command"]
    return {"transport": "stdio", "command": command, "args": args, "env": asked["env"]}


def _wait(call: asyncio.Task, journal: Path) -> None:
    while not call.done() and "started" not in journal.read_text("utf-8"):
        time.sleep(0.01)


class _Visit:
    def __init__(self, asked: dict) -> None:
        self._asked = asked
        self._steps = 0
        self._client = MultiServerMCPClient({"indus": _connection(asked)}, callbacks=Callbacks(on_progress=self._step))
        self._tools = {}

    async def report(self) -> dict:
        self._tools = {tool.name: tool for tool in await self._client.get_tools()}
        echo = await self._call("echo", text=self._asked["text"])
        picture, failed = await self._call("picture"), await self._call("fail")
        await self._call("steps")
        uncancelled = await self._check_cancel()
        after = await self._call("echo", text=self._asked["text"])
        image = picture.content[0]
        blobs = await self._client.get_resources("indus", uris=[self._asked["resource"]])
        arguments = {"book": self._asked["book"]}
        messages = await self._client.get_prompt("indus", self._asked["prompt"], arguments=arguments)
        return {
            "protocol": await self._protocol(),
            "tools": list(self._tools),
            "echoed": echo.text,
            "image": [image["mime_type"], image["base64"]],
            "resource": blobs[0].as_string(),
            "prompt": messages[0].content,
            "error": failed.text if failed.status == "error" else "",
            "steps": self._steps,
            "uncancelled": uncancelled,
            "after": after.text,
        }

    async def _call(self, name: str, **arguments: str):
        tool = self._tools[f"shelf__{name}"]
        return await tool.ainvoke({"type": "tool_call", "id": "1", "name": tool.name, "args": arguments})

    async def _check_cancel(self) -> str:
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(self._call("slow"))
            await asyncio.to_thread(_wait, call, Path(self._asked["journal"]))
            call.cancel()
        return "" if call.cancelled() else f"it ended: {call.result().text}"

    async def _protocol(self) -> str:
        async with self._client.session("indus", auto_initialize=False) as session:
            return (await session.initialize()).protocolVersion

    async def _step(self, *told: object) -> None:
        self._steps += 1


if __name__ == "__main__":
    print(json.dumps(asyncio.run(_Visit(json.loads(sys.argv[1])).report())))
