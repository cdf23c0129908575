"""Search values: the query, the matches, and how to order paths and cut long lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

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

    Raises:
        TooManyAlternatives: The braces expand to more than 256 patterns.
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
# `\n` in a pattern matches both `\n` and `\r\n`, and the rest of such a pattern treats the two as one character. If a
# pattern contains `\r`, it matches just that character (we turn ripgrep's `--crlf` off).


_ANY_ENDING = r"(?:\r?\n)"
_SPACES = {r"\s": r"(?:\r\n|[^\S\r])", r"\W": r"(?:\r\n|[^\w\r])", r"\D": r"(?:\r\n|[^\d\r])"}
"""Classes that include line endings; `\r\n` counts as one character of the class."""
_RETURNS = frozenset({"\r", r"\r"})
_EXTENDED = re.compile(r"\(\?[a-wyz]*x")
_SET = re.compile(r"\[(\^?)(.*)\]", re.DOTALL)
_PIECE = re.compile(
    # An unclosed set extends to the end, so we only look for its end once.
    r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.?|[^\\\]])*+(?:\]|\Z)"
    # A look-behind keeps its `\n`: engines limited to fixed-length look-behinds couldn't compile the replacement.
    r"|\(\?<[=!]\\[ns]"
    r"|\\.|.",
    re.DOTALL,
)
_MEMBER = re.compile(r"\\.|.", re.DOTALL)


def has_carriage_return(search: Search) -> bool:
    """Return whether the pattern mentions carriage returns, which then belong to their lines."""
    return any(piece in _RETURNS for piece in _split_pattern(search))


def accept_any_line_ending(search: Search) -> str | None:
    r"""Rewrite the pattern so that `\n` also matches `\r\n`; None if there's nothing to change."""
    if has_carriage_return(search):
        return None
    if search.literal:
        lines = search.pattern.split("\n")
        return _ANY_ENDING.join(map(re.escape, lines)) if len(lines) > 1 else None
    extended = search.extended or _EXTENDED.match(search.pattern)
    endings = {r"\n"} if extended else {"\n", r"\n"}
    if endings.isdisjoint(_MEMBER.findall(search.pattern)):
        return None
    rewritten = "".join(_rewrite_piece(piece, endings) for piece in _split_pattern(search))
    return None if rewritten == search.pattern else rewritten


def _rewrite_piece(piece: str, endings: Set[str]) -> str:
    if piece in endings:
        return _ANY_ENDING
    match = _SET.fullmatch(piece)
    if match is None:
        return _SPACES.get(piece, piece)
    negation, members = match[1], match[2]
    names = _MEMBER.findall(members)
    if "[" in members or not _RETURNS.isdisjoint(names):
        return piece
    matches_ending = bool(negation) is endings.isdisjoint(names)
    if not negation:
        return rf"(?:\r\n|{piece})" if matches_ending else piece
    if matches_ending and "\\" in members:
        return piece  # a class inside it may exclude line endings under another name
    guard = "\\" if members.startswith(("-", "]")) else ""
    without_return = rf"[^\r{guard}{members}]"
    return rf"(?:\r\n|{without_return})" if matches_ending else without_return


def _split_pattern(search: Search) -> Iterator[str]:
    """Split a pattern into characters, escapes and sets."""
    if search.literal:
        return iter(search.pattern)
    return (match[0] for match in _PIECE.finditer(search.pattern))
