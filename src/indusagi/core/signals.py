"""Termination signals as a cancel token.

By default SIGTERM and SIGHUP end the process at once (signal(7)) and leave its child processes behind. Inside
`ending_signals` they cancel a token instead, and the program ends in its usual way.
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
    """Yield a token that the first such signal cancels, with the name of the signal as reason.

    Only for the main thread. A second SIGINT raises KeyboardInterrupt as usual.
    """
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

    loop, token = get_running_loop(), CancelToken()

    def restore() -> None:
        for number in ENDING:
            loop.remove_signal_handler(number)

    def cancel(number: signal.Signals) -> None:
        restore()
        token.cancel(number.name)

    for number in ENDING:
        loop.add_signal_handler(number, cancel, number)
    try:
        yield token
    finally:
        restore()
