"""Process-level concerns of a gateway: signals, standard error and child processes."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from asyncio import get_running_loop
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Lock
from time import monotonic

import anyio

from indusagi.core.cancel import CancelToken
from indusagi.core.process.child import GENTLE_S
from indusagi.core.process.tree import (
    MARK,
    ProcessTree,
    list_processes,
    read_proc_file,
    read_variable,
    signal_processes,
)

_CLOSING_S = GENTLE_S + 15.0
"""Longer than all graceful-shutdown deadlines together; then the process exits at once."""
_MAX_BACKLOG_BYTES = 256 * 1024
"""How much unread standard error we buffer."""
_DROPPED = b"indus: lines were dropped here: standard error was not read\n"
_FLUSH_S = 0.5
"""How long shutdown waits for the last lines to be read."""


# -- signals ----------------------------------------------------------------------------------


class SignalState:
    """The signals received so far.

    SIGINT and SIGTERM cancel `end`, with the signal's name as the reason. SIGHUP sets `reload`, which the file watcher
    then replaces with a new event.
    """

    def __init__(self) -> None:
        self.end = CancelToken()
        self.reload = anyio.Event()

    @property
    def code(self) -> int:
        """The exit code: 0 after SIGTERM (the usual way to stop a server), else 128 + n for signal n."""
        name = self.end.reason
        if name is None or name == signal.SIGTERM.name:
            return 0
        return 128 + signal.Signals[name].value


@asynccontextmanager
async def handle_signals() -> AsyncGenerator[SignalState]:
    """Handle SIGINT, SIGTERM and SIGHUP (https://man7.org/linux/man-pages/man7/signal.7.html) inside the block.

    SIGINT and SIGTERM stop the gateway, and so does a SIGHUP from a closed terminal. Any other SIGHUP reloads the
    files. A second signal kills the process and its descendants. Main thread only.
    """
    loop, state = get_running_loop(), SignalState()
    had_terminal = has_terminal()

    def stop(number: signal.Signals) -> None:
        if state.end.cancelled:
            _exit_now(128 + number.value)
        loop.call_later(_CLOSING_S, _exit_now, 128 + number.value)
        state.end.cancel(number.name)

    def hang_up() -> None:
        if had_terminal and not has_terminal():
            stop(signal.SIGHUP)
        else:
            state.reload.set()

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop, number)
    try:
        yield state
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)


def has_terminal() -> bool:
    """Return whether this process has a controlling terminal (else opening `/dev/tty` fails: tty(4))."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _exit_now(code: int) -> None:
    kill_descendants()
    if isinstance(sys.stderr, NonBlockingStderr):
        sys.stderr.drain(0.1)
    os._exit(code)


def kill_descendants() -> None:
    """Kill the process trees of all our children. Blocks, and needs `/proc`.

    Package managers get SIGTERM instead: killing one while it unpacks would leave a broken cache.
    """
    from indusagi.interop.protocol_bridge.client.start import find_package_manager  # noqa: PLC0415 — for a second signal

    with suppress(OSError):
        for child in [process for process in list_processes() if process.parent == os.getpid()]:
            argv = [os.fsdecode(word) for word in (read_proc_file(child.pid, "cmdline") or b"").split(b"\0")[:-1]]
            downloads = argv and find_package_manager(argv[0], argv[1:])
            # Everything a child starts inherits the last mark in its environment. No environment contains NUL.
            mark = read_variable(child.pid, MARK).rpartition(" ")[2] or "\0"
            signal_processes(ProcessTree(mark).list_running(child.pid), signal.SIGTERM if downloads else signal.SIGKILL)


# -- standard error ---------------------------------------------------------------------------


class NonBlockingStderr(io.TextIOBase):
    """A text stream that never blocks on the reader of `descriptor`.

    It writes while the descriptor polls as writable, at most PIPE_BUF bytes at a time, which a writable pipe takes
    without blocking (https://man7.org/linux/man-pages/man7/pipe.7.html). The rest goes to a bounded buffer until the
    next write. When that overflows, we drop output and say so in a line.
    """

    def __init__(self, descriptor: int, encoding: str) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._lock = Lock()
        self._backlog = bytearray()

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        """Write as much of `text` as the pipe takes, and buffer the rest."""
        data = text.encode(self._encoding, "backslashreplace")
        with self._lock:
            if not self._backlog.endswith(_DROPPED):  # once it ends like that, drop everything until it's written
                self._backlog += data if len(self._backlog) + len(data) <= _MAX_BACKLOG_BYTES else _DROPPED
            self._send(0)
        return len(text)

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written; return False on timeout."""
        with self._lock:
            return self._send(seconds)

    def _send(self, seconds: float) -> bool:
        end = monotonic() + seconds
        while self._backlog:
            if not select.select([], [self._descriptor], [], max(0.0, end - monotonic()))[1]:
                return False
            try:
                del self._backlog[: os.write(self._descriptor, self._backlog[: select.PIPE_BUF])]
            except BlockingIOError:  # O_NONBLOCK, and another writer was faster
                return False
            except OSError:  # the reader closed its end
                self._backlog.clear()
        return True


@contextmanager
def non_blocking_stderr() -> Generator[None]:
    """Replace `sys.stderr` with one that never blocks. If lines remain unread, it stays after the block."""
    usual = sys.stderr
    if not isinstance(usual, io.TextIOWrapper):
        yield  # closed from the start, or captured by a test
        return
    usual.flush()
    stream = NonBlockingStderr(usual.fileno(), usual.encoding)
    sys.stderr = stream
    try:
        yield
    finally:
        if stream.drain(_FLUSH_S):
            sys.stderr = usual
