"""Apply one replacement to a text: find the old text, insert the new one, leave everything else alone.

Lines that the old and new text share are copied from the file, which preserves whatever the match strategy ignored (a
line ending, trailing whitespace, a curly quote). New lines get the ending of the lines around them.

If the old text isn't found, we show the model the most similar lines but never edit them. We look for lines similar to
the longest unique lines of the wanted text, then compare the whole block around each candidate. The work is bounded.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import field

from indusagi.capabilities.files.codec import TextForm, encode_piece
from indusagi.capabilities.files.diff import format_line, format_visible, number_lines
from indusagi.capabilities.files.lines import has_line_numbers, strip_line_numbers
from indusagi.capabilities.files.match import (
    MAX_SPANS,
    MatchStrategy,
    NoMatch,
    Span,
    TextMatch,
    drops_return,
    find_match,
    normalize_endings,
)
from indusagi.core.json import JsonValue
from indusagi.core.records import record
from indusagi.core.text import common_end, common_start

MAX_FILE_BYTES = 8 * 1024 * 1024
"""Largest file we edit; anything larger is a job for a program."""
MAX_LISTED = 10
"""Lines listed in an error message."""
_ENDING = re.compile(r"\r\n|\n")
MAX_SHOWN_LINES = 20
"""Lines of the wanted text shown next to the file's."""
_MAX_COMPARED_LINES = 20_000
_LINE_CHARACTERS = 200
"""Compared prefix of a line."""
_BLOCK_CHARACTERS = 4_000
_ANCHORS = 3
_CANDIDATES = 8
_MIN_SIMILARITY = 60.0
"""In percent; less similar blocks aren't worth showing."""


@record
class Replacement:
    """Replace `old` with `new`."""

    old: str
    new: str
    every: bool = False


@record
class ShownLines:
    """The leading lines of a file that a result has displayed."""

    digest: str
    """Of the whole file."""
    lines: int
    whole: bool
    """Whether that's the entire file, with no line cut."""


@record
class EditRefusal:
    """The reason an edit was rejected."""

    code: str
    message: str
    facts: dict[str, JsonValue] = field(default_factory=dict[str, "JsonValue"])
    shown: ShownLines | None = None
    """The lines the message displays; they count as read."""


@record
class Replaced:
    """A text after a replacement."""

    text: str
    strategy: MatchStrategy
    count: int
    indented: bool = False
    """Whether we adjusted new lines to the file's indentation."""
    numbered: bool = False
    """Whether we stripped line numbers from the old and new text."""


def apply_replacement(text: str, edit: Replacement, form: TextForm, *, exactly: bool) -> Replaced | EditRefusal:
    """Apply one replacement to the whole text of a file, whose encoding must support the new text.

    `exactly` requires a single, exact match.
    """
    try:
        encode_piece(edit.new, form)
    except OSError as exc:
        return EditRefusal("encoding", exc.strerror or str(exc))
    if edit.every and not exactly:
        # There may be millions of matches: `str.replace` handles identical ones in one go.
        new = _replacement_for_all(text, edit.old, edit.new)
        count = 0 if new is None else text.count(edit.old)
        if new is not None and count:
            refusal = _refuse_large(text, edit, count)
            return refusal or Replaced(text.replace(edit.old, new), MatchStrategy.EXACT, count)
    match = find_match(text, edit.old, edit.new, every=edit.every and not exactly)
    if exactly:
        if isinstance(match, NoMatch) or match.strategy is not MatchStrategy.EXACT or len(match.spans) > 1:
            return EditRefusal("stale", "oldText does not stand in it exactly once, letter for letter")
        numbered = False
    else:
        numbered = isinstance(match, NoMatch) and bool(strip_line_numbers(edit.old))
        if numbered:
            # Strip the line numbers of `read` from both texts.
            new = strip_line_numbers(edit.new)
            if new is None and has_line_numbers(edit.new):
                message = "oldText has line numbers, newText has them on some lines; leave them out"
                return EditRefusal("no_match", message)
            edit = Replacement(strip_line_numbers(edit.old) or "", edit.new if new is None else new, edit.every)
            match = find_match(text, edit.old, edit.new, every=edit.every)
        if isinstance(match, NoMatch):
            return _refuse_no_match(text, match, edit)
        if len(match.spans) > 1 and not edit.every:
            return _refuse_ambiguous(text, match)
    count = len(match.spans)
    indented = any(span.lines for span in match.spans)
    refusal = _refuse_large(text, edit, count)
    return refusal or Replaced(splice(text, match, edit.old, edit.new), match.strategy, count, indented, numbered)


def _refuse_large(text: str, edit: Replacement, count: int) -> EditRefusal | None:
    size = len(text) + count * (len(edit.new) - len(edit.old))
    if size <= MAX_FILE_BYTES:
        return None
    return EditRefusal("too_large", f"the file would have about {size:,} characters")


def _refuse_ambiguous(text: str, match: TextMatch) -> EditRefusal:
    lines: list[tuple[int, str]] = []
    number, position = 1, 0
    for span in match.spans[:MAX_LISTED]:
        number += text.count("\n", position, span.start)
        position = span.start
        end = text.find("\n", position)
        line = text[text.rfind("\n", 0, position) + 1 : end if end >= 0 else len(text)]
        lines.append((number, format_line(line, 120)))
    count = len(match.spans)
    many = f"{count:,}" if count < MAX_SPANS else f"at least {count:,}"
    left = f"{count - len(lines)} more" if count < MAX_SPANS else "more"
    more = f"\n… and {left}" if count > len(lines) else ""
    ignored = "" if match.strategy is MatchStrategy.EXACT else f" (but for {match.strategy})"
    return EditRefusal(
        "ambiguous",
        f"oldText stands in {many} places{ignored}; give more lines around the one that is "
        f"meant, or replaceAll to change all of them:\n{number_lines(lines)}{more}",
        {"count": count, "lines": [number for number, _ in lines]},
    )


def _refuse_no_match(text: str, match: NoMatch, edit: Replacement) -> EditRefusal:
    tried = ", ".join(list(MatchStrategy)[1:])
    parts = [f"oldText is not in the file: compared exactly, then without regard to {tried}."]
    facts: dict[str, JsonValue] = {}
    if match.lines:
        numbers = ", ".join(map(str, match.lines[:MAX_LISTED]))
        parts.append(
            f"At line {numbers} the lines agree but for indentation, and no one rule leads "
            "from the indentation of oldText and newText to that of the file."
        )
    if len(edit.new.strip()) > 1 and edit.new in text:
        parts.append("newText is in the file already: the edit may have been made before.")
    closest = find_closest_match(text, edit.old)
    if closest is None:
        parts.append("Nothing in the file is like it. Read the file again.")
    else:
        facts = {"closestLine": closest.line, "alike": closest.similarity}
        parts.append(f"Closest at line {closest.line} (- oldText, + the file; · space, → tab):\n{closest.view}")
    return EditRefusal("no_match", "\n".join(parts), facts)


def splice(text: str, match: TextMatch, old: str, new: str) -> str:
    """Replace the matches, which are in order and don't overlap."""
    parts: list[str] = []
    position = 0
    is_plain = match.strategy is MatchStrategy.EXACT and "\n" not in old and "\n" not in new
    for span in match.spans:
        parts.append(text[position : span.start])
        parts.append(new if is_plain else _fit(text, span, match.strategy, old, new))
        position = span.end
    parts.append(text[position:])
    return "".join(parts)


def _replacement_for_all(text: str, old: str, new: str) -> str | None:
    """Return the replacement to use for every match, or None if line endings differ."""
    if drops_return(old, new):
        return None
    if "\n" not in old and "\n" not in new:
        return new
    plain = normalize_endings(new)
    if "\r" in text or "\r" in plain:
        return None
    return new if old == plain else plain


def _fit(text: str, span: Span, strategy: MatchStrategy, old: str, new: str) -> str:
    """Build the new text for one match, with the file's line endings and unchanged lines."""
    old, plain = normalize_endings(old), normalize_endings(new)
    present = text[span.start : span.end]
    if old == plain:
        # Only line endings change, so use them verbatim.
        return new if strategy is MatchStrategy.EXACT else present
    contents, endings = _ENDING.split(present), _ENDING.findall(present)
    if not endings:
        # New lines get the ending of the line that contains the match, or else of the line before.
        before = max(0, text.rfind("\n", 0, span.start) - 1)
        ending = _ENDING.search(text, span.end) or _ENDING.search(text, before, span.start)
        endings = [ending.group() if ending else "\n"]
    old_lines, new_lines = old.split("\n"), plain.split("\n")
    fitted = list(span.lines or new_lines)
    if len(old_lines) > len(contents):
        # The last line of the file has no newline; don't add one.
        old_lines.pop()
        if not new_lines[-1]:
            new_lines.pop()
            fitted.pop()
    return _merge_lines(contents, endings, old_lines, new_lines, fitted)


def _merge_lines(
    contents: Sequence[str],
    endings: Sequence[str],
    old_lines: Sequence[str],
    new_lines: Sequence[str],
    fitted: Sequence[str],
) -> str:
    """Join the new lines, copying the leading and trailing lines shared with the old text from the file."""
    shorter = min(len(old_lines), len(new_lines))
    head = next((index for index in range(shorter) if old_lines[index] != new_lines[index]), shorter)
    tail = 0
    while tail < shorter - head and old_lines[-tail - 1] == new_lines[-tail - 1]:
        tail += 1
    parts: list[str] = []
    for index, line in enumerate(fitted):
        following = len(new_lines) - index - 1
        if index < head:
            parts.append(contents[index])
        elif following < tail:
            parts.append(contents[-following - 1])
        elif len(old_lines) == len(new_lines) and len(contents[index]) == len(old_lines[index]):
            # Only change the characters that differ between the old and new line.
            content, old = contents[index], old_lines[index]
            start = common_start(old, line)
            end = common_end(old, line, start)
            parts.append(content[:start] + line[start : len(line) - end] + content[len(content) - end :])
        else:
            parts.append(line)
        if following and following <= tail and following <= len(endings):
            parts.append(endings[-following])
        elif following:
            parts.append(endings[min(index, len(endings) - 1)])
    return "".join(parts)


# -- closest match ------------------------------------------------------------------------------


@record
class ClosestMatch:
    """The block of a file that's most similar to a text, with a diff."""

    line: int
    view: str
    similarity: int
    """In percent."""


def find_closest_match(text: str, wanted: str) -> ClosestMatch | None:
    """Find the block of `text` most similar to `wanted`; None if nothing is similar enough."""
    from difflib import SequenceMatcher  # noqa: PLC0415 — only after an edit without a match

    lines = text.split("\n")
    wanted_lines = wanted.strip("\r\n").split("\n")
    keys = [line.strip()[:_LINE_CHARACTERS] for line in lines]
    wanted_keys = [line.strip()[:_LINE_CHARACTERS] for line in wanted_lines]
    if not any(wanted_keys):
        return None
    block = TextSimilarity("\n".join(wanted_keys)[:_BLOCK_CHARACTERS])
    best: tuple[float, int] = (0.0, 0)
    # Long lines make better anchors than short ones, and unique lines better ones than repeated ones.
    counts = Counter(wanted_keys)
    anchors = sorted(
        (index for index, line in enumerate(wanted_keys) if line),
        key=lambda index: (counts[wanted_keys[index]] > 1, -len(wanted_keys[index]), index),
    )
    similar = ((line, index) for index in anchors[:_ANCHORS] for line in _find_similar_lines(keys, wanted_keys[index]))
    for start in dict.fromkeys(max(0, line - index) for line, index in similar):
        candidate = "\n".join(keys[start : start + len(wanted_keys)])
        best = max(best, (block.compare(candidate[:_BLOCK_CHARACTERS]), -start))
    similarity, start = best[0], -best[1]
    if similarity < _MIN_SIMILARITY:
        return None
    # Show common lines once, others as wanted (-) and as found in the file (+).
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
    shortest, longest = len(anchor) // 2, 2 * len(anchor) + 4
    # Compare repeated lines only once.
    first: dict[str, int] = {}
    for index, key in enumerate(keys):
        if shortest <= len(key) <= longest and key not in first:
            first[key] = index
            if len(first) >= _MAX_COMPARED_LINES:
                break
    best = TextSimilarity(anchor).find_closest(first, _CANDIDATES, _MIN_SIMILARITY)
    return [index for _, index in sorted((-similarity, first[key]) for similarity, key in best)]


# -- similarity -------------------------------------------------------------------------------
#
# Computes the length of the longest common subsequence on big integers, one bit per character: H. Hyyrö, "Bit-parallel
# LCS-length computation revisited" (2004).


class TextSimilarity:
    """Compares one text with others."""

    def __init__(self, text: str) -> None:
        self._length = len(text)
        self._places: dict[str, int] = {}
        for index, character in enumerate(text):
            self._places[character] = self._places.get(character, 0) | 1 << index

    def compare(self, other: str, at_least: float = 0.0) -> float:
        """Return the similarity in percent, or 0 if it's below `at_least`."""
        total = self._length + len(other)
        # The subsequence can't be longer than the shorter text.
        if not total or 200.0 * min(self._length, len(other)) / total < at_least:
            return 0.0
        find = self._places.get
        unmatched = (1 << self._length) - 1
        for character in other:
            places = find(character)
            if places is not None:
                matched = unmatched & places
                unmatched = (unmatched + matched) | (unmatched - matched)
        common = self._length - (unmatched & (1 << self._length) - 1).bit_count()
        similarity = 200.0 * common / total
        return similarity if similarity >= at_least else 0.0

    def find_closest(self, others: Iterable[str], limit: int, at_least: float) -> list[tuple[float, str]]:
        """Return the `limit` most similar texts with their similarity, best first."""
        best: list[tuple[float, str]] = []
        for other in others:
            # Once the list is full, a text must beat the last entry.
            threshold = best[-1][0] if len(best) == limit else at_least
            similarity = self.compare(other, threshold)
            if similarity >= at_least and (len(best) < limit or similarity > threshold):
                best.append((similarity, other))
                best.sort(key=lambda pair: -pair[0])
                del best[limit:]
        return best
