"""Pytest plugin that pauses the process of each test once, as a machine with too much to do would.

`make stalls` runs the suite with it. A test that fails then has a limit that a busy machine exceeds, or has found code
that loses a message or a cancellation when two events arrive at once. The pause holds the interpreter lock, so that no
thread of the process runs. With `--stall-children` all processes that the test has started are stopped meanwhile, as
when the whole machine stands still. The pause begins 2 ms to 2 s after the test (log-uniform, by seed and test): a run
pauses most of the tests that take a while, and each seed pauses them elsewhere.
"""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pytest
from tests.support.forked import list_alive

if TYPE_CHECKING:
    from collections.abc import Generator

_EARLIEST_S, _LATEST_S = 0.002, 2.0
_kill = os.kill  # a test may replace it
_SLICE_S = 0.9
"""The longest sleep of one system call: POSIX lets `usleep` refuse a second."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("stalls")
    group.addoption("--stall-seconds", type=float, default=1.3, help="How long each test is paused.")
    group.addoption("--stall-children", action="store_true", help="Pause what the test has started too (Linux).")
    group.addoption("--stall-seed", default="0", help="Chooses the moments of the pauses.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test with its pause; a test that has ended before is not paused."""
    choice = random.Random(f"{item.config.getoption('--stall-seed')} {item.nodeid}")
    begin_s = _EARLIEST_S * (_LATEST_S / _EARLIEST_S) ** choice.random()
    stops_children = bool(item.config.getoption("--stall-children"))
    pause_s: float = item.config.getoption("--stall-seconds")  # pyright: ignore[reportAssignmentType] — untyped options
    has_ended = threading.Event()

    def pause() -> None:
        if has_ended.wait(begin_s):
            return
        children = list_descendants(os.getpid(), *list_alive()) if stops_children else []
        # What starts others stops before them, and goes on after them: if it ended in between, the kernel would end
        # those that are stopped, with SIGHUP, once their group has no parent in the session (setpgid(2)).
        _signal_all(children, signal.SIGSTOP)
        _hold_interpreter(pause_s)
        _signal_all(children[::-1], signal.SIGCONT)

    thread = threading.Thread(target=pause, name="stall", daemon=True)
    thread.start()
    try:
        return (yield)
    finally:
        has_ended.set()
        thread.join()


def _hold_interpreter(seconds: float) -> None:
    """Sleep without releasing the interpreter lock, which `ctypes.PyDLL` keeps during a call."""
    library = ctypes.PyDLL(None)
    end = monotonic() + seconds
    while (left := end - monotonic()) > 0:
        library.usleep(int(min(left, _SLICE_S) * 1_000_000))


def list_descendants(pid: int, *forked: int) -> list[int]:
    """List the processes that a process has started, and all that these have started, from `/proc`.

    Those of `forked` count too: another process has forked them for it (`tests.support.forked`). Each process comes
    after the one that has started it.
    """
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # The name, in parentheses, may hold spaces; the parent is the second field after it (proc(5)).
            parent = int(entry.read_text("utf-8", "replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    found = [*forked]
    waiting = [pid, *forked]
    while waiting:
        own = children.get(waiting.pop(), [])
        found += own
        waiting += own
    return found


def _signal_all(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            _kill(process, number)
