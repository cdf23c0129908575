"""A server has one owner: commands about it never race, and nothing runs or hangs after the end."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.support.opened import QUICK
from tests.support.servers import STEADY, diary, fault, honest
from tests.support.waiting import is_alive, until

from indusagi.core.tasks import run_shielded
from indusagi.interop import (
    BridgeConfig,
    EndpointPhase,
    ProtocolFault,
    ServerFleetImpl,
    StdioServerConfig,
    Supervision,
    create_server_endpoint,
)
from indusagi.interop.protocol_bridge.client.session import transport_session
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd, linked_pair

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine
    from pathlib import Path

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop import Handlers, ServerConfig
    from indusagi.interop.protocol_bridge.client.session import ClientSession
    from indusagi.interop.protocol_bridge.owner import Waiting

pytestmark = pytest.mark.anyio

LIMIT_S = 60
MODERN: JsonObject = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
OURS = ("owner ", "supervisor ", "endpoint ", "fleet ")


async def let_run(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


class World:
    """Servers in memory. Counts those that run, as processes would be; takes its time at random."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.running: Counter[str] = Counter()
        self.most = 0
        """The most that ran under one id at once."""
        self.started = 0

    async def dawdle(self, most: int = 6) -> None:
        await let_run(self.random.randrange(most))

    @asynccontextmanager
    async def open(
        self, config: ServerConfig, handlers: Handlers, injected: object, watch: object
    ) -> AsyncGenerator[ClientSession]:
        self.running[config.id] += 1
        self.started += 1
        self.most = max(self.most, self.running[config.id])
        ours, theirs = linked_pair()

        def answer(frame: JsonValue | bytes) -> None:
            assert isinstance(frame, dict)
            if "id" in frame:
                result: JsonObject = {"tools": []} if frame["method"] == "tools/list" else MODERN
                theirs.send({"jsonrpc": "2.0", "id": frame["id"], "result": result})

        theirs.attach(answer, lambda end: None)
        try:
            await self.dawdle()
            if self.random.random() < 0.2:
                raise ConnectionClosedError(TransportEnd("exited with code 1", FaultDetail(reason="exited")))
            async with transport_session(ours, config, handlers) as session:
                if self.random.random() < 0.3:  # it ends by itself
                    asyncio.get_running_loop().call_later(self.random.random() / 500, theirs.finish)
                yield session
        finally:
            await run_shielded(self.end(config.id), "end of a server")  # as the end of a process

    async def end(self, server: str) -> None:
        await self.dawdle()
        self.running[server] -= 1


def our_tasks() -> set[str]:
    return {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith(OURS)}


async def refused(command: Coroutine[object, object, object]) -> None:
    """Wait for a command that may come too late."""
    with suppress(ProtocolFault):
        await command


async def drive(
    fleet: ServerFleetImpl, chance: random.Random, configs: dict[str, ServerConfig], check: Callable[[], None]
) -> None:
    """Send commands from several tasks at random, and shut the fleet down in the middle of it."""
    commands = [
        *(partial(method, server) for server in configs for method in (fleet.wake, fleet.stop, fleet.restart)),
        *(partial(method, server) for server in configs for method in (fleet.remove, fleet.rest, fleet.wait_listed)),
        *(partial(fleet.add, config) for config in configs.values()),
        *(partial(fleet.add, config, waiting="asleep") for config in configs.values()),
        fleet.spin_up,
    ]

    async def act() -> None:
        for _ in range(chance.randrange(1, 10)):
            await let_run(chance.randrange(4))
            if chance.random() < 0.2:  # a caller that goes away
                caller = asyncio.ensure_future(refused(chance.choice(commands)()))  # noqa: TID251 — to cancel
                await asyncio.sleep(0)
                caller.cancel()
                await asyncio.wait({caller})
            else:
                await refused(chance.choice(commands)())

    async def shut_down() -> None:
        await let_run(chance.randrange(100))
        await fleet.tear_down()

    with anyio.fail_after(LIMIT_S):
        waiting: dict[str, Waiting] = {server: "asleep" for server in configs if chance.random() < 0.3}
        async with asyncio.TaskGroup() as tasks:
            starting = tasks.create_task(fleet.start(BridgeConfig([*configs.values()]), waiting=waiting))
            if chance.random() < 0.7:
                await asyncio.wait({starting})
            for _ in range(4):
                tasks.create_task(act())
            tasks.create_task(shut_down())
        await fleet.tear_down()
    check()


async def test_hundreds_of_interleavings_leave_no_server_and_no_waiter() -> None:
    started = 0
    for seed in range(300):
        world = World(seed)
        configs: dict[str, ServerConfig] = {server: StdioServerConfig(server, server) for server in ("a", "b")}
        rules = Supervision(first_s=0.0005, jitter=0, longest_s=0.001, failures=1_000)
        fleet = ServerFleetImpl(supervision=rules, open_session=world.open)

        def check(world: World = world, seed: int = seed) -> None:
            assert world.running.total() == 0, seed
            assert world.most <= 1, seed
            assert our_tasks() == set(), seed

        await drive(fleet, world.random, configs, check)
        started += world.started
    assert started > 450


@pytest.mark.process
@pytest.mark.parametrize("seed", range(4))
async def test_interleavings_leave_no_process(tmp_path: Path, seed: int) -> None:
    log = tmp_path / "log"
    limits = replace(STEADY, close_s=0.2)
    configs: dict[str, ServerConfig] = {
        "a": honest("--log", log, id="a", limits=limits),
        "b": fault("stubborn", "--log", log, id="b", limits=limits),
    }

    def check() -> None:
        assert not any(is_alive(int(pid)) for pid in diary(log, "start"))
        assert our_tasks() == set()

    await drive(ServerFleetImpl(supervision=QUICK), random.Random(seed), configs, check)


# -- the examples of the review -------------------------------------------------------------


@pytest.mark.parametrize("later", ["remove", "tear_down"])
@pytest.mark.parametrize("earlier", ["restart", "add"])
async def test_finding_f2_a_server_that_is_removed_while_it_restarts_does_not_stay(earlier: str, later: str) -> None:
    world = World(7)
    world.random = random.Random(0)
    world.random.random = lambda: 1.0  # it neither fails nor ends by itself
    config = StdioServerConfig("a", "a")
    fleet = ServerFleetImpl(supervision=QUICK, open_session=world.open)
    await fleet.start(BridgeConfig([config]))
    with anyio.fail_after(LIMIT_S):
        async with asyncio.TaskGroup() as tasks:
            first = fleet.restart("a") if earlier == "restart" else fleet.add(config)
            second = fleet.remove("a") if later == "remove" else fleet.tear_down()
            racing = [tasks.create_task(refused(first)), tasks.create_task(refused(second))]
            await asyncio.wait(racing)
            assert world.running.total() == (1 if "a" in fleet.status() and later == "remove" else 0)
            await fleet.tear_down()
    assert world.running.total() == 0


async def test_finding_f2_a_fleet_that_is_torn_down_starts_nothing() -> None:
    world = World(1)
    fleet = ServerFleetImpl(supervision=QUICK, open_session=world.open)
    async with asyncio.TaskGroup() as tasks:
        starting = tasks.create_task(fleet.start(BridgeConfig([StdioServerConfig("a", "a")])))
        await asyncio.sleep(0)
        await fleet.tear_down()
        await starting
    count = world.started
    for command in (fleet.add(StdioServerConfig("b", "b")), fleet.add(StdioServerConfig("a", "a"))):
        with pytest.raises(ProtocolFault, match="the fleet was shut down"):
            await command
    assert (world.running.total(), world.started) == (0, count)


async def test_finding_f4_opening_and_closing_in_one_turn_of_the_loop_returns() -> None:
    ours, _ = linked_pair()
    endpoint = create_server_endpoint(StdioServerConfig("a", "a"), ours)
    with anyio.fail_after(LIMIT_S):
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(refused(endpoint.open()))
            closing = tasks.create_task(endpoint.close())
            await asyncio.wait({opening, closing})
        assert endpoint.phase is EndpointPhase.CLOSED
        with pytest.raises(ProtocolFault):
            await endpoint.open()


async def test_finding_f4_waking_and_stopping_in_one_turn_of_the_loop_returns() -> None:
    world = World(3)
    fleet = ServerFleetImpl(supervision=QUICK, open_session=world.open)
    await fleet.start(BridgeConfig([StdioServerConfig("a", "a")]), waiting={"a": "asleep"})
    with anyio.fail_after(LIMIT_S):
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fleet.wake("a"))
            tasks.create_task(fleet.stop("a"))
        await fleet.wake("a")
        assert fleet.status()["a"].phase is EndpointPhase.CLOSED
        await fleet.tear_down()
    assert world.running.total() == 0


async def test_finding_r7_a_server_that_never_lists_its_tools_holds_nobody_up() -> None:
    @asynccontextmanager
    async def open_mute(
        config: ServerConfig, handlers: Handlers, injected: object, watch: object
    ) -> AsyncGenerator[ClientSession]:
        ours, theirs = linked_pair()

        def answer(frame: JsonValue | bytes) -> None:
            assert isinstance(frame, dict)
            if "id" in frame:
                error: JsonObject = {"error": {"code": -32000, "message": "the database is down"}}
                reply: JsonObject = error if frame["method"] == "tools/list" else {"result": MODERN}
                theirs.send({"jsonrpc": "2.0", "id": frame["id"], **reply})

        theirs.attach(answer, lambda end: None)
        async with transport_session(ours, config, handlers) as session:
            yield session

    fleet = ServerFleetImpl(supervision=QUICK, open_session=open_mute)
    with anyio.fail_after(LIMIT_S):
        await fleet.start(BridgeConfig([StdioServerConfig("a", "a")]))
        await fleet.wait_listed("a")
        assert "the database is down" in str(fleet.status()["a"].fault)
        await fleet.tear_down()


@pytest.mark.process
async def test_a_server_that_rests_is_started_by_a_call_after_its_process_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    fleet = ServerFleetImpl(supervision=QUICK)
    await fleet.start(BridgeConfig([honest("--log", log, id="a")]))
    try:
        async with asyncio.TaskGroup() as tasks:
            resting = tasks.create_task(fleet.rest("a"))
            await asyncio.sleep(0)
            await fleet.wake("a")
            assert await resting
        first, second = (int(pid) for pid in diary(log, "start"))
        assert not is_alive(first)
        assert is_alive(second)
    finally:
        await fleet.tear_down()
    await until(lambda: not is_alive(second))
