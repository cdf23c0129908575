"""Directories without directories in them: known by their number of links, without a look inside.

On many file systems a directory has two links and one more for each directory in it. In a tree most
directories have none, and to list such a one by names alone takes half the time.
"""

from __future__ import annotations

import os
import stat
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_COUNTING = frozenset({"ext2", "ext3", "ext4", "xfs", "tmpfs"})
"""File systems whose directories count those in them; others say 1, or always 2."""
_MOUNTS = "/proc/self/mountinfo"


def is_leaf(handle: int) -> bool:
    """Tell whether a directory surely has no directory in it."""
    found = os.fstat(handle)
    return found.st_nlink == 2 and _counts(found.st_dev)


@lru_cache(maxsize=256)
def _counts(device: int) -> bool:
    wanted = f"{os.major(device)}:{os.minor(device)}"
    try:
        with open(_MOUNTS, encoding="utf-8", errors="replace") as file:
            for line in file:
                fields, _, rest = line.partition(" - ")
                if fields.split(" ", 3)[2] == wanted:
                    return rest.split(" ", 1)[0] in _COUNTING
    except (OSError, IndexError):  # no Linux, or one that looks different
        return False
    return False


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
