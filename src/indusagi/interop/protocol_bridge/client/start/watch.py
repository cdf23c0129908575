"""The deadline of one start: extended while its processes show life, and told when it is slow."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from indusagi.core.process.procfs import Activity
    from indusagi.interop.protocol_bridge.client.start.policy import StartAllowance

_WINDOW_S = 5.0
"""So long before the deadline the processes are looked at, and so much more time they are given."""
_SAMPLE_S = 2.0
"""How long a look at the process list may take."""


class StartedProcess(Protocol):
    """A process that is being started, as its watcher sees it."""

    @property
    def bytes_received(self) -> int:
        """How much it has written to its standard output and error."""
        ...

    def read_stderr(self) -> Sequence[str]:
        """Give the last lines of its standard error."""
        ...

    def read_invalid_lines(self) -> Sequence[str]:
        """Give lines of its standard output that were not protocol messages."""
        ...

    async def cpu_seconds(self) -> float | None:
        """Tell how much CPU time the process has used; None if unknown."""
        ...

    async def activity(self) -> Activity | None:
        """Tell what its whole tree has done; None where the system does not tell."""
        ...


class StartTimeout(TimeoutError):
    """A start took longer than it was allowed."""

    def __init__(self, waited_s: float, *, patient_next: bool) -> None:
        said = "; the next start is given more time" if patient_next else ""
        super().__init__(f"no answer within {waited_s:g} s{said}")
        self.waited_s = waited_s


class StartWatch:
    """Watches one start. `process` is set as soon as there is one, and again for another try."""

    def __init__(self, allowance: StartAllowance, on_slow: Callable[[], None]) -> None:
        self.allowance = allowance
        self.process: StartedProcess | None = None
        self._on_slow = on_slow

    @asynccontextmanager
    async def limit(self) -> AsyncGenerator[None]:
        """Bound the block by the allowance.

        Raises:
            StartTimeout: It took too long.
        """
        loop = asyncio.get_running_loop()
        begun = loop.time()
        timeout = asyncio.timeout(self.allowance.limit_s)
        try:
            async with timeout:
                # Owned by this block: it is ended and awaited below.
                watcher = loop.create_task(self._watch(timeout, begun))
                try:
                    yield
                finally:
                    watcher.cancel()
                    await asyncio.wait({watcher})
        except TimeoutError:
            if not timeout.expired():
                raise  # the network's own
            waited_s = round((timeout.when() or loop.time()) - begun, 1)
            raise StartTimeout(waited_s, patient_next=self.allowance.patient_next) from None

    async def _watch(self, deadline: asyncio.Timeout, begun: float) -> None:
        loop = asyncio.get_running_loop()
        slow_s, cap_at = self.allowance.slow_s, begun + self.allowance.cap_s
        if slow_s < self.allowance.limit_s:
            await asyncio.sleep(slow_s)
            self._on_slow()
        window_s = min(_WINDOW_S, self.allowance.limit_s / 4)
        while (due := deadline.when()) is not None and due < cap_at:
            await asyncio.sleep(max(0.0, due - window_s - loop.time()))
            before = await self._look()
            await asyncio.sleep(max(0.0, due - window_s / 4 - loop.time()))
            if not _is_alive(before, await self._look()):
                return
            deadline.reschedule(min(cap_at, due + window_s))

    async def _look(self) -> tuple[int, Activity | None]:
        process = self.process
        if process is None:
            return 0, None
        activity = None
        with suppress(TimeoutError):
            async with asyncio.timeout(_SAMPLE_S):
                activity = await process.activity()
        return process.bytes_received, activity


def _is_alive(before: tuple[int, Activity | None], after: tuple[int, Activity | None]) -> bool:
    if after[0] != before[0]:
        return True
    if before[1] is None or after[1] is None:
        return before[1] is not after[1]
    return after[1].shows_life_since(before[1])
