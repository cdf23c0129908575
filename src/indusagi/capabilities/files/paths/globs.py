"""Patterns for paths, as git has them, turned into regular expressions that cannot run wild."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SPECIAL = re.compile(r"[*?\[\\]")
"""What makes a pattern more than a plain name."""
_CLASSES = {
    "alnum": r"0-9A-Za-z",
    "alpha": r"A-Za-z",
    "blank": r" \t",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": r"0-9",
    "graph": r"!-~",
    "lower": r"a-z",
    "print": r" -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r" \t\n\r\x0b\x0c",
    "upper": r"A-Z",
    "xdigit": r"0-9A-Fa-f",
}


class _Hopeless(Exception):
    """A pattern that matches nothing: a class that is not closed, or has no such name."""


_STAR, _DIRECTORIES, _ANYTHING = r"[^/]*", r"(?:[^/]*/)*", r".*"


def compile_glob(glob: str) -> re.Pattern[str] | None:
    """Compile a pattern of git's for a path; None if it can match nothing.

    `*` and `?` stay inside a name, `**` stands for any directories. What stands between two stars,
    or between two double ones, is taken where it is found first, and for good: a later place could
    only leave less to match. Without that, a pattern of many stars would take time without end.
    """
    special = SPECIAL.search(glob)
    start = special.start() if special else len(glob)
    # As git does it, which takes a double star for one right after the plain beginning as well.
    regex, group = re.escape(glob[:start]), ""
    try:
        parts = list(_parts(glob[start:]))
    except _Hopeless:
        return None
    doubles = [at for at, (star, _) in enumerate(parts) if star == _DIRECTORIES]
    for at, (star, text) in enumerate(parts):
        if star == _DIRECTORIES:
            regex += f"(?>{group})" if at > doubles[0] else group
            group = f"{star}{'?' if at < doubles[-1] else ''}{text}"
        elif star == _STAR and parts[at + 1 : at + 2] and parts[at + 1][0] == _STAR:
            group += f"(?>{star}?{text})"
        else:
            group += star + text
    return re.compile(regex + group + r"\Z", re.DOTALL)


def _parts(glob: str) -> Iterator[tuple[str, str]]:
    """Cut a pattern before its stars: what each of them may be, and the text after it."""
    star, text, at = "", "", 0
    while at < len(glob):
        if glob[at] == "*":
            yield star, text
            star, at = _star(glob, at)
            text = ""
        else:
            piece, at = _single(glob, at)
            text += piece
    yield star, text


def _star(glob: str, at: int) -> tuple[str, int]:
    end = at
    while glob[end : end + 1] == "*":
        end += 1
    is_whole = end - at > 1 and (at == 0 or glob[at - 1 : at] == "/")
    if is_whole and end == len(glob):
        return _ANYTHING, end
    if is_whole and glob[end : end + 1] == "/":
        return _DIRECTORIES, end + 1
    return _STAR, end


def _single(glob: str, at: int) -> tuple[str, int]:
    """Translate what stands for one character."""
    char = glob[at : at + 1]
    if char == "?":
        return "[^/]", at + 1
    if char == "[":
        return _bracket(glob, at + 1)
    if char == "\\":
        at += 1
        char = glob[at : at + 1]
        if not char:
            raise _Hopeless
    return re.escape(char), at + 1


def _bracket(glob: str, at: int) -> tuple[str, int]:
    negated = glob[at : at + 1] in {"!", "^"}
    at += negated
    members: list[str] = []
    previous = ""
    first = True
    while first or glob[at : at + 1] != "]":
        first = False
        if at >= len(glob):
            raise _Hopeless
        at, previous = _member(glob, at, previous, members)
    # A slash is never inside a name, whatever a class says of it.
    return f"(?!/)[{'^' if negated else ''}{''.join(members)}]", at + 1


def _member(glob: str, at: int, previous: str, members: list[str]) -> tuple[int, str]:
    """Add a character, a range or a named class.

    What is returned is where the next one starts, and the character that may open a range.
    """
    if glob[at] == "-" and previous and glob[at + 1 : at + 2] not in {"", "]"}:
        at, last = _plain(glob, at + 1)
        if last >= previous:
            members.append(f"{re.escape(previous)}-{re.escape(last)}")
        return at, ""
    if glob[at : at + 2] == "[:":
        end = glob.find("]", at + 2)
        if end < 0:
            raise _Hopeless
        if end > at + 2 and glob[end - 1] == ":":
            members.append(_named(glob[at + 2 : end - 1]))
            return end + 1, ""
    at, char = _plain(glob, at)
    members.append(re.escape(char))
    return at, char


def _plain(glob: str, at: int) -> tuple[int, str]:
    at += glob[at] == "\\"
    if at >= len(glob):
        raise _Hopeless
    return at + 1, glob[at]


def _named(name: str) -> str:
    try:
        return _CLASSES[name]
    except KeyError:
        raise _Hopeless from None
