"""What is searched for, and what was found: the words that both engines and the tool share."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW_CHARS = 500
"""The most that is shown of a line: the part around what was found."""
MAX_FILE_BYTES = 20 * 1024 * 1024
"""Larger files are left out of the search of a tree."""
_ELLIPSIS = "…"


class Mode(StrEnum):
    """What a search gives: lines, the names of files, or the number of lines in each."""

    CONTENT = "content"
    FILES = "files"
    COUNT = "count"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One search, as an engine takes it."""

    pattern: str
    mode: Mode = Mode.CONTENT
    literal: bool = False
    ignore_case: bool = False
    extended: bool = False
    """Space and comments in the pattern mean nothing."""
    multiline: bool = False
    """What is found may reach over several lines."""
    dot_all: bool = False
    """A dot stands for the end of a line too."""
    glob: str | None = None
    type: str | None = None
    before: int = 0
    after: int = 0
    no_ignore: bool = False
    secrets: Sequence[str] = ()
    """Paths that are not looked into, whatever else is said."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line to show."""

    number: int
    text: str
    match: int | None = None
    """The match in its file that it is of, counted from 0; None if it stands beside one."""


@dataclass(slots=True)
class FileHits:
    """What was found in one file."""

    path: str
    lines: list[Line] = field(default_factory=list[Line])
    matches: int = 0
    is_binary: bool = False


def path_key(path: str) -> str:
    """Give what paths are sorted by: name by name, as a walk through directories meets them."""
    # No name holds a NUL, which comes before every other character: one text, quickly compared.
    return path.replace("/", "\0")


def window(text: str, start: int, end: int) -> str:
    """Cut a long line down to the part around what was found in it, from `start` to `end`."""
    if len(text) <= WINDOW_CHARS:
        return text
    width = WINDOW_CHARS - 2 * len(_ELLIPSIS)
    middle = (start + min(end, start + width)) // 2
    begin = max(0, min(middle - width // 2, len(text) - width))
    before = _ELLIPSIS if begin else ""
    after = _ELLIPSIS if begin + width < len(text) else ""
    return f"{before}{text[begin : begin + width]}{after}"
