"""How many processes are started at once: as many as the machine can compute, not all of them.

A starting server computes (imports, handshake) or waits (for a download, for a network). Only those
that compute hold a turn, so slow ones do not hold up the others.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

_LOOK_S = 0.2
_BUSY = 0.25
"""Less CPU time than this share of the clock: it waits for something else."""
_UNSEEN_S = 2.0
"""How long a turn lasts where CPU time cannot be seen."""


def default_turns() -> int:
    """Give how many starts may compute at once on this machine."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # pragma: no cover — macOS
        cores = os.cpu_count() or 1
    return max(2, 2 * cores)


class StartPacer:
    """Gives turns to starts, in the order in which they ask."""

    def __init__(self, turns: int | None = None) -> None:
        self._turns = asyncio.Semaphore(turns or default_turns())

    @asynccontextmanager
    async def turn(
        self, cpu_seconds: Callable[[], Awaitable[float | None]], urgent: asyncio.Event
    ) -> AsyncGenerator[None]:
        """Run the block in its turn; at once if it is or becomes `urgent`.

        Args:
            cpu_seconds: Tells how much CPU time the process has used; None if unknown.
            urgent: Set when a caller waits for this very start.
        """
        if not await self._wait(urgent):
            yield
            return
        loop = asyncio.get_running_loop()
        # Owned by this block: ended and awaited below.
        turn = _Turn(self._turns)
        holder = loop.create_task(_hold_while_computing(turn, cpu_seconds))
        try:
            yield
        finally:
            holder.cancel()
            await asyncio.wait({holder})
            turn.give_back()

    async def _wait(self, urgent: asyncio.Event) -> bool:
        """Wait for a turn, or until none is needed; tell whether there is one to give back."""
        if urgent.is_set():
            return False
        loop = asyncio.get_running_loop()
        turn, hurry = loop.create_task(self._turns.acquire()), loop.create_task(urgent.wait())
        try:
            await asyncio.wait({turn, hurry}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            turn.cancel()
            await asyncio.wait({turn})
            if not turn.cancelled():
                self._turns.release()
            raise
        finally:
            hurry.cancel()
        if turn.done():
            return True
        turn.cancel()
        await asyncio.wait({turn})
        return not turn.cancelled()


class _Turn:
    """A turn that was taken; it is given back once."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns: asyncio.Semaphore | None = turns

    def give_back(self) -> None:
        turns, self._turns = self._turns, None
        if turns is not None:
            turns.release()


async def _hold_while_computing(
    turn: _Turn, cpu_seconds: Callable[[], Awaitable[float | None]]
) -> None:
    """Give a turn back as soon as the process waits for something else than a core."""
    now = asyncio.get_running_loop().time
    begun, used = now(), 0.0
    while True:
        at = now()
        await asyncio.sleep(_LOOK_S)
        seconds = await cpu_seconds()
        if seconds is None:
            if now() - begun >= _UNSEEN_S:
                break
            continue
        if seconds - used < _BUSY * (now() - at):
            break
        used = seconds
    turn.give_back()
