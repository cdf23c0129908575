"""Records which lines of `src` a process runs, for the test that runs at that moment.

Every interpreter of a slot imports this module at its start, by a `.pth` file, whatever arguments and variables it was
given. It records if the file `record/current` names a test. It imports nothing of ours: it runs on its own.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from coverage import Coverage

RECORD = os.path.join(sys.prefix, "record")
CURRENT = os.path.join(RECORD, "current")
SOURCES = os.path.join(os.path.dirname(sys.prefix), "src")


class ChildRecorder:
    """Records a process that a test has started, until its end or its next fork."""

    def __init__(self) -> None:
        self._context = ""
        self._coverage: Coverage | None = None

    def start(self) -> None:
        """Begin, for the test that runs now."""
        with suppress(OSError):
            with open(CURRENT, encoding="utf-8") as file:
                self._context = file.read()
            self._coverage = start_coverage()

    def restart(self) -> None:
        """Begin anew in a forked process, perhaps for another test."""
        if self._coverage is not None:
            self._coverage.stop()
            self._coverage = None
            self.start()

    def save(self) -> None:
        """Write what was recorded. A process in a sandbox cannot, which must not change what it does."""
        if self._coverage is None:
            return
        import json  # noqa: PLC0415 — tests look at what an interpreter has loaded

        self._coverage.stop()
        data = self._coverage.get_data()
        self._coverage = None
        lines = {os.path.relpath(path, SOURCES): sorted(data.lines(path) or ()) for path in data.measured_files()}
        path = os.path.join(RECORD, f"{os.getpid()}-{os.urandom(6).hex()}.json")
        with suppress(OSError), open(path, "x", encoding="utf-8") as file:
            json.dump({"test": self._context, "lines": lines}, file)


def start_coverage() -> Coverage:
    """Start to record lines in memory."""
    from coverage import Coverage  # noqa: PLC0415 — slow to import, and only for a process that records

    coverage = Coverage(data_file=None, config_file=False, include=[f"{SOURCES}/*"], messages=False)
    coverage.start()
    return coverage


def record_child() -> None:
    """Record this process if a test runs now."""
    if os.path.exists(CURRENT):
        recorder = ChildRecorder()
        recorder.start()
        atexit.register(recorder.save)
        os.register_at_fork(after_in_child=recorder.restart)


if __name__ != "outside.mutants.recorder":
    record_child()
