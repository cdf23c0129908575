"""Lines of a file as a model is shown them: numbered, each cut to a length, nothing hidden.

What was changed is shown with the lines around it, so that the model sees where it landed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from indusagi.capabilities.files.edits.diff import CONTEXT_LINES
from indusagi.core.text import INVISIBLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.capabilities.files.edits.diff import LineDiff

MOST_LINES = 60
"""Lines of an excerpt: enough to see that a change is right; for more there is `read`."""
LONGEST_LINE = 300
_NO_LETTER = re.compile("[\ud800-\udfff]")
_UNSEEN = re.compile(f"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000{INVISIBLE}]")


def showable(text: str) -> str:
    """Put a replacement for what is no character: bytes of a file that are not in its encoding."""
    return _NO_LETTER.sub("\ufffd", text)


def shown_line(line: str, most: int = LONGEST_LINE) -> str:
    """Give one line without its ending, cut to a length that says how much is missing."""
    text = line.rstrip("\r\n")
    if len(text) <= most:
        return showable(text)
    return f"{showable(text[:most])}… [+{len(text) - most} chars]"


def visible(line: str, most: int = LONGEST_LINE) -> str:
    """Give one line with its blanks made visible: · for a space, → for a tab."""
    text = shown_line(line, most).replace(" ", "·").replace("\t", "→")
    return _UNSEEN.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def numbered(lines: Iterable[tuple[int, str]]) -> str:
    """Write lines the way `read` does, the number in a gutter."""
    return "\n".join(f"{number:6d}\t{shown_line(line)}" for number, line in lines)


FIRST_LINES = 5


def first_lines(text: str, most: int = FIRST_LINES) -> str:
    """Show how a text begins."""
    lines = text.removesuffix("\n").split("\n", most)[:most]
    return numbered(enumerate(lines, 1)) if text else "(empty)"


def lines_shown(text: str, most: int = FIRST_LINES, *, is_cut: bool = False) -> int:
    """Count the lines that `first_lines` shows in full, up to the first that is not.

    Args:
        text: What is shown.
        most: The limit on lines.
        is_cut: Whether the text goes on, so that its last line may be a part of one.
    """
    lines = text.removesuffix("\n").split("\n", most)
    if is_cut or len(lines) > most:
        lines = lines[: min(most, len(lines) - 1)]
    for number, line in enumerate(lines):
        if shown_line(line) != line.rstrip("\r"):
            return number
    return len(lines)


def excerpt(diff: LineDiff, encoding: str) -> str:
    """Show the changed lines of the new version with those around them.

    Args:
        diff: What changed.
        encoding: That of the lines.
    """
    parts: list[str] = []
    left = MOST_LINES
    hunks = list(diff.hunks())
    for shown, (around, _) in enumerate(hunks):
        if left <= 0:
            parts.append(f"… and {len(hunks) - shown} more places")
            break
        chosen = diff.new[around.new_start : around.new_end]
        parts.append(_part(chosen, diff.skipped + around.new_start + 1, encoding, left))
        left -= len(chosen)
    return "\n     …\n".join(part for part in parts if part)


def _part(lines: Sequence[bytes], first: int, encoding: str, most: int) -> str:
    """Show a run of lines, or both its ends where it is long."""

    def shown(start: int, end: int) -> str:
        texts = (line.decode(encoding, "replace") for line in lines[start:end])
        return numbered(enumerate(texts, first + start))

    # A few more than allowed are better than a gap of a few.
    if len(lines) <= most + CONTEXT_LINES:
        return shown(0, len(lines))
    tail = min(most // 2, 2 * CONTEXT_LINES)
    head = most - tail
    gap = f"     … {len(lines) - head - tail} more lines"
    return "\n".join((shown(0, head), gap, shown(len(lines) - tail, len(lines))))
