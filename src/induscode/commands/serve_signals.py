"""The signals of a program that serves: two end it, by one it reads its files anew."""

from __future__ import annotations

import os
import signal
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

from indusagi.core.cancel import CancelToken
from indusagi.core.child import GENTLE_S
from induscode.commands.serve_early import has_terminal, hear_early, was_hung_up
from induscode.commands.serve_errors import last_words
from induscode.commands.serve_kin import kill_all_below

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

_CLOSING_S = GENTLE_S + 15.0
"""Far beyond all the deadlines of a graceful end: then the program ends all the same."""
_LAST_WORDS_S = 0.1


@dataclass(slots=True)
class Told:
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
async def serving_signals() -> AsyncGenerator[Told]:
    """Hear SIGINT and SIGTERM as an end, and SIGHUP as a wish to read the files anew.

    A SIGHUP because the terminal is gone is an end as well. A second signal ends the process at
    once, and all that it has started. Only for the main thread.
    """
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

    loop, told = get_running_loop(), Told()
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
    if was_hung_up():
        told.again.set()
    try:
        yield told
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.remove_signal_handler(number)
        hear_early()


def _end_at_once(code: int) -> None:
    """End this process and all it has started; the kernel ends only what it has started itself."""
    kill_all_below()
    last_words(_LAST_WORDS_S)
    os._exit(code)
