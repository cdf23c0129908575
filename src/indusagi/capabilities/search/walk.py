"""A walk through a directory and what lies below it, by handle: no link leads it elsewhere."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from indusagi.capabilities.files.paths.ignore import REPOSITORY
from indusagi.capabilities.search.leaves import is_leaf, may_be_leaf
from indusagi.capabilities.search.listing import DIRECTORY, Listing, is_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from indusagi.capabilities.files.paths.ignore import IgnoreRules
    from indusagi.capabilities.search.leaves import LeafMemory
    from indusagi.capabilities.search.listing import Met

_DEEPEST = 200
"""A handle is held open for each directory on the way down, and there are not many."""


class _Frame(NamedTuple):
    listing: Listing
    rest: Iterator[os.DirEntry[str]]
    """What of it is still to be gone through."""


class Walk:
    """What lies in a directory and below it; git's own directories are left out.

    A directory is entered if `enters` says so, by default if it is not ignored; one behind a link
    never is. Go through it with `listings`, directory by directory and fast, or one by one. The
    former also uses what `leaves` remembers of earlier walks.
    """

    def __init__(
        self,
        handle: int,
        rules: IgnoreRules | None,
        *,
        hidden: bool = True,
        enters: Callable[[Met], bool] | None = None,
        leaves: LeafMemory | None = None,
    ) -> None:
        self.closed: list[str] = []
        """Directories that could not be looked into."""
        self.kept_out = 0
        """Directories that were not entered because they are ignored, say."""
        self._handle = handle
        self._rules = rules
        self._hidden = hidden
        self._enters = enters
        self._leaves = leaves

    def listings(self) -> Iterator[Listing]:
        """Give each directory; its handle is open until the next is asked for."""
        stack: list[_Frame] = []
        try:
            yield self._push(stack, self._topmost())
            while stack:
                listing, rest = stack[-1]
                entry = next(rest, None)
                if entry is None:
                    stack.pop().listing.close()
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
                    entered.close()
        finally:
            _close(stack)

    def __iter__(self) -> Iterator[Met]:
        stack: list[_Frame] = []
        try:
            self._push(stack, self._topmost(in_order=True), in_order=True)
            while stack:
                listing, rest = stack[-1]
                entry = next(rest, None)
                if entry is None:
                    stack.pop().listing.close()
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
        self, stack: list[_Frame], listing: Listing, entry: os.DirEntry[str], *, in_order: bool = False
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
        above = f"{listing.above}{name}/"
        parent = listing.handle
        if self._leaves is not None:
            text = self._leaves.recall(entry, parent)
            if text is not None:
                return self._shown(Listing(above, rules, None, text, parent=parent, name=name))
        try:
            if len(stack) < _DEEPEST:
                handle = os.open(name, DIRECTORY, dir_fd=parent)
                return self._listed(above, rules, handle, name, in_order=in_order)
        except OSError:  # gone since, or not ours to look into
            pass
        self.closed.append(above[:-1])
        return None

    def _topmost(self, *, in_order: bool = False) -> Listing:
        return self._listed("", self._rules, os.dup(self._handle), in_order=in_order)

    def _listed(
        self, above: str, rules: IgnoreRules | None, handle: int, name: str | None = None, *, in_order: bool
    ) -> Listing:
        """List a directory; the handle is closed if that fails."""
        try:
            found = os.fstat(handle)
            if not in_order and is_leaf(found):
                listing = Listing(above, rules, handle, os.listdir(handle), name=name)
                if self._leaves is not None:
                    self._leaves.keep(found, listing.text)
                return self._shown(listing)
            with os.scandir(handle) as there:
                entries = list(there)
            if in_order:
                entries.sort(key=lambda entry: os.fsencode(entry.name))
            names = [entry.name for entry in entries]
            listing = Listing(above, rules, handle, names, name=name, entries=entries)
            if self._leaves is not None and may_be_leaf(found) and not _directories(entries):
                self._leaves.keep(found, listing.text)
            return self._shown(listing)
        except OSError:
            os.close(handle)
            raise

    def _shown(self, listing: Listing) -> Listing:
        """Leave out of a directory what is not shown."""
        if not self._hidden or (REPOSITORY in listing.text and REPOSITORY in listing.names):
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
        frame.listing.close()


def _directories(entries: Sequence[os.DirEntry[str]]) -> list[os.DirEntry[str]]:
    try:
        return [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return [entry for entry in entries if is_dir(entry)]
