"""The only reader of the wall clock.

Code that needs timestamps takes a `Clock` or calls `now_ms`, so that tests can set the time. Durations and deadlines
use the event loop's clock instead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DAY_MS = 86_400_000
MAX_JUMP_MS = 31 * DAY_MS
"""A clock that moves further than this between two uses may be wrong."""


class TimedLine(str):
    """A line of a log, with the time it arrived."""

    __slots__ = ("at_ms",)
    at_ms: int
    """In milliseconds since 1970; 0 if unknown."""

    def __new__(cls, text: str, at_ms: int) -> TimedLine:
        """Create it."""
        line = super().__new__(cls, text)
        line.at_ms = at_ms
        return line


class Clock(Protocol):
    """A source of the time."""

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""
        ...


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Return the milliseconds since 1970."""
        return time.time_ns() // 1_000_000


SYSTEM_CLOCK = SystemClock()


def now_ms() -> int:
    """Return the machine's time in milliseconds since 1970."""
    return SYSTEM_CLOCK.now_ms()


def iso_utc(at_ms: int | None = None) -> str:
    """Format a time as RFC 3339 in UTC with milliseconds: `2026-11-15T20:08:29.000Z`."""
    moment = _EPOCH + timedelta(milliseconds=now_ms() if at_ms is None else at_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_iso(text: str) -> int:
    """Parse an RFC 3339 time, as `iso_utc` writes it, into milliseconds since 1970; 0 if it's none."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1_000)
    except (ValueError, OverflowError):
        return 0


def find_safe_now(now_at_ms: int, times_ms: Iterable[int]) -> int:
    """Return the time for removing old things, such that a clock that jumps ahead once removes nothing.

    `times_ms` are their creation times. A jump ahead counts once they show use on two days after it.
    """
    times = sorted(times_ms)
    if not times:
        return now_at_ms
    present = times[0]
    for at_ms in times:
        if at_ms - present > MAX_JUMP_MS and times[-1] - at_ms < DAY_MS:
            break
        present = at_ms
    return min(now_at_ms, present)
