"""A walk through a directory and what lies below it, by handle: no link leads it elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from indusagi.capabilities.files.ignore import REPOSITORY
from indusagi.capabilities.search.leaves import LateEntry, is_leaf

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from indusagi.capabilities.files.ignore import IgnoreRules

Entry: TypeAlias = "os.DirEntry[str] | LateEntry"
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_DEEPEST = 200
"""A handle is held open for each directory on the way down, and there are not many."""


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


_Place: TypeAlias = "tuple[int, str, IgnoreRules | None, str | None]"
"""A directory: its handle, the way into it with a slash at the end, the rules that hold above it,
and its name. The topmost has no name, and the rules are those that hold in it."""


class Listing:
    """A directory, and all that lies in it."""

    __slots__ = ("_name", "_rules", "above", "entries", "handle", "names")

    def __init__(
        self,
        place: _Place,
        names: list[str],
        entries: Sequence[os.DirEntry[str]] | None = None,
    ) -> None:
        self.handle, self.above, self._rules, self._name = place
        self.names = names
        self.entries = entries
        """None if it was listed by names alone."""

    @property
    def rules(self) -> IgnoreRules | None:
        """Those that hold in it; made when first asked for, for in most directories nobody does."""
        if self._name is not None and self._rules is not None:
            self._rules = self._rules.below(self._name, self.handle, self.names)
            self._name = None
        return self._rules

    def without(self, shows: Callable[[str], bool]) -> None:
        """Leave out what is not shown."""
        _ = self.rules  # they may stand in what is left out
        if self.entries is not None:
            self.entries = [entry for entry in self.entries if shows(entry.name)]
        self.names = [name for name in self.names if shows(name)]

    def met(self, entry: Entry) -> Met:
        """Give one of its entries."""
        return Met(entry, self.above, _is_dir(entry), self.rules, self.handle)

    def named(self, names: Sequence[str]) -> Iterator[Met]:
        """Give those of its entries that have these names."""
        if self.entries is None:
            return (self.met(LateEntry(name, self.handle)) for name in names)
        wanted = set(names)
        return (self.met(entry) for entry in self.entries if entry.name in wanted)


class _Frame(NamedTuple):
    listing: Listing
    rest: Iterator[os.DirEntry[str]]
    """What of it is still to be gone through."""


class Walk:
    """What lies in a directory and below it; git's own directories are left out.

    A directory is entered if `enters` says so, by default if it is not ignored; one behind a link
    never is. Go through it with `listings`, directory by directory and fast, or one by one.
    """

    def __init__(
        self,
        handle: int,
        rules: IgnoreRules | None,
        *,
        hidden: bool = True,
        enters: Callable[[Met], bool] | None = None,
    ) -> None:
        self.closed: list[str] = []
        """Directories that could not be looked into."""
        self.kept_out = 0
        """Directories that were not entered because they are ignored, say."""
        self._handle = handle
        self._rules = rules
        self._hidden = hidden
        self._enters = enters

    def listings(self) -> Iterator[Listing]:
        """Give each directory; its handle is open until the next is asked for."""
        stack: list[_Frame] = []
        try:
            yield self._push(stack, self._listed((os.dup(self._handle), "", self._rules, None)))
            while stack:
                listing, rest = stack[-1]
                entry = next(rest, None)
                if entry is None:
                    os.close(stack.pop().listing.handle)
                    continue
                entered = self._entered(stack, listing, entry)
                if entered is None:
                    continue
                if entered.entries is not None:
                    yield self._push(stack, entered)
                    continue
                try:
                    yield entered
                finally:
                    os.close(entered.handle)
        finally:
            _close(stack)

    def __iter__(self) -> Iterator[Met]:
        stack: list[_Frame] = []
        try:
            top = self._listed((os.dup(self._handle), "", self._rules, None), in_order=True)
            self._push(stack, top, in_order=True)
            while stack:
                listing, rest = stack[-1]
                entry = next(rest, None)
                if entry is None:
                    os.close(stack.pop().listing.handle)
                    continue
                met = listing.met(entry)
                yield met
                if met.is_dir:
                    entered = self._entered(stack, listing, entry, in_order=True)
                    if entered is not None:
                        self._push(stack, entered, in_order=True)
        finally:
            _close(stack)

    def _entered(
        self,
        stack: list[_Frame],
        listing: Listing,
        entry: os.DirEntry[str],
        *,
        in_order: bool = False,
    ) -> Listing | None:
        """Enter a directory, if it is to be and can be entered."""
        name, rules = entry.name, listing.rules
        if self._enters is None:
            wanted = rules is None or not rules.ignores(name, is_dir=True)
        else:
            wanted = self._enters(listing.met(entry))
        if not wanted:
            self.kept_out += 1
            return None
        path = listing.above + name
        try:
            if len(stack) < _DEEPEST:
                handle = os.open(name, _DIRECTORY, dir_fd=listing.handle)
                return self._listed((handle, f"{path}/", rules, name), in_order=in_order)
        except OSError:  # gone since, or not ours to look into
            pass
        self.closed.append(path)
        return None

    def _listed(self, place: _Place, *, in_order: bool = False) -> Listing:
        """List a directory; the handle is closed if that fails."""
        handle = place[0]
        try:
            if not in_order and is_leaf(handle):
                listing = Listing(place, os.listdir(handle))
            else:
                with os.scandir(handle) as found:
                    entries = list(found)
                if in_order:
                    entries.sort(key=lambda entry: os.fsencode(entry.name))
                listing = Listing(place, [entry.name for entry in entries], entries)
        except OSError:
            os.close(handle)
            raise
        if not self._hidden or REPOSITORY in listing.names:
            listing.without(self._shows)
        return listing

    @staticmethod
    def _push(stack: list[_Frame], listing: Listing, *, in_order: bool = False) -> Listing:
        """Put a directory on the way down."""
        entries = listing.entries or ()
        stack.append(_Frame(listing, iter(entries if in_order else _directories(entries))))
        return listing

    def _shows(self, name: str) -> bool:
        return name != REPOSITORY and (self._hidden or not name.startswith("."))


def _close(stack: list[_Frame]) -> None:
    for frame in stack:
        os.close(frame.listing.handle)


def _directories(entries: Sequence[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    try:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return [entry for entry in entries if _is_dir(entry)]


def _is_dir(entry: Entry) -> bool:
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # gone since, on a system that has to ask
        return False
