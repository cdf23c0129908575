"""A search from its request to what was found, by whichever engine there is.

ripgrep goes through files with several threads and so in no order. All that it finds is collected,
put in order and paged; should that be more than anybody pages through, it is asked again for an
ordered search, which may end as soon as the page is full. So a page is the same each time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING

from anyio import sleep, to_thread

from indusagi.capabilities.search import engine, ripgrep
from indusagi.capabilities.search.names import Lent
from indusagi.capabilities.search.odd_rules import has_odd_rules
from indusagi.capabilities.search.records import Counts, Matches
from indusagi.capabilities.search.request import FileHits, Mode
from indusagi.capabilities.search.run import run_program
from indusagi.capabilities.search.types import file_types

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.search.request import Search
    from indusagi.capabilities.search.run import Finished
    from indusagi.capabilities.search.target import Target

COLLECTED = 5_000
"""Matches that are collected before an ordered search is made instead."""
COLLECTED_FILES = 20_000
"""Files that are collected where only files are asked for."""
TIME_LIMIT_S = 20.0
PATIENCE_S = 2.0
"""After so long it is looked into whether something holds the search up."""


class Engine(StrEnum):
    """Who searches."""

    RIPGREP = "ripgrep"
    PYTHON = "python"


@dataclass(frozen=True, slots=True)
class Found:
    """What a search gave. The matches are those of the page and of what comes before it."""

    reader: Matches | Counts
    finished: Finished
    skipped: int
    """Matches that were left out already, because they come before the page."""


class Seeker:
    """An engine that was found, and how it is asked."""

    def __init__(self, program: str | None) -> None:
        self.engine = Engine.PYTHON if program is None else Engine.RIPGREP
        self._program = program

    @classmethod
    async def find(cls, workspace: str, wanted: Engine | None) -> Seeker:
        """Look for ripgrep, unless the other engine is wanted."""
        if wanted is Engine.PYTHON:
            return cls(None)
        return cls(await to_thread.run_sync(ripgrep.find_ripgrep, workspace))

    async def types(self, cwd: str) -> dict[str, list[str]]:
        """Give the kinds of files that can be asked for, and the patterns of their names.

        Raises:
            OSError: The engine cannot be started.
        """
        if self._program is None:
            return file_types()
        listing = _Listing()
        argv = [self._program, "--no-config", "--type-list"]
        await run_program(argv, ripgrep.environment(), cwd, listing, TIME_LIMIT_S)
        rows = (line.partition(": ") for line in listing.text().splitlines())
        return {name: patterns.split(", ") for name, _, patterns in rows}

    async def seek(
        self,
        search: Search,
        target: Target,
        *,
        limit: int,
        offset: int = 0,
        accepts: Callable[[str], bool] | None = None,
    ) -> Found:
        """Search.

        Args:
            search: What for.
            target: Where.
            limit: How many matches the page holds.
            offset: How many matches come before it.
            accepts: Which files count, by their path; all, unless it is given.

        Raises:
            OSError: The engine cannot be started.
        """
        found = await self._sought(search, target, limit, offset, accepts)
        if self.engine is Engine.PYTHON or not (found.finished.held_up or _is_lumped(found, search)):
            return found
        # Our own engine opens nothing that is no file, has other faults, and writes one by one.
        other = await Seeker(None).seek(search, target, limit=limit, offset=offset, accepts=accepts)
        return other if found.finished.held_up or _has_matches(other) else found

    async def _sought(
        self, search: Search, target: Target, limit: int, offset: int, accepts: Callable[[str], bool] | None
    ) -> Found:
        deadline = monotonic() + TIME_LIMIT_S
        if search.mode is not Mode.CONTENT:
            reader = (
                Counts(COLLECTED_FILES, accepts)
                if search.mode is Mode.COUNT
                else Matches(COLLECTED_FILES, max_files=COLLECTED_FILES, accepts=accepts)
            )
            return Found(reader, await self._run(search, target, reader, deadline), 0)
        if self.engine is Engine.RIPGREP and offset + limit <= COLLECTED:
            reader = Matches(COLLECTED, accepts=accepts)
            finished = await self._run(search, target, reader, deadline)
            if not reader.is_full:
                return Found(reader, finished, 0)
        reader = Matches(limit, offset, accepts=accepts)
        finished = await self._run(search, target, reader, deadline, in_order=True)
        return Found(reader, finished, offset)

    async def _run(
        self, search: Search, target: Target, reader: Matches | Counts, deadline: float, *, in_order: bool = False
    ) -> Finished:
        left_s = max(0.0, deadline - monotonic())
        if self._program is None:
            argv = engine.command(search, target.path, whole=target.is_file)
            return await run_program(argv, ripgrep.environment(), target.cwd, reader, left_s)
        argv = ripgrep.command(self._program, search, target.path, in_order=in_order, whole=target.is_file)
        reads_rules = not (search.no_ignore or target.is_file)
        doubt = partial(_is_held_up, target) if reads_rules else None
        return await run_program(argv, ripgrep.environment(), target.cwd, reader, left_s, doubt)


def _is_lumped(found: Found, search: Search) -> bool:
    """Tell whether matches may be missing that ripgrep wrote in one record.

    It puts those together that are on lines next to each other, however many they are.
    """
    return search.multiline and isinstance(found.reader, Matches) and bool(found.reader.too_long)


def _has_matches(found: Found) -> bool:
    return isinstance(found.reader, Matches) and found.reader.matches > 0


async def _is_held_up(target: Target) -> bool:
    """Look, once a search takes long, whether it can come to an end at all."""
    await sleep(PATIENCE_S)
    lent = Lent(target.handle)
    try:
        return await to_thread.run_sync(has_odd_rules, lent, target.shown, abandon_on_cancel=True)
    finally:
        lent.give_up()


class _Listing:
    """All that a program writes that writes little."""

    is_full = False

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Keep it."""
        self._data += data

    def text(self) -> str:
        """Give it as text."""
        return self._data.decode("utf-8", "replace")


def page_of(files: list[FileHits], offset: int, limit: int, search: Search) -> list[FileHits]:
    """Take the matches from `offset` on, `limit` of them, with the lines that belong to them."""
    page: list[FileHits] = []
    at = 0
    for file in files:
        first, last = max(0, offset - at), min(file.matches, offset + limit - at)
        at += file.matches
        if first >= last:
            continue
        shown = {line.number for line in file.lines if _is_within(line.match, first, last)}
        near = {number for middle in shown for number in range(middle - search.before, middle + search.after + 1)}
        lines = [
            line
            for line in file.lines
            if _is_within(line.match, first, last) or (line.match is None and line.number in near)
        ]
        page.append(FileHits(file.path, lines, last - first))
    return page


def _is_within(match: int | None, first: int, last: int) -> bool:
    return match is not None and first <= match < last


def stamped(folder: int, paths: list[str]) -> list[str]:
    """Sort files by when they were last changed, the latest first; not for the event loop."""

    def age(path: str) -> int:
        try:
            return -os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime_ns
        except OSError:  # gone since
            return 0

    return sorted(paths, key=age)
