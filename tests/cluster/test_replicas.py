"""Servers with several owners: calls are spread over them, and the loss of one concerns its own calls only."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.broker import BrokerProcess, name_node, new_cluster
from tests.support.cluster import TaskCaller, open_members
from tests.support.servers import SERVERS, honest
from tests.support.waiting import until

from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.client.handlers import current_caller
from indusagi.interop.protocol_bridge.contract import ProtocolFault
from induscode.cluster.server_sessions import ReplicatedServer

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cluster import Member

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolProgress
    from induscode.cluster.channel import Channel

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def read_pid(member: Member) -> str:
    result = await member.endpoint().invoke("pid", {})
    return json.dumps(result.structured)


async def test_calls_are_spread_over_replicas_and_one_is_lost_without_the_others(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    nodes = [*(name_node(settings, name) for name in ("one", "two", "three"))]
    nodes[2] = replace(nodes[2], role="doors")
    async with open_members(nodes, [replace(honest(), replicas=2)]) as members:
        door = members[2]

        async def see_both() -> bool:
            pids = Counter([await read_pid(door) for _ in range(6)])
            return sorted(pids.values()) == [3, 3]

        await until(see_both)
        placements = await door.node.placements.list_all()
        assert {one.node for one in placements} == {"one", "two"}
        assert len({one.epoch for one in placements}) == 2
        counts, reasons, enough = [0, 0], list[str | None](), CancelToken()

        async def call(number: int) -> None:
            def count(_: ToolProgress) -> None:
                counts[number] += 1

            slow: JsonObject = {"seconds": 60.0, "progress": 600}
            with pytest.raises(ProtocolFault) as caught:
                await door.endpoint().invoke("slow", slow, cancel=enough, on_progress=count)
            reasons.append(caught.value.detail.reason)

        async with asyncio.TaskGroup() as tasks:
            for number in range(2):
                tasks.create_task(call(number))
            await until(lambda: all(counts))
            await members[0].fleet.tear_down()
            after = [await read_pid(door) for _ in range(4)]
            await until(lambda: reasons == ["outcome_unknown"])
            before = sum(counts)
            await until(lambda: sum(counts) > before)  # the other one goes on
            enough.cancel("enough")
        assert reasons == ["outcome_unknown", "cancelled"]
        assert len(set(after)) == 1
        assert {one.node for one in await door.node.placements.list_all()} == {"two"}


async def test_replica_that_is_gone_is_started_at_another_node_while_calls_go_on(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker)
    nodes = [name_node(settings, name) for name in ("one", "two", "three")]
    async with open_members(nodes, [replace(honest(), replicas=2)]) as members:

        async def list_owners() -> set[str]:
            return {one.node for one in await members[0].node.placements.list_all()}

        async def has_two() -> bool:
            return len(await list_owners()) == 2

        await until(has_two)
        first = await list_owners()
        lost = next(member for member in members if member.node.info.node in first)
        busy = next(member for member in members if member.node.info.node not in first)
        async with asyncio.TaskGroup() as tasks:
            # A call at the node that takes the replica over is not cut off by that.
            began = asyncio.Event()
            slow = busy.endpoint().invoke("slow", {"seconds": 1.0, "progress": 10}, on_progress=lambda _: began.set())
            call = tasks.create_task(slow)
            await began.wait()
            await busy.node.membership.ask(lost.node.info.instance, {"op": "drain"})

            async def is_moved() -> bool:
                return await list_owners() == {member.node.info.node for member in members} - {lost.node.info.node}

            await until(is_moved)
        assert not call.result().is_error


async def test_finding_t2_a_replica_goes_on_when_its_own_node_loses_all_others(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a node reaches its own replica late; the end of the other one was the end of both then."""
    is_up, is_late = ReplicatedServer._is_up, True

    async def reach_own_late(self: ReplicatedServer, channel: Channel) -> bool:
        own = [f"{key}.{one.placement.epoch}" for key, one in self._node.served.items()]
        return not (is_late and channel._peer.endswith(tuple(own))) and await is_up(self, channel)

    monkeypatch.setattr(ReplicatedServer, "_is_up", reach_own_late)
    settings = await new_cluster(broker)
    nodes = [name_node(settings, name) for name in ("one", "two", "three")]
    nodes[2] = replace(nodes[2], role="doors")
    async with open_members(nodes, [replace(honest(), replicas=2)]) as members:
        await until(lambda: all(has_session(member) for member in members[:2]))
        counts, enough, reasons = [0], CancelToken(), list[str | None]()

        def count(_: ToolProgress) -> None:
            counts[0] += 1

        async def call() -> None:
            slow: JsonObject = {"seconds": 600.0, "progress": 6_000}
            with pytest.raises(ProtocolFault) as caught:
                await members[2].endpoint().invoke("slow", slow, cancel=enough, on_progress=count)
            reasons.append(caught.value.detail.reason)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(call())
            await until(lambda: counts[0] > 0)
            lost, kept = sorted(members[:2], key=is_called)
            assert is_called(kept)
            await kept.node.membership.ask(lost.node.info.instance, {"op": "drain"})
            await until(lambda: not lost.owns)
            waiting = tasks.create_task(read_pid(kept))  # waits until the node reaches its own replica
            before = counts[0]
            await until(lambda: counts[0] > before + 3)
            is_late = False
            assert await waiting
            enough.cancel("enough")
        assert reasons == ["cancelled"]


def has_session(member: Member) -> bool:
    return any(one.session is not None for one in member.node.served.values())


def is_called(member: Member) -> bool:
    return any(one.session is not None and one.session.calls.is_used for one in member.node.served.values())


async def test_replica_that_starts_slowly_is_waited_for(
    broker: BrokerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts, begun = tmp_path / "starts", tmp_path / "begun"
    is_up = ReplicatedServer._is_up  # wrapped to know that a replica was asked in vain

    async def ask(self: ReplicatedServer, channel: Channel) -> bool:
        result = await is_up(self, channel)
        begun.touch()
        return result

    monkeypatch.setattr(ReplicatedServer, "_is_up", ask)
    server = honest()
    script = 'echo >> "$0"; until test -e "$1"; do sleep 0.05; done; shift; exec "$@"'
    words = ("-c", script, str(starts), str(begun), server.command, *server.args)
    slow = replace(server, command="/bin/sh", args=words, replicas=2)
    async with open_members([name_node(await new_cluster(broker), "one")], [slow]) as members:
        await read_pid(members[0])
        assert starts.read_text() == "\n"


async def call_as_task(member: Member) -> tuple[JsonValue, bool]:
    """Return the content of a result, and whether a handle came instead of it."""
    caller = TaskCaller()
    token = current_caller.set(caller)
    try:
        result = await member.endpoint().invoke("slow_compute", {"seconds": 0.2, "label": "x"})
    finally:
        current_caller.reset(token)
    return [*result.content], caller.tasks.created is not None


async def test_server_gives_handles_of_tasks_unless_it_has_replicas(broker: BrokerProcess) -> None:
    server = replace(honest(), args=(str(SERVERS / "tasks.py"), "--era", "modern"))
    results: dict[int, JsonValue] = {1: [], 2: [{"type": "text", "text": "computed x"}]}
    for replicas, content in results.items():
        settings = await new_cluster(broker)
        nodes = [name_node(settings, name) for name in ("one", "two")]
        async with open_members(nodes, [replace(server, replicas=replicas)]) as members:
            for member in members:
                assert await call_as_task(member) == (content, replicas == 1)
