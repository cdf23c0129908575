"""What a record of each call costs: `indus serve` with records beside the same without, and 100,000 calls.

Both gateways run at the same time and are called in turns, so that other work on the machine slows both. The tenth
of the calls that was least interrupted counts. Commands are judged by their processor time.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import subprocess
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from bench.gateway.contenders import OURS, new_desk, write_record_setting, write_settings
from bench.gateway.run import resident, running
from bench.measure import Pair, Sample
from bench.process import console_script
from bench.row import CannotMeasure, Check, Row

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.gateway.contenders import Desk
    from bench.gateway.run import Running

_ROUNDS = 60
_SLICE_S = 0.1
_CALLS = 100_000
_MOST_GROWTH = 8_000_000
"""Bytes that a gateway may grow by from its 20,000th call to its last: the allocator's own play."""
_MOST_S = 0.3
_CALLERS = 16
_TRIES = 7
_COMMANDS = ("calls", "calls --by tool", "calls --by server")


def compare_records(rounds: int = _ROUNDS, slice_s: float = _SLICE_S) -> Pair:
    """Compare the time of a call with records to that without, one caller at a time."""
    return asyncio.run(_compare(rounds, slice_s))


def compare_guards(rounds: int = _ROUNDS, slice_s: float = _SLICE_S) -> Pair:
    """Compare the time of a call with labels and the flow guard to that without."""
    return asyncio.run(_compare(rounds, slice_s, (_guard, _leave_unguarded)))


def compare_rules(rounds: int = _ROUNDS, slice_s: float = _SLICE_S) -> Pair:
    """Compare the time of a call with labels, the flow guard and a rule to that without."""
    return asyncio.run(_compare(rounds, slice_s, (_guard_by_rule, _leave_unguarded)))


def _leave_unguarded(desk: Desk) -> None:
    write_settings(desk, {"flow.mode": "off"})


def _guard(desk: Desk) -> None:
    """Label the server's tools, and guard the flow."""
    write_settings(desk, {"flow.mode": "ask"})
    document = json.loads(Path(desk.config).read_text("utf-8"))
    for row in document["mcpServers"].values():
        row["labels"] = ["private", "outward"]
    Path(desk.config).write_text(json.dumps(document), encoding="utf-8")


def _guard_by_rule(desk: Desk) -> None:
    _guard(desk)
    rules = Path(desk.folder, ".indusvx", "permissions.json")
    rules.parent.mkdir()
    rules.write_text(json.dumps({"deny": ["s0__other"]}), encoding="utf-8")


_Prepare: TypeAlias = "tuple[Callable[[Desk], None], Callable[[Desk], None]]"
_RECORDS: _Prepare = (lambda desk: write_record_setting(desk, "on"), lambda desk: write_record_setting(desk, "off"))


async def _compare(rounds: int, slice_s: float, prepare: _Prepare = _RECORDS) -> Pair:
    async with AsyncExitStack() as stack:
        turns: list[tuple[Running, list[float]]] = []
        for prepare_desk in prepare:
            desk = stack.enter_context(new_desk(1))
            prepare_desk(desk)
            turns.append((await stack.enter_async_context(running(OURS, desk)), []))
        for gateway, _ in turns:
            await gateway.one_by_one(4 * slice_s, 200)
        for number in range(rounds):
            for gateway, taken in turns if number % 2 else reversed(turns):
                taken += await gateway.one_by_one(slice_s, 20)
    ours, baseline = (Sample(sorted(taken)[len(taken) // 10], min(taken)) for _, taken in turns)
    return Pair(ours, baseline)


def check_many_calls(count: int = _CALLS) -> Check:
    """Make many calls: the gateway does not grow, all of them are recorded, and `indus calls` shows them at once."""
    return asyncio.run(_call_often(count))


async def _call_often(count: int) -> Check:
    with new_desk(1) as desk:
        write_record_setting(desk, "on")
        async with running(OURS, desk) as gateway:
            await gateway.together(_CALLERS, count // 5 // _CALLERS)
            before = resident(gateway.pid)
            rate = await _call_in_parts(gateway, count - count // 5)
            growth = resident(gateway.pid) - before
        seconds = {
            words: _time_command(desk, *words.split()) for words in ("calls", "calls --by tool", "calls --by server")
        }
        stored = json.loads(_run_command(desk, "calls", "--by", "server", "--json"))
    slowest = max(seconds.values())
    kept = stored["all"]["calls"]
    shown = ", ".join(f"indus {words} {took * 1e3:.0f} ms" for words, took in seconds.items())
    note = f"{kept:,} recorded, {stored['dropped']:,} dropped, {growth / 1e6:+.1f} MB, {rate:,.0f} calls/s; {shown}"
    return Check(
        growth <= _MOST_GROWTH and slowest <= _MOST_S and kept + stored["dropped"] >= count // _CALLERS * _CALLERS, note
    )


async def _call_in_parts(gateway: Running, count: int) -> float:
    """Make calls in parts, since one part has a deadline; give the calls of a second."""
    started, left = perf_counter(), count
    while left > 0:
        part = min(left, 8_000)
        await gateway.together(_CALLERS, max(1, part // _CALLERS))
        left -= part
    return count / (perf_counter() - started)


def _time_command(desk: Desk, *words: str) -> float:
    """Measure the processor time of a command: the median of several."""
    taken: list[float] = []
    for _ in range(_TRIES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        _run_command(desk, *words)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    return statistics.median(taken)


def _run_command(desk: Desk, *words: str) -> str:
    done = subprocess.run(
        [console_script("indus"), *words], cwd=desk.folder, env=desk.env(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise CannotMeasure(f"indus {' '.join(words)} failed: {done.stderr.strip()[-200:]}")
    return done.stdout


ROWS = (
    Row(
        "calls-gateway",
        "a call through indus serve with its record",
        "the same without records",
        compare_records,
        budget=1.05,
    ),
    Row(
        "flow-gateway",
        "a call through indus serve with labels and the flow guard",
        "the same without",
        compare_guards,
        budget=1.03,
    ),
    Row(
        "flow-rules-gateway",
        "a call through indus serve with labels, the flow guard and a rule",
        "the same without",
        compare_rules,
        budget=1.03,
    ),
    Row("calls-100k", "100,000 recorded calls: memory, and indus calls", f"flat, {_MOST_S} s", check_many_calls),
)
