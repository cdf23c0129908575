from __future__ import annotations

import asyncio

import pytest
from tests.support.links import settled

from indusagi.interop.protocol_bridge.rpc.limits import Slots

pytestmark = pytest.mark.anyio


async def test_as_many_as_there_are_places_get_one_at_once() -> None:
    slots = Slots(2)
    assert [slots.take() for _ in range(3)] == [True, True, False]
    slots.give()
    assert [slots.take() for _ in range(2)] == [True, False]


async def test_a_place_goes_to_whoever_waits_longest_and_to_nobody_else() -> None:
    slots = Slots(1)
    assert slots.take()
    served: list[int] = []

    async def wait(number: int) -> None:
        await slots.wait()
        served.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(3):
            tasks.create_task(wait(number))
        await settled()
        for expected in ([0], [0, 1], [0, 1, 2]):
            slots.give()
            assert not slots.take(), "it was handed on"
            await settled()
            assert served == expected
    slots.give()
    assert slots.take()


@pytest.mark.parametrize("given", ["before", "after", "at once"])
async def test_who_is_cancelled_while_waiting_keeps_no_place(given: str) -> None:
    slots = Slots(1)
    assert slots.take()
    async with asyncio.TaskGroup() as tasks:
        first, second = (tasks.create_task(slots.wait()) for _ in range(2))
        await settled()
        if given == "before":
            slots.give()
        first.cancel()
        if given == "at once":
            slots.give()
        await settled()
        if given == "after":
            slots.give()
        await second
    assert first.cancelled()
    assert not slots.take()
    slots.give()
    assert slots.take()
