"""Open files relative to a base directory without following symbolic links.

The caller resolves a path including its links, then opens it from its base. If another process slips in a link in
between, we raise `SymlinkError`; the link never leads out of the base. We open each component on its own, by openat(2)
with `O_NOFOLLOW` (https://man7.org/linux/man-pages/man2/openat.2.html).
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from indusagi.core.records import record

# Enough to reach the names in a directory; on Linux this doesn't require permission to list it.
_DIRECTORY = (os.O_PATH if sys.platform == "linux" else os.O_RDONLY) | (os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


class SymlinkError(OSError):
    """A symbolic link appeared after we resolved the path, or links form a loop."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, os.strerror(errno.ELOOP), path)


def real_path(path: str) -> str:
    """Resolve a path as far as it exists.

    Raises `SymlinkError` if a link changed in the meantime, or the chain of links doesn't end.
    """
    try:
        return os.path.realpath(path)
    except (OSError, RecursionError) as exc:
        raise SymlinkError(path) from exc


@record
class DirFdPath:
    """A name in an open directory, or `.` for the directory itself."""

    folder: int
    name: str
    path: str
    """Full path, for messages."""

    def lstat(self) -> os.stat_result:
        """Stat the name without following a link."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def stat(self) -> os.stat_result:
        """Stat the name. Raises `SymlinkError` if it's a link."""
        status = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise SymlinkError(self.path)
        return status

    def open(self, flags: int) -> int:
        """Open the name. Raises `SymlinkError` if it's a link."""
        flags |= os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(self.name, flags, dir_fd=self.folder)
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise SymlinkError(self.path) from exc
            raise

    def open_folder(self) -> int:
        """Open the directory for listing. Raises `SymlinkError` if it's a link."""
        try:
            return self.open(os.O_RDONLY | os.O_DIRECTORY)
        except NotADirectoryError:
            self.require_file()
            raise

    def require_file(self) -> None:
        """Check that the name, which failed to open as a directory, is still a file.

        Raises `SymlinkError` if it was a link: it still is one, or it's now a directory.
        """
        if stat.S_ISDIR(self.stat().st_mode):
            raise SymlinkError(self.path)


@contextmanager
def open_at(base: str, parts: Sequence[str], path: str) -> Generator[DirFdPath]:
    """Open the directory that contains the last of `parts`.

    Raises `SymlinkError` if a directory along the way is a link.
    """
    folder = open_directory(base, parts[:-1])
    try:
        yield DirFdPath(folder, parts[-1] if parts else os.curdir, path)
    finally:
        os.close(folder)


def open_directory(base: str, parts: Sequence[str], *, create: bool = False) -> int:
    """Open a directory below `base`; `create` creates it along with its parents.

    Raises `SymlinkError` if a directory along the way is a link, or `..`.
    """
    folder = os.open(base, _DIRECTORY)
    try:
        for part in parts:
            parent, folder = folder, _enter(folder, part, create=create)
            os.close(parent)
        opened, folder = folder, -1
        return opened
    finally:
        if folder >= 0:
            os.close(folder)


def _enter(folder: int, name: str, *, create: bool) -> int:
    if name == os.pardir:  # it would lead out of the base
        raise SymlinkError(name)
    try:
        return os.open(name, _DIRECTORY, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            pass  # another process was faster
        return _enter(folder, name, create=False)
    except OSError as exc:
        if exc.errno in {errno.ELOOP, errno.ENOTDIR}:
            DirFdPath(folder, name, name).require_file()
        raise
