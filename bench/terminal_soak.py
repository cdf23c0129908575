"""Many turns of one session on a terminal: `python -m bench.terminal_soak --turns 2000`.

A scripted model reads a file, runs a command and answers. Between turns the idle process is measured: descriptors,
tasks, threads and processes must not grow. The conversation itself is kept in memory, so memory and objects may grow by
a limited amount per turn. At the end the conversation is continued in a new process, whose prompt must be shown within
half a second; how long it takes until the conversation is open is reported beside a new conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from collections import UserList
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from tests.support.model_server import Reply, model_server

from bench.process import compile_packages, console_script
from bench.row import CannotMeasure
from bench.soak.growth import LEAST, judge
from bench.soak.sample import QUANTITIES, at_rest
from bench.terminal import PROMPT, Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from bench.soak.sample import Sample

_SUBJECT = str(Path(__file__).parent / "soak" / "subject.py")
_TURNS = 240
_SAMPLES = 40
_CONTINUE_S = 0.5
_KEPT_BYTES, _KEPT_OBJECTS = 20_000, 60
"""What a turn may leave in memory: its messages."""


class _Script(UserList[Reply]):
    """Replies without end: a turn reads a file, runs a command, and answers with its number."""

    def __init__(self) -> None:
        super().__init__([Reply()])
        self._step = 0

    def pop(self, i: int = -1) -> Reply:
        self._step += 1
        return (
            Reply(calls=(("read", {"path": "notes.txt"}),)),
            Reply(calls=(("bash", {"command": "echo hello"}),)),
            Reply(text=["An **answer** of a few words.\n\n", "- one\n- two\n\n", f"End of turn {self._step // 3}."]),
        )[self._step % 3 - 1]


def run_turns(turns: int) -> tuple[list[Sample], list[tuple[float, float]]]:
    """Run a session of so many turns; give the samples, and how long a continued and a new session take to start.

    Raises:
        CannotMeasure: A turn is not answered.
    """
    compile_packages()
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder, model_server() as server:
        server.script = _Script()  # type: ignore[assignment]  # a list in every respect that matters
        Path(folder, "notes.txt").write_text("a line\n" * 20, encoding="utf-8")
        where = {"OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_API_KEY": "none"}
        words = ["--model", "openai:scripted", "--approval", "all"]
        socket = os.path.join(folder, "observer")
        session = Session([sys.executable, _SUBJECT, socket, *words], folder, **where)
        try:
            session.read_until(b"of context")
            for number in range(1, turns + 1):
                session.type(f"message {number}\r")
                session.read_until(f"End of turn {number}.".encode())
                server.requests.clear()
                server.headers.clear()
                if number % max(1, turns // _SAMPLES) == 0:
                    samples.append(_sample(session, socket))
                    print(f"{number} turns: {samples[-1]}", file=sys.stderr, flush=True)
            session.type("\x04")
            session.drain()
        finally:
            session.close()
        return samples, [_time_start(["--continue", *words], folder, where), _time_start(words, folder, where)]


def _time_start(words: Sequence[str], folder: str, where: Mapping[str, str]) -> tuple[float, float]:
    """Give the seconds until the prompt is shown, and until the conversation is open."""
    started = perf_counter()
    session = Session([console_script("indus"), *words], folder, **where)
    try:
        shown = session.read_until(PROMPT)
        prompt_s = perf_counter() - started
        while b"context" not in shown:
            shown += session.read_until(b"[")
        return prompt_s, perf_counter() - started
    finally:
        session.close()


def _sample(session: Session, socket: str) -> Sample:
    """Measure the idle process, while its output is read."""
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            session.read(0.02)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        return asyncio.run(at_rest(session.process.pid, socket))
    finally:
        stop.set()
        reader.join()


def report(samples: Sequence[Sample], turns: int, starts: Sequence[tuple[float, float]]) -> bool:
    """Print what became of each quantity; return whether all is well."""
    is_ok = starts[0][0] <= _CONTINUE_S
    # From the middle of the first third of the judged samples to that of the last third: two thirds of four fifths.
    judged_turns = turns * 4 / 5 * 2 / 3
    for quantity, series in zip(QUANTITIES, zip(*(sample.values() for sample in samples), strict=True), strict=True):
        verdict = judge(quantity, series)
        kept = {"memory, MB": _KEPT_BYTES, "objects": _KEPT_OBJECTS}.get(quantity.name, 0) * judged_turns
        is_flat = verdict.last <= verdict.allowed + kept
        is_ok = is_ok and is_flat
        per_turn = (verdict.last - verdict.first) / judged_turns
        print(
            f"{quantity.name:20} {verdict.first / quantity.unit:12,.1f} {verdict.last / quantity.unit:12,.1f} "
            f"{per_turn:12,.1f} a turn  {'' if is_flat else 'GROWS'}"
        )
    for (prompt_s, open_s), what in zip(starts, (f"--continue after {turns:,} turns", "a new session"), strict=True):
        print(f"{what}: prompt after {prompt_s:.2f} s, conversation open after {open_s:.2f} s")
    return is_ok


def main(arguments: Sequence[str]) -> int:
    """Soak, print what came of it, and give the exit code."""
    parser = argparse.ArgumentParser(prog="bench.terminal_soak", description="Many turns of one session.")
    parser.add_argument("--turns", type=int, default=_TURNS, help=f"default: {_TURNS}, at least {LEAST}")
    options = parser.parse_args(arguments)
    try:
        samples, starts = run_turns(max(LEAST, options.turns))
    except CannotMeasure as exc:
        print(f"bench.terminal_soak: {exc}", file=sys.stderr)
        return 2
    return 0 if report(samples, max(LEAST, options.turns), starts) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
