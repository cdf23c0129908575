"""Patterns for paths, as git has them, turned into regular expressions that cannot run wild."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SPECIAL = re.compile(rb"[*?\[\\]")
"""What makes a pattern more than a plain name."""
_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb" \t\n\r\x0b\x0c",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}


class _Hopeless(Exception):
    """A pattern that matches nothing: a class that is not closed, or has no such name."""


_STAR, _DIRECTORIES, _ANYTHING = rb"[^/]*", rb"(?:[^/]*/)*", rb".*"


def glob_regex(glob: bytes) -> re.Pattern[bytes] | None:
    """Compile a pattern of git's for a path; None if it can match nothing.

    `*` and `?` stay inside a name, `**` stands for any directories. What stands between two stars,
    or between two double ones, is taken where it is found first, and for good: a later place could
    only leave less to match. Without that, a pattern of many stars would take time without end.
    """
    special = SPECIAL.search(glob)
    start = special.start() if special else len(glob)
    # As git does it, which takes a double star for one right after the plain beginning as well.
    regex, group = bytearray(re.escape(glob[:start])), bytearray()
    try:
        parts = list(_parts(glob[start:]))
    except _Hopeless:
        return None
    for at, (star, text) in enumerate(parts):
        following = parts[at + 1][0] if at + 1 < len(parts) else b""
        if star == _DIRECTORIES:
            regex += b"(?>%s)" % group if group.startswith(_DIRECTORIES) else group
            group = bytearray(
                _DIRECTORIES + (b"?" if _DIRECTORIES in _stars(parts, at + 1) else b"")
            )
            group += text
        elif star == _STAR and following == _STAR:
            group += b"(?>%s?%s)" % (star, text)
        else:
            group += star + text
    return re.compile(bytes(regex + group) + rb"\Z", re.DOTALL)


def _stars(parts: list[tuple[bytes, bytes]], start: int) -> set[bytes]:
    return {star for star, _ in parts[start:]}


def _parts(glob: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Cut a pattern before its stars: what each of them may be, and the text after it."""
    star, text, at = b"", bytearray(), 0
    while at < len(glob):
        if glob[at] == ord("*"):
            yield star, bytes(text)
            star, at = _star(glob, at)
            text.clear()
        else:
            piece, at = _single(glob, at)
            text += piece
    yield star, bytes(text)


def _star(glob: bytes, at: int) -> tuple[bytes, int]:
    end = at
    while glob[end : end + 1] == b"*":
        end += 1
    is_whole = end - at > 1 and (at == 0 or glob[at - 1 : at] == b"/")
    if is_whole and end == len(glob):
        return _ANYTHING, end
    if is_whole and glob[end : end + 1] == b"/":
        return _DIRECTORIES, end + 1
    return _STAR, end


def _single(glob: bytes, at: int) -> tuple[bytes, int]:
    """Translate what stands for one character."""
    char = glob[at : at + 1]
    if char == b"?":
        return b"[^/]", at + 1
    if char == b"[":
        return _bracket(glob, at + 1)
    if char == b"\\":
        at += 1
        char = glob[at : at + 1]
        if not char:
            raise _Hopeless
    return re.escape(char), at + 1


def _bracket(glob: bytes, at: int) -> tuple[bytes, int]:
    negated = glob[at : at + 1] in {b"!", b"^"}
    at += negated
    members = bytearray()
    previous: int | None = None
    first = True
    while first or glob[at : at + 1] != b"]":
        first = False
        if at >= len(glob):
            raise _Hopeless
        at, previous = _member(glob, at, previous, members)
    # A slash is never inside a name, whatever a class says of it.
    return b"(?!/)[%s%s]" % (b"^" if negated else b"", bytes(members) or b"/"), at + 1


def _member(
    glob: bytes, at: int, previous: int | None, members: bytearray
) -> tuple[int, int | None]:
    """Add a character, a range or a named class.

    What is returned is where the next one starts, and the character that may open a range.
    """
    if glob[at] == ord("-") and previous and glob[at + 1 : at + 2] not in {b"", b"]"}:
        at, last = _plain(glob, at + 1)
        if last >= previous:
            members += b"\\x%02x-\\x%02x" % (previous, last)
        return at, None
    if glob[at : at + 2] == b"[:":
        end = glob.find(b"]", at + 2)
        if end < 0:
            raise _Hopeless
        if end > at + 2 and glob[end - 1] == ord(":"):
            members += _named(glob[at + 2 : end - 1])
            return end + 1, None
    at, char = _plain(glob, at)
    members += b"\\x%02x" % char
    return at, char


def _plain(glob: bytes, at: int) -> tuple[int, int]:
    at += glob[at] == ord("\\")
    if at >= len(glob):
        raise _Hopeless
    return at + 1, glob[at]


def _named(name: bytes) -> bytes:
    try:
        return _CLASSES[name]
    except KeyError:
        raise _Hopeless from None
