"""Waiting for something to become true, when nothing can announce it."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

LIMIT_S = 60
"""Far beyond what anything here takes: reached only by a test that fails."""


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition that another process brings about."""
    pause_s = 0.0005
    with anyio.fail_after(LIMIT_S):
        while True:
            met = condition()
            if await met if inspect.isawaitable(met) else met:
                return
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * 2, 0.005)


async def until_task_ends(name: str) -> None:
    """Wait until no task of this name is left in the running loop."""
    await until(lambda: all(task.get_name() != name for task in asyncio.all_tasks()))


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and was not collected does not."""
    return _state(pid) not in {"", "Z", "X"}


def is_asleep(pid: int) -> bool:
    """Tell whether a process waits for something."""
    return _state(pid) == "S"


def _state(pid: int) -> str:
    """Return the letter of a process's state; empty: there is none."""
    if os.path.isdir("/proc/self"):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                return file.read().rpartition(") ")[2][0]
        except (FileNotFoundError, ProcessLookupError):
            return ""
    listed = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return listed.stdout.strip()[:1]


def running(*argv: str) -> list[int]:
    """List the processes that were started with exactly these words."""
    return [pid for pid, words in _list_commands() if words == " ".join(argv)]


def mentioning(text: str) -> list[int]:
    """List the processes whose command line holds a text."""
    return [pid for pid, words in _list_commands() if text in words]


def _list_commands() -> Iterator[tuple[int, str]]:
    if not os.path.isdir("/proc/self"):
        listed = subprocess.run(["ps", "-A", "-o", "pid=,args="], capture_output=True, text=True, check=True)
        for line in listed.stdout.splitlines():
            pid, _, words = line.strip().partition(" ")
            yield int(pid), words.strip()
        return
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError), open(f"/proc/{pid}/cmdline", "rb") as file:
            yield int(pid), file.read().rstrip(b"\0").replace(b"\0", b" ").decode("utf-8", "replace")
