"""Waiting for something to become true, when nothing can announce it."""

from __future__ import annotations

import asyncio
import inspect
import os
import subprocess
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LIMIT_S = 20
"""Far beyond what anything here takes: reached only by a test that fails."""


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait for a condition that another process brings about."""
    with anyio.fail_after(LIMIT_S):
        while True:
            met = condition()
            if await met if inspect.isawaitable(met) else met:
                return
            await anyio.sleep(0.005)


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
    if os.path.isdir("/proc/self"):
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _is(pid, argv)]
    listed = subprocess.run(["ps", "-A", "-o", "pid=,args="], capture_output=True, text=True, check=True)
    rows = (line.split(maxsplit=1) for line in listed.stdout.splitlines())
    return [int(row[0]) for row in rows if row[1:] == [" ".join(argv)]]


def _is(pid: int, argv: tuple[str, ...]) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read().split(b"\0")[:-1] == [word.encode() for word in argv]
    except OSError:
        return False
