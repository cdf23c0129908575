"""Local commands: the default implementation of the `Shell` port.

Each command leads its own session, inherits no secrets, runs in a sandbox if the machine has one, and writes to a pipe
that we drain into a private file. The command ends when it exits, not when its last background process closes the pipe;
we then terminate its descendants. Only a small part of the output stays in memory.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.capabilities.leftovers import Reaper, remove_receipt, write_receipt
from indusagi.capabilities.ports import DEFAULT_TIMEOUT_MS, STOP_GRACE_MS, Ended, SandboxState, ShellResult
from indusagi.capabilities.sandbox.backend import SandboxBackend, SandboxedCommand, read_final_cwd
from indusagi.capabilities.sandbox.bubblewrap import is_bubblewrap_helper
from indusagi.capabilities.sandbox.capture import Capture, open_capture
from indusagi.capabilities.sandbox.policy import Sandbox
from indusagi.core.cancel import CancelToken
from indusagi.core.tasks import run_shielded

if TYPE_CHECKING:  # loads the event loop, and isn't part of public signatures
    from indusagi.core.process.child import ChildProcess

OUTPUT_CAP_BYTES = 64 * 1024 * 1024
"""`exec` kills a command that writes more than this, before it fills the disk."""
SHOWN_HEAD_BYTES = 64 * 1024
SHOWN_TAIL_BYTES = 192 * 1024
_DRAIN_S = 0.1
"""How long to wait for the end of the output after the exit; a background process may hold the pipe open."""
_LONGEST_ARGUMENT = 128 * 1024 - 1
"""Linux's limit on a single argument (`MAX_ARG_STRLEN`, execve(2))."""
_SHELLS = ("/bin/bash", "/bin/sh")
_GIT_SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": "/dev/null",
    "diff.ignoreSubmodules": "all",
    "status.submoduleSummary": "false",
    "log.showSignature": "false",
}
"""Override those of a repository: https://git-scm.com/docs/git-config."""
_GIT_VARIABLES = {
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_PAGER": "cat",
    "GIT_CONFIG_COUNT": str(len(_GIT_SETTINGS)),
    **{f"GIT_CONFIG_KEY_{index}": key for index, key in enumerate(_GIT_SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{index}": value for index, value in enumerate(_GIT_SETTINGS.values())},
}


class LocalProcess:
    """A running command; leaving its `async with` block terminates it."""

    def __init__(
        self, child: ChildProcess, capture: Capture, command: SandboxedCommand, receipt: str | None = None
    ) -> None:
        self._child = child
        self._receipt = receipt
        """The file a later run uses to find the process after a crash, if any."""
        self._capture = capture
        self._captures = (capture,) if capture.errors is None else (capture, capture.errors)
        self._command = command
        self._drained = False
        self._final_cwd: str | None = None
        self._closed = False

    async def __aenter__(self) -> LocalProcess:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    @property
    def pid(self) -> int:
        """The process id, which is also its session and process group id."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative for a signal."""
        return self._child.exit_code

    @property
    def sandbox(self) -> SandboxState:
        """The sandbox it runs in."""
        return self._command.state

    @property
    def mark(self) -> str:
        """The marker in the environment of its descendants."""
        return self._child.mark

    async def wait(self) -> int:
        """Wait for the command itself to exit, not for its background processes."""
        await self._child.exited.wait()
        if not self._drained:
            with anyio.move_on_after(_DRAIN_S):
                await self._child.output_ended.wait()
                await self._child.errors_ended.wait()
            self._drained = True
        return await self._finish_output()

    async def stop(self, *, grace_ms: int = STOP_GRACE_MS) -> int:
        """Terminate the process tree with SIGTERM, then SIGKILL; safe to call twice.

        Waits for the end even if the caller is cancelled.
        """
        # Servers don't exit on EOF, so we start with SIGTERM.
        await self._child.end(grace_ms / 1000, drain_s=_DRAIN_S, close_input=False)
        return await self._finish_output()

    async def _finish_output(self) -> int:
        for capture in self._captures:
            await capture.flush()
        # None means the process survived; report the last signal we sent.
        code = self._child.exit_code
        return -signal.SIGKILL if code is None else code

    def read_output(self, offset: int = 0, limit: int | None = None) -> bytes:
        """Read the output so far, from a byte offset.

        Raises `OSError` if the output couldn't be stored, e.g. because the disk is full.
        """
        return self._capture.read(offset, limit)

    def output_size(self) -> int:
        """Return the number of bytes written so far."""
        return self._capture.size

    def follow(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` in a worker thread with all output, starting at the first byte."""
        self._capture.follow(sink)

    def follow_errors(self, sink: Callable[[bytes], None]) -> bool:
        """Call `sink` with stderr; return False if stderr is part of the output."""
        if self._capture.errors is None:
            return False
        self._capture.errors.follow(sink)
        return True

    async def write_input(self, data: bytes, *, close: bool = False) -> None:
        """Write to stdin; `close` sends EOF.

        If the caller is cancelled, unread data stays queued: see `unread_input`. Raises `OSError` with EPIPE if stdin
        is closed or absent, and with EAGAIN if earlier data is still unread.
        """
        if not self._child.input_open:
            raise BrokenPipeError(errno.EPIPE, "its standard input is closed")
        if unread := self.unread_input():
            raise BlockingIOError(errno.EAGAIN, f"{unread:,} bytes from before are still unread")
        self._child.write(data, report_unread=True)
        if close:
            self._child.close_input()
        await self._child.writable.wait()

    def unread_input(self) -> int:
        """Return the number of bytes in our buffer that the command hasn't read."""
        return self._child.unread_input

    def survivors(self) -> Sequence[int]:
        """List its running descendants; reads the process list."""
        return sorted(process.pid for process in self._child.descendants() if not is_bubblewrap_helper(process.pid))

    async def final_cwd(self) -> str | None:
        """Return the shell's working directory at exit, or None if unknown."""
        if self._final_cwd is None and not self._closed:
            self._final_cwd = await to_thread.run_sync(read_final_cwd, self._command.cwd_file)
        return self._final_cwd

    def limit_output(self, size: int, on_full: Callable[[], None]) -> None:
        """Discard output beyond `size` bytes and call `on_full` at that point."""
        self._capture.limit(size, on_full)

    async def aclose(self) -> None:
        """Terminate the process tree and close the output; safe to call twice."""

        def clean_up() -> None:
            if self._receipt is not None:
                remove_receipt(self._receipt)
            self._command.clean_up()
            for capture in self._captures:
                with suppress(OSError):
                    capture.settle()

        try:
            await self.stop()
        finally:
            if not self._closed:
                self._closed = True
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(clean_up)
                for capture in self._captures:
                    capture.close()


class LocalShell:
    """Runs local commands with bash or sh.

    Args:
        cwd: The workspace, where commands start.
        sandbox: Restrictions on commands.
        allowed_variables: Variables to pass on even though they look like secrets.
        variables: Set for every command.
        has_reaper: Start a second process that terminates the commands if this one gets killed.
    """

    def __init__(
        self,
        cwd: str,
        *,
        sandbox: Sandbox | None = None,
        allowed_variables: Iterable[str] = (),
        has_reaper: bool = False,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._cwd = cwd
        self._has_reaper = has_reaper
        self._reaper: Reaper | None = None
        self._is_used = False
        self._sandbox, self._allowed = sandbox or Sandbox(), frozenset(allowed_variables)
        self._backend = SandboxBackend(self._sandbox, cwd, self._allowed)
        self._variables = variables or {}
        self._confined: LocalShell | None = None

    def confine(self) -> LocalShell:
        """Return a shell whose commands only run in bubblewrap, without network, and can only write temporary files.

        git starts none of the programs that the settings of a repository may name there.
        """
        if self._confined is None:
            sandbox = replace(
                self._sandbox, mode="required", network=False, read_only=True, writable=(), mechanisms=("bubblewrap",)
            )
            self._confined = LocalShell(
                self._cwd,
                sandbox=sandbox,
                allowed_variables=self._allowed,
                has_reaper=self._has_reaper,
                variables=_GIT_VARIABLES,
            )
        return self._confined

    async def exec(
        self,
        command: str,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_ms: int | None = None,
        cancel: CancelToken | None = None,
    ) -> ShellResult:
        """Run a command to completion, then terminate its descendants."""
        limit_s = (DEFAULT_TIMEOUT_MS if timeout_ms is None else timeout_ms) / 1000
        async with await self.spawn(command, cwd=cwd, env=env) as process:
            ended = Ended.CANCELLED
            with (cancel or CancelToken()).guard():
                with anyio.move_on_after(limit_s) as timer:
                    with anyio.CancelScope() as output_limit:
                        process.limit_output(OUTPUT_CAP_BYTES, output_limit.cancel)
                        await process.wait()
                    ended = Ended.OUTPUT_LIMIT if output_limit.cancelled_caught else Ended.EXITED
                if timer.cancelled_caught:
                    ended = Ended.TIMEOUT
            exit_code = await process.stop()
            output = await to_thread.run_sync(_read_ends, process)
            return ShellResult(ended=ended, exit_code=exit_code, output=output, output_bytes=process.output_size())

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
        """Start a command and return immediately; the caller must `aclose` it.

        Stdin is empty unless `with_input`. Stderr is part of the output unless you pass `errors_path`. Raises
        `SandboxMissing` if a sandbox is required, but none works on this machine, and `OSError` if the command can't be
        started.
        """

        async def discard(process: LocalProcess) -> None:
            # The caller got cancelled before it received the process.
            try:
                await process.stop(grace_ms=0)
            finally:
                await process.aclose()

        folder = os.path.join(self._cwd, cwd or "")
        _require_valid_strings(command, folder, env or {}, output_path)
        paths = [None if path is None else os.path.join(self._cwd, path) for path in (output_path, errors_path)]
        # Without a path for errors, stderr is part of the output.
        paths = paths[: 1 + (errors_path is not None)]
        self._is_used = True
        if self._has_reaper:
            if self._reaper is None:
                self._reaper = Reaper()
            await to_thread.run_sync(self._reaper.start)
        starting = _start(self._backend, command, folder, {**self._variables, **(env or {})}, paths, with_input)
        return await run_shielded(starting, "start a command", undo=discard)

    async def sandbox_state(self) -> SandboxState:
        """Return the sandbox commands run in."""
        return await to_thread.run_sync(self._backend.state)

    async def aclose(self) -> None:
        """Remove temporary files and stop the reaper; safe to call twice."""

        def close() -> None:
            self._backend.remove()
            if self._reaper is not None:
                self._reaper.close()

        if self._confined is not None:
            await self._confined.aclose()
        if self._is_used:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(close)


def _prepare(
    backend: SandboxBackend, command: str, folder: str, env: Mapping[str, str], paths: Sequence[str | None]
) -> tuple[SandboxedCommand, list[int]]:
    """Find the shell, build the sandboxed command line and open the output files. Blocks."""
    import_module("indusagi.core.process.child")  # the first command pays, in this thread
    shell = next((path for path in _SHELLS if os.access(path, os.X_OK)), _SHELLS[-1])
    wrapped = backend.wrap(shell, command, folder, env)
    descriptors: list[int] = []
    try:
        for path in paths:
            descriptors.append(open_capture(path))  # noqa: PERF401 — close them if one fails
    except BaseException:
        wrapped.clean_up()
        for descriptor in descriptors:
            os.close(descriptor)
        raise
    return wrapped, descriptors


def _discard(wrapped: SandboxedCommand, paths: Sequence[str | None]) -> None:
    """Clean up after a command that won't run."""
    wrapped.clean_up()
    for path in filter(None, paths):
        with suppress(OSError):
            os.unlink(path)


async def _start(
    backend: SandboxBackend,
    command: str,
    folder: str,
    env: Mapping[str, str],
    paths: Sequence[str | None],
    with_input: bool,
) -> LocalProcess:
    wrapped, descriptors = await to_thread.run_sync(_prepare, backend, command, folder, env, paths)
    from indusagi.core.process.child import ChildProcess  # noqa: PLC0415 — loaded by _prepare

    errors = Capture(descriptors[1], paths[1]) if len(paths) > 1 else None
    capture = Capture(descriptors[0], paths[0], errors=errors)
    try:
        child = ChildProcess(capture)
        capture.reader = child.output
        if errors is not None:
            errors.reader = child.errors
        # PR_SET_PDEATHSIG would slow the start down and miss descendants; the receipt finds all of them.
        await child.start(
            wrapped.argv,
            wrapped.env,
            folder,
            with_input=with_input,
            merge_stderr=errors is None,
            die_with_parent=False,
            confine=wrapped.confine,
        )
    except BaseException as exc:
        capture.close()
        if errors is not None:
            errors.close()
        with anyio.CancelScope(shield=True):
            await to_thread.run_sync(_discard, wrapped, paths)
        is_too_long = len(os.fsencode(wrapped.argv[-1])) > _LONGEST_ARGUMENT
        if is_too_long and isinstance(exc, OSError) and exc.errno == errno.E2BIG:
            message = "it is too long for the system: write it to a file, and run that file"
            raise OSError(errno.E2BIG, message) from exc
        raise
    receipt = None
    with suppress(OSError, ValueError):  # with a full disk, run without a receipt
        receipt = await to_thread.run_sync(write_receipt, child.mark, child.pid, command, folder)
    return LocalProcess(child, capture, wrapped, receipt)


def _require_valid_strings(command: str, folder: str, env: Mapping[str, str], output_path: str | None) -> None:
    """Reject strings execve(2) can't take. Raises `OSError` with EINVAL and a message that identifies the string."""
    texts = [
        ("a command", command),
        ("a working directory", folder),
        ("the path of an output file", output_path or ""),
        *(("the name of a variable", name) for name in env),
        *((f"the variable {name!r}", value) for name, value in env.items()),
    ]
    for name in env:
        if not name or "=" in name:
            raise OSError(errno.EINVAL, f"{name!r} cannot be the name of a variable")
    for what, text in texts:
        if "\0" in text:
            raise OSError(errno.EINVAL, f"{what} cannot hold a NUL character")
        try:
            os.fsencode(text)
        except UnicodeEncodeError as exc:
            message = f"{what} cannot hold half a surrogate pair (at character {exc.start})"
            raise OSError(errno.EINVAL, message) from exc


def _read_ends(process: LocalProcess) -> bytes:
    size = process.output_size()
    left_out = size - SHOWN_HEAD_BYTES - SHOWN_TAIL_BYTES
    if left_out <= 0:
        return process.read_output()
    head = process.read_output(0, SHOWN_HEAD_BYTES)
    tail = process.read_output(size - SHOWN_TAIL_BYTES)
    return b"%s\n[%d bytes left out]\n%s" % (head, left_out, tail)
