"""Work that is seen to its end in a task of its own, for callers in other tasks.

Whoever enters an async context must leave it in the same task, but callers come and go. So one task
does both: it opens, holds and closes. A caller that is cancelled while it waits, once or many
times, disturbs neither that task nor the other callers, and still does not leave before the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar

from anyio import CancelScope

T = TypeVar("T")


class BackgroundTask:
    """Runs one coroutine, once, in a task of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._task: asyncio.Task[None] | None = None

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._task is not None

    def start(self, work: Coroutine[object, object, None]) -> None:
        """Start the work. It must bound its own end, and handle its own errors."""
        self._task = _task(work, self._name)

    def cancel(self) -> None:
        """Ask the work to stop where it stands."""
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> None:
        """Wait for the end, unless cancelled."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def join(self) -> None:
        """Wait for the end whatever comes; a cancellation of the caller is kept for afterwards.

        For work that was told to end: it would go on without a caller to wait for it.
        """
        if self._task is not None:
            await _end_of(self._task)


async def run_shielded(
    work: Coroutine[object, object, T], name: str, undo: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """Run short work to its end whatever comes, and give its result or its error.

    A caller that is cancelled meanwhile gets its cancellation afterwards, and `undo` gets the
    result; it must bear being cancelled.
    """
    task = _task(work, name)
    try:
        await _end_of(task)
    except asyncio.CancelledError:
        if not task.cancelled() and task.exception() is None and undo is not None:
            await undo(task.result())
        raise
    return task.result()


def _task(work: Coroutine[object, object, T], name: str) -> asyncio.Task[T]:
    # The one place where tasks are made that no task group holds: each has an owner here.
    return asyncio.create_task(work, name=name)  # noqa: TID251


async def _end_of(task: asyncio.Task[T]) -> None:
    cancelled: asyncio.CancelledError | None = None
    # A cancelled scope cancels its task anew in every round of the loop: the shield keeps that off.
    # A plain cancel of the task comes through the shield, and is kept.
    with CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as exc:
                cancelled = exc
    if cancelled is not None:
        raise cancelled
