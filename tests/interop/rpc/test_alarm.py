from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import pytest
from tests.support.links import LoopTime

from indusagi.interop.protocol_bridge.rpc.limits import Alarm, before

if TYPE_CHECKING:
    from collections.abc import Awaitable

pytestmark = pytest.mark.anyio


class Deadlines:
    """What an alarm is asked for, and when it rang."""

    def __init__(self) -> None:
        self.start = asyncio.get_running_loop().time()
        self.left: list[float] = []
        self.rang: list[int] = []
        self.alarm = Alarm(self.ring)

    def ring(self, now: float) -> float:
        self.rang.append(round(now - self.start))
        self.left = [due for due in self.left if due > now]
        return min(self.left, default=math.inf)

    def add(self, *seconds: float) -> None:
        for after in seconds:
            self.left.append(self.start + after)
            self.alarm.by(self.start + after)


async def test_it_rings_at_each_deadline_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    time = LoopTime(monkeypatch)
    deadlines = Deadlines()
    deadlines.add(300, 100, 200)
    for passed in (100, 200, 300):
        await time.passes(100)
        assert deadlines.rang == list(range(100, passed + 1, 100))
    await time.passes(1000)
    assert len(deadlines.rang) == 3


async def test_a_deadline_that_was_dropped_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    time = LoopTime(monkeypatch)
    deadlines = Deadlines()
    deadlines.add(100, 200)
    del deadlines.left[0]
    await time.passes(150)
    await time.passes(50)
    assert deadlines.rang == [150, 200]


async def test_one_that_was_stopped_rings_for_new_deadlines_only(monkeypatch: pytest.MonkeyPatch) -> None:
    time = LoopTime(monkeypatch)
    deadlines = Deadlines()
    deadlines.add(100)
    deadlines.alarm.stop()
    await time.passes(150)
    assert deadlines.rang == []
    deadlines.add(200, math.inf)
    await time.passes(50)
    assert deadlines.rang == [200]


async def test_a_wait_ends_at_its_deadline_if_it_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    time = LoopTime(monkeypatch)
    event = asyncio.Event()
    due = asyncio.get_running_loop().time() + 100
    async with asyncio.TaskGroup() as tasks:
        endless = tasks.create_task(before(math.inf, event.wait()))
        limited = tasks.create_task(_late(before(due, event.wait())))
        await time.passes(99)
        assert not limited.done()
        await time.passes(1)
        assert limited.done()
        assert not endless.done()
        event.set()


async def _late(waiting: Awaitable[None]) -> None:
    with pytest.raises(TimeoutError):
        await waiting
