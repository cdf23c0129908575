"""The commands of this machine as a door for tools.

A command leads a session of its own, reads nothing, and writes into a pipe that we drain into a
file nobody else can open. It is over when it exits, not when its last background child lets go of
the pipe; what it has left behind is ended then. Memory holds a small part of what it prints.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.capabilities.backends import STOP_GRACE_MS, Ended, ShellResult
from indusagi.core.cancel import CancelToken
from indusagi.core.places import create_private_file

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Iterator, Mapping
    from types import TracebackType

    from indusagi.core.child import Child

DEFAULT_TIMEOUT_MS = 120_000
OUTPUT_CAP_BYTES = 64 * 1024 * 1024
"""A command that writes more than this in `exec` is ended: it would fill the disk."""
SHOWN_HEAD_BYTES = 64 * 1024
SHOWN_TAIL_BYTES = 192 * 1024
_DRAIN_S = 0.1
"""How long the output may stay open after the exit; longer only if a background child holds it."""
_SHELLS = ("/bin/bash", "/bin/sh")


class LocalProcess:
    """A running command of this machine; leave its `async with` block and it is gone."""

    def __init__(self, child: Child, capture: _Capture) -> None:
        self._child = child
        self._capture = capture
        self._drained = False

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
        """The process, which leads a session and a process group of its own."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._child.exit_code

    async def wait(self) -> int:
        """Wait for the command itself to exit, not for what it left in the background."""
        await self._child.exited.wait()
        if not self._drained:
            with anyio.move_on_after(_DRAIN_S):
                await self._child.output_ended.wait()
            self._drained = True
        await self._capture.written()
        return self._code()

    async def stop(self, *, grace_ms: int = STOP_GRACE_MS) -> int:
        """End all that the command has started: SIGTERM, then SIGKILL; safe to call twice.

        A caller that is cancelled meanwhile waits for the end all the same.
        """
        await self._child.end(grace_ms / 1000, drain_s=_DRAIN_S)
        await self._capture.written()
        return self._code()

    def read_output(self, offset: int = 0, limit: int | None = None) -> bytes:
        """Read what it wrote so far, from a byte offset.

        Raises:
            OSError: Its output could not be kept, because the disk is full, say.
        """
        return self._capture.read(offset, limit)

    def output_size(self) -> int:
        """Tell how many bytes it wrote so far."""
        return self._capture.size

    def limit_output(self, size: int, when_over: Callable[[], None]) -> None:
        """Keep nothing of the output after `size` bytes, and say so when it comes to that."""
        self._capture.limit(size, when_over)

    async def aclose(self) -> None:
        """End all that the command has started and give the output up; safe to call twice."""
        try:
            await self.stop()
        finally:
            self._capture.close()

    def _code(self) -> int:
        # None: it could not be ended, and is told as if what was sent last had ended it.
        code = self._child.exit_code
        return -signal.SIGKILL if code is None else code


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
        """Run a command to its end and leave nothing behind of what it started."""
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
        from indusagi.core.owner import seen_through  # noqa: PLC0415 — for those who run commands

        folder = os.path.join(self._cwd, cwd or "")
        _require_passable(command, folder, env or {}, output_path)
        target = None if output_path is None else os.path.join(self._cwd, output_path)
        work = _start(command, folder, {**os.environ, **(env or {})}, target)
        return await seen_through(work, "start a command", undo=LocalProcess.aclose)


async def _start(
    command: str, folder: str, env: Mapping[str, str], output_path: str | None
) -> LocalProcess:
    shell, descriptor, make_child = await to_thread.run_sync(_prepare, output_path)
    capture = _Capture(descriptor)
    try:
        child = capture.child = make_child(capture)
        # Such a child would die with us even by kill -9, at the price of a slow start.
        await child.start(
            [shell, "-c", command], env, folder, with_input=False, merged=True, dies_with_us=False
        )
    except BaseException:
        capture.close()
        raise
    return LocalProcess(child, capture)


def _prepare(output_path: str | None) -> tuple[str, int, type[Child]]:
    """Find the shell, open the file for its output, load what runs it: in a thread, all of it."""
    from indusagi.core.child import Child  # noqa: PLC0415 — for those who run commands

    shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1])
    return shell, _open_capture(output_path), Child


def _open_capture(output_path: str | None) -> int:
    """Open the file that takes the output: a named one, or one that has no name at all."""
    if output_path is not None:
        return create_private_file(output_path)
    from tempfile import TemporaryFile  # noqa: PLC0415 — for those who run commands

    with TemporaryFile() as file:
        return os.dup(file.fileno())


def _require_passable(
    command: str, folder: str, env: Mapping[str, str], output_path: str | None
) -> None:
    """Refuse what the system cannot be given.

    Raises:
        OSError: With EINVAL, and a message that names the culprit.
    """
    for name in env:
        if not name or "=" in name:
            raise OSError(errno.EINVAL, f"{name!r} cannot be the name of a variable")
    for what, text in _texts(command, folder, env, output_path):
        if "\0" in text:
            raise OSError(errno.EINVAL, f"{what} cannot hold a NUL character")
        try:
            os.fsencode(text)
        except UnicodeEncodeError as exc:
            message = f"{what} cannot hold half a surrogate pair (at character {exc.start})"
            raise OSError(errno.EINVAL, message) from exc


def _texts(
    command: str, folder: str, env: Mapping[str, str], output_path: str | None
) -> Iterator[tuple[str, str]]:
    yield "a command", command
    yield "a working directory", folder
    yield "the path of an output file", output_path or ""
    for name, value in env.items():
        yield "the name of a variable", name
        yield f"the variable {name!r}", value


async def _run_out(process: LocalProcess) -> Ended:
    """Wait for the exit, unless the output goes over its cap or cannot be kept."""
    with anyio.CancelScope() as room:
        process.limit_output(OUTPUT_CAP_BYTES, room.cancel)
        await process.wait()
    return Ended.OUTPUT_LIMIT if room.cancelled_caught else Ended.EXITED


def _shown(process: LocalProcess) -> bytes:
    size = process.output_size()
    left_out = size - SHOWN_HEAD_BYTES - SHOWN_TAIL_BYTES
    if left_out <= 0:
        return process.read_output()
    head = process.read_output(0, SHOWN_HEAD_BYTES)
    tail = process.read_output(size - SHOWN_TAIL_BYTES)
    return b"%s\n[%d bytes left out]\n%s" % (head, left_out, tail)


class _Capture:
    """The file that takes the output. It is written in a thread, one piece after the other.

    While a piece is written the pipe is not read, so memory holds no more than that piece.
    """

    child: Child

    def __init__(self, descriptor: int) -> None:
        from asyncio import Event, get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

        self.size = 0
        self._descriptor = descriptor
        self._loop: AbstractEventLoop = get_running_loop()
        self._waiting: list[bytes] = []
        self._idle = Event()
        self._idle.set()
        self._failure: OSError | None = None
        self._cap: int | None = None
        self._when_over: Callable[[], None] | None = None
        self._closed = False

    # -- for the child ------------------------------------------------------------------------

    def wrote(self, data: bytes) -> None:
        """Put it in the file; past the end of what is kept it is read and dropped."""
        if self._closed or self._is_over():
            return
        self._waiting.append(data)
        if self._idle.is_set():
            self._write()

    def complained(self, data: bytes) -> None:
        """Hear nothing: there is one pipe for both."""

    def changed(self) -> None:
        """Care about nothing: whoever waits looks at the child."""

    # -- the file -----------------------------------------------------------------------------

    def _write(self) -> None:
        piece = b"".join(self._waiting)
        self._waiting.clear()
        self._idle.clear()
        self.child.hold_output()
        # Nobody awaits this one, so nobody can cancel it.
        future = self._loop.run_in_executor(None, _append, self._descriptor, piece)
        future.add_done_callback(self._written)

    def _written(self, future: Future[int]) -> None:
        try:
            self.size += future.result()
        except OSError as exc:
            self._failure = exc
        if self._is_over():
            self._waiting.clear()
        if self._waiting:
            self._write()
            return
        self._idle.set()
        self.child.release_output()
        if self._closed:
            os.close(self._descriptor)
        elif self._is_over() and self._when_over is not None:
            self._when_over()

    def _is_over(self) -> bool:
        return self._failure is not None or (self._cap is not None and self.size > self._cap)

    def limit(self, size: int, when_over: Callable[[], None]) -> None:
        """Keep nothing after `size` bytes; `when_over` hears of that, and of a failure to write."""
        self._cap, self._when_over = size, when_over
        if self._is_over():
            when_over()

    async def written(self) -> None:
        """Wait until what was read of the pipe is in the file."""
        await self._idle.wait()

    def read(self, offset: int, limit: int | None) -> bytes:
        """Read a part of the file.

        Raises:
            OSError: Something could not be written to it.
        """
        if self._failure is not None:
            raise self._failure
        limit = self.size - offset if limit is None else limit
        return os.pread(self._descriptor, max(limit, 0), offset)

    def close(self) -> None:
        """Give the file up, once the last piece is written."""
        if self._closed:
            return
        self._closed = True
        if self._idle.is_set():
            os.close(self._descriptor)


def _append(descriptor: int, data: bytes) -> int:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
    return len(data)
