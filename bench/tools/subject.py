"""Who is measured: an interpreter that has an `indusagi`, and a process of it that is talked to."""

from __future__ import annotations

import json
import os
import queue
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import IO, TYPE_CHECKING, TypedDict, cast

from bench.process import surroundings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from indusagi.core.json import JsonObject

_PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "program.py")
_MARK = "INDUS_BENCH_RUN"
"""In the environment of all that a subject starts: what it leaves behind is found by it."""
TOKEN_NAME, TOKEN = "BENCH_API_TOKEN", "not-a-real-token"
"""In the environment of the subject, as a session has it; its commands are to see none of it."""
_START_S = 30.0
_EXIT_S = 1.0
"""For the process to end by itself at the end of its input."""
_END_S = 5.0


class Stuck(Exception):
    """A subject that does not answer; the message is for a person."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An installation to measure."""

    name: str
    python: str


OURS = Subject("ours", sys.executable)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of one call."""

    seconds: float
    late_s: float
    """The longest that the event loop was held up meanwhile."""
    error: bool
    text: str
    reached: int
    """Requests that reached the forbidden server."""


@dataclass(frozen=True, slots=True)
class Batch:
    """What came of some calls; None stands for one that had not ended in time."""

    answers: tuple[Answer | None, ...]
    growth: int | None
    """How many bytes more it held at its worst than before; None if it did not end."""


class _Line(TypedDict, total=False):
    done: bool
    number: int
    seconds: float
    late: float
    error: bool
    text: str
    reached: int
    before: int
    peak: int
    secret: int
    entry: int


class Driver:
    """A process of a subject with one session in `folder`; it ends with the block, and all of it.

    Args:
        subject: Whose tools they are.
        folder: The working directory of the session.
        home: A private directory for whatever it keeps elsewhere.
        listen: Whether it opens the two servers of the web probes, in a network of its own if the
            machine can make one.
    """

    def __init__(self, subject: Subject, folder: Path, home: Path, *, listen: bool = False) -> None:
        self._subject = subject
        self._folder = folder
        self._home = home
        self._listen = listen
        self._mark = secrets.token_hex(16)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.secret = 0
        self.entry = 0

    def __enter__(self) -> Driver:
        self._home.mkdir(parents=True, exist_ok=True)
        around = alone() if self._listen else None
        self._process = subprocess.Popen(
            [*(around or ()), self._subject.python, "-P", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._home,
            env=self._environment(),
            encoding="utf-8",
            start_new_session=True,
        )
        assert self._process.stdout is not None
        # A daemon: were the subject to hold its end open for ever, this must not wait for it.
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()
        try:
            if self._listen:
                ports = self._ask({"op": "listen"}, _START_S)
                self.secret, self.entry = ports.get("secret", 0), ports.get("entry", 0)
            self._ask({"op": "open", "cwd": str(self._folder)}, _START_S)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(self, tool: str, arguments: JsonObject, limit_s: float = 60.0) -> Answer:
        """Call one tool.

        Raises:
            Stuck: It has not answered in `limit_s`.
        """
        (answer,) = self.calls([(tool, arguments)], limit_s=limit_s).answers
        if answer is None:
            raise Stuck(f"over {limit_s:g} s, given up")
        return answer

    def calls(
        self,
        calls: Sequence[tuple[str, JsonObject]],
        *,
        together: bool = False,
        watch: bool = True,
        limit_s: float = 60.0,
    ) -> Batch:
        """Call tools one after the other, or all at the same time.

        Without `watch` nothing else runs in the subject, and nothing is known of its event loop.
        """
        given = [list(call) for call in calls]
        self._tell({"op": "call", "calls": given, "together": together, "watch": watch})
        answers: list[Answer | None] = [None] * len(calls)
        deadline = monotonic() + limit_s
        growth: int | None = None
        with suppress(Stuck):
            while not (line := self._next(deadline)).get("done"):
                answers[line.get("number", 0)] = Answer(
                    line.get("seconds", 0.0),
                    line.get("late", 0.0),
                    line.get("error", False),
                    line.get("text", ""),
                    line.get("reached", 0),
                )
            growth = line.get("peak", 0) - line.get("before", 0)
        return Batch(tuple(answers), growth)

    def sessions(self, count: int) -> int:
        """Make, use and drop so many sessions; give how many bytes more are held after that.

        Raises:
            Stuck: That takes too long.
        """
        line = self._ask({"op": "sessions", "count": count}, 60.0)
        return line.get("peak", 0) - line.get("before", 0)

    def close_session(self) -> None:
        """End the session; the process stays.

        Raises:
            Stuck: That takes too long.
        """
        self._ask({"op": "close"}, 20.0)

    def left(self) -> list[int]:
        """List the processes that this one has started and that are still there."""
        return [pid for pid in _write_marker(self._mark) if pid != self._process.pid]

    def _environment(self) -> Mapping[str, str]:
        kept = {name: value for name, value in surroundings().items() if not name.startswith("XDG_")}
        own = {"HOME": str(self._home), "TMPDIR": str(self._home), TOKEN_NAME: TOKEN}
        return {**kept, **own, _MARK: self._mark, "PYTHONDONTWRITEBYTECODE": "1"}

    def _read(self, stream: IO[str]) -> None:
        with stream:
            for line in stream:
                self._lines.put(line)
        self._lines.put(None)

    def _ask(self, request: Mapping[str, object], limit_s: float) -> _Line:
        self._tell(request)
        return self._next(monotonic() + limit_s)

    def _tell(self, request: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps(request)}\n")
            self._process.stdin.flush()
        except OSError as exc:
            raise Stuck("its process has ended") from exc

    def _next(self, deadline: float) -> _Line:
        try:
            line = self._lines.get(timeout=max(0.0, deadline - monotonic()))
        except queue.Empty:
            raise Stuck("no answer in time") from None
        if line is None:
            raise Stuck("its process has ended")
        return cast("_Line", json.loads(line))

    def _end(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=_EXIT_S)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        deadline = monotonic() + _END_S
        # Until none is found: some are started while we look, and none is gone at once.
        while (left := _write_marker(self._mark)) and monotonic() < deadline:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            sleep(0.01)
        self._reader.join(_END_S)


def _write_marker(mark: str) -> list[int]:
    wanted = f"{_MARK}={mark}".encode()
    return [pid for pid in _pids() if wanted in _environment_of(pid).split(b"\0")]


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _environment_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def alone() -> list[str] | None:
    """Give the command that runs another in a network of its own; None where there is none."""
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        return None
    command = [bwrap, "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent"]
    try:
        tried = subprocess.run([*command, "true"], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return command if tried.returncode == 0 else None
