"""What holds for every test: a private home, no blocking calls in the loop, no leaks."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import inspect
import os
import re
import threading
from itertools import count
from typing import TYPE_CHECKING

import pytest
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings
from tests.support.leaks import Held, held_now, leaked_since

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator
    from pathlib import Path

    from coverage import Coverage

# Bounded by pytest-timeout instead: a deadline for each example would be a wall-clock assertion.
settings.register_profile(
    "indus",
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("indus")

PACKAGES = ("indusagi", "induscode")
"""Blocking calls and leftover tasks of both packages fail a test."""


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Cancel an async test one second before pytest-timeout would interrupt it.

    The signal of pytest-timeout lands in the event loop, outside the test: the task of the test
    goes on, and the teardown of its fixtures waits for that task without end.
    """
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        limit = float(pyfuncitem.config.getoption("timeout") or pyfuncitem.config.getini("timeout"))
        pyfuncitem.obj = _cancel_after(max(limit - 1, limit / 2), test)
    return (yield)


def _cancel_after(limit_s: float, test: Callable[..., Awaitable[None]]) -> Callable[..., object]:
    @functools.wraps(test)
    async def run_bounded(**fixtures: object) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        late = threading.Event()

        def cancel() -> None:
            late.set()
            loop.call_soon_threadsafe(task.cancel)

        # By the clock of the machine: a test may move that of its loop.
        timer = threading.Timer(limit_s, cancel)
        timer.daemon = True
        timer.start()
        try:
            await test(**fixtures)
        except asyncio.CancelledError:
            if late.is_set():
                pytest.fail(f"the test took longer than {limit_s:g} s")
            raise
        finally:
            timer.cancel()

    return run_bounded


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Do not measure in a worker what does the same over and over.

    Coverage makes that more than twice as long, and what only such a test reaches lacks an example.
    """
    repeats = any(item.get_closest_marker(name) for name in ("hypothesis", "repeats"))
    measuring = _measuring(item.config) if repeats else None
    if measuring is None:
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Keep what coverage has seen: a worker that is slow to end is killed.

    A failed test may leave a thread that never ends; the interpreter would wait for it at exit.
    """
    if (measuring := _measuring(session.config)) is not None:
        measuring.save()
    if exitstatus:
        timer = threading.Timer(5, os._exit, (int(exitstatus),))
        timer.daemon = True
        timer.start()


def _measuring(config: pytest.Config) -> Coverage | None:
    """Give the coverage of a worker, if this is one and it has any."""
    if not hasattr(config, "workerinput"):
        return None
    from coverage import Coverage  # noqa: PLC0415 — loads slowly, and is for workers alone

    return Coverage.current()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def _memory_goes_back() -> Iterator[None]:
    """Give back what the tests of a module have freed.

    Starting a process that is to die with its parent maps all of the parent's memory anew.
    """
    yield
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


@pytest.fixture(scope="session")
def _new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make folders that are numbered as they come.

    The factory itself reads the names of all there are before each new one, which after some
    thousand tests takes longer than most of them.
    """
    where = tmp_path_factory.mktemp("t")
    numbers = count()

    def make(name: str) -> Path:
        folder = where / f"{name}{next(numbers)}"
        folder.mkdir(mode=0o700)
        return folder

    return make


@pytest.fixture
def tmp_path(_new_folder: Callable[[str], Path], request: pytest.FixtureRequest) -> Path:
    """Make a folder that is named after the test, as pytest does."""
    return _new_folder(re.sub(r"\W", "_", request.node.name)[:30])


@pytest.fixture(autouse=True)
def _private_home(_new_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tests out of the files and the network of whoever runs them."""
    home = _new_folder("home")
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name in ("http_proxy", "https_proxy", "no_proxy", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return home


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Compare what the process holds before and after: descriptors, threads, children, tasks."""
    before: Held = held_now()
    yield
    leaked = leaked_since(before)
    if leaked:
        pytest.fail("left behind: " + "; ".join(leaked))


@pytest.fixture
async def _tasks_end() -> AsyncGenerator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before
    for _ in range(100):
        left = {task for task in left if not task.done() and _is_ours(task)}
        if not left:
            return
        await asyncio.sleep(0.01)
    pytest.fail("left behind: " + "; ".join(f"task {task.get_name()}" for task in left))


def _is_ours(task: asyncio.Task[object]) -> bool:
    """Tell our tasks from those of the test runner and of servers that serve for several tests."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and any(f"/{name}/" in code.co_filename for name in PACKAGES)


@pytest.fixture(autouse=True)
def _no_tasks_left(request: pytest.FixtureRequest) -> None:
    """Have the loop of an async test end without tasks that nobody ended."""
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("_tasks_end")


@pytest.fixture(autouse=True)
def _no_blocking_calls() -> Iterator[None]:
    """Let a blocking call inside the event loop fail its test."""
    with blockbuster_ctx(list(PACKAGES)) as blockers:
        # A child is started in the loop's own thread, which it is to die with; that waits for the
        # exec, a few milliseconds.
        blockers.functions["os.read"].can_block_in("subprocess.py", "_execute_child")
        # Coverage locks its own data, whoever's callback it happens to be in.
        blockers.functions["threading.Lock.acquire"].can_block_in("coverage/collector.py", "lock_data")
        yield
