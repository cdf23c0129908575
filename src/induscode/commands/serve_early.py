"""The signals of a gateway while it has no event loop: before it serves, and after.

Whoever starts a gateway may end it, or have it read its files anew, from the first moment on. It
has not opened anything by then, and can go at once.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_TERMINAL = "/dev/tty"
_hung_up: list[int] = []
"""Signals to read files anew that nobody has acted upon."""


def hear_early() -> None:
    """Take SIGTERM and SIGINT as an end, and remember a SIGHUP. Only for the main thread."""
    had_terminal = has_terminal()

    def again(number: int, _: FrameType | None) -> None:
        if had_terminal and not has_terminal():
            os._exit(128 + number)
        _hung_up.append(number)

    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, _end)
    signal.signal(signal.SIGHUP, again)


def was_hung_up() -> bool:
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
