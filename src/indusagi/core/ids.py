"""Monotonic ULIDs: 26 characters that sort by the time they were made.

Within a process each id is greater than the one before, also within one millisecond, from several
threads, and when the machine's clock is set back.
"""

from __future__ import annotations

import os
from threading import Lock
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
        self._lock = Lock()
        self._last = 0

    def mint(self) -> str:
        """Make the next id."""
        with self._lock:
            fresh = self._clock.now_ms() << _RANDOM_BITS | int.from_bytes(os.urandom(10), "big")
            self._last = max(fresh, self._last + 1)
            return _crockford(self._last)


def _crockford(value: int) -> str:
    return "".join(_CROCKFORD[value >> 5 * place & 31] for place in reversed(range(_LENGTH)))


_MINT = UlidMint()


def new_ulid() -> str:
    """Make an id that is greater than every one this process made before."""
    return _MINT.mint()
