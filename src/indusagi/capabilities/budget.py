"""How much of an answer a model gets to read, and which part of a longer one.

Cutting works on whole lines as far as it can and never inside a character. The notice that says
what was left out comes on top of the budget. A long text is never encoded in one go: nothing else
would run meanwhile.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.runtime.contract import Keep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STANDARD_BYTES = 50 * 1024
STANDARD_LINES = 2_000
_HEAD_SHARE = 5
"""Of both ends, the head gets one part in this many: how a program ended tells more."""
_PIECE = 1024 * 1024
_MOST_BYTES_EACH = 6
"""Of one character: half a surrogate pair is written out."""


@dataclass(frozen=True, slots=True)
class OutputBudget:
    """The most that one result may bring to a model."""

    max_bytes: int
    max_lines: int

    def admits(self, text: str) -> bool:
        """Tell whether `text` fits as it is."""
        if len(text) > self.max_bytes or count_lines(text) > self.max_lines:
            return False
        return _MOST_BYTES_EACH * len(text) <= self.max_bytes or (len(_encoded(text)) <= self.max_bytes)


UNLIMITED = OutputBudget(sys.maxsize, sys.maxsize)
"""For a box that passes results on to somebody who has a budget of their own."""


def standard_budget() -> OutputBudget:
    """Give the budget of a result in a session: 50 KiB and 2,000 lines."""
    return OutputBudget(STANDARD_BYTES, STANDARD_LINES)


@dataclass(frozen=True, slots=True)
class Clipping:
    """The parts of a text that are shown; one of them is empty unless both ends are kept."""

    head: str
    tail: str
    lines: int
    """Lines of the whole text."""
    size: int
    """Bytes of the whole text."""

    @property
    def next_line(self) -> int:
        """The first line that is not shown whole, counted from 1."""
        return self.head.count("\n") + 1

    def render(self, notice: Callable[[Clipping], str]) -> str:
        """Put the notice where the text was cut."""
        parts = (self.head.removesuffix("\n"), notice(self), self.tail)
        return "\n".join(part for part in parts if part)


def clip(text: str, budget: OutputBudget, keep: Keep) -> Clipping:
    """Cut `text` down to the budget."""
    head, tail = _shares(budget, keep)
    size = sum(len(piece) for piece in encode_pieces(text))
    # A character is one byte at least, and one more tells what is cut from what ends there.
    front = _encoded(text[: head.max_bytes + 1])
    front = front[: _head_end(front, head)]
    back = _encoded(text[max(0, len(text) - tail.max_bytes - 1) :])
    back = back[_tail_start(back, tail, floor=max(0, len(front) - size + len(back))) :]
    return Clipping(front.decode("utf-8"), back.decode("utf-8"), count_lines(text), size)


def encode_pieces(text: str) -> Iterator[bytes]:
    """Encode a text of any length piece by piece; what is no character is written out."""
    for at in range(0, len(text), _PIECE):
        yield _encoded(text[at : at + _PIECE])


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def count_lines(text: str) -> int:
    """Count lines the way an editor does: a last line without its newline counts."""
    return text.count("\n") + (text[-1:] not in {"", "\n"})


def _shares(budget: OutputBudget, keep: Keep) -> tuple[OutputBudget, OutputBudget]:
    nothing = OutputBudget(0, 0)
    if keep is Keep.HEAD:
        return budget, nothing
    if keep is Keep.TAIL:
        return nothing, budget
    head = OutputBudget(budget.max_bytes // _HEAD_SHARE, budget.max_lines // _HEAD_SHARE)
    return head, OutputBudget(budget.max_bytes - head.max_bytes, budget.max_lines - head.max_lines)


def _head_end(data: bytes, budget: OutputBudget) -> int:
    """Find where the head ends: after whole lines, or inside the first one if it is too long."""
    end = min(len(data), budget.max_bytes)
    if end < len(data):
        newline = data.rfind(b"\n", 0, end)
        end = newline + 1 if newline >= 0 else _character_floor(data, end)
    at = 0
    for _ in range(min(budget.max_lines, end)):
        found = data.find(b"\n", at, end)
        if found < 0:
            return end
        at = found + 1
    return min(at, end)


def _tail_start(data: bytes, budget: OutputBudget, *, floor: int) -> int:
    """Find where the tail starts, not before `floor`."""
    start = max(floor, len(data) - budget.max_bytes)
    if start > floor:
        newline = data.find(b"\n", start - 1, len(data) - 1)
        start = newline + 1 if newline >= 0 else _character_ceiling(data, start)
    at = len(data)
    for _ in range(budget.max_lines):
        if at <= start:
            return start
        found = data.rfind(b"\n", start, at - 1)
        at = found + 1 if found >= 0 else start
    return max(at, start)


def _character_floor(data: bytes, at: int) -> int:
    while at and data[at] & 0xC0 == 0x80:
        at -= 1
    return at


def _character_ceiling(data: bytes, at: int) -> int:
    while at < len(data) and data[at] & 0xC0 == 0x80:
        at += 1
    return at
