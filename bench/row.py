"""What a subject exports: rows, each a thing to measure and what it must keep to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.measure import Pair


class CannotMeasure(Exception):
    """The environment does not allow a row to be measured; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Check:
    """The answer to a question that is not about time."""

    ok: bool
    note: str


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table."""

    name: str
    what: str
    compared_with: str
    measure: Callable[[], Pair | Check]
    """Does the measuring, and everything it needs first: a row that is not asked for costs nothing.

    Raises `CannotMeasure`.
    """
    budget: float | None = None
    """How many times the other's duration ours may take; None for a check."""


@dataclass(frozen=True, slots=True)
class Result:
    """A row, and what came of it."""

    row: Row
    measured: Pair | Check

    @property
    def ratio(self) -> float | None:
        """How many times as long ours takes; None for a check."""
        return None if isinstance(self.measured, Check) else self.measured.ratio

    @property
    def ok(self) -> bool:
        """Whether the check passed, or the ratio is within the budget."""
        if isinstance(self.measured, Check):
            return self.measured.ok
        return self.row.budget is None or self.measured.ratio <= self.row.budget
