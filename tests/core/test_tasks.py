"""Background tasks and shielded work run to their end when waiters are cancelled."""

from __future__ import annotations

import asyncio

import anyio
import anyio.lowlevel
import pytest

from indusagi.core.tasks import Attempt, BackgroundTask, run_shielded

pytestmark = pytest.mark.anyio


class Job:
    """Work that waits to be let go, and notes how far it came."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = asyncio.Event()
        self.finished = False
        self.undone: list[str] = []
        self._error = error

    async def work(self) -> str:
        await self.go.wait()
        self.finished = True
        if self._error is not None:
            raise self._error
        return "made"

    async def undo(self, result: str) -> None:
        self.undone.append(result)


async def test_shielded_work_returns_its_result() -> None:
    job = Job()
    job.go.set()
    assert await run_shielded(job.work(), "job", job.undo) == "made"
    assert job.undone == []


async def test_shielded_work_raises_its_error() -> None:
    job = Job(OSError("broken"))
    job.go.set()
    with pytest.raises(OSError, match="broken"):
        await run_shielded(job.work(), "job")


@pytest.mark.parametrize("error", [None, OSError("broken")])
async def test_cancelled_caller_waits_for_the_end_and_the_result_is_undone(error: Exception | None) -> None:
    job = Job(error)
    task = asyncio.create_task(run_shielded(job.work(), "job", job.undo))  # noqa: TID251 — to cancel
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
        assert not task.done()
    job.go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert job.finished
    assert job.undone == ([] if error else ["made"])


async def test_cancelled_scope_waits_without_busy_looping(monkeypatch: pytest.MonkeyPatch) -> None:
    job, owner, rounds = Job(), BackgroundTask("job"), 0
    wait = asyncio.wait

    async def count(tasks: set[asyncio.Future[None]], timeout: float | None = None) -> None:  # noqa: ASYNC109 — as asyncio.wait
        nonlocal rounds
        rounds += 1
        await wait(tasks, timeout=timeout)

    async def work() -> None:
        await job.work()

    monkeypatch.setattr(asyncio, "wait", count)
    owner.start(work())
    with anyio.CancelScope() as scope:
        scope.cancel()
        asyncio.get_running_loop().call_later(0.05, job.go.set)
        await owner.join()
        assert job.finished
        await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert rounds == 1


async def test_a_task_that_is_cancelled_before_its_first_step_has_an_end_too() -> None:
    ended: list[str] = []
    task = BackgroundTask("job", lambda: ended.append("ended"))
    task.start(asyncio.sleep(60))
    task.cancel()
    with anyio.fail_after(60):
        assert await task.join()
        await task.wait()
    assert (ended, task.was_cancelled) == (["ended"], True)


async def test_the_end_comes_before_whoever_waits_for_it() -> None:
    ended: list[str] = []
    task = BackgroundTask("job", lambda: ended.append("ended"))
    task.start(asyncio.sleep(0))
    await task.wait()
    assert ended == ["ended"]


async def test_a_task_that_ignores_its_cancellation_is_left_after_the_limit() -> None:
    go, task = asyncio.Event(), BackgroundTask("stubborn")

    async def ignore() -> None:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue

    task.start(ignore())
    await asyncio.sleep(0)
    task.cancel()
    assert await task.join(0.01) is False
    go.set()
    assert await task.join()


async def test_an_attempt_settles_once_for_all_who_wait() -> None:
    attempt, failed = Attempt[str](), Attempt[str]()
    async with asyncio.TaskGroup() as tasks:
        waiting = [tasks.create_task(attempt.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        assert not attempt.is_settled
        attempt.settle("first")
        attempt.fail(OSError("second"))
    assert [task.result() for task in waiting[1:]] == ["first", "first"]
    failed.fail(OSError("broken"))
    failed.settle("late")
    with pytest.raises(OSError, match="broken"):
        await failed.wait()
