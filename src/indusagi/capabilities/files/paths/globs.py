"""Glob patterns of git (https://git-scm.com/docs/gitignore#_pattern_format) as regular expressions of linear cost."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SPECIAL = re.compile(r"[*?\[\\]")
"""A character that makes a pattern more than a plain name."""
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


class _InvalidGlob(Exception):
    """A pattern that matches nothing: a class is not closed, or its name is unknown."""


_STAR, _DIRECTORIES, _ANYTHING = r"[^/]*", r"(?:[^/]*/)*", r".*"


def compile_glob(glob: str) -> re.Pattern[str] | None:
    """Compile a glob for a path; None if it matches nothing.

    `*` and `?` stay inside a name, `**` stands for any directories. The text between two stars, or between two double
    stars, matches at its first place only (an atomic group): a later place could only leave less to match. Without
    that, a pattern of many stars would take exponential time.
    """
    special = SPECIAL.search(glob)
    start = special.start() if special else len(glob)
    # Like git, a double star is recognised right after the plain start too.
    regex, group = re.escape(glob[:start]), ""
    try:
        parts = list(_split_at_stars(glob[start:]))
    except _InvalidGlob:
        return None
    doubles = [position for position, (star, _) in enumerate(parts) if star == _DIRECTORIES]
    for position, (star, text) in enumerate(parts):
        if star == _DIRECTORIES:
            regex += f"(?>{group})" if position > doubles[0] else group
            group = f"{star}{'?' if position < doubles[-1] else ''}{text}"
        elif star == _STAR and parts[position + 1 : position + 2] and parts[position + 1][0] == _STAR:
            group += f"(?>{star}?{text})"
        else:
            group += star + text
    return re.compile(regex + group + r"\Z", re.DOTALL)


def _split_at_stars(glob: str) -> Iterator[tuple[str, str]]:
    """Split a pattern before its stars: the regular expression of each star, and the text after it."""
    star, text, position = "", "", 0
    while position < len(glob):
        if glob[position] == "*":
            yield star, text
            end = position
            while glob[end : end + 1] == "*":
                end += 1
            is_whole = end - position > 1 and (position == 0 or glob[position - 1] == "/")
            if is_whole and end == len(glob):
                star = _ANYTHING
            elif is_whole and glob[end] == "/":
                star, end = _DIRECTORIES, end + 1
            else:
                star = _STAR
            position, text = end, ""
        elif glob[position] == "?":
            text, position = f"{text}[^/]", position + 1
        elif glob[position] == "[":
            piece, position = _translate_class(glob, position + 1)
            text += piece
        else:
            position, char = _read_character(glob, position)
            text += re.escape(char)
    yield star, text


def _translate_class(glob: str, position: int) -> tuple[str, int]:
    negated = glob[position : position + 1] in {"!", "^"}
    position += negated
    members: list[str] = []
    previous = ""
    first = True
    while first or glob[position : position + 1] != "]":
        first = False
        if position >= len(glob):
            raise _InvalidGlob
        position, previous = _add_member(glob, position, previous, members)
    # A class never matches a slash.
    return f"(?!/)[{'^' if negated else ''}{''.join(members)}]", position + 1


def _add_member(glob: str, position: int, previous: str, members: list[str]) -> tuple[int, str]:
    """Add a character, a range or a named class; return the next position, and the character that may open a range."""
    if glob[position] == "-" and previous and glob[position + 1 : position + 2] not in {"", "]"}:
        position, last = _read_character(glob, position + 1)
        if last >= previous:
            members.append(f"{re.escape(previous)}-{re.escape(last)}")
        return position, ""
    if glob[position : position + 2] == "[:":
        end = glob.find("]", position + 2)
        if end < 0:
            raise _InvalidGlob
        if end > position + 2 and glob[end - 1] == ":":
            name = glob[position + 2 : end - 1]
            if name not in _CLASSES:
                raise _InvalidGlob
            members.append(_CLASSES[name])
            return end + 1, ""
    position, char = _read_character(glob, position)
    members.append(re.escape(char))
    return position, char


def _read_character(glob: str, position: int) -> tuple[int, str]:
    position += glob[position] == "\\"
    if position >= len(glob):
        raise _InvalidGlob
    return position + 1, glob[position]
