"""One timer of the event loop for many deadlines.

A timer for each request would cost more than all else that is done to send it, and almost none of
them would ever fire.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


class Alarm:
    """Rings at the earliest deadline, and then asks for the next one.

    A deadline that was dropped or put off leaves it as it is: it rings, and nobody is late.
    """

    def __init__(self, ring: Callable[[float], float]) -> None:
        """Take what is called with the loop's time, and gives the next deadline or infinity."""
        self._ring = ring
        self._loop = asyncio.get_running_loop()
        self._at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def by(self, due: float) -> None:
        """Ring no later than this."""
        if due < self._at:
            self.stop()
            self._at = due
            self._timer = self._loop.call_at(due, self._rings)

    def stop(self) -> None:
        """Ring no more, until there is another deadline."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._at = math.inf

    def _rings(self) -> None:
        self.stop()
        self.by(self._ring(self._loop.time()))


async def before(due: float, wait: Awaitable[object]) -> None:
    """Wait, but not past a deadline, with a timer of its own: for what is seldom waited for.

    Raises:
        TimeoutError: The deadline has come first.
    """
    async with asyncio.timeout_at(None if math.isinf(due) else due):
        await wait


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
