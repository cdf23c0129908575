"""Holds a sandboxed server to its limits.

The kernel holds two of them (`limit_command`): the processes of a user namespace (user_namespaces(7)), unless root
runs it, and the size of a file. `UsageWatch` holds the rest. It measures a server only when the whole machine has lost
as much as the server has left, so a server at rest costs three readings of the machine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from indusagi.capabilities.sandbox.profile import format_size
from indusagi.core.process.tree import iter_family, measure_footprint, read_written_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from indusagi.capabilities.sandbox.profile import ResourceLimits

_ENTRY_BYTES = 4096
"""What a file or directory takes at least, so that walking over many of them ends."""
_MANY = 1 << 30
_FULL_EVERY = 20
"""Checks between measurements that nothing called for: others may have freed what the server took."""
_FIRST_WALK = 4
"""The check that first adds up the server's home, once it's up."""
_SHELL = """trap '' XFSZ
{{ ulimit -c 0; ulimit -f "$1"; {processes} echo 1000 >/proc/self/oom_score_adj; }} 2>/dev/null
shift 2; exec "$@" """
_PROCESSES = 'ulimit -u "$2" || ulimit -p "$2";'
"""`-p` in dash. Both fail if the limit is lower already."""


def limit_command(limits: ResourceLimits, *, has_namespace: bool) -> Sequence[str]:
    """Return the start of a command line that runs the rest under the limits the kernel can hold.

    Outside of a namespace, the kernel would count all processes of the user. A file that grows too large is an error to
    its writer instead of its end, and a machine without memory ends the server first.
    """
    script = _SHELL.format(processes=_PROCESSES if has_namespace else "")
    return ["/bin/sh", "-c", script, "sh", str(limits.disk // 512), str(limits.processes)]


class UsageWatch:
    """Finds out when a server uses more than its limits. Call `check` about twice a second.

    Args:
        limits: The limits.
        pid: Its first process.
        folders: Its home and its temporary directory.
        list_pids: Lists its processes; by default the first one and its descendants.
    """

    def __init__(
        self,
        limits: ResourceLimits,
        pid: int,
        folders: Sequence[str],
        list_pids: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        self._limits = limits
        self._list_pids = list_pids or (lambda: (one for one, _ in iter_family(pid)))
        self._folders = folders
        self._checks = 0
        self._left = (limits.processes, limits.memory, limits.disk)
        """What it may use in addition to what it did when it was measured."""
        self._is_growing = False
        """Whether it used a good deal more than before. What others free at the same time would hide that."""
        self._room = (-_MANY, 0, 0)
        """The most that the machine had left since then."""

    def check(self) -> str | None:
        """Return what it used too much of, and the key that allows more. Blocks."""
        self._checks += 1
        room = self._read_room()
        self._room = cast("tuple[int, int, int]", tuple(map(max, self._room, room)))
        lost = [before - now for before, now in zip(self._room, room, strict=True)]
        is_disk_due = lost[2] >= self._left[2] or self._checks == _FIRST_WALK
        is_due = is_disk_due or lost[0] >= self._left[0] or lost[1] >= self._left[1]
        if not (is_due or self._is_growing or self._checks % _FULL_EVERY == 1):
            return None
        limits, disk_left, disk_room = self._limits, self._left[2], self._room[2]
        tasks, memory = measure_footprint(self._list_pids(), limits.processes, limits.memory)
        if tasks >= limits.processes:
            return _format_excess(f"{limits.processes} processes and threads", "processes")
        if memory >= limits.memory:
            return _format_excess(f"{format_size(limits.memory)} of memory", "memory")
        if is_disk_due:
            used = add_up_files(self._folders, limits.disk)
            if used >= limits.disk or read_written_bytes(self._list_pids()) >= limits.disk:
                return _format_excess(f"{format_size(limits.disk)} of disk space", "disk")
            disk_left, disk_room = limits.disk - used, room[2]
        left = (limits.processes - tasks, limits.memory - memory, disk_left)
        self._is_growing = any(
            before - now > most / 16
            for before, now, most in zip(self._left, left, (limits.processes, limits.memory), strict=False)
        )
        self._left = left
        self._room = (room[0], room[1], disk_room)
        return None

    def _read_room(self) -> tuple[int, int, int]:
        """Read what the machine has left: tasks (below zero: the kernel doesn't tell their limit), memory, disk."""
        with open("/proc/loadavg", "rb") as file:
            tasks = int(file.read().split()[3].partition(b"/")[2])
        with open("/proc/meminfo", "rb") as file:
            available = int(file.read().partition(b"MemAvailable:")[2].split(None, 1)[0]) * 1024
        disk = os.statvfs(self._folders[0])
        return -tasks, available, disk.f_bavail * disk.f_frsize


def _format_excess(limit: str, key: str) -> str:
    return f'was ended: it used {limit}, its limit; to allow more, raise "{key}" in the "limits" of its "sandbox"'


def add_up_files(folders: Sequence[str], enough: int) -> int:
    """Add up what the files below some directories take on disk, until it's `enough`. Skips what can't be read."""
    total, linked, pending = 0, set[tuple[int, int]](), [*folders]
    while pending and total < enough:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif found.st_nlink > 1:
                        if (found.st_dev, found.st_ino) in linked:
                            continue
                        linked.add((found.st_dev, found.st_ino))
                    total += max(found.st_blocks * 512, _ENTRY_BYTES)
        except OSError:
            continue
    return total
