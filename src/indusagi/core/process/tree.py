"""Process trees: a child process and all its descendants, found and signalled together, and the process list.

We look for descendants in four ways, since a program can defeat each of the first three:

1. the first process's group and session (setsid(2)); `timeout` and shells with job control put their children into
   other groups, but the session stays;
2. a marker in the environment (`INDUS_CHILD`), for a descendant in its own session;
3. the first process's standard output pipe, for one that also cleared its environment;
4. parents: every process that descends from one already found.

Found processes are remembered by (pid, start time).

This is the only reader of `/proc/PID` (https://man7.org/linux/man-pages/man5/proc.5.html). psutil would work on macOS
too, but takes three times as long to list 400 processes (measured: 140 ms against 47 ms) and 20 ms to import, and we
read the list several times whenever we end a process tree. Without `/proc` only a tree's group is known, and every
function reports "unknown": `None`, an empty result, or `OSError` from `list_processes`.

Processes that have ended or belong to another user are skipped. Reading blocks: call it in a worker thread.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock

from indusagi.core.records import record

INACCESSIBLE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""Raised for a process that has just ended or that this user may not inspect."""
_PARENT, _GROUP, _SESSION, _UTIME, _STIME, _THREADS, _STARTED, _RSS = 1, 2, 3, 11, 12, 17, 19, 21
"""Indexes into the fields of `/proc/PID/stat` from the state on: field 3 of proc_pid_stat(5) is index 0."""
_ACTIVE_TICKS = 2
"""CPU time, usually 10 ms per tick: an idle runtime with a timer uses less over a few seconds."""
_ACTIVE_BYTES = 4096
"""I/O: a process that merely wakes up moves a few bytes."""
_STARVED_S = 0.25
"""Time spent waiting for a core: the process is working, but the machine is busy."""
_LISTINGS = 3
"""The process list, then twice the processes started since."""
_TCP_LISTEN = b"0A"


@record
class ProcessInfo:
    """A running process."""

    pid: int
    parent: int
    group: int
    session: int
    started: int
    """Start time in clock ticks since boot."""

    @property
    def key(self) -> tuple[int, int]:
        """Pid and start time, which stay unique when the kernel reuses the pid."""
        return self.pid, self.started


def list_processes() -> Iterator[ProcessInfo]:
    """Read the process list. Raises `OSError` if `/proc` doesn't exist or can't be read."""
    newest = _read_newest_pid()
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    listed = set(pids)
    for _ in range(_LISTINGS):
        for pid in pids:
            if (process := read_process(pid)) is not None:
                yield process
        # A process may start after the listing, from one that ends before we read it.
        before, newest = newest, _read_newest_pid()
        pids = [pid for pid in range(before + 1, newest + 1) if pid not in listed] if before else []
        listed.update(pids)


def _read_newest_pid() -> int:
    """Read the most recently assigned pid (proc_loadavg(5)); 0 if unknown."""
    try:
        with open("/proc/loadavg", "rb", buffering=0) as file:
            return int(file.read(200).split()[4])
    except (OSError, IndexError, ValueError):
        return 0


def read_process(pid: int) -> ProcessInfo | None:
    """Read one process; a zombie counts as ended."""
    fields = _read_stat(pid)
    if fields is None or fields[0] in {b"Z", b"X"}:
        return None
    return ProcessInfo(pid, int(fields[_PARENT]), int(fields[_GROUP]), int(fields[_SESSION]), int(fields[_STARTED]))


def read_start_time(pid: int, *, zombie: bool = False) -> int | None:
    """Read the start time in clock ticks since boot; together with the pid it identifies a process."""
    fields = _read_stat(pid)
    if fields is None or (fields[0] in {b"Z", b"X"} and not zombie):
        return None
    return int(fields[_STARTED])


def may_have_children(pid: int) -> bool:
    """Return whether a process has children now; True where the kernel doesn't list them (proc_pid_task(5))."""
    threads = _list_threads(pid)
    return not threads or any(read_proc_file(pid, f"task/{thread}/children") != b"" for thread in threads)


def read_variable(pid: int, name: str) -> str:
    """Read an environment variable from when the program started; "" if unset or unreadable."""
    return find_variable(read_proc_file(pid, "environ") or b"", name)


def find_variable(environ: bytes, name: str) -> str:
    """Find a variable in the content of `/proc/PID/environ`; "" if unset."""
    return (b"\0" + environ).partition(f"\0{name}=".encode())[2].partition(b"\0")[0].decode("ascii", "replace")


def read_descriptor(pid: int, descriptor: int | str) -> str:
    """Read the target of a file descriptor, such as `pipe:[1234]`; "" if unknown."""
    try:
        return os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return ""


def read_proc_file(pid: int, name: str) -> bytes | None:
    """Read `/proc/PID/name`; None if the process has ended or may not be inspected."""
    try:
        # System calls instead of a file object: this runs for every process of the machine.
        descriptor = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            parts: list[bytes] = []
            while part := os.read(descriptor, 64 * 1024):
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)
    except INACCESSIBLE:
        return None


def _read_stat(pid: int) -> list[bytes] | None:
    # The program name is in parentheses and may contain any character, even parentheses.
    stat = read_proc_file(pid, "stat")
    return None if stat is None else stat.rpartition(b") ")[2].split(None, 22)


# -- activity of a process tree -----------------------------------------------------------------


@record
class Activity:
    """CPU time and I/O of a tree's processes since each of them started.

    Two readings of one tree tell whether it works or waits. Network traffic can look like either.
    """

    cpu_ticks: int = 0
    bytes_moved: int = 0
    """Read and written, including page cache and pipes (proc_pid_io(5))."""
    bytes_written: int = 0
    processes: frozenset[tuple[int, int]] = frozenset()
    waited_s: float = 0.0
    """How long the main threads were ready to run but waited for a core."""

    def shows_life_since(self, before: Activity) -> bool:
        """Return whether the tree did something between two readings."""
        return (
            self.processes != before.processes
            or self.cpu_ticks - before.cpu_ticks >= _ACTIVE_TICKS
            or self.bytes_moved - before.bytes_moved >= _ACTIVE_BYTES
            or self.waited_s - before.waited_s >= _STARVED_S
        )

    def shows_writes_since(self, before: Activity) -> bool:
        """Return whether files were written between two readings.

        Unlinking writes no bytes; `shows_life_since` sees its CPU time.
        """
        return self.bytes_written > before.bytes_written


def read_activity(processes: Iterable[ProcessInfo]) -> Activity | None:
    """Sum up the activity of processes; None if unknown for all of them."""
    keys: set[tuple[int, int]] = set()
    ticks = moved = written = 0
    waited_s = 0.0
    for process in processes:
        stat = _read_stat(process.pid)
        if stat is None:
            continue
        keys.add(process.key)
        waited_s += _read_delay(process.pid, "schedstat")
        ticks += int(stat[_UTIME]) + int(stat[_STIME])
        counters = _read_io(process.pid)
        moved += counters.get(b"rchar", 0) + counters.get(b"wchar", 0)
        written += counters.get(b"wchar", 0) + counters.get(b"write_bytes", 0)
    return Activity(ticks, moved, written, frozenset(keys), waited_s) if keys else None


def _read_io(pid: int) -> dict[bytes, int]:
    pairs = (line.partition(b":") for line in (read_proc_file(pid, "io") or b"").splitlines())
    return {name: int(value) for name, _, value in pairs if value.strip().isdigit()}


def _read_delay(pid: int, name: str) -> float:
    """Read how long a thread was ready to run but had to wait, in seconds; 0 if unknown (proc_pid_schedstat(5))."""
    words = (read_proc_file(pid, name) or b"").split()
    return int(words[1]) / 1e9 if len(words) > 1 else 0.0


@record
class CpuDemand:
    """CPU time that a process tree used, and that it wanted."""

    used_s: float
    by_pid: Mapping[int, float]
    """Wanted time of each process: on a core, or ready to run and waiting for one."""
    is_runnable: bool = False
    """Whether a process is running or waiting for a core right now."""

    def grown_since(self, before: CpuDemand | None) -> float:
        """Return how much more time the current processes wanted; a new one counts from its start."""
        earlier: Mapping[int, float] = {} if before is None else before.by_pid
        return sum(wanted - earlier.get(pid, 0.0) for pid, wanted in self.by_pid.items())


def read_cpu_demand(pid: int) -> CpuDemand | None:
    """Read the CPU demand of a process and its descendants; None if unknown."""
    by_pid: dict[int, float] = {}
    used_s, is_runnable = 0.0, False
    for one, stat in iter_family(pid):
        cpu_s = (int(stat[_UTIME]) + int(stat[_STIME])) / os.sysconf("SC_CLK_TCK")
        delay_s = sum(_read_delay(one, f"task/{thread}/schedstat") for thread in _list_threads(one))
        used_s += cpu_s
        is_runnable = is_runnable or stat[0] == b"R"
        by_pid[one] = cpu_s + delay_s
    return CpuDemand(used_s, by_pid, is_runnable) if by_pid else None


def iter_family(pid: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield a process and its descendants, each with its fields of `/proc/PID/stat` from the state on.

    A process whose parent has ended is only among them if its new parent is.
    """
    pids, seen = [pid], set[int]()
    while pids:
        one = pids.pop()
        stat = _read_stat(one)
        if stat is None or one in seen:
            continue
        seen.add(one)
        for thread in _list_threads(one):
            pids += map(int, (read_proc_file(one, f"task/{thread}/children") or b"").split())
        yield one, stat


def _list_threads(pid: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []


def measure_footprint(pids: Iterable[int], most_tasks: int, most_memory: int) -> tuple[int, int]:
    """Add up the threads, and the bytes of memory, of processes; with `most_tasks` threads it stops.

    Memory that processes share counts once if the sum is `most_memory` otherwise.
    """
    tasks, sizes = 0, dict[int, int]()
    for pid in pids:
        stat = _read_stat(pid)
        if stat is not None:
            tasks += int(stat[_THREADS])
            sizes[pid] = int(stat[_RSS]) * os.sysconf("SC_PAGE_SIZE")
        if tasks >= most_tasks:
            break
    for pid in sizes if sum(sizes.values()) >= most_memory and tasks < most_tasks else ():
        # Slow: the kernel looks at each page (proc_pid_smaps_rollup(5)).
        _, found, rest = (read_proc_file(pid, "smaps_rollup") or b"").partition(b"\nPss:")
        if found:
            sizes[pid] = int(rest.split(None, 1)[0]) * 1024
    return tasks, sum(sizes.values())


def read_written_bytes(pids: Iterable[int]) -> int:
    """Read how many bytes processes have written to disks, with their ended children."""
    return sum(_read_io(pid).get(b"write_bytes", 0) for pid in pids)


@record
class ResourceUsage:
    """CPU time, memory and listening ports of several processes together."""

    cpu_s: float
    rss_bytes: int
    ports: tuple[int, ...]


def measure_usage(pids: Iterable[int]) -> ResourceUsage:
    """Sum up the usage of processes, skipping ended ones."""
    ticks, rss, ports = 0, 0, set[int]()
    for pid in pids:
        stat = _read_stat(pid)
        if stat is not None:
            ticks += int(stat[_UTIME]) + int(stat[_STIME])
            rss += int(stat[_RSS]) * os.sysconf("SC_PAGE_SIZE")
            # TCP ports it listens on, in its own network namespace (proc_pid_net(5)).
            try:
                targets = [read_descriptor(pid, name) for name in os.listdir(f"/proc/{pid}/fd")]
            except OSError:
                continue
            sockets = {target[8:-1].encode() for target in targets if target.startswith("socket:[")}
            tables = [read_proc_file(pid, name) or b"" for name in ("net/tcp", "net/tcp6")] if sockets else []
            rows = [row.split() for table in tables for row in table.splitlines()[1:]]
            listening = (row[1] for row in rows if row[3] == _TCP_LISTEN and row[9] in sockets)
            ports.update(int(address.rpartition(b":")[2], 16) for address in listening)
    return ResourceUsage(ticks / os.sysconf("SC_CLK_TCK"), rss, tuple(sorted(ports)))


# -- process trees ----------------------------------------------------------------------------------


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

        `leader` is the pid of the first process, and so of its group and session; None if it may have been reused.
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
