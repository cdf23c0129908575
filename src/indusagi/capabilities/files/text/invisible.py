"""Characters that a reader does not see but that a model, a terminal or a compiler obeys.

A file's content is never altered for being shown. What is in it is told beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.core.text import find_invisible_kinds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_KINDS = {
    "escapes": "terminal escape sequences",
    "bidi": "text direction controls",
    "tags": "tag characters",
    "invisible": "invisible characters",
    "controls": "control characters",
    "noncharacters": "code points that are not characters",
}


@dataclass(frozen=True, slots=True)
class InvisibleCharacters:
    """One kind of such characters."""

    kind: str
    count: int
    first: int
    unit: str

    def __str__(self) -> str:
        times = f"{self.count:,} " if self.count > 1 else ""
        place = "first in" if self.count > 1 else "in"
        return f"{times}{_KINDS[self.kind]} {place} {self.unit} {self.first}"


def find_invisible(parts: Iterable[tuple[int, str]], unit: str = "line") -> Sequence[InvisibleCharacters]:
    """List the kinds of hidden characters in numbered lines, or pages, in a fixed order."""
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, text in parts:
        if text.isascii() and text.isprintable():
            continue
        # A form feed parts the pages of many a source; halves are bytes that the head tells of.
        for kind in find_invisible_kinds(text.replace("\f", "")):
            counts[kind] = counts.get(kind, 0) + 1
            first.setdefault(kind, number)
    return tuple(InvisibleCharacters(kind, counts[kind], first[kind], unit) for kind in _KINDS if kind in counts)
