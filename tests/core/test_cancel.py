from __future__ import annotations

import asyncio
import gc
import os
import signal
import sys
import threading
import weakref
from typing import TYPE_CHECKING

import anyio
import pytest

from indusagi.core.cancel import _LOCK, CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

pytestmark = pytest.mark.anyio


def test_new_token_is_not_cancelled() -> None:
    token = CancelToken()
    assert (token.cancelled, token.reason) == (False, None)


def test_first_reason_stays() -> None:
    token = CancelToken()
    assert token.cancel("first") is True
    assert token.cancel("second") is False
    assert (token.cancelled, token.reason) == (True, "first")


def test_child_is_cancelled_with_its_parent_for_the_same_reason() -> None:
    token = CancelToken()
    grandchild = token.child().child()
    token.cancel("enough")
    assert (grandchild.cancelled, grandchild.reason) == (True, "enough")
    assert grandchild.cancel("late") is False
    assert grandchild.reason == "enough"


def test_child_can_be_cancelled_alone() -> None:
    token = CancelToken()
    child, sibling = token.child(), token.child()
    child.cancel("mine")
    assert (child.reason, token.cancelled, sibling.cancelled) == ("mine", False, False)


def test_child_keeps_its_own_reason_when_the_parent_is_cancelled() -> None:
    token = CancelToken()
    child = token.child()
    child.cancel("mine")
    token.cancel("theirs")
    assert child.reason == "mine"


def test_token_of_two_parents_keeps_the_reason_of_the_first_cancelled() -> None:
    first, second = CancelToken(), CancelToken()
    listening, silent = CancelToken(first, second), CancelToken(first, second)
    heard: list[str] = []
    listening.on_cancel(lambda: heard.append("called"))
    second.cancel("second")
    assert (silent.reason, first._listeners) == ("second", {})
    first.cancel("first")
    assert (listening.reason, silent.reason, heard) == ("second", "second", ["called"])


def test_callbacks_are_called_once_and_in_order() -> None:
    token = CancelToken()
    heard: list[str] = []
    for name in "abc":
        token.on_cancel(lambda name=name: heard.append(name))
    token.cancel()
    token.cancel()
    assert heard == ["a", "b", "c"]


def test_callback_on_a_cancelled_token_is_called_at_once() -> None:
    token = CancelToken()
    token.cancel()
    heard: list[str] = []
    forget = token.on_cancel(lambda: heard.append("now"))
    forget()
    assert heard == ["now"]


def test_callback_on_a_child_of_a_cancelled_token_is_called_at_once() -> None:
    token = CancelToken()
    token.cancel()
    heard: list[str] = []
    token.child().on_cancel(lambda: heard.append("now"))
    assert heard == ["now"]


def test_removed_callback_is_not_called() -> None:
    token = CancelToken()
    heard: list[str] = []
    forget = token.child().on_cancel(lambda: heard.append("never"))
    forget()
    forget()
    token.cancel()
    assert heard == []


def test_unreferenced_child_with_a_callback_is_cancelled_with_its_parent() -> None:
    token = CancelToken()
    heard: list[str] = []
    token.child().on_cancel(lambda: heard.append("heard"))
    gc.collect(1)  # all of it is young
    token.cancel()
    assert heard == ["heard"]


def test_parent_does_not_keep_children_without_callbacks_alive() -> None:
    token = CancelToken()
    silent = weakref.ref(token.child())
    listened_to = token.child()
    forget = listened_to.on_cancel(lambda: None)
    gone = weakref.ref(listened_to)
    forget()
    del listened_to, forget
    gc.collect(1)  # all of it is young
    assert (silent(), gone()) == (None, None)


def raiser(exc: BaseException) -> Callable[[], None]:
    def fail() -> None:
        raise exc

    return fail


@pytest.mark.parametrize("exc", [ValueError("broken"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
def test_every_callback_is_called_when_one_raises(exc: BaseException) -> None:
    token = CancelToken()
    heard: list[str] = []
    token.on_cancel(raiser(exc))
    token.child().on_cancel(lambda: heard.append("child"))
    token.on_cancel(lambda: heard.append("after"))
    with pytest.raises(BaseExceptionGroup) as caught:
        token.cancel("why")
    assert caught.value.exceptions == (exc,)
    assert (heard, token.reason) == (["child", "after"], "why")


def test_failures_of_callbacks_are_raised_as_one_group() -> None:
    token = CancelToken()
    failures = [ValueError("one"), KeyError("two"), SystemExit(3)]
    token.on_cancel(raiser(failures[0]))
    token.child().child().on_cancel(raiser(failures[1]))
    token.child().on_cancel(raiser(failures[2]))
    with pytest.raises(BaseExceptionGroup) as caught:
        token.cancel()
    assert list(caught.value.exceptions) == failures


def test_group_of_ordinary_exceptions_is_an_exception_group() -> None:
    token = CancelToken()
    token.on_cancel(raiser(ValueError("broken")))
    with pytest.raises(ExceptionGroup):
        token.cancel()


def test_failure_of_a_callback_called_at_once_is_raised_as_a_group() -> None:
    token = CancelToken()
    token.cancel()
    with pytest.raises(BaseExceptionGroup) as caught:
        token.child().on_cancel(raiser(SystemExit(3)))
    assert isinstance(caught.value.exceptions[0], SystemExit)


async def test_waiter_wakes_although_an_earlier_callback_raises() -> None:
    token = CancelToken()
    token.on_cancel(raiser(SystemExit(3)))

    async def cancel() -> None:
        await anyio.lowlevel.checkpoint()
        with pytest.raises(BaseExceptionGroup):
            token.cancel("stop")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(cancel)
        with anyio.fail_after(60):
            assert await token == "stop"


def test_callbacks_of_a_child_run_in_its_place_among_those_of_the_parent() -> None:
    token = CancelToken()
    child = token.child()
    heard: list[str] = []
    for listened, name in ((token, "a"), (child, "b"), (token, "c"), (child, "d")):
        listened.on_cancel(lambda name=name: heard.append(name))
    token.cancel()
    assert heard == ["a", "b", "d", "c"]


class InterruptedToken(CancelToken):
    """A token that a signal handler cancels while its own `cancel` reads the reason."""

    @property
    def reason(self) -> str | None:
        before = self._reason
        self._reason = before or "winner"
        return before


def test_cancel_that_loses_a_race_returns_false() -> None:
    token = InterruptedToken()
    assert token.cancel("loser") is False
    assert token.reason == "winner"


def test_exactly_one_of_many_threads_cancels() -> None:
    for _ in range(50):
        token = CancelToken()
        start = threading.Barrier(8)
        won: list[str] = []

        def cancel(
            reason: str, token: CancelToken = token, start: threading.Barrier = start, won: list[str] = won
        ) -> None:
            start.wait()
            if token.cancel(reason):
                won.append(reason)

        threads = [threading.Thread(target=cancel, args=[str(n)]) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [token.reason]


def test_parent_lists_a_child_once_for_all_its_callbacks() -> None:
    token = CancelToken()
    child = token.child()
    forgets = [child.on_cancel(lambda: None) for _ in range(10)]
    assert len(token._listeners) == 1
    for forget in forgets[:-1]:
        forget()
    assert len(token._listeners) == 1
    forgets[-1]()
    assert token._listeners == {}


def test_child_cancelled_alone_is_removed_from_its_parents() -> None:
    token = CancelToken()
    middle = token.child()
    child = middle.child()
    child.on_cancel(lambda: None)
    child.cancel()
    assert (token._listeners, middle._listeners) == ({}, {})


def test_callbacks_of_a_child_that_is_being_cancelled_run_once() -> None:
    token = CancelToken()
    child = token.child()
    heard: list[str] = []
    child.on_cancel(lambda: heard.append("twice"))
    child._reason = "mine"
    token.cancel("theirs")
    assert (child.reason, heard) == ("mine", [])


def test_callback_called_at_once_is_not_kept() -> None:
    token = CancelToken()
    token.cancel()
    child = token.child()
    child.on_cancel(lambda: None)
    assert (token._listeners, child._listeners) == ({}, {})


def test_removing_one_child_keeps_the_callbacks_of_another() -> None:
    token = CancelToken()
    heard: list[str] = []
    child = token.child()
    forget = child.on_cancel(lambda: heard.append("never"))
    token.child().on_cancel(lambda: heard.append("heard"))
    forget()
    token.cancel()
    assert heard == ["heard"]


def test_chain_of_tokens_may_be_longer_than_the_stack_is_deep() -> None:
    token = CancelToken()
    last = token
    for _ in range(2 * sys.getrecursionlimit()):
        last = last.child()
    heard: list[str] = []
    last.on_cancel(lambda: heard.append("never"))()
    last.on_cancel(lambda: heard.append("heard"))
    assert (last.cancelled, last.reason) == (False, None)
    token.cancel("far above")
    assert (last.cancelled, last.reason, heard) == (True, "far above", ["heard"])
    assert last.child().reason == "far above"


@pytest.mark.parametrize("late", [False, True])
def test_other_threads_can_use_a_token_while_callbacks_run(late: bool) -> None:
    token = CancelToken()
    child = token.child()
    finished: list[bool] = []

    def use_from_another_thread() -> None:
        thread = threading.Thread(target=lambda: child.on_cancel(lambda: None)(), daemon=True)
        thread.start()
        thread.join(60)
        finished.append(not thread.is_alive())

    if late:
        token.cancel()
    child.on_cancel(use_from_another_thread)
    token.cancel()
    assert finished == [True]


def test_cancel_ignores_a_loop_closed_meanwhile() -> None:
    token = CancelToken()
    taken, closed = threading.Event(), threading.Event()

    def hold_up() -> None:
        taken.set()
        assert closed.wait(60)

    token.on_cancel(hold_up)
    cancelled: list[bool] = []
    thread = threading.Thread(target=lambda: cancelled.append(token.cancel()))

    async def leave_while_another_thread_cancels() -> None:
        with token.guard():
            thread.start()
            assert taken.wait(60)

    asyncio.run(leave_while_another_thread_cancels())
    closed.set()
    thread.join()
    assert cancelled == [True]


async def test_awaiting_a_token_returns_the_reason() -> None:
    token = CancelToken()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_soon, token, "from a task")
        assert await token == "from a task"
    assert await token.wait() == "from a task"


async def _cancel_soon(token: CancelToken, reason: str) -> None:
    await anyio.lowlevel.checkpoint()
    token.cancel(reason)


async def test_awaiting_a_child_ends_with_its_parent() -> None:
    token = CancelToken()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_soon, token, "above")
        assert await token.child() == "above"


async def test_thread_can_cancel_an_awaited_token() -> None:
    token = CancelToken()
    thread = threading.Timer(0.01, token.cancel, args=["from a thread"])
    thread.start()
    with anyio.fail_after(60):
        assert await token == "from a thread"
    thread.join()


def _cancelling(token: CancelToken, reason: str) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        token.cancel(reason)

    return handler


async def test_signal_handler_can_cancel_an_awaited_token() -> None:
    token = CancelToken()
    former = signal.signal(signal.SIGUSR1, _cancelling(token, "signal"))
    killer = threading.Timer(0.01, os.kill, args=[os.getpid(), signal.SIGUSR1])
    killer.start()
    try:
        with anyio.fail_after(60):
            assert await token == "signal"
    finally:
        killer.join()
        signal.signal(signal.SIGUSR1, former)


async def test_guarded_block_ends_when_the_token_is_cancelled() -> None:
    token = CancelToken()
    reached: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_soon, token, "stop")
        with token.guard() as scope:
            await anyio.sleep_forever()
        reached.append(f"after the block, cut short: {scope.cancelled_caught}")
    assert reached == ["after the block, cut short: True"]


async def test_block_guarded_by_a_cancelled_token_ends_at_its_first_await() -> None:
    token = CancelToken()
    token.cancel()
    reached: list[str] = []
    with token.guard():
        reached.append("before")
        await anyio.lowlevel.checkpoint()
        reached.append("never")
    assert reached == ["before"]


async def test_guard_stops_listening_after_its_block() -> None:
    token = CancelToken()
    with token.guard() as scope:
        pass
    token.cancel()
    await anyio.lowlevel.checkpoint()
    assert not scope.cancel_called


async def test_outer_cancellation_passes_through_a_guard() -> None:
    token = CancelToken()
    reached: list[str] = []
    with anyio.CancelScope() as outer:
        outer.cancel()
        with token.guard():
            await anyio.sleep_forever()
        reached.append("never")
    assert (outer.cancelled_caught, token.cancelled, reached) == (True, False, [])


def test_signal_handler_can_cancel_while_its_thread_holds_the_lock() -> None:
    token = CancelToken()
    with _LOCK:
        former = signal.signal(signal.SIGUSR1, _cancelling(token, "inside"))
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, former)
    assert token.reason == "inside"


def test_callback_registered_during_a_cancel_is_called_exactly_once() -> None:
    for _ in range(200):
        token = CancelToken()
        heard: list[int] = []
        start = threading.Barrier(2)

        def cancel(token: CancelToken = token, start: threading.Barrier = start) -> None:
            start.wait()
            token.cancel()

        thread = threading.Thread(target=cancel)
        thread.start()
        start.wait()
        token.child().on_cancel(lambda heard=heard: heard.append(1))
        thread.join()
        assert heard == [1]
