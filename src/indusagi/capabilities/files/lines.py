"""Read selected lines of a text file, and show text and paths.

Lines end at a newline, the way `sed` and `grep -n` count them; a preceding carriage return is part of the line ending.
UTF-16 and UTF-32 are converted to UTF-8 first.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import BinaryIO

from indusagi.capabilities.files.codec import (
    CHUNK_BYTES,
    SAMPLE_BYTES,
    SAMPLE_LEAD_BYTES,
    TextForm,
    count_non_ascii,
    detect_bom,
    guess_encoding_at,
    name_line_ending,
)
from indusagi.core.json import JsonValue
from indusagi.core.records import record
from indusagi.core.text import clean_text, find_invisible_kinds

SCAN_LIMIT_BYTES = 128 * 1024 * 1024
"""Files larger than this aren't read to the end, so they get no line count and no digest."""
LONGEST_LINE = 2_000
"""Display limit in characters; the rest of a line is cut."""
_LINE_BYTES = 4 * LONGEST_LINE
"""Bytes decoded per line: enough for `LONGEST_LINE` characters in any encoding."""
_CONTINUATION = bytes(range(0x80, 0xC0))


@record
class LineRange:
    """The lines requested by the caller."""

    first: int
    """1-based; negative counts from the end."""
    count: int
    max_bytes: int
    """Total for all lines, in UTF-8. The result may exceed it but is never much smaller."""


@record(kw_only=True)
class TextScan:
    """The selected lines of a file, and facts about all of it."""

    lines: Sequence[tuple[int, str]]
    """Numbered, without their endings. Long lines only keep their start, and invalid bytes are escaped."""
    form: TextForm
    size: int
    total: int | None
    """Line count, or None if the file is too large to count."""
    digest: str | None
    """SHA-256 of the whole file; None if `total` is None."""
    crlf: int
    """Number of CRLF endings, for files with mixed line endings."""


def scan_lines(file: BinaryIO, head: bytes, size: int, wanted: LineRange, stopped: Callable[[], bool]) -> TextScan:
    """Read a text file once, and select lines. A file that's too large is only read up to the last wanted line.

    `file` is positioned after `head`, and `size` comes from `stat`. Reading ends once `stopped` returns True.
    """
    bom, encoding = detect_bom(head)
    is_large, is_wide = size > SCAN_LIMIT_BYTES, encoding != "utf-8"
    digest, damaged, file_size = hashlib.sha256(bom), False, None
    file.seek(len(bom))
    if is_wide:
        data = b"".join(_read_chunks(file, stopped))
        digest.update(data)
        file_size = len(bom) + len(data)
        text = data.decode(encoding, "replace")
        damaged = "\ufffd" in text and text.encode(encoding) != data
        file, bom_size = io.BytesIO(text.encode("utf-8")), 0
    else:
        bom_size = len(bom)
    survey = _Survey()
    for chunk in _read_chunks(file, stopped):
        if not is_wide:
            digest.update(chunk)
        survey.add(chunk)
        if is_large and not 0 <= survey.lf < wanted.first + wanted.count:
            break
    file_size = bom_size + survey.size if file_size is None else file_size
    is_complete = not is_large and file_size <= SCAN_LIMIT_BYTES
    invalid_at = survey.find_invalid(is_complete=is_complete)
    guessed = False
    if invalid_at is not None and not bom:
        start = max(0, invalid_at - SAMPLE_LEAD_BYTES)
        file.seek(start)
        sample = file.read(invalid_at - start + SAMPLE_BYTES)
        encoding = guess_encoding_at(sample, invalid_at - start, survey.non_ascii)
        guessed = encoding != "utf-8"
    form = TextForm(
        encoding=encoding,
        bom=bom,
        line_ending=name_line_ending(survey.crlf, survey.lf - survey.crlf),
        final_newline=survey.lf > 0 and survey.last == b"\n",
        guessed=guessed,
        damaged=damaged or (invalid_at is not None and not guessed),
    )
    total = survey.lf + (survey.last != b"\n")
    first = wanted.first if wanted.first > 0 else max(1, total + wanted.first + 1)
    lines: list[tuple[int, str]] = []
    if is_complete or 0 < wanted.first <= total:
        offset, number = next((row for row in reversed(survey.chunks) if row[1] <= first), (0, 1))
        file.seek(bom_size + offset)
        lines.extend(_select_lines(file, number, replace(wanted, first=first), form, bom_size + survey.size))
    return TextScan(
        lines=lines,
        form=form,
        size=file_size,
        total=total if is_complete else None,
        digest=digest.hexdigest() if is_complete else None,
        crlf=survey.crlf,
    )


def _read_chunks(file: BinaryIO, stopped: Callable[[], bool]) -> Iterator[bytes]:
    """Yield the rest of a file, up to just past the limit."""
    done = 0
    while done <= SCAN_LIMIT_BYTES and not stopped() and (chunk := file.read(CHUNK_BYTES)):
        yield chunk
        done += len(chunk)


class _Survey:
    """Facts about a text with one-byte newlines, collected chunk by chunk."""

    def __init__(self) -> None:
        self.size = self.lf = self.crlf = 0
        self.last = b"\n"
        self.chunks: list[tuple[int, int]] = []
        """(offset, number of the first line that starts there or later) of each chunk."""
        self.non_ascii = 0
        """Number of non-ASCII bytes before the first one that isn't valid UTF-8."""
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._invalid_at: int | None = None

    def add(self, chunk: bytes) -> None:
        """Add the next chunk."""
        self.chunks.append((self.size, self.lf + 1 + (self.last != b"\n")))
        self.lf += chunk.count(b"\n")
        self.crlf += chunk.count(b"\r\n") + (self.last == b"\r" and chunk.startswith(b"\n"))
        self.last = chunk[-1:]
        pending = len(self._decoder.getstate()[0])
        if self._invalid_at is None and (pending or not chunk.isascii()):
            try:
                self._decoder.decode(chunk)
                self.non_ascii += count_non_ascii(chunk)
            except UnicodeDecodeError as exc:
                position = exc.start - pending
                self._invalid_at = self.size + position
                # A character that starts in the previous chunk was counted there.
                self.non_ascii += count_non_ascii(chunk[:position]) if position >= 0 else position
        self.size += len(chunk)

    def find_invalid(self, *, is_complete: bool) -> int | None:
        """Return the position of the first byte that isn't valid UTF-8."""
        pending = len(self._decoder.getstate()[0])
        if self._invalid_at is None and is_complete and pending:
            self._invalid_at = self.size - pending
            self.non_ascii -= pending
        return self._invalid_at


def _select_lines(
    file: BinaryIO, number: int, wanted: LineRange, form: TextForm, end: int
) -> Iterator[tuple[int, str]]:
    """Yield the wanted lines of a file positioned at, or in the line before, line `number`, reading up to `end`."""

    def read_line(limit: int) -> bytes:
        return file.readline(min(limit, end - file.tell()))

    if file.tell() and number > 1:
        file.seek(-1, os.SEEK_CUR)
        file.readline()
    left = wanted.max_bytes
    while number < wanted.first + wanted.count and left > 0 and (head := read_line(_LINE_BYTES)):
        size, continued, piece = len(head), len(head) - len(head.translate(None, _CONTINUATION)), head
        ending = head[-2:]
        while not piece.endswith(b"\n") and (piece := read_line(CHUNK_BYTES)):
            size += len(piece)
            continued += len(piece) - len(piece.translate(None, _CONTINUATION))
            ending = (ending + piece)[-2:]
        if number >= wanted.first:
            size -= 2 if ending == b"\r\n" else ending.endswith(b"\n")
            text = _format_line(head[:size], size, size - continued, form)
            left -= len(text)
            yield number, text
        number += 1


def _format_line(head: bytes, size: int, characters: int, form: TextForm) -> str:
    """Decode the start of a line, cutting a long one and escaping invalid bytes."""
    encoding = "utf-8" if form.wide else form.encoding
    text = head.decode(encoding, "backslashreplace")
    if size == len(head) and len(text) <= LONGEST_LINE:
        return text
    kept = text[:LONGEST_LINE]
    if size == len(head):
        return f"{kept}… [+{len(text) - LONGEST_LINE:,} characters]"
    if encoding == "utf-8" and (form.wide or not form.damaged):
        return f"{kept}… [+{characters - LONGEST_LINE:,} characters]"
    return f"{kept}… [+{size - len(kept.encode(encoding, 'replace')):,} bytes]"


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
    facts: Mapping[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])


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
