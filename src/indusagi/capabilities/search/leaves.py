"""Directories without directories in them: known by their number of links, without a look inside.

On many file systems a directory has two links and one more for each directory in it. In a tree most
directories have none, and to list such a one by names alone takes half the time. What it held is
remembered: as long as it has not changed, it need not be listed again. Where links are not counted,
a leaf is known once it was looked into, and can be remembered all the same.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from indusagi.core.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping, Sequence

    from indusagi.core.clock import Clock

_COUNTING = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
"""File systems whose directories count those in them; others say 1, or always 2."""
_TIMED = _COUNTING | {"overlay", "btrfs", "f2fs", "bcachefs", "zfs"}
"""File systems of this machine alone, on which no name changes unless its directory's time does."""
_MOUNTS = "/proc/self/mountinfo"
_SETTLED_MS = 2_000
"""Two changes may have the same time, for the kernel's clock goes in steps; none is that long."""
_REMEMBERED_CHARS = 8 * 1024 * 1024
"""Of names, all directories together: some 500,000 files."""
_AT_ONCE = 256
"""So many leaves are handed over together: others wait for their turn meanwhile."""


def is_leaf(found: os.stat_result) -> bool:
    """Tell of a directory whether it surely has no directory in it."""
    return found.st_nlink == 2 and _file_system(found.st_dev) in _COUNTING


def may_be_leaf(found: os.stat_result) -> bool:
    """Tell of one that is not surely a leaf whether a look inside can show that it is."""
    return _file_system(found.st_dev) in _TIMED - _COUNTING


@lru_cache(maxsize=256)
def _file_system(device: int) -> str:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(_MOUNTS, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                if fields.split(" ", 3)[2] == wanted:
                    return rest.split(" ", 1)[0]
    except (OSError, IndexError):  # no Linux, or one that looks different
        return ""
    return ""


class _Held(NamedTuple):
    """A leaf, and the names in it, each but the last with a NUL behind it."""

    inode: int
    device: int
    changed_ns: int
    text: str


class KnownLeaves:
    """What leaves held when they were listed, for as long as they have not changed.

    Whatever is made, renamed or removed in a directory moves the time of its last change, which
    unlike that of its contents nobody can set. What is remembered is given only to whoever has
    come to the very directory again.
    """

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._held: dict[int, _Held] = {}
        self._chars = 0
        self._lock = Lock()

    @contextmanager
    def memory(self) -> Generator[LeafMemory]:
        """Use it in one walk."""
        memory = LeafMemory(self._held, self._keep, self._clock.now_ms() - _SETTLED_MS)
        try:
            yield memory
        finally:
            memory.hand_over()

    def _keep(self, seen: Sequence[_Held]) -> None:
        with self._lock:
            for held in seen:
                self._forget(held.inode)
                self._held[held.inode] = held
                self._chars += len(held.text)
            while self._chars > _REMEMBERED_CHARS:
                self._forget(next(iter(self._held)))

    def _forget(self, inode: int) -> None:
        held = self._held.pop(inode, None)
        if held is not None:
            self._chars -= len(held.text)


class LeafMemory:
    """What one walk knows of leaves, and what it has seen itself."""

    def __init__(self, held: Mapping[int, _Held], keep: Callable[[Sequence[_Held]], None], settled_ms: int) -> None:
        self._held = held
        self._keep = keep
        self._settled_ns = settled_ms * 1_000_000
        """What has changed later may change once more without a trace."""
        self._seen: list[_Held] = []

    def recall(self, entry: os.DirEntry[str], parent: int) -> str | None:
        """Give the text of the names in a directory, if it is known and has not changed.

        Args:
            entry: The directory.
            parent: A handle of the one it lies in.
        """
        held = self._held.get(entry.inode())
        if held is None:
            return None
        try:
            found = os.stat(entry.name, dir_fd=parent, follow_symlinks=False)
        except OSError:  # gone since
            return None
        is_same = held[:3] == (found.st_ino, found.st_dev, found.st_ctime_ns)
        return held.text if is_same else None

    def keep(self, found: os.stat_result, text: str) -> None:
        """Remember the names in a leaf.

        Args:
            found: What it was before it was listed.
            text: The text of its names.
        """
        if found.st_ctime_ns < self._settled_ns:
            self._seen.append(_Held(found.st_ino, found.st_dev, found.st_ctime_ns, text))
            if len(self._seen) >= _AT_ONCE:
                self.hand_over()

    def hand_over(self) -> None:
        """Give what was seen to those who come later."""
        self._keep(self._seen)
        self._seen = []


class LateEntry:
    """A name in a directory that is held open; what it is, is looked up when it is asked for."""

    __slots__ = ("_found", "_handle", "name")

    def __init__(self, name: str, handle: int) -> None:
        self.name = name
        self._handle = handle
        self._found: os.stat_result | None = None

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """Look at it, and not through it.

        Raises:
            OSError: It is gone since.
        """
        if self._found is None:
            self._found = os.stat(self.name, dir_fd=self._handle, follow_symlinks=False)
        return self._found

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a directory; in a leaf that can only be one that was made since."""
        return self._is(stat.S_ISDIR)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        """Tell whether it is a regular file."""
        return self._is(stat.S_ISREG)

    def is_symlink(self) -> bool:
        """Tell whether it is a link."""
        return self._is(stat.S_ISLNK)

    def _is(self, kind: Callable[[int], bool]) -> bool:
        try:
            return kind(self.stat().st_mode)
        except OSError:
            return False
