"""Putting new text in the place of old: what was not named stays as it was, letter for letter.

Lines that are the same in the old text and in the new one are taken from the file, so that what the
comparison ignored (a line ending, a trailing blank, a curly quotation mark) survives. A new line
ends the way the lines around it end.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from indusagi.capabilities.files.edits.match import Rung, loses_return, plain_endings
from indusagi.core.text import common_end, common_start

if TYPE_CHECKING:
    from collections.abc import Sequence

from indusagi.capabilities.files.edits.match import Found, Span

_ENDINGS = re.compile(r"\r\n|\n")
_OLD_MAC_ENDINGS = re.compile(r"\r")


def splice(text: str, found: Found, old: str, new: str) -> str:
    """Replace what was found; the places are in order and do not overlap."""
    parts: list[str] = []
    at = 0
    for span in found.spans:
        parts.extend((text[at : span.start], _fitted(text, span, found.rung, old, new)))
        at = span.end
    parts.append(text[at:])
    return "".join(parts)


def same_everywhere(text: str, old: str, new: str) -> str | None:
    """Tell what takes the place of `old` wherever it stands; None where line endings differ."""
    if loses_return(old, new):
        return None
    if "\n" not in old and "\n" not in new:
        return new
    plain = plain_endings(new)
    if "\r" in text or "\r" in plain:
        return None
    return new if old == plain else plain


def _fitted(text: str, span: Span, rung: Rung, old: str, new: str) -> str:
    if rung is Rung.EXACT and "\n" not in old and "\n" not in new:
        return new
    old, plain = plain_endings(old), plain_endings(new)
    there = text[span.start : span.end]
    if old == plain:
        # Nothing but line endings was to change, so they are meant as they are given.
        return new if rung is Rung.EXACT else there
    ends = _ENDINGS if "\n" in text else _OLD_MAC_ENDINGS
    if ends is _OLD_MAC_ENDINGS:
        old, plain = old.replace("\r", "\n"), plain.replace("\r", "\n")
    contents, endings = ends.split(there), ends.findall(there)
    old_lines, new_lines = old.split("\n"), plain.split("\n")
    fitted = list(span.lines or new_lines)
    if len(old_lines) > len(contents):
        # The last line of the file is not ended, and what takes its place is not either.
        old_lines.pop()
        if not new_lines[-1]:
            new_lines.pop()
            fitted.pop()
    kept = _Kept(contents, endings, old_lines, new_lines)
    return kept.lines(fitted, _ending_near(text, span, ends))


class _Kept:
    """What of a place in a file stays when its lines are replaced."""

    def __init__(
        self, contents: Sequence[str], endings: Sequence[str], old_lines: Sequence[str], new_lines: Sequence[str]
    ) -> None:
        self._contents = contents
        self._endings = endings
        self._old = old_lines
        self._new = new_lines
        shorter = min(len(old_lines), len(new_lines))
        self._head = _common(old_lines, new_lines, shorter)
        self._tail = _common(old_lines[::-1], new_lines[::-1], shorter - self._head)

    def lines(self, fitted: Sequence[str], ending: str) -> str:
        """Put lines together; `ending` is for those that have none to take after."""
        parts: list[str] = []
        for at, line in enumerate(fitted):
            parts.append(self._content(at, line))
            if at + 1 < len(fitted):
                parts.append(self._ending(at) or ending)
        return "".join(parts)

    def _content(self, at: int, fitted: str) -> str:
        from_end = len(self._new) - at
        if at < self._head:
            return self._contents[at]
        if from_end <= self._tail:
            return self._contents[-from_end]
        if len(self._old) == len(self._new):
            return _letters_kept(self._contents[at], self._old[at], fitted)
        return fitted

    def _ending(self, at: int) -> str:
        """Give the ending of the line whose place this one takes; nothing if there is none."""
        if not self._endings:
            return ""
        from_end = len(self._new) - at - 1
        if from_end <= self._tail and from_end <= len(self._endings):
            return self._endings[-from_end]
        return self._endings[min(at, len(self._endings) - 1)]


def _letters_kept(content: str, old: str, new: str) -> str:
    """Change in a line only what differs between the old and the new one."""
    if len(content) != len(old):
        return new
    head = common_start(old, new)
    tail = common_end(old, new, head)
    return content[:head] + new[head : len(new) - tail] + content[len(content) - tail :]


def _common(one: Sequence[str], other: Sequence[str], most: int) -> int:
    """Count how many items two sequences have in common from their start."""
    for at in range(most):
        if one[at] != other[at]:
            return at
    return most


def _ending_near(text: str, span: Span, ends: re.Pattern[str]) -> str:
    """Give the ending of the line that a place lies in, or of the line before it."""
    after = ends.search(text, span.end)
    if after:
        return after.group()
    start = max(text.rfind("\n", 0, span.start), text.rfind("\r", 0, span.start))
    before = ends.search(text, max(0, start - 1), span.start)
    return before.group() if before else "\n"
