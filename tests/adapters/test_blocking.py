"""A toolbox for code without an event loop, and for code in another one."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
from mcp import Client
from tests.adapters.test_plain_apis import messages, responses
from tests.support.adapters import Shelf

from indusagi.adapters.anthropic import to_anthropic
from indusagi.adapters.blocking import open_blocking
from indusagi.adapters.calls import allow_all
from indusagi.adapters.mcp import to_mcp
from indusagi.adapters.openai import to_openai
from indusagi.core.cancel import CancelToken
from indusagi.runtime import ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.adapters.blocking import BlockingToolBox
    from indusagi.adapters.calls import GateRequest
    from indusagi.runtime import ToolBox


@asynccontextmanager
async def open_shelf(shelf: Shelf, tasks: list[object]) -> AsyncGenerator[ToolBox]:
    tasks.append(asyncio.current_task())
    yield shelf.open_box()
    tasks.append(asyncio.current_task())


def test_a_script_calls_tools_without_await() -> None:
    tasks: list[object] = []
    with open_blocking(open_shelf(Shelf(), tasks)) as box:
        assert [tool.name for tool in box.descriptors()][:2] == ["echo", "change"]
        assert box.notes == ()
        assert box.run_sync(ToolCall("1", "echo", {"text": "hi"})).output == "hi"
        (*_, item) = to_openai(box, gate=allow_all).run_sync(responses(("echo", {"text": "hi"})))
        assert item["output"] == "hi"
        (_, user) = to_anthropic(box, gate=allow_all).run_sync(messages(("fail", {})))
        assert user["content"][0]["is_error"] is True
    assert len(tasks) == 2
    assert tasks[0] is tasks[1]  # closed in the task that has opened it


def test_a_gate_of_a_script_may_wait_for_a_person() -> None:
    threads: list[str] = []

    def gate(request: GateRequest) -> bool:
        threads.append(threading.current_thread().name)
        return False

    shelf = Shelf()
    with open_blocking(open_shelf(shelf, [])) as box:
        (*_, item) = to_openai(box, gate=gate).run_sync(responses(("echo", {"text": "hi"})))
    assert item["output"] == "Error: echo was not run: the user declined"
    assert (len(threads), shelf.events) == (1, [])


def test_another_event_loop_can_use_it_and_cancel_a_call() -> None:
    shelf = Shelf()

    async def use(box: BlockingToolBox) -> None:
        (*_, item) = await to_openai(box, gate=allow_all).run(responses(("echo", {"text": "hi"})))
        assert item["output"] == "hi"
        async with Client(to_mcp(box, gate=allow_all)) as client:
            assert len((await client.list_tools()).tools) == 5
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(box.runner.run, ToolCall("1", "slow", {}))
            await box.call_async(shelf.started.wait)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(60):
            await box.call_async(shelf.ended.wait)

    with open_blocking(open_shelf(shelf, [])) as box:
        asyncio.run(use(box))
    assert shelf.events[1:] == ["slow begins", "slow is cancelled"]


def test_a_token_ends_a_blocking_call() -> None:
    shelf, cancel = Shelf(), CancelToken()
    with open_blocking(open_shelf(shelf, [])) as box:

        async def cancel_later() -> None:
            await shelf.started.wait()
            cancel.cancel()

        with ThreadPoolExecutor(1) as threads:
            ending = threads.submit(box.wait_for, cancel_later)
            assert box.run_sync(ToolCall("1", "slow", {}), cancel).is_error
            ending.result()
