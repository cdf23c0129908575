"""The signals of a gateway while it has no event loop: before it serves, and after.

Whoever starts a gateway may end it, or have it read its files anew, from the first moment on. It
has not opened anything by then, and can go at once.
"""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from indusagi.core.cancel import CancelToken
from indusagi.core.process.child import GENTLE_S
from induscode.commands.serve.recursion import kill_all_below
from induscode.commands.serve.stderr import flush_stderr

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import FrameType


_TERMINAL = "/dev/tty"
_hung_up: list[int] = []
"""Signals to read files anew that nobody has acted upon."""


def install_early_handlers() -> None:
    """Take SIGTERM and SIGINT as an end, and remember a SIGHUP. Only for the main thread."""
    had_terminal = has_terminal()

    def again(number: int, _: FrameType | None) -> None:
        if had_terminal and not has_terminal():
            os._exit(128 + number)
        _hung_up.append(number)

    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGHUP, again)


def take_pending_reload() -> bool:
    """Tell whether there was a SIGHUP that nobody has asked about."""
    there = bool(_hung_up)
    _hung_up.clear()
    return there


def has_terminal() -> bool:
    """Tell whether this process belongs to a terminal that is there."""
    try:
        os.close(os.open(_TERMINAL, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC))
    except OSError:
        return False
    return True


def _end(number: int, _: FrameType | None) -> None:
    # To be told to stop is how a server ends well.
    os._exit(0 if number == signal.SIGTERM else 128 + number)


_CLOSING_S = GENTLE_S + 15.0
"""Far beyond all the deadlines of a graceful end: then the program ends all the same."""
_LAST_WORDS_S = 0.1


@dataclass(slots=True)
class SignalState:
    """What the signals have said."""

    end: CancelToken = field(default_factory=CancelToken)
    """Its reason is the name of the signal."""
    again: anyio.Event = field(default_factory=anyio.Event)
    """Set when the files are to be read anew; whoever does that puts another in its place."""

    @property
    def code(self) -> int:
        """The exit code: to be told to stop is how a server ends well."""
        name = self.end.reason
        if name is None or name == signal.SIGTERM.name:
            return 0
        return 128 + signal.Signals[name].value


@asynccontextmanager
async def serving_signals() -> AsyncGenerator[SignalState]:
    """Hear SIGINT and SIGTERM as an end, and SIGHUP as a wish to read the files anew.

    A SIGHUP because the terminal is gone is an end as well. A second signal ends the process at
    once, and all that it has started. Only for the main thread.
    """
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

    loop, told = get_running_loop(), SignalState()
    had_terminal = has_terminal()

    def ended(number: signal.Signals) -> None:
        if told.end.cancelled:
            _end_at_once(128 + number.value)
        loop.call_later(_CLOSING_S, _end_at_once, 128 + number.value)
        told.end.cancel(number.name)

    def hung_up() -> None:
        if had_terminal and not has_terminal():
            ended(signal.SIGHUP)
        else:
            told.again.set()

    loop.add_signal_handler(signal.SIGHUP, hung_up)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended, number)
    if take_pending_reload():
        told.again.set()
    try:
        yield told
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        install_early_handlers()


def _end_at_once(code: int) -> None:
    """End this process and all it has started; the kernel ends only what it has started itself."""
    kill_all_below()
    flush_stderr(_LAST_WORDS_S)
    os._exit(code)
