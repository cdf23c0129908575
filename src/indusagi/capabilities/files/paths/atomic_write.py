"""A file put in its place whole.

A finished file takes the place of the old one, with its owner and mode: nobody ever sees half of
it. One that is marked read-only is not replaced. Where the directory takes no new file, the old one
is written to where it is.

A file may have several names (hard links), and the others may lie outside of the workspace, where
nothing may be written. A new file therefore takes the place of this name alone, and the others keep
their content; where that cannot be done, it is refused.

What a process leaves that is ended while it writes, the next one that writes there clears away: the
unfinished file is called after its place, and locked for as long as somebody writes it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
import sys
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.capabilities.files.paths.openat import SymlinkError
from indusagi.capabilities.ports import PathRefused
from indusagi.core.ids import new_ulid

if TYPE_CHECKING:
    from collections.abc import Generator

    from indusagi.capabilities.files.paths.openat import DirFdPath

_WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access", "security.selinux")
"""Not `security.capability`: the system too takes it from a file that is written to."""
_NO_ROOM_FOR_A_NEW_ONE = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EXDEV, errno.EBUSY})
"""What the system says when a directory is closed, or a file alone is mounted into it."""
_BUSY = frozenset({errno.EAGAIN, errno.EACCES})
"""What `flock` says of a lock that somebody else holds."""
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}


def require_regular_file(found: os.stat_result, given: str, resolved: str) -> None:
    """Refuse what is no regular file.

    Raises:
        IsADirectoryError: It is a directory.
        PathRefused: It is a pipe, a socket or a device.
    """
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), resolved)
    if not stat.S_ISREG(found.st_mode):
        kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
        why = f"is not a regular file but {kind}, and is not opened. Use a command for it"
        raise PathRefused(given, resolved, "special", why)


def write_atomically(spot: DirFdPath, data: bytes, given: str) -> None:
    """Write a file, be it there or not.

    Raises:
        SymlinkError: A link stands there.
        PathRefused: It has other names, and its directory takes no new file.
        PermissionError: The file is read-only, or its directory is closed.
    """
    try:
        former = spot.stat()
    except FileNotFoundError:
        _replace(spot, data, None)
        return
    require_regular_file(former, given, spot.path)
    _require_writable(spot, former)
    try:
        _replace(spot, data, former)
    except OSError as exc:
        if exc.errno not in _NO_ROOM_FOR_A_NEW_ONE:
            raise
        _overwrite(spot, data, given)


@contextmanager
def errors_naming(path: str) -> Generator[None]:
    """Let a failure name the file that was meant, not one the caller never heard of."""
    try:
        yield
    except PathRefused:
        raise
    except SymlinkError as exc:
        raise SymlinkError(path) from exc
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, path) from exc


def _require_writable(spot: DirFdPath, former: os.stat_result) -> None:
    """Refuse a file that is marked read-only, though another could be put in its place.

    Raises:
        PermissionError: Nobody may write to it.
    """
    if former.st_mode & _WRITABLE or os.access(
        spot.name, os.W_OK, dir_fd=spot.folder, effective_ids=os.access in os.supports_effective_ids
    ):
        return
    message = "the file is read-only. Ask the user to make it writable"
    raise PermissionError(errno.EACCES, message, spot.path)


def _overwrite(spot: DirFdPath, data: bytes, given: str) -> None:
    handle = spot.open(os.O_WRONLY)
    try:
        former = os.fstat(handle)
        require_regular_file(former, given, spot.path)
        if former.st_nlink > 1:
            why = (
                "has other names (hard links), whose content would change too, and its directory "
                "takes no new file. Ask the user to make the directory writable"
            )
            raise PathRefused(given, spot.path, "special", why)
        _lengthen(handle, data, former.st_size)
        _put(handle, data[: former.st_size], 0)
        os.ftruncate(handle, len(data))
        os.fsync(handle)
    finally:
        os.close(handle)


def _lengthen(handle: int, data: bytes, size: int) -> None:
    """Write what is longer than the old content; without room for it, that one stays whole."""
    if len(data) <= size:
        return
    try:
        _put(handle, data[size:], size)
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise


def _put(handle: int, data: bytes, at: int) -> None:
    left = memoryview(data)
    while left:
        written = os.pwrite(handle, left, at)
        left, at = left[written:], at + written


def _replace(spot: DirFdPath, data: bytes, former: os.stat_result | None) -> None:
    # Nobody may read in it while it is written who may not read the file that it becomes.
    first_mode = 0o666 if former is None else former.st_mode & 0o600
    temporary, handle = _begun(spot, first_mode)
    with os.fdopen(handle, "wb") as file:
        try:
            file.write(data)
            file.flush()
            if former is not None:
                _take_after(handle, spot, former)
            os.fsync(handle)
            os.replace(temporary, spot.name, src_dir_fd=spot.folder, dst_dir_fd=spot.folder)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary, dir_fd=spot.folder)
            raise


def _begun(spot: DirFdPath, mode: int) -> tuple[str, int]:
    """Make the file that is to be written and put in its place: its name, and a handle."""
    usual = f".indus-{hashlib.sha256(os.fsencode(spot.name)).hexdigest()[:26]}.tmp"
    for _ in range(2):
        handle = _claimed(spot, usual, mode)
        if handle is not None:
            return usual, handle
        if not _cleared(spot, usual):
            break
    # Somebody writes there at this moment, and the last one to be done decides.
    other = f".indus-{new_ulid()}.tmp"
    return other, os.open(other, _NEW, mode, dir_fd=spot.folder)


def _claimed(spot: DirFdPath, name: str, mode: int) -> int | None:
    """Make an unfinished file and lock it; None if there is one, or it was taken for abandoned."""
    try:
        handle = os.open(name, _NEW, mode, dir_fd=spot.folder)
    except FileExistsError:
        return None
    if _is_free(handle) and os.fstat(handle).st_nlink:
        return handle
    os.close(handle)
    return None


def _cleared(spot: DirFdPath, name: str) -> bool:
    """Remove an unfinished file that nobody is writing any more; tell whether it is gone."""
    left = replace(spot, name=name)
    try:
        handle = left.open(os.O_RDONLY)
    except OSError as exc:
        return exc.errno == errno.ENOENT
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # It may have been put in its place meanwhile, and another one begun.
        if os.path.samestat(os.fstat(handle), left.lstat()):
            os.unlink(name, dir_fd=spot.folder)
    except OSError as exc:
        return exc.errno == errno.ENOENT
    finally:
        os.close(handle)
    return True


def _is_free(handle: int) -> bool:
    """Lock a file; where the system cannot lock, nobody can hold it either."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        return exc.errno not in _BUSY
    return True


def _take_after(handle: int, spot: DirFdPath, former: os.stat_result) -> None:
    """Give a new file the owner, attributes and mode of the one that it replaces.

    In this order: a change of the owner takes bits from the mode, and an access list changes it.
    """
    _keep_owner(handle, former)
    _keep_attributes(handle, spot)
    os.fchmod(handle, _fitting_mode(former, os.fstat(handle)))


def _keep_owner(handle: int, former: os.stat_result) -> None:
    # Only root may give a file away; its owner may give it to a group of theirs.
    try:
        os.fchown(handle, former.st_uid, former.st_gid)
    except OSError:
        with suppress(OSError):
            os.fchown(handle, -1, former.st_gid)


def _keep_attributes(handle: int, spot: DirFdPath) -> None:
    if sys.platform != "linux":
        return
    # No call for attributes takes a directory and a name; the file itself may not be readable.
    path = f"/proc/self/fd/{spot.folder}/{spot.name}"
    with suppress(OSError):
        for name in os.listxattr(path, follow_symlinks=False):
            if name.startswith(_KEPT_ATTRIBUTES):
                with suppress(OSError):
                    value = os.getxattr(path, name, follow_symlinks=False)
                    os.setxattr(handle, name, value)


def _fitting_mode(former: os.stat_result, now: os.stat_result) -> int:
    """Give the former mode, without the rights that were meant for another owner or group."""
    mode = stat.S_IMODE(former.st_mode)
    if now.st_gid != former.st_gid:
        # The new group may do no more than everybody else.
        mode &= ~0o070 | (mode & 0o007) << 3
    if (now.st_uid, now.st_gid) != (former.st_uid, former.st_gid):
        mode &= ~_SPECIAL_BITS
    return mode
