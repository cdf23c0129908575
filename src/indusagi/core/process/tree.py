"""Process tree: a child process and all its descendants, found and signalled together.

We look for descendants in four ways, since a program can defeat each of the first three:

1. the first process's group and session (setsid(2)); `timeout` and shells with job control put their children into
   other groups, but the session stays;
2. a marker in the environment (`INDUS_CHILD`), for a descendant in its own session;
3. the first process's standard output pipe, for one that also cleared its environment;
4. parents: every process that descends from one already found.

Found processes are remembered by (pid, start time). Without `/proc` only the group is known. Reading the process list
blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from threading import Lock
from typing import TYPE_CHECKING

from indusagi.core.process.procfs import (
    INACCESSIBLE,
    ProcessInfo,
    find_variable,
    list_processes,
    may_have_children,
    read_descriptor,
    read_proc_file,
    read_process,
    read_start_time,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

MARK = "INDUS_CHILD"
"""Environment variable with the markers of all child processes above, separated by spaces, so that an outer `indus`
finds the descendants of an inner one too."""
_YOUNG_S = 0.1
_EXEC_READS, _EXEC_S = 10, 0.001
_SCAN_INTERVAL_S = 0.05
_EMPTY_SCANS = 2
"""A starting process briefly has no marker, so scan twice."""
_KTHREADD = 2
"""Parent of all kernel threads, which have no environment."""


class ProcessTree:
    """A first process and its descendants.

    A process whose parent has ended gets another parent, so list descendants that only rule 4 finds before ending
    anything (`snapshot_children`).
    """

    def __init__(self, mark: str) -> None:
        self.pipe = ""
        """The first process's standard output, as named by `pipe_name`."""
        self._mark = mark
        self._lock = Lock()
        self._known: frozenset[tuple[int, int]] = frozenset()
        self._bare: set[tuple[int, int]] = set()
        """Processes without an environment."""

    def list_running(self, leader: int | None) -> list[ProcessInfo]:
        """List the running processes of the tree.

        Args:
            leader: Pid of the first process, and so of its group and session; None if it may have been reused.
        """
        with self._lock:
            try:
                # If we were started without a standard output, the pipe may be our own descriptor 1.
                running = [process for process in list_processes() if process.pid != os.getpid()]
                # A process older than the leader can't be a descendant: don't read its environment.
                oldest = 0 if leader is None else read_start_time(leader, zombie=True) or 0
                tree = [
                    process
                    for process in running
                    if leader in {process.session, process.group}
                    or process.key in self._known
                    or (process.started >= oldest and self._is_marked(process))
                ]
            except OSError:
                return [] if leader is None or not signal_group(leader, 0) else [unknown_process(leader)]
            children: dict[int, list[ProcessInfo]] = {}
            for process in running:
                children.setdefault(process.parent, []).append(process)
            known = {process.pid for process in tree}
            # The list grows while we walk it, to find the children of each descendant too.
            for process in tree:
                found = [child for child in children.get(process.pid, ()) if child.pid not in known]
                known.update(child.pid for child in found)
                tree.extend(found)
            self._known = frozenset(process.key for process in tree)
            return tree

    def snapshot_children(self, leader: int) -> list[ProcessInfo]:
        """Remember the tree before its leader ends. Without children this takes no process list."""
        return self.list_running(leader) if may_have_children(leader) else []

    def _is_marked(self, process: ProcessInfo) -> bool:
        environ = read_proc_file(process.pid, "environ")
        # During execve(2) a process briefly has no environment; one started without any never has.
        if environ == b"" and process.parent != _KTHREADD and process.key not in self._bare:
            for _ in range(_EXEC_READS):
                time.sleep(_EXEC_S)
                if environ := read_proc_file(process.pid, "environ"):
                    break
            else:
                self._bare.add(process.key)
        marks = find_variable(environ or b"", MARK)
        if marks:
            return self._mark in marks
        return self.pipe != "" and self.pipe in {read_descriptor(process.pid, 1), read_descriptor(process.pid, 2)}


def pipe_name(descriptor: int) -> str:
    """Name a pipe the way `/proc/PID/fd` does for every process that holds an end of it."""
    return f"pipe:[{os.fstat(descriptor).st_ino}]"


def unknown_process(leader: int) -> ProcessInfo:
    """Return a placeholder for a process group of which we only know that it exists."""
    return ProcessInfo(leader, 0, leader, leader, -1)


def signal_group(group: int, number: int) -> bool:
    """Signal a process group; return whether it exists, even if we may not signal it."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def signal_processes(processes: list[ProcessInfo], number: int) -> list[ProcessInfo]:
    """Signal each process that's still the listed one; return `processes`."""
    for process in processes:
        try:
            # The kernel never reuses the pid of an open pidfd (pidfd_open(2)).
            handle = os.pidfd_open(process.pid)
        except (AttributeError, OSError):
            handle = None
        try:
            now = read_process(process.pid)
            if now is not None and now.key == process.key and handle is not None:
                signal.pidfd_send_signal(handle, number)
            elif now is not None and now.key == process.key:
                os.kill(process.pid, number)
        except INACCESSIBLE:
            continue
        finally:
            if handle is not None:
                os.close(handle)
    return processes


def end_marked(mark: str, term_s: float, kill_s: float) -> bool:
    """End the processes with a marker and their descendants: SIGTERM, then SIGKILL. Blocks.

    Returns whether all have ended. Other processes are never signalled, whatever their pid.
    """
    # Use one tree for both signals: it remembers descendants whose parents have ended.
    tree = ProcessTree(mark)
    for number, patience_s in ((signal.SIGTERM, term_s), (signal.SIGKILL, kill_s)):
        give_up_at, empty, signalled = time.monotonic() + patience_s, 0, set[tuple[int, int]]()
        while time.monotonic() < give_up_at:
            left = tree.list_running(None)
            # Once per process: many programs skip their cleanup on a second SIGTERM.
            signalled |= select_settled(signal_processes([one for one in left if one.key not in signalled], number))
            empty = 0 if left else empty + 1
            if empty == _EMPTY_SCANS:
                return True
            time.sleep(_SCAN_INTERVAL_S)
    return False


def select_settled(processes: Iterable[ProcessInfo]) -> set[tuple[int, int]]:
    """Return the keys of processes that need no second signal.

    A process that bash has just forked still has bash's handler: it drops the signal, runs a program, and bash waits
    for that program. So signal young processes again.
    """
    if sys.platform != "linux":  # pragma: no cover — start times are known on Linux
        return {process.key for process in processes}
    latest = (time.clock_gettime(time.CLOCK_BOOTTIME) - _YOUNG_S) * os.sysconf("SC_CLK_TCK")
    return {process.key for process in processes if process.started <= latest}
