"""Being told to end: the signals that ask a program to stop, as a cancel token.

By itself a program dies of SIGTERM or SIGHUP on the spot, and what it started stays behind. Inside
this block it is told instead, and can leave as it always does.
"""

from __future__ import annotations

import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from indusagi.core.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@asynccontextmanager
async def ending_signals() -> AsyncGenerator[CancelToken]:
    """Give a token that the first such signal cancels; its reason is the signal's name.

    Only for the main thread. A second SIGINT is the usual KeyboardInterrupt again.
    """
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

    loop, token = get_running_loop(), CancelToken()

    def told(number: signal.Signals) -> None:
        for other in ENDING:
            loop.remove_signal_handler(other)
        token.cancel(number.name)

    for number in ENDING:
        loop.add_signal_handler(number, told, number)
    try:
        yield token
    finally:
        for number in ENDING:
            loop.remove_signal_handler(number)
