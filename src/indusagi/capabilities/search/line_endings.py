r"""Line endings in a search pattern.

`\n` in a pattern matches both `\n` and `\r\n`; the rest of such a pattern treats the two as one character. A pattern
that contains `\r` matches that very character (ripgrep's `--crlf` is off then).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from indusagi.capabilities.search.request import Search

_ANY_ENDING = r"(?:\r?\n)"
_SPACES = {r"\s": r"(?:\r\n|[^\S\r])", r"\W": r"(?:\r\n|[^\w\r])", r"\D": r"(?:\r\n|[^\d\r])"}
"""Classes that match line endings among others; `\r\n` counts as one character of the class."""
_RETURNS = frozenset({"\r", r"\r"})
_EXTENDED = re.compile(r"\(\?[a-wyz]*x")
_SET = re.compile(r"\[(\^?)(.*)\]", re.DOTALL)
_PIECE = re.compile(
    # An unclosed set extends to the end, so that its end is searched for only once.
    r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.?|[^\\\]])*+(?:\]|\Z)"
    # A look-behind keeps its `\n`: engines without variable length could not compile the replacement.
    r"|\(\?<[=!]\\[ns]"
    r"|\\.|.",
    re.DOTALL,
)
_MEMBER = re.compile(r"\\.|.", re.DOTALL)


def has_carriage_return(search: Search) -> bool:
    """Tell whether the pattern names carriage returns, which then belong to their lines."""
    return any(piece in _RETURNS for piece in _split_pattern(search))


def accept_any_line_ending(search: Search) -> str | None:
    r"""Rewrite the pattern so that `\n` matches `\r\n` too; None where nothing has to change."""
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
        return piece  # a class in it may exclude line endings under another name
    guard = "\\" if members.startswith(("-", "]")) else ""
    without_return = rf"[^\r{guard}{members}]"
    return rf"(?:\r\n|{without_return})" if matches_ending else without_return


def _split_pattern(search: Search) -> Iterator[str]:
    """Split a pattern into characters, escapes and sets."""
    if search.literal:
        return iter(search.pattern)
    return (match[0] for match in _PIECE.finditer(search.pattern))
