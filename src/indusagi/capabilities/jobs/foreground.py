"""A command that somebody waits for: until it exits, or its time is over, or it is not wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.capabilities.jobs.text import plain_text
from indusagi.capabilities.ports import Ended
from indusagi.core.process.procfs import reads_terminal
from indusagi.runtime.contract import ToolProgress

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import ShellProcess

STALL_S = 15.0
"""How long a program is silent before it is looked at whether it waits for somebody to type."""
_LAP_S = 0.25
_TOLD_BYTES = 4_096
_SETTLE_S = 0.1
_GLANCE_S = 0.02


class ForegroundWait:
    """Sees a command through, and tells whoever follows how it comes along."""

    def __init__(self, process: ShellProcess, ctx: ToolContext) -> None:
        self.stalled = False
        """Whether it was seen to wait for input that cannot come."""
        self._process = process
        self._ctx = ctx
        self._told = 0
        self._size = 0
        self._moved = anyio.current_time()

    async def until_over(self, limit_s: float) -> Ended:
        """Wait for the exit of the command itself, for the end of its time, or for a cancel.

        The cancellation of a caller whose token is not cancelled passes.
        """
        try:
            return await self._until_over(limit_s)
        except anyio.get_cancelled_exc_class():
            if not self._ctx.cancel.cancelled:
                raise
            return Ended.CANCELLED

    async def _until_over(self, limit_s: float) -> Ended:
        with anyio.move_on_after(limit_s):
            while True:
                with anyio.move_on_after(_LAP_S):
                    await self._process.wait()
                    return Ended.EXITED
                await self._lap()
        return Ended.TIMEOUT

    async def _lap(self) -> None:
        size = self._process.output_size()
        if size != self._size:
            self._size, self._moved = size, anyio.current_time()
        elif not self.stalled and anyio.current_time() - self._moved >= STALL_S:
            self._moved = anyio.current_time()
            self.stalled = await to_thread.run_sync(self._waits)
            if self.stalled:
                self._ctx.report(ToolProgress(size, None, "waits for somebody to type"))
        if self._ctx.on_progress is not None and size != self._told:
            self._told = size
            self._ctx.report(ToolProgress(size, None, await to_thread.run_sync(self._latest)))

    def _waits(self) -> bool:
        return reads_terminal([self._process.pid, *self._process.survivors()])

    def _latest(self) -> str:
        try:
            data = self._process.read_output(max(self._told - _TOLD_BYTES, 0))
        except OSError:  # told at the end, when it matters
            return ""
        return plain_text(data)


async def find_lasting_survivors(process: ShellProcess) -> list[int]:
    """List whom a command has left behind, once those who are about to end have ended."""
    left = list(await to_thread.run_sync(process.survivors))
    with anyio.move_on_after(_SETTLE_S):
        while left:
            await anyio.sleep(_GLANCE_S)
            left = list(await to_thread.run_sync(process.survivors))
    return left
