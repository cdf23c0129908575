"""Answers of 24 MiB: refused before they are held, or held few times over; the others go on.

What is held is counted by the interpreter, and turns by the event loop: no clock is asked.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.http_behaviours import Modern, OldSse, large, sometimes
from tests.support.http_peer import http_server
from tests.support.memory import MIB, peak_memory
from tests.support.opened import fault_of_call, fleet_of, opened
from tests.support.servers import STEADY, diary, fault, honest, remote, remote_sse
from tests.support.waiting import is_alive, until

from indusagi.interop import EndpointPhase, ServerLimits, Supervision

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.support.http_peer import Exchange

    from indusagi.interop import RemoteCallResult, ServerEndpointImpl

pytestmark = [pytest.mark.anyio, pytest.mark.process]

BIG = 24
CAPS = [1, ServerLimits().frame_bytes // MIB]
"""Limits in MiB: a low one, and the default."""
SLACK = 1 * MIB
"""For pieces on their way, and everything that is not the answer."""
SERVER_SLACK = 7 * MIB
"""The same where the server is in this process, and writes by the MiB."""


def capped(mib: int) -> ServerLimits:
    return replace(STEADY, call_idle_s=50.0, call_hard_s=50.0, frame_bytes=mib * MIB)


async def works(endpoint: ServerEndpointImpl) -> None:
    result = await endpoint.invoke("echo", {"text": "still here"})
    assert result.content == ({"type": "text", "text": "still here"},)


def size_of(result: RemoteCallResult) -> int:
    block: Any = result.content[0]
    return len(block["text"])


class Turns:
    """How often the event loop has come round."""

    count = 0


@asynccontextmanager
async def turns() -> AsyncGenerator[Turns]:
    """Count the turns that others get during the block."""
    counted = Turns()

    async def count() -> None:
        while True:
            await asyncio.sleep(0)
            counted.count += 1

    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count())
        yield counted
        counting.cancel()


# -- a process ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cap", CAPS)
async def test_r11_of_a_line_over_the_cap_no_more_than_the_cap_is_held(cap: int) -> None:
    async with opened(fault("big-line", BIG, limits=capped(cap))) as endpoint:
        with peak_memory() as peak:
            failure = await fault_of_call(endpoint)
        assert f"sent a message of more than {cap * MIB:,} bytes" in str(failure)
    assert peak.bytes < cap * MIB + SLACK


async def test_r11_a_line_that_is_let_in_is_held_less_than_four_times_over() -> None:
    async with opened(fault("big-line", BIG, limits=capped(32))) as endpoint:
        with peak_memory() as peak:
            assert size_of(await endpoint.invoke("fault", {})) == BIG * MIB
        await works(endpoint)
    assert peak.bytes < 4 * BIG * MIB


@pytest.mark.parametrize("cap", [*CAPS, 32])
async def test_r11_the_others_get_a_turn_for_every_mib_of_a_big_line(cap: int) -> None:
    async with opened(fault("big-line", BIG, limits=capped(cap))) as endpoint, turns() as taken:
        before = taken.count
        if cap < BIG:
            await fault_of_call(endpoint)
        else:
            await endpoint.invoke("fault", {})
        assert taken.count - before >= min(cap, BIG)


async def test_r11_a_neighbour_is_answered_while_half_of_a_big_line_is_there(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    halting = fault("big-line", BIG, gate, limits=capped(32))
    async with fleet_of(halting, honest(), supervision=Supervision(first_s=60)) as fleet:
        endpoint, neighbour = fleet.endpoint("big-line"), fleet.endpoint("honest")
        assert endpoint is not None
        assert neighbour is not None
        with peak_memory() as peak:
            async with asyncio.TaskGroup() as tasks:
                call = tasks.create_task(endpoint.invoke("fault", {}))
                await until(lambda: peak.held() >= BIG // 2 * MIB)
                for _ in range(20):
                    await works(neighbour)
                assert not call.done()
                await asyncio.to_thread(gate.touch)
            assert size_of(call.result()) == BIG * MIB
            del call
        await works(neighbour)
    assert peak.bytes < 4 * BIG * MIB


async def test_r11_a_line_over_the_cap_is_refused_and_the_neighbour_is_not_disturbed() -> None:
    big = fault("big-line", BIG, limits=capped(1))
    async with fleet_of(big, honest(), supervision=Supervision(first_s=60)) as fleet:
        endpoint, neighbour = fleet.endpoint("big-line"), fleet.endpoint("honest")
        assert endpoint is not None
        assert neighbour is not None
        async with asyncio.TaskGroup() as tasks:
            failing = tasks.create_task(fault_of_call(endpoint))
            for _ in range(20):
                await works(neighbour)
        assert failing.result().kind == "transport"
        assert neighbour.phase is EndpointPhase.READY
        await works(neighbour)


@pytest.mark.parametrize("cap", CAPS)
async def test_r12_of_a_flood_without_newlines_no_more_than_the_cap_is_held(cap: int, tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with opened(fault("flood", "--log", log, limits=capped(cap))) as endpoint:
        with peak_memory() as peak:
            failure = await fault_of_call(endpoint)
            assert f"more than {cap * MIB:,} bytes" in str(failure)
            await endpoint.wait_closed()
    assert peak.bytes < cap * MIB + SLACK
    assert not is_alive(int(diary(log, "start")[0]))


# -- HTTP -----------------------------------------------------------------------------------------


async def test_r31_of_an_answer_that_says_it_is_too_large_nothing_is_held() -> None:
    behaviour = sometimes(large(BIG), on="tools/call", times=1, then=Modern())
    async with http_server(behaviour) as server:
        async with opened(remote(server, limits=capped(16))) as endpoint:
            with peak_memory() as peak:
                failure = await fault_of_call(endpoint, "echo")
            assert (failure.kind, failure.detail.reason) == ("transport", "frame_too_large")
            await works(endpoint)
    assert peak.bytes < SERVER_SLACK


@pytest.mark.parametrize("cap", CAPS)
@pytest.mark.parametrize("of", ["json", "event"])
async def test_r31_of_an_answer_whose_length_was_not_told_no_more_than_the_cap_is_held(of: Any, cap: int) -> None:
    endless = large(BIG, of=of, length_told=False)
    behaviour = sometimes(endless, on="tools/call", times=1, then=Modern())
    async with http_server(behaviour) as server:
        async with opened(remote(server, limits=capped(cap))) as endpoint, turns() as taken:
            before = taken.count
            with peak_memory() as peak:
                failure = await fault_of_call(endpoint, "echo")
            assert failure.detail.reason == "frame_too_large"
            assert taken.count - before >= cap
            await works(endpoint)
    assert peak.bytes < cap * MIB + SERVER_SLACK


@pytest.mark.parametrize(("of", "times"), [("json", 4), ("event", 6)])
async def test_r31_an_answer_that_is_let_in_is_held_a_few_times_over(of: Any, times: int) -> None:
    behaviour = sometimes(large(BIG, of=of), on="tools/call", times=1, then=Modern())
    async with http_server(behaviour) as server:
        async with opened(remote(server, limits=capped(32))) as endpoint:
            with peak_memory() as peak:
                assert size_of(await endpoint.invoke("echo", {})) == BIG * MIB
            await works(endpoint)
    assert peak.bytes < times * BIG * MIB


@pytest.mark.parametrize("cap", CAPS)
async def test_r31_of_an_event_of_the_old_transport_no_more_than_the_cap_is_held(cap: int) -> None:
    standing: list[Exchange] = []
    shaken = OldSse()

    async def flooding(exchange: Exchange) -> None:
        if exchange.request.method == "GET":
            standing.append(exchange)
        if not exchange.request.is_a("tools/call"):
            await shaken(exchange)
            return
        await exchange.reply(202)
        await standing[0].write(b"%x\r\ndata: " % (BIG * MIB + 6))
        for _ in range(BIG):
            await standing[0].write(b"x" * MIB)

    async with http_server(flooding) as server:
        async with opened(remote_sse(server, limits=capped(cap))) as endpoint:
            with peak_memory() as peak:
                await fault_of_call(endpoint, "echo")
                await until(lambda: endpoint.phase is EndpointPhase.FAULTED)
            fault_told = endpoint.status().fault
            assert fault_told is not None
            assert fault_told.detail.reason == "frame_too_large"
    assert peak.bytes < cap * MIB + SERVER_SLACK
