"""`indus serve` with streams that are not read, and its signals."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio
import pytest
from tests.commands.helpers import configured, user_file
from tests.commands.serving import hello, wait_for
from tests.support.scripts import command
from tests.support.waiting import LIMIT_S, is_alive

from indusagi.core.ids import new_ulid
from indusagi.core.process.tree import MARK, list_processes
from induscode.cli import process as serve_process
from induscode.cli.process import NonBlockingStderr, SignalState, handle_signals, kill_descendants, non_blocking_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

pytestmark = pytest.mark.process
LINE = "x" * 1_000
NOISY = 400
"""Unusable rows: their notes are larger than a pipe."""


# -- standard error ---------------------------------------------------------------------------


def test_unread_standard_error_delays_neither_responses_nor_exit(tmp_path: Path) -> None:
    configured(user_file(), {f"{number}-{'long' * 60}": {} for number in range(NOISY)})
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [command(), "serve", "--profile", "none"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=writing,
        cwd=tmp_path,
        text=True,
    )
    os.close(writing)
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{json.dumps(hello())}\n")
        process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "tools/list"}\n')
        process.stdin.flush()
        assert '"serverInfo"' in process.stdout.readline()
        assert '"tools":[]' in process.stdout.readline()
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(reading)


@contextmanager
def _pipe() -> Generator[tuple[int, NonBlockingStderr]]:
    reading, writing = os.pipe()
    try:
        yield reading, NonBlockingStderr(writing, "ascii")
    finally:
        os.close(reading)
        os.close(writing)


def test_lines_beyond_the_buffer_are_dropped_with_a_note() -> None:
    with _pipe() as (reading, stream):
        print("first", file=stream)
        assert os.read(reading, 100) == b"first\n"
        for _ in range(1_000):
            print(LINE, file=stream)
        assert not stream.drain(0)
        content = b""
        while not content.endswith(b"was not read\n"):
            content += os.read(reading, 1 << 20)
            stream.drain(0)
        assert content.decode().splitlines()[-1] == "indus: lines were dropped here: standard error was not read"
        assert content.count(b"dropped") == 1
        assert 100 < content.count(LINE.encode()) < 900
        print("caf\xe9", file=stream)
        assert os.read(reading, 100) == b"caf\\xe9\n"


@pytest.mark.parametrize("blocking", [True, False])
def test_buffered_lines_arrive_when_the_reader_reads_again(blocking: bool) -> None:
    with _pipe() as (reading, stream):
        os.set_blocking(stream.fileno(), blocking)
        for _ in range(200):
            print(LINE, file=stream)
        received = 0
        while received < 200 * (len(LINE) + 1):
            received += len(os.read(reading, 1 << 20))
            stream.drain(0)
        assert stream.writable()
        assert not stream.isatty()


def test_nothing_is_kept_after_the_reader_has_left() -> None:
    with _pipe() as (reading, stream):
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), reading)
        print("unread", file=stream)
        assert stream.drain(LIMIT_S)


def test_standard_error_is_restored_once_everything_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_process, "_FLUSH_S", 0.01)
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as usual:
        monkeypatch.setattr(sys, "stderr", usual)
        with non_blocking_stderr():
            assert sys.stderr is not usual
            sys.stderr.write("line\n")
        assert sys.stderr is usual
        assert os.read(reading, 100) == b"line\n"
        with non_blocking_stderr():
            for _ in range(200):
                sys.stderr.write(f"{LINE}\n")
            stream = sys.stderr
        assert sys.stderr is stream, "a later line would block as well"
        reader = threading.Thread(target=_read_all, args=(reading,))
        reader.start()
        assert isinstance(stream, NonBlockingStderr)
        assert stream.drain(LIMIT_S)
    reader.join(LIMIT_S)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with non_blocking_stderr():
        assert isinstance(sys.stderr, io.StringIO)


def _read_all(descriptor: int) -> None:
    while os.read(descriptor, 1 << 20):
        pass
    os.close(descriptor)


# -- standard output --------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_full_standard_output_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    request = tmp_path / "request"
    request.write_text(f"{json.dumps(hello())}\n", encoding="utf-8")
    with request.open() as source, open("/dev/full", "w", encoding="utf-8") as sink:
        done = subprocess.run(
            [command(), "serve", "--no-mcp"],
            stdin=source,
            stdout=sink,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            timeout=LIMIT_S,
            check=False,
        )
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.count("No space left on device") == 1


# -- signals ----------------------------------------------------------------------------------


def test_interrupt_before_the_event_loop_ends_without_a_traceback(tmp_path: Path) -> None:
    held = tmp_path / "held"
    process = subprocess.Popen(
        [sys.executable, "-c", HELD.format(held=str(held))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        wait_for(held.exists)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LIMIT_S)
        assert (process.returncode, errors) == (130, b"")
    finally:
        process.kill()


HELD = """
import os, sys, time
sys.argv = ["indus", "serve", "--profile", "none"]
from induscode.__main__ import main
import induscode.boot.plans as running
def load_plan(invocation):
    open({held!r}, "w").close()
    time.sleep(60)
running.load_plan = load_plan
sys.exit(main())
"""
"""A gateway that waits where it reads its files: before there is an event loop."""


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Generator[list[int]]:
    """Collect the codes of `os._exit`, and restore the signal handlers afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    usual = {number: signal.getsignal(number) for number in numbers}
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    yield codes
    for number, handler in usual.items():
        signal.signal(number, handler)


async def test_second_signal_kills_descendants_and_exits(exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    ended = anyio.Event()

    def end(code: int) -> None:
        exits.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    # This loop may outlive the test, and nothing must end it then.
    monkeypatch.setattr(serve_process, "_CLOSING_S", 1e9)
    monkeypatch.setattr(serve_process, "kill_descendants", lambda: done.append("killed"))
    async with handle_signals() as state:
        os.kill(os.getpid(), signal.SIGTERM)
        await state.end.wait()
        assert (done, exits, state.code) == ([], [], 0)
        os.kill(os.getpid(), signal.SIGINT)
        with anyio.fail_after(LIMIT_S):
            await ended.wait()
        assert (done, exits) == (["killed"], [130])


@pytest.mark.parametrize("is_closed", [False, True])
async def test_hangup_reloads_unless_the_terminal_is_closed(
    exits: list[int], monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    terminal = [True]
    monkeypatch.setattr(serve_process, "has_terminal", lambda: terminal[0])
    monkeypatch.setattr(serve_process, "_CLOSING_S", 1e9)
    async with handle_signals() as state:
        terminal[0] = not is_closed
        os.kill(os.getpid(), signal.SIGHUP)
        with anyio.fail_after(LIMIT_S):
            await (state.end if is_closed else state.reload).wait()
        assert state.end.cancelled is is_closed
        assert state.code == (129 if is_closed else 0)
    assert exits == []


def test_exit_code_follows_the_signal() -> None:
    for name, code in (("SIGTERM", 0), ("SIGINT", 130), ("SIGHUP", 129)):
        state = SignalState()
        state.end.cancel(name)
        assert state.code == code
    assert SignalState().code == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs to see processes")
@pytest.mark.parametrize("is_marked", [True, False])
def test_descendants_of_a_child_are_killed_with_it(monkeypatch: pytest.MonkeyPatch, is_marked: bool) -> None:
    script = "(setsid sleep 100 & echo $!); sleep 100 & echo $!; wait"  # the first one loses its parent
    env = {**os.environ, **({MARK: f"outer {new_ulid()}"} if is_marked else {})}
    child = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, env=env, start_new_session=True)
    assert child.stdout is not None
    far, near = (int(child.stdout.readline()) for _ in range(2))
    monkeypatch.setattr(os, "listdir", _hide_other_children(child.pid))
    kill_descendants()
    monkeypatch.undo()
    assert child.wait(LIMIT_S) == -signal.SIGKILL
    wait_for(lambda: not is_alive(near))
    if is_marked:
        wait_for(lambda: not is_alive(far))
    else:
        os.kill(far, signal.SIGKILL)
    child.stdout.close()


def _hide_other_children(child: int) -> Callable[[str], list[str]]:
    """Hide the children of other tests in this process."""
    usual = os.listdir
    others = {str(one.pid) for one in list_processes() if one.parent == os.getpid()} - {str(child)}
    return lambda path: [name for name in usual(path) if name not in others]
