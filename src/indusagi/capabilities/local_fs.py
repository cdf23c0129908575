"""The files of this machine as a door for tools.

Only regular files are opened, so a pipe or a device can neither hang a tool nor feed it without
end. Writing puts a finished file in the place of the old one: nobody ever sees half of it.
"""

from __future__ import annotations

import errno
import os
import stat
from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.backends import DirEntry, FileKind, FileStat
from indusagi.core.ids import new_ulid

if TYPE_CHECKING:
    from collections.abc import Sequence

_CHUNK_BYTES = 1024 * 1024


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
        """Tell whether `stat` would find something."""
        try:
            await self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read a regular file from `offset`, `limit` bytes at most; nothing else is ever opened."""
        return await to_thread.run_sync(_read, self._at(path), offset, limit)

    async def read_text(self, path: str) -> str:
        """Read a whole file as strict UTF-8."""
        data = await self.read_bytes(path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise OSError(errno.EILSEQ, f"not UTF-8 at byte {exc.start}", path) from exc

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Replace or create a file in one step: a reader sees the old content or the new."""
        content = data.encode("utf-8") if isinstance(data, str) else data
        await to_thread.run_sync(_replace, self._at(path), content)

    async def mkdir(self, path: str) -> None:
        """Make a directory and those above it; one that is there is fine."""
        await to_thread.run_sync(partial(os.makedirs, self._at(path), exist_ok=True))

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
    # Opening a pipe would wait for a writer; with O_NONBLOCK it returns, and is then refused.
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


def _replace(path: str, data: bytes) -> None:
    # The file a link points to is replaced, not the link.
    target = os.path.realpath(path)
    mode = _mode_of(target)
    temporary = os.path.join(os.path.dirname(target), f".indus-{new_ulid()}.tmp")
    # A file that was closed to others must not be open to them while it is being written.
    first_mode = 0o666 if mode is None else 0o600
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, first_mode)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            if mode is not None:
                os.fchmod(handle, mode)
            os.fsync(handle)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _mode_of(target: str) -> int | None:
    try:
        found = os.lstat(target)
    except FileNotFoundError:
        return None
    _require_regular(found.st_mode, target)
    return stat.S_IMODE(found.st_mode)


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
