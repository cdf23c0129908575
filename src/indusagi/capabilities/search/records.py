"""What a search program writes, read piece by piece: never more of it in memory than is shown.

`Matches` reads the JSON records of ripgrep, `Counts` its list of names and numbers. Both engines
write these. A reader says when it has enough; the program is ended then.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64decode
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, cast

from indusagi.capabilities.search.request import FileHits, Line, path_key, window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from indusagi.core.json import JsonObject

RECORD_BYTES = 1024 * 1024
"""A record that is longer is not read: a line of that length is no line that anybody reads."""
_HEAD_BYTES = 32 * 1024
"""As much of it is kept to tell which file it is of."""
_MATCH_LINES = 20
"""Lines that are shown of one place that reaches over more."""
_PATH = re.compile(rb'"path":(\{"(?:text|bytes)":"(?:[^"\\]|\\.)*"\})')
_SEARCHED = re.compile(rb"^(\d+) files? searched$", re.MULTILINE)


class Matches:
    """Lines that match, grouped by file.

    Args:
        limit: How many matches are kept; one more, and there is enough.
        skip: How many are left out first; for a program that goes through the files in order.
        max_files: How many files there may be.
        accepts: Which files count, by their path; all, unless it is given.
    """

    def __init__(
        self, limit: int, skip: int = 0, *, max_files: int | None = None, accepts: Callable[[str], bool] | None = None
    ) -> None:
        self.files: list[FileHits] = []
        self.matches = 0
        """How many came, those that are not kept among them."""
        self.is_full = False
        self.searched: int | None = None
        """How many files were looked into; known when the search ran to its end, of all that count.
        """
        self.too_long: list[str] = []
        """Files with a line that is too long to be read."""
        self._limit = limit
        self._skip = skip
        self._max_files = max_files
        self._accepts = accepts
        self._buffer = bytearray()
        self._dropping = False
        self._current: FileHits | None = None
        self._before = 0

    @property
    def binary(self) -> list[str]:
        """Files that match and are no text."""
        return [file.path for file in self.files if file.is_binary]

    def sorted_files(self) -> list[FileHits]:
        """Give the files that are text and have something to show, in order."""
        found = [file for file in self.files if file.matches and not file.is_binary]
        return sorted(found, key=lambda file: path_key(file.path))

    def feed(self, data: bytes) -> None:
        """Take what the program wrote."""
        for record in self._records(data):
            if self.is_full:
                return
            self._take(record)

    def _records(self, data: bytes) -> Iterator[bytes]:
        *ended, rest = data.split(b"\n")
        for piece in ended:
            self._add(piece)
            if not self._dropping:
                yield bytes(self._buffer)
            self._buffer.clear()
            self._dropping = False
        self._add(rest)

    def _add(self, piece: bytes) -> None:
        if self._dropping:
            return
        self._buffer += piece
        if len(self._buffer) > RECORD_BYTES:
            found = _PATH.search(self._buffer, 0, _HEAD_BYTES)
            if found and self._buffer.startswith(b'{"type":"match"'):
                self.too_long.append(_text(json.loads(found[1])))
            self._buffer.clear()
            self._dropping = True

    def _take(self, record: bytes) -> None:
        parsed = cast("JsonObject", json.loads(record))
        kind, data = parsed.get("type"), cast("JsonObject", parsed.get("data"))
        if kind == "begin":
            self._begin(_text(data["path"]))
        elif kind == "match":
            self._match(data)
        elif kind == "context" and self._current is not None:
            number = cast("int", data["line_number"])
            self._current.lines.append(Line(number, _shown(_raw(data["lines"]), 0, 0)))
        elif kind == "end" and self._current is not None:
            self._end(self._current, is_binary=data.get("binary_offset") is not None)
        elif kind == "summary" and self._accepts is None:
            stats = cast("JsonObject", data["stats"])
            self.searched = cast("int", stats["searches"])

    def _begin(self, path: str) -> None:
        if self._accepts is not None and not self._accepts(path):
            return
        if self._max_files is not None and len(self.files) >= self._max_files:
            self.is_full = True
            return
        self._before = self.matches
        self._current = FileHits(path)
        self.files.append(self._current)

    def _end(self, file: FileHits, *, is_binary: bool) -> None:
        self._current = None
        file.is_binary = is_binary
        if is_binary:
            self.matches = self._before

    def _match(self, data: JsonObject) -> None:
        if self._current is None:
            return
        for part in _parts(data):
            self.matches += 1
            if self.matches <= self._skip:
                continue
            if self.matches > self._skip + self._limit:
                self.is_full = True
                return
            self._current.lines.extend(_match_lines(part, self._current.matches))
            self._current.matches += 1


class _Part(NamedTuple):
    """Lines that belong together, and where in them something was found first."""

    number: int
    lines: list[bytes]
    start: int
    end: int


def _parts(data: JsonObject) -> Iterator[_Part]:
    """Take apart what matches: ripgrep puts places together that are on lines next to each other.

    Those that share a line stay together.
    """
    lines = _raw(data["lines"]).removesuffix(b"\n").split(b"\n")
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


def _match_lines(part: _Part, match: int) -> Iterator[Line]:
    """Give the lines of one match: mostly one, but it may reach over several."""
    number, lines, start, end = part
    for at, line in enumerate(lines[:_MATCH_LINES]):
        yield Line(number + at, _shown(line, max(0, start), max(0, end)), match)
        start -= len(line) + 1
        end -= len(line) + 1
    if len(lines) > _MATCH_LINES:
        more = len(lines) - _MATCH_LINES
        yield Line(number + _MATCH_LINES, f"… [{more:,} more lines of this match]", match)


def _shown(raw: bytes, start: int, end: int) -> str:
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    before = len(raw[:start].decode("utf-8", "replace"))
    length = len(raw[start:end].decode("utf-8", "replace"))
    return window(raw.decode("utf-8", "replace"), before, before + length)


def _raw(value: object) -> bytes:
    """Read a text as ripgrep has it: as such, or in base64 where it is not UTF-8."""
    held = cast("dict[str, str]", value)
    if "text" in held:
        return held["text"].encode("utf-8", "surrogatepass")
    return b64decode(held["bytes"])


def _text(value: object) -> str:
    return os.fsdecode(_raw(value)).removeprefix("./")


class Counts:
    """Files and how many of their lines match."""

    def __init__(self, max_files: int, accepts: Callable[[str], bool] | None = None) -> None:
        self.counts: dict[str, int] = {}
        self.is_full = False
        self._max_files = max_files
        self._accepts = accepts
        self._buffer = bytearray()

    @property
    def searched(self) -> int | None:
        """How many files were looked into; known when the search ran to its end."""
        found = None if self._accepts else _SEARCHED.search(self._buffer)
        return int(found[1]) if found else None

    def feed(self, data: bytes) -> None:
        """Take what the program wrote."""
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
