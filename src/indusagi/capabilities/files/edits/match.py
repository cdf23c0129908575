"""Where a text that is to be replaced stands in a file: exactly, or but for what nobody sees.

A ladder of comparisons, each of which ignores one more thing: line endings, whitespace at the end
of a line, indentation, the look of punctuation. The first that finds something decides. Nothing is
ever found because it is similar: letters, blank lines and the ends of lines must agree. Each step
takes time linear in the file.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import TYPE_CHECKING

from indusagi.capabilities.files.edits.indent import reindented, unit_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

MOST_SPANS = 100
"""Places that are told apart when one is wanted; more are not looked for."""
BLANKS = " \t\r\f\v"
"""What may stand at either end of a line without being seen."""


class Rung(StrEnum):
    """What was ignored, in the order of trying; the value is how it is told."""

    EXACT = "exact"
    ENDINGS = "line endings"
    TRAILING = "trailing whitespace"
    INDENT = "indentation"
    PUNCTUATION = "punctuation"


@dataclass(frozen=True, slots=True)
class Span:
    """One place, as offsets into the text."""

    start: int
    end: int
    lines: tuple[str, ...] | None = None
    """The lines to put there, where their indentation had to be fitted to the place."""


@dataclass(frozen=True, slots=True)
class Found:
    """Where the old text stands, in order; places may overlap unless all are to be replaced."""

    rung: Rung
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True)
class Missed:
    """Nothing was found; `lines` are where only an indentation without a rule stood against it."""

    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is looked for, and how."""

    old: str
    new: str
    every: bool
    old_lines: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "old_lines", tuple(self.old.split("\n")))


def plain_endings(text: str) -> str:
    """Give a text with LF for CRLF."""
    return text.replace("\r\n", "\n")


def find(text: str, old: str, new: str, *, every: bool = False) -> Found | Missed:
    """Find where `old` stands in `text`.

    Args:
        text: All of a file.
        old: What is looked for; not empty.
        new: What is to stand there instead: its lines must be given an indentation, too.
        every: Places are to be replaced all at once, and so must not overlap.
    """
    found = _exact(text, old, new, every=every)
    if found:
        return Found(Rung.EXACT, found)
    seen, old, new = text, plain_endings(old), plain_endings(new)
    if "\n" not in text:
        # A file of the old Mac kind: its only line ending is one that no model writes.
        seen, old, new = (each.replace("\r", "\n") for each in (text, old, new))
    wanted = _Wanted(old, new, every)
    found, rung, near = _without_looks(seen, wanted)
    if found:
        return Found(rung, found)
    if text.isascii() and old.isascii():
        return Missed(near)
    folded = _Wanted(_folded(wanted.old), wanted.new, every)
    # Letter for letter, so that an offset into one is an offset into the other.
    found, _, folded_near = _without_looks(_folded(seen), folded)
    return Found(Rung.PUNCTUATION, found) if found else Missed(near or folded_near)


def _without_looks(text: str, wanted: _Wanted) -> tuple[tuple[Span, ...], Rung, tuple[int, ...]]:
    """Try the steps that ignore whitespace; the lines are those that indentation forbade."""
    near: tuple[int, ...] = ()
    pieces = text.split("\n")
    found = _joined(pieces, wanted, lambda line: line.removesuffix("\r"))
    if found:
        return found, Rung.ENDINGS, near
    if not wanted.old.strip():
        return (), Rung.EXACT, near  # of blanks alone nothing would be left to compare
    found = _joined(pieces, wanted, lambda line: line.rstrip(BLANKS))
    if found:
        return found, Rung.TRAILING, near
    found, near = _shifted(pieces, wanted)
    return found, Rung.INDENT, near


def _exact(text: str, old: str, new: str, *, every: bool) -> tuple[Span, ...]:
    starts = _occurrences(text, old, len(old) if every else 1, every=every)
    # Half a line ending is not what anybody means.
    if old.startswith("\n") and any(text[at - 1 : at] == "\r" for at in starts):
        return ()
    if loses_return(old, new) and any(text.startswith("\n", at + len(old)) for at in starts):
        return ()
    return tuple(Span(at, at + len(old)) for at in starts)


def loses_return(old: str, new: str) -> bool:
    """Tell whether a carriage return at the end would go, though it is not all that is to go."""
    return old.endswith("\r") and old != "\r" and not new.endswith("\r")


def _occurrences(text: str, wanted: str, step: int, *, every: bool) -> list[int]:
    """Find a text at each place; one who wants a single place sees those that overlap, too."""
    found: list[int] = []
    at = text.find(wanted)
    while at >= 0 and (every or len(found) < MOST_SPANS):
        found.append(at)
        at = text.find(wanted, at + step)
    return found


def _joined(pieces: Sequence[str], wanted: _Wanted, key: Callable[[str], str]) -> tuple[Span, ...]:
    """Find the old text where both are compared by what `key` leaves of each line."""
    keys = [key(piece) for piece in pieces]
    old_keys = [key(line) for line in wanted.old_lines]
    needle = "\n".join(old_keys)
    if not needle:
        return ()  # a return alone: nothing is left of it to look for
    # Whoever quotes the last line of a file cannot see whether it is ended. Where another is, that
    # one is meant.
    unended = "\n" if needle.endswith("\n") and needle.strip() and pieces[-1] else ""
    key_starts = _starts(keys)
    starts = _starts(pieces)
    step = len(needle) if wanted.every else 1
    # Blanks at the very end of the old text are trailing ones only where a line ends, and a blank
    # first line is one only where a line begins.
    whole_end = wanted.old_lines[-1] != old_keys[-1]
    blank_start = bool(wanted.old_lines[0]) and not old_keys[0]
    spans: list[Span] = []
    joined = "\n".join(keys)
    for at in _occurrences(joined + unended, needle, step, every=wanted.every):
        if spans and at + len(needle) > len(joined):
            break
        first = bisect_right(key_starts, at) - 1
        begin = at - key_starts[first]
        last = bisect_right(key_starts, at + len(needle)) - 1
        end = at + len(needle) - key_starts[last]
        if (whole_end and end != len(keys[last])) or (blank_start and begin):
            continue
        if begin == len(keys[first]) and not blank_start:
            begin = len(pieces[first].removesuffix("\r"))
        if whole_end or end > len(keys[last]):
            end = len(pieces[last].removesuffix("\r"))
        spans.append(Span(starts[first] + begin, starts[last] + end))
    return tuple(spans)


def _shifted(pieces: Sequence[str], wanted: _Wanted) -> tuple[tuple[Span, ...], tuple[int, ...]]:
    """Find whole lines that agree but for their indentation, where one rule explains all of it."""
    ended = wanted.old.endswith("\n")
    old_lines = wanted.old_lines[:-1] if ended else wanted.old_lines
    lines = pieces[:-1] if not pieces[-1] else pieces
    keys = [line.strip(BLANKS) for line in lines]
    needle = "\n".join(("", *(line.strip(BLANKS) for line in old_lines), ""))
    key_starts = _starts(keys)
    starts = _starts(pieces)
    step = len(needle) - 1 if wanted.every else 1
    new_lines = wanted.new.split("\n")
    spans: list[Span] = []
    near: list[int] = []
    unit: str | None = None
    for at in _occurrences("\n" + "\n".join(keys) + "\n", needle, step, every=wanted.every):
        first = bisect_right(key_starts, at) - 1
        past = first + len(old_lines)
        unit = unit_of(lines) if unit is None else unit
        fitted = reindented(old_lines, lines[first:past], new_lines, unit)
        if fitted is None:
            near.append(first + 1)
            continue
        end = starts[past - 1] + len(lines[past - 1].removesuffix("\r"))
        if ended:
            end = starts[past] if past < len(starts) else starts[past - 1] + len(lines[past - 1])
        spans.append(Span(starts[first], end, tuple(fitted)))
    return tuple(spans), tuple(near)


def _starts(lines: Sequence[str]) -> list[int]:
    return list(accumulate((len(line) + 1 for line in lines), initial=0))[:-1]


_LOOKS = {
    "'": "\u2018\u2019\u201a\u201b\u2032\u02bc\uff07",
    '"': "\u201c\u201d\u201e\u201f\u2033\uff02",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d",
    " ": "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000",
}
"""Quotation marks, dashes and spaces that look like a plain one; each is one character, too."""


def _folded(text: str) -> str:
    """Put the plain one for each that looks like it; many times as fast as `str.translate`."""
    for plain, looks in _LOOKS.items():
        for look in looks:
            text = text.replace(look, plain)
    return text
