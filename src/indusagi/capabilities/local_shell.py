"""The commands of this machine as a door for tools.

A command leads a process group of its own, reads nothing, and writes into a file that nobody else
can open. It is over when it exits, not when its last background child lets go of the output; what
is left of its group is ended then. Nothing it prints is held in memory.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING

import anyio
from anyio import CancelScope, to_thread

from indusagi.capabilities.backends import STOP_GRACE_MS, Ended, ShellResult
from indusagi.core.cancel import CancelToken
from indusagi.core.places import create_private_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from anyio.abc import Process

DEFAULT_TIMEOUT_MS = 120_000
OUTPUT_CAP_BYTES = 64 * 1024 * 1024
"""A command that writes more than this in `exec` is ended: it would fill the disk."""
SHOWN_HEAD_BYTES = 64 * 1024
SHOWN_TAIL_BYTES = 192 * 1024
_LOOK_S = 0.25
"""How often a running command's output is measured."""
_KILL_WAIT_S = 1.0
"""How long the kernel gets to take a killed group off its list."""
_SHELLS = ("/bin/bash", "/bin/sh")


class LocalProcess:
    """A running command of this machine; leave its `async with` block and it is gone."""

    def __init__(self, process: Process, capture: int) -> None:
        self._process = process
        self._capture = capture

    async def __aenter__(self) -> LocalProcess:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    @property
    def pid(self) -> int:
        """The process, which leads a process group of its own."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the command itself to exit, not for what it left in the background."""
        return await self._process.wait()

    async def stop(self, *, grace_ms: int = STOP_GRACE_MS) -> int:
        """End the whole process group: SIGTERM, then SIGKILL; safe to call twice."""
        with CancelScope(shield=True):
            if not await self._signal(signal.SIGTERM, grace_ms / 1000):
                await self._signal(signal.SIGKILL, _KILL_WAIT_S)
        # Not shielded: a process that not even SIGKILL ends must not hold a cancelled caller.
        return await self._process.wait()

    async def _signal(self, number: signal.Signals, patience_s: float) -> bool:
        """Signal the group and tell whether it is gone before patience runs out."""
        if not _signal_group(self.pid, number):
            return True
        with anyio.move_on_after(patience_s):
            await self._process.wait()
            pause_s = 0.005
            while await to_thread.run_sync(_has_live_members, self.pid):
                await anyio.sleep(pause_s)
                pause_s = min(pause_s * 2, 0.1)
            return True
        return False

    def read_output(self, offset: int = 0, limit: int | None = None) -> bytes:
        """Read what it wrote so far, from a byte offset."""
        limit = self.output_size() - offset if limit is None else limit
        return os.pread(self._capture, max(limit, 0), offset)

    def output_size(self) -> int:
        """Tell how many bytes it wrote so far."""
        return os.fstat(self._capture).st_size

    async def aclose(self) -> None:
        """End the group and give the output up; safe to call twice."""
        if self._capture < 0:
            return
        capture, self._capture = self._capture, -1
        try:
            await self.stop()
        finally:
            os.close(capture)


def _signal_group(group: int, number: int) -> bool:
    """Signal every process of a group; False when there is none that can be reached."""
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _has_live_members(group: int) -> bool:
    """Tell whether a process of the group still runs; a zombie nobody reaps yet does not."""
    if not _signal_group(group, 0):
        return False
    if not os.path.isdir("/proc/self"):
        return True
    return any(_runs_in(group, entry) for entry in os.listdir("/proc") if entry.isdigit())


def _runs_in(group: int, pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # The name of the program stands in brackets and may hold any character.
            state, _, pgrp = file.read().rpartition(b") ")[2].split()[:3]
    except OSError:
        return False
    return int(pgrp) == group and state not in {b"Z", b"X"}


class LocalShell:
    """Commands of this machine, run by bash where there is one; they start in `cwd`."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        cancel: CancelToken | None = None,
    ) -> ShellResult:
        """Run a command to its end and leave nothing of its process group behind."""
        limit_s = (DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms) / 1000
        async with await self.spawn(command, cwd=cwd, env=env) as process:
            ended = Ended.CANCELLED
            with (cancel or CancelToken()).guard():
                with anyio.move_on_after(limit_s) as timer:
                    ended = await _run_out(process)
                if timer.cancelled_caught:
                    ended = Ended.TIMEOUT
            exit_code = await process.stop()
            return ShellResult(
                ended=ended,
                exit_code=exit_code,
                output=await to_thread.run_sync(_shown, process),
                output_bytes=process.output_size(),
            )

    async def spawn(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        output_path: str | None = None,
    ) -> LocalProcess:
        """Start a command and return at once; the caller must `aclose` it."""
        from subprocess import DEVNULL, STDOUT  # noqa: PLC0415 — for those who run commands

        if "\0" in command:
            raise OSError(errno.EINVAL, "a command cannot hold a NUL character")
        folder = os.path.join(self._cwd, cwd or "")
        shell, capture = await to_thread.run_sync(_prepare, self._cwd, output_path)
        try:
            process = await anyio.open_process(
                [shell, "-c", command],
                stdin=DEVNULL,
                stdout=capture,
                stderr=STDOUT,
                cwd=folder,
                env={**os.environ, **(env or {})},
                start_new_session=True,
            )
        except BaseException:
            os.close(capture)
            raise
        return LocalProcess(process, capture)


def _prepare(cwd: str, output_path: str | None) -> tuple[str, int]:
    """Find the shell, and open the file for its output."""
    shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1])
    return shell, _capture(cwd, output_path)


def _capture(cwd: str, output_path: str | None) -> int:
    """Open the file that takes the output: a named one, or one that has no name at all."""
    if output_path is not None:
        return create_private_file(os.path.join(cwd, output_path))
    from tempfile import TemporaryFile  # noqa: PLC0415 — for those who run commands

    with TemporaryFile() as file:
        return os.dup(file.fileno())


async def _run_out(process: LocalProcess) -> Ended:
    """Wait for the exit, and look now and then whether the output stays within its cap."""
    while process.output_size() <= OUTPUT_CAP_BYTES:
        with anyio.move_on_after(_LOOK_S):
            await process.wait()
            return Ended.EXITED
    return Ended.OUTPUT_LIMIT


def _shown(process: LocalProcess) -> bytes:
    size = process.output_size()
    left_out = size - SHOWN_HEAD_BYTES - SHOWN_TAIL_BYTES
    if left_out <= 0:
        return process.read_output()
    head = process.read_output(0, SHOWN_HEAD_BYTES)
    tail = process.read_output(size - SHOWN_TAIL_BYTES)
    return b"%s\n[%d bytes left out]\n%s" % (head, left_out, tail)
