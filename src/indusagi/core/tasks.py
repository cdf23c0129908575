"""Background tasks: a coroutine in a task of its own, whose waiters may be cancelled without cancelling it.

An async context must be left in the task that entered it, but callers come and go; so one task opens, holds and closes
a resource. A cancelled caller disturbs neither that task nor other callers, and still returns only after the end.
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
        self._task: asyncio.Task[object] | None = None

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._task is not None

    def start(self, work: Coroutine[object, object, object]) -> None:
        """Start the coroutine, which must end by itself and handle its own errors."""
        self._task = asyncio.create_task(work, name=self._name)  # noqa: TID251 — owned by this object

    def cancel(self) -> None:
        """Cancel the task."""
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> None:
        """Wait for the end, unless cancelled."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def join(self) -> None:
        """Wait for the end in any case; a cancellation of the caller is raised afterwards.

        For a task that was asked to end: otherwise it would go on without an owner.
        """
        if self._task is not None:
            await _join(self._task)


async def run_shielded(
    work: Coroutine[object, object, T], name: str, undo: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """Run short work to its end in any case, and return its result or raise its error.

    If the caller is cancelled meanwhile, `undo` gets the result and the cancellation is raised afterwards.
    """
    task = asyncio.create_task(work, name=name)  # noqa: TID251 — joined below
    try:
        await _join(task)
    except asyncio.CancelledError:
        if not task.cancelled() and task.exception() is None and undo is not None:
            await undo(task.result())
        raise
    return task.result()


async def _join(task: asyncio.Task[T]) -> None:
    cancelled: asyncio.CancelledError | None = None
    # A cancelled anyio scope cancels its task again in every iteration of the loop; the shield keeps that off. A plain
    # `Task.cancel` passes the shield and is kept.
    with CancelScope(shield=True):
        while not task.done():
            try:
                await asyncio.wait({task})
            except asyncio.CancelledError as exc:
                cancelled = exc
    if cancelled is not None:
        raise cancelled
