"""Files and directories by name: what a query means, and the walk that answers it."""

from __future__ import annotations

import os
import re
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from threading import Event, Lock
from time import monotonic
from typing import TYPE_CHECKING

from indusagi.capabilities.files.paths.globs import compile_glob
from indusagi.capabilities.files.paths.ignore import IgnoreRules
from indusagi.capabilities.search.braces import expand_braces
from indusagi.capabilities.search.request import path_key
from indusagi.capabilities.search.walk import Walk
from indusagi.core.sorting import sort_in_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from indusagi.capabilities.search.leaves import KnownLeaves, LeafMemory
    from indusagi.capabilities.search.listing import Listing, Met

TIME_LIMIT_S = 20.0
COLLECTED = 100_000
"""Names that are collected before the walk is ended."""
_GLOB = re.compile(r"[*?\[{]")


class Kind(StrEnum):
    """What is looked for."""

    FILE = "file"
    DIRECTORY = "dir"
    LINK = "link"


@dataclass(frozen=True, slots=True)
class Query:
    """Names that are looked for, below one directory."""

    text: str
    """Part of a name or path, in any case, or a pattern for the whole of it."""
    by_path: bool = False
    """Whether it speaks of the way to a file, and not of its name alone."""
    kind: Kind | None = None
    no_ignore: bool = False
    hidden: bool = True
    by_time: bool = False
    secrets: Sequence[str] = ()
    """Directories that are not looked into, by their path."""

    @property
    def is_glob(self) -> bool:
        """Whether it is a pattern."""
        return _GLOB.search(self.text) is not None

    def matcher(self) -> Callable[[Listing], list[str]]:
        """Make the function that picks those names of a directory that are meant.

        Raises:
            TooManyAlternatives: Its braces stand for too many patterns.
        """
        if not self.is_glob:
            return self._holding(self.text.lower())
        regexes = [regex for regex in map(compile_glob, expand_braces(self.text)) if regex]
        by_path = self.by_path

        def matching(listing: Listing) -> list[str]:
            names = listing.names
            if not by_path and len(regexes) == 1:
                return list(filter(regexes[0].match, names))
            above = listing.above if by_path else ""
            return [name for name in names if any(regex.match(above + name) for regex in regexes)]

        return matching

    def _holding(self, part: str) -> Callable[[Listing], list[str]]:
        by_path = self.by_path

        def holding(listing: Listing) -> list[str]:
            if by_path:
                above = listing.above
                return [name for name in listing.names if part in (above + name).lower()]
            # All at once: in most directories there is none, and then this is all there is to do.
            if part not in listing.text.lower():
                return []
            return [name for name in listing.names if part in name.lower()]

        return holding


def split_query(text: str) -> tuple[str, str]:
    """Take the directories that a pattern begins with off it: the walk can start there."""
    if not _GLOB.search(text):
        return "", text
    *above, last = text.split("/")
    plain = next((at for at, name in enumerate(above) if _GLOB.search(name)), len(above))
    folder = "/".join(above[:plain])
    if plain and not folder:
        folder = "/"
    return folder, "/".join([*above[plain:], last])


@dataclass(slots=True)
class Names:
    """What was found."""

    paths: list[str] = field(default_factory=list[str])
    """In order; a directory has a slash at its end."""
    hidden_by_rules: int = 0
    """Names that match and are ignored."""
    ignored_dirs: int = 0
    """Ignored directories, which were not looked into."""
    closed: list[str] = field(default_factory=list[str])
    """Directories that could not be looked into."""
    looked_at: int = 0
    timed_out: bool = False
    is_full: bool = False


class Lent:
    """A handle for a thread that may be left alone: whoever comes last closes it.

    The owner gives it up when nobody waits for the thread any more; by then the thread has begun
    and closes it at its end, or it never begins.
    """

    def __init__(self, handle: int) -> None:
        self.given_up = Event()
        self._handle = os.dup(handle)
        self._lock = Lock()
        self._begun = False

    def give_up(self) -> None:
        """Have the thread end soon."""
        with self._lock:
            self.given_up.set()
            if not self._begun:
                self._begun = True
                os.close(self._handle)

    @contextmanager
    def begun(self) -> Generator[int | None]:
        """Use the handle in the thread; None if it was given up before."""
        with self._lock:
            is_first, self._begun = not self._begun, True
        try:
            yield self._handle if is_first else None
        finally:
            if is_first:
                os.close(self._handle)


def find_names(lent: Lent, path: str, query: Query, leaves: KnownLeaves) -> Names:
    """Walk through a directory and collect the names that match; not for the event loop.

    Args:
        lent: The directory.
        path: The way to it, for the rules above it.
        query: What is looked for.
        leaves: What is remembered of earlier walks.
    """
    with lent.begun() as handle:
        if handle is None:
            return Names()
        rules = None if query.no_ignore else IgnoreRules.load(path)
        with leaves.memory() as memory:
            return _Hunt(handle, query, rules, lent.given_up, memory).run()


class _Hunt:
    """One walk."""

    def __init__(self, handle: int, query: Query, rules: IgnoreRules | None, stop: Event, leaves: LeafMemory) -> None:
        self._query = query
        self._stop = stop
        self._secrets = frozenset(query.secrets)
        self._shut = 0
        enters = self._enters if query.secrets else None
        self._walk = Walk(handle, rules, hidden=query.hidden, enters=enters, leaves=leaves)
        self._names = Names()
        self._found: dict[str, int] = {}

    def run(self) -> Names:
        names = self._names
        matches = self._query.matcher()
        deadline = monotonic() + TIME_LIMIT_S
        for listing in self._walk.listings():
            names.looked_at += listing.count
            hits = matches(listing)
            for met in listing.named(hits) if hits else ():
                self._take(met)
            if self._stop.is_set() or monotonic() > deadline:
                names.timed_out = True
                break
            if len(self._found) >= COLLECTED:
                names.is_full = True
                break
        names.closed = self._walk.closed
        names.ignored_dirs = self._walk.kept_out - self._shut
        names.paths = self._in_order()
        return names

    def _enters(self, met: Met) -> bool:
        if met.path in self._secrets:
            self._shut += 1
            return False
        return not met.is_ignored()

    def _take(self, met: Met) -> None:
        names, query = self._names, self._query
        if not self._is_wanted(met):
            return
        if met.is_ignored():
            # Whoever gives the whole name means it.
            if (met.path if query.by_path else met.entry.name) != query.text:
                names.hidden_by_rules += 1
                return
        self._found[f"{met.path}/" if met.is_dir else met.path] = self._age(met)

    def _is_wanted(self, met: Met) -> bool:
        kind = self._query.kind
        if kind is None:
            return True
        if kind is Kind.DIRECTORY:
            return met.is_dir
        return met.entry.is_symlink() if kind is Kind.LINK else met.is_file()

    def _age(self, met: Met) -> int:
        if not self._query.by_time:
            return 0
        try:
            return -met.entry.stat(follow_symlinks=False).st_mtime_ns
        except OSError:  # gone since
            return 0

    def _in_order(self) -> list[str]:
        key = self._time_order if self._query.by_time else path_key
        return sort_in_chunks(list(self._found), key)

    def _time_order(self, path: str) -> tuple[int, str]:
        return self._found[path], path_key(path)
