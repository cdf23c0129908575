"""What a gateway adds to a call: `indus serve` beside a direct call and the gateways of others.

`python -m bench.gateway` measures all of it in one run and prints tables in Markdown;
`python -m bench --only gateway-10` tells in one line whether we are ahead. Everybody gets the same
servers, the same client and turns in the same minute.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from bench.gateway.contenders import CONTENDERS, DIRECT, RECORDING, RIVALS, new_desk
from bench.gateway.run import running
from bench.row import CannotMeasure, Check, Row

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

    from bench.gateway.contenders import Contender, Desk
    from bench.gateway.run import Memory, Running

COUNTS = (2, 10, 30)
CALLERS = 64
_MOST_PROCESSES = 200
"""A machine that starts more at once measures its own distress."""
_MB = 1_000_000
_INSTALL = "not installed: {} names none"


@dataclass(frozen=True, slots=True)
class Plan:
    """How long everything is measured."""

    starts: int = 5
    rounds: int = 5
    slice_s: float = 0.15
    """How long one contender calls before the next has its turn."""
    least: int = 2
    """So many calls in a turn, however long they take."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one contender."""

    start_s: float
    p50_s: float
    p95_s: float
    rate: float | None
    """Calls in a second by many callers; None if it was not tried."""
    memory: Memory

    def columns(self) -> dict[str, float | None]:
        """Give each figure under its name; smaller is better in all of them."""
        return {
            "start": self.start_s,
            "p50": self.p50_s,
            "p95": self.p95_s,
            f"{CALLERS} callers": None if self.rate is None else 1 / self.rate,
            "memory": float(self.memory.tree),
        }


Measured = dict["Contender", "Figures | str"]
"""Figures, or why there are none."""


def measure(count: int, contenders: Iterable[Contender], plan: Plan) -> Measured:
    """Measure all contenders with so many servers, in turns."""
    return asyncio.run(_measure_contender(count, list(contenders), plan))


async def _measure_contender(count: int, contenders: Sequence[Contender], plan: Plan) -> Measured:
    measured: Measured = {one: _INSTALL.format(one.variable) for one in contenders if not one.installed}
    async with AsyncExitStack() as stack:
        desks: dict[Contender, Desk] = {}
        for one in contenders:
            if one.installed:
                desks[one] = stack.enter_context(new_desk(count))
                if one.prepare is not None:
                    one.prepare(desks[one])
        starts = await _starts(desks, plan, measured)
        turns = [_Turn(await stack.enter_async_context(running(one, desks[one]))) for one in starts]
        await _calls(turns, count, plan)
        for turn in turns:
            one = turn.gateway.contender
            measured[one] = turn.figures(starts[one])
    return {one: measured[one] for one in contenders}


async def _starts(desks: Mapping[Contender, Desk], plan: Plan, measured: Measured) -> dict[Contender, float]:
    """Start everybody in turns; the first start, which may have to compile, does not count."""
    seconds: dict[Contender, list[float]] = {one: [] for one in desks}
    for turn in range(plan.starts + 1):
        for one, desk in desks.items():
            if one in measured:
                continue
            try:
                collect = await _start(one, desk)
            except CannotMeasure as exc:
                measured[one] = str(exc)
                continue
            if turn:
                seconds[one].append(collect)
    return {one: statistics.median(collect) for one, collect in seconds.items() if one not in measured}


async def _start(contender: Contender, desk: Desk) -> float:
    if contender.keeps_home or contender.prepare is not None:
        async with running(contender, desk) as gateway:
            return gateway.start_s
    with new_desk(desk.count) as fresh:
        async with running(contender, fresh) as gateway:
            return gateway.start_s


@dataclass(slots=True)
class _Turn:
    """What one gateway has done so far."""

    gateway: Running
    each: int = 0
    """How often each of many callers calls in a turn; 0 if they are not let loose."""
    alone: list[float] = field(default_factory=list[float])
    rates: list[float] = field(default_factory=list[float])
    failure: str | None = None

    async def collect(self, work: Callable[[], Awaitable[None]]) -> None:
        """Do something, unless it has failed before; a failure is kept."""
        if self.failure is not None:
            return
        try:
            await work()
        except CannotMeasure as exc:
            self.failure = str(exc)
        except TimeoutError:
            self.failure = "it gave no answer for a minute"
        except ExceptionGroup as group:
            self.failure = str(group.exceptions[0])

    async def warm_up(self, count: int, plan: Plan) -> None:
        """Call for the first time, and find out how many calls make a turn."""
        await self.gateway.one_by_one(plan.slice_s, plan.least)
        if self.gateway.contender.starts_servers_again and count * CALLERS > _MOST_PROCESSES:
            return
        rate = await self.gateway.together(CALLERS, 1)
        self.each = max(1, int(rate * plan.slice_s / CALLERS))

    async def call(self, plan: Plan) -> None:
        """Call one by one, then by many callers."""
        self.alone += await self.gateway.one_by_one(plan.slice_s, plan.least)
        if self.each:
            self.rates.append(await self.gateway.together(CALLERS, self.each))

    def figures(self, start_s: float) -> Figures | str:
        """Give the sum of it, or why there is none."""
        if self.failure is not None:
            return f"it started, and then: {self.failure}"
        seconds = sorted(self.alone)
        return Figures(
            start_s,
            statistics.median(seconds),
            seconds[int(len(seconds) * 0.95)],
            statistics.median(self.rates) if self.rates else None,
            self.gateway.memory(),
        )


async def _calls(turns: list[_Turn], count: int, plan: Plan) -> None:
    for turn in turns:
        await turn.collect(partial(turn.warm_up, count, plan))
    for number in range(plan.rounds):
        # Nobody is always called right after the same other.
        first = number % max(1, len(turns))
        for turn in (*turns[first:], *turns[:first]):
            await turn.collect(partial(turn.call, plan))


# -- telling ------------------------------------------------------------------------------------


def behind(measured: Measured) -> list[str]:
    """Name every column in which a contender is ahead."""
    found: list[str] = []
    for ours, theirs in RIVALS:
        mine, other = measured.get(ours), measured.get(theirs)
        if isinstance(mine, str):
            found.append(f"{ours.name}: {mine}")
        if not isinstance(mine, Figures) or not isinstance(other, Figures):
            continue
        yours = other.columns()
        for column, figure in mine.columns().items():
            best = yours[column]
            if figure is not None and best is not None and figure >= best:
                found.append(f"{column} {figure / best:.2f} x {theirs.name}")
    return found


def check(measured: Measured) -> Check:
    """Say whether `indus serve` leads all installed contenders in every column."""
    missed = behind(measured)
    if missed:
        return Check(ok=False, note="; ".join(missed))
    told = [
        f"{one.name} {figures.p50_s * 1e6:.0f} us" if isinstance(figures, Figures) else one.name
        for one, figures in measured.items()
    ]
    absent = [one.name for one, figures in measured.items() if isinstance(figures, str)]
    note = f"a call: {', '.join(name for name in told if name not in absent)}"
    return Check(ok=True, note=f"{note}; not compared: {', '.join(absent)}" if absent else note)


def table(count: int, measured: Measured) -> str:
    """Write a table in Markdown."""
    direct = measured.get(DIRECT)
    base = direct.p50_s if isinstance(direct, Figures) else None
    lines = [
        f"| {count} servers | start to all listed | call p50 | p95 | beside direct "
        f"| {CALLERS} callers, calls/s | memory, with helpers | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one, figures in measured.items():
        if isinstance(figures, str):
            reason = " ".join(figures.replace("|", "/").split())
            lines.append(f"| {one.name} | | | | | | | {reason} |")
        else:
            lines.append(f"| {one.name} | {' | '.join(_cells(count, one, figures, base))} |")
    return "\n".join(lines)


def _cells(count: int, one: Contender, figures: Figures, base: float | None) -> list[str]:
    rate = f"{figures.rate:,.0f}" if figures.rate is not None else "not tried"
    remark = one.remark
    if figures.rate is None:
        remark += f"; {CALLERS} callers would start {count * CALLERS:,} processes at once"
    own, tree = figures.memory.own / _MB, figures.memory.tree / _MB
    return [
        f"{figures.start_s * 1e3:,.0f} ms",
        f"{figures.p50_s * 1e3:,.3f} ms",
        f"{figures.p95_s * 1e3:,.3f} ms",
        "" if base is None else f"{figures.p50_s / base:,.1f} x",
        rate,
        f"{own:.1f} MB" if own == tree else f"{own:.1f} MB, {tree:.1f} MB",
        remark,
    ]


def _row(count: int) -> Check:
    return check(measure(count, CONTENDERS, Plan()))


ROWS = tuple(
    Row(
        f"gateway-{count}",
        f"a gateway before {count} servers: start, calls, {CALLERS} callers, memory",
        "the gateways of others, as far as they are installed",
        partial(_row, count),
    )
    for count in COUNTS
)


def main(arguments: Sequence[str]) -> int:
    """Print a table for each number of servers; end with 1 where we are not ahead."""
    parser = argparse.ArgumentParser(prog="bench.gateway", description="Compare gateways.")
    parser.add_argument("counts", nargs="*", type=int, default=COUNTS, metavar="SERVERS")
    parser.add_argument("--records", action="store_true", help="compare gateways with and without records of calls")
    parser.add_argument("--quick", action="store_true", help="fewer rounds: for a first look")
    options = parser.parse_args(arguments)
    plan = Plan(starts=1, rounds=2) if options.quick else Plan()
    missed = False
    for count in options.counts:
        measured = measure(count, RECORDING if options.records else CONTENDERS, plan)
        print(table(count, measured), end="\n\n", flush=True)
        for line in behind(measured):
            missed = True
            print(f"not ahead: {line}", flush=True)
    return 1 if missed else 0
