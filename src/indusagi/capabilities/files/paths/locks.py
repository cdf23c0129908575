"""One writer at a time for each file.

Whoever changes a file holds its lock from reading what is there to having written the new content,
so that of two changes none is lost. Tasks of one event loop take turns in the order they came.
Processes of one user keep off each other through a lock file of their own, not through the file
itself: that one is replaced by every change. Where the system cannot lock, work goes on without it,
and the lock that is held says why.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from anyio import Lock, current_time, fail_after, sleep, to_thread
from anyio.lowlevel import RunVar, checkpoint_if_cancelled

from indusagi.core.app_dirs import make_private_dir, state_dir
from indusagi.core.tasks import run_shielded

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LOCK_WAIT_S = 30.0
"""How long a change waits for the ones before it."""
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
_BUSY = frozenset({errno.EAGAIN, errno.EACCES})
"""What `flock` says of a lock that somebody else holds."""
_RENEWALS = 100
"""How often a lock file may be gone again when it was locked, before that counts as busy."""


@dataclass(frozen=True, slots=True)
class HeldLock:
    """A lock that is held."""

    path: str
    unshared: str | None
    """Why other processes do not know of it; None when they do."""


class _Turn:
    """The lock of one path among the tasks of one event loop, there as long as somebody uses it."""

    __slots__ = ("__weakref__", "lock")

    def __init__(self) -> None:
        self.lock = Lock()


# One table for each event loop: a lock cannot serve two of them. Between loops, as between
# processes, the lock file keeps order.
_TURNS: RunVar[WeakValueDictionary[str, _Turn]] = RunVar("file locks")


@asynccontextmanager
async def file_lock(path: str, *, wait_s: float = LOCK_WAIT_S) -> AsyncGenerator[HeldLock]:
    """Hold the lock of a file; `path` is the resolved one, the same for all its names.

    A task must not ask for a lock that it holds already.

    Raises:
        TimeoutError: Others did not let go of it for `wait_s` seconds.
    """
    deadline = current_time() + wait_s
    turn = _turn_of(path)
    try:
        with fail_after(wait_s):
            await turn.lock.acquire()
    except TimeoutError:
        raise _waited_too_long(path, wait_s, "another call") from None
    try:
        key = await _shared(path, deadline, wait_s)
        try:
            await checkpoint_if_cancelled()
            yield HeldLock(path, key.trouble)
        finally:
            await run_shielded(to_thread.run_sync(key.release), "unlock a file")
    finally:
        turn.lock.release()


def _turn_of(path: str) -> _Turn:
    try:
        turns = _TURNS.get()
    except LookupError:
        turns = WeakValueDictionary[str, _Turn]()
        _TURNS.set(turns)
    return turns.setdefault(path, _Turn())


def _waited_too_long(path: str, wait_s: float, who: str) -> TimeoutError:
    return TimeoutError(
        errno.ETIMEDOUT, f"{who} has been changing it for more than {wait_s:g} seconds; try again later", path
    )


class _Key:
    """A lock file that is locked, or the reason why there is none."""

    __slots__ = ("_handle", "_path", "trouble")

    def __init__(self, path: str = "", handle: int = -1, trouble: str | None = None) -> None:
        self._path = path
        self._handle = handle
        self.trouble = trouble

    def release(self) -> None:
        """Unlock, and take the file away while nobody else can have locked it."""
        if self._handle < 0:
            return
        try:
            os.unlink(self._path)
        except OSError:
            pass  # it stays, and serves the next one
        finally:
            # Closing alone would not unlock what a forked child has inherited.
            fcntl.flock(self._handle, fcntl.LOCK_UN)
            os.close(self._handle)
            self._handle = -1


async def _shared(path: str, deadline: float, wait_s: float) -> _Key:
    pause = _FIRST_PAUSE_S
    while True:
        key = await run_shielded(to_thread.run_sync(_try_lock, path), "lock a file", _give_back)
        if key is not None:
            return key
        if current_time() >= deadline:
            raise _waited_too_long(path, wait_s, "another process")
        await sleep(min(pause, max(deadline - current_time(), 0)))
        pause = min(2 * pause, _LONGEST_PAUSE_S)


async def _give_back(key: _Key | None) -> None:
    if key is not None:
        await run_shielded(to_thread.run_sync(key.release), "unlock a file")


def _try_lock(path: str) -> _Key | None:
    """Lock the lock file of a path; None when somebody else has it."""
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    try:
        folder = make_private_dir(os.path.join(state_dir(), "locks"))
        return _lock(os.path.join(folder, f"{name}.lock"))
    except OSError as exc:
        return _Key(trouble=f"no lock among processes: {exc.strerror or exc}")


def _lock(path: str) -> _Key | None:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    for _ in range(_RENEWALS):
        handle = os.open(path, flags, 0o600)
        kept = False
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            kept = _stands_at(handle, path)
        except OSError as exc:
            if exc.errno in _BUSY:
                return None
            raise
        finally:
            if not kept:
                os.close(handle)
        if kept:
            return _Key(path, handle)
    return None


def _stands_at(handle: int, path: str) -> bool:
    """Tell whether this file is still the one of that name: its former holder removes it."""
    try:
        return os.path.samestat(os.fstat(handle), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
