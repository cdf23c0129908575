from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from typing import TYPE_CHECKING

import anyio
import pytest

from indusagi.core.cancel import CancelToken

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

pytestmark = pytest.mark.anyio


def test_a_new_token_is_not_cancelled_and_has_no_reason() -> None:
    token = CancelToken()
    assert (token.cancelled, token.reason) == (False, None)


def test_the_first_reason_stays() -> None:
    token = CancelToken()
    assert token.cancel("first") is True
    assert token.cancel("second") is False
    assert (token.cancelled, token.reason) == (True, "first")


def test_a_child_is_cancelled_with_its_parent_and_for_the_same_reason() -> None:
    token = CancelToken()
    grandchild = token.child().child()
    token.cancel("enough")
    assert (grandchild.cancelled, grandchild.reason) == (True, "enough")
    assert grandchild.cancel("late") is False
    assert grandchild.reason == "enough"


def test_a_child_can_be_cancelled_alone() -> None:
    token = CancelToken()
    child, sibling = token.child(), token.child()
    child.cancel("mine")
    assert (child.reason, token.cancelled, sibling.cancelled) == ("mine", False, False)


def test_a_child_keeps_its_own_reason_when_the_parent_follows() -> None:
    token = CancelToken()
    child = token.child()
    child.cancel("mine")
    token.cancel("theirs")
    assert child.reason == "mine"


def test_callbacks_are_called_once_and_in_order() -> None:
    token = CancelToken()
    heard: list[str] = []
    for name in "abc":
        token.on_cancel(lambda name=name: heard.append(name))
    token.cancel()
    token.cancel()
    assert heard == ["a", "b", "c"]


def test_a_callback_that_comes_too_late_is_called_at_once() -> None:
    token = CancelToken()
    token.cancel()
    heard: list[str] = []
    forget = token.on_cancel(lambda: heard.append("now"))
    forget()
    assert heard == ["now"]


def test_a_callback_on_a_child_of_a_cancelled_token_is_called_at_once() -> None:
    token = CancelToken()
    token.cancel()
    heard: list[str] = []
    token.child().on_cancel(lambda: heard.append("now"))
    assert heard == ["now"]


def test_a_callback_taken_off_is_not_called() -> None:
    token = CancelToken()
    heard: list[str] = []
    forget = token.child().on_cancel(lambda: heard.append("never"))
    forget()
    forget()
    token.cancel()
    assert heard == []


def test_a_child_that_nobody_else_holds_still_hears_its_parent() -> None:
    token = CancelToken()
    heard: list[str] = []
    token.child().on_cancel(lambda: heard.append("heard"))
    gc.collect()
    token.cancel()
    assert heard == ["heard"]


def test_a_parent_keeps_nothing_of_children_that_were_let_go() -> None:
    token = CancelToken()
    silent = weakref.ref(token.child())
    listened_to = token.child()
    forget = listened_to.on_cancel(lambda: None)
    gone = weakref.ref(listened_to)
    forget()
    del listened_to, forget
    gc.collect()
    assert (silent(), gone()) == (None, None)


def test_every_callback_is_called_although_one_fails() -> None:
    token = CancelToken()
    heard: list[str] = []

    def fail() -> None:
        raise ValueError("broken listener")

    token.on_cancel(fail)
    token.on_cancel(lambda: heard.append("after"))
    with pytest.raises(ExceptionGroup) as caught:
        token.cancel("why")
    assert caught.group_contains(ValueError, match="broken listener")
    assert (heard, token.reason) == (["after"], "why")


async def test_awaiting_a_token_gives_the_reason() -> None:
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


async def test_a_thread_can_cancel_what_a_task_waits_for() -> None:
    token = CancelToken()
    thread = threading.Timer(0.01, token.cancel, args=["from a thread"])
    thread.start()
    with anyio.fail_after(5):
        assert await token == "from a thread"
    thread.join()


def _cancelling(token: CancelToken, reason: str) -> Callable[[int, FrameType | None], None]:
    def handler(number: int, frame: FrameType | None) -> None:
        token.cancel(reason)

    return handler


async def test_a_signal_handler_can_cancel_what_a_task_waits_for() -> None:
    token = CancelToken()
    former = signal.signal(signal.SIGUSR1, _cancelling(token, "signal"))
    killer = threading.Timer(0.01, os.kill, args=[os.getpid(), signal.SIGUSR1])
    killer.start()
    try:
        with anyio.fail_after(5):
            assert await token == "signal"
    finally:
        killer.join()
        signal.signal(signal.SIGUSR1, former)


async def test_a_guarded_block_is_cut_short_when_the_token_is_cancelled() -> None:
    token = CancelToken()
    reached: list[str] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_soon, token, "stop")
        with token.guard() as scope:
            await anyio.sleep_forever()
        reached.append(f"after the block, cut short: {scope.cancelled_caught}")
    assert reached == ["after the block, cut short: True"]


async def test_a_block_guarded_by_a_cancelled_token_stops_at_its_first_wait() -> None:
    token = CancelToken()
    token.cancel()
    reached: list[str] = []
    with token.guard():
        reached.append("before")
        await anyio.lowlevel.checkpoint()
        reached.append("never")
    assert reached == ["before"]


async def test_a_guard_that_was_left_no_longer_listens() -> None:
    token = CancelToken()
    with token.guard() as scope:
        pass
    token.cancel()
    await anyio.lowlevel.checkpoint()
    assert not scope.cancel_called


async def test_cancellation_from_outside_passes_through_a_guard() -> None:
    token = CancelToken()
    reached: list[str] = []
    with anyio.CancelScope() as outer:
        outer.cancel()
        with token.guard():
            await anyio.sleep_forever()
        reached.append("never")
    assert (outer.cancelled_caught, token.cancelled, reached) == (True, False, [])


def test_a_handler_that_interrupts_the_token_itself_does_not_lock_up() -> None:
    token = CancelToken()
    with token._lock:
        former = signal.signal(signal.SIGUSR1, _cancelling(token, "inside"))
        os.kill(os.getpid(), signal.SIGUSR1)
        signal.signal(signal.SIGUSR1, former)
    assert token.reason == "inside"


def test_a_callback_registered_while_another_thread_cancels_is_called_exactly_once() -> None:
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
