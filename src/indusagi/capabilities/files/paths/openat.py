"""Files opened from a base directory without following symbolic links on the way.

A path is resolved first, with its links, and then opened from its base. A link that another process puts in its place
in between ends the walk with a `SymlinkError`: it never leads out of the base. Linux walks by openat2(2) with
`RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS` (https://man7.org/linux/man-pages/man2/openat2.2.html); elsewhere each component
is opened by openat(2) with `O_NOFOLLOW`.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

# Enough to reach the names in a directory; on Linux without the permission to list it.
_DIRECTORY = (os.O_PATH if sys.platform == "linux" else os.O_RDONLY) | (os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
_OPENAT2 = 437
_RESOLVE = 0x02 | 0x04 | 0x08
"""RESOLVE_NO_MAGICLINKS, RESOLVE_NO_SYMLINKS and RESOLVE_BENEATH."""
_MACHINES = frozenset({"x86_64", "aarch64", "arm64", "riscv64", "ppc64le", "s390x"})
"""Machines on which the system call has this number."""
_NOT_BENEATH = frozenset({errno.ELOOP, errno.EXDEV, errno.EAGAIN})
"""Errors of `openat2` for a link, for a path out of the base, and for a directory that is moved meanwhile."""


class SymlinkError(OSError):
    """A symbolic link stands where none was when the path was resolved, or links form a circle."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, os.strerror(errno.ELOOP), path)


def real_path(path: str) -> str:
    """Resolve a path as far as it exists.

    Raises:
        SymlinkError: A link was replaced meanwhile, or the chain of links does not end.
    """
    try:
        return os.path.realpath(path)
    except (OSError, RecursionError) as exc:
        raise SymlinkError(path) from exc


@record
class DirFdPath:
    """A name in an open directory; `.` for the directory itself."""

    folder: int
    """A descriptor of the directory."""
    name: str
    path: str
    """The complete path, for messages."""

    def lstat(self) -> os.stat_result:
        """Examine what has this name, without following a link."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def stat(self) -> os.stat_result:
        """Examine what has this name.

        Raises:
            SymlinkError: It is a link.
        """
        status = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise SymlinkError(self.path)
        return status

    def open(self, flags: int) -> int:
        """Open what has this name.

        Raises:
            SymlinkError: It is a link.
        """
        flags |= os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(self.name, flags, dir_fd=self.folder)
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise SymlinkError(self.path) from exc
            raise

    def open_folder(self) -> int:
        """Open the directory of this name, to list it.

        Raises:
            SymlinkError: It is a link.
        """
        try:
            return self.open(os.O_RDONLY | os.O_DIRECTORY)
        except NotADirectoryError:
            self.require_file()
            raise

    def require_file(self) -> None:
        """Check that this name is still the file that it was when it failed to open as a directory.

        Raises:
            SymlinkError: It was a link: it still is one, or it is a directory now.
        """
        if stat.S_ISDIR(self.stat().st_mode):
            raise SymlinkError(self.path)


@contextmanager
def open_at(base: str, parts: Sequence[str], path: str) -> Generator[DirFdPath]:
    """Open the directory that contains the last of `parts`.

    Raises:
        SymlinkError: A directory on the way is a link.
    """
    folder = open_directory(base, parts[:-1])
    try:
        yield DirFdPath(folder, parts[-1] if parts else os.curdir, path)
    finally:
        os.close(folder)


def open_directory(base: str, parts: Sequence[str], *, create: bool = False) -> int:
    """Open a directory below `base`, and create it with its parents if `create` is set.

    Raises:
        SymlinkError: A directory on the way is a link.
    """
    kernel_walk = openat2() if parts and not create else None
    folder = os.open(base, _DIRECTORY)
    try:
        if kernel_walk is not None:
            return kernel_walk(folder, "/".join(parts))
        for part in parts:
            parent, folder = folder, _enter(folder, part, create=create)
            os.close(parent)
        opened, folder = folder, -1
        return opened
    finally:
        if folder >= 0:
            os.close(folder)


def _enter(folder: int, name: str, *, create: bool) -> int:
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


class KernelWalk(Protocol):
    """Opens a directory from another one in a single system call."""

    def __call__(self, start: int, path: str) -> int:
        """Open the directory at a relative path without `..`."""
        ...


@functools.cache
def openat2() -> KernelWalk | None:
    """Return the system call `openat2`; None where the kernel lacks it or a sandbox forbids it."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return None
    walk = _build_kernel_walk()
    start = os.open(os.sep, _DIRECTORY)
    try:
        os.close(walk(start, os.curdir))
    except OSError:
        return None
    finally:
        os.close(start)
    return walk


def _build_kernel_walk() -> KernelWalk:
    import ctypes  # noqa: PLC0415 — only once a file is opened

    class OpenHow(ctypes.Structure):
        _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    # With O_PATH, O_NOFOLLOW would open a link at the end of the path instead of failing.
    how = OpenHow(_DIRECTORY & ~os.O_NOFOLLOW, 0, _RESOLVE)

    def walk(start: int, path: str) -> int:
        handle = call(
            ctypes.c_long(_OPENAT2),
            ctypes.c_int(start),
            ctypes.c_char_p(os.fsencode(path)),
            ctypes.byref(how),
            ctypes.c_size_t(ctypes.sizeof(how)),
        )
        if handle >= 0:
            return handle
        number = ctypes.get_errno()
        if number in _NOT_BENEATH:
            raise SymlinkError(path)
        raise OSError(number, os.strerror(number), path)

    return walk
