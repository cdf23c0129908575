"""Watches of a session in memory: who agrees, who refuses, and what ends."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from indusagi.interop.protocol_bridge.client.watches import ServerWatches
from indusagi.interop.protocol_bridge.contract import ServerLimits
from indusagi.interop.protocol_bridge.rpc.connection import RpcError

pytestmark = pytest.mark.anyio


class Session:
    """A server that acknowledges what a test says, and keeps the request open, ends it or refuses it."""

    def __init__(self, answer: Any = None, *, is_modern: bool = True, then: str = "stay") -> None:
        self.is_modern, self.answer, self.then = is_modern, answer, then
        self.listened, self.asked = list[Any](), list[Any]()
        self.refuses = False

    async def listen(self, accept: Any, **notifications: Any) -> None:
        self.listened.append(notifications)
        if self.then == "refuse" or (self.then == "refuse later" and len(self.listened) > 1):
            raise RpcError(-1, "no")
        if self.answer is not None:
            accept(self.answer)
        if self.then == "stay":
            await anyio.sleep_forever()

    async def request(self, method: str, params: Any) -> Any:
        self.asked.append((method, params["uri"]))
        await anyio.lowlevel.checkpoint()
        if self.refuses:
            raise RpcError(-1, "no")
        return {}


async def use(session: Session, work: Any, **limits: Any) -> ServerWatches:
    """Do something with the watches of a session, and close them."""
    async with asyncio.TaskGroup() as tasks:
        given: Any = session
        watches = ServerWatches(given, ServerLimits(**limits), tasks, session.request)
        await work(watches)
        watches.close()
    assert watches.is_empty
    return watches


async def test_a_modern_server_agrees_and_is_asked_once() -> None:
    session = Session({"resourceSubscriptions": ["a", "b"]})

    async def work(watches: ServerWatches) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(watches.watch_resource, "a")
        await watches.watch_resource("a")
        assert not watches.is_empty
        await watches.unwatch_resource("a")
        assert watches.is_empty
        await watches.unwatch_resource("a")

    await use(session, work)
    assert (session.listened, session.asked) == ([{"resourceSubscriptions": ["a"]}], [])


@pytest.mark.parametrize(
    ("answer", "then"),
    [
        ({"resourceSubscriptions": ["b"]}, "stay"),
        ({"resourceSubscriptions": "a"}, "stay"),
        ({}, "stay"),
        (None, "end"),
        (None, "refuse"),
    ],
)
async def test_a_modern_server_that_does_not_agree_is_not_watched(answer: Any, then: str) -> None:
    async def work(watches: ServerWatches) -> None:
        for _ in range(2):
            with pytest.raises(RpcError) as caught:
                await watches.watch_resource("a")
            assert watches.is_empty
            if then != "refuse":
                assert caught.value.data == {"uri": "a"}

    session = Session(answer, then=then)
    await use(session, work, relist_gap_s=60.0)
    assert len(session.listened) == 2


async def test_a_server_that_acknowledges_nothing_may_report_all_the_same() -> None:
    async def work(watches: ServerWatches) -> None:
        await watches.watch_resource("a")
        assert not watches.is_empty

    await use(Session(), work, list_s=0.0)


@pytest.mark.parametrize("then", ["end", "refuse later"])
async def test_an_ended_request_is_opened_again_until_it_is_refused(then: str) -> None:
    session = Session({"resourceSubscriptions": ["a"]}, then=then)

    async def work(watches: ServerWatches) -> None:
        await watches.watch_resource("a")
        with anyio.fail_after(30):
            while len(session.listened) < 2:
                await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()

    await use(session, work, relist_gap_s=0.0)


async def test_a_legacy_server_is_asked_and_told() -> None:
    session = Session(is_modern=False)

    async def work(watches: ServerWatches) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(watches.watch_resource, "a")
        await watches.unwatch_resource("b")
        await watches.unwatch_resource("a")
        session.refuses = True
        with pytest.raises(RpcError):
            await watches.watch_resource("c")
        assert watches.is_empty
        watches.watch_task("t")
        assert watches.is_empty

    await use(session, work)
    assert session.asked == [("resources/subscribe", "a"), ("resources/unsubscribe", "a"), ("resources/subscribe", "c")]


async def test_a_task_is_watched_once() -> None:
    session = Session()

    async def work(watches: ServerWatches) -> None:
        for _ in range(2):
            watches.watch_task("t")
        await anyio.lowlevel.checkpoint()
        assert not watches.is_empty
        watches.unwatch_task("t")
        assert watches.is_empty
        watches.unwatch_task("t")

    await use(session, work)
    assert session.listened == [{"taskIds": ["t"]}]
