"""Starts of real processes: slow ones, package managers, noise, and servers that stop to answer."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.opened import QUICK, attempt, fault_of_opening, fleet_of, opened
from tests.support.servers import SERVERS, STEADY, STEADY_S, diary, fault, honest
from tests.support.transports import LoopTime, settled
from tests.support.waiting import is_asleep, until

from indusagi.core.process.child import ChildProcess
from indusagi.core.process.tree import CpuDemand
from indusagi.interop import (
    BridgeConfig,
    EndpointPhase,
    FleetEvent,
    ProtocolFault,
    ServerFleetImpl,
    ServerLimits,
    SlowStart,
    StartHistory,
    StartPolicy,
    StdioServerConfig,
    create_server_endpoint,
    start_server_fleet,
)
from indusagi.interop.protocol_bridge.client import connect, stdio
from indusagi.interop.protocol_bridge.client import start as pacing
from indusagi.interop.protocol_bridge.client.start import StartPacer
from indusagi.interop.protocol_bridge.client.stdio import start_server_process

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from pathlib import Path

    from indusagi.core.process.tree import Activity
    from indusagi.interop import ServerEndpointImpl
    from indusagi.interop.protocol_bridge.client.stdio import StdioTransport

pytestmark = [pytest.mark.anyio, pytest.mark.process]

PYTHON = (sys.executable, "-I", "-S")
UNSTATED = replace(STEADY, connect_s=None)


def package_manager(
    folder: Path, on_signal: str = "clean", *, name: str = "npx", limits: ServerLimits = UNSTATED
) -> StdioServerConfig:
    """Configure a server behind a package manager that unpacks until the file `arrived` is there."""
    program = folder / name
    script = SERVERS / "package_manager.py"
    command = [*PYTHON, str(SERVERS / "honest.py")]
    program.write_text(f'#!/bin/sh\nexec {shlex.join([*PYTHON, str(script)])} "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    args = [str(folder / "cache"), str(folder / "arrived"), on_signal, *command]
    return StdioServerConfig("fetched", str(program), args, limits=limits)


def unpacked(folder: Path) -> int:
    """Tell how much a package manager has unpacked."""
    package = folder / "cache" / "_npx" / "0123456789abcdef" / "package"
    return package.stat().st_size if package.exists() else 0


def leftovers(folder: Path) -> list[str]:
    """List what a package manager leaves in its cache when it is killed."""
    cache = folder / "cache" / "_npx"
    folders = [*cache.iterdir()] if cache.exists() else []
    return [str(one) for one in folders if (one / "concurrency.lock").exists() or not (one / "whole").exists()]


def script(text: str, *, limits: ServerLimits = STEADY) -> StdioServerConfig:
    """Configure a server that is a few lines of Python."""
    return StdioServerConfig("s", PYTHON[0], [*PYTHON[1:], "-c", text], limits=limits)


# -- slow starts ------------------------------------------------------------------------------


class TenMinutes:
    """A clock for first starts of ten minutes, in which a server is looked at after 500 s and after 575 s."""

    policy = StartPolicy(first_s=600, later_s=600, cap_s=6_000, package_manager_cap_s=6_000)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._time = LoopTime(monkeypatch)
        self._looks = 0
        # A look takes as long as the machine lets it.
        monkeypatch.setattr(stdio, "_WINDOW_S", 100.0)
        monkeypatch.setattr(stdio, "_SAMPLE_TIMEOUT_S", 60.0)
        look = ChildProcess.activity

        async def counted(child: ChildProcess) -> Activity | None:
            try:
                return await look(child)
            finally:
                self._looks += 1

        monkeypatch.setattr(ChildProcess, "activity", counted)

    async def pass_by(self, stirs: Callable[[], bool] = lambda: True) -> None:
        """Let them pass; between the two looks it does something that `stirs` tells."""
        await self._time.passes(500)
        await until(lambda: self._looks == 1)
        await until(stirs)
        await self._time.passes(75)
        await until(lambda: self._looks == 2)
        await self._time.passes(50)


@pytest.mark.parametrize("is_known", [False, True])
async def test_finding_a4_a_start_is_extended_while_it_shows_life(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    time = TenMinutes(monkeypatch)
    config, history = package_manager(tmp_path), StartHistory()
    if is_known:
        history.record_up(config)
    endpoint = create_server_endpoint(config, policy=time.policy, history=history)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(endpoint.open())
            await until(lambda: unpacked(tmp_path) > 0)
            sizes: list[int] = []  # since the first look, which finds what was unpacked before

            def unpacks() -> bool:
                sizes.append(unpacked(tmp_path))
                return sizes[-1] > sizes[0] + 65_536

            await time.pass_by(unpacks)
            assert endpoint.phase is EndpointPhase.CONNECTING
            (tmp_path / "arrived").touch()
        assert endpoint.phase is EndpointPhase.READY
    finally:
        await endpoint.close()
    assert leftovers(tmp_path) == []


async def test_finding_b1_a_first_start_that_only_waits_is_not_extended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = TenMinutes(monkeypatch)
    log = tmp_path / "log"
    history = StartHistory()
    # Both requests are there at once: none of them wakes it up later.
    mute = replace(fault("mute", "--log", log), limits=replace(UNSTATED, probe_s=0.0))
    endpoint = create_server_endpoint(mute, policy=time.policy, history=history)
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(_fault_of(endpoint))
        await until(lambda: bool(diary(log, "heard initialize")) and bool(diary(log, "heard server/discover")))
        await until(lambda: is_asleep(int(diary(log, "start")[0])))
        await time.pass_by()
    assert "no answer within 600 s" in str(failing.result())
    assert not history.was_up(mute)


async def _fault_of(endpoint: ServerEndpointImpl) -> ProtocolFault:
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.open()
    return caught.value


async def test_finding_b1_standard_error_is_life_where_the_system_tells_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unseen(_: ChildProcess) -> Activity | None:
        return None

    monkeypatch.setattr(ChildProcess, "activity", unseen)
    time = TenMinutes(monkeypatch)
    text = (
        "import os, sys, time\n"
        f"while not os.path.exists({str(tmp_path / 'arrived')!r}):\n"
        "    print('step', time.monotonic(), file=sys.stderr, flush=True); time.sleep(0.02)\n"
        f"sys.argv = ['honest.py']\nsys.path.insert(0, {str(SERVERS)!r})\n"
        f"import runpy; runpy.run_path({str(SERVERS / 'honest.py')!r}, run_name='__main__')\n"
    )
    endpoint = create_server_endpoint(script(text, limits=UNSTATED), policy=time.policy, history=StartHistory())
    last: list[str] = []

    def writes() -> bool:
        """Tell whether there is a newer line than when it was first asked."""
        last.append(endpoint.read_log()[-1])
        return last[0] != last[-1]

    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(endpoint.open())
            await until(lambda: bool(endpoint.read_log()))
            await time.pass_by(writes)
            assert endpoint.phase is EndpointPhase.CONNECTING
            (tmp_path / "arrived").touch()
        assert endpoint.phase is EndpointPhase.READY
    finally:
        await endpoint.close()


async def test_finding_b1_a_later_start_that_takes_too_long_makes_the_next_one_patient() -> None:
    history = StartHistory()
    mute = replace(fault("mute"), limits=UNSTATED)
    history.record_up(mute)
    endpoint = create_server_endpoint(mute, policy=StartPolicy(first_s=60, later_s=0.05), history=history)
    with pytest.raises(ProtocolFault, match="the next start is given more time"):
        await endpoint.open()
    assert not history.was_up(mute)


async def test_finding_b1_a_slow_start_is_an_event_for_programs(tmp_path: Path) -> None:
    heard: list[FleetEvent] = []

    def note(event: FleetEvent) -> None:
        heard.append(event)
        if event.event == "slow_start" and event.server == "fetched":
            (tmp_path / "arrived").touch()

    config = BridgeConfig([package_manager(tmp_path), honest(id="quick", limits=STEADY)])
    fleet = await start_server_fleet(config, policy=StartPolicy(slow_s=0.01), history=StartHistory(), on_event=note)
    try:
        slow = [one for one in heard if one.event == "slow_start" and one.server == "fetched"]
        assert [one.status.slow_start for one in slow] == [SlowStart(True, "npx")]
        assert slow[0].status.phase is EndpointPhase.CONNECTING
        assert fleet.status()["fetched"].slow_start is None
    finally:
        await fleet.tear_down()


# -- package managers are ended gently --------------------------------------------------------


@pytest.mark.parametrize("on_signal", ["clean", "finish"])
async def test_finding_b1_a_package_manager_is_not_killed_while_it_unpacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_signal: str
) -> None:
    time = LoopTime(monkeypatch)
    endpoint = create_server_endpoint(package_manager(tmp_path, on_signal, limits=replace(STEADY, close_s=0.01)))
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(_fault_of(endpoint))
        await until(lambda: unpacked(tmp_path) > 0)
        await time.passes(STEADY_S)
        if on_signal == "finish":
            before = unpacked(tmp_path)
            await until(lambda: unpacked(tmp_path) > before + 5 * 65_536)
            (tmp_path / "arrived").touch()
    assert failing.result().kind == "timeout"
    assert leftovers(tmp_path) == []


async def test_finding_b1_closing_a_fleet_in_mid_download_leaves_no_lock(tmp_path: Path) -> None:
    fleet = ServerFleetImpl(supervision=QUICK, history=StartHistory())
    lock = tmp_path / "cache" / "_npx" / "0123456789abcdef" / "concurrency.lock"
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fleet.start, BridgeConfig([package_manager(tmp_path)]))
        await until(lambda: lock.exists())
        tasks.cancel_scope.cancel()
    assert leftovers(tmp_path) == []


async def test_idle_package_manager_that_ignores_signals_is_killed() -> None:
    stubborn = (
        "import signal, time\n"
        "for one in (signal.SIGINT, signal.SIGTERM): signal.signal(one, signal.SIG_IGN)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    output = _Output()
    child = ChildProcess(output)
    words = shlex.join([*PYTHON, "-c", stubborn, "npx"])
    await child.start(["sh", "-c", f"exec {words}"], dict(os.environ), None, gentle=True)
    await until(lambda: output.is_ready)
    await child.end(0.02, gentle=True)
    assert child.exit_code == -9


class _Output:
    is_ready = False

    def stdout_received(self, data: bytes) -> None:
        self.is_ready = True

    def stderr_received(self, data: bytes) -> None:
        return

    def state_changed(self) -> None:
        return


# -- pacing -----------------------------------------------------------------------------------


async def test_finding_c3_starts_that_compute_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_SAMPLE_INTERVAL_S", 60.0)  # a start keeps its turn until it is up
    starting: set[str] = set()
    most = 0

    def heard(event: FleetEvent) -> None:
        nonlocal most
        if event.status.phase is EndpointPhase.CONNECTING:
            starting.add(event.server)
        else:
            starting.discard(event.server)
        most = max(most, len(starting))

    fleet = ServerFleetImpl(pacer=StartPacer(2))
    fleet.subscribe(heard)
    try:
        await fleet.start(BridgeConfig([honest(id=f"s{n}", limits=STEADY) for n in range(6)]))
        phases = {one.phase for one in fleet.status().values()}
        assert (most, phases) == (2, {EndpointPhase.READY})
    finally:
        await fleet.tear_down()


class Tree:
    """The processes of a start: they compute or wait as a test says."""

    def __init__(self) -> None:
        self.is_busy, self.used_s, self.wanted_s = True, 0.0, 0.0
        self.share = 0.04
        """The share of a core that a busy machine leaves."""
        self._read_at = asyncio.get_running_loop().time()

    async def demand(self) -> CpuDemand | None:
        now = asyncio.get_running_loop().time()
        elapsed_s, self._read_at = now - self._read_at, now
        if self.is_busy:
            self.wanted_s += elapsed_s
            self.used_s += elapsed_s * self.share
        return CpuDemand(self.used_s, {1: self.wanted_s})


class Starts:
    """Starts that take turns, each until a test lets it end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, turns: int, count: int) -> None:
        self.time = LoopTime(monkeypatch)
        self.trees = [Tree() for _ in range(count)]
        self.ends = [asyncio.Event() for _ in range(count)]
        self.urgent = [asyncio.Event() for _ in range(count)]
        self.begun: list[int] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._pacer = StartPacer(turns)

    async def run(self, number: int) -> None:
        async with self._pacer.turn(self.trees[number].demand, self.urgent[number]):
            self.begun.append(number)
            await self.ends[number].wait()

    async def pass_by(self) -> None:
        """Let several samples pass."""
        for _ in range(5):
            await self.time.passes(0.3)


@asynccontextmanager
async def starts(monkeypatch: pytest.MonkeyPatch, turns: int, count: int) -> AsyncGenerator[Starts]:
    some = Starts(monkeypatch, turns, count)
    async with asyncio.TaskGroup() as tasks:
        some.tasks = [tasks.create_task(some.run(number)) for number in range(count)]
        yield some
        for end in some.ends:
            end.set()


async def test_finding_a2_a_start_that_a_busy_machine_slows_down_keeps_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with starts(monkeypatch, turns=4, count=20) as some:
        await some.pass_by()
        assert some.begun == [0, 1, 2, 3]
        some.ends[1].set()
        await some.pass_by()
        assert some.begun == [0, 1, 2, 3, 4]


async def test_a_start_that_waits_makes_room_and_counts_again_when_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with starts(monkeypatch, turns=1, count=4) as some:
        await some.pass_by()
        some.trees[0].is_busy = False
        await some.pass_by()
        assert some.begun == [0, 1]
        some.trees[0].is_busy = True
        await some.pass_by()
        some.ends[1].set()  # the first one computes again
        await some.pass_by()
        assert some.begun == [0, 1]
        some.ends[0].set()
        await some.pass_by()
        assert some.begun == [0, 1, 2]


async def test_a_start_that_never_stops_computing_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with starts(monkeypatch, turns=1, count=2) as some:
        some.trees[0].share = 1.0
        await some.pass_by()
        assert some.begun == [0]
        await some.time.passes(pacing.MAX_TURN_CPU_S)
        await some.pass_by()
        assert some.begun == [0, 1]


async def test_starts_that_are_cancelled_or_urgent_leave_their_places(monkeypatch: pytest.MonkeyPatch) -> None:
    async with starts(monkeypatch, turns=1, count=5) as some:
        await some.pass_by()
        some.urgent[3].set()
        some.tasks[1].cancel()
        await some.pass_by()
        assert some.begun == [0, 3]
        some.tasks[0].cancel()
        some.ends[3].set()
        await some.pass_by()
        assert some.begun == [0, 3, 2]


async def test_the_demand_of_a_process_tree_is_what_it_wants_of_the_cores(tmp_path: Path) -> None:
    ready, go = tmp_path / "ready", tmp_path / "go"
    child = (
        "import os, time\n"
        f"open({str(ready)!r}, 'w').close()\n"
        f"while not os.path.exists({str(go)!r}): time.sleep(0.05)\n"
        "while True: pass\n"
    )
    words = shlex.join([*PYTHON, "-c", child])
    process = ChildProcess(_Output())
    await process.start(["sh", "-c", f"{words}; true"], dict(os.environ), None)
    try:
        await until(ready.exists)
        first = await process.cpu_demand()
        go.touch()

        async def grows() -> bool:
            demand = await process.cpu_demand()
            assert demand is not None
            assert len(demand.by_pid) == 2
            return demand.grown_since(first) > 0.5 and demand.is_runnable and demand.used_s > 0

        await until(grows)
    finally:
        await process.end(0)
    assert await process.cpu_demand() is None


async def test_finding_c3_a_start_that_waits_does_not_hold_up_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_SAMPLE_INTERVAL_S", 0.02)
    fleet = ServerFleetImpl(pacer=StartPacer(1), supervision=QUICK)
    limits = replace(STEADY, connect_s=30)
    async with anyio.create_task_group() as tasks:
        config = BridgeConfig([fault("mute", limits=limits), honest()])
        tasks.start_soon(fleet.start, config)
        await until(lambda: bool(fleet.status()) and fleet.status()["honest"].phase is EndpointPhase.READY)
        assert fleet.status()["mute"].phase is EndpointPhase.CONNECTING
        tasks.cancel_scope.cancel()


async def test_finding_c3_a_call_starts_its_server_out_of_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "_SAMPLE_INTERVAL_S", 60.0)
    fleet = ServerFleetImpl(pacer=StartPacer(1), supervision=QUICK)
    config = BridgeConfig([fault("mute", limits=replace(STEADY, connect_s=30)), honest()])
    await fleet.start(config, waiting={"mute": "asleep", "honest": "asleep"})
    async with anyio.create_task_group() as tasks:
        for server in ("mute", "honest"):
            tasks.start_soon(lambda one=server: fleet.wake(one, urgent=False))
        await until(lambda: fleet.status()["mute"].phase is EndpointPhase.CONNECTING)
        assert fleet.status()["honest"].phase is EndpointPhase.IDLE
        await fleet.wake("honest")
        assert fleet.status()["honest"].phase is EndpointPhase.READY
        await fleet.tear_down()


# -- what it wrote ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("print('Listening on port 3000', flush=True); input()", "Listening on"),
        ("print('Listening', end='', flush=True); input()", "Listening"),
        ('print(\'{"level": "info", "msg": "up"}\', flush=True); input()', "msg"),
        ("print('\\x1b[32mready\\x1b[0m', flush=True); input()", "'ready'"),
        ("print('[1, 2]', flush=True); input()", "[1, 2]"),
        ("print('Missing configuration: run setup first')", "Missing configuration"),
    ],
    ids=["a line", "no newline", "a JSON log", "colours", "other JSON", "and exits"],
)
async def test_finding_b4_what_stands_on_standard_output_instead_of_the_protocol_is_quoted(
    text: str, quoted: str
) -> None:
    failure = await fault_of_opening(script(text))
    assert "its standard output is not MCP: it wrote" in str(failure)
    assert quoted in str(failure)
    assert failure.detail.stdout
    assert "\x1b" not in str(failure)


async def test_finding_b4_noise_of_a_server_that_works_is_a_note_with_its_first_line() -> None:
    async with opened(fault("garbage", 3)) as endpoint:
        await endpoint.list_tools()
        (note,) = endpoint.status().notes
        assert "the first: 'INFO starting'" in str(note)


async def test_finding_b4_what_was_written_before_the_link_is_read_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    # With many servers starting at once, a line arrives before the loop comes back to its start.
    spawn = connect.start_server_process

    async def spawn_late(config: StdioServerConfig, on_refused: Callable[[], None]) -> StdioTransport:
        link = await spawn(config, on_refused)
        await until(lambda: link.bytes_received > 0)
        return link

    monkeypatch.setattr(connect, "start_server_process", spawn_late)
    text = "print('Usage: serve --port N', flush=True); input()"
    assert "it wrote 'Usage: serve --port N'" in str(await fault_of_opening(script(text)))


async def test_finding_b5_a_start_that_takes_too_long_tells_what_stands_on_standard_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = LoopTime(monkeypatch)
    text = "import sys; print('Error: no database at db:5432', file=sys.stderr, flush=True)\nwhile True: input()"
    endpoint = create_server_endpoint(script(text))
    async with asyncio.TaskGroup() as tasks:
        failing = tasks.create_task(_fault_of(endpoint))
        await until(lambda: bool(endpoint.read_log()))
        await time.passes(STEADY_S)
    assert failing.result().kind == "timeout"
    assert ". Last output: Error: no database at db:5432" in str(failing.result())


async def test_finding_b5_a_cause_that_stands_far_above_the_end_is_found() -> None:
    text = (
        "import sys\nprint('ValueError: the port is taken', file=sys.stderr)\n"
        "for n in range(60): print('   at frame', n, file=sys.stderr)\nsys.exit(1)"
    )
    failure = await fault_of_opening(script(text))
    assert ". Last output: ValueError: the port is taken" in str(failure)
    assert len(failure.detail.stderr) == 20


# -- errors of the server itself --------------------------------------------------------------

REFUSING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    answer = {"error": {"code": -32601, "message": "no such method"}}
    if asked["method"] == "initialize":
        answer = {"result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}},
                             "serverInfo": {"name": "s", "version": "1"}}}
    if asked["method"] == "METHOD":
        answer = {"error": ERROR}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **answer}), flush=True)
"""


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ('{"code": -32000, "message": "API key expired"}', "API key expired (code -32000)"),
        (
            '{"code": -32603, "message": "Internal error", "data": "database is locked"}',
            "Internal error: database is locked (code -32603)",
        ),
        (
            '{"code": -32603, "message": "Internal error", "data": {"details": "no route"}}',
            "Internal error: no route (code -32603)",
        ),
        ('{"code": 7, "message": ""}', "an error without a message (code 7)"),
    ],
)
async def test_finding_c6_the_error_of_a_server_that_cannot_list_is_the_message(error: str, said: str) -> None:
    text = REFUSING.replace("METHOD", "tools/list").replace("ERROR", error)
    async with opened(script(text)) as endpoint:
        with pytest.raises(ProtocolFault) as caught:
            await endpoint.list_tools()
    assert f"its tools could not be listed: it answered with an error: {said}" in str(caught.value)
    assert caught.value.detail.rpc_code is not None


async def test_finding_c6_the_error_of_a_server_that_refuses_to_initialize_is_the_message() -> None:
    error = '{"code": -32002, "message": "run `login` first"}'
    text = REFUSING.replace("METHOD", "initialize").replace("ERROR", error)
    failure = await fault_of_opening(script(text))
    assert "answered with an error: run `login` first (code -32002)" in str(failure)
    assert failure.detail.rpc_code == -32002


# -- servers that stop to answer --------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_finding_d10_a_server_that_answers_nothing_any_more_is_started_anew(
    era: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, log = LoopTime(monkeypatch), tmp_path / "log"
    blocked = fault("block", "--era", era, "--log", log, limits=replace(STEADY, close_s=0.01))
    async with fleet_of(blocked) as fleet, asyncio.TaskGroup() as tasks:
        endpoint = fleet.endpoint("block")
        assert endpoint is not None
        call = tasks.create_task(attempt(endpoint, "fault", {}))
        await until(lambda: bool(diary(log, "heard tools/call")))
        await time.passes(STEADY_S)  # the call
        assert isinstance(await call, ProtocolFault)
        await time.passes(STEADY_S)  # the question whether it is there
        await until(
            lambda: fleet.status()["block"].restarts > 0 and fleet.status()["block"].phase is EndpointPhase.READY
        )
        assert endpoint.phase is EndpointPhase.FAULTED
        assert "answers nothing any more" in str(endpoint.status().fault)


SHAKES_HANDS_ONLY = """
import json, sys, time
while True:
    asked = json.loads(sys.stdin.readline())
    if asked.get("method") == "initialize":
        break
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"],
                      "error": {"code": -32601, "message": "no"}}), flush=True)
answer = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s"}}
print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": answer}), flush=True)
time.sleep(60)
"""
ONLY_WRITES = """
import sys, time
for step in range(3_000):
    print("tick", file=sys.stderr, flush=True)
    time.sleep(0.02)
"""
QUICK_END = replace(STEADY, close_s=0.01, call_hard_s=3 * STEADY_S)


async def test_finding_d10_a_server_that_stops_reading_with_a_full_pipe_is_faulted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = LoopTime(monkeypatch)
    async with opened(script(SHAKES_HANDS_ONLY, limits=QUICK_END)) as endpoint:
        endpoint.notify("notifications/message", {"text": "x" * 1024 * 1024})
        await time.passes(STEADY_S)
        await until(lambda: endpoint.phase is EndpointPhase.FAULTED)
        assert "did not read its standard input" in str(endpoint.status().fault)


async def test_finding_d10_one_that_still_writes_has_the_time_that_a_call_may_take_in_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = LoopTime(monkeypatch)
    link = await start_server_process(script(ONLY_WRITES, limits=QUICK_END))
    ends: list[str] = []
    link.attach(lambda frame: None, lambda end: ends.append(end.message))
    try:
        link.send({"text": "x" * 1024 * 1024})
        await settled()
        for _ in range(3):
            assert ends == []
            before = link.bytes_received
            await until(lambda before=before: link.bytes_received > before)
            await time.passes(STEADY_S)
        assert "did not read its standard input for 18" in ends[0]
    finally:
        await link.close()


async def test_timed_out_call_leaves_a_responsive_server_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, log = LoopTime(monkeypatch), tmp_path / "log"
    async with opened(fault("hang", "--log", log)) as endpoint, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(attempt(endpoint, "fault", {}))
        await until(lambda: bool(diary(log, "heard tools/call")))
        await time.passes(STEADY_S)
        assert isinstance(await call, ProtocolFault)
        await until(lambda: bool(diary(log, "heard ping")))
        for _ in range(3):
            await endpoint.invoke("echo", {"text": "still here"})
        assert endpoint.phase is EndpointPhase.READY


async def test_finding_d10_a_banner_without_an_end_of_line_costs_no_wait() -> None:
    # The old protocol is asked for after this time, or once the first question is answered.
    limits = replace(STEADY, probe_s=2 * STEADY_S)
    async with opened(fault("banner", "--era", "legacy", limits=limits)) as endpoint:
        assert endpoint.phase is EndpointPhase.READY
        (note,) = endpoint.status().notes
        assert "'ready>" in str(note)
