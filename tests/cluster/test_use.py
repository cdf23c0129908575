"""Servers of a cluster and what clients do with them: idle ones stop, watched resources are shared."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.broker import BrokerProcess, name_node, new_cluster
from tests.support.cluster import TaskCaller, open_members, open_pair
from tests.support.servers import SERVERS, honest
from tests.support.transports import LoopTime
from tests.support.waiting import until

from indusagi.interop.protocol_bridge.bridge import make_inert_context
from indusagi.interop.protocol_bridge.client.handlers import Handlers, current_caller
from indusagi.interop.protocol_bridge.contract import EndpointPhase, FaultDetail, FaultReason, StdioServerConfig
from indusagi.interop.protocol_bridge.fleet import MountedTool
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
from induscode.cluster.contract import Placement
from induscode.cluster.served import ServedServer

if TYPE_CHECKING:
    from tests.support.cluster import Member

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ProgressSink, ToolResult

pytestmark = [pytest.mark.anyio, pytest.mark.process]
IDLE_S = 4.0
"""Long enough that a busy machine does not stop a server between two lines of a test."""
NOTE = "note:///today"


async def call_tool(
    member: Member, name: str, arguments: JsonObject, on_progress: ProgressSink | None = None
) -> ToolResult:
    """Call as a model does: a server that is asleep is started first, and one that moves is called again."""
    while (tools := member.endpoint().known_tools) is None:
        await member.fleet.wake("honest")
    [tool] = [tool for tool in tools if tool.ref.name == name]
    result = await MountedTool(member.fleet, tool).run(
        arguments, replace(make_inert_context(), on_progress=on_progress)
    )
    assert not result.is_error, result.content
    return result


async def test_server_that_is_not_called_stops_until_its_next_call(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = LoopTime(monkeypatch)
    settings = replace(await new_cluster(broker), idle_s=IDLE_S)
    async with open_members([name_node(settings, name) for name in ("one", "two")], [honest()]) as members:

        async def is_stopped() -> bool:
            phases = {member.endpoint().phase for member in members}
            return phases == {EndpointPhase.IDLE} and not await members[0].node.placements.list_all()

        # A call that runs is a use, at the node that owns the server and at the other one.
        for member in members:
            before, began = await call_tool(member, "pid", {}), asyncio.Event()
            async with asyncio.TaskGroup() as tasks:
                slow: JsonObject = {"seconds": 0.2, "progress": 4}
                tasks.create_task(call_tool(member, "slow", slow, lambda _, began=began: began.set()))
                await began.wait()
                await time.passes(1.5 * IDLE_S)
            assert (await call_tool(member, "pid", {})).content == before.content
        before = await call_tool(members[0], "pid", {})
        await time.passes(1.5 * IDLE_S)
        await until(is_stopped)
        for member in members:
            assert (await call_tool(member, "pid", {})).content != before.content


async def test_drained_node_finishes_its_calls_and_new_ones_wait_for_the_next_owner(broker: BrokerProcess) -> None:
    async with open_pair(await new_cluster(broker), honest()) as (owner, other):
        began = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            slow: JsonObject = {"seconds": 0.5, "progress": 5}
            for member in (owner, other):
                tasks.create_task(call_tool(member, "slow", slow, lambda _: began.set()))
            await began.wait()
            await other.node.membership.ask(owner.node.info.instance, {"op": "drain"})
            calls = [tasks.create_task(call_tool(member, "pid", {})) for member in (owner, other)]
        assert other.owns
        assert not owner.owns
        assert calls[0].result().content == calls[1].result().content


async def test_message_that_comes_after_the_end_is_refused_for_the_same_reason() -> None:
    reasons: dict[FaultReason, str] = {"moved": "moved", "exited": "closed"}
    for reason, expected in reasons.items():
        served = ServedServer(Placement("k", "s", "n", "lease", 1), lambda _, __: pytest.fail("a channel was opened"))
        await served.close(TransportEnd("has ended", FaultDetail(reason=reason)))
        message: Any = SimpleNamespace(reply="reply", data=b"")
        assert not await served.receive(message)
        assert served.end_reason == expected


def library(*flags: str) -> StdioServerConfig:
    return replace(honest(id="library"), args=(str(SERVERS / "library.py"), *flags))


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_node_that_watches_a_resource_no_longer_leaves_it_to_the_others(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, era: str
) -> None:
    updates, time = list[str](), LoopTime(monkeypatch)

    def receive(method: str, params: JsonObject) -> None:
        if method == "notifications/resources/updated":
            updates.append(str(params["uri"]))

    settings = replace(await new_cluster(broker), idle_s=IDLE_S)
    handlers = Handlers(on_notification=receive)
    async with open_pair(settings, library("--era", era), handlers) as (owner, other):
        one, two = owner.endpoint("library"), other.endpoint("library")
        await one.watch_resource(NOTE)
        await two.watch_resource(NOTE)
        await one.unwatch_resource(NOTE)

        async def reaches_the_other() -> bool:
            await two.invoke("touch", {"uri": NOTE})
            return bool(updates)

        await until(reaches_the_other)
        assert set(updates) == {NOTE}
        # A watched resource is a use, whatever the idle time.
        await time.passes(1.5 * IDLE_S)
        assert (one.phase, two.phase) == (EndpointPhase.READY, EndpointPhase.READY)
        await two.unwatch_resource(NOTE)
        pause_s = 0.1
        while owner.owns:  # the owner may hear of it after the time has passed, which is a use
            await time.passes(1.5 * IDLE_S)
            await asyncio.sleep(pause_s := 2 * pause_s)


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_changes_of_a_task_reach_the_other_node(broker: BrokerProcess, era: str) -> None:
    ended: list[JsonValue] = []

    def receive(method: str, params: JsonObject) -> None:
        if method.startswith("notifications/tasks") and params["status"] == "completed":
            ended.append(params["taskId"])

    server = replace(honest(id="tasks"), args=(str(SERVERS / "tasks.py"), "--era", era))
    settings = await new_cluster(broker)
    async with open_pair(settings, server, Handlers(on_notification=receive)) as (_, other):
        caller = TaskCaller({"ttl": 60_000} if era == "legacy" else None)
        token = current_caller.set(caller)
        try:
            await other.endpoint("tasks").list_tools()
            await other.endpoint("tasks").invoke("slow_compute", {"seconds": 0.5, "label": "x"})
        finally:
            current_caller.reset(token)
        assert caller.tasks.created is not None
        task_id = caller.tasks.created["taskId"]
        await other.endpoint("tasks").watch_task(str(task_id))
        # One at the owner, one at the node that follows it.
        await until(lambda: ended == [task_id, task_id])
