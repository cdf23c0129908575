"""Fixtures of every test: a private home, no blocking calls in the event loop, no leaks."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import functools
import gc
import inspect
import os
import re
import signal
import ssl
import sys
import threading
from contextlib import suppress
from contextvars import Context, copy_context
from itertools import count
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key
from blockbuster import blockbuster_ctx
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants
from tests.support.forked import CONSTANTS
from tests.support.leaks import HeldResources, find_leaks, snapshot_resources
from tests.support.sandboxes import offer_bubblewrap

from indusagi.core import secrets

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator

    from coverage import Coverage

# pytest-timeout bounds the tests: a deadline per example would be a wall-clock assertion.
settings.register_profile(
    "indus",
    deadline=None,
    database=None,
    derandomize=True,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
# With --hypothesis-profile: for `make unit`, and for `make properties`, which looks for examples that no run had yet.
settings.register_profile("few", settings.get_profile("indus"), max_examples=10)
settings.register_profile("many", settings.get_profile("indus"), max_examples=500, derandomize=False, print_blob=True)
# `make suite SEED=` draws new examples, as many as usual.
settings.register_profile("fresh", settings.get_profile("indus"), derandomize=False, print_blob=True)
settings.load_profile("indus")
# Hypothesis also draws the constants of every local module that is loaded at that moment. Which ones are depends on the
# tests that ran before in the same process, so the examples of a test would differ from run to run, `derandomize` or
# not (https://github.com/HypothesisWorks/hypothesis/issues/4627).
providers._get_local_constants = Constants

pytest_plugins = ("tests.support.report",)

# `nohup make test` ignores SIGHUP and a shell's background job SIGINT, and so would every command that a test starts.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_PROXIES = ("http_proxy", "https_proxy", "no_proxy", "request_method")
_SIGN_IN = ("INDUS_CREDENTIALS_KEY", "CREDENTIALS_DIRECTORY", "DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
_VARIABLES = ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", *_PROXIES, *map(str.upper, _PROXIES), *_SIGN_IN)
# As `make` does: with other variables of the interpreter a command is started instead of forked
# (`tests.support.forked`), and without bytecode it compiles the packages again, and each worker all tests.
for _name in ("PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"):
    os.environ.pop(_name, None)
sys.dont_write_bytecode = False
PACKAGES = ("indusagi", "induscode")
"""Blocking calls and leftover tasks of both packages fail a test."""


class Watch:
    """One thread that cancels the async test that runs for longer than `limit_s`.

    The thread goes by the clock of the machine, because a test may move that of its loop. All tests have one
    limit, so that a new deadline is never the next one, and the thread need not be told of it.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._deadline = 0.0
        threading.Thread(target=self._run, name="watch of async tests", daemon=True).start()

    def begin(self, cancel: Callable[[], None]) -> None:
        """Call `cancel` once the limit has passed."""
        with self._lock:
            self._cancel, self._deadline = cancel, monotonic() + self.limit_s

    def end(self) -> None:
        """Forget the test: once this has returned, `cancel` is not called any more."""
        with self._lock:
            self._cancel = None

    def _run(self) -> None:
        never = threading.Event()
        while True:
            with self._lock:
                left = self._deadline - monotonic() if self._cancel else self.limit_s
                if self._cancel and left <= 0:
                    self._cancel()
                    self._cancel = None
            never.wait(max(left, 0.01))


WATCH = pytest.StashKey[Watch]()
HANGS_S = 400.0
"""A test that runs for so long and cannot be interrupted: the process prints its stacks and exits."""
LEFT_THREADS_S = 2.0
"""How long a run that failed waits at its end for the threads that its tests have left."""
_armed_at = float("-inf")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Postpone the end of the process, once in a while.

    The option `faulthandler_timeout` of pytest does so for each test, and waits each time for a thread to end.
    """
    global _armed_at
    if monotonic() - _armed_at > HANGS_S / 5:
        _armed_at = monotonic()
        faulthandler.dump_traceback_later(HANGS_S, exit=True, file=item.config.stash[fault_handler_stderr_fd_key])


def pytest_sessionstart(session: pytest.Session) -> None:
    """Start the watch before any test, which would otherwise have left a thread behind."""
    gc.disable()
    secrets._SETTLED_S = CONSTANTS["indusagi.core.secrets:_SETTLED_S"]
    # A shell lets commands in its background ignore Ctrl-C, and what the tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    limit_s = float(session.config.getoption("timeout") or session.config.getini("timeout"))
    session.config.stash[WATCH] = Watch(max(limit_s - 1, limit_s / 2))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Give two workers per core, for `-n auto`: tests of processes wait a good deal."""
    cores = os.cpu_count() or 1
    return min(2 * cores, 8)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking the collected tests, hundreds of thousands of objects, over and over."""
    gc.enable()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Cancel an async test one second before pytest-timeout would interrupt it.

    The signal of pytest-timeout interrupts the event loop rather than the test: the task of the test goes on, and the
    teardown of its fixtures waits for that task without end (https://github.com/pytest-dev/pytest-timeout).
    """
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        pyfuncitem.obj = _cancel_by(pyfuncitem.config.stash[WATCH], test)
    return (yield)


def _cancel_by(watch: Watch, test: Callable[..., Awaitable[None]]) -> Callable[..., object]:
    @functools.wraps(test)
    async def run_bounded(**fixtures: object) -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        late = threading.Event()

        def cancel() -> None:
            late.set()
            loop.call_soon_threadsafe(task.cancel)

        watch.begin(cancel)
        try:
            await test(**fixtures)
        except asyncio.CancelledError:
            if late.is_set():
                pytest.fail(f"the test took longer than {watch.limit_s:g} s")
            raise
        finally:
            watch.end()

    return run_bounded


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Stop coverage in a worker during repetitive tests, which it makes more than twice as slow."""
    repeats = any(item.get_closest_marker(name) for name in ("hypothesis", "repeats"))
    measuring = _measuring(item.config) if repeats else None
    if measuring is None:
        return (yield)
    measuring.stop()
    try:
        return (yield)
    finally:
        measuring.start()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None]:
    """Save the coverage data, since a worker that is slow to end is killed.

    A failed test may leave a thread that never ends, for which the interpreter would wait at exit. The time
    runs once the summary is printed and old directories are removed.
    """
    faulthandler.cancel_dump_traceback_later()
    if (measuring := _measuring(session.config)) is not None:
        measuring.save()
    yield
    if exitstatus:
        if (reporter := session.config.pluginmanager.get_plugin("terminalreporter")) is not None:  # not in a worker
            reporter.flush()
        timer = threading.Timer(LEFT_THREADS_S, os._exit, (int(exitstatus),))
        timer.daemon = True
        timer.start()


def _measuring(config: pytest.Config) -> Coverage | None:
    """Return the coverage of this process if it is a worker."""
    if not hasattr(config, "workerinput"):
        return None
    from coverage import Coverage  # noqa: PLC0415 — slow to import, and only for workers

    return Coverage.current()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", autouse=True)
def _memory_goes_back() -> Iterator[None]:
    """Return freed memory to the system after each module: fork copies the page tables of the process."""
    yield
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc
    if trim is not None:
        trim(0)


@pytest.fixture(scope="session")
def _new_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make numbered directories.

    The factory of pytest lists all existing ones before each new one, which is slow after some thousand tests.
    """
    where = tmp_path_factory.mktemp("t")
    numbers = count()

    def make(name: str) -> Path:
        folder = where / f"{name}{next(numbers)}"
        folder.mkdir(mode=0o700)
        return folder

    return make


@pytest.fixture(scope="session", autouse=True)
def _few_authorities(_new_folder: Callable[[str], Path]) -> Iterator[None]:
    """Let every HTTP client, here and in other processes, load one certificate: all of them take as long as a test."""
    with pytest.MonkeyPatch.context() as patch:
        paths = ssl.get_default_verify_paths()
        bundle = Path(paths.cafile or paths.openssl_cafile)
        end = "-----END CERTIFICATE-----\n"
        first, found, _ = bundle.read_text("utf-8").partition(end) if bundle.is_file() else ("", "", "")
        if found:
            one = _new_folder("authorities") / "one.pem"
            one.write_text(first + end, "utf-8")
            patch.setenv("SSL_CERT_FILE", str(one))
            patch.delenv("SSL_CERT_DIR", raising=False)
        yield


@pytest.fixture(scope="session", autouse=True)
def _bubblewrap(_new_folder: Callable[[str], Path]) -> Iterator[None]:
    """Let the tests find the bubblewrap that `make setup` has fetched, if the system has none that works."""
    with pytest.MonkeyPatch.context() as patch:
        offer_bubblewrap(_new_folder("bubblewrap"), patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_death_signal() -> Iterator[None]:
    """Let the servers of the tests start without `PR_SET_PDEATHSIG`: it needs a fork, which copies all page tables.

    What a killed process leaves behind is tested with processes of their own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("indusagi.core.process.child._libc", None)
        yield


@pytest.fixture
def tmp_path(_new_folder: Callable[[str], Path], request: pytest.FixtureRequest) -> Path:
    """Make a directory named after the test, as pytest does."""
    return _new_folder(re.sub(r"\W", "_", request.node.name)[:30])


@pytest.fixture(scope="session")
def _empty_home(_new_folder: Callable[[str], Path]) -> Callable[[], Path]:
    """Give a directory that nothing has changed since it was made: most tests leave theirs to the next one."""
    home: list[tuple[Path, int]] = []

    def give() -> Path:
        if not home or home[0][0].stat().st_ctime_ns != home[0][1]:
            made = _new_folder("home")
            home[:] = [(made, made.stat().st_ctime_ns)]
        return home[0][0]

    return give


@pytest.fixture(autouse=True)
def _private_home(_empty_home: Callable[[], Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep tests away from the files, proxies, keyring and browser of the user."""
    home = _empty_home()
    monkeypatch.setenv("HOME", str(home))
    for name in _VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")
    monkeypatch.setattr(secrets, "_known", ())
    return home


@pytest.fixture(autouse=True)
def _no_leaks() -> Iterator[None]:
    """Fail on leaked descriptors, threads, child processes and tasks."""
    before: HeldResources = snapshot_resources()
    yield
    leaked = find_leaks(before)
    if leaked:
        pytest.fail("left behind: " + "; ".join(leaked))


@pytest.fixture(autouse=True)
def _no_context_left() -> Iterator[None]:
    """Undo what a test without an event loop has set in context variables: the next one would see it."""
    before = copy_context()
    yield
    for variable, value in copy_context().items():
        if variable not in before:
            with suppress(LookupError):  # a variable without a default
                variable.set(Context().run(variable.get))
        elif before[variable] is not value:
            variable.set(before[variable])


@pytest.fixture
async def _tasks_end() -> AsyncGenerator[None]:
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before
    for looks in range(1_000):
        left = {task for task in left if not task.done() and _is_ours(task)}
        if not left:
            return
        await asyncio.sleep(min(0.0002 * looks, 0.01))
    pytest.fail("left behind: " + "; ".join(f"task {task.get_name()}" for task in left))


def _is_ours(task: asyncio.Task[object]) -> bool:
    """Tell whether a task runs code of our packages."""
    code = getattr(task.get_coro(), "cr_code", None)
    return code is not None and any(f"/{name}/" in code.co_filename for name in PACKAGES)


@pytest.fixture(autouse=True)
def _no_tasks_left(request: pytest.FixtureRequest) -> None:
    """Fail an async test that leaves tasks running."""
    if inspect.iscoroutinefunction(request.function):
        request.getfixturevalue("_tasks_end")


@pytest.fixture(scope="session", autouse=True)
def _no_blocking_calls() -> Iterator[None]:
    """Fail on a blocking call in the event loop (https://github.com/cbornet/blockbuster).

    Activated once for all tests: replacing some sixty functions takes longer than most tests.
    """
    with blockbuster_ctx(list(PACKAGES)) as blockers:
        # A child process is started in the thread of the loop (PR_SET_PDEATHSIG); Popen waits for its exec.
        blockers.functions["os.read"].can_block_in("subprocess.py", "_execute_child")
        # Coverage locks its own data in any callback.
        blockers.functions["threading.Lock.acquire"].can_block_in("coverage/collector.py", "lock_data")
        yield
