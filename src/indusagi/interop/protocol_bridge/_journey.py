"""How long one HTTP request and its resumptions may go on, and how soon they may come again."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from indusagi.interop.protocol_bridge.wire import RequestId

T = TypeVar("T")

_FIRST_PAUSE_S = 0.5
_PAUSE_FACTOR = 1.6
_LONGEST_PAUSE_S = 60.0


class Journey:
    """A request of ours and the GETs by which the SDK goes on with it; all in one task."""

    def __init__(self, identity: RequestId | None) -> None:
        self.identity = identity
        self._ends_at: float | None = None
        self._timer: asyncio.Timeout | None = None
        self._next_get_at: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    async def bounded(self, waiting: Awaitable[T], within_s: float | None = None) -> T:
        """Wait for the network, until the request is given up."""
        ends_at = self._ends_at
        if within_s is not None:
            ends_at = asyncio.get_running_loop().time() + within_s
        async with asyncio.timeout_at(ends_at) as timer:
            self._timer = timer
            try:
                return await waiting
            finally:
                self._timer = None

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._ends_at is not None

    def give_up(self, at: float) -> None:
        """Let it go on until then, and no longer."""
        self._ends_at = at
        if self._timer is not None:
            self._timer.reschedule(at)

    async def pace(self, *, resumes: bool) -> None:
        """Let the first GET of a standing stream pass, and each other one wait longer."""
        loop = asyncio.get_running_loop()
        if self._next_get_at is None and resumes:
            self._next_get_at = loop.time() + self._pause_s
        if self._next_get_at is not None:
            if loop.time() - self._next_get_at > _LONGEST_PAUSE_S:
                self._pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(max(0.0, self._next_get_at - loop.time()))
            self._pause_s = min(self._pause_s * _PAUSE_FACTOR, _LONGEST_PAUSE_S)
        self._next_get_at = loop.time() + self._pause_s
