"""The adapter for the MCP SDK, with the client of the SDK in memory."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp_types import EmbeddedResource, ImageContent, TextContent
from tests.support.adapters import Shelf

from indusagi.adapters.calls import allow_all
from indusagi.adapters.mcp import to_mcp


async def test_a_client_lists_and_calls_the_tools() -> None:
    async with Client(to_mcp(Shelf().open_box(), gate=allow_all)) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == [
            "echo",
            "change",
            "fail",
            "picture",
            "slow",
        ]
        result = await client.call_tool("echo", {"text": "hi"})
        assert result.content == [TextContent(type="text", text="hi")]
        assert not result.is_error


async def test_blocks_arrive_unchanged_and_errors_are_marked() -> None:
    async with Client(to_mcp(Shelf().open_box(), gate=allow_all)) as client:
        picture = await client.call_tool("picture", {})
        assert [type(block) for block in picture.content] == [TextContent, ImageContent, EmbeddedResource]
        assert picture.structured_content == {"count": 2}
        failed = await client.call_tool("fail", {})
        assert (failed.is_error, failed.content) == (True, [TextContent(type="text", text="the shelf is empty")])


async def test_a_denied_call_does_not_run() -> None:
    shelf = Shelf()
    async with Client(to_mcp(shelf.open_box(), gate=lambda request: False)) as client:
        result = await client.call_tool("echo", {"text": "hi"})
    assert (result.is_error, shelf.events) == (True, [])


async def test_a_cancelled_request_cancels_the_call() -> None:
    shelf = Shelf()
    async with Client(to_mcp(shelf.open_box(), gate=allow_all)) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, "slow")
            await shelf.started.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            await shelf.ended.wait()
    assert shelf.events == ["slow begins", "slow is cancelled"]


@pytest.mark.parametrize("other", [None, ModuleType("mcp.server")])
def test_missing_or_older_sdk_is_named_with_its_extra(other: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "indusagi.adapters.mcp", raising=False)
    monkeypatch.setitem(sys.modules, "mcp.server", other)
    with pytest.raises(ImportError, match=r"pip install 'indus-deck\[mcp\]'"):
        import_module("indusagi.adapters.mcp")
