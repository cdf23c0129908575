"""How deep lines stand: the rule that leads from one indentation to another, if there is one.

A quoted block may stand deeper than the file has it, or be indented with spaces where the file has
tabs. That is one rule for all its lines, or it is a different text: in many languages the depth of
a line is a part of what it says.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice, pairwise
from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_INDENTS = " \t"
_SAMPLE_LINES = 5_000
"""Lines from which the unit of a file is inferred."""
_UNITS = frozenset({"\t", "  ", "   ", "    ", "        "})
"""What people indent with; any other step is there to align something, and is not a level."""


def indent_of(line: str) -> str:
    """Give the spaces and tabs that a line begins with."""
    return line[: len(line) - len(line.lstrip(_INDENTS))]


def unit_of(lines: Sequence[str]) -> str:
    """Infer what one level is in a file: the step by which lines most often get deeper."""
    depths = (indent_of(line) for line in islice(lines, _SAMPLE_LINES) if line.strip())
    steps = Counter[str]()
    for above, below in pairwise(depths):
        if len(below) > len(above) and below.startswith(above):
            steps[below[len(above) :]] += 1
    return max(steps, key=lambda step: (steps[step], -len(step)), default="")


def reindented(
    old_lines: Sequence[str], file_lines: Sequence[str], new_lines: Sequence[str], file_unit: str
) -> list[str] | None:
    """Move new lines to where the old ones stand in the file.

    Args:
        old_lines: As they were quoted.
        file_lines: As the file has them: the same, but for whitespace at either end.
        new_lines: What is to take their place.
        file_unit: One level in the file, or nothing where that is not known.

    Returns:
        The new lines, or None where no one rule explains the difference.
    """
    fitted = _moved(old_lines, file_lines, new_lines, file_unit)
    if fitted is not None or len(old_lines) < 2:
        return fitted
    if indent_of(old_lines[0]) or indent_of(new_lines[0]):
        return None
    # The quotation starts at the first letter, in the middle of a line: the others tell the rule.
    rest = _moved(old_lines[1:], file_lines[1:], new_lines[1:], file_unit)
    return None if rest is None else [indent_of(file_lines[0]) + new_lines[0], *rest]


def _moved(
    old_lines: Sequence[str], file_lines: Sequence[str], new_lines: Sequence[str], file_unit: str
) -> list[str] | None:
    table = _table(old_lines, file_lines)
    if table is None:
        return None
    used = {indent_of(line) for line in new_lines if line.strip()}
    rule = _Rule(table, _common_unit([*table, *used]), _file_unit(table, file_unit))
    targets = {indent: rule.target(indent) for indent in used}
    moved: list[str] = []
    for line in new_lines:
        target = targets[indent_of(line)] if line.strip() else ""
        if target is None:
            return None
        moved.append(target + line.lstrip(_INDENTS))
    return moved


def _table(old_lines: Sequence[str], file_lines: Sequence[str]) -> Mapping[str, str] | None:
    """Pair the indentations; None unless each has one counterpart and the deeper stays deeper."""
    table: dict[str, str] = {}
    for old, there in zip(old_lines, file_lines, strict=True):
        if not old.strip():
            continue
        if table.setdefault(indent_of(old), indent_of(there)) != indent_of(there):
            return None
    pairs = sorted((_width(old), _width(there)) for old, there in table.items())
    if any(former[0] == later[0] or former[1] >= later[1] for former, later in pairwise(pairs)):
        return None
    return table or None


@dataclass(frozen=True, slots=True)
class _Rule:
    table: Mapping[str, str]
    unit: str
    file_unit: str

    def target(self, indent: str) -> str | None:
        """Say how deep a line of this indentation stands in the file."""
        if indent in self.table:
            return self.table[indent]
        converted = self._by_levels(indent) if self._converts else None
        # A margin of tabs before spaces would look right to nobody.
        mixes = self.unit[:1] != self.file_unit[:1] and bool(self.unit and self.file_unit)
        return converted if converted is not None or mixes else self._by_margin(indent)

    @property
    def _converts(self) -> bool:
        return self.unit != self.file_unit and {self.unit, self.file_unit} <= _UNITS

    def _by_levels(self, indent: str) -> str | None:
        """Count levels in the one unit and write them in the other."""
        shifts: set[int] = set()
        for old, there in self.table.items():
            level, level_there = _levels(old, self.unit), _levels(there, self.file_unit)
            if level is None or level_there is None:
                return None
            shifts.add(level_there - level)
        level = _levels(indent, self.unit)
        if len(shifts) != 1 or level is None or level + min(shifts) < 0:
            return None
        return self.file_unit * (level + min(shifts))

    def _by_margin(self, indent: str) -> str | None:
        """Add or take away the margin by which every line differs."""
        pairs = list(self.table.items())
        old, there = pairs[0]
        margin = there.removesuffix(old)
        if there.endswith(old) and all(deep == margin + plain for plain, deep in pairs):
            return margin + indent
        margin = old.removesuffix(there)
        if old.endswith(there) and all(deep == margin + plain for deep, plain in pairs):
            return indent.removeprefix(margin) if indent.startswith(margin) else None
        return None


def _levels(indent: str, unit: str) -> int | None:
    count, rest = divmod(len(indent), len(unit))
    return None if rest or indent != unit * count else count


def _width(indent: str) -> int:
    return len(indent.expandtabs(8))


def _common_unit(indents: Iterable[str]) -> str:
    """Give the largest step of which all these are made; nothing if they are mixed or none."""
    deep = [indent for indent in indents if indent]
    if not deep or len(set("".join(deep))) != 1:
        return ""
    return deep[0][0] * (1 if deep[0][0] == "\t" else gcd(*(len(indent) for indent in deep)))


def _file_unit(table: Mapping[str, str], inferred: str) -> str:
    """Trust the file as a whole, unless the lines in question are made of something else."""
    kinds = set("".join(table.values()))
    if inferred and (not kinds or kinds == set(inferred)):
        return inferred
    return _common_unit(table.values())
