"""How soon the interactive session shows its prompt, and how soon a key appears while a model speaks.

The program runs on a pseudo terminal (https://man7.org/linux/man-pages/man7/pty.7.html). The first prompt is compared
with an interpreter that does nothing; a key has its limit in milliseconds, one frame of a display.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import statistics
import struct
import subprocess
import tempfile
import termios
import threading
from collections import UserList
from time import perf_counter, sleep
from typing import TYPE_CHECKING

import pyte
from tests.support.model_server import Reply, model_server

from bench.measure import compare
from bench.process import compile_packages, console_script, python, starts, surroundings
from bench.row import CannotMeasure, Check, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.measure import Pair

_LIMIT_S = 30.0
_ROUNDS = 11
PROMPT = b">\x1b[0m"
_COLUMNS, _ROWS = 80, 24
_TOKENS_PER_S = 200
_KEYS = 300
_LINE = 40
"""Keys until the line is cleared."""
_KEY_GAP_S = (0.005, 0.045)
_FRAME_S = 0.016


class Session:
    """The program on a terminal; closing it kills the process."""

    def __init__(self, command: Sequence[str], folder: str, **variables: str) -> None:
        self._ours, theirs = os.openpty()
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        environ = {**surroundings(), "TERM": "xterm-256color", "HOME": folder, **variables}
        environ.pop("XDG_STATE_HOME", None)
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=folder, env=environ, start_new_session=True
        )
        os.close(theirs)

    def read(self, timeout_s: float = _LIMIT_S) -> bytes:
        """Read what is written next; nothing after the timeout.

        Raises:
            CannotMeasure: The program has ended.
        """
        if not select.select([self._ours], [], [], timeout_s)[0]:
            return b""
        try:
            return os.read(self._ours, 65_536)
        except OSError as exc:  # EIO: the program has closed its side
            raise CannotMeasure(f"indus ended with {self.process.wait(_LIMIT_S)}") from exc

    def read_until(self, wanted: bytes) -> bytes:
        """Read until some bytes were written; return everything.

        Raises:
            CannotMeasure: They do not come.
        """
        seen = b""
        end = perf_counter() + _LIMIT_S
        while wanted not in seen:
            seen += self.read()
            if perf_counter() > end:
                raise CannotMeasure(f"{wanted!r} does not come: {seen[-500:].decode(errors='replace')}")
        return seen

    def type(self, keys: str) -> None:
        """Send keys."""
        os.write(self._ours, keys.encode())

    def drain(self) -> None:
        """Read until the program has ended."""
        try:
            while self.read():
                pass
        except CannotMeasure:
            return

    def close(self) -> None:
        """End the program."""
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


# -- the first prompt -----------------------------------------------------------------------------


def _first_prompt() -> Pair:
    compile_packages()
    indus = console_script("indus")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:

        def show(count: int) -> float:
            total = 0.0
            for _ in range(count):
                started = perf_counter()
                session = Session([indus, "--model", "openai:scripted"], folder, OPENAI_API_KEY="none")
                try:
                    session.read_until(PROMPT)
                    total += perf_counter() - started
                finally:
                    session.close()
            return total

        return compare(show, starts(python("-c", "pass")), rounds=_ROUNDS)


# -- keys while a model speaks --------------------------------------------------------------------


class _Tokens(UserList[str]):
    """Words at a constant rate, in paragraphs, until `stop` is set."""

    def __init__(self) -> None:
        super().__init__(["word "])
        self.stop = threading.Event()

    def __iter__(self) -> Iterator[str]:
        due = perf_counter()
        number = 0
        while not self.stop.is_set():
            number += 1
            yield "**word**\n\n" if number % 60 == 0 else f"word{number} "
            due += 1 / _TOKENS_PER_S
            sleep(max(0.0, due - perf_counter()))


def _echo() -> Check:
    compile_packages()
    delays = measure_echo(_KEYS)
    cut = statistics.quantiles(delays, n=20)
    note = f"p50 {cut[9] * 1000:.1f} ms, p95 {cut[18] * 1000:.1f} ms at {_TOKENS_PER_S} tokens a second"
    return Check(cut[18] <= _FRAME_S, note)


def measure_echo(keys: int) -> list[float]:
    """Type keys while a model speaks; give the seconds until each is shown.

    Raises:
        CannotMeasure: A key is not shown.
    """
    tokens, random_gap = _Tokens(), random.Random(1)
    screen = pyte.Screen(_COLUMNS, _ROWS)
    stream = pyte.ByteStream(screen)
    delays: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, model_server(Reply(text=tokens)) as server:
        where = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
        session = Session([console_script("indus"), "--model", "openai:scripted"], folder, **where)
        try:
            stream.feed(session.read_until(PROMPT))
            session.type("speak\r")
            stream.feed(session.read_until(b"word100"))
            typed = ""
            for number in range(keys):
                is_new = number % _LINE == 0  # Ctrl-U clears the line
                typed = "a" if is_new else typed + "abcdefghij"[number % 10]
                sent = perf_counter()
                session.type("\x15a" if is_new else typed[-1])
                arrived = _wait_for_line(session, screen, stream, f"> {typed}")
                delays.append(arrived - sent)
                end = perf_counter() + random_gap.uniform(*_KEY_GAP_S)
                while (left := end - perf_counter()) > 0:
                    stream.feed(session.read(left))
        finally:
            tokens.stop.set()
            session.close()
    return delays


def _wait_for_line(session: Session, screen: pyte.Screen, stream: pyte.ByteStream, wanted: str) -> float:
    """Read until the input line is as wanted; return when the bytes arrived that made it so."""
    end = perf_counter() + _LIMIT_S
    while perf_counter() < end:
        data = session.read()
        arrived = perf_counter()
        stream.feed(data)
        if any(row.rstrip() == wanted for row in screen.display):
            return arrived
    raise CannotMeasure(f"{wanted!r} is not shown: {screen.display}")


ROWS = (
    Row("first-prompt", "indus on a terminal until its prompt", "python -c pass", _first_prompt, budget=15),
    Row("echo", "a key until it is shown, while a model speaks", f"{_FRAME_S * 1000:g} ms for 95 of 100", _echo),
)
