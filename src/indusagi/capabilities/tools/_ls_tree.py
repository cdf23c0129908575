"""The directories that `ls` shows, grown level by level until there is enough to show."""

from __future__ import annotations

import heapq
import os
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.backends import FileKind, PathRefused
from indusagi.capabilities.files.globs import glob_regex
from indusagi.capabilities.files.ignore import REPOSITORY, RULE_FILE, IgnoreRules

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator, Sequence

    from indusagi.capabilities.backends import DirEntry, Fs
    from indusagi.core.json import JsonValue

MOST_ENTRIES = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What a listing is to show."""

    depth: int = 1
    show_hidden: bool = False
    patterns: tuple[str, ...] = ()
    """What it leaves out; a pattern with a slash inside is for the path from the top."""


@dataclass(slots=True)
class Branch:
    """One entry that is shown."""

    entry: DirEntry
    ignored: bool
    below: Level | None = None
    trouble: str = ""
    """Why it cannot be listed, or what is the matter with a link."""
    leads_to_folder: bool = False


@dataclass(slots=True)
class Level:
    """A directory: what is shown of it, and how much is not."""

    shown: list[Branch] = field(default_factory=list[Branch])
    more: int = 0
    """Entries for which there was no room."""


@dataclass(slots=True)
class _Waiting:
    """A directory that is to be listed."""

    path: str
    way: str
    """The path from the top, with a slash at its end; empty for the top itself."""
    depth: int
    rules: IgnoreRules
    branch: Branch | None


class Tree:
    """A directory with what is below it."""

    def __init__(self, choice: Choice) -> None:
        self.top = Level()
        self.entries = 0
        self.folders = 0
        self.hidden = 0
        self.ignored = 0
        self.left_out = 0
        self.unlisted = 0
        """Directories for whose entries there was no room."""
        self._choice = choice
        self._patterns = [_compiled(pattern) for pattern in choice.patterns]
        self._room = MOST_ENTRIES

    @staticmethod
    async def grow(fs: Fs, path: str, choice: Choice) -> Tree:
        """List a directory and those below it, the upper levels first.

        Raises:
            OSError: The directory itself cannot be listed; those below say so in their place.
        """
        tree = Tree(choice)
        waiting = deque([_Waiting(path, "", 1, IgnoreRules(), None)])
        while waiting and tree._room:
            here = waiting.popleft()
            try:
                entries = await fs.readdir(here.path)
            except OSError as exc:
                if here.branch is None:
                    raise
                here.branch.trouble = exc.strerror or str(exc)
                continue
            here.rules = await _rules_of(fs, here, entries)
            level = await to_thread.run_sync(tree._take, here, entries)
            await _follow_links(fs, here.path, level)
            if here.branch is None:
                tree.top = level
            else:
                here.branch.below = level
            waiting.extend(tree._next(here, level))
        tree.unlisted = len(waiting)
        return tree

    @property
    def is_cut(self) -> bool:
        """Whether there is more than is shown."""
        return self.entries > MOST_ENTRIES or self.unlisted > 0

    def counts(self) -> dict[str, JsonValue]:
        """Give the facts for programs."""
        return {
            "kind": "directory",
            "entries": self.entries,
            "shown": MOST_ENTRIES - self._room,
            "directories": self.folders,
            "hidden": self.hidden,
            "ignored": self.ignored,
            "leftOut": self.left_out,
            "truncated": self.is_cut,
        }

    def _take(self, here: _Waiting, entries: Sequence[DirEntry]) -> Level:
        """Choose and sort what is shown of a directory; for a thread, there may be very many."""
        before = self.entries
        # One after the other, and none is kept that is not shown: to sort very many at once, or to
        # look through them for what is no longer used, would let no other thread run meanwhile.
        chosen = heapq.nsmallest(self._room, self._kept(here, entries), key=_order)
        shown = [
            Branch(entry, here.rules.ignores(entry.name, is_dir=_is_folder(entry)))
            for entry in chosen
        ]
        self._room -= len(shown)
        return Level(shown, self.entries - before - len(shown))

    def _kept(self, here: _Waiting, entries: Sequence[DirEntry]) -> Iterator[DirEntry]:
        """Give what is neither hidden nor left out, and count all of it."""
        for entry in entries:
            is_folder = _is_folder(entry)
            if entry.name.startswith(".") and not self._choice.show_hidden:
                self.hidden += 1
            elif self._leaves_out(entry.name, here.way + entry.name, is_folder=is_folder):
                self.left_out += 1
            else:
                self.entries += 1
                self.folders += is_folder
                self.ignored += here.rules.ignores(entry.name, is_dir=is_folder)
                yield entry

    def _leaves_out(self, name: str, way: str, *, is_folder: bool) -> bool:
        return any(
            regex is not None
            and (is_folder or not folders)
            and regex.match(way if by_way else name)
            for regex, by_way, folders in self._patterns
        )

    def _next(self, here: _Waiting, level: Level) -> list[_Waiting]:
        """Name the directories that are listed next: neither ignored ones nor git's own."""
        if here.depth >= self._choice.depth:
            return []
        return [
            _Waiting(
                os.path.join(here.path, branch.entry.name),
                f"{here.way}{branch.entry.name}/",
                here.depth + 1,
                here.rules,
                branch,
            )
            for branch in level.shown
            if branch.entry.kind is FileKind.DIRECTORY
            and not branch.ignored
            and branch.entry.name != REPOSITORY
        ]


def _compiled(pattern: str) -> tuple[re.Pattern[str] | None, bool, bool]:
    """Give what a pattern matches, whether it is for whole paths, and for directories only."""
    text = pattern.removeprefix("./")
    folders = text.endswith("/")
    text = text.rstrip("/")
    return glob_regex(text.removeprefix("/")), "/" in text, folders


def _is_folder(entry: DirEntry) -> bool:
    return entry.kind is FileKind.DIRECTORY


def _order(entry: DirEntry) -> tuple[bool, str, str]:
    return not _is_folder(entry), entry.name.casefold(), entry.name


async def _rules_of(fs: Fs, here: _Waiting, entries: Sequence[DirEntry]) -> IgnoreRules:
    """Give git's rules for a directory; without files of this machine there are none."""
    names = {name for name in (REPOSITORY, RULE_FILE) if _holds(entries, name)}
    name = os.path.basename(here.path)
    if here.branch is not None and not names:
        return here.rules.below(name, here.path, names)
    try:
        with await fs.folder(here.path) as folder:
            if here.branch is None:
                return await to_thread.run_sync(IgnoreRules.load, folder.path)
            return await to_thread.run_sync(here.rules.below, name, folder.handle, names)
    except OSError:
        return here.rules


def _holds(entries: Sequence[DirEntry], name: str) -> bool:
    """Tell whether a name is among entries that are sorted, however many there are."""
    at = bisect_left(entries, name, key=attrgetter("name"))
    return at < len(entries) and entries[at].name == name


async def _follow_links(fs: Fs, path: str, level: Level) -> None:
    """Look where links lead."""
    for branch in level.shown:
        if branch.entry.kind is FileKind.SYMLINK:
            try:
                found = await fs.stat(os.path.join(path, branch.entry.name))
                branch.leads_to_folder = found.kind is FileKind.DIRECTORY
            except PathRefused:
                branch.trouble = "outside"
            except OSError:
                branch.trouble = "broken"
