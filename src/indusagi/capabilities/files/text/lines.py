"""Some lines of a text file, in one pass over it and in little memory.

Lines are cut at newlines, as `sed` and `grep -n` count them; a file that has carriage returns and
no newlines is cut at those. Which it is shows in how the file begins; should the rest of it tell
otherwise, it is gone through anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from indusagi.capabilities.files.text.codec import CHUNK_BYTES
from indusagi.capabilities.files.text.stats import Whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import BinaryIO

    from indusagi.capabilities.files.text.codec import TextForm

SCAN_LIMIT_BYTES = 128 * 1024 * 1024
"""A larger file is not read to its end: its lines are not counted and its digest is not taken."""
LONGEST_LINE = 2_000
"""Characters of a line that are shown."""
_LINE_BYTES = 4 * LONGEST_LINE
"""Bytes of a line that are kept: enough for so many characters in every encoding."""
_CONTINUATION = bytes(range(0x80, 0xC0))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The lines that somebody wants to see."""

    first: int
    """Counted from 1; negative counts from the end."""
    count: int
    most_bytes: int
    """Of all lines together, in UTF-8; more may be kept, never much less."""


@dataclass(slots=True)
class RawLine:
    """A line as bytes, its ending taken off; of a long one, the beginning."""

    number: int
    head: bytes = b""
    size: int = 0
    continued: int = 0
    """How many bytes of it would be inside of characters in UTF-8."""
    last: bytes = b""

    def add(self, piece: bytes) -> None:
        """Take the next piece of the line."""
        self.last = piece[-1:] or self.last
        self.size += len(piece)
        self.continued += len(piece) - len(piece.translate(None, _CONTINUATION))
        if len(self.head) < _LINE_BYTES:
            self.head += piece[: _LINE_BYTES - len(self.head)]

    def end(self) -> None:
        """Take the carriage return off that is a part of the line's ending."""
        if self.last == b"\r":
            self.size -= 1
            self.head = self.head[: self.size]

    def shown(self, form: TextForm) -> str:
        """Give the line as text: a long one is cut, bytes that are no characters are written out.

        The form is that of the whole file.
        """
        encoding = "utf-8" if form.wide else form.encoding
        text = self.head.decode(encoding, "backslashreplace")
        whole = self.size == len(self.head)
        if whole and len(text) <= LONGEST_LINE:
            return text
        kept = text[:LONGEST_LINE]
        if whole:
            return f"{kept}… [+{len(text) - LONGEST_LINE:,} characters]"
        if encoding == "utf-8" and (form.wide or not form.damaged):
            return f"{kept}… [+{self.size - self.continued - LONGEST_LINE:,} characters]"
        return f"{kept}… [+{self.size - len(kept.encode(encoding, 'replace')):,} bytes]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """What a pass over a file has found."""

    lines: Sequence[RawLine]
    form: TextForm
    size: int
    """Bytes that were read."""
    total: int | None
    """Lines of the file; None if it was too large to count them."""
    digest: str | None
    """Of the whole file; None where the total is."""
    crlf: int
    """How many lines end in CRLF, for a file in which only some do."""


def scan(file: BinaryIO, head: bytes, size: int, wanted: Wanted, stopped: Callable[[], bool]) -> Scan:
    """Read a text file to its end, unless it is too large for that.

    Args:
        file: A regular file, open for reading, at the end of what was read of it.
        head: How it begins; this was read.
        size: How large it is said to be.
        wanted: Which lines to keep.
        stopped: Asked between chunks; when it says yes nobody is there any more, and the rest is
            left.
    """
    whole = Whole(head)
    found = _scanned(whole, file, head, size, wanted, stopped)
    if found is None:
        file.seek(len(head))
        whole = Whole(head, at_returns=not whole.reader.at_returns)
        found = _scanned(whole, file, head, size, wanted, stopped)
    return cast("Scan", found)


def _scanned(
    whole: Whole, file: BinaryIO, head: bytes, size: int, wanted: Wanted, stopped: Callable[[], bool]
) -> Scan | None:
    """Go through the file; None if its lines turn out to end in something else than was thought."""
    picker = _Picker(wanted) if wanted.first > 0 else None
    large = size > SCAN_LIMIT_BYTES
    if picker is None and large:
        return _result(whole, file, [], complete=False)
    for chunk in _chunks(head[len(whole.bom) :], file, stopped):
        narrow = whole.feed(chunk)
        if whole.misjudged:
            return None
        if picker is not None:
            picker.feed(narrow)
            if picker.full and large:
                break
    complete = whole.size <= SCAN_LIMIT_BYTES and not large
    rest = whole.finish() if complete else b""
    if whole.overlooked:
        return None
    if picker is None:
        picker = _from_the_end(file, whole, wanted, stopped) if complete else _Picker(wanted)
    else:
        picker.feed(rest)
    return _result(whole, file, picker.finish(), complete=complete)


def _result(whole: Whole, file: BinaryIO, lines: list[RawLine], *, complete: bool) -> Scan:
    return Scan(
        lines=lines,
        form=whole.form(file),
        size=whole.size,
        total=whole.total if complete else None,
        digest=whole.digest.hexdigest() if complete else None,
        crlf=whole.crlf,
    )


def _chunks(first: bytes, file: BinaryIO, stopped: Callable[[], bool]) -> Iterator[bytes]:
    """Give what was read and then the rest of the file, somewhat past the limit at most."""
    done, chunk = 0, first or file.read(CHUNK_BYTES)
    while chunk and not stopped():
        yield chunk
        done += len(chunk)
        # A file of the kernel's own may have nothing yet and say so with None.
        chunk = file.read(CHUNK_BYTES) if done <= SCAN_LIMIT_BYTES else b""


def _from_the_end(file: BinaryIO, whole: Whole, wanted: Wanted, stopped: Callable[[], bool]) -> _Picker:
    """Pick lines that are counted from the end, starting at the last chunk before them."""
    first = max(1, whole.total + wanted.first + 1)
    start, line = len(whole.bom), 1
    for at, number in whole.places:
        if number >= first:
            break
        start, line = at, number
    picker = _Picker(replace(wanted, first=first), line=line)
    reader = whole.reader.another()
    file.seek(start)
    for chunk in _chunks(b"", file, stopped):
        picker.feed(reader.newlines(reader.narrow(chunk)))
        if picker.full:
            return picker
    picker.feed(reader.newlines(reader.narrow(b"", final=True)))
    return picker


class _Picker:
    """Keeps the wanted lines out of a stream of bytes whose lines end in a newline."""

    def __init__(self, wanted: Wanted, *, line: int = 1) -> None:
        self._first = wanted.first
        self._count = wanted.count
        # In other encodings a character may be longer than in UTF-8, and much of it may be cut.
        self._left = 4 * wanted.most_bytes
        self._line = line
        self._current: RawLine | None = None
        self._lines: list[RawLine] = []

    @property
    def full(self) -> bool:
        """Whether nothing more is wanted."""
        return self._current is None and (len(self._lines) >= self._count or self._left <= 0)

    def feed(self, data: bytes) -> None:
        """Take the next part of the stream."""
        at = self._skip(data)
        while at < len(data) and not self.full:
            newline = data.find(b"\n", at)
            end = len(data) if newline < 0 else newline
            if self._current is None:
                self._current = RawLine(self._line)
            self._current.add(data[at:end])
            at = end + 1
            if newline >= 0:
                self._current.end()
                self._keep(self._current)
                self._line += 1

    def finish(self) -> list[RawLine]:
        """Give the lines; the last one of a file need not be ended."""
        if self._current is not None:
            self._keep(self._current)
        return self._lines

    def _skip(self, data: bytes) -> int:
        """Count lines up to the first one that is wanted, and tell where that begins."""
        if self._line >= self._first:
            return 0
        newlines = data.count(b"\n")
        if self._line + newlines < self._first:
            self._line += newlines
            return len(data)
        at = 0
        while self._line < self._first:
            at = data.index(b"\n", at) + 1
            self._line += 1
        return at

    def _keep(self, line: RawLine) -> None:
        self._lines.append(line)
        self._left -= len(line.head)
        self._current = None
