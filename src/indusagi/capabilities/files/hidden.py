"""Characters that a reader does not see but that a model, a terminal or a compiler obeys.

A file's content is never altered for being shown. What is in it is told beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_KINDS = {
    "escapes": "terminal escape sequences",
    "bidi": "text direction controls",
    "tags": "tag characters",
    "invisible": "invisible characters",
    "controls": "control characters",
}
_HIDDEN = re.compile(
    "(?P<escapes>[\x1b\x9b])"
    "|(?P<bidi>[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069])"
    "|(?P<tags>[\U000e0000-\U000e007f])"
    # A joiner that follows a pictograph makes one of two, as it should.
    "|(?P<invisible>[\u00ad\u034f\u115f\u1160\u180b-\u180e\u200b\u200c\u2060-\u2065\u206a-\u206f\u3164"
    "\ufeff\uffa0\ufff9-\ufffb\U000e0100-\U000e01ef]"
    "|(?<![\u2190-\u2bff\ufe0f\U0001f000-\U0001faff])\u200d)"
    "|(?P<controls>[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f\u2028\u2029]|\r(?=.))",
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Hidden:
    """One kind of such characters."""

    kind: str
    count: int
    first: int
    unit: str

    def __str__(self) -> str:
        times = f"{self.count:,} " if self.count > 1 else ""
        place = "first in" if self.count > 1 else "in"
        return f"{times}{_KINDS[self.kind]} {place} {self.unit} {self.first}"


def hidden_in(parts: Iterable[tuple[int, str]], unit: str = "line") -> Sequence[Hidden]:
    """List the kinds of hidden characters in numbered lines, or pages, in a fixed order."""
    counts: dict[str, int] = {}
    first: dict[str, int] = {}
    for number, text in parts:
        if text.isascii() and text.isprintable():
            continue
        for found in _HIDDEN.finditer(text):
            kind = found.lastgroup or ""
            counts[kind] = counts.get(kind, 0) + 1
            first.setdefault(kind, number)
    return tuple(Hidden(kind, counts[kind], first[kind], unit) for kind in _KINDS if kind in counts)
