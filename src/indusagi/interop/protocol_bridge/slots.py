"""So many at once, the others in line.

A semaphore of asyncio looks through its waiters each time it is asked, also when there are none.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """A number of places; one that is given back goes to whoever waits longest."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._line: deque[asyncio.Future[None]] = deque()

    def take(self) -> bool:
        """Take a free place; False if there is none."""
        # Nobody waits while a place is free: it is handed on, never put down.
        if self._free < 1:
            return False
        self._free -= 1
        return True

    async def wait(self) -> None:
        """Wait for a place."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it was given a place in the same moment
                self.give()
            elif turn in self._line:
                self._line.remove(turn)
            raise

    def give(self) -> None:
        """Give a place back."""
        while self._line:
            turn = self._line.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
