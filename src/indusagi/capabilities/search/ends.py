r"""Ends of lines in a pattern.

Whoever writes `\n` means the end of a line, also of one that has a carriage return before it.
Whoever writes `\r` means that very character.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from indusagi.capabilities.search.request import Search

_ANY_END = r"(?:\r?\n)"
_EXTENDED = re.compile(r"\(\?[a-wyz]*x")
_PIECE = re.compile(
    r"\[\^?\]?(?:\[:\^?[a-z]+:\]|\\.|[^\\\]])*\]"  # of a set, one character is taken
    r"|\\.|.",
    re.DOTALL,
)


def names_return(search: Search) -> bool:
    """Tell whether a pattern speaks of carriage returns, which are then part of their lines."""
    return any(piece in {"\r", r"\r"} for piece in _pieces(search))


def with_any_end(search: Search) -> str | None:
    """Write a pattern such that its ends of lines are those of any file; None if it has none."""
    extended = search.extended or _EXTENDED.match(search.pattern)
    ends = {r"\n"} if extended and not search.literal else {"\n", r"\n"}
    pieces = list(_pieces(search))
    if ends.isdisjoint(pieces) or names_return(search):
        return None
    plain = re.escape if search.literal else str
    return "".join(_ANY_END if piece in ends else plain(piece) for piece in pieces)


def _pieces(search: Search) -> Iterator[str]:
    """Take a pattern apart: characters, escapes and sets."""
    if search.literal:
        return iter(search.pattern)
    return (found[0] for found in _PIECE.finditer(search.pattern))
