"""Ends and removes what a killed process leaves behind: its commands, and its private temporary directories.

Each running command has a receipt, a file that identifies its process by pid and start time, since a pid alone may be
reused, and its descendants by a marker in their environment. A temporary directory names its owner the same way.
kill -9 leaves no time to clean up, and PR_SET_PDEATHSIG (prctl(2)) only ends a direct child. So each session has a
`Reaper`, which cleans up as soon as the session is gone; what it misses is up to later runs. All functions block.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict
from threading import Lock
from typing import cast

from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file, remove_tree, state_dir
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.process.tree import ProcessTree, end_marked, read_start_time
from indusagi.core.records import record

_PREFIX = "indus-"
_OWNER_FILE = "owner"
_MAX_OWNER_BYTES = 500
_MAX_RECEIPT_BYTES = 4 * 1024 * 1024
_GRACE_S = 3.0


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

    Raises `OSError` if the file can't be written.
    """
    started, owner_started = read_start_time(pid), read_start_time(os.getpid())
    if started is None or owner_started is None:
        return None
    receipt = Receipt(mark, pid, started, os.getpid(), owner_started, command, cwd)
    make_private_dir(state_dir())
    path = os.path.join(make_private_dir(_receipts_dir()), f"{new_ulid()}.json")
    with os.fdopen(create_private_file(path), "w", encoding="utf-8") as file:
        json.dump(asdict(receipt), file)
    return path


def remove_receipt(path: str) -> None:
    """Remove the receipt of a finished command."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def find_leftover_jobs() -> list[Receipt]:
    """List commands that are still running although the process that started them has ended.

    Removes receipts of finished commands. Raises `OSError` if the receipt directory can't be read.
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
    """Terminate the commands of a process that's gone. Raises `OSError` if the receipt directory can't be read."""
    for path, receipt in _list_receipts():
        if (receipt.owner_pid, receipt.owner_started) == (owner_pid, owner_started) and end_leftover(receipt):
            remove_receipt(path)


def end_leftover(receipt: Receipt) -> bool:
    """Terminate the remaining processes of a command with SIGTERM, then SIGKILL; return whether all have ended.

    Only signals processes that carry the command's marker or descend from one that does.
    """
    return end_marked(receipt.mark, _GRACE_S, _GRACE_S)


def _receipts_dir() -> str:
    return os.path.join(state_dir(), "jobs")


def _list_receipts() -> Iterator[tuple[str, Receipt]]:
    folder, names = _receipts_dir(), list[str]()
    with suppress(FileNotFoundError):
        names = sorted(os.listdir(folder))
    for name in names:
        path = os.path.join(folder, name)
        if is_ulid(name.removesuffix(".json")) and (receipt := _read(path)) is not None:
            yield path, receipt


def _read(path: str) -> Receipt | None:
    try:
        fields = cast("dict[str, object]", json.loads(read_small_file(path, _MAX_RECEIPT_BYTES, follow=False)))
        return Receipt(**fields)  # pyright: ignore[reportArgumentType] — the values are compared, never trusted
    except (OSError, ValueError, TypeError):
        return None


# -- temporary directories ----------------------------------------------------------------------


def make_owned_dir() -> str:
    """Make a private temporary directory and return its path. It's removed after us, even if we get killed."""
    from tempfile import mkdtemp  # noqa: PLC0415 — the first command pays

    remove_abandoned_dirs()
    path = os.path.realpath(mkdtemp(prefix=_PREFIX))
    started, machine = read_start_time(os.getpid()), _identify_machine()
    if started is not None and machine is not None:
        with os.fdopen(create_private_file(os.path.join(path, _OWNER_FILE)), "w", encoding="ascii") as file:
            file.write(f"{os.getpid()} {started} {machine}")
    return path


def remove_abandoned_dirs() -> None:
    """Remove this user's temporary directories whose owner is gone, unless its commands still run."""
    from tempfile import gettempdir  # noqa: PLC0415 — the first command pays

    try:
        machine = _identify_machine()
        in_use = {(receipt.owner_pid, receipt.owner_started) for _, receipt in _list_receipts()}
        with os.scandir(gettempdir()) as entries:
            ours = [entry for entry in entries if entry.name.startswith(_PREFIX)]
    except OSError:
        return
    for entry in ours:
        owner = None if machine is None else _read_owner(entry, machine)
        if owner is not None and owner not in in_use and read_start_time(owner[0]) != owner[1]:
            remove_tree(entry.path)


def _identify_machine() -> str | None:
    """Identify the pid namespace and the boot, outside of which a pid says nothing; None without `/proc`."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{os.readlink('/proc/self/ns/pid')} {file.read().strip()}"
    except OSError:
        return None


def _read_owner(entry: os.DirEntry[str], machine: str) -> tuple[int, int] | None:
    """Read pid and start time of a directory's owner; None if it isn't a directory of ours, made on this machine."""
    try:
        status = entry.stat(follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            return None
        text = read_small_file(os.path.join(entry.path, _OWNER_FILE), _MAX_OWNER_BYTES, follow=False).decode("ascii")
        pid, started, where = text.split(" ", 2)
        return (int(pid), int(started)) if where == machine else None
    except (OSError, ValueError):
        return None


# -- the reaper -----------------------------------------------------------------------------------

_WAIT = 'read -r _ || exec "$@"'
_END = """
import sys, types
for name, path in zip(("indusagi", "indusagi.core", "indusagi.core.process", "indusagi.capabilities"), sys.argv[1:5]):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from indusagi.capabilities.leftovers import end_commands, remove_abandoned_dirs
end_commands(*map(int, sys.argv[5:]))
remove_abandoned_dirs()
"""
"""Registers our packages without running their `__init__`, like the worker processes."""
_VARIABLES = ("PATH", "HOME", "XDG_STATE_HOME", "TMPDIR", "TEMP", "TMP")
_CLOSE_S = 5.0


class Reaper:
    """A process that cleans up if we get killed, started with the first command.

    It's an `sh` waiting on a pipe whose other end only we hold. The kernel closes that end however we exit; for an
    orderly exit, we write a line first. Otherwise `sh` execs Python, which cleans up. The reaper leads its own session,
    so a signal to our process group doesn't reach it.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def start(self) -> None:
        """Start the process once. If that fails, the next run finds leftovers."""
        with self._lock:
            started = read_start_time(os.getpid()) if self._process is None else None
            if started is None:  # already running, or no receipts on this system
                return
            capabilities = os.path.dirname(os.path.abspath(__file__))
            package = os.path.dirname(capabilities)
            core = os.path.join(package, "core")
            folders = [package, core, os.path.join(core, "process"), capabilities]
            python = [sys.executable, "-I", "-c", _END, *folders, str(os.getpid()), str(started)]
            with suppress(OSError):
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _WAIT, "sh", *python],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env={name: os.environ[name] for name in _VARIABLES if name in os.environ},
                    cwd="/",
                    start_new_session=True,
                )

    def close(self) -> None:
        """Stop the process without reaping anything; a later command starts a new one."""
        with self._lock:
            process, self._process = self._process, None
        if process is None or process.stdin is None:
            return
        with suppress(OSError):
            process.stdin.write(b"\n")
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
