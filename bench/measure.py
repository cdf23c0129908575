"""Time two things in turns.

Whatever else slows the machine down (other work, heat, a lower clock) then slows both, and their
ratio stays. The median leaves out the rounds that somebody interrupted; the shortest round shows
how much of the median is interruption.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

ROUNDS = 21
_BATCH_S = 0.005
"""Shorter batches would measure the clock and the loop around the work as well."""

Batch: TypeAlias = Callable[[int], float]
"""Does a piece of work so many times, and tells how many seconds that took."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Seconds for doing it once."""

    median: float
    least: float


@dataclass(frozen=True, slots=True)
class Pair:
    """What was measured of ours, and of what it is compared with."""

    ours: Sample
    baseline: Sample

    @property
    def ratio(self) -> float:
        """How many times as long ours takes."""
        return self.ours.median / self.baseline.median


def compare(ours: Batch, baseline: Batch, *, rounds: int = ROUNDS) -> Pair:
    """Time both in turns, after a warm-up that also finds out how many make a batch."""
    turns = [(ours, _warm_up(ours)), (baseline, _warm_up(baseline))]
    seconds: dict[Batch, list[float]] = {ours: [], baseline: []}
    for _ in range(rounds):
        for batch, count in turns:
            # Else one would pay for the garbage that the other has left.
            gc.collect()
            seconds[batch].append(batch(count) / count)
        # Who came second goes first: neither always finds the caches as the other left them.
        turns.reverse()
    return Pair(_sample(seconds[ours]), _sample(seconds[baseline]))


def calls(step: Callable[[], object]) -> Batch:
    """Time the calls of a function."""

    def batch(count: int) -> float:
        started = perf_counter()
        for _ in range(count):
            step()
        return perf_counter() - started

    return batch


def awaits(runner: asyncio.Runner, step: Callable[[], Awaitable[object]]) -> Batch:
    """Time the awaiting of what a function returns; the event loop is entered once for a batch."""

    async def batch(count: int) -> float:
        started = perf_counter()
        for _ in range(count):
            await step()
        return perf_counter() - started

    return lambda count: runner.run(batch(count))


def _warm_up(batch: Batch) -> int:
    count = 1
    batch(count)
    while batch(count) < _BATCH_S:
        count *= 2
    return count


def _sample(seconds: Sequence[float]) -> Sample:
    return Sample(statistics.median(seconds), min(seconds))
