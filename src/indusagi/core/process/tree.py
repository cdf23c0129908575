"""The processes that a process has left behind: in its group, in its session, and beyond.

A program may give its children groups of their own (`timeout` does, and a shell with job control),
but they stay in the session of the first. A descendant that starts a session of its own is found by
a variable that the first process was started with, where the system shows the environment of a
process; one that threw that away too, by those who stand between it and one that is found, or by
the pipe that it writes to. Where there is no `/proc`, the group is all that can be known.

Who is found or signalled one by one is looked up in the process list: not for the event loop.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

MARK = "INDUS_CHILD"
"""The variable. It holds the marks of all processes of ours that stand above, so that those of an
inner program of ours are found by the outer one too."""
_YOUNG_S = 0.1
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What looking at a process raises when it has just ended, or when it is not for us to see."""


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process that runs."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    """In ticks of the system."""

    @property
    def name(self) -> tuple[int, int]:
        """What names a process for good."""
        return self.pid, self.started


def signal_group(group: int, number: int) -> bool:
    """Signal every process of a group, and tell whether there is one.

    One that may not be signalled is there all the same.
    """
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def find_descendants(leader: int | None, mark: str) -> list[ProcessInfo]:
    """List who still runs of a session, if one is given, and who carries the mark anywhere.

    With each one come its descendants. Zombies do not run.
    """
    return ProcessTree(mark).left(leader)


class ProcessTree:
    """All that one process has started. Who was seen once is known for good.

    A process whose parent has ended is the child of another: what is to be found then by its
    descent has to be looked for before anybody is ended.
    """

    def __init__(self, mark: str) -> None:
        self.pipe = ""
        """The one that the first process was given to write to, as `pipe_name` names it."""
        self._mark = mark
        self._lock = Lock()
        self._seen: frozenset[tuple[int, int]] = frozenset()

    def left(self, leader: int | None) -> list[ProcessInfo]:
        """List who still runs; `leader` is the first of the session, if it is still there."""
        with self._lock:
            try:
                # Started without an output, we may have our end of the pipe in the place of it.
                running = [one for one in _running() if one.pid != os.getpid()]
                left = _with_descendants(self._found(leader, running), running)
            except OSError:
                return [] if leader is None or not signal_group(leader, 0) else [unknown_process(leader)]
            self._seen = frozenset(one.name for one in left)
            return left

    def snapshot_children(self, leader: int) -> list[ProcessInfo]:
        """Look as `left` does if somebody may be lost with the leader: if it has children."""
        return self.left(leader) if _may_have_children(leader) else []

    def _found(self, leader: int | None, running: list[ProcessInfo]) -> list[ProcessInfo]:
        born = _born(leader)
        return [
            one
            for one in running
            if leader in {one.session, one.group}
            or one.name in self._seen
            # Older than the leader is no descendant: most of the machine need not be asked.
            or (one.started >= born and self._is_marked(one.pid))
        ]

    def _is_marked(self, pid: int) -> bool:
        marks = _marks(pid)
        # Who carries other marks than this one is somebody else's. There may be hundreds.
        return self._mark in marks if marks else self.pipe != "" and _writes_to(pid, self.pipe)


def _with_descendants(found: list[ProcessInfo], running: list[ProcessInfo]) -> list[ProcessInfo]:
    children: dict[int, list[ProcessInfo]] = {}
    for one in running:
        children.setdefault(one.parent, []).append(one)
    known = {one.pid: one for one in found}
    ahead = list(found)
    while ahead:
        for child in children.get(ahead.pop().pid, ()):
            if child.pid not in known:
                known[child.pid] = child
                ahead.append(child)
    return list(known.values())


def signal_processes(processes: list[ProcessInfo], number: int) -> list[ProcessInfo]:
    """Signal processes that were found, each only if it is still that one; give them back."""
    for found in processes:
        try:
            _signal(found, number)
        except _GONE:
            continue
    return processes


def select_settled(processes: Iterable[ProcessInfo]) -> set[tuple[int, int]]:
    """Name those who have heard what was sent to them.

    What bash has only just made still has its handler, forgets the signal and becomes a program
    for which bash then waits: such a one has to be told again.
    """
    if sys.platform != "linux":  # pragma: no cover — start times are known on Linux
        return {one.name for one in processes}
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    latest = (now - _YOUNG_S) * os.sysconf("SC_CLK_TCK")
    return {one.name for one in processes if one.started <= latest}


def _signal(found: ProcessInfo, number: int) -> None:
    try:
        # A descriptor stays with its process: what is checked is what is signalled.
        handle = os.pidfd_open(found.pid)
    except (AttributeError, OSError):
        handle = None
    try:
        now = _look(found.pid)
        if now is None or now.started != found.started:
            return
        if handle is None:
            os.kill(found.pid, number)
        else:
            signal.pidfd_send_signal(handle, number)
    finally:
        if handle is not None:
            os.close(handle)


def unknown_process(leader: int) -> ProcessInfo:
    """Stand for a group of which nothing is known but that it is there."""
    return ProcessInfo(leader, 0, leader, leader, -1)


def start_time(pid: int) -> int | None:
    """Tell when a process started, in ticks of the system; with the pid it names it for good."""
    found = _look(pid)
    return None if found is None else found.started


def _running() -> Iterator[ProcessInfo]:
    """Look at every process there is.

    Raises:
        OSError: There is no `/proc`, or it cannot be read now.
    """
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := _look(int(name))) is not None:
            yield found


def _born(leader: int | None) -> int:
    fields = None if leader is None else read_stat(leader)
    return 0 if fields is None else int(fields[19])


def _look(pid: int) -> ProcessInfo | None:
    fields = read_stat(pid)
    if fields is None or fields[0] in {b"Z", b"X"}:
        return None
    return ProcessInfo(pid, int(fields[1]), int(fields[2]), int(fields[3]), int(fields[19]))


def read_stat(pid: int) -> list[bytes] | None:
    """Read the fields of `/proc/PID/stat` from the state on (proc_pid_stat(5), field 3 first)."""
    # The name of the program stands in brackets and may hold any character.
    said = read_proc(pid, "stat")
    return None if said is None else said.rpartition(b") ")[2].split(None, 20)


def _may_have_children(pid: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        return any(read_proc(pid, f"task/{thread}/children") != b"" for thread in threads)
    except OSError:
        return True


def pipe_name(descriptor: int) -> str:
    """Name a pipe as `/proc` does for everybody who has an end of it."""
    return f"pipe:[{os.fstat(descriptor).st_ino}]"


def _writes_to(pid: int, pipe: str) -> bool:
    return pipe in {_target(pid, 1), _target(pid, 2)}


def _target(pid: int, descriptor: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def _marks(pid: int) -> str:
    """Give what the variable holds for a process; nothing if it has none that can be seen."""
    variables = b"\0" + (read_proc(pid, "environ") or b"")
    return variables.partition(f"\0{MARK}=".encode())[2].partition(b"\0")[0].decode("ascii", "replace")


def read_proc(pid: int, name: str) -> bytes | None:
    """Read what `/proc` says of a process; None when it has ended or is not for us to see."""
    try:
        # Without a file object: this is done for every process of the machine.
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts: list[bytes] = []
            while part := os.read(descriptor, 64 * 1024):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)
    except _GONE:
        return None
