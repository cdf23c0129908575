"""What a sandbox costs a server: its start, its calls, and the memory of the gateway."""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread

from bench.bridge import ECHO, by_callers, echo_call, measure_delivery, mounted
from bench.bridge.fresh import fresh
from bench.measure import ROUNDS, compare
from bench.row import CannotMeasure, Check, Row
from indusagi.capabilities.sandbox.bubblewrap import find_bubblewrap
from indusagi.capabilities.sandbox.profile import parse_profile
from indusagi.interop.protocol_bridge import StdioServerConfig

if TYPE_CHECKING:
    from collections.abc import Generator

    from bench.bridge.fresh import Fresh
    from bench.measure import Pair

_START_ROUNDS = 15
_MEMORY_ROUNDS = 3
_SERVERS = 10
_START_MS = 20.0
_MEMORY_MB = 3.0
_MB = 1_000_000


@contextmanager
def _surroundings() -> Generator[tuple[dict[str, str], str]]:
    """Give the variables and the workspace of what is measured; `make setup` may have fetched bubblewrap."""
    fetched = os.path.join(sys.prefix, "bubblewrap", "bin")
    # Below /tmp, both would lie in what a sandbox puts in the place of /tmp.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        home, work = os.path.join(folder, "home"), os.path.join(folder, "work")
        os.mkdir(home)
        os.mkdir(work)
        path = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}{fetched}"
        start, why = find_bubblewrap(path, work)
        if not start:
            raise CannotMeasure(why)
        yield {"PATH": path, "HOME": home, "XDG_STATE_HOME": os.path.join(home, "state")}, work


def _start() -> Check:
    with _surroundings() as (env, work):
        # The first start of a process also tries bubblewrap out; it is told and not judged.
        rounds = [
            (fresh("ours", 1, 1, env=env, cwd=work), fresh("standard", 1, 1, env=env, cwd=work))
            for _ in range(_START_ROUNDS)
        ]
    first, later = (_median_ms(rounds, index) for index in (0, 1))
    note = f"{later:+.1f} ms; the first of a process {first:+.1f} ms"
    return Check(later <= _START_MS, note)


def _median_ms(rounds: list[tuple[list[Fresh], list[Fresh]]], index: int) -> float:
    plain, held = (statistics.median(one[way][index].connect_s for one in rounds) for way in (0, 1))
    return (held - plain) * 1e3


def _memory() -> Check:
    with _surroundings() as (env, work):
        plain, held = (
            statistics.median(fresh(way, _SERVERS, env=env, cwd=work)[0].resident for _ in range(_MEMORY_ROUNDS)) / _MB
            for way in ("ours", "standard")
        )
    return Check(held - plain <= _MEMORY_MB, f"{held:.1f} MB beside {plain:.1f} MB")


def _compare_calls() -> Pair:
    return asyncio.run(_calls_in_turns())


async def _calls_in_turns() -> Pair:
    with _surroundings() as (env, work):
        os.environ |= env
        command, args = sys.executable, ["-I", "-S", ECHO]
        plain, held = (
            StdioServerConfig(name, command, args, cwd=work, sandbox=parse_profile(name))
            for name in ("off", "standard")
        )
        async with mounted(plain, held) as bridge:

            async def call(name: str) -> None:
                measure_delivery(await echo_call(bridge, name)())

            batches = by_callers(1, partial(call, "standard")), by_callers(1, partial(call, "off"))
            return await to_thread.run_sync(partial(compare, *batches, rounds=2 * ROUNDS))


ROWS = (
    Row("sandboxed-start", "start of a server in `standard`", f"without a sandbox, and {_START_MS:g} ms", _start),
    Row("sandboxed-call", "a call to a server in `standard`", "without a sandbox", _compare_calls, budget=1.05),
    Row(
        "sandboxed-memory",
        f"memory with {_SERVERS} servers in `standard`",
        f"without a sandbox, and {_MEMORY_MB:g} MB",
        _memory,
    ),
)
