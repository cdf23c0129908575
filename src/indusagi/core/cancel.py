"""A one-shot signal that asks work to stop.

A token is handed down with a piece of work; whoever started the work keeps it and may cancel it
once, with a reason. It can be cancelled from any thread and from a signal handler. It stops
nothing by itself: work looks at it, awaits it, hangs a callback on it, or runs inside `guard()`.
"""

from __future__ import annotations

import itertools
from contextlib import contextmanager
from threading import RLock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Generator

    from anyio import CancelScope

DEFAULT_REASON = "cancelled"


class CancelToken:
    """Ask work to stop: once, with a reason, and for every token derived from this one."""

    def __init__(self) -> None:
        self._parent: CancelToken | None = None
        # Re-entrant, because a signal handler may cancel while this thread holds the lock.
        self._lock = RLock()
        self._fired = False
        self._reason: str | None = None
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._places = itertools.count()
        self._unlink: Callable[[], None] | None = None

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called, here or on a token above."""
        return self._fired or (self._parent is not None and self._parent.cancelled)

    @property
    def reason(self) -> str | None:
        """Why, as told by whoever cancelled; None until then."""
        if self._fired or self._parent is None:
            return self._reason
        return self._parent.reason

    def child(self) -> CancelToken:
        """Derive a token that is cancelled with this one, and can be cancelled alone.

        The parent refers to the child only while somebody listens to the child, so a token that
        lives long collects nothing of the work that came and went under it.
        """
        derived = CancelToken()
        derived._parent = self
        return derived

    def cancel(self, reason: str = DEFAULT_REASON) -> bool:
        """Cancel, and tell whether this call was the one that did; later ones change nothing.

        Raises:
            ExceptionGroup: Callbacks that failed, after all of them were called.
        """
        return False if self.cancelled else self._fire(reason)

    def _fire(self, reason: str) -> bool:
        with self._lock:
            if self._fired:
                return False
            self._reason = reason
            self._fired = True
            callbacks, self._callbacks = list(self._callbacks.values()), {}
        failures: list[Exception] = []
        for callback in callbacks:
            try:
                callback()
            except Exception as exc:  # noqa: BLE001 — boundary: a listener's defect, raised below
                failures.append(exc)
        if failures:
            raise ExceptionGroup("cancel callbacks failed", failures)
        return True

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once on cancellation, at once if it has happened; return the way out.

        The callback runs in the thread that cancels, so it must be quick. What is returned takes
        the callback off again and may be called any number of times.
        """
        with self._lock:
            place = next(self._places)
            self._callbacks[place] = callback
            if self._parent is not None and self._unlink is None:
                self._unlink = self._parent.on_cancel(self._fire_with_parent)
        # Either `_fire` took the callback, or it comes too late for that and is called here.
        if self.cancelled and self._take(place):
            callback()
        return lambda: self._forget(place)

    def _fire_with_parent(self) -> None:
        if self._parent is not None:
            self._fire(self._parent.reason or DEFAULT_REASON)

    def _take(self, place: int) -> bool:
        with self._lock:
            return self._callbacks.pop(place, None) is not None

    def _forget(self, place: int) -> None:
        with self._lock:
            self._callbacks.pop(place, None)
            if self._callbacks or self._unlink is None:
                return
            unlink, self._unlink = self._unlink, None
        unlink()

    async def wait(self) -> str:
        """Wait for cancellation and return its reason."""
        from anyio import sleep_forever  # noqa: PLC0415 — whoever awaits has a loop, others pay nothing

        with self.guard():
            await sleep_forever()
        return self.reason or DEFAULT_REASON

    def __await__(self) -> Generator[object, None, str]:
        return self.wait().__await__()

    @contextmanager
    def guard(self) -> Generator[CancelScope]:
        """Run the block in a cancel scope that ends when this token is cancelled.

        `scope.cancelled_caught` tells afterwards whether the block was cut short. Cancellation
        from outside (of the task, or of a scope further out) passes through as always.
        """
        from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

        from anyio import CancelScope  # noqa: PLC0415 — see wait()

        loop = get_running_loop()
        with CancelScope() as scope:
            if self.cancelled:
                scope.cancel()
            # Through the loop, since the one who cancels may be a thread or a signal handler:
            # neither may touch the scope, nor would the loop wake up for it.
            forget = self.on_cancel(lambda: _wake(loop, scope))
            try:
                yield scope
            finally:
                forget()


def _wake(loop: AbstractEventLoop, scope: CancelScope) -> None:
    loop.call_soon_threadsafe(scope.cancel)
