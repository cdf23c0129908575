"""Cancel token: a one-shot request to stop, with a reason.

A token is passed down with a piece of work. Its owner may cancel it once, from any thread or a signal handler. The
token stops nothing by itself: the work checks `cancelled`, awaits the token, registers a callback, or runs inside
`guard()`. A token made from others is cancelled with any of them.

By default SIGTERM and SIGHUP end the process at once (signal(7)) and orphan its child processes. Inside
`ending_signals` they cancel a token instead, and the program ends normally.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, suppress
from functools import cache
from threading import RLock
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # absent from public signatures, and slow to import
    from asyncio import AbstractEventLoop

    from anyio import CancelScope

DEFAULT_REASON = "cancelled"
_LOCK = RLock()
"""Guards every token. Re-entrant, because a signal handler may cancel while its thread holds the lock. Callbacks never
run under it."""


class CancelToken:
    """A one-shot request to stop, for this token and every token derived from it.

    Its `parents` cancel it too; the first reason wins. They only refer to this token while it has listeners, so a
    long-lived token doesn't accumulate finished work.
    """

    __slots__ = ("__weakref__", "_listeners", "_parents", "_reason")

    def __init__(self, *parents: CancelToken) -> None:
        self._parents = parents
        self._reason: str | None = None
        # Callbacks and listening child tokens, in order of registration.
        self._listeners: dict[object, Callable[[], None] | CancelToken] = {}

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called on this token or one above."""
        if self._reason is None:
            for parent in self._parents:
                if parent._reason is not None or parent._parents:
                    return self.reason is not None
        return self._reason is not None

    @property
    def reason(self) -> str | None:
        """The reason passed to `cancel`; None before that."""
        if self._reason is None and self._parents:
            with _LOCK:
                # A loop, since a chain of tokens may be longer than the stack is deep.
                pending = [*reversed(self._parents)]
                while pending:
                    token = pending.pop()
                    if token._reason is not None:
                        # Remember it, in case another parent is cancelled later.
                        self._reason = token._reason
                        break
                    pending.extend(reversed(token._parents))
        return self._reason

    def child(self) -> CancelToken:
        """Derive a token that's cancelled with this one, but can be cancelled alone."""
        return CancelToken(self)

    def cancel(self, reason: str = DEFAULT_REASON) -> bool:
        """Cancel, and return whether this call did it: later calls change nothing.

        Errors of callbacks, even `SystemExit`, are raised as a `BaseExceptionGroup` after all of them ran.
        """
        with _LOCK:
            # Check twice: a signal handler may run inside `reason`. CPython runs none between the second check and the
            # assignment.
            if self.reason is not None or self._reason is not None:
                return False
            self._reason = reason
            callbacks: list[Callable[[], None]] = []
            cancelled: list[CancelToken] = [self]
            pending: list[Callable[[], None] | CancelToken] = [*reversed(self._listeners.values())]
            self._listeners = {}
            while pending:
                listener = pending.pop()
                if not isinstance(listener, CancelToken):
                    callbacks.append(listener)
                elif listener._reason is None:
                    listener._reason = reason
                    pending.extend(reversed(listener._listeners.values()))
                    listener._listeners = {}
                    cancelled.append(listener)
            for token in cancelled:
                token.remove_listener(None)
        _call_all(callbacks)
        return True

    def on_cancel(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` once on cancellation, or now if it's already cancelled; return a function to remove it.

        The callback runs in the cancelling thread and must be quick. The returned function may be called repeatedly.
        An error of a callback that was called right away is raised in a `BaseExceptionGroup`.
        """
        key = object()
        # If the token is cancelled by now, either `cancel` took the callback, or we remove and call it here.
        if self.add_listener(key, callback) and self.remove_listener(key):
            _call_all([callback])

        def remove() -> None:
            self.remove_listener(key)

        return remove

    async def wait(self) -> str:
        """Wait for cancellation and return its reason."""
        from anyio import sleep_forever  # noqa: PLC0415 — loaded wherever a loop runs, slow elsewhere

        with self.guard():
            await sleep_forever()
        return self.reason or DEFAULT_REASON

    def __await__(self) -> Generator[object, None, str]:
        return self.wait().__await__()

    def guard(self) -> CancelGuard:
        """Return a cancel scope that's cancelled with this token.

        Afterwards `scope.cancelled_caught` tells whether the block was cut short. Cancellation from outside (of the
        task or an outer scope) passes through.
        """
        get_running_loop, scope_type = _loop_types()
        return CancelGuard(self, get_running_loop(), scope_type())

    def add_listener(self, key: object, callback: Callable[[], None]) -> bool:
        """Register a callback here and this token with its ancestors; return whether it's cancelled."""
        with _LOCK:
            self._listeners[key] = callback
            pending: list[CancelToken] = [self] if self._parents else []
            while pending:
                token = pending.pop()
                for parent in token._parents:
                    if token not in parent._listeners:
                        parent._listeners[token] = token
                        pending.append(parent)
        return self.cancelled

    def remove_listener(self, key: object) -> bool:
        """Remove a callback, and tokens without listeners from their parents; return whether it was registered."""
        with _LOCK:
            was_there = self._listeners.pop(key, None) is not None
            pending: list[CancelToken] = [self] if self._parents else []
            while pending:
                token = pending.pop()
                if not token._listeners:
                    pending += [one for one in token._parents if one._listeners.pop(token, None) is not None]
        return was_there


class CancelGuard(NamedTuple):
    """Context manager of `CancelToken.guard`; enter it once."""

    token: CancelToken
    loop: AbstractEventLoop
    scope: CancelScope

    def __enter__(self) -> CancelScope:
        self.scope.__enter__()
        if self.token.add_listener(self, self._cancel_scope):
            self.scope.cancel()
        return self.scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self.token.remove_listener(self)
        return self.scope.__exit__(kind, error, trace)

    def _cancel_scope(self) -> None:
        # Through the loop: the caller may be a thread or signal handler, which mustn't touch the scope.
        with suppress(RuntimeError):  # the loop is closed, so the guarded block has ended
            self.loop.call_soon_threadsafe(self.scope.cancel)


@cache
def _loop_types() -> tuple[Callable[[], AbstractEventLoop], type[CancelScope]]:
    """Return `get_running_loop` and the concrete scope class of anyio's backend."""
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

    from anyio import CancelScope  # noqa: PLC0415 — loaded wherever a loop runs, slow elsewhere

    get_running_loop()
    # `CancelScope()` looks up the backend on every call, which takes as long as the scope itself.
    return get_running_loop, type(CancelScope())


def _call_all(callbacks: Iterable[Callable[[], None]]) -> None:
    failures: list[BaseException] = []
    for callback in callbacks:
        try:
            callback()
        except BaseException as exc:  # noqa: BLE001 — boundary: call the other callbacks first
            failures.append(exc)
    if failures:
        raise BaseExceptionGroup("cancel callbacks failed", failures)


ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


@asynccontextmanager
async def ending_signals() -> AsyncGenerator[CancelToken]:
    """Yield a token that the first such signal cancels, with the signal's name as reason.

    Main thread only. A second SIGINT raises KeyboardInterrupt as usual.
    """
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs
    from signal import Signals  # noqa: PLC0415 — loaded with asyncio

    loop, token = get_running_loop(), CancelToken()

    def restore() -> None:
        for name in ENDING:
            loop.remove_signal_handler(Signals[name])

    def cancel(name: str) -> None:
        restore()
        token.cancel(name)

    for name in ENDING:
        loop.add_signal_handler(Signals[name], cancel, name)
    try:
        yield token
    finally:
        restore()
