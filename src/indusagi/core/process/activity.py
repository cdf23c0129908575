"""How much a set of processes has done so far, as `/proc` counts it.

Two readings of the same process tree, some time apart, tell whether it works or waits. CPU time and
I/O are counted per process (proc_pid_stat(5), proc_pid_io(5)); what came over the network shows as
both. Reading is blocking: call it in a thread.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.core.process.tree import read_proc, read_stat

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.core.process.tree import ProcessInfo

_LEAST_TICKS = 2
"""Of CPU time, usually 10 ms each: an idle runtime with a timer uses less in a few seconds."""
_LEAST_BYTES = 4096
"""Of I/O: a process that is only woken up moves a few bytes."""
_UTIME, _STIME = 11, 12


@dataclass(frozen=True, slots=True)
class Activity:
    """What the processes of a tree have done since each of them started."""

    cpu_ticks: int = 0
    bytes_moved: int = 0
    """Read and written, through the page cache and pipes too."""
    bytes_written: int = 0
    processes: frozenset[tuple[int, int]] = frozenset()

    def shows_life_since(self, before: Activity) -> bool:
        """Tell whether the tree did something between two readings."""
        return (
            self.processes != before.processes
            or self.cpu_ticks - before.cpu_ticks >= _LEAST_TICKS
            or self.bytes_moved - before.bytes_moved >= _LEAST_BYTES
        )

    def shows_writes_since(self, before: Activity) -> bool:
        """Tell whether files changed between two readings: written, or about to be removed.

        Unlinking writes no bytes; it shows as a change of the processes or as CPU time in
        `shows_life_since`.
        """
        return self.bytes_written > before.bytes_written


def read_activity(processes: Iterable[ProcessInfo]) -> Activity | None:
    """Add up what processes have done; None where `/proc` tells nothing of any of them."""
    seen: set[tuple[int, int]] = set()
    ticks = moved = written = 0
    for one in processes:
        stat = read_stat(one.pid)
        if stat is None:
            continue
        seen.add(one.name)
        ticks += int(stat[_UTIME]) + int(stat[_STIME])
        counts = _read_io(one.pid)
        moved += counts.get(b"rchar", 0) + counts.get(b"wchar", 0)
        written += counts.get(b"wchar", 0) + counts.get(b"write_bytes", 0)
    return Activity(ticks, moved, written, frozenset(seen)) if seen else None


def read_cpu_seconds(pid: int) -> float | None:
    """Tell how much CPU time one process has used; None where that is unknown."""
    stat = read_stat(pid)
    if stat is None:
        return None
    return (int(stat[_UTIME]) + int(stat[_STIME])) / os.sysconf("SC_CLK_TCK")


def _read_io(pid: int) -> dict[bytes, int]:
    """Read the I/O counters of a process; none if they are not ours to see."""
    said = read_proc(pid, "io")
    if said is None:
        return {}
    pairs = (line.partition(b":") for line in said.splitlines())
    return {name: int(value) for name, _, value in pairs if value.strip().isdigit()}
