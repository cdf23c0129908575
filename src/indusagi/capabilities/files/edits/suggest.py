"""The lines of a file that are most similar to a text which is not in it: shown to the model, never edited.

Candidates are lines similar to the longest unique lines of the wanted text; the block around each is compared as a
whole. The amount of work is bounded for every file.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.capabilities.files.edits.diff import format_visible

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_SHOWN_LINES = 20
"""Lines of the wanted text that are shown beside those of the file."""
_MAX_COMPARED_LINES = 40_000
_BATCH_LINES = 2_000
"""Lines that one call of rapidfuzz compares: it keeps the GIL meanwhile."""
_LINE_CHARACTERS = 200
"""Characters of a line that are compared."""
_BLOCK_CHARACTERS = 4_000
_ANCHORS = 3
_CANDIDATES = 8
"""Candidate blocks for each anchor."""
_MIN_SIMILARITY = 60.0
"""In per cent: below this, the most similar block is not shown."""


@dataclass(frozen=True, slots=True)
class ClosestMatch:
    """The block of a file that is most similar to a text, with their differences."""

    line: int
    view: str
    similarity: int
    """In per cent."""


def find_closest_match(text: str, wanted: str) -> ClosestMatch | None:
    """Find the block of `text` that is most similar to `wanted`; None if nothing is similar."""
    from difflib import SequenceMatcher  # noqa: PLC0415 — only after an edit without a match

    from rapidfuzz import fuzz  # noqa: PLC0415 — only after an edit without a match

    lines = text.split("\n")
    wanted_lines = wanted.strip("\r\n").split("\n")
    keys = [line.strip()[:_LINE_CHARACTERS] for line in lines]
    wanted_keys = [line.strip()[:_LINE_CHARACTERS] for line in wanted_lines]
    if not any(wanted_keys):
        return None
    block = "\n".join(wanted_keys)[:_BLOCK_CHARACTERS]
    best: tuple[float, int] = (0.0, 0)
    # A long line is a better anchor than a short one, and a unique line better than a repeated one.
    counts = Counter(wanted_keys)
    anchors = sorted(
        (index for index, line in enumerate(wanted_keys) if line),
        key=lambda index: (counts[wanted_keys[index]] > 1, -len(wanted_keys[index]), index),
    )
    similar = ((line, index) for index in anchors[:_ANCHORS] for line in _find_similar_lines(keys, wanted_keys[index]))
    for start in dict.fromkeys(max(0, line - index) for line, index in similar):
        candidate = "\n".join(keys[start : start + len(wanted_keys)])
        best = max(best, (fuzz.ratio(block, candidate[:_BLOCK_CHARACTERS]), -start))
    similarity, start = best[0], -best[1]
    if similarity < _MIN_SIMILARITY:
        return None
    # Equal lines are shown once, others as wanted (-) and as they are in the file (+).
    present = lines[start : start + len(wanted_lines)][:MAX_SHOWN_LINES]
    wanted_lines = wanted_lines[:MAX_SHOWN_LINES]
    view: list[str] = []
    matcher = SequenceMatcher(None, wanted_lines, present, autojunk=False)
    for tag, first, end, new_first, new_end in matcher.get_opcodes():
        mark = " " if tag == "equal" else "-"
        view.extend(f"{mark} {format_visible(line)}" for line in wanted_lines[first:end])
        if tag != "equal":
            view.extend(f"+ {format_visible(line)}" for line in present[new_first:new_end])
    return ClosestMatch(start + 1, "\n".join(view), int(similarity))


def _find_similar_lines(keys: Sequence[str], anchor: str) -> list[int]:
    equal = [index for index, key in enumerate(keys) if key == anchor]
    if equal:
        return equal[:_CANDIDATES]
    from rapidfuzz import fuzz, process  # noqa: PLC0415 — only after an edit without a match

    shortest, longest = len(anchor) // 2, 2 * len(anchor) + 4
    # A line that the file repeats is compared once.
    first: dict[str, int] = {}
    for index, key in enumerate(keys):
        if shortest <= len(key) <= longest and key not in first:
            first[key] = index
            if len(first) >= _MAX_COMPARED_LINES:
                break
    texts = list(first)
    similar: list[tuple[float, int]] = []
    for start in range(0, len(texts), _BATCH_LINES):
        batch = texts[start : start + _BATCH_LINES]
        best = process.extract(anchor, batch, scorer=fuzz.ratio, limit=_CANDIDATES, score_cutoff=_MIN_SIMILARITY)
        similar.extend((-score, first[key]) for key, score, _ in best)
    return [index for _, index in sorted(similar)[:_CANDIDATES]]
