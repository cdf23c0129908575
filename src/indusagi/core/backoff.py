"""Growing pauses between retries, and the HTTP statuses worth retrying."""

from __future__ import annotations

import asyncio
import random

from indusagi.core.time import SystemClock

TRANSIENT_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
"""Timeouts, too early, too many requests, and what gateways answer."""
_MAX_RETRY_AFTER_S = 3_600.0


def parse_retry_after(text: str) -> float | None:
    """Parse a `Retry-After` header: seconds, or a date (RFC 9110 §10.2.3)."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), _MAX_RETRY_AFTER_S)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 — for the rarer form

    try:
        at_s = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, at_s - SystemClock().now_ms() / 1000), _MAX_RETRY_AFTER_S)


def grow_pause(first_s: float, factor: float, times: int, longest_s: float) -> float:
    """Return the pause after `times` earlier ones."""
    try:
        return min(first_s * factor**times, longest_s)
    except OverflowError:  # after a day of failures
        return longest_s


class Backoff:
    """Pauses of one retried operation, growing by `factor` from `first_s` to `longest_s`.

    Only the other side may ask for more (`Retry-After`). `jitter` keeps clients of one server from returning together.
    """

    def __init__(
        self, first_s: float = 0.5, *, factor: float = 2.0, longest_s: float = 60.0, jitter: float = 0.2
    ) -> None:
        self._first_s, self._factor, self._longest_s, self._jitter = first_s, factor, longest_s, jitter
        self._failures = 0

    def next_pause(self, retry_after_s: float | None = None) -> float:
        """Count a failure and return the pause before the next try, at least `retry_after_s`."""
        pause_s = grow_pause(self._first_s, self._factor, self._failures, self._longest_s)
        self._failures += 1
        pause_s *= 1 + random.uniform(-self._jitter, self._jitter)
        return max(pause_s, retry_after_s or 0.0)

    async def pause(self, retry_after_s: float | None = None) -> None:
        """Count a failure and wait for the next try."""
        await asyncio.sleep(self.next_pause(retry_after_s))

    def reset(self) -> None:
        """Forget the failures and start over with the first pause."""
        self._failures = 0
