"""Line numbers that came along when lines were copied from what `read` shows."""

from __future__ import annotations

import re

_NUMBERED = re.compile(r" *([0-9]{1,12})\t")


def without_gutter(text: str) -> str | None:
    """Take the numbers away, if every line has one and they count on; None otherwise."""
    lines = text.split("\n")
    ended = not lines[-1]
    if ended:
        lines.pop()
    marks = [_NUMBERED.match(line) for line in lines]
    numbers = [int(mark.group(1)) for mark in marks if mark]
    first = numbers[0] if numbers else 0
    if not lines or numbers != list(range(first, first + len(lines))):
        return None
    bare = [line[mark.end() :] for line, mark in zip(lines, marks, strict=True) if mark]
    return "\n".join(bare) + ("\n" if ended else "")


def has_gutter(text: str) -> bool:
    """Tell whether any line begins with a number as `read` writes it."""
    return any(_NUMBERED.match(line) for line in text.split("\n"))
