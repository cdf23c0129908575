"""Directories opened from a base without following a link on the way.

A path is resolved first, links followed, and then walked to from its base. Should somebody put a
link in its place in between, the walk ends there: it can never lead out of the base. Where the
kernel has `openat2`, it walks; elsewhere one component is opened after the other.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

# Enough to stand in a directory and reach for a name; Linux needs no right to list it for that.
_STAND = (os.O_PATH if sys.platform == "linux" else os.O_RDONLY) | (os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
_OPENAT2 = 437
_RESOLVE = 0x02 | 0x04 | 0x08
"""No magic links, no links at all, and beneath the directory one starts from."""
_MACHINES = frozenset({"x86_64", "aarch64", "arm64", "riscv64", "ppc64le", "s390x"})
"""Where `openat2` is known to have that number."""
_ASTRAY = frozenset({errno.ELOOP, errno.EXDEV, errno.EAGAIN})
"""What `openat2` says of a link, of a way out, and of a directory that moved under its feet."""


class SymlinkError(OSError):
    """A link stands where none was when the path was resolved, or links lead round in a circle."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, os.strerror(errno.ELOOP), path)


def real_path(path: str) -> str:
    """Give the absolute path that this one leads to, as far as it exists.

    Raises:
        SymlinkError: A link was replaced while it was looked at, or the chain has no end.
    """
    try:
        return os.path.realpath(path)
    except (OSError, RecursionError) as exc:
        raise SymlinkError(path) from exc


@dataclass(frozen=True, slots=True)
class DirFdPath:
    """A name in a directory that is held open; `.` for the directory itself."""

    folder: int
    name: str
    path: str
    """What it is called in full."""

    def lstat(self) -> os.stat_result:
        """Look at what stands there, be it a link."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def stat(self) -> os.stat_result:
        """Look at what stands there.

        Raises:
            SymlinkError: It is a link.
        """
        found = self.lstat()
        if stat.S_ISLNK(found.st_mode):
            raise SymlinkError(self.path)
        return found

    def open(self, flags: int) -> int:
        """Open what stands there.

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
        """Open the directory that stands there, to list it.

        Raises:
            SymlinkError: It is a link.
        """
        try:
            return self.open(os.O_RDONLY | os.O_DIRECTORY)
        except NotADirectoryError:
            self.require_file()
            raise

    def require_file(self) -> None:
        """Make sure that what was no directory a moment ago is one thing and stays it.

        Raises:
            SymlinkError: It was a link: it still is one, or a directory stands there again.
        """
        if stat.S_ISDIR(self.stat().st_mode):
            raise SymlinkError(self.path)


@contextmanager
def open_at(base: str, parts: Sequence[str], path: str) -> Generator[DirFdPath]:
    """Stand in front of the last of `parts`, with its directory held open.

    Raises:
        SymlinkError: One of the directories on the way is a link.
    """
    folder = open_directory(base, parts[:-1])
    try:
        yield DirFdPath(folder, parts[-1] if parts else os.curdir, path)
    finally:
        os.close(folder)


def open_directory(base: str, parts: Sequence[str]) -> int:
    """Open a directory to stand in; the base itself without parts.

    Raises:
        SymlinkError: One of the directories on the way is a link.
    """
    way = openat2() if parts else None
    if way is None:
        return _walk(base, parts, _enter)
    start = os.open(base, _STAND)
    try:
        return way(start, "/".join(parts))
    finally:
        os.close(start)


def make_directories(base: str, parts: Sequence[str]) -> None:
    """Make a directory and those missing on the way to it.

    Raises:
        SymlinkError: One of the directories on the way is a link.
    """
    os.close(_walk(base, parts, _make_and_enter))


def _walk(base: str, parts: Sequence[str], step: Callable[[int, str], int]) -> int:
    here = os.open(base, _STAND)
    for part in parts:
        try:
            there = step(here, part)
        finally:
            os.close(here)
        here = there
    return here


def _enter(folder: int, name: str) -> int:
    try:
        return os.open(name, _STAND, dir_fd=folder)
    except OSError as exc:
        if exc.errno in {errno.ELOOP, errno.ENOTDIR}:
            DirFdPath(folder, name, name).require_file()
        raise


def _make_and_enter(folder: int, name: str) -> int:
    try:
        return _enter(folder, name)
    except FileNotFoundError:
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            pass  # somebody was quicker: what stands there is looked at as any other
        return _enter(folder, name)


class Way(Protocol):
    """How a directory is reached from one that is open."""

    def __call__(self, start: int, path: str) -> int:
        """Open the directory at a relative path without `..`."""
        ...


@functools.cache
def openat2() -> Way | None:
    """Give the kernel's own way; None where it has none, or where it may not be asked."""
    if sys.platform != "linux" or os.uname().machine not in _MACHINES:
        return None
    way = _kernel_way()
    start = os.open(os.sep, _STAND)
    try:
        # Old kernels do not know the call, and filters of containers forbid what they do not know.
        os.close(way(start, os.curdir))
    except OSError:
        return None
    finally:
        os.close(start)
    return way


def _kernel_way() -> Way:
    import ctypes  # noqa: PLC0415 — only a door that is used pays

    class How(ctypes.Structure):
        _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]

    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    # With O_NOFOLLOW a link at the end would be opened, and taken for a file.
    how = How(_STAND & ~os.O_NOFOLLOW, 0, _RESOLVE)

    def way(start: int, path: str) -> int:
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
        if number in _ASTRAY:
            raise SymlinkError(path)
        raise OSError(number, os.strerror(number), path)

    return way
