"""The only reader of the wall clock.

Everything that stamps a time takes a `Clock` or calls `now_ms`, so that a test can say what time
it is. Durations and deadlines are not wall-clock matters: they belong to the event loop.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """Whatever can tell the time in milliseconds since 1970."""

    def now_ms(self) -> int:
        """Tell the time."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        """Tell the machine's time."""
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is told to move."""

    def __init__(self, at_ms: int = 0) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        """Tell the time that was set."""
        return self._at_ms

    def advance(self, by_ms: int) -> None:
        """Move on, or back: clocks of real machines do both."""
        self._at_ms += by_ms


SYSTEM_CLOCK = SystemClock()


def now_ms() -> int:
    """Tell the machine's time in milliseconds since 1970."""
    return SYSTEM_CLOCK.now_ms()


def iso_utc(at_ms: int | None = None) -> str:
    """Write a time as ISO 8601 in UTC with milliseconds: `2026-11-15T20:08:29.000Z`."""
    moment = _EPOCH + timedelta(milliseconds=now_ms() if at_ms is None else at_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
