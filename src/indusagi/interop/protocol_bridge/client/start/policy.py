"""Start policy: how long the start of a server may take, how many starts compute at once, and when one is repeated.

A command that was never up under its configuration may have to download a program first: it has a minute, and more
while its process tree shows activity. A command that was up before has ten seconds. A limit in the configuration
(`startup_timeout_sec`) always wins. A server that fails is started again by the rules of `Supervision`, pure functions
whose time is a parameter.
"""

from __future__ import annotations

import asyncio
import os
import random
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.core.backoff import grow_pause
from indusagi.core.json import content_hash
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.start.package_managers import find_package_manager
from indusagi.interop.protocol_bridge.client.transient import RECOVERIES
from indusagi.interop.protocol_bridge.contract import LATER_START_S, ProtocolFault, ServerConfig, StdioServerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable


@record
class StartAllowance:
    """How long one start may take."""

    limit_s: float
    cap_s: float
    """How far the limit is extended while the process tree shows activity; equal to `limit_s`: not at all."""
    slow_s: float
    """A start that takes longer is reported."""
    first: bool = False
    package_manager: str | None = None
    patient_next: bool = False
    """Whether the next start has more time if this one takes too long."""


@record(kw_only=True)
class StartPolicy:
    """The limits of starts. Pure: whether a configuration was up before is a parameter."""

    first_s: float = 60.0
    later_s: float = LATER_START_S
    cap_s: float = 120.0
    """For a first start of any command that shows activity."""
    package_manager_cap_s: float = 300.0
    slow_s: float = 1.0
    sign_in_s: float = 300.0
    """For a server behind a URL whose prompt may ask a person to sign in meanwhile."""

    def allow(self, config: ServerConfig, *, seen_up: bool) -> StartAllowance:
        """Return how long a start of this configuration may take."""
        if not isinstance(config, StdioServerConfig):
            may_ask = config.auth is not None and config.auth.prompt is not None
            limit_s = self.sign_in_s if may_ask and config.limits.connect_s is None else config.limits.start_s
            return StartAllowance(limit_s, limit_s, self.slow_s)
        manager = find_package_manager(config.command, config.args)
        name = None if manager is None else manager.name
        stated_s = config.limits.connect_s
        if stated_s is not None or seen_up:
            limit_s = self.later_s if stated_s is None else stated_s
            patient_next = stated_s is None
            return StartAllowance(limit_s, limit_s, self.slow_s, not seen_up, name, patient_next)
        cap_s = self.cap_s if manager is None else self.package_manager_cap_s
        # A container engine downloads in a process outside of the tree.
        is_outside = manager is not None and manager.outside
        limit_s = cap_s if is_outside else min(self.first_s, cap_s)
        return StartAllowance(limit_s, cap_s, self.slow_s, first=True, package_manager=name)


def start_digest(config: StdioServerConfig) -> str:
    """Digest what a process is started with: the key of everything learned from its starts."""
    return content_hash([config.command, [*config.args], {**config.env}, config.cwd])


class StartHistory:
    """Which configurations were up before. In memory; a product fills it from its own store."""

    def __init__(self) -> None:
        self._up: set[str] = set()

    def was_up(self, config: ServerConfig) -> bool:
        """Return whether a server was up with this configuration."""
        return not isinstance(config, StdioServerConfig) or start_digest(config) in self._up

    def record_up(self, config: ServerConfig) -> None:
        """Record that it came up: its next start has the short limit."""
        if isinstance(config, StdioServerConfig):
            self._up.add(start_digest(config))

    def record_timeout(self, config: ServerConfig) -> None:
        """Forget that it was up: its program may have to be downloaded again."""
        if isinstance(config, StdioServerConfig):
            self._up.discard(start_digest(config))


PROCESS_HISTORY = StartHistory()
"""The default history, shared by the whole process."""


_SAMPLE_S = 0.2
_BUSY = 0.25
"""A process that uses less than this share of a core waits for something else."""
_UNKNOWN_CPU_S = 2.0
"""How long a turn lasts where the CPU time is unknown."""


def default_turns() -> int:
    """Return how many starts may compute at once on this machine."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # pragma: no cover — macOS
        cores = os.cpu_count() or 1
    return max(2, 2 * cores)


class StartPacer:
    """Limits how many starts compute at once; first come, first served."""

    def __init__(self, turns: int | None = None) -> None:
        self._turns = asyncio.Semaphore(turns or default_turns())

    @asynccontextmanager
    async def turn(
        self, cpu_seconds: Callable[[], Awaitable[float | None]], urgent: asyncio.Event
    ) -> AsyncGenerator[None]:
        """Run the block in its turn; at once if it is or becomes `urgent`.

        Args:
            cpu_seconds: Returns the CPU time of the process; `None` if unknown.
            urgent: Set when a caller waits for this start.
        """
        if not await self._wait(urgent):
            yield
            return
        loop = asyncio.get_running_loop()
        # Owned by this block: cancelled and awaited below. Its end, also an early one, releases the turn.
        computing = loop.create_task(_wait_while_computing(cpu_seconds))
        computing.add_done_callback(lambda _: self._turns.release())
        try:
            yield
        finally:
            computing.cancel()
            await asyncio.wait({computing})

    async def _wait(self, urgent: asyncio.Event) -> bool:
        """Wait for a turn, or until none is needed; return whether there is one to release."""
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


async def _wait_while_computing(cpu_seconds: Callable[[], Awaitable[float | None]]) -> None:
    """Return as soon as the process waits for something other than a core."""
    now = asyncio.get_running_loop().time
    started_at, used = now(), 0.0
    while True:
        sampled_at = now()
        await asyncio.sleep(_SAMPLE_S)
        seconds = await cpu_seconds()
        if seconds is None:
            if now() - started_at >= _UNKNOWN_CPU_S:
                return
            continue
        if seconds - used < _BUSY * (now() - sampled_at):
            return
        used = seconds


@record(kw_only=True)
class Supervision:
    """The rules of restarts: backoff with jitter, and a circuit breaker."""

    first_s: float = 1.0
    factor: float = 1.6
    jitter: float = 0.2
    longest_s: float = 60.0
    failures: int = 5
    """Failed starts within `window_s` that open the circuit."""
    window_s: float = 60.0
    open_s: float = 60.0
    """How long the circuit stays open; doubled each time, up to `open_longest_s`."""
    open_longest_s: float = 600.0
    healthy_s: float = 120.0
    """A server that was up for so long starts with a clean record."""


@dataclass(slots=True)
class RestartRecord:
    """The failures of one server so far."""

    rules: Supervision
    starts: list[float] = field(default_factory=list[float])
    """Times of the failures within the window."""
    in_a_row: int = 0
    opened: int = 0
    """How often the circuit was opened."""

    def forget(self) -> None:
        """Clear the record."""
        self.starts.clear()
        self.in_a_row = 0
        self.opened = 0

    def delay(self, fault: ProtocolFault | None, up_s: float, now: float) -> float | None:
        """Record a failure and return the restart delay, or `None` to wait for the next call."""
        rules = self.rules
        reason = None if fault is None else fault.detail.reason
        if reason is not None and RECOVERIES[reason] == "user":
            return None
        if reason == "moved":
            return 0.0  # no failure: it starts elsewhere
        if up_s >= rules.healthy_s:
            self.forget()
        self.starts = [time for time in self.starts if now - time < rules.window_s]
        self.starts.append(now)
        self.in_a_row += 1
        if len(self.starts) >= rules.failures:
            self.starts.clear()
            self.opened += 1
            wait_s = grow_pause(rules.open_s, 2.0, self.opened - 1, rules.open_longest_s)
        else:
            wait_s = grow_pause(rules.first_s, rules.factor, self.in_a_row - 1, rules.longest_s)
            wait_s *= 1 + random.uniform(-rules.jitter, rules.jitter)
        retry_after_s = fault.detail.retry_after_s if fault is not None else None
        return max(wait_s, retry_after_s or 0.0)
