"""A directory as a walk comes by, and what lies in it: held by its handle, looked at if asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from indusagi.capabilities.search.leaves import LateEntry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from indusagi.capabilities.files.paths.ignore import IgnoreRules

Entry: TypeAlias = "os.DirEntry[str] | LateEntry"
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE = -1
"""A handle of which whatever is asked fails."""


class Met(NamedTuple):
    """Something that lies in the tree."""

    entry: Entry
    above: str
    """The way to its directory, with a slash at the end."""
    is_dir: bool
    rules: IgnoreRules | None
    """Those of its directory; None if they are not to be applied."""
    handle: int
    """Its directory, held open until the next is asked for."""

    @property
    def path(self) -> str:
        """The way to it from where the walk began."""
        return self.above + self.entry.name

    def is_file(self) -> bool:
        """Tell whether it is a regular file."""
        try:
            return self.entry.is_file(follow_symlinks=False)
        except OSError:  # gone since, on a system that has to ask
            return False

    def is_ignored(self) -> bool:
        """Tell whether the rules are against it."""
        rules = self.rules
        return rules is not None and rules.ignores(self.entry.name, is_dir=self.is_dir)


class Listing:
    """A directory, and all that lies in it."""

    __slots__ = (*("_handle", "_name", "_names", "_parent", "_ruled", "_rules", "_text"), *("above", "entries"))

    def __init__(
        self,
        above: str,
        rules: IgnoreRules | None,
        handle: int | None,
        found: list[str] | str,
        *,
        parent: int = _GONE,
        name: str | None = None,
        entries: Sequence[os.DirEntry[str]] | None = None,
    ) -> None:
        """Give what a look at a directory, or at what is remembered of it, has shown.

        Args:
            above: The way into it, with a slash at the end.
            rules: Those that hold above it; if it is the topmost, those that hold in it.
            handle: None if it is to be opened when somebody wants to look at what lies in it.
            found: The names in it, or the text of them.
            parent: The directory above, open as long as this one is looked at.
            name: Its name there; None for the topmost.
            entries: None if only names are known.
        """
        self.above = above
        self.entries = entries
        self._rules = rules
        self._ruled = name is None or rules is None
        self._handle = handle
        self._parent = parent
        self._name = name or ""
        if isinstance(found, str):
            self._names, self._text = None, found
        else:
            self._names, self._text = found, None

    @property
    def names(self) -> list[str]:
        """The names of all that lies in it."""
        if self._names is None:
            self._names = self._text.split("\0") if self._text else []
        return self._names

    @property
    def text(self) -> str:
        """The names, each but the last with a NUL behind it."""
        if self._text is None:
            self._text = "\0".join(self.names)
        return self._text

    @property
    def count(self) -> int:
        """How much lies in it."""
        if self._names is None:
            return self._text.count("\0") + 1 if self._text else 0
        return len(self._names)

    @property
    def handle(self) -> int:
        """It, held open; if it is gone since, a handle of which whatever is asked fails."""
        if self._handle is None:
            try:
                self._handle = os.open(self._name, DIRECTORY, dir_fd=self._parent)
            except OSError:
                self._handle = _GONE
        return self._handle

    @property
    def rules(self) -> IgnoreRules | None:
        """Those that hold in it; made when first asked for, for in most directories nobody does."""
        if not self._ruled and self._rules is not None:
            self._rules = self._rules.below(self._name, self.handle, self.names)
            self._ruled = True
        return self._rules

    def without(self, shows: Callable[[str], bool]) -> None:
        """Leave out what is not shown."""
        _ = self.rules  # they may stand in what is left out
        if self.entries is not None:
            self.entries = [entry for entry in self.entries if shows(entry.name)]
        self._names = [name for name in self.names if shows(name)]
        self._text = None

    def met(self, entry: Entry) -> Met:
        """Give one of its entries; where only names are known, none is a directory."""
        is_folder = self.entries is not None and is_dir(entry)
        return Met(entry, self.above, is_folder, self.rules, self.handle)

    def named(self, names: Sequence[str]) -> Iterator[Met]:
        """Give those of its entries that have these names."""
        if self.entries is None:
            return (self.met(LateEntry(name, self.handle)) for name in names)
        wanted = set(names)
        return (self.met(entry) for entry in self.entries if entry.name in wanted)

    def close(self) -> None:
        """Give the handle back."""
        if self._handle is not None and self._handle != _GONE:
            os.close(self._handle)


def is_dir(entry: Entry) -> bool:
    """Tell whether something is a directory, and no link to one."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # gone since, on a system that has to ask
        return False
