"""Selected lines of a text file, found in one pass over it and in little memory.

Lines end in a newline, as `sed` and `grep -n` count them; a carriage return in front of it belongs to the line ending.
UTF-16 and UTF-32 become UTF-8 on the way. In every other encoding the bytes are kept until the encoding is known, which
may be at the end of the file.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from indusagi.capabilities.files.text.codec import (
    CHUNK_BYTES,
    SAMPLE_BYTES,
    SAMPLE_LEAD_BYTES,
    TextForm,
    build_sample,
    count_non_ascii,
    detect_bom,
    guess_encoding,
    name_line_ending,
)
from indusagi.core.records import record
from indusagi.core.text import clean_text, find_invisible_kinds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import BinaryIO

SCAN_LIMIT_BYTES = 128 * 1024 * 1024
"""A larger file is not read to its end: its lines are not counted and its digest is not computed."""
LONGEST_LINE = 2_000
"""Characters of a line that are shown."""
_LINE_BYTES = 4 * LONGEST_LINE
"""Bytes of a line that are kept: enough for so many characters in every encoding."""
_CONTINUATION = bytes(range(0x80, 0xC0))


@record
class LineRange:
    """The lines that a caller wants."""

    first: int
    """Counted from 1; negative counts from the end."""
    count: int
    max_bytes: int
    """Of all lines together, in UTF-8; the result may be larger, never much smaller."""


@dataclass(slots=True)
class ScannedLine:
    """A line as bytes, without its ending; of a long line, the start."""

    number: int
    head: bytes = b""
    size: int = 0
    continued: int = 0
    """How many of its bytes continue a character of UTF-8."""
    last: bytes = b""

    def add(self, piece: bytes) -> None:
        """Append the next bytes of the line."""
        self.last = piece[-1:] or self.last
        self.size += len(piece)
        self.continued += len(piece) - len(piece.translate(None, _CONTINUATION))
        if len(self.head) < _LINE_BYTES:
            self.head += piece[: _LINE_BYTES - len(self.head)]

    def end(self) -> None:
        """Remove the carriage return that belongs to the line ending."""
        if self.last == b"\r":
            self.size -= 1
            self.head = self.head[: self.size]

    def format(self, form: TextForm) -> str:
        """Format the line as text: a long one is cut, invalid bytes are written as escapes.

        Args:
            form: The form of the whole file.
        """
        encoding = "utf-8" if form.wide else form.encoding
        text = self.head.decode(encoding, "backslashreplace")
        is_whole = self.size == len(self.head)
        if is_whole and len(text) <= LONGEST_LINE:
            return text
        kept = text[:LONGEST_LINE]
        if is_whole:
            return f"{kept}… [+{len(text) - LONGEST_LINE:,} characters]"
        if encoding == "utf-8" and (form.wide or not form.damaged):
            return f"{kept}… [+{self.size - self.continued - LONGEST_LINE:,} characters]"
        return f"{kept}… [+{self.size - len(kept.encode(encoding, 'replace')):,} bytes]"


@record(kw_only=True)
class TextScan:
    """The result of a pass over a file."""

    lines: Sequence[ScannedLine]
    form: TextForm
    size: int
    """Bytes that were read."""
    total: int | None
    """Lines of the file; None if it was too large to count them."""
    digest: str | None
    """Of the whole file; None where `total` is None."""
    crlf: int
    """How many lines end in CRLF, for a file with mixed line endings."""


def scan_lines(file: BinaryIO, head: bytes, size: int, wanted: LineRange, stopped: Callable[[], bool]) -> TextScan:
    """Read a text file to its end, unless it is too large.

    Args:
        file: A regular file, open for reading, positioned behind `head`.
        head: The first bytes of the file.
        size: The size of the file according to `stat`.
        wanted: Which lines to return.
        stopped: Asked between chunks; True means that the result is not wanted any more.
    """
    stats = TextStats(head)
    is_large = size > SCAN_LIMIT_BYTES
    collector = _LineCollector(wanted) if wanted.first > 0 else None
    is_complete = False
    if collector is not None or not is_large:
        for chunk in _read_chunks(head[len(stats.bom) :], file, stopped):
            data = stats.feed(chunk)
            if collector is not None:
                collector.feed(data)
                if collector.full and is_large:
                    break
        is_complete = stats.size <= SCAN_LIMIT_BYTES and not is_large
        rest = stats.finish() if is_complete else b""
        if collector is not None:
            collector.feed(rest)
        elif is_complete:
            collector = _collect_from_end(file, stats, wanted, stopped)
    return TextScan(
        lines=[] if collector is None else collector.finish(),
        form=stats.form(file),
        size=stats.size,
        total=stats.total if is_complete else None,
        digest=stats.digest.hexdigest() if is_complete else None,
        crlf=stats.crlf,
    )


def _read_chunks(first: bytes, file: BinaryIO, stopped: Callable[[], bool]) -> Iterator[bytes]:
    """Yield what was read already and then the rest of the file, up to a little past the limit."""
    done, chunk = 0, first or file.read(CHUNK_BYTES)
    while chunk and not stopped():
        yield chunk
        done += len(chunk)
        # A non-blocking file without data at the moment gives None.
        chunk = file.read(CHUNK_BYTES) if done <= SCAN_LIMIT_BYTES else b""


def _collect_from_end(
    file: BinaryIO, stats: TextStats, wanted: LineRange, stopped: Callable[[], bool]
) -> _LineCollector:
    """Collect lines that are counted from the end, starting at the last chunk before them."""
    first = max(1, stats.total + wanted.first + 1)
    start, line = len(stats.bom), 1
    for position, number in stats.chunks:
        if number >= first:
            break
        start, line = position, number
    collector = _LineCollector(replace(wanted, first=first), line=line)
    narrower = _Utf8Narrower(stats.encoding)
    file.seek(start)
    for chunk in _read_chunks(b"", file, stopped):
        collector.feed(narrower.narrow(chunk))
        if collector.full:
            return collector
    collector.feed(narrower.narrow(b"", final=True))
    return collector


class _LineCollector:
    """Keeps the wanted lines of a stream of bytes in which a newline is one byte."""

    def __init__(self, wanted: LineRange, *, line: int = 1) -> None:
        self._first = wanted.first
        self._count = wanted.count
        # In another encoding a character may take more bytes than in UTF-8, and much of it may be cut.
        self._left = 4 * wanted.max_bytes
        self._line = line
        self._current: ScannedLine | None = None
        self._lines: list[ScannedLine] = []

    @property
    def full(self) -> bool:
        """Whether all wanted lines are there."""
        return self._current is None and (len(self._lines) >= self._count or self._left <= 0)

    def feed(self, data: bytes) -> None:
        """Process the next part of the stream."""
        position = self._skip(data)
        while position < len(data) and not self.full:
            newline = data.find(b"\n", position)
            end = len(data) if newline < 0 else newline
            if self._current is None:
                self._current = ScannedLine(self._line)
            self._current.add(data[position:end])
            position = end + 1
            if newline >= 0:
                self._current.end()
                self._keep(self._current)
                self._line += 1

    def finish(self) -> list[ScannedLine]:
        """Return the lines; the last line of a file may have no ending."""
        if self._current is not None:
            self._keep(self._current)
        return self._lines

    def _skip(self, data: bytes) -> int:
        """Count lines up to the first wanted one, and return where that begins."""
        if self._line >= self._first:
            return 0
        newlines = data.count(b"\n")
        if self._line + newlines < self._first:
            self._line += newlines
            return len(data)
        position = 0
        while self._line < self._first:
            position = data.index(b"\n", position) + 1
            self._line += 1
        return position

    def _keep(self, line: ScannedLine) -> None:
        self._lines.append(line)
        self._left -= len(line.head)
        self._current = None


class _Utf8Narrower:
    """Converts UTF-16 and UTF-32 to UTF-8 in chunks; bytes of another encoding are passed on."""

    def __init__(self, encoding: str) -> None:
        self.damaged = False
        self._encoding = encoding
        self._decoder: codecs.IncrementalDecoder | None = None
        if encoding != "utf-8":
            self._decoder = codecs.getincrementaldecoder(encoding)()

    def narrow(self, chunk: bytes, *, final: bool = False) -> bytes:
        """Convert the next chunk."""
        decoder = self._decoder
        if decoder is None:
            return chunk
        before = decoder.getstate()
        try:
            text = decoder.decode(chunk, final)
        except UnicodeDecodeError:
            self.damaged = True
            self._decoder = decoder = codecs.getincrementaldecoder(self._encoding)("replace")
            decoder.setstate(before)
            text = decoder.decode(chunk, final)
        return text.encode("utf-8")


class TextStats:
    """Counts, checks and hashes a file chunk by chunk."""

    def __init__(self, head: bytes) -> None:
        """Detect the byte order mark in the first bytes of the file; they are fed all the same."""
        self.bom, self.encoding = detect_bom(head)
        self.digest = hashlib.sha256(self.bom)
        self.size = len(self.bom)
        self.chunks: list[tuple[int, int]] = []
        """The start of each chunk, and its line, counted from 1."""
        self.crlf = 0
        """How many lines end in CRLF."""
        self._lf = 0
        self._last = b"\n"
        self._narrower = _Utf8Narrower(self.encoding)
        self._utf_8 = codecs.getincrementaldecoder("utf-8")()
        self._invalid_at: int | None = None
        """The position of the first byte that is not UTF-8."""
        self._non_ascii = 0
        """How many non-ASCII bytes stand before that one."""

    @property
    def total(self) -> int:
        """How many lines were fed; the last one may have no ending."""
        return self._lf + (self._last != b"\n")

    def feed(self, chunk: bytes) -> bytes:
        """Process the next chunk, without the mark; return it with newlines of one byte."""
        self.chunks.append((self.size, self._lf + 1))
        self.digest.update(chunk)
        data = self._narrower.narrow(chunk)
        self._count(data)
        self.size += len(chunk)
        return data

    def finish(self) -> bytes:
        """Return the bytes that were held back at the end of the file."""
        data = self._narrower.narrow(b"", final=True)
        self._count(data)
        if self.encoding == "utf-8" and self._invalid_at is None:
            pending = len(self._utf_8.getstate()[0])
            self._invalid_at = self.size - pending if pending else None
            self._non_ascii -= pending
        return data

    def form(self, file: BinaryIO) -> TextForm:
        """Build the form of the file; may read a sample of it again."""
        encoding, guessed = self.encoding, False
        if self._invalid_at is not None and not self.bom:
            start = max(0, self._invalid_at - SAMPLE_LEAD_BYTES)
            file.seek(start)
            lead = self._invalid_at - start
            data = file.read(lead + SAMPLE_BYTES)
            encoding = guess_encoding(build_sample(data[:lead], data[lead:]), self._non_ascii)
            guessed = encoding != "utf-8"
        return TextForm(
            encoding=encoding,
            bom=self.bom,
            line_ending=name_line_ending(self.crlf, self._lf - self.crlf),
            final_newline=self._lf > 0 and self._last == b"\n",
            guessed=guessed,
            damaged=self._narrower.damaged or (self._invalid_at is not None and not guessed),
        )

    def _count(self, data: bytes) -> None:
        if not data:
            return
        self._lf += data.count(b"\n")
        self.crlf += data.count(b"\r\n") + (self._last == b"\r" and data.startswith(b"\n"))
        self._last = data[-1:]
        pending = len(self._utf_8.getstate()[0])
        if self.encoding != "utf-8" or self._invalid_at is not None or (data.isascii() and not pending):
            return
        try:
            self._utf_8.decode(data)
            self._non_ascii += count_non_ascii(data)
        except UnicodeDecodeError as exc:
            position = exc.start - pending
            self._invalid_at = self.size + position
            # A character that began in the chunk before was counted there.
            self._non_ascii += count_non_ascii(data[:position]) if position >= 0 else position


# -- display ----------------------------------------------------------------------------------
#
# The content of a file is never altered to be shown: invisible characters in it are reported beside it.


DOCUMENTS = "install the extra `documents`: pip install 'indus-deck[documents]'"
"""The remedy where a library for documents is missing."""
_LINE_NUMBER = re.compile(r" *([0-9]{1,12})\t")
_INVISIBLE_KINDS = {
    "escapes": "terminal escape sequences",
    "bidi": "text direction controls",
    "tags": "tag characters",
    "invisible": "invisible characters",
    "controls": "control characters",
    "noncharacters": "code points that are not characters",
}


@record
class ReadFailure:
    """Why a file cannot be shown."""

    why: str
    """Continues a sentence after the name of the file and a colon."""
    code: str
    """The same for programs."""


@record
class InvisibleCharacters:
    """One kind of invisible characters: how many, and where the first is."""

    kind: str
    count: int
    first: int
    unit: str

    def __str__(self) -> str:
        times = f"{self.count:,} " if self.count > 1 else ""
        place = "first in" if self.count > 1 else "in"
        return f"{times}{_INVISIBLE_KINDS[self.kind]} {place} {self.unit} {self.first}"


def find_invisible(parts: Iterable[tuple[int, str]], unit: str = "line") -> Sequence[InvisibleCharacters]:
    """List the kinds of invisible characters in numbered lines, or pages, in a fixed order."""
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, text in parts:
        if text.isascii() and text.isprintable():
            continue
        # A form feed separates the pages of many source files.
        for kind in find_invisible_kinds(text.replace("\f", "")):
            counts[kind] = counts.get(kind, 0) + 1
            first.setdefault(kind, number)
    return tuple(
        InvisibleCharacters(kind, counts[kind], first[kind], unit) for kind in _INVISIBLE_KINDS if kind in counts
    )


def format_path(path: str) -> str:
    """Format a path on one line: without invisible characters, invalid bytes as escapes."""
    if path.isascii() and path.isprintable():
        return path
    try:
        text = os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # not a file name: half a surrogate pair
        text = path
    cleaned, removed = clean_text(text.replace("\n", "\\n").replace("\t", "\\t"))
    return f"{cleaned} (hidden characters left out)" if removed else cleaned


def format_path_below(resolved: str, root: str) -> str:
    """Format a path as the user knows it: relative where it lies in `root`."""
    if resolved == root:
        return "."
    return format_path(resolved.removeprefix(root.rstrip("/") + "/"))


def join_path(base: str, path: str) -> str:
    """Join a path to its directory; the current directory adds nothing."""
    return path if base == "." else os.path.join(base, path)


def strip_line_numbers(text: str) -> str | None:
    """Remove the numbers that `read` writes in front of lines; None unless every line has one and they count up."""
    lines = text.split("\n")
    is_ended = not lines[-1]
    if is_ended:
        lines.pop()
    matches = [_LINE_NUMBER.match(line) for line in lines]
    numbers = [int(match.group(1)) for match in matches if match]
    first = numbers[0] if numbers else 0
    if not lines or numbers != list(range(first, first + len(lines))):
        return None
    bare = [line[match.end() :] for line, match in zip(lines, matches, strict=True) if match]
    return "\n".join(bare) + ("\n" if is_ended else "")


def has_line_numbers(text: str) -> bool:
    """Tell whether any line begins with a number as `read` writes it."""
    return any(_LINE_NUMBER.match(line) for line in text.split("\n"))
