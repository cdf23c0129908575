"""Receipts: one file per running command, so that a later run can find and terminate leftovers of a crash.

A receipt identifies a command's process by pid and start time, since a pid alone may be reused, and its descendants by
a marker in their environment. kill -9 leaves no time to clean up, and PR_SET_PDEATHSIG (prctl(2)) only ends a direct
child. Each session has a `Reaper`, which reads the receipts as soon as the session is gone.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from typing import cast

from indusagi.core.app_dirs import create_private_file, make_private_dir, state_dir
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.process.procfs import read_start_time
from indusagi.core.process.tree import ProcessTree, signal_processes
from indusagi.core.records import record

_GRACE_S = 3.0
_POLL_INTERVAL_S = 0.05


@record
class Receipt:
    """The record of a running command."""

    mark: str
    """Marker in the environment of its processes."""
    pid: int
    """Also its process group and session id."""
    started: int
    owner_pid: int
    """The process that started it."""
    owner_started: int
    command: str
    cwd: str


def write_receipt(mark: str, pid: int, command: str, cwd: str) -> str | None:
    """Write the receipt of a command and return its path; None if start times aren't available.

    Raises:
        OSError: The file can't be written.
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
    """Remove the receipt of a finished command."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def find_leftover_jobs() -> list[Receipt]:
    """List commands that are still running although the process that started them has ended. Blocks.

    Removes receipts of finished commands.

    Raises:
        OSError: The receipt directory can't be read.
    """
    leftovers: list[Receipt] = []
    for path, receipt in _list_receipts():
        if read_start_time(receipt.owner_pid) == receipt.owner_started:
            continue
        if ProcessTree(receipt.mark).list_running(None):
            leftovers.append(receipt)
        else:
            remove_receipt(path)
    return leftovers


def end_commands(owner_pid: int, owner_started: int) -> None:
    """Terminate the commands of a process that's gone. Blocks.

    Raises:
        OSError: The receipt directory can't be read.
    """
    for path, receipt in _list_receipts():
        if (receipt.owner_pid, receipt.owner_started) == (owner_pid, owner_started) and end_leftover(receipt):
            remove_receipt(path)


def end_leftover(receipt: Receipt) -> bool:
    """Terminate the remaining processes of a command with SIGTERM, then SIGKILL; return whether all have ended.

    Only signals processes that carry the command's marker or descend from one that does.
    """
    # Use one tree for both signals: it remembers descendants whose parents have ended.
    tree = ProcessTree(receipt.mark)
    for number in (signal.SIGTERM, signal.SIGKILL):
        signal_processes(tree.list_running(None), number)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline:
            if not tree.list_running(None):
                return True
            time.sleep(_POLL_INTERVAL_S)
    return False


def _folder() -> str:
    return make_private_dir(os.path.join(make_private_dir(state_dir()), "jobs"))


def _list_receipts() -> Iterator[tuple[str, Receipt]]:
    folder = _folder()
    for name in sorted(os.listdir(folder)):
        path = os.path.join(folder, name)
        if is_ulid(name.removesuffix(".json")) and (receipt := _read(path)) is not None:
            yield path, receipt


def _read(path: str) -> Receipt | None:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(handle, encoding="utf-8") as file:
            fields = cast("dict[str, object]", json.load(file))
        return Receipt(**fields)  # pyright: ignore[reportArgumentType] — the values are compared, never trusted
    except (OSError, ValueError, TypeError):
        return None
