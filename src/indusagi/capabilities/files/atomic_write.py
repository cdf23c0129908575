"""Replace files atomically.

We write a temporary file with the owner and mode of the old one and rename(2) it over the old one, so readers see
either the old or the new content (https://man7.org/linux/man-pages/man2/rename.2.html). Read-only files are off limits.
If we can't create files in the directory, we overwrite the old file in place.

A file may have other names (hard links), possibly outside the workspace, where tools mustn't write. The rename only
affects this name; the others keep the old content. If that isn't possible, we refuse to write.

The name of the temporary file derives from its target, so that a later write cleans up after a killed process.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from anyio import Lock, current_time, fail_after, sleep, to_thread
from anyio.lowlevel import RunVar, checkpoint_if_cancelled

from indusagi.capabilities.ports import PathRefused
from indusagi.core.app_dirs import make_private_dir, state_dir
from indusagi.core.ids import new_ulid
from indusagi.core.records import record
from indusagi.core.tasks import run_shielded
from indusagi.core.time import now_ms

if TYPE_CHECKING:
    from indusagi.capabilities.files.policy import DirFdPath


# -- locks ------------------------------------------------------------------------------------
#
# A change holds the file's lock from reading the old content until the new content is written, so no change gets lost.
# Tasks of one event loop queue in order. Processes of the same user flock(2) a separate lock file
# (https://man7.org/linux/man-pages/man2/flock.2.html), because every change replaces the file itself. On a system
# without such locks we carry on, and `HeldLock.unshared` gives the reason.


LOCK_WAIT_S = 30.0
"""How long to wait for other changes to the same file."""
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 0.1
_LOCKED = frozenset({errno.EAGAIN, errno.EACCES})
"""`flock` errors for a lock held by another process."""
_ATTEMPTS = 100
"""Retries if the lock file disappears before we lock it; after that we treat it as held by another process."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@record
class HeldLock:
    """A lock we hold."""

    path: str
    unshared: str | None
    """Why other processes can't see the lock; None if they can."""


# One table per event loop, because a lock only works within one loop. The lock file covers loops and processes.
_LOCKS: RunVar[WeakValueDictionary[str, Lock]] = RunVar("file locks")


@asynccontextmanager
async def file_lock(path: str, *, wait_s: float = LOCK_WAIT_S) -> AsyncGenerator[HeldLock]:
    """Hold the lock of a file, given its resolved path. Not reentrant.

    Raises `TimeoutError` if other changes held the lock for `wait_s` seconds.
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
    """A lock file we hold, or the reason we don't."""

    path: str = ""
    handle: int = -1
    failure: str | None = None

    def release(self) -> None:
        """Remove the file while we still hold the lock, then unlock it."""
        if self.handle < 0:
            return
        with suppress(OSError):  # the next change reuses a leftover file
            os.unlink(self.path)
        # Closing isn't enough if a forked child has inherited the descriptor.
        fcntl.flock(self.handle, fcntl.LOCK_UN)
        os.close(self.handle)
        self.handle = -1


async def _release(lock_file: LockFile | None) -> None:
    if lock_file is not None:
        await run_shielded(to_thread.run_sync(lock_file.release), "unlock a file")


def _try_lock(path: str) -> LockFile | None:
    """Lock the lock file of a path; None if another process holds it."""
    name = hashlib.sha256(os.fsencode(path)).hexdigest()[:32]
    try:
        folder = make_private_dir(os.path.join(state_dir(), "locks"))
        lock_path = os.path.join(folder, f"{name}.lock")
        for _ in range(_ATTEMPTS):
            handle = os.open(lock_path, _FLAGS, 0o600)
            is_current = False
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The previous holder may have removed the file before we locked it.
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


# -- atomic write ----------------------------------------------------------------------------


_ANY_WRITE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access", "security.selinux")
"""Excludes `security.capability`, which the kernel also drops on write
(https://man7.org/linux/man-pages/man7/capabilities.7.html)."""
_NO_NEW_FILE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.EBUSY})
"""Errors if a directory isn't writable, or if the file is a mount point."""
_ABANDONED_MS = 60_000
"""A temporary file this old belongs to a killed process."""
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}


def require_regular_file(status: os.stat_result, given: str, resolved: str) -> None:
    """Reject anything but a regular file.

    Raises `IsADirectoryError` if it's a directory, and `PathRefused` if it's a pipe, a socket or a device.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), resolved)
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.S_IFMT(status.st_mode), "a device")
        message = f"is not a regular file but {kind}, and is not opened. Use a command for it"
        raise PathRefused(given, resolved, "special", message)


def write_atomically(target: DirFdPath, data: bytes, given: str) -> None:
    """Create or replace a file; `given` is the path for messages.

    Raises:
        SymlinkError: The target is a symbolic link.
        PathRefused: The file has other hard links, and we can't create files in its directory.
        PermissionError: The file is read-only, or its directory isn't accessible.
    """
    try:
        former = target.stat()
    except FileNotFoundError:
        _replace(target, data, None)
        return
    require_regular_file(former, given, target.path)
    if not former.st_mode & _ANY_WRITE and not os.access(
        target.name, os.W_OK, dir_fd=target.folder, effective_ids=os.access in os.supports_effective_ids
    ):
        message = "the file is read-only. Ask the user to make it writable"
        raise PermissionError(errno.EACCES, message, target.path)
    try:
        _replace(target, data, former)
    except OSError as exc:
        if exc.errno not in _NO_NEW_FILE:
            raise
        _overwrite(target, data, given)


def _overwrite(target: DirFdPath, data: bytes, given: str) -> None:
    """Write a file in place. If a longer content doesn't fit on the disk, the old content stays intact."""
    handle = target.open(os.O_WRONLY)
    try:
        former = os.fstat(handle)
        require_regular_file(former, given, target.path)
        if former.st_nlink > 1:
            message = (
                "has other names (hard links), whose content would change too, and its directory "
                "takes no new file. Ask the user to make the directory writable"
            )
            raise PathRefused(given, target.path, "special", message)
        size = former.st_size
        if len(data) > size:
            try:
                _write_at(handle, data[size:], size)
                os.fsync(handle)
            except OSError:
                os.ftruncate(handle, size)
                raise
        _write_at(handle, data[:size], 0)
        os.ftruncate(handle, len(data))
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_at(handle: int, data: bytes, position: int) -> None:
    left = memoryview(data)
    while left:
        count = os.pwrite(handle, left, position)
        left, position = left[count:], position + count


def _replace(target: DirFdPath, data: bytes, former: os.stat_result | None) -> None:
    # The temporary file must never be more accessible than the final one.
    mode = 0o666 if former is None else former.st_mode & 0o600
    temporary, handle = _create_temporary(target, mode)
    with os.fdopen(handle, "wb") as file:
        try:
            file.write(data)
            file.flush()
            if former is not None:
                _copy_metadata(handle, target, former)
            os.fsync(handle)
            os.replace(temporary, target.name, src_dir_fd=target.folder, dst_dir_fd=target.folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=target.folder)
            raise


def _create_temporary(target: DirFdPath, mode: int) -> tuple[str, int]:
    """Create the temporary file; return its name and descriptor."""
    name = f".indus-{hashlib.sha256(os.fsencode(target.name)).hexdigest()[:26]}.tmp"
    with suppress(FileExistsError):
        return name, os.open(name, _CREATE, mode, dir_fd=target.folder)
    with suppress(OSError):
        if os.stat(name, dir_fd=target.folder, follow_symlinks=False).st_mtime * 1000 < now_ms() - _ABANDONED_MS:
            os.unlink(name, dir_fd=target.folder)
    # Another name: if the process was only suspended, it must not rename our unfinished file. The last rename wins.
    name = f".indus-{new_ulid()}.tmp"
    return name, os.open(name, _CREATE, mode, dir_fd=target.folder)


def _copy_metadata(handle: int, target: DirFdPath, former: os.stat_result) -> None:
    """Copy the owner, extended attributes and mode of the replaced file.

    The order matters: chown(2) clears mode bits, and an access control list changes the mode
    (https://man7.org/linux/man-pages/man2/chown.2.html).
    """
    # Only root can change the owner; the owner can change the group to one of their groups.
    try:
        os.fchown(handle, former.st_uid, former.st_gid)
    except OSError:
        with suppress(OSError):
            os.fchown(handle, -1, former.st_gid)
    if sys.platform == "linux":
        # The xattr calls don't take a directory descriptor, and the file itself may be unreadable.
        path = f"/proc/self/fd/{target.folder}/{target.name}"
        with suppress(OSError):
            for name in os.listxattr(path, follow_symlinks=False):
                if name.startswith(_KEPT_ATTRIBUTES):
                    with suppress(OSError):
                        os.setxattr(handle, name, os.getxattr(path, name, follow_symlinks=False))
    mode = stat.S_IMODE(former.st_mode)
    now = os.fstat(handle)
    if now.st_gid != former.st_gid:
        # A different group gets no more rights than everyone else.
        mode &= ~0o070 | (mode & 0o007) << 3
    if (now.st_uid, now.st_gid) != (former.st_uid, former.st_gid):
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    os.fchmod(handle, mode)
