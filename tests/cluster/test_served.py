"""A server that other nodes use, at its owner and without a broker: what reaches the server, and what the nodes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.cluster.test_forwarding import Channel
from tests.support.waiting import LIMIT_S, until

from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import (
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
)
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
from induscode.cluster.contract import Placement
from induscode.cluster.node import ClusterNode
from induscode.cluster.served import PeerSession, ServedServer

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio
NOTE = "note:///today"
END = TransportEnd("has ended", FaultDetail(reason="closed"))


class Session:
    """The owner's session with a server that answers every request, or fails."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.facts = SimpleNamespace(era="legacy", result=dict[str, Any]())
        self.asked: list[tuple[str, JsonObject]] = []
        self._failure = failure

    async def request(self, method: str, params: JsonObject, _: object) -> JsonObject:
        self.asked.append((method, params))
        if self._failure is not None:
            raise self._failure
        return {}

    call = request


class Stage:
    """A server that two nodes use."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.session: Any = Session(failure)
        self.served = ServedServer(Placement("k", "s", "n", "lease", 1), lambda _, __: None)
        self.served.session = self.session
        self.served.ready.set()
        self.nodes = [self._connect("one"), self._connect("two")]

    def _connect(self, reply: str) -> Channel:
        channel: Any = Channel()
        channel.writable.set()
        self.served._peers[reply] = PeerSession(self.served, channel)
        return channel

    async def ask(self, node: Channel, method: str, **params: Any) -> Any:
        """Send a request of a node, and return its response."""
        node.sent.clear()
        node.receive({"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
        await until(lambda: bool(node.sent))
        return node.sent[0]


async def test_nodes_that_go_away_watch_no_resource_any_more() -> None:
    stage = Stage()
    for node in stage.nodes:
        assert (await stage.ask(node, "resources/subscribe", uri=NOTE))["result"] == {}
    stage.session.asked.clear()
    for reply, asked in (("one", []), ("two", [("resources/unsubscribe", {"uri": NOTE})])):
        stage.served._forget(reply)
        await until(lambda: not stage.served._leaving)
        assert stage.session.asked == asked


@pytest.mark.parametrize(
    ("failure", "code"), [(RequestTimeoutError("too late"), -32000), (InvalidResponseError("no object"), -32603)]
)
async def test_call_that_the_server_does_not_answer_is_an_error(failure: Exception, code: int) -> None:
    stage = Stage(failure)
    answer = await stage.ask(stage.nodes[0], "tools/call", name="a")
    assert (answer["error"]["code"], str(failure) in answer["error"]["message"]) == (code, True)


async def test_call_is_answered_after_the_end_of_its_server() -> None:
    """The channel tells the other node of the end first: the call may have taken effect."""
    stage = Stage(ConnectionClosedError(END))
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(stage.ask(stage.nodes[0], "tools/call", name="a"))
        await until(lambda: bool(stage.session.asked))
        await asyncio.sleep(0)
        assert not stage.nodes[0].sent
        stage.served.ended.set()
    assert answer.result()["error"] == {"code": -32000, "message": "the server has ended"}


async def test_changed_roots_reach_the_server_once_it_is_up(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()
    heard: list[str] = []
    stage.session.connection = SimpleNamespace(notify=heard.append)
    changed: JsonObject = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    for session in (None, stage.session):
        stage.served.session = session
        stage.nodes[0].receive(changed)
    stage.nodes[1].receive({**changed, "method": "notifications/initialized"})
    assert (heard, caplog.messages) == ([changed["method"]], [])


async def test_server_in_use_keeps_no_other_one_running() -> None:
    rested, resting = list[str](), asyncio.Event()

    async def rest(server: str) -> bool:
        rested.append(server)
        resting.set()
        return True

    async def ask_peers_to_rest(_: float) -> bool:
        return True

    def describe(server: str, *, is_idle: bool) -> SimpleNamespace:
        def is_idle_for(_: float) -> bool:
            return is_idle

        placement = Placement(server, server, "n", "lease", 1)
        return SimpleNamespace(placement=placement, is_idle=is_idle_for, ask_peers_to_rest=ask_peers_to_rest)

    served = {"busy": describe("busy", is_idle=False), "idle": describe("idle", is_idle=True)}
    node: Any = SimpleNamespace(served=served, _fleet=SimpleNamespace(rest=rest))
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(ClusterNode._watch_idle(node, 0.0))
        async with asyncio.timeout(LIMIT_S):
            await resting.wait()
        watching.cancel()
    assert {*rested} == {"idle"}
