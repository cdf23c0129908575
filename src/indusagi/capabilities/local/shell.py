"""The commands of this machine as a door for tools.

A command leads a session of its own, inherits no secrets, is held in by what the machine has for
that, reads nothing, and writes into a pipe that we drain into a file nobody else can open. It is
over when it exits, not when its last background child lets go of the pipe; what it has left behind
is ended then. Memory holds a small part of what it prints.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

import anyio
from anyio import to_thread

from indusagi.capabilities.ports import STOP_GRACE_MS, Ended, SandboxState, ShellResult
from indusagi.capabilities.receipts import remove_receipt, write_receipt
from indusagi.capabilities.sandbox.backend import SandboxBackend, SandboxedCommand
from indusagi.capabilities.sandbox.bubblewrap import is_bubblewrap_helper
from indusagi.capabilities.sandbox.capture import Capture, open_capture
from indusagi.capabilities.sandbox.final_cwd import read_final_cwd
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.core.cancel import CancelToken

if TYPE_CHECKING:  # it loads the event loop, and is in no public signature
    from indusagi.core.process.child import ChildProcess

DEFAULT_TIMEOUT_MS = 120_000
OUTPUT_CAP_BYTES = 64 * 1024 * 1024
"""A command that writes more than this in `exec` is ended: it would fill the disk."""
SHOWN_HEAD_BYTES = 64 * 1024
SHOWN_TAIL_BYTES = 192 * 1024
_DRAIN_S = 0.1
"""How long the output may stay open after the exit; longer only if a background child holds it."""
_LONGEST_WORD = 128 * 1024 - 1
"""Bytes of a command that Linux takes."""
_SHELLS = ("/bin/bash", "/bin/sh")


class LocalProcess:
    """A running command of this machine; leave its `async with` block and it is gone."""

    def __init__(
        self, child: ChildProcess, capture: Capture, enclosed: SandboxedCommand, receipt: str | None = None
    ) -> None:
        self._child = child
        self._receipt = receipt
        """The file by which it would be found if we were killed; None if there is none."""
        self._capture = capture
        self._enclosed = enclosed
        self._drained = False
        self._final_cwd: str | None = None
        self._closed = False

    async def __aenter__(self) -> LocalProcess:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
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

    @property
    def sandbox(self) -> SandboxState:
        """What holds it in."""
        return self._enclosed.state

    @property
    def mark(self) -> str:
        """What the environment of every process that it has started carries."""
        return self._child.mark

    async def wait(self) -> int:
        """Wait for the command itself to exit, not for what it left in the background."""
        await self._child.exited.wait()
        if not self._drained:
            with anyio.move_on_after(_DRAIN_S):
                await self._child.output_ended.wait()
                await self._child.errors_ended.wait()
            self._drained = True
        await self._written()
        return self._code()

    async def _written(self) -> None:
        for capture in self._captures():
            await capture.written()

    def _captures(self) -> Sequence[Capture]:
        errors = self._capture.errors
        return (self._capture,) if errors is None else (self._capture, errors)

    async def stop(self, *, grace_ms: int = STOP_GRACE_MS) -> int:
        """End all that the command has started: SIGTERM, then SIGKILL; safe to call twice.

        A caller that is cancelled meanwhile waits for the end all the same.
        """
        # The end of its input says nothing to a server: it is told in so many words.
        await self._child.end(grace_ms / 1000, drain_s=_DRAIN_S, close_input=False)
        await self._written()
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

    def follow(self, sink: Callable[[bytes], None]) -> None:
        """Hand everything it writes, from the first byte on, to `sink`, in a worker thread."""
        self._capture.follow(sink)

    def follow_errors(self, sink: Callable[[bytes], None]) -> bool:
        """Hand what it writes to standard error to `sink`, as `follow` does with the rest.

        Returns whether that is kept apart; if not, it is part of the output.
        """
        if self._capture.errors is None:
            return False
        self._capture.errors.follow(sink)
        return True

    async def write_input(self, data: bytes, *, close: bool = False) -> None:
        """Write to its standard input, if it was started with one; `close` ends the input.

        Raises:
            OSError: With EPIPE, nobody reads it any more, or nobody ever did.
        """
        if not self._child.input_open:
            raise BrokenPipeError(errno.EPIPE, "its standard input is closed")
        self._child.write(data)
        await self._child.writable.wait()
        if close:
            self._child.close_input()

    def survivors(self) -> Sequence[int]:
        """List the processes it has started that are still there, itself not among them."""
        return sorted(found.pid for found in self._child.descendants() if not is_bubblewrap_helper(found.pid))

    async def final_cwd(self) -> str | None:
        """Tell where the shell stood when it exited; None if that is not known."""
        if self._final_cwd is None and not self._closed:
            self._final_cwd = await to_thread.run_sync(read_final_cwd, self._enclosed.note)
        return self._final_cwd

    def limit_output(self, size: int, when_over: Callable[[], None]) -> None:
        """Keep nothing of the output after `size` bytes, and say so when it comes to that."""
        self._capture.limit(size, when_over)

    async def aclose(self) -> None:
        """End all that the command has started and give the output up; safe to call twice."""
        try:
            await self.stop()
        finally:
            if not self._closed:
                self._closed = True
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(self._tidy)
                for capture in self._captures():
                    capture.close()

    def _tidy(self) -> None:
        if self._receipt is not None:
            remove_receipt(self._receipt)
        self._enclosed.leave()
        for capture in self._captures():
            with suppress(OSError):
                capture.settle()

    def _code(self) -> int:
        # None: it could not be ended, and is told as if what was sent last had ended it.
        code = self._child.exit_code
        return -signal.SIGKILL if code is None else code


class LocalShell:
    """Commands of this machine, run by bash where there is one; they start in `cwd`.

    Args:
        cwd: The workspace, and where commands start.
        sandbox: What they are held in by.
        allowed_variables: Variables that they inherit although they look like secrets.
    """

    def __init__(self, cwd: str, *, sandbox: Sandbox | None = None, allowed_variables: Iterable[str] = ()) -> None:
        self._cwd = cwd
        self._walls = SandboxBackend(sandbox or Sandbox(), cwd, frozenset(allowed_variables))

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
        with_input: bool = False,
        errors_path: str | None = None,
    ) -> LocalProcess:
        """Start a command and return at once; the caller must `aclose` it.

        Its standard input is empty unless it is started `with_input`. What it writes to standard
        error is part of its output, unless it is kept apart in the file `errors_path`.

        Raises:
            SandboxMissing: It may only run in a sandbox, and there is none.
            OSError: It cannot be started.
        """
        from indusagi.core.tasks import run_shielded  # noqa: PLC0415 — for those who run commands

        folder = os.path.join(self._cwd, cwd or "")
        _require_passable(command, folder, env or {}, output_path)
        targets = _Targets(
            *(None if path is None else os.path.join(self._cwd, path) for path in (output_path, errors_path))
        )
        work = _start(partial(_prepare, self._walls, command, folder, env or {}, targets), command, folder, with_input)
        return await run_shielded(work, "start a command", undo=_drop)

    async def sandbox_state(self) -> SandboxState:
        """Tell what holds commands in here."""
        return await to_thread.run_sync(self._walls.state)

    async def aclose(self) -> None:
        """Remove the temporary files of the commands that have run; safe to call twice."""
        await to_thread.run_sync(self._walls.remove)


async def _drop(process: LocalProcess) -> None:
    """End a command that nobody has been given: it gets no time for anything."""
    try:
        await process.stop(grace_ms=0)
    finally:
        await process.aclose()


async def _start(prepare: Callable[[], _Prepared], command: str, folder: str, with_input: bool) -> LocalProcess:
    prepared = await to_thread.run_sync(prepare)
    enclosed = prepared.enclosed
    errors = None
    if prepared.errors_descriptor is not None:
        errors = Capture(prepared.errors_descriptor, prepared.targets.errors, of_errors=True)
    capture = Capture(prepared.descriptor, prepared.targets.output, errors=errors)
    try:
        child = capture.child = prepared.make_child(capture)
        if errors is not None:
            errors.child = child
        await child.start(
            enclosed.argv,
            enclosed.env,
            folder,
            with_input=with_input,
            merge_stderr=errors is None,
            # Such a child would die with us even by kill -9, at the price of a slow start, and
            # what it has started would not: all of it is found by its receipt.
            die_with_parent=False,
        )
    except BaseException as exc:
        capture.close()
        if errors is not None:
            errors.close()
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(prepared.give_up)
        is_too_long = len(os.fsencode(enclosed.argv[-1])) > _LONGEST_WORD
        if is_too_long and isinstance(exc, OSError) and exc.errno == errno.E2BIG:
            message = "it is too long for the system: write it to a file, and run that file"
            raise OSError(errno.E2BIG, message) from exc
        raise
    receipt = await to_thread.run_sync(_write_receipt, child, command, folder)
    return LocalProcess(child, capture, enclosed, receipt)


def _write_receipt(child: ChildProcess, command: str, folder: str) -> str | None:
    try:
        return write_receipt(child.mark, child.pid, command, folder)
    except (OSError, ValueError):  # a full disk is no reason not to run a command
        return None


class _Targets(NamedTuple):
    """The files that take what a command writes; None for one without a name."""

    output: str | None
    errors: str | None
    """None also if standard error is part of the output."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    enclosed: SandboxedCommand
    descriptor: int
    errors_descriptor: int | None
    targets: _Targets
    make_child: type[ChildProcess]

    def give_up(self) -> None:
        """Remove what was made for a command that does not run."""
        self.enclosed.leave()
        for path in self.targets:
            if path is not None:
                with suppress(OSError):
                    os.unlink(path)


def _prepare(walls: SandboxBackend, command: str, folder: str, env: Mapping[str, str], targets: _Targets) -> _Prepared:
    """Find the shell, raise the walls, open the file for the output: in a thread, all of it."""
    from indusagi.core.process.child import ChildProcess  # noqa: PLC0415 — for those who run commands

    shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1])
    enclosed = walls.enclose(shell, command, folder, env)
    opened: list[int] = []
    try:
        opened.append(open_capture(targets.output))
        if targets.errors is not None:
            opened.append(open_capture(targets.errors))
    except BaseException:
        enclosed.leave()
        for descriptor in opened:
            os.close(descriptor)
        raise
    errors = opened[1] if len(opened) > 1 else None
    return _Prepared(enclosed, opened[0], errors, targets, ChildProcess)


def _require_passable(command: str, folder: str, env: Mapping[str, str], output_path: str | None) -> None:
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


def _texts(command: str, folder: str, env: Mapping[str, str], output_path: str | None) -> Iterator[tuple[str, str]]:
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
