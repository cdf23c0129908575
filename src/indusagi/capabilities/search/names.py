"""Find files and directories by name: the query, and the walk that answers it."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import TYPE_CHECKING

from indusagi.capabilities.files.paths.ignore import IgnoreRules, compile_glob
from indusagi.capabilities.search.request import expand_braces, path_key
from indusagi.capabilities.search.walk import Walk
from indusagi.core.app_dirs import sort_in_chunks
from indusagi.core.records import record

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence
    from threading import Event

    from indusagi.capabilities.search.walk import DirHandle, DirListing, WalkEntry

TIME_LIMIT_S = 20.0
COLLECTED = 100_000
_GLOB = re.compile(r"[*?\[{]")


class EntryKind(StrEnum):
    """The kind of entry to find."""

    FILE = "file"
    DIRECTORY = "dir"
    LINK = "link"


@record
class NameQuery:
    """A query for names below a directory."""

    text: str
    """A case-insensitive substring of a name or path, or a glob that matches all of it."""
    by_path: bool = False
    """Match against the path instead of the name."""
    kind: EntryKind | None = None
    no_ignore: bool = False
    hidden: bool = True
    by_time: bool = False
    secrets: Sequence[str] = ()
    """Paths of directories not to enter."""

    @property
    def is_glob(self) -> bool:
        """Whether `text` is a glob."""
        return _GLOB.search(self.text) is not None

    def build_matcher(self) -> Callable[[DirListing], list[os.DirEntry[str]]]:
        """Return a function that selects the matching entries of a directory.

        Raises:
            TooManyAlternatives: The braces expand to too many patterns.
        """
        by_path = self.by_path
        if not self.is_glob:
            part = self.text.lower()

            def select_containing(listing: DirListing) -> list[os.DirEntry[str]]:
                above = listing.above if by_path else ""
                return [entry for entry in listing.entries if part in (above + entry.name).lower()]

            return select_containing
        regexes = [regex for regex in map(compile_glob, expand_braces(self.text)) if regex]

        def select_matching(listing: DirListing) -> list[os.DirEntry[str]]:
            if not by_path and len(regexes) == 1:
                match = regexes[0].match
                return [entry for entry in listing.entries if match(entry.name)]
            above = listing.above if by_path else ""
            return [entry for entry in listing.entries if any(regex.match(above + entry.name) for regex in regexes)]

        return select_matching


def split_query(text: str) -> tuple[str, str]:
    """Split the leading literal directories off a glob, so the walk can start there."""
    if not _GLOB.search(text):
        return "", text
    *above, last = text.split("/")
    plain = next((index for index, name in enumerate(above) if _GLOB.search(name)), len(above))
    folder = "/".join(above[:plain])
    if plain and not folder:
        folder = "/"
    return folder, "/".join([*above[plain:], last])


@dataclass(slots=True)
class NameResult:
    """The matching names."""

    paths: list[str] = field(default_factory=list[str])
    """Sorted; directories have a trailing slash."""
    hidden_by_rules: int = 0
    """Number of matching but ignored names."""
    ignored_dirs: int = 0
    """Number of ignored directories, which we didn't enter."""
    unreadable: list[str] = field(default_factory=list[str])
    examined: int = 0
    timed_out: bool = False
    is_full: bool = False


def find_names(handle: DirHandle, path: str, query: NameQuery) -> NameResult:
    """Walk a directory and collect the matching names. Blocks.

    Args:
        handle: The directory.
        path: Its path, to find the ignore rules above it.
        query: The query.
    """
    with handle.use() as descriptor:
        if descriptor is None:
            return NameResult()
        rules = None if query.no_ignore else IgnoreRules.load(path)
        return _NameSearch(descriptor, query, rules, handle.abandoned).run()


class _NameSearch:
    """One walk for one query."""

    def __init__(self, handle: int, query: NameQuery, rules: IgnoreRules | None, stop: Event) -> None:
        self._query = query
        self._stop = stop
        self._secrets = frozenset(query.secrets)
        self._skipped_secrets = 0
        enters = self._enters if query.secrets else None
        self._walk = Walk(handle, rules, hidden=query.hidden, enters=enters)
        self._result = NameResult()
        self._times: dict[str, int] = {}

    def run(self) -> NameResult:
        result = self._result
        select = self._query.build_matcher()
        deadline = monotonic() + TIME_LIMIT_S
        for listing in self._walk.listings():
            result.examined += len(listing.entries)
            for entry in select(listing):
                self._add(listing.to_walk_entry(entry))
            if self._stop.is_set() or monotonic() > deadline:
                result.timed_out = True
                break
            if len(self._times) >= COLLECTED:
                result.is_full = True
                break
        result.unreadable = self._walk.unreadable
        result.ignored_dirs = self._walk.skipped - self._skipped_secrets
        # All times are 0 unless `by_time` is set.
        result.paths = sort_in_chunks(list(self._times), lambda path: (self._times[path], path_key(path)))
        return result

    def _enters(self, entry: WalkEntry) -> bool:
        if entry.path in self._secrets:
            self._skipped_secrets += 1
            return False
        return not entry.is_ignored()

    def _add(self, entry: WalkEntry) -> None:
        query = self._query
        if query.kind is EntryKind.DIRECTORY:
            is_wanted = entry.is_dir
        elif query.kind is not None:
            is_wanted = entry.entry.is_symlink() if query.kind is EntryKind.LINK else entry.is_file()
        else:
            is_wanted = True
        if not is_wanted:
            return
        # An ignored entry only counts if the query is its exact name.
        if entry.is_ignored() and (entry.path if query.by_path else entry.entry.name) != query.text:
            self._result.hidden_by_rules += 1
            return
        time = 0
        if query.by_time:
            try:
                time = -entry.entry.stat(follow_symlinks=False).st_mtime_ns
            except OSError:  # removed in the meantime
                pass
        self._times[f"{entry.path}/" if entry.is_dir else entry.path] = time
