"""Incremental readers for ripgrep's output, which only store the results to show.

`MatchReader` parses the JSON records of `rg --json` (https://docs.rs/grep-printer/latest/grep_printer/struct.JSON.html),
`CountReader` the names and counts of `rg --count`. A reader sets `is_full` once it has enough, and we kill the program.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from bisect import bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, cast

from indusagi.capabilities.search.request import FileMatches, SearchLine, cut_window, path_key

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject

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
