"""Deadline of a server start, extended while the process tree is active; slow starts are reported."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from indusagi.core.process.tree import Activity, CpuDemand
    from indusagi.interop.protocol_bridge.client.start.policy import StartAllowance

_WINDOW_S = 5.0
"""When to sample the process tree before the deadline, and by how much to extend it."""
_SAMPLE_TIMEOUT_S = 2.0
"""Time limit for sampling the process list."""


class StartedProcess(Protocol):
    """The part of a server process that `StartWatch` needs."""

    @property
    def bytes_received(self) -> int:
        """Bytes of standard output and error."""
        ...

    def read_stderr(self) -> Sequence[str]:
        """Return the last lines of standard error."""
        ...

    def read_invalid_lines(self) -> Sequence[str]:
        """Return non-protocol lines of standard output."""
        ...

    async def cpu_demand(self) -> CpuDemand | None:
        """Return the CPU demand of the process tree, if known."""
        ...

    async def activity(self) -> Activity | None:
        """Return the activity of the process tree, if the system reports it."""
        ...


class StartTimeout(TimeoutError):
    """A start took longer than its limit."""

    def __init__(self, waited_s: float, *, patient_next: bool) -> None:
        hint = "; the next start is given more time" if patient_next else ""
        super().__init__(f"no answer within {waited_s:g} s{hint}")
        self.waited_s = waited_s


class StartWatch:
    """Watches one start. `process` is set once it exists, and again for a second attempt."""

    def __init__(self, allowance: StartAllowance, on_slow: Callable[[], None]) -> None:
        self.allowance = allowance
        self.is_slow = False
        """Whether the start takes longer than `allowance.slow_s`."""
        self.process: StartedProcess | None = None
        self._on_slow = on_slow

    @asynccontextmanager
    async def limit(self) -> AsyncGenerator[None]:
        """Limit the block to the allowance.

        Raises:
            StartTimeout: The start took too long.
        """
        loop = asyncio.get_running_loop()
        started_at = loop.time()
        timeout = asyncio.timeout(self.allowance.limit_s)
        try:
            async with timeout:
                # Owned by this block: cancelled and awaited below.
                watcher = loop.create_task(self._watch(timeout, started_at))
                try:
                    yield
                finally:
                    watcher.cancel()
                    await asyncio.wait({watcher})
        except TimeoutError:
            if not timeout.expired():
                raise  # a network timeout
            waited_s = round((timeout.when() or loop.time()) - started_at, 1)
            raise StartTimeout(waited_s, patient_next=self.allowance.patient_next) from None

    async def _watch(self, deadline: asyncio.Timeout, started_at: float) -> None:
        loop = asyncio.get_running_loop()
        slow_s, cap_at = self.allowance.slow_s, started_at + self.allowance.cap_s
        if slow_s < self.allowance.limit_s:
            await asyncio.sleep(slow_s)
            self.is_slow = True
            self._on_slow()
        window_s = min(_WINDOW_S, self.allowance.limit_s / 4)
        while (due := deadline.when()) is not None and due < cap_at:
            await asyncio.sleep(max(0.0, due - window_s - loop.time()))
            size_before, before = await self._sample()
            # A busy machine answers late: keep the time between the samples, and let the deadline wait for the result.
            second_at = max(due - window_s / 4, loop.time() + window_s / 2)
            deadline.reschedule(max(due, second_at + _SAMPLE_TIMEOUT_S))
            await asyncio.sleep(max(0.0, second_at - loop.time()))
            size, activity = await self._sample()
            if before is None or activity is None:
                is_active = before is not activity
            else:
                is_active = activity.shows_life_since(before)
            if size == size_before and not is_active:
                deadline.reschedule(due)
                return
            deadline.reschedule(min(cap_at, max(due, loop.time()) + window_s))

    async def _sample(self) -> tuple[int, Activity | None]:
        process = self.process
        if process is None:
            return 0, None
        activity = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_SAMPLE_TIMEOUT_S):
                activity = await process.activity()
        return process.bytes_received, activity
