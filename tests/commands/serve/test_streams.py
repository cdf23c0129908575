"""`indus serve` with streams that nobody reads, and with signals before it serves."""

from __future__ import annotations

import io
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
from indusagi.core.process.tree import MARK
from induscode.commands.serve import signals as serve_early
from induscode.commands.serve import signals as serve_signals
from induscode.commands.serve import stderr as serve_errors
from induscode.commands.serve.recursion import kill_all_below, look
from induscode.commands.serve.signals import install_early_handlers, serving_signals, take_pending_reload
from induscode.commands.serve.stderr import NonBlockingStderr, flush_stderr, non_blocking_stderr

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

pytestmark = pytest.mark.process
LINE = "x" * 1_000
NOISY = 400
"""Rows that cannot be used: there is more to say of them than a pipe holds."""


# -- standard error ---------------------------------------------------------------------------


def test_an_unread_standard_error_stops_neither_the_answers_nor_the_end(tmp_path: Path) -> None:
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
        process.stdin.write(f"{_json(hello())}\n")
        listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        process.stdin.write(f"{_json(listing)}\n")
        process.stdin.flush()
        assert '"serverInfo"' in process.stdout.readline()
        assert '"tools":[]' in process.stdout.readline()
        process.terminate()
        assert process.wait(LIMIT_S) == 0
    finally:
        process.kill()
        process.communicate()
        os.close(reading)


def _json(frame: object) -> str:
    import json  # noqa: PLC0415 — for one line

    return json.dumps(frame)


@contextmanager
def _pipe() -> Generator[tuple[int, NonBlockingStderr]]:
    reading, writing = os.pipe()
    aside = NonBlockingStderr(writing, "ascii")
    try:
        yield reading, aside
    finally:
        os.close(reading)
        aside.end()
        os.close(writing)


def test_what_does_not_fit_is_counted_and_told_when_somebody_reads_again() -> None:
    with _pipe() as (reading, aside):
        print("first", file=aside)
        assert os.read(reading, 100) == b"first\n", "a line is out when it is said"
        lines = 1_000
        for _ in range(lines):
            print(LINE, file=aside)
        assert not aside.out_within(0)
        seen = b""
        while b"dropped" not in seen or not seen.endswith(b"\n"):
            seen += os.read(reading, 1 << 20)
        assert aside.out_within(LIMIT_S)
        *whole, said = seen.decode().splitlines()
        assert {*whole} == {LINE}
        dropped = lines - len(whole)
        assert dropped > lines / 2
        assert said == f"indus: {dropped:,} lines were dropped: nobody read standard error"
        print("caf\xe9", file=aside)
        assert os.read(reading, 100) == b"caf\\xe9\n"


def test_a_line_is_written_when_it_is_whole_and_one_without_end_is_dropped() -> None:
    with _pipe() as (reading, aside):
        aside.write("one ")
        aside.write("line\nand")
        assert os.read(reading, 100) == b"one line\n"
        aside.write("y" * 300_000)
        print("after", file=aside)
        said = b"after\nindus: 1 lines were dropped: nobody read standard error\n"
        assert aside.out_within(LIMIT_S)
        assert os.read(reading, 1_000) == said
        assert aside.writable()
        assert not aside.isatty()


def test_one_that_must_not_wait_is_waited_for_elsewhere() -> None:
    with _pipe() as (reading, aside):
        os.set_blocking(aside.fileno(), False)
        for _ in range(200):
            print(LINE, file=aside)
        seen = 0
        while seen < 200 * (len(LINE) + 1):
            seen += len(os.read(reading, 1 << 20))
        assert aside.out_within(LIMIT_S)


def test_when_the_reader_has_left_nothing_is_kept() -> None:
    with _pipe() as (reading, aside):
        with open(os.devnull, "rb") as nothing:
            os.dup2(nothing.fileno(), reading)
        print("to nobody", file=aside)
        assert aside.out_within(LIMIT_S)


def test_standard_error_is_given_back_when_all_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve_errors, "_LAST_S", 0.01)
    reading, writing = os.pipe()
    with open(writing, "w", encoding="utf-8") as usual:
        monkeypatch.setattr(sys, "stderr", usual)
        with non_blocking_stderr():
            assert sys.stderr is not usual
            sys.stderr.write("said\n")
            flush_stderr(LIMIT_S)
        assert sys.stderr is usual
        assert os.read(reading, 100) == b"said\n"
        with non_blocking_stderr():
            for _ in range(200):
                sys.stderr.write(f"{LINE}\n")
            aside = sys.stderr
        assert sys.stderr is aside, "what is said later would wait as well"
        reader = threading.Thread(target=_read_all, args=(reading,))
        reader.start()
        assert isinstance(aside, NonBlockingStderr)
        assert aside.out_within(LIMIT_S)
        aside.end()
    reader.join(LIMIT_S)
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with non_blocking_stderr():
        assert isinstance(sys.stderr, io.StringIO)
        flush_stderr(0)


def _read_all(descriptor: int) -> None:
    while os.read(descriptor, 1 << 20):
        pass
    os.close(descriptor)


# -- standard output --------------------------------------------------------------------------


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_standard_output_that_takes_nothing_is_one_line_and_a_failure(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    asked.write_text(f"{_json(hello())}\n", encoding="utf-8")
    with asked.open() as source, open("/dev/full", "w", encoding="utf-8") as sink:
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


# -- signals before it serves -----------------------------------------------------------------


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130), (signal.SIGHUP, None)])
@pytest.mark.parametrize("words", [["serve"], ["--no-mcp", "serve"]], ids=" ".join)
def test_a_signal_before_it_serves_is_heard(tmp_path: Path, number: int, code: int | None, words: list[str]) -> None:
    # It waits where it reads its files: before there is an event loop.
    held = tmp_path / "held"
    script = HELD.format(words=[*words, "--profile", "none"], held=str(held))
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=tmp_path,
        start_new_session=True,
    )
    try:
        wait_for(held.exists)
        process.send_signal(number)
        if code is None:
            held.unlink()
            assert process.stderr is not None
            assert b"serving over" in process.stderr.readline()
            process.terminate()
        assert process.wait(LIMIT_S) == (code or 0)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> Generator[list[int]]:
    """Collect the exit codes of ends at once, and put the signals back afterwards."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    usual = {number: signal.getsignal(number) for number in numbers}
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    yield codes
    for number, handler in usual.items():
        signal.signal(number, handler)


def test_a_hangup_before_it_serves_is_remembered_once(exits: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    there = [True, False]
    monkeypatch.setattr(serve_early, "has_terminal", lambda: there[0])
    install_early_handlers()
    assert not take_pending_reload()
    os.kill(os.getpid(), signal.SIGHUP)
    assert take_pending_reload()
    assert not take_pending_reload()
    assert exits == []
    there.pop(0)
    os.kill(os.getpid(), signal.SIGHUP)
    assert exits == [128 + signal.SIGHUP], "the terminal is gone"
    take_pending_reload()


def test_an_end_before_it_serves_has_the_code_of_its_signal(exits: list[int]) -> None:
    install_early_handlers()
    for number in (signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    assert exits == [0, 130]


async def test_the_second_signal_ends_what_was_started_and_then_us(
    exits: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    ended = anyio.Event()

    def end(code: int) -> None:
        exits.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    # This loop may outlive the test, and nothing must end it then.
    monkeypatch.setattr(serve_signals, "_CLOSING_S", 1e9)
    monkeypatch.setattr(serve_signals, "kill_all_below", lambda: done.append("killed"))
    async with serving_signals() as told:
        os.kill(os.getpid(), signal.SIGTERM)
        await told.end.wait()
        assert (done, exits, told.code) == ([], [], 0)
        os.kill(os.getpid(), signal.SIGINT)
        with anyio.fail_after(LIMIT_S):
            await ended.wait()
        assert (done, exits) == (["killed"], [130])


async def test_a_hangup_from_before_is_heard_when_it_serves(exits: list[int]) -> None:
    install_early_handlers()
    os.kill(os.getpid(), signal.SIGHUP)
    async with serving_signals() as told:
        assert told.again.is_set()
    async with serving_signals() as told:
        assert not told.again.is_set()
    assert exits == []


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="needs to see processes")
def test_all_that_a_child_has_started_is_killed_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "setsid sleep 60 & echo $!; sleep 60 & echo $!; wait"
    for marked in (True, False):
        env = {**os.environ, **({MARK: f"outer {new_ulid()}"} if marked else {})}
        child = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, env=env, start_new_session=True)
        assert child.stdout is not None
        far, near = (int(child.stdout.readline()) for _ in range(2))
        monkeypatch.setattr(os, "listdir", _listing(child.pid))
        kill_all_below()
        monkeypatch.undo()
        assert child.wait(LIMIT_S) == -signal.SIGKILL
        wait_for(lambda near=near: not is_alive(near))
        if marked:
            wait_for(lambda far=far: not is_alive(far))
        else:
            os.kill(far, signal.SIGKILL)
        child.stdout.close()


def _listing(child: int) -> Callable[[str], list[str]]:
    """Hide the children of others who run in this process."""
    usual, ours = os.listdir, str(os.getpid())
    others = {
        name for name in usual("/proc") if name.isdigit() and (found := look(int(name))) and str(found.parent) == ours
    } - {str(child)}
    return lambda path: [name for name in usual(path) if name not in others]


HELD = """
import os, sys, time
sys.argv = ["indus", *{words!r}]
from induscode.cli import main
import induscode.commands.support.runner as running
def load_plan(invocation, real=running.load_plan):
    open({held!r}, "w").close()
    while os.path.exists({held!r}):
        time.sleep(0.01)
    return real(invocation)
running.load_plan = load_plan
sys.exit(main())
"""
