"""Running a client to its end, or interrupting it in the middle of a call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from outside.clients.report import NoReport

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from indusagi.core.json import JsonValue
    from outside.clients.subject import Subject

_RUN_S = 60.0
_LOOK_S = 0.3


@dataclass(frozen=True, slots=True)
class Runs:
    """Runs the commands of one client; `look` is called while they run."""

    subject: Subject
    look: Callable[[], None]

    def result(self, *command: str) -> JsonValue:
        """Run a command to its end and read the JSON it writes.

        Raises:
            NoReport: It writes none in time.
        """
        with self._started(command) as process:
            said, complained = self._wait_until_ended(process)
        try:
            # The exit code says the same as the JSON; where it does not, nothing was written.
            return json.loads(said)
        except ValueError:
            code = process.returncode
            raise NoReport(f"ended with {code}: {_tail(said, complained)}") from None

    def interrupted(self, *command: str) -> str:
        """Interrupt a command once the slow tool runs; tell what it wrote as its result.

        Raises:
            NoReport: It does not come so far, or does not end.
        """
        with self._started(command) as process:
            deadline = time.monotonic() + _RUN_S
            while "started" not in self.subject.happened():
                if process.poll() is not None or time.monotonic() > deadline:
                    raise NoReport(f"it never called: {_tail(*self._wait_until_ended(process))}")
                time.sleep(0.02)
            self.look()
            # The client alone, not its group: what it started must learn of it from the client.
            process.send_signal(signal.SIGINT)
            said, _ = self._wait_until_ended(process)
        return said.strip()[:200]

    def _wait_until_ended(self, process: subprocess.Popen[str]) -> tuple[str, str]:
        deadline = time.monotonic() + _RUN_S
        while True:
            try:
                return process.communicate(timeout=_LOOK_S)
            except subprocess.TimeoutExpired:
                self.look()
            if time.monotonic() > deadline:
                raise NoReport(f"it does not end within {_RUN_S:.0f} s")

    @contextmanager
    def _started(self, command: Sequence[str]) -> Generator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            command,
            env=self.subject.env,
            cwd=self.subject.home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)


def _tail(*said: str) -> str:
    return " ".join(text.strip()[-800:] for text in said if text.strip())
