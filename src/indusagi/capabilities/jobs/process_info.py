"""What the system tells of running processes: time, memory, ports, and who waits to be typed at."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_LISTENING = "0A"
_READ_CALL = {"x86_64": "0", "aarch64": "63"}
_TERMINALS = ("/dev/pts/", "/dev/tty", "/dev/console")


@dataclass(frozen=True, slots=True)
class ResourceUsage:
    """What several processes use together."""

    cpu_s: float
    rss_bytes: int
    ports: tuple[int, ...]
    """Those on which one of them listens."""


def measure_usage(pids: Iterable[int]) -> ResourceUsage:
    """Add up what is known of processes; those that have ended count for nothing."""
    ticks, rss, ports = 0, 0, set[int]()
    for pid in pids:
        fields = _text(pid, "stat").rpartition(") ")[2].split()
        if fields:
            ticks += int(fields[11]) + int(fields[12])
            rss += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
            ports |= _ports(pid)
    return ResourceUsage(ticks / os.sysconf("SC_CLK_TCK"), rss, tuple(sorted(ports)))


def waits_for_typing(pids: Iterable[int]) -> bool:
    """Tell whether a process sits in a read from a terminal, where nobody types."""
    call = _READ_CALL.get(platform.machine())
    for pid in pids:
        said = _text(pid, "syscall").split()
        if len(said) > 1 and said[0] == call:
            target = _link(f"/proc/{pid}/fd/{int(said[1], 16)}")
            if target.startswith(_TERMINALS):
                return True
    return False


def _ports(pid: int) -> set[int]:
    """List the ports on which a process listens, in the network that it sees."""
    sockets = _sockets(pid)
    if not sockets:
        return set()
    found: set[int] = set()
    for table in ("net/tcp", "net/tcp6"):
        for row in _text(pid, table).splitlines()[1:]:
            fields = row.split()
            if fields[3] == _LISTENING and fields[9] in sockets:
                found.add(int(fields[1].rpartition(":")[2], 16))
    return found


def _sockets(pid: int) -> set[str]:
    try:
        handles = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return set()
    targets = (_link(f"/proc/{pid}/fd/{handle}") for handle in handles)
    return {target[8:-1] for target in targets if target.startswith("socket:[")}


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _text(pid: int, name: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}", encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
