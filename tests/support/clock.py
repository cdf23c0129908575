"""A clock that a test sets."""

from __future__ import annotations


class ManualClock:
    """A clock that only moves by `advance`."""

    def __init__(self, at_ms: int = 0) -> None:
        self._at_ms = at_ms

    def now_ms(self) -> int:
        """Return the time that was set."""
        return self._at_ms

    def advance(self, by_ms: int) -> None:
        """Move forward, or back as real clocks sometimes do."""
        self._at_ms += by_ms
