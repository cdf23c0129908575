"""Line numbers that came along when lines were copied from what `read` shows."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from indusagi.core.text import clean_text

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


def format_path(path: str) -> str:
    """Give a path on one line, without what nobody sees, with bytes that are no text spelt out."""
    if path.isascii() and path.isprintable():  # as most are
        return path
    try:
        text = os.fsencode(path).decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # no name of a file, but what somebody took for one
        text = path
    cleaned, unseen = clean_text(text.replace("\n", "\\n").replace("\t", "\\t"))
    return f"{cleaned} (hidden characters left out)" if unseen else cleaned


def join_path(base: str, path: str) -> str:
    """Put a path behind the one of the directory it lies in, which may be the current one."""
    return path if base == "." else os.path.join(base, path)


def format_path_below(resolved: str, root: str) -> str:
    """Give the name under which the user knows a path: relative where it lies in `root`."""
    if resolved == root:
        return "."
    return format_path(resolved.removeprefix(root.rstrip("/") + "/"))


DOCUMENTS = "install the extra `documents`: pip install 'indus-deck[documents]'"
"""What helps where a library for documents is missing."""


@dataclass(frozen=True, slots=True)
class ReadFailure:
    """Why it cannot be shown."""

    why: str
    """A sentence that goes on after the name of the file and a colon."""
    code: str
    """The same for programs."""
