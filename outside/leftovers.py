"""Which processes were started, and which of them are still there."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass

from outside.install import HOME

_SETTLE_S = 2.0
"""A process that was ended needs a moment to be gone; one that was left behind stays."""
_COLUMNS = ("pid=", "ppid=", "pgid=", "stat=", "lstart=", "args=")
_PS = ("ps", "-A", "-ww", *(word for column in _COLUMNS for word in ("-o", column)))
_BEFORE_ARGS = 9
"""So many words: the start alone takes five, `Mon Jan 5 12:00:00 2026`."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs; its number alone may be given to another one later."""

    pid: int
    parent: int
    group: int
    started: str
    args: str

    @property
    def identity(self) -> tuple[int, str]:
        """What stays the same for as long as it runs."""
        return self.pid, self.started


class Watch:
    """Knows what ran before, and finds what was left behind since.

    A process counts if it descends from this one. Whoever outlives its parent no longer does: it
    is known by the group it is in, or by a path in its command line, that of `.outside/` if no
    other is given.
    """

    def __init__(self, known_by: str = f"{HOME}/") -> None:
        self._known_by = known_by
        self._before = {process.identity for process in _running()}
        self._seen: set[tuple[int, str]] = set()

    def look(self) -> None:
        """Remember what was started, while it still has its parents."""
        self._is_new()

    def left(self) -> list[str]:
        """List what is still there, once what is only slow to go has gone."""
        deadline = time.monotonic() + _SETTLE_S
        while (left := self._is_new()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return sorted(f"{process.pid} {process.args}" for process in left)

    def _is_new(self) -> list[Process]:
        fresh = [process for process in _running() if process.identity not in self._before]
        families = {os.getpid(), *(pid for pid, _ in self._seen)}
        found: dict[int, Process] = {}
        grown = True
        while grown:
            more = {p.pid: p for p in fresh if p.pid not in found and self._counts(p, families)}
            found |= more
            families |= more.keys()
            grown = bool(more)
        self._seen |= {process.identity for process in found.values()}
        return list(found.values())

    def _counts(self, process: Process, families: set[int]) -> bool:
        related = process.parent in families or process.group in families - {os.getpid()}
        return related or self._known_by in process.args


def _running() -> list[Process]:
    env = {**os.environ, "LC_ALL": "C"}
    listed = subprocess.run(_PS, capture_output=True, text=True, env=env, check=True).stdout
    found: list[Process] = []
    for line in listed.splitlines():
        fields = line.split(None, _BEFORE_ARGS)
        pid, parent, group, state, *start = fields[:_BEFORE_ARGS]
        args = fields[_BEFORE_ARGS] if len(fields) > _BEFORE_ARGS else ""
        # Neither those that have ended and wait to be collected, nor the one that makes the list.
        if state[0] not in "ZX" and not args.startswith(" ".join(_PS)):
            found.append(Process(int(pid), int(parent), int(group), " ".join(start), args))
    return found
