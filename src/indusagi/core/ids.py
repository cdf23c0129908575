"""Monotonic ULIDs: 26 characters that sort by the time they were made.

Within a process each id is greater than the one before, also within one millisecond, from several
threads, from a signal handler, and when the machine's clock is set back.
"""

from __future__ import annotations

import os
from threading import RLock
from typing import TYPE_CHECKING

from indusagi.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from indusagi.core.clock import Clock

_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_RANDOM_BITS = 80
_LENGTH = 26


class UlidMint:
    """Make ids in rising order; share one mint among all threads that must agree on the order."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        # Re-entrant, because a signal handler may make an id while this thread makes one.
        self._lock = RLock()
        self._last = 0

    def mint(self) -> str:
        """Make the next id."""
        with self._lock:
            fresh = self._clock.now_ms() << _RANDOM_BITS | int.from_bytes(os.urandom(10), "big")
            # A signal handler runs where a function is called: between reading the last id and
            # writing the next one none is.
            made = self._last + 1
            if fresh > made:
                made = fresh
            self._last = made
        return _crockford(made)


def _crockford(value: int) -> str:
    return "".join(_CROCKFORD[value >> 5 * place & 31] for place in reversed(range(_LENGTH)))


def is_ulid(text: str) -> bool:
    """Tell whether `text` is written as an id is here: capital letters, no more than 128 bits."""
    return len(text) == _LENGTH and text[0] < "8" and all(char in _CROCKFORD for char in text)


_MINT = UlidMint()


def new_ulid() -> str:
    """Make an id that is greater than every one this process made before."""
    return _MINT.mint()
