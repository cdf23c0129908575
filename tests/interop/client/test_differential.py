"""The SDK's own client beside ours, on the same servers: what came back must be the same."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client, StdioServerParameters
from tests.support.opened import opened
from tests.support.scripts import ROOT
from tests.support.servers import fault, honest

from indusagi.interop import StdioServerConfig

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

pytestmark = [pytest.mark.anyio, pytest.mark.process]

SERVERS = {
    "legacy": honest("--era", "legacy"),
    "modern": honest("--era", "modern"),
    "both": honest("--era", "both"),
    "old": honest("--version", "2024-11-05"),
    "paged": honest("--pages", 3, "--tools", 20),
    "drip": fault("drip"),
    "notes": StdioServerConfig("notes", sys.executable, (str(ROOT / "examples/notes_server.py"),)),
}
CALLS: list[tuple[str, JsonObject]] = [
    ("echo", {"text": "héllo \U0001f642"}),
    ("add", {"a": 2, "b": 3}),
    ("fail", {}),
    ("big", {"bytes": 50_000}),
]


def client(config: StdioServerConfig) -> Client:
    return Client(StdioServerParameters(command=config.command, args=[*config.args], env={**config.env}))


def plain(model: Any) -> Any:
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")


async def listed_by_sdk(theirs: Client) -> list[Any]:
    rows: list[Any] = []
    cursor: str | None = None
    while True:
        page = await theirs.list_tools(cursor=cursor)
        rows.extend(plain(tool) for tool in page.tools)
        cursor = page.next_cursor
        if not cursor:
            return rows


@pytest.mark.parametrize("name", list(SERVERS))
async def test_both_clients_see_the_same_tools(name: str) -> None:
    async with opened(SERVERS[name]) as ours, client(SERVERS[name]) as theirs:
        assert [tool.raw for tool in await ours.list_tools()] == await listed_by_sdk(theirs)


@pytest.mark.parametrize("name", ["legacy", "modern", "both", "old"])
@pytest.mark.parametrize(("tool", "arguments"), CALLS)
async def test_both_clients_get_the_same_answer(name: str, tool: str, arguments: JsonObject) -> None:
    async with opened(SERVERS[name]) as ours, client(SERVERS[name]) as theirs:
        mine = await ours.invoke(tool, arguments)
        other = plain(await theirs.call_tool(tool, arguments))
        assert [*mine.content] == other["content"]
        assert mine.is_error == other.get("isError", False)
        assert mine.structured == other.get("structuredContent")
