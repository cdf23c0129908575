"""Read selected lines of a text file in a single pass, with bounded memory.

Lines end at a newline, the way `sed` and `grep -n` count them; a preceding carriage return is part of the line ending.
UTF-16 and UTF-32 are converted to UTF-8 on the fly. For any other encoding we buffer raw bytes until we know the
encoding, which may take until the end of the file.
"""

from __future__ import annotations

import codecs
import hashlib
import os
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from indusagi.capabilities.files.codec import (
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
"""Files larger than this aren't read to the end, so they get no line count and no digest."""
LONGEST_LINE = 2_000
"""Display limit in characters; the rest of a line is cut."""
_LINE_BYTES = 4 * LONGEST_LINE
"""Bytes buffered per line: enough for `LONGEST_LINE` characters in any encoding."""
_CONTINUATION = bytes(range(0x80, 0xC0))


@record
class LineRange:
    """The lines requested by the caller."""

    first: int
    """1-based; negative counts from the end."""
    count: int
    max_bytes: int
    """Total for all lines, in UTF-8. The result may exceed it but is never much smaller."""


@dataclass(slots=True)
class ScannedLine:
    """The bytes of a line without its ending. Long lines only keep their start."""

    number: int
    head: bytes = b""
    size: int = 0
    continued: int = 0
    """Number of UTF-8 continuation bytes."""
    last: bytes = b""

    def add(self, piece: bytes) -> None:
        """Append the next bytes of the line."""
        self.last = piece[-1:] or self.last
        self.size += len(piece)
        self.continued += len(piece) - len(piece.translate(None, _CONTINUATION))
        if len(self.head) < _LINE_BYTES:
            self.head += piece[: _LINE_BYTES - len(self.head)]

    def end(self) -> None:
        """Drop the carriage return of a CRLF ending."""
        if self.last == b"\r":
            self.size -= 1
            self.head = self.head[: self.size]

    def format(self, form: TextForm) -> str:
        """Decode the line using the form of the whole file, cutting long lines and escaping invalid bytes."""
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
    total: int | None
    """Line count, or None if the file is too large to count."""
    digest: str | None
    """SHA-256 of the whole file; None if `total` is None."""
    crlf: int
    """Number of CRLF endings, for files with mixed line endings."""


def scan_lines(file: BinaryIO, head: bytes, size: int, wanted: LineRange, stopped: Callable[[], bool]) -> TextScan:
    """Scan a text file to its end, or stop early if it's too large.

    Args:
        file: A regular file open for reading, positioned after `head`.
        head: The first bytes of the file.
        size: The file size according to `stat`.
        wanted: The lines to return.
        stopped: Polled between chunks; True aborts the scan.
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
    """Yield the bytes already read, then the rest of the file up to just past the limit."""
    done, chunk = 0, first or file.read(CHUNK_BYTES)
    while chunk and not stopped():
        yield chunk
        done += len(chunk)
        # A non-blocking file with no data available returns None.
        chunk = file.read(CHUNK_BYTES) if done <= SCAN_LIMIT_BYTES else b""


def _collect_from_end(
    file: BinaryIO, stats: TextStats, wanted: LineRange, stopped: Callable[[], bool]
) -> _LineCollector:
    """Collect lines counted from the end, starting at the closest chunk before them."""
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
    """Collects the wanted lines from a byte stream with one-byte newlines."""

    def __init__(self, wanted: LineRange, *, line: int = 1) -> None:
        self._first = wanted.first
        self._count = wanted.count
        # Other encodings may need more bytes per character than UTF-8, and long lines get cut.
        self._left = 4 * wanted.max_bytes
        self._line = line
        self._current: ScannedLine | None = None
        self._lines: list[ScannedLine] = []

    @property
    def full(self) -> bool:
        """Whether all wanted lines have been collected."""
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
        """Return the lines, including a last line with no newline."""
        if self._current is not None:
            self._keep(self._current)
        return self._lines

    def _skip(self, data: bytes) -> int:
        """Skip to the first wanted line and return its position."""
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
    """Converts UTF-16 and UTF-32 to UTF-8 in chunks; passes other encodings through."""

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
        """Detect the BOM in `head`. The caller still has to feed the rest of `head`."""
        self.bom, self.encoding = detect_bom(head)
        self.digest = hashlib.sha256(self.bom)
        self.size = len(self.bom)
        self.chunks: list[tuple[int, int]] = []
        """(offset, 1-based line number) of each chunk."""
        self.crlf = 0
        self._lf = 0
        self._last = b"\n"
        self._narrower = _Utf8Narrower(self.encoding)
        self._utf_8 = codecs.getincrementaldecoder("utf-8")()
        self._invalid_at: int | None = None
        """Position of the first byte that isn't valid UTF-8."""
        self._non_ascii = 0
        """Number of non-ASCII bytes before it."""

    @property
    def total(self) -> int:
        """Number of lines fed so far, counting a last line with no newline."""
        return self._lf + (self._last != b"\n")

    def feed(self, chunk: bytes) -> bytes:
        """Process the next chunk (without the BOM) and return it with one-byte newlines."""
        self.chunks.append((self.size, self._lf + 1))
        self.digest.update(chunk)
        data = self._narrower.narrow(chunk)
        self._count(data)
        self.size += len(chunk)
        return data

    def finish(self) -> bytes:
        """Flush the decoder at the end of the file and return its remaining bytes."""
        data = self._narrower.narrow(b"", final=True)
        self._count(data)
        if self.encoding == "utf-8" and self._invalid_at is None:
            pending = len(self._utf_8.getstate()[0])
            self._invalid_at = self.size - pending if pending else None
            self._non_ascii -= pending
        return data

    def form(self, file: BinaryIO) -> TextForm:
        """Build the form of the file; may re-read a sample of it."""
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
            # A character that starts in the previous chunk was counted there.
            self._non_ascii += count_non_ascii(data[:position]) if position >= 0 else position


# -- display ----------------------------------------------------------------------------------
#
# We never alter the content we show: invisible characters are reported separately.


DOCUMENTS = "install the extra `documents`: pip install 'indus-deck[documents]'"
"""Remedy for a missing document library."""
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
    """The reason a file can't be shown."""

    why: str
    """Continues a sentence after the file name and a colon."""
    code: str
    """Machine-readable reason."""


@record
class InvisibleCharacters:
    """One kind of invisible characters: the count and the first occurrence."""

    kind: str
    count: int
    first: int
    unit: str

    def __str__(self) -> str:
        times = f"{self.count:,} " if self.count > 1 else ""
        place = "first in" if self.count > 1 else "in"
        return f"{times}{_INVISIBLE_KINDS[self.kind]} {place} {self.unit} {self.first}"


def find_invisible(parts: Iterable[tuple[int, str]], unit: str = "line") -> Sequence[InvisibleCharacters]:
    """List the kinds of invisible characters in numbered lines (or pages), in a fixed order."""
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, text in parts:
        if text.isascii() and text.isprintable():
            continue
        # Form feeds are common page separators in source files.
        for kind in find_invisible_kinds(text.replace("\f", "")):
            counts[kind] = counts.get(kind, 0) + 1
            first.setdefault(kind, number)
    return tuple(
        InvisibleCharacters(kind, counts[kind], first[kind], unit) for kind in _INVISIBLE_KINDS if kind in counts
    )


def describe_invisible(parts: Iterable[tuple[int, str]], unit: str = "line") -> str:
    """Describe the invisible characters in numbered lines (or pages); empty if there aren't any."""
    found = find_invisible(parts, unit)
    return f"hidden characters: {', '.join(map(str, found))}" if found else ""


def format_path(path: str) -> str:
    """Format a path on a single line, without invisible characters and with invalid bytes escaped."""
    if path.isascii() and path.isprintable():
        return path
    try:
        text = os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # not a file name: a lone surrogate
        text = path
    cleaned, removed = clean_text(text.replace("\n", "\\n").replace("\t", "\\t"))
    return f"{cleaned} (hidden characters left out)" if removed else cleaned


def format_path_below(resolved: str, root: str) -> str:
    """Format a path the way the user knows it: relative if it's inside `root`."""
    if resolved == root:
        return "."
    return format_path(resolved.removeprefix(root.rstrip("/") + "/"))


def join_path(base: str, path: str) -> str:
    """Join a path to its directory, omitting `.`."""
    return path if base == "." else os.path.join(base, path)


def strip_line_numbers(text: str) -> str | None:
    """Strip the line numbers `read` adds; None unless every line has one and they're consecutive."""
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
    """Return whether any line starts with a line number in the format of `read`."""
    return any(_LINE_NUMBER.match(line) for line in text.split("\n"))
