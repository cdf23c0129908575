"""Run a command's work in an event loop until it ends or a signal arrives."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from indusagi.core.cancel import CancelToken


def signal_code(name: str) -> int:
    """Return the exit code for the name of a signal, which is the reason in a cancel token."""
    return 128 + signal.Signals[name].value if name in signal.Signals.__members__ else 1


def run_until_signal(work: Callable[[CancelToken], Awaitable[int]]) -> int:
    """Run `work` to its end, or until a signal cancels it; return the exit code."""

    async def work_until_signal(token: CancelToken) -> int:
        with token.guard():
            return await work(token)
        return 0

    return run_with_signals(work_until_signal)


def run_with_signals(work: Callable[[CancelToken], Awaitable[int]]) -> int:
    """Run `work`, which gets the signal by the token and ends by itself; return the exit code."""
    import anyio  # noqa: PLC0415 — for commands with an event loop

    return anyio.run(_run, work)


async def _run(work: Callable[[CancelToken], Awaitable[int]]) -> int:
    from indusagi.core.cancel import ending_signals  # noqa: PLC0415 — for commands with servers

    async with ending_signals() as token:
        code = await work(token)
    if token.reason is None:
        return code
    return signal_code(token.reason)
