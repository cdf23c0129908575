"""Match strategies: locate the text to replace in a file.

We try the strategies in a fixed order; each ignores one more thing: line endings, trailing whitespace, indentation,
punctuation variants. The first strategy that finds a match wins. There's no fuzzy matching: letters, blank lines and
line breaks must agree. Each strategy is linear in the size of the file.

Models sometimes quote a block at a different depth, or with spaces instead of tabs. A single rule has to explain the
indentation of all lines; otherwise it's a different text, since indentation carries meaning in many languages.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from itertools import accumulate, islice, pairwise
from math import gcd

from indusagi.core.records import record

MAX_SPANS = 100
"""Stop after this many matches if only one is wanted."""
BLANKS = " \t\r\f\v"
_INDENT = " \t"
_SAMPLE_LINES = 5_000
"""Number of lines used to infer the indentation unit."""
_UNITS = frozenset({"\t", "  ", "   ", "    ", "        "})
"""Common units; any other step is alignment, not a level."""


class MatchStrategy(StrEnum):
    """The difference a comparison ignores, in the order we try them; the value appears in messages."""

    EXACT = "exact"
    ENDINGS = "line endings"
    TRAILING = "trailing whitespace"
    INDENT = "indentation"
    PUNCTUATION = "punctuation"


@record
class Span:
    """One match, as offsets into the text."""

    start: int
    end: int
    lines: tuple[str, ...] | None = None
    """The new lines, reindented to fit, if necessary."""


@record
class TextMatch:
    """All matches, in order; they may overlap if only one is wanted."""

    strategy: MatchStrategy
    spans: tuple[Span, ...]


@record
class NoMatch:
    """No match. At `lines` the text only fails to match because no rule explains its indentation."""

    lines: tuple[int, ...] = ()


@record
class _EditQuery:
    old: str
    new: str
    every: bool
    old_lines: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "old_lines", tuple(self.old.split("\n")))


def normalize_endings(text: str) -> str:
    """Replace CRLF with LF."""
    return text.replace("\r\n", "\n")


def find_match(text: str, old: str, new: str, *, every: bool = False) -> TextMatch | NoMatch:
    """Find `old`, which isn't empty, in a file. The lines of `new` may need reindenting.

    To replace `every` match, the matches mustn't overlap.
    """
    starts = _find_all(text, old, len(old) if every else 1, every=every)
    # A match never starts or ends inside CRLF.
    splits_ending = (old.startswith("\n") and any(text[start - 1 : start] == "\r" for start in starts)) or (
        drops_return(old, new) and any(text.startswith("\n", start + len(old)) for start in starts)
    )
    if starts and not splits_ending:
        return TextMatch(MatchStrategy.EXACT, tuple(Span(start, start + len(old)) for start in starts))
    query = _EditQuery(normalize_endings(old), normalize_endings(new), every)
    spans, strategy, near = _find_ignoring_whitespace(text, query)
    if spans:
        return TextMatch(strategy, spans)
    if text.isascii() and old.isascii():
        return NoMatch(near)
    # Folding is one character to one, so offsets stay the same.
    folded = _EditQuery(_fold_punctuation(query.old), query.new, every)
    spans, _, folded_near = _find_ignoring_whitespace(_fold_punctuation(text), folded)
    return TextMatch(MatchStrategy.PUNCTUATION, spans) if spans else NoMatch(near or folded_near)


def _find_ignoring_whitespace(text: str, query: _EditQuery) -> tuple[tuple[Span, ...], MatchStrategy, tuple[int, ...]]:
    """Try the strategies that ignore whitespace; also return the lines that only mismatch in indentation."""
    lines = text.split("\n")
    spans = _find_by_key(lines, query, lambda line: line.removesuffix("\r"))
    if spans:
        return spans, MatchStrategy.ENDINGS, ()
    if not query.old.strip():
        return (), MatchStrategy.EXACT, ()  # whitespace only: nothing left to compare
    spans = _find_by_key(lines, query, lambda line: line.rstrip(BLANKS))
    if spans:
        return spans, MatchStrategy.TRAILING, ()
    spans, near = _find_indented(lines, query)
    return spans, MatchStrategy.INDENT, near


def drops_return(old: str, new: str) -> bool:
    """Return whether `new` drops the trailing carriage return of a longer `old`."""
    return old.endswith("\r") and old != "\r" and not new.endswith("\r")


def _find_all(text: str, wanted: str, step: int, *, every: bool) -> list[int]:
    """Find matches at least `step` characters apart, up to `MAX_SPANS` unless `every`."""
    starts: list[int] = []
    start = text.find(wanted)
    while start >= 0 and (every or len(starts) < MAX_SPANS):
        starts.append(start)
        start = text.find(wanted, start + step)
    return starts


def _find_by_key(lines: Sequence[str], query: _EditQuery, key: Callable[[str], str]) -> tuple[Span, ...]:
    """Find the old text, comparing lines by `key`."""
    keys = [key(line) for line in lines]
    old_keys = [key(line) for line in query.old_lines]
    needle = "\n".join(old_keys)
    if not needle:
        return ()  # the old text is a single carriage return
    # A model quoting the last line can't tell whether it ends in a newline. Prefer a match that does.
    missing_newline = "\n" if needle.endswith("\n") and needle.strip() and lines[-1] else ""
    key_starts = _line_starts(keys)
    starts = _line_starts(lines)
    step = len(needle) if query.every else 1
    # Blanks at the end of the old text only count as trailing whitespace at the end of a line; a blank first line only
    # at the start of a line.
    needs_line_end = query.old_lines[-1] != old_keys[-1]
    needs_line_start = bool(query.old_lines[0]) and not old_keys[0]
    spans: list[Span] = []
    haystack = "\n".join(keys)
    for position in _find_all(haystack + missing_newline, needle, step, every=query.every):
        if spans and position + len(needle) > len(haystack):
            break
        first = bisect_right(key_starts, position) - 1
        begin = position - key_starts[first]
        last = bisect_right(key_starts, position + len(needle)) - 1
        end = position + len(needle) - key_starts[last]
        if (needs_line_end and end != len(keys[last])) or (needs_line_start and begin):
            continue
        if begin == len(keys[first]) and not needs_line_start:
            begin = len(lines[first].removesuffix("\r"))
        if needs_line_end or end > len(keys[last]):
            end = len(lines[last].removesuffix("\r"))
        spans.append(Span(starts[first] + begin, starts[last] + end))
    return tuple(spans)


def _find_indented(pieces: Sequence[str], query: _EditQuery) -> tuple[tuple[Span, ...], tuple[int, ...]]:
    """Find whole lines that only differ in indentation, if a single rule explains the difference."""
    is_ended = query.old.endswith("\n")
    old_lines = query.old_lines[:-1] if is_ended else query.old_lines
    lines = pieces[:-1] if not pieces[-1] else pieces
    keys = [line.strip(BLANKS) for line in lines]
    needle = "\n".join(("", *(line.strip(BLANKS) for line in old_lines), ""))
    key_starts = _line_starts(keys)
    starts = _line_starts(pieces)
    step = len(needle) - 1 if query.every else 1
    new_lines = query.new.split("\n")
    spans: list[Span] = []
    near: list[int] = []
    unit: str | None = None
    for position in _find_all("\n" + "\n".join(keys) + "\n", needle, step, every=query.every):
        first = bisect_right(key_starts, position) - 1
        past = first + len(old_lines)
        unit = infer_unit(lines) if unit is None else unit
        fitted = reindent(old_lines, lines[first:past], new_lines, unit)
        if fitted is None:
            near.append(first + 1)
            continue
        end = starts[past - 1] + len(lines[past - 1].removesuffix("\r"))
        if is_ended:
            end = starts[past] if past < len(starts) else starts[past - 1] + len(lines[past - 1])
        spans.append(Span(starts[first], end, tuple(fitted)))
    return tuple(spans), tuple(near)


def _line_starts(lines: Sequence[str]) -> list[int]:
    return list(accumulate((len(line) + 1 for line in lines), initial=0))[:-1]


_LOOKALIKES = {
    "'": "\u2018\u2019\u201a\u201b\u2032\u02bc\uff07",
    '"': "\u201c\u201d\u201e\u201f\u2033\uff02",
    "-": "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d",
    " ": "\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000",
}
"""Quotes, dashes and spaces that look like the ASCII character."""


def _fold_punctuation(text: str) -> str:
    """Replace each lookalike with the ASCII character; many times faster than `str.translate`."""
    for plain, lookalikes in _LOOKALIKES.items():
        for lookalike in lookalikes:
            text = text.replace(lookalike, plain)
    return text


# -- indentation --------------------------------------------------------------------------------


def indent_of(line: str) -> str:
    """Return the spaces and tabs at the start of a line."""
    return line[: len(line) - len(line.lstrip(_INDENT))]


def infer_unit(lines: Sequence[str]) -> str:
    """Infer the indentation unit of a file: the most common step to a deeper line."""
    indents = (indent_of(line) for line in islice(lines, _SAMPLE_LINES) if line.strip())
    steps = Counter[str]()
    for above, below in pairwise(indents):
        if len(below) > len(above) and below.startswith(above):
            steps[below[len(above) :]] += 1
    return max(steps, key=lambda step: (steps[step], -len(step)), default="")


def reindent(
    old_lines: Sequence[str], file_lines: Sequence[str], new_lines: Sequence[str], file_unit: str
) -> list[str] | None:
    """Indent new lines the way the file indents the old ones; None if no single rule explains the difference.

    The old lines, as quoted by the model, only differ from the file's in leading and trailing whitespace. `file_unit`
    is empty if unknown.
    """
    indented = _apply_rule(old_lines, file_lines, new_lines, file_unit)
    if indented is not None or len(old_lines) < 2:
        return indented
    if indent_of(old_lines[0]) or indent_of(new_lines[0]):
        return None
    # The quote starts in the middle of its first line: derive the rule from the others.
    rest = _apply_rule(old_lines[1:], file_lines[1:], new_lines[1:], file_unit)
    return None if rest is None else [indent_of(file_lines[0]) + new_lines[0], *rest]


def _apply_rule(
    old_lines: Sequence[str], file_lines: Sequence[str], new_lines: Sequence[str], file_unit: str
) -> list[str] | None:
    # Each indentation must map to exactly one other, and deeper ones must stay deeper.
    table: dict[str, str] = {}
    for old, present in zip(old_lines, file_lines, strict=True):
        if old.strip() and table.setdefault(indent_of(old), indent_of(present)) != indent_of(present):
            return None
    widths = sorted((len(old.expandtabs(8)), len(present.expandtabs(8))) for old, present in table.items())
    if not table or any(upper[0] == lower[0] or upper[1] >= lower[1] for upper, lower in pairwise(widths)):
        return None
    used = {indent_of(line) for line in new_lines if line.strip()}
    # Use the unit of the whole file unless these lines are indented differently.
    kinds = set("".join(table.values()))
    if not file_unit or (kinds and kinds != set(file_unit)):
        file_unit = _common_unit(table.values())
    rule = _IndentRule(table, _common_unit([*table, *used]), file_unit)
    targets = {indent: rule.find_target(indent) for indent in used}
    indented: list[str] = []
    for line in new_lines:
        target = targets[indent_of(line)] if line.strip() else ""
        if target is None:
            return None
        indented.append(target + line.lstrip(_INDENT))
    return indented


@record
class _IndentRule:
    table: Mapping[str, str]
    unit: str
    file_unit: str

    def find_target(self, indent: str) -> str | None:
        """Return the file's indentation for a line with this indentation."""
        if indent in self.table:
            return self.table[indent]
        if self.unit != self.file_unit and {self.unit, self.file_unit} <= _UNITS:
            # Count levels in one unit and write them in the other.
            pairs = [
                (_count_levels(old, self.unit), _count_levels(new, self.file_unit)) for old, new in self.table.items()
            ]
            shifts = {None if old is None or new is None else new - old for old, new in pairs}
            shift, level = shifts.pop() if len(shifts) == 1 else None, _count_levels(indent, self.unit)
            if shift is not None and level is not None and level + shift >= 0:
                return self.file_unit * (level + shift)
        # Don't add a margin that would mix tabs and spaces.
        if self.unit and self.file_unit and self.unit[0] != self.file_unit[0]:
            return None
        # Add or remove the margin shared by all lines.
        rows = list(self.table.items())
        old, present = rows[0]
        margin = present.removesuffix(old)
        if present.endswith(old) and all(deeper == margin + plain for plain, deeper in rows):
            return margin + indent
        margin = old.removesuffix(present)
        if old.endswith(present) and all(deeper == margin + plain for deeper, plain in rows):
            return indent.removeprefix(margin) if indent.startswith(margin) else None
        return None


def _count_levels(indent: str, unit: str) -> int | None:
    count, rest = divmod(len(indent), len(unit))
    return None if rest or indent != unit * count else count


def _common_unit(indents: Iterable[str]) -> str:
    """Return the largest step that divides all indentations; empty if they're mixed or absent."""
    deep = [indent for indent in indents if indent]
    if not deep or len(set("".join(deep))) != 1:
        return ""
    return deep[0][0] * (1 if deep[0][0] == "\t" else gcd(*(len(indent) for indent in deep)))
