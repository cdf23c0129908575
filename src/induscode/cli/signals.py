"""Run a command's work in an event loop until it ends or a signal arrives."""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken


T = TypeVar("T")


def signal_code(name: str) -> int:
    """Return the exit code for a cancel token's reason: 128 + n for signal n, else 1."""
    return 128 + signal.Signals[name].value if name in signal.Signals.__members__ else 1


def run_until_signal(work: Callable[[CancelToken], Awaitable[int]]) -> int:
    """Run `work` until it ends or a signal cancels it; return the exit code."""

    async def work_until_signal(token: CancelToken) -> int:
        with token.guard():
            return await work(token)
        return 0

    return run_with_signals(work_until_signal)


def run_async(command: Callable[..., Awaitable[int]]) -> Callable[..., int]:
    """Make a command of an async function, which a signal cancels."""

    @wraps(command)
    def run(*args: Any, **options: Any) -> int:
        return run_until_signal(lambda _: command(*args, **options))

    return run


def run_for_result(work: Callable[[CancelToken], Awaitable[T]]) -> T:
    """Run `work` and return its result; if a signal interrupts it, raise click's `Exit` with the signal's code."""
    results: list[T] = []

    async def collect(token: CancelToken) -> int:
        results.append(await work(token))
        return 0

    if code := run_until_signal(collect):
        raise click.exceptions.Exit(code)
    return results[0]


def run_with_signals(work: Callable[[CancelToken], Awaitable[int]]) -> int:
    """Run `work`, which has to watch the token for signals itself; return the exit code."""
    import anyio  # noqa: PLC0415 — for commands with an event loop

    from indusagi.core.cancel import ending_signals  # noqa: PLC0415 — for commands with an event loop

    async def run() -> int:
        async with ending_signals() as token:
            code = await work(token)
        return code if token.reason is None else signal_code(token.reason)

    return anyio.run(run)
