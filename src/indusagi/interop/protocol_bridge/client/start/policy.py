"""How long the start of a server may take: the one place that decides it.

A command that was never seen up under its configuration may have to download a program first: it
has a minute, and more while its processes show that they work. One that was up before has ten
seconds. A limit that the configuration states itself (`startup_timeout_sec`) always wins.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.core.json import content_hash
from indusagi.interop.protocol_bridge.client.start.package_managers import find_package_manager
from indusagi.interop.protocol_bridge.contract import LATER_START_S, ServerConfig, StdioServerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


@dataclass(frozen=True, slots=True)
class StartAllowance:
    """How long one start may take."""

    limit_s: float
    cap_s: float
    """The limit is extended while the processes show life, up to this; equal: never."""
    slow_s: float
    """A start that takes longer is told."""
    first: bool = False
    package_manager: str | None = None
    patient_next: bool = False
    """Whether a start after this one, if this one takes too long, is given more time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPolicy:
    """The times of starts. Pure: it is told whether a configuration was seen up."""

    first_s: float = 60.0
    later_s: float = LATER_START_S
    cap_s: float = 120.0
    """For a first start of any command that shows life."""
    package_manager_cap_s: float = 300.0
    slow_s: float = 1.0

    def allow(self, config: ServerConfig, *, seen_up: bool) -> StartAllowance:
        """Say how long a start of this configuration may take."""
        if not isinstance(config, StdioServerConfig):
            limit_s = config.limits.start_s
            return StartAllowance(limit_s, limit_s, self.slow_s)
        manager = find_package_manager(config.command, config.args)
        name = None if manager is None else manager.name
        stated_s = config.limits.connect_s
        if stated_s is not None or seen_up:
            limit_s = self.later_s if stated_s is None else stated_s
            patient_next = stated_s is None
            return StartAllowance(limit_s, limit_s, self.slow_s, not seen_up, name, patient_next)
        cap_s = self.cap_s if manager is None else self.package_manager_cap_s
        # A container engine downloads in another process: nothing of it can be seen from here.
        outside = manager is not None and manager.outside
        limit_s = cap_s if outside else min(self.first_s, cap_s)
        return StartAllowance(limit_s, cap_s, self.slow_s, first=True, package_manager=name)


def start_digest(config: StdioServerConfig) -> str:
    """Digest what a process is started with: what was learned of one start holds for this."""
    return content_hash([config.command, [*config.args], {**config.env}, config.cwd])


class StartHistory:
    """Which configurations were seen up. In memory; a product fills it from what it has kept."""

    def __init__(self) -> None:
        self._up: set[str] = set()

    def was_up(self, config: ServerConfig) -> bool:
        """Tell whether a server was seen up with this configuration."""
        return not isinstance(config, StdioServerConfig) or start_digest(config) in self._up

    def record_up(self, config: ServerConfig) -> None:
        """Remember that it came up: its next start is a later one."""
        if isinstance(config, StdioServerConfig):
            self._up.add(start_digest(config))

    def record_timeout(self, config: ServerConfig) -> None:
        """Forget that it was up: what it runs may have to be downloaded anew."""
        if isinstance(config, StdioServerConfig):
            self._up.discard(start_digest(config))


PROCESS_HISTORY = StartHistory()
"""For all that is started without a history of its own, in this process."""


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


async def _hold_while_computing(turn: _Turn, cpu_seconds: Callable[[], Awaitable[float | None]]) -> None:
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
