"""A one-shot signal that asks work to stop.

A token is handed down with a piece of work; whoever started the work keeps it and may cancel it
once, with a reason. It can be cancelled from any thread and from a signal handler. It stops
nothing by itself: work looks at it, awaits it, hangs a callback on it, or runs inside `guard()`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import cache
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # neither is in a public signature, and both are dear to load
    from asyncio import AbstractEventLoop

    from anyio import CancelScope

DEFAULT_REASON = "cancelled"


class CancelToken:
    """Ask work to stop: once, with a reason, and for every token derived from this one."""

    def __init__(self, *, _above: _Node | None = None) -> None:
        self._node = _Node(_above)

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called, here or on a token above."""
        return self._node.cause() is not None

    @property
    def reason(self) -> str | None:
        """Why, as told by whoever cancelled; None until then."""
        # Without the lock this token could be cancelled after the look at it, and the one above
        # before the look at that: the answer would be the later reason.
        with self._node.lock:
            return self._node.cause()

    def child(self) -> CancelToken:
        """Derive a token that is cancelled with this one, and can be cancelled alone.

        The parent refers to the child only while somebody listens to the child, so a token that
        lives long collects nothing of the work that came and went under it.
        """
        return CancelToken(_above=self._node)

    def cancel(self, reason: str = DEFAULT_REASON) -> bool:
        """Cancel, and tell whether this call was the one that did; later ones change nothing.

        Raises:
            BaseExceptionGroup: What callbacks raised, be it one and be it `SystemExit`, after all
                of them were called.
        """
        with self._node.lock:
            if self.cancelled or not self._node.claim(reason):
                return False
            callbacks = self._node.take_all(reason)
            self._node.unlink()
        _call(callbacks)
        return True

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once on cancellation, at once if it has happened; return the way out.

        The callback runs in the thread that cancels, so it must be quick; other threads can use
        the token meanwhile. What is returned takes the callback off again and may be called any
        number of times.

        Raises:
            BaseExceptionGroup: What the callback raised when it was called at once.
        """
        place = object()

        def forget() -> None:
            self._node.take(place)

        # Either `cancel` took the callback, or it comes too late for that and is called here.
        if self._node.hear(place, callback) and self._node.take(place):
            _call([callback])
        return forget

    async def wait(self) -> str:
        """Wait for cancellation and return its reason."""
        from anyio import sleep_forever  # noqa: PLC0415 — whoever awaits has a loop, others pay nothing

        with self.guard():
            await sleep_forever()
        return self.reason or DEFAULT_REASON

    def __await__(self) -> Generator[object, None, str]:
        return self.wait().__await__()

    def guard(self) -> CancelGuard:
        """Run a block in a cancel scope that ends when this token is cancelled.

        `scope.cancelled_caught` tells afterwards whether the block was cut short. Cancellation
        from outside (of the task, or of a scope further out) passes through as always.
        """
        return CancelGuard(self._node)


class CancelGuard:
    """The block that `CancelToken.guard` makes; entered once."""

    __slots__ = ("_loop", "_node", "_scope")

    def __init__(self, node: _Node) -> None:
        self._node = node

    def __enter__(self) -> CancelScope:
        get_running_loop, kind = _scopes()
        self._loop = get_running_loop()
        self._scope = scope = kind()
        scope.__enter__()
        if self._node.hear(self, self._wake):
            scope.cancel()
        return scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._node.take(self)
        return self._scope.__exit__(kind, error, trace)

    def _wake(self) -> None:
        # Through the loop, since the one who cancels may be a thread or a signal handler:
        # neither may touch the scope, nor would the loop wake up for it.
        try:
            self._loop.call_soon_threadsafe(self._scope.cancel)
        except RuntimeError:
            # Closed since the callback was taken: the guard was left, and nobody is to be woken.
            pass


@cache
def _scopes() -> tuple[Callable[[], AbstractEventLoop], type[CancelScope]]:
    """Give what tells the running loop, and the class of the scopes that work in it."""
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

    from anyio import CancelScope  # noqa: PLC0415 — see wait()

    get_running_loop()
    # anyio finds out at every call which class of scope fits the loop: as dear as the scope itself.
    return get_running_loop, type(CancelScope())


class _Node:
    """A token's place among those it was derived from. The chain may be long: no recursion.

    Whatever changes a node happens under the lock; only callbacks never do.
    """

    def __init__(self, above: _Node | None) -> None:
        self.above = above
        # One for a token and all that are derived from it, so that who was first is never in
        # doubt. Re-entrant, because a signal handler may cancel while this thread holds it.
        self.lock = RLock() if above is None else above.lock
        self.reason: str | None = None
        # Callbacks, and the nodes below that somebody listens to, in the order they came.
        self.listeners: dict[object, Callable[[], None] | _Node] = {}

    def cause(self) -> str | None:
        """Give the reason that holds here, this node's own before one from above."""
        node: _Node | None = self
        while node is not None:
            if node.reason is not None:
                return node.reason
            node = node.above
        return None

    def claim(self, reason: str) -> bool:
        """Set the reason unless there is one."""
        # A signal handler runs where a function is called: between look and write none is.
        if self.reason is not None:
            return False
        self.reason = reason
        return True

    def take_all(self, reason: str) -> list[Callable[[], None]]:
        """Take the callbacks of this node and of those below, which get the reason on the way."""
        callbacks: list[Callable[[], None]] = []
        waiting = self.take_listeners()
        while waiting:
            listener = waiting.pop()
            if not isinstance(listener, _Node):
                callbacks.append(listener)
            elif listener.claim(reason):
                waiting.extend(listener.take_listeners())
        return callbacks

    def take_listeners(self) -> list[Callable[[], None] | _Node]:
        """Take the listeners of this node, the first one last."""
        taken, self.listeners = self.listeners, {}
        return list(reversed(taken.values()))

    def hear(self, place: object, callback: Callable[[], None]) -> bool:
        """Hang a callback on, and tell whether this node is cancelled by now."""
        with self.lock:
            self.listeners[place] = callback
            if self.above is not None:
                self.link()
        return self.cause() is not None

    def link(self) -> None:
        """Let every node above know of the one below it; a second time changes nothing."""
        node = self
        while (above := node.above) is not None:
            above.listeners.setdefault(node, node)
            node = above

    def unlink(self) -> None:
        """Let go of every node on the way up that nobody listens to any more."""
        node = self
        while not node.listeners and (above := node.above) is not None:
            above.listeners.pop(node, None)
            node = above

    def take(self, place: object) -> bool:
        """Take one callback off, and tell whether it was still there."""
        with self.lock:
            taken = self.listeners.pop(place, None) is not None
            self.unlink()
        return taken


def _call(callbacks: Iterable[Callable[[], None]]) -> None:
    """Call all of them, then raise what some of them raised."""
    failures: list[BaseException] = []
    for callback in callbacks:
        try:
            callback()
        except BaseException as exc:  # noqa: BLE001 — boundary: the others are called first
            failures.append(exc)
    if failures:
        raise BaseExceptionGroup("cancel callbacks failed", failures)
