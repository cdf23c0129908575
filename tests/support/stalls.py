"""Pytest plugin that pauses the process of each test once, as a machine with too much to do would.

`make stalls` runs the suite with it. A test that fails then has a limit that a busy machine exceeds, or has found code
that loses a message or a cancellation when two events arrive at once. The pause holds the interpreter lock, so that no
thread of the process runs. It begins 2 ms to 2 s after the test (log-uniform, by seed and test): a run pauses most of
the tests that take a while, and each seed pauses them elsewhere.
"""

from __future__ import annotations

import ctypes
import random
import threading
from time import monotonic
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_EARLIEST_S, _LATEST_S = 0.002, 2.0
_SLICE_S = 0.9
"""The longest sleep of one system call: POSIX lets `usleep` refuse a second."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the plugin."""
    group = parser.getgroup("stalls")
    group.addoption("--stall-seconds", type=float, default=1.3, help="How long each test is paused.")
    group.addoption("--stall-seed", default="0", help="Chooses the moments of the pauses.")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Run a test with its pause; a test that has ended before is not paused."""
    choice = random.Random(f"{item.config.getoption('--stall-seed')} {item.nodeid}")
    begin_s = _EARLIEST_S * (_LATEST_S / _EARLIEST_S) ** choice.random()
    pause_s: float = item.config.getoption("--stall-seconds")  # pyright: ignore[reportAssignmentType] — untyped options
    has_ended = threading.Event()

    def pause() -> None:
        if not has_ended.wait(begin_s):
            _hold_interpreter(pause_s)

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
