from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.clock import ManualClock
from ulid import ULID

from indusagi.core.ids import UlidMint, is_ulid, new_ulid
from indusagi.core.time import now_ms

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType


def test_id_is_a_ulid_for_another_library() -> None:
    before = now_ms()
    made = new_ulid()
    read = ULID.from_str(made)
    assert str(read) == made
    assert before <= read.milliseconds <= now_ms()


@given(st.lists(st.integers(-5_000, 5_000), min_size=1, max_size=50))
def test_ids_rise_when_the_clock_is_set_back(steps: list[int]) -> None:
    clock = ManualClock(1_000_000)
    mint = UlidMint(clock)
    made = [mint.mint()]
    for step in steps:
        clock.advance(step)
        made.append(mint.mint())
    assert made == sorted(set(made))


def test_ids_made_by_several_threads_are_all_different() -> None:
    mint = UlidMint()
    with ThreadPoolExecutor(8) as pool:
        made = [job.result() for job in [pool.submit(mint.mint) for _ in range(4_000)]]
    assert len(set(made)) == len(made)


def test_each_thread_sees_its_own_ids_rise() -> None:
    mint = UlidMint()
    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(lambda: [mint.mint() for _ in range(500)]) for _ in range(8)]
        runs = [job.result() for job in jobs]
    assert all(run == sorted(run) for run in runs)


class Interrupted:
    """A clock that goes back in time, and has something happen while it is first read."""

    def __init__(self) -> None:
        self.happens: Callable[[], object] = lambda: None
        self._times = iter([1_000, 2_000])

    def now_ms(self) -> int:
        time = next(self._times)
        if time == 1_000:
            self.happens()
        return time


def test_signal_handler_can_make_an_id_while_one_is_made() -> None:
    clock = Interrupted()
    mint = UlidMint(clock)
    inner: list[str] = []

    def handler(number: int, frame: FrameType | None) -> None:
        inner.append(mint.mint())

    former = signal.signal(signal.SIGUSR1, handler)
    clock.happens = lambda: os.kill(os.getpid(), signal.SIGUSR1)
    try:
        outer = mint.mint()
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert inner[0] < outer


class Switching(int):
    """A number that lets another thread have its turn before it is added to."""

    turn: Callable[[], object]

    def __add__(self, other: int) -> int:
        self.turn()
        return int(self) + other


def test_threads_never_share_an_id() -> None:
    mint = UlidMint(ManualClock(-1))  # so that every id is the last one and one more
    made: list[str] = []
    thread = threading.Thread(target=lambda: made.append(mint.mint()))

    def turn() -> None:
        thread.start()
        thread.join(0.1)  # in vain, unless both can have the number at once

    mint._last = Switching(7)
    mint._last.turn = turn
    made.append(mint.mint())
    thread.join()
    assert sorted(made) == ["0" * 25 + "8", "0" * 25 + "9"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sessions",
        "0" * 25,
        "0" * 27,
        "8" + "Z" * 25,
        "0" * 25 + "U",
        "0" * 25 + "a",
        "0" * 25 + "\n",
        "0" * 25 + "\uff11",
    ],
)
def test_other_text_is_not_a_ulid(text: str) -> None:
    assert not is_ulid(text)


def test_smallest_largest_and_new_ids_are_ulids() -> None:
    assert all(is_ulid(text) for text in ("0" * 26, "7" + "Z" * 25, new_ulid()))
