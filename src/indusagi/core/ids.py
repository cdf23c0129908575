"""Monotonic ULIDs (https://github.com/ulid/spec): 26 characters that sort by time.

Within a process each id is greater than the previous one: within a millisecond, across threads, in a signal handler,
and when the clock is set back.
"""

from __future__ import annotations

import os
from threading import RLock

from indusagi.core.time import SYSTEM_CLOCK, Clock

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_LENGTH = 26


class UlidMint:
    """Makes increasing ids for all threads that share it."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        # Re-entrant: a signal handler may make an id while this thread makes one.
        self._lock = RLock()
        self._last = 0

    def mint(self) -> str:
        """Make the next id."""
        with self._lock:
            fresh = self._clock.now_ms() << _RANDOM_BITS | int.from_bytes(os.urandom(10), "big")
            # CPython runs signal handlers at function calls, so none can run between reading and writing `_last`.
            value = self._last + 1
            if fresh > value:
                value = fresh
            self._last = value
        return "".join(_CROCKFORD[value >> 5 * digit & 31] for digit in reversed(range(_LENGTH)))


def is_ulid(text: str) -> bool:
    """Return whether `text` is an id in our format: capital letters, at most 128 bits."""
    return len(text) == _LENGTH and text[0] < "8" and all(char in _CROCKFORD for char in text)


_MINT = UlidMint()


def new_ulid() -> str:
    """Make an id greater than all earlier ones of this process."""
    return _MINT.mint()
