"""Search values: the query, the matches, and how to order paths and cut long lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from indusagi.core.records import record

WINDOW_CHARS = 500
"""Longest part of a line to show, around the match."""
MAX_FILE_BYTES = 20 * 1024 * 1024
"""Skip larger files when searching a tree."""
_ELLIPSIS = "…"
_MAX_ALTERNATIVES = 256


class Mode(StrEnum):
    """The kind of result: lines, file names, or the number of matching lines per file."""

    CONTENT = "content"
    FILES = "files"
    COUNT = "count"


@record(kw_only=True)
class Search:
    """A search query."""

    pattern: str
    mode: Mode = Mode.CONTENT
    literal: bool = False
    ignore_case: bool = False
    extended: bool = False
    """Ignore whitespace and comments in the pattern (flag `x`)."""
    multiline: bool = False
    dot_all: bool = False
    """A dot also matches line ends (flag `s`)."""
    glob: str | None = None
    type: str | None = None
    before: int = 0
    after: int = 0
    no_ignore: bool = False
    secrets: Sequence[str] = ()
    """Paths to skip unconditionally."""


@record
class SearchLine:
    """One line of a result."""

    number: int
    text: str
    match: int | None = None
    """Index of its match within the file; None for a context line."""


@dataclass(slots=True)
class FileMatches:
    """The matches of one file."""

    path: str
    lines: list[SearchLine] = field(default_factory=list[SearchLine])
    matches: int = 0
    is_binary: bool = False


class TooManyAlternatives(ValueError):
    """The braces of a pattern expand to too many patterns."""


def expand_braces(glob: str) -> list[str]:
    """Expand `*.{ts,tsx}` into `*.ts` and `*.tsx`; an unclosed brace is an ordinary character.

    Raises `TooManyAlternatives` if the braces expand to more than 256 patterns.
    """
    done: list[str] = []
    waiting = [glob]
    while waiting:
        text = waiting.pop()
        # Find the first innermost pair of braces; a backslash escapes a brace.
        start, end, index = -1, -1, 0
        while index < len(text) and end < 0:
            if text[index] == "\\":
                index += 1
            elif text[index] == "{":
                start = index
            elif text[index] == "}" and start >= 0:
                end = index
            index += 1
        if end < 0:
            done.append(text)
        else:
            choices = reversed(text[start + 1 : end].split(","))
            waiting.extend(text[:start] + choice + text[end + 1 :] for choice in choices)
        if len(waiting) + len(done) > _MAX_ALTERNATIVES:
            raise TooManyAlternatives(f"stands for more than {_MAX_ALTERNATIVES} patterns")
    return list(dict.fromkeys(done))


def path_key(path: str) -> str:
    """Return a sort key for a path: by component, in the order of a walk."""
    # Names can't contain NUL, which sorts before everything else. A single string compares fast.
    return path.replace("/", "\0")


def cut_window(text: str, start: int, end: int) -> str:
    """Cut a long line down to `WINDOW_CHARS` around the match from `start` to `end`."""
    if len(text) <= WINDOW_CHARS:
        return text
    width = WINDOW_CHARS - 2 * len(_ELLIPSIS)
    middle = (start + min(end, start + width)) // 2
    begin = max(0, min(middle - width // 2, len(text) - width))
    before = _ELLIPSIS if begin else ""
    after = _ELLIPSIS if begin + width < len(text) else ""
    return f"{before}{text[begin : begin + width]}{after}"


# -- line endings -----------------------------------------------------------------------------
#
# `\n` in a pattern matches both `\n` and `\r\n`. If a pattern contains `\r`, it matches just that character (we turn
# ripgrep's `--crlf` off).


_ANY_ENDING = r"(?:\r?\n)"
_RETURNS = frozenset({"\r", r"\r"})
_EXTENDED = re.compile(r"\(\?[a-wyz]*x")
_PIECE = re.compile(
    # An unclosed set extends to the end, so we only look for its end once.
    r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.?|[^\\\]])*+(?:\]|\Z)"
    # A look-behind keeps its `\n`: engines limited to fixed-length look-behinds couldn't compile the replacement.
    r"|\(\?<[=!]\\[ns]"
    r"|\\.|.",
    re.DOTALL,
)


def has_carriage_return(search: Search) -> bool:
    """Return whether the pattern mentions carriage returns, which then belong to their lines."""
    return not _RETURNS.isdisjoint(_split_pattern(search))


def accept_any_line_ending(search: Search) -> str | None:
    r"""Rewrite the pattern so that `\n` also matches `\r\n`; None if there's nothing to change."""
    pieces = _split_pattern(search)
    # With the flag `x`, a line end in the pattern is white space.
    is_extended = search.extended or _EXTENDED.match(search.pattern)
    endings = {"\n"} if search.literal else {r"\n"} if is_extended else {"\n", r"\n"}
    if not any(ending in search.pattern for ending in endings) or not _RETURNS.isdisjoint(pieces):
        return None
    plain = map(re.escape, pieces) if search.literal else pieces
    return "".join(
        _ANY_ENDING if piece in endings else text if search.literal else _rewrite_set(text)
        for piece, text in zip(pieces, plain, strict=True)
    )


def _rewrite_set(piece: str) -> str:
    r"""Have a set with `\n` match `\r\n` too, and a negated set never match the first half of it."""
    if not piece.startswith("[") or "[" in piece[1:]:
        return piece
    if not piece.startswith("[^"):
        return rf"(?:\r\n|{piece})" if "\n" in piece or r"\n" in piece else piece
    guard = "\\" if piece.startswith(("[^-", "[^]")) else ""
    return rf"[^\r{guard}{piece[2:]}"


def _split_pattern(search: Search) -> Sequence[str]:
    """Split a pattern into characters, escapes and sets."""
    return [*search.pattern] if search.literal else [match[0] for match in _PIECE.finditer(search.pattern)]
