"""File locks: one writer at a time for each file.

A change holds the lock of its file from reading the old content to having written the new one, so that no change is
lost. Tasks of one event loop wait in the order in which they came. Processes of one user lock a separate lock file by
flock(2) (https://man7.org/linux/man-pages/man2/flock.2.html), because every change replaces the file itself. On a
system without such locks the work continues, and `HeldLock.unshared` gives the reason.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from anyio import Lock, current_time, fail_after, sleep, to_thread
from anyio.lowlevel import RunVar, checkpoint_if_cancelled

from indusagi.core.app_dirs import make_private_dir, state_dir
from indusagi.core.records import record
from indusagi.core.tasks import run_shielded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LOCK_WAIT_S = 30.0
"""How long a change waits for other changes of the same file."""
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
_LOCKED = frozenset({errno.EAGAIN, errno.EACCES})
"""Errors of `flock` for a lock that another process holds."""
_ATTEMPTS = 100
"""How often a lock file may be removed before it is locked; then it counts as held by another process."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@record
class HeldLock:
    """A lock that is held."""

    path: str
    unshared: str | None
    """Why other processes do not see it; None when they do."""


# One table per event loop, because a lock serves only one loop. The lock file separates loops and processes.
_LOCKS: RunVar[WeakValueDictionary[str, Lock]] = RunVar("file locks")


@asynccontextmanager
async def file_lock(path: str, *, wait_s: float = LOCK_WAIT_S) -> AsyncGenerator[HeldLock]:
    """Hold the lock of a file; `path` is its resolved path. A task must not request a lock that it holds.

    Raises:
        TimeoutError: Other changes held the lock for `wait_s` seconds.
    """
    deadline = current_time() + wait_s
    locks = _LOCKS.get(None)
    if locks is None:
        locks = WeakValueDictionary[str, Lock]()
        _LOCKS.set(locks)
    lock = locks.setdefault(path, Lock())
    try:
        with fail_after(wait_s):
            await lock.acquire()
    except TimeoutError:
        raise _build_timeout(path, wait_s, "another call") from None
    try:
        pause = _FIRST_PAUSE_S
        while (lock_file := await run_shielded(to_thread.run_sync(_try_lock, path), "lock a file", _release)) is None:
            if current_time() >= deadline:
                raise _build_timeout(path, wait_s, "another process")
            await sleep(min(pause, max(deadline - current_time(), 0)))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        try:
            await checkpoint_if_cancelled()
            yield HeldLock(path, lock_file.failure)
        finally:
            await _release(lock_file)
    finally:
        lock.release()


def _build_timeout(path: str, wait_s: float, holder: str) -> TimeoutError:
    message = f"{holder} has been changing it for more than {wait_s:g} seconds; try again later"
    return TimeoutError(errno.ETIMEDOUT, message, path)


@dataclass(slots=True)
class LockFile:
    """A locked lock file, or the reason why there is none."""

    path: str = ""
    handle: int = -1
    failure: str | None = None

    def release(self) -> None:
        """Remove the file while it is still locked, then unlock it."""
        if self.handle < 0:
            return
        with suppress(OSError):  # a file that stays is used again
            os.unlink(self.path)
        # To close it would not unlock a descriptor that a forked child has inherited.
        fcntl.flock(self.handle, fcntl.LOCK_UN)
        os.close(self.handle)
        self.handle = -1


async def _release(lock_file: LockFile | None) -> None:
    if lock_file is not None:
        await run_shielded(to_thread.run_sync(lock_file.release), "unlock a file")


def _try_lock(path: str) -> LockFile | None:
    """Lock the lock file of a path; None when another process holds it."""
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    try:
        folder = make_private_dir(os.path.join(state_dir(), "locks"))
        lock_path = os.path.join(folder, f"{name}.lock")
        for _ in range(_ATTEMPTS):
            handle = os.open(lock_path, _FLAGS, 0o600)
            is_current = False
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The former holder may have removed the file before it was locked here.
                with suppress(FileNotFoundError):
                    is_current = os.path.samestat(os.fstat(handle), os.stat(lock_path, follow_symlinks=False))
            except OSError as exc:
                if exc.errno in _LOCKED:
                    return None
                raise
            finally:
                if not is_current:
                    os.close(handle)
            if is_current:
                return LockFile(lock_path, handle)
    except OSError as exc:
        return LockFile(failure=f"no lock among processes: {exc.strerror or exc}")
    return None
