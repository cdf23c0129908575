"""The files of this machine as a door for tools.

Only regular files are opened, so a pipe or a device can neither hang a tool nor feed it without
end, nor lose what somebody waits to write into it. Writing puts a finished file in the place of the
old one, with its owner and mode: nobody ever sees half of it. A file of several names is the
exception: it is written in place, since a new file would be under one of the names only.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.backends import DirEntry, FileKind, FileStat, Folder
from indusagi.core.ids import new_ulid
from indusagi.core.places import make_dirs

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from typing import BinaryIO

    from indusagi.capabilities.backends import WorkT

_CHUNK_BYTES = 1024 * 1024
_LARGEST_OFFSET = 2**63 - 1
_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
"""What `stat` says of a path at which nothing is, or can be."""
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
_KEPT_ATTRIBUTES = ("user.", "system.posix_acl_access", "security.selinux")
"""Not `security.capability`: the system too takes it from a file that is written to."""


class LocalFs:
    """Files of this machine; a relative path starts at `cwd`."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd

    async def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Look at a path; a dangling link is not found unless `follow` is off."""
        found = await to_thread.run_sync(partial(os.stat, self._at(path), follow_symlinks=follow))
        return FileStat(
            kind=_kind(found.st_mode),
            size=found.st_size,
            mode=stat.S_IMODE(found.st_mode),
            mtime_ns=found.st_mtime_ns,
        )

    async def exists(self, path: str) -> bool:
        """Tell whether `stat` would find something; where one may not look, that is an error."""
        try:
            await self.stat(path)
        except OSError as exc:
            if exc.errno in _NOWHERE:
                return False
            raise
        return True

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read a regular file from `offset`, `limit` bytes at most; nothing else is ever opened."""
        if not 0 <= offset <= _LARGEST_OFFSET or (limit is not None and limit < 0):
            raise OSError(errno.EINVAL, f"no such part: offset {offset}, limit {limit}", path)
        return await to_thread.run_sync(_read, self._at(path), offset, limit)

    async def resolve(self, path: str, *, writing: bool = False) -> str:
        """Give the absolute path that this one leads to, links followed."""
        return await to_thread.run_sync(os.path.realpath, self._at(path))

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        """Open a regular file and do `work` on it in a thread: one opening, one version."""
        return await to_thread.run_sync(_work_on, self._at(path), work, abandon_on_cancel=True)

    async def folder(self, path: str) -> Folder:
        """Open a directory; the caller closes it."""
        return await to_thread.run_sync(_open_folder, self._at(path))

    async def read_text(self, path: str) -> str:
        """Read a whole file as strict UTF-8."""
        data = await self.read_bytes(path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise OSError(errno.EILSEQ, f"not UTF-8 at byte {exc.start}", path) from exc

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Replace or create a file in one step: a reader sees the old content or the new.

        Owner, group, mode and extended attributes stay where the system permits it; where the
        owner or the group cannot stay, the mode is narrowed so that nobody gains by it. A file
        with several names (hard links) is written in place instead, so that all of them see the
        new content: a reader may then see a part of it, and a failure may leave a part behind.
        """
        try:
            content = data.encode("utf-8") if isinstance(data, str) else data
        except UnicodeEncodeError as exc:
            message = f"half a surrogate pair at character {exc.start} is not text"
            raise OSError(errno.EILSEQ, message, path) from exc
        await to_thread.run_sync(_write, self._at(path), content)

    async def mkdir(self, path: str) -> None:
        """Make a directory and those above it; one that is there is fine."""
        await to_thread.run_sync(make_dirs, self._at(path))

    async def readdir(self, path: str) -> Sequence[DirEntry]:
        """List a directory, sorted by name."""
        return await to_thread.run_sync(_list, self._at(path))

    async def rm(self, path: str) -> None:
        """Remove a file, a link or an empty directory."""
        await to_thread.run_sync(_remove, self._at(path))

    def _at(self, path: str) -> str:
        # The system calls would answer with a ValueError: a door answers with an OSError.
        try:
            usable = b"\0" not in os.fsencode(path)
        except UnicodeEncodeError:
            usable = False
        if not usable:
            raise OSError(errno.EINVAL, "a path cannot hold such characters", path)
        return os.path.join(self._cwd, path)


def _kind(mode: int) -> FileKind:
    if stat.S_ISREG(mode):
        return FileKind.FILE
    if stat.S_ISDIR(mode):
        return FileKind.DIRECTORY
    return FileKind.SYMLINK if stat.S_ISLNK(mode) else FileKind.OTHER


def _require_regular(mode: int, path: str) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "not a regular file", path)


def _read(path: str, offset: int, limit: int | None) -> bytes:
    # Opening a pipe, even for a moment, would break it for a writer who waits at the other end.
    _require_regular(os.stat(path).st_mode, path)
    # Should there be a pipe by now all the same: with O_NONBLOCK this does not wait for a writer.
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(handle).st_mode, path)
        chunks: list[bytes] = []
        left = limit
        while left is None or left > 0:
            wanted = _CHUNK_BYTES if left is None else min(left, _CHUNK_BYTES)
            chunk = os.pread(handle, wanted, offset)
            if not chunk:
                break
            chunks.append(chunk)
            offset += len(chunk)
            left = None if left is None else left - len(chunk)
    finally:
        os.close(handle)
    return b"".join(chunks)


def _work_on(path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
    _require_regular(os.stat(path).st_mode, path)
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        _require_regular(os.fstat(handle).st_mode, path)
        return work(file)


def _open_folder(path: str) -> Folder:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    return Folder(os.path.realpath(path), handle)


def _write(path: str, data: bytes) -> None:
    former = _regular_at(path)
    # The file a link points to is written, not the link.
    target = os.path.realpath(path)
    with _naming(target):
        if former is not None and former.st_nlink > 1:
            _overwrite(target, data)
        else:
            _replace(target, data, former)


def _regular_at(path: str) -> os.stat_result | None:
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    _require_regular(found.st_mode, path)
    return found


@contextmanager
def _naming(target: str) -> Generator[None]:
    """Let a failure name the file that was to be written, not one the caller never heard of."""
    try:
        yield
    except OSError as exc:
        raise OSError(exc.errno, exc.strerror, target) from exc


def _overwrite(target: str, data: bytes) -> None:
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(target, flags), "wb") as file:
        _require_regular(os.fstat(file.fileno()).st_mode, target)
        file.write(data)
        file.truncate()
        os.fsync(file.fileno())


def _replace(target: str, data: bytes, former: os.stat_result | None) -> None:
    temporary = os.path.join(os.path.dirname(target), f".indus-{new_ulid()}.tmp")
    # Nobody may read in it while it is written who may not read the file that it becomes.
    first_mode = 0o666 if former is None else former.st_mode & 0o600
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, first_mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if former is not None:
                _take_after(handle, target, former)
            os.fsync(handle)
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _take_after(handle: int, target: str, former: os.stat_result) -> None:
    """Give a new file the owner, attributes and mode of the one that it replaces.

    In this order: a change of the owner takes bits from the mode, and an access list changes it.
    """
    _keep_owner(handle, former)
    _keep_attributes(handle, target)
    os.fchmod(handle, _fitting_mode(former, os.fstat(handle)))


def _keep_owner(handle: int, former: os.stat_result) -> None:
    # Only root may give a file away; its owner may give it to a group of theirs.
    try:
        os.fchown(handle, former.st_uid, former.st_gid)
    except OSError:
        with suppress(OSError):
            os.fchown(handle, -1, former.st_gid)


def _keep_attributes(handle: int, target: str) -> None:
    if sys.platform != "linux":
        return
    with suppress(OSError):
        for name in os.listxattr(target):
            if name.startswith(_KEPT_ATTRIBUTES):
                with suppress(OSError):
                    os.setxattr(handle, name, os.getxattr(target, name))


def _fitting_mode(former: os.stat_result, now: os.stat_result) -> int:
    """Give the former mode, without the rights that were meant for another owner or group."""
    mode = stat.S_IMODE(former.st_mode)
    if now.st_gid != former.st_gid:
        # The new group may do no more than everybody else.
        mode &= ~0o070 | (mode & 0o007) << 3
    if (now.st_uid, now.st_gid) != (former.st_uid, former.st_gid):
        mode &= ~_SPECIAL_BITS
    return mode


def _list(path: str) -> tuple[DirEntry, ...]:
    with os.scandir(path) as entries:
        found = [DirEntry(entry.name, _entry_kind(entry)) for entry in entries]
    return tuple(sorted(found, key=lambda entry: entry.name))


def _entry_kind(entry: os.DirEntry[str]) -> FileKind:
    if entry.is_symlink():
        return FileKind.SYMLINK
    if entry.is_dir(follow_symlinks=False):
        return FileKind.DIRECTORY
    return FileKind.FILE if entry.is_file(follow_symlinks=False) else FileKind.OTHER


def _remove(path: str) -> None:
    if stat.S_ISDIR(os.lstat(path).st_mode):
        os.rmdir(path)
    else:
        os.unlink(path)
