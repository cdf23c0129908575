r"""Ends of lines in a pattern.

Whoever writes `\n` means the end of a line, also of one that has a carriage return before it: to
the rest of such a pattern, too, the two are one. Whoever writes `\r` means that very character.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Set

    from indusagi.capabilities.search.request import Search

_ANY_END = r"(?:\r?\n)"
_SPACES = {r"\s": r"(?:\r\n|[^\S\r])", r"\W": r"(?:\r\n|[^\w\r])", r"\D": r"(?:\r\n|[^\d\r])"}
"""What takes ends of lines among others: a return without its newline it would take for itself."""
_RETURNS = frozenset({"\r", r"\r"})
_EXTENDED = re.compile(r"\(\?[a-wyz]*x")
_SET = re.compile(r"\[(\^?)(.*)\]", re.DOTALL)
_PIECE = re.compile(
    # What is not closed goes on to the end, so that nobody looks for its end time and again.
    r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.?|[^\\\]])*+(?:\]|\Z)"
    # Seen from behind, any end of a line is a newline; a length that varies not all can look at.
    r"|\(\?<[=!]\\[ns]"
    r"|\\.|.",
    re.DOTALL,
)
_MEMBER = re.compile(r"\\.|.", re.DOTALL)


def names_return(search: Search) -> bool:
    """Tell whether a pattern speaks of carriage returns, which are then part of their lines."""
    return any(piece in _RETURNS for piece in _pieces(search))


def with_any_end(search: Search) -> str | None:
    """Write a pattern such that its ends of lines are those of any file; None if it has none."""
    if names_return(search):
        return None
    if search.literal:
        lines = search.pattern.split("\n")
        return _ANY_END.join(map(re.escape, lines)) if len(lines) > 1 else None
    extended = search.extended or _EXTENDED.match(search.pattern)
    ends = {r"\n"} if extended else {"\n", r"\n"}
    if ends.isdisjoint(_MEMBER.findall(search.pattern)):
        return None
    fitted = "".join(_fitted(piece, ends) for piece in _pieces(search))
    return None if fitted == search.pattern else fitted


def _fitted(piece: str, ends: Set[str]) -> str:
    if piece in ends:
        return _ANY_END
    found = _SET.fullmatch(piece)
    return _SPACES.get(piece, piece) if found is None else _fitted_set(found, ends)


def _fitted_set(found: re.Match[str], ends: Set[str]) -> str:
    """Let a set take an end of a line as a whole, or not at all; one that is not plain stays."""
    piece, negation, members = found[0], found[1], found[2]
    named = _MEMBER.findall(members)
    if "[" in members or not _RETURNS.isdisjoint(named):
        return piece
    takes_end = bool(negation) is ends.isdisjoint(named)
    if not negation:
        return rf"(?:\r\n|{piece})" if takes_end else piece
    if takes_end and "\\" in members:
        return piece  # it may leave out ends of lines under another name
    guard = "\\" if members.startswith(("-", "]")) else ""
    without = rf"[^\r{guard}{members}]"
    return rf"(?:\r\n|{without})" if takes_end else without


def _pieces(search: Search) -> Iterator[str]:
    """Take a pattern apart: characters, escapes and sets."""
    if search.literal:
        return iter(search.pattern)
    return (found[0] for found in _PIECE.finditer(search.pattern))
