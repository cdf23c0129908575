"""What a process holds on to, told apart so that a leak has a name."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass

_SETTLE_S = 2.0
"""Threads and children of finished work need a moment to be gone; a leak stays for good."""


@dataclass(frozen=True, slots=True)
class Held:
    """Descriptors, threads and child processes, each as text that names it."""

    descriptors: frozenset[str]
    threads: frozenset[str]
    children: frozenset[str]

    def beyond(self, before: Held) -> list[str]:
        """List what is held now and was not before."""
        return [
            *(f"descriptor {item}" for item in sorted(self.descriptors - before.descriptors)),
            *(f"thread {item}" for item in sorted(self.threads - before.threads)),
            *(f"process {item}" for item in sorted(self.children - before.children)),
        ]


def held_now() -> Held:
    """Look at what this process holds."""
    return Held(_descriptors(), _threads(), _children())


def leaked_since(before: Held) -> list[str]:
    """List what is held beyond `before`, once what is only slow to go has gone."""
    deadline = time.monotonic() + _SETTLE_S
    while (leaked := held_now().beyond(before)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return leaked


def _descriptors() -> frozenset[str]:
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    found: set[str] = set()
    for name in os.listdir(folder):
        try:
            found.add(f"{name} -> {os.readlink(f'{folder}/{name}')}")
        except OSError:  # the descriptor of this very listing, closed by now; or not a link
            continue
    return frozenset(found)


def _threads() -> frozenset[str]:
    return frozenset(f"{thread.name} ({thread.ident})" for thread in threading.enumerate())


def _children() -> frozenset[str]:
    if not os.path.isdir("/proc/self") or not _has_children():
        return frozenset()
    me = str(os.getpid())
    return frozenset(f"{pid} {name}" for pid, (name, parent) in _processes().items() if parent == me)


def _has_children() -> bool:
    """Ask the system in one call: most tests have none, and every process is a file to read."""
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
