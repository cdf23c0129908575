"""A regular expression as ripgrep reads it, written as Python reads it."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indusagi.capabilities.search.request import Search

_CLASSES = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\x0b\x0c\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
_PIECE = re.compile(
    r"\\x\{(?P<code>[0-9A-Fa-f]{1,6})\}"
    r"|\\(?P<escaped>.)"
    r"|\(\?<(?P<group>[A-Za-z_])"
    r"|\[:(?P<not>\^?)(?P<name>[a-z]+):\]",
    re.DOTALL,
)
_CONTEXT = re.compile(r"\(\?<?!|\(\?>|\\[AZzB]|[*+?}]\+")
"""What may not match in a whole file although it matches in a line of it."""


def python_regex(search: Search) -> re.Pattern[str]:
    """Compile the pattern of a search.

    Raises:
        re.error: Python does not understand it.
    """
    flags = re.MULTILINE
    if search.ignore_case:
        flags |= re.IGNORECASE
    if search.dot_all:
        flags |= re.DOTALL
    if search.literal:
        return re.compile(re.escape(search.pattern), flags)
    if search.extended:
        flags |= re.VERBOSE
    pattern = _PIECE.sub(_translated, search.pattern)
    with warnings.catch_warnings():
        # Sets in sets and what is done with them: Python would take them for plain characters.
        warnings.simplefilter("error", FutureWarning)
        try:
            return re.compile(pattern, flags)
        except FutureWarning as exc:
            raise re.error(f"{exc}, which needs ripgrep") from None


def holds_in_whole(search: Search) -> bool:
    """Tell whether what matches in a line is sure to match in the whole file."""
    return search.literal or not _CONTEXT.search(search.pattern)


def _translated(piece: re.Match[str]) -> str:
    if piece["code"]:
        code = int(piece["code"], 16)
        return re.escape(chr(code)) if code <= 0x10FFFF else piece[0]
    if piece["escaped"] == "z":
        return r"\Z"
    if piece["group"]:
        return f"(?P<{piece['group']}"
    if piece["name"] in _CLASSES:
        members = _CLASSES[piece["name"]]
        return _others(members) if piece["not"] else members
    return piece[0]


def _others(members: str) -> str:
    """Give what is in no set of these ASCII characters, as it is written in a set."""
    one = re.compile(f"[{members}]")
    ascii_ones = (chr(code) for code in range(0x80) if not one.match(chr(code)))
    return re.escape("".join(ascii_ones)) + r"\x80-\U0010ffff"
