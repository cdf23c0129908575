"""Whether something grows: a rule that noise does not trip and that growth cannot hide from.

A series is sampled at rest, once for each lap. Its first fifth is warm-up. Of what is left, the
median of the last third is held against the median of the first: it may be higher by what is
allowed, or by three times the spread within a third. A straight line rises by two lengths of a
third between them and spreads by a quarter of one: it is seen at any slope past the allowance.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST = 12
"""So many samples are needed to judge."""
_WARM_UP = 5
_SPREADS = 3


@dataclass(frozen=True, slots=True)
class Quantity:
    """Something that must not grow."""

    name: str
    slack: float
    """By so much it may be higher at the end,"""
    share: float = 0.0
    """or by this part of what it was."""
    unit: float = 1.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a quantity."""

    quantity: Quantity
    first: float
    last: float
    allowed: float
    """The most that the last may be."""

    @property
    def ok(self) -> bool:
        """Whether it has not grown."""
        return self.last <= self.allowed


def judge(quantity: Quantity, series: Sequence[float]) -> Verdict:
    """Compare the first third with the last.

    Raises:
        ValueError: There are too few samples to say anything.
    """
    if len(series) < LEAST:
        raise ValueError(f"{len(series)} samples are too few: {LEAST} or more are needed")
    kept = series[len(series) // _WARM_UP :]
    size = len(kept) // 3
    head, tail = kept[:size], kept[-size:]
    first, last = statistics.median(head), statistics.median(tail)
    noise = _SPREADS * max(_spread(head), _spread(tail))
    return Verdict(quantity, first, last, first + max(quantity.slack, quantity.share * first, noise))


def _spread(values: Sequence[float]) -> float:
    """Give the median distance from the median."""
    middle = statistics.median(values)
    return statistics.median([abs(value - middle) for value in values])
