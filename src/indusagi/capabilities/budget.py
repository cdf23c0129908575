"""Output budget: how many bytes and lines of a result a model gets, and which part of a longer one.

Cuts are made at line ends where possible, and never inside a character. The notice about the rest is not counted.
A long text is encoded in pieces, because encoding holds the GIL.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.runtime.contract import Keep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STANDARD_BYTES = 50 * 1024
STANDARD_LINES = 2_000
_HEAD_SHARE = 5
"""Of both ends, the head gets one part in this many: the end of an output says more."""
_PIECE = 1024 * 1024
_MOST_BYTES_EACH = 6
"""Of one character: half a surrogate pair is escaped as `\\ud800`."""


@record
class OutputBudget:
    """The most bytes and lines of one result."""

    max_bytes: int
    max_lines: int

    def admits(self, text: str) -> bool:
        """Tell whether `text` fits as it is."""
        if len(text) > self.max_bytes or count_lines(text) > self.max_lines:
            return False
        return _MOST_BYTES_EACH * len(text) <= self.max_bytes or (len(_encode(text)) <= self.max_bytes)


UNLIMITED = OutputBudget(sys.maxsize, sys.maxsize)
"""For a toolbox that passes results on to a client with a budget of its own."""


def standard_budget() -> OutputBudget:
    """Return the budget of a result in a session: 50 KiB and 2,000 lines."""
    return OutputBudget(STANDARD_BYTES, STANDARD_LINES)


@record
class Clipping:
    """The kept parts of a text; one of them is empty unless both ends are kept."""

    head: str
    tail: str
    lines: int
    """Lines of the whole text."""
    size: int
    """Bytes of the whole text."""

    @property
    def next_line(self) -> int:
        """The first line that is not complete, counted from 1."""
        return self.head.count("\n") + 1

    def render(self, notice: Callable[[Clipping], str]) -> str:
        """Join the parts, with a notice at the cut."""
        parts = (self.head.removesuffix("\n"), notice(self), self.tail)
        return "\n".join(part for part in parts if part)


def clip(text: str, budget: OutputBudget, keep: Keep) -> Clipping:
    """Cut `text` down to the budget."""
    part, whole = {Keep.HEAD: (1, 1), Keep.TAIL: (0, 1), Keep.ENDS: (1, _HEAD_SHARE)}[keep]
    head = OutputBudget(budget.max_bytes * part // whole, budget.max_lines * part // whole)
    tail = OutputBudget(budget.max_bytes - head.max_bytes, budget.max_lines - head.max_lines)
    size = sum(len(piece) for piece in encode_pieces(text))
    # A character has at least one byte; one more character shows whether the text ends there.
    front = _encode(text[: head.max_bytes + 1])
    front = front[: _head_end(front, head)]
    back = _encode(text[max(0, len(text) - tail.max_bytes - 1) :])
    back = back[_tail_start(back, tail, floor=max(0, len(front) - size + len(back))) :]
    return Clipping(front.decode("utf-8"), back.decode("utf-8"), count_lines(text), size)


def encode_pieces(text: str) -> Iterator[bytes]:
    """Encode a text in pieces; half a surrogate pair is escaped."""
    for start in range(0, len(text), _PIECE):
        yield _encode(text[start : start + _PIECE])


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def count_lines(text: str) -> int:
    """Count lines as an editor does: a last line without a newline counts."""
    return text.count("\n") + (text[-1:] not in {"", "\n"})


def _head_end(data: bytes, budget: OutputBudget) -> int:
    """Find the end of the head: after complete lines, or inside the first one if it is too long."""
    end = min(len(data), budget.max_bytes)
    if end < len(data):
        newline = data.rfind(b"\n", 0, end)
        end = newline + 1 if newline >= 0 else _skip_continuation(data, end, -1)
    line_end = 0
    for _ in range(min(budget.max_lines, end)):
        newline = data.find(b"\n", line_end, end)
        if newline < 0:
            return end
        line_end = newline + 1
    return min(line_end, end)


def _tail_start(data: bytes, budget: OutputBudget, *, floor: int) -> int:
    """Find where the tail starts, not before `floor`."""
    start = max(floor, len(data) - budget.max_bytes)
    if start > floor:
        newline = data.find(b"\n", start - 1, len(data) - 1)
        start = newline + 1 if newline >= 0 else _skip_continuation(data, start, 1)
    line_start = len(data)
    for _ in range(budget.max_lines):
        if line_start <= start:
            return start
        newline = data.rfind(b"\n", start, line_start - 1)
        line_start = newline + 1 if newline >= 0 else start
    return max(line_start, start)


def _skip_continuation(data: bytes, index: int, step: int) -> int:
    """Move an index off the continuation bytes of a UTF-8 character (RFC 3629 §3)."""
    while 0 < index < len(data) and data[index] & 0xC0 == 0x80:
        index += step
    return index
