"""A receipt for every running command, so that what a crash leaves behind is found and ended.

A receipt names the process of a command by its number and the time it started, and all processes of
the command by a mark in their environment. A number alone says nothing: it may be a stranger's by
now. kill -9 leaves no time to end anything, and the kernel ends only a direct child with us
(PR_SET_PDEATHSIG in prctl(2)), not what that child has started.
"""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import cast

from indusagi.core.app_dirs import create_private_file, make_private_dir, state_dir
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.process.procfs import read_start_time
from indusagi.core.process.tree import ProcessTree, signal_processes

_GRACE_S = 3.0
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is written down of a running command."""

    mark: str
    """Stands in the environment of every process of the command."""
    pid: int
    """Also the number of its group and session."""
    started: int
    owner_pid: int
    """The process that had started it."""
    owner_started: int
    command: str
    cwd: str


def write_receipt(mark: str, pid: int, command: str, cwd: str) -> str | None:
    """Write a command down, and give the path; None where the system does not tell start times.

    Raises:
        OSError: The file cannot be written.
    """
    started, owner_started = read_start_time(pid), read_start_time(os.getpid())
    if started is None or owner_started is None:
        return None
    receipt = Receipt(mark, pid, started, os.getpid(), owner_started, command, cwd)
    path = os.path.join(_folder(), f"{new_ulid()}.json")
    with os.fdopen(create_private_file(path), "w", encoding="utf-8") as file:
        json.dump(asdict(receipt), file)
    return path


def remove_receipt(path: str) -> None:
    """Strike a command off that is over."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def find_leftover_jobs() -> list[Receipt]:
    """List the commands that still run although the process that started them is gone.

    Receipts of commands that are over are removed. It reads the process list: not for the loop.

    Raises:
        OSError: The folder of receipts cannot be read.
    """
    found: list[Receipt] = []
    folder = _folder()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        receipt = _read(path) if is_ulid(name.removesuffix(".json")) else None
        if receipt is None or _is_there(receipt.owner_pid, receipt.owner_started):
            continue
        if ProcessTree(receipt.mark).list_running(None):
            found.append(receipt)
        else:
            remove_receipt(path)
    return found


def end_leftover(receipt: Receipt) -> bool:
    """End what still runs of a command: SIGTERM, then SIGKILL; tell whether all of it is gone.

    Each process is signalled only if it carries the mark of the command, or descends from one that
    does, and is still the one that was seen.
    """
    # One for both signals: who was seen to descend from the command is known for good.
    tree = ProcessTree(receipt.mark)
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_processes(tree.list_running(None), number)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if not tree.list_running(None):
                return True
            time.sleep(_PAUSE_S)
    return False


def _folder() -> str:
    return make_private_dir(os.path.join(make_private_dir(state_dir()), "jobs"))


def _read(path: str) -> Receipt | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, encoding="utf-8") as file:
            said = cast("dict[str, object]", json.load(file))
        return Receipt(**said)  # pyright: ignore[reportArgumentType] — checked by whoever uses it
    except (OSError, ValueError, TypeError):
        return None


def _is_there(pid: int, started: int) -> bool:
    return read_start_time(pid) == started
