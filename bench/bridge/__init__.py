"""What the bridge costs beside the MCP SDK's own client, over stdio and with the same servers."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar, cast

from anyio import from_thread, to_thread

from bench.bridge.fresh import fresh
from bench.bridge.program import server
from bench.measure import ROUNDS, Pair, Sample, compare
from bench.row import CannotMeasure, Check, Row
from indusagi.interop.protocol_bridge import (
    BridgeConfig,
    Handlers,
    ServerLimits,
    StdioServerConfig,
    mount_protocol_bridge,
)
from indusagi.runtime import ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence

    from bench.bridge.fresh import Fresh
    from bench.measure import Batch
    from indusagi.interop.protocol_bridge import MountedProtocolBridge
    from indusagi.runtime import ToolOutcome

ResultT = TypeVar("ResultT")

FASTMCP = "INDUS_BENCH_FASTMCP"
"""The environment variable that names a Python with FastMCP 4."""

_FLOOD = os.path.join(os.path.dirname(os.path.dirname(__file__)), "flood_server.py")
_FLOODS = ("log", "progress", "junk")
_BESIDE_CALLS = 300
ECHO = os.path.join(os.path.dirname(os.path.dirname(__file__)), "echo_server.py")
_SDK = "the SDK's client"
_CALLERS = 64
_START_ROUNDS = 5
_MOUNT_ROUNDS = 5
_SDK_ROUNDS = 3
_TRIES = 3
_TEXT = "The quick brown fox jumps over the lazy dog."
_MB = 1_000_000
_BIG = 50 * _MB
_BIG_S = 1.0
_NEIGHBOUR_S = 0.05
_PAUSE_S = 0.002
"""Between two calls of the neighbour, which is to notice a delay and not to be one."""
_WIDE = ServerLimits(frame_bytes=64 * _MB)


@asynccontextmanager
async def mounted(
    *servers: StdioServerConfig, handlers: Handlers | None = None
) -> AsyncGenerator[MountedProtocolBridge]:
    bridge = await mount_protocol_bridge(BridgeConfig(servers), handlers=handlers)
    try:
        yield bridge
    finally:
        await bridge.fleet.tear_down()


def _config(name: str, limits: ServerLimits | None = None) -> StdioServerConfig:
    return StdioServerConfig(name, *server(sys.executable), limits=limits or ServerLimits())


def _run(work: Coroutine[object, object, ResultT]) -> ResultT:
    try:
        return asyncio.run(work)
    except ExceptionGroup as group:
        # The tasks of a group wrap what they raise, and so do those of the SDK.
        reason: BaseException = group
        while isinstance(reason, BaseExceptionGroup):
            reason = cast("BaseExceptionGroup[BaseException]", reason).exceptions[0]
        raise CannotMeasure(str(reason) or type(reason).__name__) from group


# -- calls ----------------------------------------------------------------------------------


def compare_calls(callers: int, *, rounds: int = ROUNDS) -> Pair:
    """Have so many callers call the same tool through either client."""
    return _run(_calls_in_turns(callers, rounds))


async def _calls_in_turns(callers: int, rounds: int) -> Pair:
    # As dear to load as everything else together: only for the rows that measure it.
    from mcp import Client, StdioServerParameters  # noqa: PLC0415

    command, args = sys.executable, ["-I", "-S", ECHO]
    theirs = Client(StdioServerParameters(command=command, args=args))
    async with mounted(StdioServerConfig("bench", command, args)) as bridge, theirs:
        echo = echo_call(bridge, "bench")

        async def call() -> None:
            measure_delivery(await echo())

        async def call_theirs() -> None:
            answer = await theirs.call_tool("echo", {"text": _TEXT})
            if answer.is_error:
                raise CannotMeasure("the SDK's client got no answer")

        # In a thread: the timer is synchronous, and both connections live in this task.
        batches = by_callers(callers, call), by_callers(callers, call_theirs)
        return await to_thread.run_sync(partial(compare, *batches, rounds=rounds))


def by_callers(callers: int, call: Callable[[], Awaitable[None]]) -> Batch:
    """Time callers that call at the same time, each so many times in a row."""

    async def caller(count: int) -> None:
        for _ in range(count):
            await call()

    async def batch(count: int) -> float:
        started = perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(callers):
                tasks.create_task(caller(count))
        return perf_counter() - started

    return partial(from_thread.run, batch)


def echo_call(bridge: MountedProtocolBridge, name: str) -> Callable[[], Awaitable[ToolOutcome]]:
    return partial(bridge.box.runner.run, ToolCall("call-1", f"{name}__echo", {"text": _TEXT}))


def measure_delivery(outcome: ToolOutcome) -> None:
    if outcome.is_error:
        raise CannotMeasure(f"a call failed: {outcome.output}")


# -- neighbours -----------------------------------------------------------------------------


def compare_neighbours(floods: Sequence[str] = _FLOODS, calls: int = _BESIDE_CALLS) -> Pair:
    """Compare the median call of a server beside flooding ones with that of the server alone."""
    rounds = [_run(_neighbours(kind, calls)) for kind in floods]
    beside, alone = [ours for ours, _ in rounds], [other for _, other in rounds]
    return Pair(_sample(beside), _sample(alone))


async def _neighbours(kind: str, calls: int) -> tuple[float, float]:
    calm = StdioServerConfig("calm", sys.executable, ["-I", "-S", ECHO])
    hurried = ServerLimits(close_s=0.1)  # it never ends by itself
    flooding = StdioServerConfig("flood", sys.executable, ["-I", "-S", _FLOOD, kind], limits=hurried)
    heard = asyncio.Event()
    handlers = Handlers(on_notification=lambda method, params: heard.set())
    async with mounted(calm) as bridge:
        alone_s = await _median_call(bridge, calls)
    async with mounted(calm, flooding, handlers=handlers) as bridge:
        # It floods half a second after its start; what is not a notification is not heard.
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), 2)
        return await _median_call(bridge, calls), alone_s


async def _median_call(bridge: MountedProtocolBridge, calls: int) -> float:
    echo = echo_call(bridge, "calm")
    spent: list[float] = []
    for _ in range(calls):
        started = perf_counter()
        measure_delivery(await echo())
        spent.append(perf_counter() - started)
    return statistics.median(spent)


# -- mounting -------------------------------------------------------------------------------


def _mount(count: int) -> Pair:
    """Compare with what no client can beat: the slowest server alone, or the work of all."""
    # Each process warms up by mounting one, then mounts one alone, then all.
    rounds = [fresh("ours", 1, 1, count) for _ in range(_MOUNT_ROUNDS)]
    return Pair(
        _sample([all_.connect_s for _, _, all_ in rounds]), _sample([floor_s(alone, all_) for _, alone, all_ in rounds])
    )


def floor_s(alone: Fresh, together: Fresh) -> float:
    """Give the least time that mounting several servers can take on this machine."""
    return max(alone.connect_s, together.children_s / _cores())


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def _mount_sdk(count: int) -> Pair:
    return _in_turns(
        lambda: fresh("ours", 1, count)[-1].connect_s,
        lambda: fresh("sdk-one-by-one", 1, count)[-1].connect_s,
        _SDK_ROUNDS,
    )


def _start(how: str, python: str = sys.executable) -> Pair:
    # The first one may have to compile what it imports.
    fresh(how, 3, python=python)
    return _in_turns(
        lambda: fresh("ours", 3)[0].since_start_s, lambda: fresh(how, 3, python=python)[0].since_start_s, _START_ROUNDS
    )


def _start_fastmcp() -> Pair | Check:
    python = os.environ.get(FASTMCP)
    if not python:
        return Check(ok=True, note=f"not compared: {FASTMCP} names no Python with FastMCP 4")
    return _start("fastmcp", python)


def _in_turns(ours: Callable[[], float], theirs: Callable[[], float], rounds: int) -> Pair:
    """Take turns without a warm-up: what is timed happens in a fresh process each time."""
    timed = [(ours(), theirs()) for _ in range(rounds)]
    return Pair(_sample([mine for mine, _ in timed]), _sample([other for _, other in timed]))


def _sample(seconds: Sequence[float]) -> Sample:
    return Sample(statistics.median(seconds), min(seconds))


# -- checks ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Big:
    """What came of a big result."""

    answer_s: float
    neighbour_s: float
    """The longest call of another server meanwhile."""

    @property
    def used(self) -> float:
        """How much of its limits it has used; more than 1 is too much."""
        return max(self.answer_s / _BIG_S, self.neighbour_s / _NEIGHBOUR_S)

    def __str__(self) -> str:
        return f"{self.answer_s * 1e3:.0f} ms, neighbour {self.neighbour_s * 1e3:.1f} ms"


def _big_result() -> Check:
    tries = [(_run(_big(ServerLimits())), _run(_big(_WIDE))) for _ in range(_TRIES)]
    return big_check([refused for refused, _ in tries], [delivered for _, delivered in tries])


def big_check(refused: Sequence[Big], delivered: Sequence[Big]) -> Check:
    """Judge the try that the rest of the machine disturbed least.

    What is delivered, because somebody has raised the limit, is told and not judged: its neighbours
    wait while it is read, and that takes what `json.loads` takes.
    """
    no, yes = min(refused, key=lambda big: big.used), min(delivered, key=lambda big: big.used)
    note = f"{_BIG // _MB} MB refused in {no}; under a wider limit delivered in {yes}"
    return Check(no.used < 1, note)


async def _big(limits: ServerLimits) -> Big:
    async with mounted(_config("big", limits), _config("other")) as bridge:
        echo = echo_call(bridge, "other")
        measure_delivery(await echo())
        longest_s, done = 0.0, False

        async def call_on() -> None:
            nonlocal longest_s
            due = perf_counter()
            while True:
                last = done
                measure_delivery(await echo())
                # Measured from when it was due: a blocked event loop delays the caller too.
                longest_s = max(longest_s, perf_counter() - due)
                if last:
                    return
                due = perf_counter() + _PAUSE_S
                await asyncio.sleep(_PAUSE_S)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(call_on())
            started = perf_counter()
            outcome = await bridge.box.runner.run(ToolCall("call-1", "big__big", {"bytes": _BIG}))
            answer_s = perf_counter() - started
            done = True
        if outcome.is_error != (limits.frame_bytes < _BIG):
            raise CannotMeasure("a big result was refused or delivered against its limit")
        return Big(answer_s, longest_s)


def _memory() -> Check:
    (ours,), (theirs,) = fresh("ours", 10), fresh("sdk", 10)
    return memory_check(ours, theirs)


def memory_check(ours: Fresh, theirs: Fresh) -> Check:
    """Say whether the bridge needs less memory than the SDK, which it must not load."""
    loads = "loads the SDK" if ours.sdk else "does not load the SDK"
    note = f"{ours.resident / _MB:.1f} MB beside {theirs.resident / _MB:.1f} MB; {loads}"
    return Check(ours.resident < theirs.resident and not ours.sdk, note)


ROWS = (
    Row("bridge-call", "a call over stdio", f"{_SDK}: the same", partial(compare_calls, 1), budget=0.7),
    Row(
        "bridge-64-callers",
        f"a call by each of {_CALLERS} callers at once",
        f"{_SDK}: the same",
        partial(compare_calls, _CALLERS),
        budget=0.2,
    ),
    Row(
        "bridge-beside-flood",
        "a call beside a server that floods (log, progress, junk): the median",
        "the same server alone",
        compare_neighbours,
        budget=6,
    ),
    Row(
        "start-3",
        "from the start of a process to 3 servers listed",
        f"{_SDK}: the same, all at once",
        partial(_start, "sdk"),
        budget=0.75,
    ),
    Row(
        "start-3-fastmcp",
        "from the start of a process to 3 servers listed",
        f"FastMCP of the Python that {FASTMCP} names: the same",
        _start_fastmcp,
        budget=0.75,
    ),
    *(
        Row(
            f"mount-{count}",
            f"mounting {count} servers",
            "the slowest alone, or the processor time of all by cores",
            partial(_mount, count),
            budget=1.15,
        )
        for count in (16, 30)
    ),
    *(
        Row(
            f"mount-{count}-sdk",
            f"mounting {count} servers",
            f"{_SDK}: connecting one by one",
            partial(_mount_sdk, count),
            budget=1,
        )
        for count in (16, 30)
    ),
    Row(
        "big-result",
        f"a result of {_BIG // _MB} MB, and the calls of a neighbour meanwhile",
        f"{_BIG_S:g} s, and {_NEIGHBOUR_S * 1e3:g} ms",
        _big_result,
    ),
    Row("bridge-memory", "memory with 10 servers mounted", f"{_SDK}: the same", _memory),
)
