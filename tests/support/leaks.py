"""Resources of this process, named so that a leak can be reported."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

from tests.support.forked import list_descriptors, list_running

_SETTLE_S = 10.0
"""Threads and child processes of finished work need a moment to end; a leak stays."""


@dataclass(frozen=True, slots=True)
class HeldResources:
    """Descriptors, threads and child processes, each as text that names it."""

    descriptors: frozenset[str]
    threads: frozenset[str]
    children: frozenset[str]

    def beyond(self, before: HeldResources) -> list[str]:
        """List resources that are new since `before`."""
        return [
            *(f"descriptor {item} -> {_describe(item)}" for item in sorted(self.descriptors - before.descriptors)),
            *(f"thread {item}" for item in sorted(self.threads - before.threads)),
            *(f"process {item}" for item in sorted(self.children - before.children)),
        ]


def snapshot_resources() -> HeldResources:
    """List the resources of this process."""
    return HeldResources(_descriptors(), _threads(), _children())


def find_leaks(before: HeldResources) -> list[str]:
    """List resources beyond `before`, after a moment for those that are about to end."""
    deadline = time.monotonic() + _SETTLE_S
    pause_s = 0.0002  # most are gone at once; a thread, for example, that has only to let go of its lock
    while (leaked := snapshot_resources().beyond(before)) and time.monotonic() < deadline:
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.01)
    return leaked


_FOLDER = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


def _descriptors() -> frozenset[str]:
    listing = os.dup(2)  # the number that the listing itself will have: the lowest free one
    os.close(listing)
    ours = {str(descriptor) for descriptor in (listing, *list_descriptors())}
    return frozenset(name for name in os.listdir(_FOLDER) if name not in ours)


def _describe(descriptor: str) -> str:
    try:
        return os.readlink(f"{_FOLDER}/{descriptor}")
    except OSError:
        return "closed by now, or not a link"


def _threads() -> frozenset[str]:
    return frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate())


def _children() -> frozenset[str]:
    forked = frozenset(f"{pid} indus" for pid in list_running())
    if not os.path.isdir("/proc/self") or not _has_children():
        return forked
    me = str(os.getpid())
    return forked | {f"{pid} {name}" for pid, (name, parent) in _processes().items() if parent == me}


def _has_children() -> bool:
    """Tell whether this process has children, by one system call (waitid(2)) instead of the process list."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _processes() -> dict[str, tuple[str, str]]:
    """Map each process to its name and parent."""
    found: dict[str, tuple[str, str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                name, _, rest = file.read().partition("(")[2].rpartition(") ")
        except OSError:
            continue
        found[pid] = (name, rest.split()[1])
    return found
