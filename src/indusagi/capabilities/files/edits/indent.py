"""Indentation of a quoted block: the one rule that leads from it to the indentation in the file, if there is one.

A model may quote a block at another depth than the file has it, or with spaces instead of tabs. One rule must explain
all its lines, or it is a different text: in many languages the depth of a line is a part of its meaning.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice, pairwise
from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_INDENT = " \t"
_SAMPLE_LINES = 5_000
"""Lines from which the unit of a file is inferred."""
_UNITS = frozenset({"\t", "  ", "   ", "    ", "        "})
"""Usual units; any other step aligns something and is not a level."""


def indent_of(line: str) -> str:
    """Return the spaces and tabs at the start of a line."""
    return line[: len(line) - len(line.lstrip(_INDENT))]


def infer_unit(lines: Sequence[str]) -> str:
    """Infer one level of indentation in a file: the step by which lines most often get deeper."""
    indents = (indent_of(line) for line in islice(lines, _SAMPLE_LINES) if line.strip())
    steps = Counter[str]()
    for above, below in pairwise(indents):
        if len(below) > len(above) and below.startswith(above):
            steps[below[len(above) :]] += 1
    return max(steps, key=lambda step: (steps[step], -len(step)), default="")


def reindent(
    old_lines: Sequence[str], file_lines: Sequence[str], new_lines: Sequence[str], file_unit: str
) -> list[str] | None:
    """Indent new lines as the old ones are indented in the file.

    Args:
        old_lines: The lines as the model quoted them.
        file_lines: The same lines in the file; they differ in whitespace at either end only.
        new_lines: The lines that replace them.
        file_unit: One level in the file; empty where it is unknown.

    Returns:
        The indented lines, or None where no single rule explains the difference.
    """
    indented = _apply_rule(old_lines, file_lines, new_lines, file_unit)
    if indented is not None or len(old_lines) < 2:
        return indented
    if indent_of(old_lines[0]) or indent_of(new_lines[0]):
        return None
    # The quotation starts in the middle of its first line: the other lines give the rule.
    rest = _apply_rule(old_lines[1:], file_lines[1:], new_lines[1:], file_unit)
    return None if rest is None else [indent_of(file_lines[0]) + new_lines[0], *rest]


def _apply_rule(
    old_lines: Sequence[str], file_lines: Sequence[str], new_lines: Sequence[str], file_unit: str
) -> list[str] | None:
    table = _pair_indents(old_lines, file_lines)
    if table is None:
        return None
    used = {indent_of(line) for line in new_lines if line.strip()}
    # The unit of the file as a whole counts, unless the lines in question are indented with something else.
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


def _pair_indents(old_lines: Sequence[str], file_lines: Sequence[str]) -> Mapping[str, str] | None:
    """Pair the indentations; None unless each has one counterpart and deeper ones stay deeper."""
    table: dict[str, str] = {}
    for old, present in zip(old_lines, file_lines, strict=True):
        if not old.strip():
            continue
        if table.setdefault(indent_of(old), indent_of(present)) != indent_of(present):
            return None
    widths = sorted((len(old.expandtabs(8)), len(present.expandtabs(8))) for old, present in table.items())
    if any(upper[0] == lower[0] or upper[1] >= lower[1] for upper, lower in pairwise(widths)):
        return None
    return table or None


@dataclass(frozen=True, slots=True)
class _IndentRule:
    table: Mapping[str, str]
    unit: str
    file_unit: str

    def find_target(self, indent: str) -> str | None:
        """Find the indentation in the file for a line with this indentation."""
        if indent in self.table:
            return self.table[indent]
        by_levels: str | None = None
        if self.unit != self.file_unit and {self.unit, self.file_unit} <= _UNITS:
            by_levels = self._convert_levels(indent)
        # A margin is not added where it would mix tabs and spaces.
        mixes = self.unit[:1] != self.file_unit[:1] and bool(self.unit and self.file_unit)
        return by_levels if by_levels is not None or mixes else self._shift_margin(indent)

    def _convert_levels(self, indent: str) -> str | None:
        """Count levels in the one unit and write them in the other."""
        shifts: set[int] = set()
        for old, present in self.table.items():
            level, file_level = _count_levels(old, self.unit), _count_levels(present, self.file_unit)
            if level is None or file_level is None:
                return None
            shifts.add(file_level - level)
        level = _count_levels(indent, self.unit)
        if len(shifts) != 1 or level is None or level + min(shifts) < 0:
            return None
        return self.file_unit * (level + min(shifts))

    def _shift_margin(self, indent: str) -> str | None:
        """Add or remove the margin by which every line differs."""
        pairs = list(self.table.items())
        old, present = pairs[0]
        margin = present.removesuffix(old)
        if present.endswith(old) and all(deeper == margin + plain for plain, deeper in pairs):
            return margin + indent
        margin = old.removesuffix(present)
        if old.endswith(present) and all(deeper == margin + plain for deeper, plain in pairs):
            return indent.removeprefix(margin) if indent.startswith(margin) else None
        return None


def _count_levels(indent: str, unit: str) -> int | None:
    count, rest = divmod(len(indent), len(unit))
    return None if rest or indent != unit * count else count


def _common_unit(indents: Iterable[str]) -> str:
    """Return the largest step that divides all indentations; empty if they are mixed or absent."""
    deep = [indent for indent in indents if indent]
    if not deep or len(set("".join(deep))) != 1:
        return ""
    return deep[0][0] * (1 if deep[0][0] == "\t" else gcd(*(len(indent) for indent in deep)))
