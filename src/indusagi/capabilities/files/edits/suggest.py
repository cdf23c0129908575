"""What comes closest in a file to a text that is not in it: shown, never used.

The rarest-looking line of the wanted text is looked for first; the block around each line that
resembles it is compared as a whole. The amount of work is fixed, whatever the file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.capabilities.files.edits.excerpt import visible

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_SHOWN = 20
"""Lines of the wanted text that are shown beside those of the file."""
_MOST_LINES = 40_000
"""Lines of a file that are compared with the line looked for."""
_AT_ONCE = 2_000
"""Of them, how many in one go: meanwhile nothing else runs."""
_LONGEST_LINE = 200
"""Letters of a line that are compared."""
_LONGEST_BLOCK = 4_000
_ANCHORS = 3
_CANDIDATES = 8
"""Places for each anchor that are compared as a whole."""
_ALIKE = 60.0
"""Of 100: below this, what is closest is not close."""


@dataclass(frozen=True, slots=True)
class Closest:
    """Where a file comes closest to a text, and in what they differ."""

    line: int
    view: str
    alike: int
    """In per cent."""


def closest(text: str, wanted: str) -> Closest | None:
    """Find the block of `text` that is most like `wanted`; None where nothing is like it."""
    lines = text.split("\n")
    wanted_lines = wanted.strip("\r\n").split("\n")
    sought = [line.strip()[:_LONGEST_LINE] for line in wanted_lines]
    if not any(sought):
        return None
    best: tuple[float, int] = (0.0, 0)
    block = "\n".join(sought)[:_LONGEST_BLOCK]
    for start in _starts(lines, sought):
        best = max(best, (_likeness(lines, start, block, len(sought)), -start))
    if best[0] < _ALIKE:
        return None
    start = -best[1]
    view = _view(wanted_lines, lines[start : start + len(wanted_lines)])
    return Closest(start + 1, view, int(best[0]))


def _starts(lines: Sequence[str], sought: Sequence[str]) -> list[int]:
    """Give the places where the block could begin, by lines that are like one of its own."""
    keys = [line.strip()[:_LONGEST_LINE] for line in lines]
    places: dict[int, None] = {}
    # A long line tells more than a short one, and one of its kind more than a repeated one.
    counts = Counter(sought)
    order = sorted(
        (at for at, line in enumerate(sought) if line), key=lambda at: (counts[sought[at]] > 1, -len(sought[at]), at)
    )
    for at in order[:_ANCHORS]:
        for found in _alike(keys, sought[at]):
            places[max(0, found - at)] = None
    return list(places)


def _alike(keys: Sequence[str], anchor: str) -> list[int]:
    same = [at for at, key in enumerate(keys) if key == anchor]
    if same:
        return same[:_CANDIDATES]
    from rapidfuzz import fuzz, process  # noqa: PLC0415 — only after an edit that missed

    least, most = len(anchor) // 2, 2 * len(anchor) + 4
    # As one entry for each text: what a file repeats a thousand times is compared once.
    chosen: dict[str, int] = {}
    for at, key in enumerate(keys):
        if least <= len(key) <= most and key not in chosen:
            chosen[key] = at
            if len(chosen) >= _MOST_LINES:
                break
    texts = list(chosen)
    found: list[tuple[float, int]] = []
    for start in range(0, len(texts), _AT_ONCE):
        part = texts[start : start + _AT_ONCE]
        alike = process.extract(anchor, part, scorer=fuzz.ratio, limit=_CANDIDATES, score_cutoff=_ALIKE)
        found.extend((-score, chosen[key]) for key, score, _ in alike)
    return [at for _, at in sorted(found)[:_CANDIDATES]]


def _likeness(lines: Sequence[str], start: int, block: str, count: int) -> float:
    from rapidfuzz import fuzz  # noqa: PLC0415 — only after an edit that missed

    there = "\n".join(line.strip()[:_LONGEST_LINE] for line in lines[start : start + count])
    return fuzz.ratio(block, there[:_LONGEST_BLOCK])


def _view(wanted: Sequence[str], there: Sequence[str]) -> str:
    """Show both side by side: the same lines once, others as wanted (-) and as they are (+)."""
    from difflib import SequenceMatcher  # noqa: PLC0415 — only after an edit that missed

    wanted, there = wanted[:MOST_SHOWN], there[:MOST_SHOWN]
    shown: list[str] = []
    matcher = SequenceMatcher(None, wanted, there, autojunk=False)
    for tag, start, end, there_start, there_end in matcher.get_opcodes():
        if tag == "equal":
            shown.extend(f"  {visible(line)}" for line in wanted[start:end])
            continue
        shown.extend(f"- {visible(line)}" for line in wanted[start:end])
        shown.extend(f"+ {visible(line)}" for line in there[there_start:there_end])
    return "\n".join(shown)
