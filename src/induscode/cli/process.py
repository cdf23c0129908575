"""The process of a gateway: its signals, its standard error, and the processes below it."""

from __future__ import annotations

import io
import os
import select
import signal
import sys
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

import anyio

from indusagi.core.cancel import CancelToken
from indusagi.core.process.child import GENTLE_S
from indusagi.core.process.procfs import list_processes, read_proc_file, read_variable
from indusagi.core.process.tree import MARK, ProcessTree, signal_processes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

_CLOSING_S = GENTLE_S + 15.0
"""Longer than all deadlines of a graceful end together; after it the process ends at once."""
_LARGEST_BACKLOG = 256 * 1024
"""Bytes of standard error that wait for their reader."""
_DROPPED = b"indus: lines were dropped here: standard error was not read\n"
_FLUSH_S = 0.5
"""How long the end of a gateway waits for the last lines to be read."""


# -- signals ----------------------------------------------------------------------------------


class SignalState:
    """The signals received so far.

    `end` is cancelled by SIGINT and SIGTERM, with the name of the signal as its reason. `reload` is set by SIGHUP;
    the reader of the files replaces it by a new event.
    """

    def __init__(self) -> None:
        self.end = CancelToken()
        self.reload = anyio.Event()

    @property
    def code(self) -> int:
        """The exit code: 0 after SIGTERM, the usual way to stop a server; 128 + n after signal n."""
        name = self.end.reason
        if name is None or name == signal.SIGTERM.name:
            return 0
        return 128 + signal.Signals[name].value


@asynccontextmanager
async def handle_signals() -> AsyncGenerator[SignalState]:
    """Handle SIGINT, SIGTERM and SIGHUP (https://man7.org/linux/man-pages/man7/signal.7.html) inside the block.

    SIGINT and SIGTERM stop the gateway, SIGHUP reloads its files. A SIGHUP sent because the terminal was closed stops
    it too. A second signal kills the process with its descendants. Only for the main thread.
    """
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

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
    """Return whether this process has a controlling terminal (tty(4): opening `/dev/tty` fails without one)."""
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
    """Kill the process tree of every child of this process. It blocks, and needs `/proc`.

    A package manager gets SIGTERM instead: killed while it unpacks, it would leave a broken cache behind.
    """
    from indusagi.interop.protocol_bridge.client.start.causes import find_package_manager  # noqa: PLC0415 — for a second signal

    with suppress(OSError):
        for child in [process for process in list_processes() if process.parent == os.getpid()]:
            argv = [os.fsdecode(word) for word in (read_proc_file(child.pid, "cmdline") or b"").split(b"\0")[:-1]]
            downloads = argv and find_package_manager(argv[0], argv[1:])
            # The last mark in the environment of a child is carried by everything it started; NUL is in none.
            mark = read_variable(child.pid, MARK).rpartition(" ")[2] or "\0"
            signal_processes(ProcessTree(mark).list_running(child.pid), signal.SIGTERM if downloads else signal.SIGKILL)


# -- standard error ---------------------------------------------------------------------------


class NonBlockingStderr(io.TextIOBase):
    """A text stream that never waits for the reader of `descriptor`.

    It writes while the descriptor polls as writable, at most PIPE_BUF bytes at a time, which a writable pipe takes
    without blocking (https://man7.org/linux/man-pages/man7/pipe.7.html). The rest waits in a bounded buffer for the
    next write; what exceeds the buffer is dropped, and a line says so.
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
        """Write `text` as far as the reader has room for it; keep the rest."""
        data = text.encode(self._encoding, "backslashreplace")
        with self._lock:
            if not self._backlog.endswith(_DROPPED):  # after that line everything is dropped until it is written
                self._backlog += data if len(self._backlog) + len(data) <= _LARGEST_BACKLOG else _DROPPED
            self._send(0)
        return len(text)

    def drain(self, seconds: float) -> bool:
        """Wait until everything is written; False if the reader does not read it in time."""
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
            except OSError:  # the reader has closed its end
                self._backlog.clear()
        return True


@contextmanager
def non_blocking_stderr() -> Generator[None]:
    """Replace `sys.stderr` by one that never blocks; after the block too, as long as lines are unread."""
    usual = sys.stderr
    if not isinstance(usual, io.TextIOWrapper):
        yield  # closed from the start, or a test that collects it
        return
    usual.flush()
    stream = NonBlockingStderr(usual.fileno(), usual.encoding)
    sys.stderr = stream
    try:
        yield
    finally:
        if stream.drain(_FLUSH_S):
            sys.stderr = usual
