"""A lock with two modes: readers hold it together, a writer holds it alone. It is given in the order of arrival."""

from __future__ import annotations

from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator


class ReadWriteLock:
    """Readers and writers of one event loop. A reader that comes after a waiting writer waits for it."""

    def __init__(self) -> None:
        self._readers = 0
        self._is_writing = False
        self._waiting: deque[tuple[anyio.Event, bool]] = deque()

    @asynccontextmanager
    async def hold(self, *, shared: bool) -> AsyncGenerator[None]:
        """Hold the lock inside the block: together with others that share it, or alone."""
        if self._waiting or self._is_writing or (self._readers and not shared):
            await self._wait(shared)
        elif shared:
            self._readers += 1
        else:
            self._is_writing = True
        try:
            yield
        finally:
            self._leave(shared)

    async def _wait(self, shared: bool) -> None:
        place = anyio.Event(), shared
        self._waiting.append(place)
        try:
            await place[0].wait()
        except BaseException:
            if place in self._waiting:
                self._waiting.remove(place)
                self._admit()
            else:  # admitted at the moment of its cancellation
                self._leave(shared)
            raise

    def _leave(self, shared: bool) -> None:
        if shared:
            self._readers -= 1
        else:
            self._is_writing = False
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting and not self._is_writing and (self._waiting[0][1] or self._readers == 0):
            event, shared = self._waiting.popleft()
            if shared:
                self._readers += 1
            else:
                self._is_writing = True
            event.set()
