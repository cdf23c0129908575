"""The lock of calls: readers together, a writer alone, in the order of arrival."""

from __future__ import annotations

import anyio
import pytest
from anyio.lowlevel import checkpoint

from indusagi.core.tasks import ReadWriteLock

pytestmark = pytest.mark.anyio


class Users:
    """Tasks that hold one lock until they are told to leave it."""

    def __init__(self) -> None:
        self.lock = ReadWriteLock()
        self.inside: list[str] = []
        self.leave: dict[str, anyio.Event] = {}

    async def enter(self, name: str) -> None:
        """Hold the lock; a name in capitals is a writer's."""
        self.leave[name] = anyio.Event()
        async with self.lock.hold(shared=name.islower()):
            self.inside.append(name)
            try:
                await self.leave[name].wait()
            finally:
                self.inside.remove(name)


async def settle() -> None:
    for _ in range(10):
        await checkpoint()


async def test_readers_hold_it_together_and_a_writer_alone_in_the_order_of_arrival() -> None:
    users = Users()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            for name in ("a", "b", "W", "c", "V"):
                tasks.start_soon(users.enter, name)
                await settle()
            assert users.inside == ["a", "b"]  # c came after the writer
            users.leave["a"].set()
            await settle()
            assert users.inside == ["b"]
            users.leave["b"].set()
            await settle()
            assert users.inside == ["W"]
            users.leave["W"].set()
            await settle()
            assert users.inside == ["c"]
            users.leave["c"].set()
            await settle()
            assert users.inside == ["V"]
            users.leave["V"].set()


async def test_waiting_writer_that_is_cancelled_lets_the_readers_behind_it_in() -> None:
    users = Users()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(users.enter, "a")
            await settle()
            scope = anyio.CancelScope()

            async def give_up() -> None:
                with scope:
                    await users.enter("W")

            tasks.start_soon(give_up)
            await settle()
            tasks.start_soon(users.enter, "b")
            await settle()
            assert users.inside == ["a"]
            scope.cancel()
            await settle()
            assert users.inside == ["a", "b"]
            users.leave["a"].set()
            users.leave["b"].set()


async def test_cancellation_at_the_moment_of_admission_leaves_the_lock_free() -> None:
    users = Users()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(users.enter, "W")
            await settle()
            scope = anyio.CancelScope()

            async def give_up() -> None:
                with scope:
                    await users.enter("V")

            tasks.start_soon(give_up)
            await settle()
            users.leave["W"].set()
            await checkpoint()  # W leaves and V is admitted, but has not run
            scope.cancel()
            await settle()
            assert users.inside == []
            async with users.lock.hold(shared=False):
                pass
