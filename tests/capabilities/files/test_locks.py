"""File locks between tasks, event loops and processes."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio.lowlevel import checkpoint
from tests.support.scripts import unmeasured

from indusagi.capabilities.files import atomic_write as locks
from indusagi.capabilities.files.atomic_write import file_lock

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.anyio


def lock_files() -> list[str]:
    folder = Path(os.environ["HOME"], ".local/state/indus/locks")
    return sorted(os.listdir(folder)) if folder.exists() else []


async def test_concurrent_changes_are_not_lost(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0", encoding="utf-8")

    async def increase() -> None:
        async with file_lock(str(counter)):
            seen = int(await anyio.Path(counter).read_text(encoding="utf-8"))
            await checkpoint()
            await anyio.Path(counter).write_text(str(seen + 1), encoding="utf-8")

    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(increase)
    assert counter.read_text(encoding="utf-8") == "50"
    assert lock_files() == []


async def test_finding_d8_each_name_of_a_file_has_its_own_lock(tmp_path: Path) -> None:
    """A write parts the names: a lock of the file they share would be no lock afterwards."""
    one, other = tmp_path / "one", tmp_path / "other"
    one.touch()
    os.link(one, other)
    async with file_lock(str(one)):
        async with file_lock(str(other), wait_s=5):
            assert len(lock_files()) == 2
        one.unlink()
        one.touch()
        assert len(lock_files()) == 1


async def test_tasks_get_the_lock_in_order() -> None:
    order: list[int] = []

    async def take(number: int) -> None:
        async with file_lock("/a"):
            order.append(number)

    async with anyio.create_task_group() as tasks:
        async with file_lock("/a"):
            for number in range(10):
                tasks.start_soon(take, number)
                await anyio.wait_all_tasks_blocked()
    assert order == list(range(10))


async def test_different_files_do_not_wait_for_each_other() -> None:
    async with file_lock("/a") as first:
        with anyio.fail_after(60):
            async with file_lock("/b") as second:
                assert (first.path, second.path) == ("/a", "/b")
                assert (first.unshared, second.unshared) == (None, None)
                assert len(lock_files()) == 2


async def test_an_unused_lock_is_forgotten() -> None:
    for number in range(100):
        async with file_lock(f"/{number}"):
            assert len(locks._LOCKS.get()) == 1
    gc.collect()
    assert len(locks._LOCKS.get()) == 0
    assert lock_files() == []


async def test_lock_files_are_private() -> None:
    folder = Path(os.environ["HOME"], ".local/state/indus/locks")

    def modes() -> list[int]:
        return [each.stat().st_mode & 0o777 for each in (folder, *folder.iterdir())]

    async with file_lock("/a"):
        assert modes() == [0o700, 0o600]


async def test_a_wait_for_another_call_is_bounded() -> None:
    entered, leave = anyio.Event(), anyio.Event()

    async def hold() -> None:
        async with file_lock("/a"):
            entered.set()
            await leave.wait()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold)
        await entered.wait()
        with pytest.raises(TimeoutError, match="another call has been changing it") as caught:
            async with file_lock("/a", wait_s=0.05):
                pytest.fail("both have it")
        assert (caught.value.errno, caught.value.filename) == (errno.ETIMEDOUT, "/a")
        leave.set()
    async with file_lock("/a", wait_s=5):
        pass


HOLDER = """
import asyncio, sys
from indusagi.capabilities.files.atomic_write import file_lock

async def main():
    async with file_lock(sys.argv[1]) as held:
        print(held.unshared, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


def start_holder(path: str) -> subprocess.Popen[str]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=unmeasured()
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "None\n"
    return holder


def end(holder: subprocess.Popen[str]) -> None:
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.close()
    holder.wait(60)
    holder.stdout.close()


@pytest.mark.process
async def test_a_wait_for_another_process_is_bounded() -> None:
    holder = await anyio.to_thread.run_sync(start_holder, "/a")
    try:
        with pytest.raises(TimeoutError, match="another process has been changing it"):
            async with file_lock("/a", wait_s=0.1):
                pytest.fail("both have it")
        async with file_lock("/b", wait_s=5):
            pass
    finally:
        await anyio.to_thread.run_sync(end, holder)
    async with file_lock("/a", wait_s=5) as held:
        assert held.unshared is None
    assert lock_files() == []


@pytest.mark.process
async def test_a_killed_process_holds_no_lock() -> None:
    holder = await anyio.to_thread.run_sync(start_holder, "/a")
    holder.kill()
    await anyio.to_thread.run_sync(end, holder)
    assert len(lock_files()) == 1
    async with file_lock("/a", wait_s=5) as held:
        assert held.unshared is None
    assert lock_files() == []


COUNTER = """
import asyncio, sys
from pathlib import Path
from indusagi.capabilities.files.atomic_write import file_lock

async def main():
    counter = Path(sys.argv[1])
    for _ in range(25):
        async with file_lock(str(counter)):
            counter.write_text(str(int(counter.read_text()) + 1))

asyncio.run(main())
"""


@pytest.mark.process
def test_concurrent_changes_of_processes_are_not_lost(tmp_path: Path) -> None:
    counter = tmp_path / "counter"
    counter.write_text("0", encoding="utf-8")
    command = [sys.executable, "-c", COUNTER, str(counter)]
    running = [subprocess.Popen(command, env=unmeasured()) for _ in range(3)]
    assert [each.wait(25) for each in running] == [0, 0, 0]
    assert counter.read_text(encoding="utf-8") == "75"
    assert lock_files() == []


async def test_two_event_loops_of_one_process_exclude_each_other() -> None:
    seen: list[str] = []

    async def other() -> None:
        try:
            async with file_lock("/a", wait_s=0.05):
                seen.append("both have it")
        except TimeoutError:
            seen.append("waited")

    def run() -> None:
        asyncio.run(other())

    async with file_lock("/a"):
        await anyio.to_thread.run_sync(run)
    assert seen == ["waited"]


def refusing(number: int) -> Callable[..., None]:
    def refuse(*_args: object, **_more: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS])
async def test_without_file_locks_the_work_continues_with_a_reason(
    monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(fcntl, "flock", refusing(number))
    async with file_lock("/a") as held:
        assert held.unshared == f"no lock among processes: {os.strerror(number)}"


async def test_without_a_state_directory_the_work_continues_with_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "nowhere")
    async with file_lock("/a") as held:
        assert "no home directory" in (held.unshared or "")


async def test_a_lock_file_that_cannot_be_removed_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refusing(errno.EACCES))
        async with file_lock("/a"):
            pass
    assert len(lock_files()) == 1
    async with file_lock("/a", wait_s=5) as held:
        assert held.unshared is None


async def test_a_lock_file_removed_meanwhile_is_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    flock, left = fcntl.flock, [3]

    def lock(handle: int, operation: int) -> None:
        flock(handle, operation)
        if operation & fcntl.LOCK_NB and left[0]:
            left[0] -= 1
            folder = Path(os.environ["HOME"], ".local/state/indus/locks")
            for each in folder.iterdir():
                each.unlink()

    monkeypatch.setattr(fcntl, "flock", lock)
    async with file_lock("/a") as held:
        assert (held.unshared, left) == (None, [0])
        assert len(lock_files()) == 1
    left[0] = locks._ATTEMPTS
    with pytest.raises(TimeoutError):
        async with file_lock("/a", wait_s=0):
            pytest.fail("its file is gone")


@pytest.mark.parametrize("scoped", [True, False])
async def test_a_caller_cancelled_while_locking_leaves_no_lock(
    monkeypatch: pytest.MonkeyPatch, *, scoped: bool
) -> None:
    taking, go_on = threading.Event(), threading.Event()
    really = locks._try_lock

    def slowly(path: str) -> locks.LockFile | None:
        taking.set()
        go_on.wait(60)
        return really(path)

    monkeypatch.setattr(locks, "_try_lock", slowly)
    entered: list[str] = []

    async def take() -> None:
        async with file_lock("/a"):
            entered.append("in")

    async def within() -> None:
        with scope:
            await take()

    scope = anyio.CancelScope()
    task = asyncio.create_task(within())  # noqa: TID251 — so that a plain cancel reaches it
    await anyio.to_thread.run_sync(taking.wait, 10)
    (scope if scoped else task).cancel()
    go_on.set()
    await asyncio.wait({task})
    assert task.cancelled() is not scoped
    monkeypatch.setattr(locks, "_try_lock", really)
    assert (entered, lock_files()) == ([], [])
    async with file_lock("/a", wait_s=5):
        pass


async def test_a_caller_cancelled_while_waiting_for_another_holder_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    taking, go_on = threading.Event(), threading.Event()

    def busy(path: str) -> None:
        taking.set()
        go_on.wait(60)

    monkeypatch.setattr(locks, "_try_lock", busy)

    async def take() -> None:
        async with file_lock("/a"):
            pytest.fail("another holder has it")

    plain = asyncio.create_task(take())  # noqa: TID251 — a caller that knows no scopes
    await anyio.to_thread.run_sync(taking.wait, 10)
    plain.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await plain


async def test_failed_and_cancelled_work_releases_the_lock() -> None:
    with pytest.raises(ValueError, match="no good"):
        async with file_lock("/a"):
            raise ValueError("no good")
    with anyio.move_on_after(0.01):
        async with file_lock("/a"):
            await anyio.sleep_forever()
    async with file_lock("/a", wait_s=5):
        assert len(lock_files()) == 1
    assert lock_files() == []
