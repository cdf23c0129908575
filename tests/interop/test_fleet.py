from __future__ import annotations

import asyncio
import resource
import sys
import threading
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.opened import QUICK, fleet_of
from tests.support.servers import STEADY, diary, fault, honest
from tests.support.waiting import is_alive, until, until_task_ends

from indusagi.capabilities.local import make_local_context
from indusagi.core.time import TimedLine
from indusagi.interop import (
    BridgeConfig,
    EndpointPhase,
    FleetEvent,
    ProtocolFault,
    ServerFleetImpl,
    ServerLimits,
    StdioServerConfig,
    Supervision,
    start_server_fleet,
)
from indusagi.interop.protocol_bridge.contract import RemoteTool, RemoteToolRef
from indusagi.interop.protocol_bridge.fleet import MountedTool
from indusagi.runtime.contract import ToolDescriptor

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def test_faulted_server_leaves_the_others_usable() -> None:
    bad = StdioServerConfig("bad", "no-such-command")
    async with fleet_of(honest(id="a"), bad, honest(id="b")) as fleet:
        phases = {identity: status.phase for identity, status in fleet.status().items()}
        assert phases == {"a": EndpointPhase.READY, "bad": EndpointPhase.FAULTED, "b": EndpointPhase.READY}
        assert [endpoint.config.id for endpoint in fleet.endpoints()] == ["a", "bad", "b"]
        assert fleet.endpoint("nobody") is None
        assert fleet.status()["a"].tool_count > 0


async def test_servers_connect_concurrently_and_keep_their_order(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    slow = [fault("slow-start", 0, gate, id=f"s{n}") for n in range(4)]
    heard: list[str] = []
    fleet = ServerFleetImpl(supervision=QUICK)
    fleet.subscribe(lambda told: heard.append(f"{told.server} {told.status.phase}"))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fleet.start(BridgeConfig(slow)))
        await until(lambda: len(heard) == 4)
        gate.touch()
    assert heard[:4] == [f"s{n} connecting" for n in range(4)]
    assert list(fleet.status()) == ["s0", "s1", "s2", "s3"]
    await fleet.tear_down()


async def test_last_of_two_servers_with_one_id_is_used(tmp_path: Path) -> None:
    loser, winner = tmp_path / "loser", tmp_path / "winner"
    async with fleet_of(honest("--log", loser, id="x"), honest("--log", winner, id="x")) as fleet:
        assert [str(note) for note in fleet.notes] == [
            "server 'x': configured more than once; the last configuration is used (give one another id)"
        ]
        assert (len(diary(loser, "start")), len(diary(winner, "start"))) == (0, 1)


async def test_an_empty_fleet_starts_and_ends() -> None:
    fleet = await start_server_fleet(BridgeConfig())
    assert (list(fleet.endpoints()), dict(fleet.status())) == ([], {})
    await fleet.tear_down()


async def test_fleet_without_configuration_cannot_spin_up() -> None:
    with pytest.raises(ProtocolFault) as caught:
        await ServerFleetImpl().spin_up()
    assert caught.value.kind == "not_connected"


async def test_spin_up_closes_the_former_servers(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with fleet_of(honest("--log", log)) as fleet:
        await fleet.spin_up()
        first, second = (int(pid) for pid in diary(log, "start"))
        assert not is_alive(first)
        assert is_alive(second)
    assert not is_alive(second)


async def test_status_is_a_snapshot() -> None:
    async with fleet_of(honest()) as fleet:
        status = fleet.status()
        with pytest.raises(TypeError):
            status["x"] = status["honest"]  # type: ignore[index]
    assert status["honest"].phase is EndpointPhase.READY
    assert fleet.status()["honest"].phase is EndpointPhase.CLOSED


async def test_one_server_can_be_stopped_and_restarted() -> None:
    async with fleet_of(honest(id="a"), honest(id="b")) as fleet:
        await fleet.stop("a")
        phases = [status.phase for status in fleet.status().values()]
        assert phases == [EndpointPhase.CLOSED, EndpointPhase.READY]
        await fleet.restart("a")
        assert fleet.status()["a"].phase is EndpointPhase.READY
        assert [status.restarts for status in fleet.status().values()] == [1, 0]
        assert list(fleet.status()) == ["a", "b"]
        for asked in (fleet.stop("nobody"), fleet.restart("nobody")):
            with pytest.raises(ProtocolFault, match="there is no server 'nobody'; there are: a, b"):
                await asked


async def test_restarts_at_once_leave_one_process() -> None:
    async with fleet_of(honest(id="a")) as fleet, asyncio.TaskGroup() as tasks:
        restarts = [tasks.create_task(fleet.restart("a")) for _ in range(3)]
        await asyncio.wait(restarts)
        assert fleet.status()["a"].phase is EndpointPhase.READY
        supervisors = [task for task in asyncio.all_tasks() if task.get_name() == "supervisor a"]
        assert len(supervisors) == 1


async def test_the_log_of_a_server_holds_standard_error_and_messages_across_restarts() -> None:
    async with fleet_of(fault("dies", id="dying"), fault("chatter", 3, id="chatty", limits=ServerLimits())) as fleet:
        dying, chatty = fleet.endpoint("dying"), fleet.endpoint("chatty")
        assert dying is not None
        assert chatty is not None
        with pytest.raises(ProtocolFault):
            await dying.invoke("fault", {})
        await fleet.restart("dying")
        assert "stderr: about to die" in fleet.read_log("dying")
        assert all(isinstance(line, TimedLine) and line.at_ms for line in fleet.read_log("dying"))
        quiet = fleet.measure_log("chatty")
        answer_s = fleet.status()["chatty"].answer_s
        assert answer_s is not None
        await chatty.list_items("prompt")  # it declares none: nothing is sent
        assert fleet.status()["chatty"].answer_s == answer_s
        await chatty.invoke("fault", {})
        assert fleet.read_log("chatty") == ("info: line 0", "info: line 1", "info: line 2")
        assert fleet.measure_log("chatty") > quiet
        with pytest.raises(ProtocolFault):
            fleet.read_log("nobody")


async def test_the_log_of_a_server_shows_no_secret_of_its_row() -> None:
    dying = replace(fault("dies", id="dying"), env={"DB_TOKEN": "about to die"})
    chatty = replace(fault("chatter", 2, id="chatty"), env={"API_KEY": "line 0"})
    async with fleet_of(dying, chatty) as fleet:
        for name in ("dying", "chatty"):
            endpoint = fleet.endpoint(name)
            assert endpoint is not None
            with suppress(ProtocolFault):
                await endpoint.invoke("fault", {})
        assert fleet.read_log("chatty") == ("info: …", "info: line 1")
        await fleet.restart("dying")  # its earlier lines are kept by the owner
        assert "stderr: …" in fleet.read_log("dying")
        assert not any("about to die" in line for line in fleet.read_log("dying"))


async def test_server_that_fails_first_is_restarted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with fleet_of(fault("crash-loop", 2, "--log", log)) as fleet:
        await until(lambda: fleet.status()["crash-loop"].phase is EndpointPhase.READY)
        await until(lambda: fleet.status()["crash-loop"].restarts == 2)


async def test_missing_command_is_not_retried() -> None:
    async with fleet_of(StdioServerConfig("bad", "no-such-command")) as fleet:
        await until_task_ends("supervisor bad")
        status = fleet.status()["bad"]
        assert (status.restarts, status.next_try_s) == (0, None)


async def test_status_has_the_time_of_the_next_start() -> None:
    rules = Supervision(first_s=30, jitter=0)
    async with fleet_of(fault("exits", 1, "no"), supervision=rules) as fleet:
        await until(lambda: fleet.status()["exits"].next_try_s is not None)
        assert 25 < (fleet.status()["exits"].next_try_s or 0) <= 30


async def test_listener_receives_events_until_it_unsubscribes() -> None:
    limits = ServerLimits(relist_gap_s=0.05)
    heard: list[FleetEvent] = []
    async with fleet_of(honest(limits=limits)) as fleet:

        def broken(told: FleetEvent) -> None:
            raise ValueError("listener")

        leave = [fleet.subscribe(broken), fleet.subscribe(heard.append)]
        endpoint = fleet.endpoint("honest")
        assert endpoint is not None
        await endpoint.invoke("mutate", {"kind": "add"})
        await until(lambda: any(told.event == "tools" for told in heard))
        for way_out in leave:
            way_out()
            way_out()
        count = len(heard)
        await fleet.restart("honest")
        assert len(heard) == count


async def test_r34_a_start_that_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fleet = ServerFleetImpl()
    limits = replace(STEADY, connect_s=20)
    config = BridgeConfig([fault("mute", "--log", log, limits=limits), honest("--log", log)])
    task = asyncio.get_running_loop().create_task(fleet.start(config))
    await until(lambda: len(diary(log, "start")) == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await fleet.tear_down()
    assert not any(is_alive(int(pid)) for pid in diary(log, "start"))


async def test_tear_down_can_be_repeated_and_cancelled(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fleet = ServerFleetImpl(supervision=QUICK)
    stubborn = fault("stubborn", "--log", log, limits=replace(STEADY, close_s=0.05))
    await fleet.start(BridgeConfig([stubborn, honest("--log", log)]))
    task = asyncio.get_running_loop().create_task(fleet.tear_down())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})
    await fleet.tear_down()
    assert not any(is_alive(int(pid)) for pid in diary(log, "start"))


@pytest.mark.repeats
async def test_r32_many_servers_some_of_them_bad_come_up_together(tmp_path: Path) -> None:
    ways: list[tuple[object, ...]] = [
        ("exits", 3, "no"),
        ("mute",),
        ("version", "1999-01-01"),
        ("crash-loop", 9, "--log", tmp_path / "log"),
        ("modern-version", "offer", "2099-01-01"),
    ]
    bad = [
        fault(str(mode), *words, id=f"{mode} {n}", limits=replace(STEADY, connect_s=0.5, close_s=0.05))
        for mode, *words in ways
        for n in range(3)
    ]
    missing = [StdioServerConfig(f"missing {n}", "no-such-command") for n in range(5)]
    # Each takes four descriptors, and a system may allow a program as few as 256.
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    patient = ServerLimits(connect_s=60, list_s=60)
    good = [honest(id=f"s{n}", limits=patient) for n in range(30 if allowed >= 1024 else 20)]
    before = threading.active_count()
    async with fleet_of(*good, *bad, *missing, supervision=Supervision(first_s=60)) as fleet:
        status = fleet.status()
        assert all(status[server.id].phase is EndpointPhase.READY for server in good)
        await until(
            lambda: all(fleet.status()[server.id].phase is EndpointPhase.FAULTED for server in (*bad, *missing))
        )
        assert threading.active_count() - before < 20


async def test_failed_listing_is_repeated_while_the_server_runs(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with fleet_of(fault("lists", "error", "--log", log)) as fleet:
        await until(lambda: len(diary(log, "heard tools/list")) >= 3)
        assert fleet.status()["lists"].phase is EndpointPhase.READY


async def test_restarting_server_keeps_its_last_fault() -> None:
    dies = StdioServerConfig("gone", sys.executable, ("-c", "import sys; sys.exit('no disk')"))
    fleet = ServerFleetImpl(supervision=replace(QUICK, first_s=0.01, jitter=0.0))
    told: list[FleetEvent] = []
    fleet.subscribe(told.append)
    await fleet.start(BridgeConfig((dies,)))
    try:
        await until(lambda: fleet.status()["gone"].restarts > 1)
    finally:
        await fleet.tear_down()
    phases = [one.status for one in told if one.event == "phase"]  # a slow start is another event
    again = [status for status in phases if status.phase is EndpointPhase.CONNECTING][1:]
    assert again
    assert all("no disk" in str(status.fault) for status in again)


def supervisors() -> set[str]:
    """Name the supervisors that run: each is a task of its own."""
    named = {task.get_name() for task in asyncio.all_tasks()}
    return {name for name in named if name.startswith("supervisor ")}


async def test_finding_e4_the_supervisor_stops_after_its_endpoint_was_closed() -> None:
    rules = Supervision(first_s=60, jitter=0)
    async with fleet_of(honest(id="a"), honest(id="b"), supervision=rules) as fleet:
        endpoint = fleet.endpoint("a")
        assert endpoint is not None
        assert supervisors() == {"supervisor a", "supervisor b"}
        await endpoint.close()
        await until(lambda: supervisors() == {"supervisor b"})
        status = fleet.status()["a"]
        assert (status.phase, status.restarts) == (EndpointPhase.CLOSED, 0)
        assert status.next_try_s is None
        assert fleet.endpoint("a") is endpoint


async def test_finding_e4_the_supervisor_stops_after_a_fault_without_hope() -> None:
    rules = Supervision(first_s=60, jitter=0)
    hopeless = StdioServerConfig("a", "no-such-command")
    passing = fault("exits", 1, id="b")
    async with fleet_of(hopeless, passing, supervision=rules) as fleet:
        await until(lambda: supervisors() == {"supervisor b"})
        await until(lambda: fleet.status()["b"].next_try_s is not None)
        status = fleet.status()
        assert (status["a"].phase, status["a"].restarts) == (EndpointPhase.FAULTED, 0)
        assert status["a"].next_try_s is None


async def test_finding_e4_waiters_are_released_when_a_server_is_closed_while_it_comes_up() -> None:
    patient = replace(STEADY, connect_s=60, probe_s=60)
    coming = fault("mute", id="slow", limits=patient)
    async with fleet_of() as fleet, asyncio.TaskGroup() as tasks:
        adding = tasks.create_task(fleet.add(coming))
        await until(lambda: "slow" in fleet.status() and fleet.status()["slow"].phase is EndpointPhase.CONNECTING)
        waking = tasks.create_task(fleet.wake("slow"))
        await fleet.stop("slow")
        with anyio.fail_after(60):
            await asyncio.wait({adding, waking})
        assert fleet.status()["slow"].phase is EndpointPhase.CLOSED
        assert supervisors() == set()


# -- Servers of a fleet that are there but not started: asleep until needed, or not c ----------


def echo_of(server: str) -> RemoteTool:
    return RemoteTool(RemoteToolRef(server, "echo"), ToolDescriptor(f"{server}__echo", "Echo.", {"type": "object"}))


async def test_sleeping_server_is_registered_and_not_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = BridgeConfig((honest("--log", log, id="a"), honest(id="b")))
    fleet = await start_server_fleet(config, supervision=QUICK, waiting={"a": "asleep"})
    try:
        phases = {name: status.phase for name, status in fleet.status().items()}
        assert phases == {"a": EndpointPhase.IDLE, "b": EndpointPhase.READY}
        assert diary(log, "start") == []
        await fleet.wake("a")
        assert fleet.status()["a"].phase is EndpointPhase.READY
        await fleet.wake("a")
        assert len(diary(log, "start")) == 1
    finally:
        await fleet.tear_down()


async def test_call_wakes_the_server_and_callers_share_one_start(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = BridgeConfig((honest("--log", log, id="a"),))
    fleet = await start_server_fleet(config, supervision=QUICK, waiting={"a": "asleep"})
    tool = MountedTool(fleet, echo_of("a")).tool
    ctx = make_local_context(tmp_path)
    answers: list[bool] = []

    async def ask() -> None:
        answers.append((await tool.run({"text": "hi"}, ctx)).is_error)

    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(ask)
        assert answers == [False] * 5
        assert len(diary(log, "start")) == 1
    finally:
        await fleet.tear_down()


async def test_untrusted_server_is_never_started(tmp_path: Path) -> None:
    log = tmp_path / "log"
    config = BridgeConfig((honest("--log", log, id="a"),))
    fleet = await start_server_fleet(config, supervision=QUICK, waiting={"a": "untrusted"})
    try:
        assert (fleet.status()["a"].trust, fleet.status()["a"].phase) == ("untrusted", "idle")
        await fleet.wake("a")
        outcome = await MountedTool(fleet, echo_of("a")).tool.run({}, make_local_context(tmp_path))
        assert outcome.details["code"] == "not_connected"
        with pytest.raises(ProtocolFault) as caught:
            await fleet.restart("a")
        assert caught.value.detail.reason == "untrusted"
        await fleet.spin_up()
        assert fleet.status()["a"].trust == "untrusted"
        assert diary(log, "start") == []
    finally:
        await fleet.tear_down()


async def test_server_can_join_and_leave_a_running_fleet(tmp_path: Path) -> None:
    fleet = await start_server_fleet(BridgeConfig((honest(id="a"),)), supervision=QUICK)
    try:
        await fleet.add(honest(id="b"))
        await fleet.add(honest(id="c"), waiting="asleep")
        await fleet.add(StdioServerConfig("a", "no-such-command"))
        phases = {name: str(status.phase) for name, status in fleet.status().items()}
        assert phases == {"a": "faulted", "b": "ready", "c": "idle"}
        await fleet.remove("b")
        assert list(fleet.status()) == ["a", "c"]
        with pytest.raises(ProtocolFault):
            await fleet.remove("b")
    finally:
        await fleet.tear_down()
