"""Calls of an addon's code: each has a deadline, and what it raises is an `AddonError`.

A coroutine function runs in the event loop and is cancelled at its deadline. A plain function may block, so it runs in
a daemon thread, which is abandoned at its deadline and ends with the process.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from contextvars import copy_context
from typing import TYPE_CHECKING, cast

import anyio

from indusagi.core.faults import CoreError, describe_error
from indusagi.core.text import clean_text, cut_text
from induscode.addons.contract import AddonError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

_LONGEST_REASON = 500


async def call_hook(function: Callable[..., object], *arguments: object, deadline_s: float) -> object:
    """Call a function of an addon, and await what it returns if it is awaitable.

    Raises:
        AddonError: It raised, or was not done at the deadline.
    """
    try:
        with anyio.move_on_after(deadline_s):
            if inspect.iscoroutinefunction(function):
                return await function(*arguments)
            value = await _call_in_thread(function, arguments)
            return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value
    except asyncio.CancelledError as exc:
        task = asyncio.current_task()
        if task is None or task.cancelling():  # of this task; otherwise the addon's own
            raise
        raise AddonError("it was cancelled by itself") from exc
    except (Exception, SystemExit) as exc:  # boundary: the addon's own code
        raise AddonError(describe_failure(exc)) from exc
    raise AddonError(f"it was not done within {deadline_s:g} s")


def describe_failure(exc: BaseException) -> str:
    """Describe what an addon's code raised, in one printable line."""
    text = describe_error(exc)
    if not isinstance(exc, CoreError) and not text.startswith(type(exc).__name__):
        text = f"{type(exc).__name__}: {text}"
    return cut_text(" ".join(clean_text(text)[0].split()), _LONGEST_REASON)


async def _call_in_thread(function: Callable[..., object], arguments: tuple[object, ...]) -> object:
    # Not a worker of anyio: the interpreter would wait for an abandoned one before it exits.
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def deliver(value: object, failure: BaseException | None) -> None:
        if not done.done():
            done.set_result((value, failure))

    def work() -> None:
        value: object = None
        failure: BaseException | None = None
        try:
            value = context.run(function, *arguments)
        except BaseException as exc:  # noqa: BLE001 — boundary: raised again in the waiting task
            failure = exc
        try:
            loop.call_soon_threadsafe(deliver, value, failure)
        except RuntimeError:
            pass  # the loop was closed: the wait ended at its deadline

    context = copy_context()
    threading.Thread(target=work, name="hook of an addon", daemon=True).start()
    value, failure = await done
    if failure is not None:
        raise failure
    return value
