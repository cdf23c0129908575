"""Background tasks and attempts: work in its own task, with waiters that can be cancelled without cancelling it.

An async context must be left in the task that entered it, but callers come and go; so one task opens, holds and closes
a resource. A cancelled caller disturbs neither that task nor other callers, and still returns only after the end.

`Listeners` is how an object that exists first tells ones that are built on it about events. `Backoff` paces what is
tried again.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from contextvars import copy_context
from typing import Generic, ParamSpec, TypeVar

import anyio
from anyio import CancelScope

from indusagi.core.time import SystemClock

T = TypeVar("T")


class Attempt(Generic[T]):
    """The outcome of one piece of work, for any number of waiting callers.

    It settles once, at the latest when the task it follows ends: a task cancelled before its first step runs no code,
    so nothing inside it could settle anything.
    """

    def __init__(self) -> None:
        self._outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()

    @property
    def is_settled(self) -> bool:
        """Whether there's an outcome."""
        return self._outcome.done()

    def settle(self, value: T, /) -> None:
        """Set the result, unless there's an outcome already."""
        if not self._outcome.done():
            self._outcome.set_result(value)

    def fail(self, exc: Exception) -> None:
        """Set the error, unless there's an outcome already."""
        if not self._outcome.done():
            self._outcome.set_exception(exc)
            self._outcome.exception()  # mark it as retrieved, in case there's no waiter

    async def wait(self) -> T:
        """Wait for the outcome and return or raise it. A cancelled caller doesn't affect the work."""
        if not self._outcome.done():
            await asyncio.wait({self._outcome})
        return self._outcome.result()

    async def join(self, within_s: float | None = None) -> bool:
        """Wait for the outcome even if cancelled, for `within_s` at most; return whether there is one.

        The caller's cancellation is raised afterwards.
        """
        await _join(self._outcome, within_s)
        return self._outcome.done()


class BackgroundTask:
    """Runs one coroutine, once, in its own task.

    `on_end` runs when the task has ended, even if it was cancelled before its first step, and before any waiter
    continues.
    """

    def __init__(self, name: str, on_end: Callable[[], None] | None = None) -> None:
        self._name = name
        self._task: asyncio.Task[object] | None = None
        self._on_end = on_end
        self._ended: Attempt[None] | None = None

    @property
    def started(self) -> bool:
        """Whether `start` was called."""
        return self._task is not None

    @property
    def was_cancelled(self) -> bool:
        """Whether the task ended by cancellation."""
        return self._task is not None and self._task.cancelled()

    def start(self, work: Coroutine[object, object, object]) -> None:
        """Start the coroutine, which must end by itself and handle its own errors."""
        self._ended = Attempt()
        self._task = asyncio.create_task(work, name=self._name)  # noqa: TID251 — owned by this object
        self._task.add_done_callback(self._finish)

    def _finish(self, task: asyncio.Task[object]) -> None:
        try:
            if self._on_end is not None:
                self._on_end()
        finally:
            if self._ended is not None:
                self._ended.settle(None)

    def cancel(self) -> None:
        """Cancel the task."""
        if self._task is not None:
            self._task.cancel()

    async def wait(self) -> None:
        """Wait for the end, unless cancelled."""
        if self._ended is not None:
            await self._ended.wait()

    async def join(self, within_s: float | None = None) -> bool:
        """Wait for the end even if cancelled, for `within_s` at most; return whether it has ended.

        For a task that was asked to end, which otherwise would continue without an owner. The caller's cancellation is
        raised afterwards. Third-party code may swallow its cancellation: give it a limit.
        """
        return self._ended is None or await self._ended.join(within_s)


async def run_shielded(
    work: Coroutine[object, object, T], name: str, undo: Callable[[T], Awaitable[None]] | None = None
) -> T:
    """Run short work to completion even if cancelled, and return its result or raise its error.

    If the caller was cancelled, `undo` gets the result, and then the cancellation is raised.
    """
    task = asyncio.create_task(work, name=name)  # noqa: TID251 — joined below
    try:
        await _join(task)
    except asyncio.CancelledError:
        if not task.cancelled() and task.exception() is None and undo is not None:
            await undo(task.result())
        raise
    return task.result()


def call_in_daemon_thread(name: str, function: Callable[[], T], within_s: float | None = None) -> T:
    """Run a blocking function and wait for it, at most `within_s`; our exit doesn't wait for it.

    Raises `TimeoutError` if it took longer.
    """
    done = Future[T]()

    def work() -> None:
        try:
            done.set_result(function())
        except Exception as exc:  # noqa: BLE001 — boundary: raised again in the waiting thread
            done.set_exception(exc)

    threading.Thread(target=work, name=name, daemon=True).start()
    return done.result(within_s)


async def run_in_daemon_thread(name: str, function: Callable[..., T], *arguments: object) -> T:
    """Run a blocking function that may never return: neither a cancelled caller nor our exit waits for it.

    Not an anyio worker: the interpreter would wait for an abandoned one before exiting.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[list[T], BaseException | None]] = loop.create_future()

    def deliver(values: list[T], failure: BaseException | None) -> None:
        if not done.done():
            done.set_result((values, failure))

    def work() -> None:
        values, failure = list[T](), None
        try:
            values.append(context.run(function, *arguments))
        except BaseException as exc:  # noqa: BLE001 — boundary: raised again in the waiting task
            failure = exc
        with suppress(RuntimeError):  # the loop is closed: the wait ended at its deadline
            loop.call_soon_threadsafe(deliver, values, failure)

    context = copy_context()
    threading.Thread(target=work, name=name, daemon=True).start()
    values, failure = await done
    if failure is not None:
        raise failure
    return values[0]


async def _join(task: asyncio.Future[T], within_s: float | None = None) -> None:
    loop = asyncio.get_running_loop()
    due = None if within_s is None else loop.time() + within_s
    cancelled: asyncio.CancelledError | None = None
    # A cancelled anyio scope cancels its task again in every iteration of the loop; the shield prevents that. A plain
    # `Task.cancel` passes the shield, and we raise it at the end.
    with CancelScope(shield=True):
        while not task.done() and (due is None or loop.time() < due):
            try:
                await asyncio.wait({task}, timeout=None if due is None else due - loop.time())
            except asyncio.CancelledError as exc:
                cancelled = exc
    if cancelled is not None:
        raise cancelled


# -- read-write lock --------------------------------------------------------------------------


class ReadWriteLock:
    """Lock for readers and writers of one event loop. A reader that comes after a waiting writer waits for it."""

    def __init__(self) -> None:
        self._readers = 0
        self._is_writing = False
        self._waiting: deque[tuple[anyio.Event, bool]] = deque()

    @asynccontextmanager
    async def hold(self, *, shared: bool) -> AsyncGenerator[None]:
        """Hold the lock inside the block, shared with others or exclusively."""
        if self._waiting or self._is_writing or (self._readers and not shared):
            place = anyio.Event(), shared
            self._waiting.append(place)
            try:
                await place[0].wait()
            except BaseException:
                if place in self._waiting:
                    self._waiting.remove(place)
                    self._admit()
                else:  # admitted just as it was cancelled
                    self._leave(shared)
                raise
        elif shared:
            self._readers += 1
        else:
            self._is_writing = True
        try:
            yield
        finally:
            self._leave(shared)

    def _leave(self, shared: bool) -> None:
        if shared:
            self._readers -= 1
        else:
            self._is_writing = False
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        while self._waiting and not self._is_writing and (self._waiting[0][1] or self._readers == 0):
            event, shared = self._waiting.popleft()
            if shared:
                self._readers += 1
            else:
                self._is_writing = True
            event.set()


# -- listeners --------------------------------------------------------------------------------------


_P = ParamSpec("_P")


class Listeners(Generic[_P]):
    """The functions to call on one kind of event, in the order they were added. Call this object to report one."""

    __slots__ = ("_listeners",)

    def __init__(self) -> None:
        self._listeners: tuple[Callable[_P, object], ...] = ()

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> None:
        """Call every listener. An error ends the loop: a listener that may fail handles that itself."""
        for listener in self._listeners:
            listener(*args, **kwargs)

    def add(self, listener: Callable[_P, object]) -> Callable[[], None]:
        """Call `listener` on each event until the returned function is called."""
        self._listeners = (*self._listeners, listener)
        return lambda: self._remove(listener)

    def _remove(self, listener: Callable[_P, object]) -> None:
        self._listeners = tuple(one for one in self._listeners if one is not listener)


# -- retries ----------------------------------------------------------------------------------

TRANSIENT_STATUSES = frozenset({408, 425, 429, 502, 503, 504})
"""Timeouts, too early, too many requests, and errors of gateways."""
_MAX_RETRY_AFTER_S = 3_600.0


def parse_retry_after(text: str) -> float | None:
    """Parse a `Retry-After` header: seconds, or a date (RFC 9110 §10.2.3)."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), _MAX_RETRY_AFTER_S)
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 — for the rarer form

    try:
        at_s = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, at_s - SystemClock().now_ms() / 1000), _MAX_RETRY_AFTER_S)


def grow_pause(first_s: float, factor: float, times: int, longest_s: float) -> float:
    """Return the pause after `times` earlier ones."""
    try:
        return min(first_s * factor**times, longest_s)
    except OverflowError:  # after a day of failures
        return longest_s


class Backoff:
    """Pauses of one retried operation, growing by `factor` from `first_s` to `longest_s`.

    Only the other side may ask for more (`Retry-After`). `jitter` keeps clients of one server from returning together.
    """

    def __init__(
        self, first_s: float = 0.5, *, factor: float = 2.0, longest_s: float = 60.0, jitter: float = 0.2
    ) -> None:
        self._first_s, self._factor, self._longest_s, self._jitter = first_s, factor, longest_s, jitter
        self._failures = 0

    def next_pause(self, retry_after_s: float | None = None) -> float:
        """Count a failure and return the pause before the next try, at least `retry_after_s`."""
        pause_s = grow_pause(self._first_s, self._factor, self._failures, self._longest_s)
        self._failures += 1
        pause_s *= 1 + random.uniform(-self._jitter, self._jitter)
        return max(pause_s, retry_after_s or 0.0)

    async def pause(self, retry_after_s: float | None = None) -> None:
        """Count a failure and wait for the next try."""
        await asyncio.sleep(self.next_pause(retry_after_s))

    def reset(self) -> None:
        """Forget the failures and start over with the first pause."""
        self._failures = 0
