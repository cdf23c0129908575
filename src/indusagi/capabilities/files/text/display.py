"""Names and texts as a model sees them: paths, line numbers, invisible characters.

The content of a file is never altered to be shown: invisible characters in it are reported beside it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.core.text import clean_text, find_invisible_kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
