"""The last lines a program wrote, under the numbers they have in all that it wrote.

Pieces come as the pipe gives them and are made lines here: a character may be torn between two
pieces, a line is open until its newline comes, and what a progress bar writes over is gone. Memory
is bounded by lines, by the length of one, and by all of them together.
"""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass
from threading import Lock

RING_LINES = 2_000
LINE_CHARS = 8 * 1024
RING_CHARS = 2 * 1024 * 1024
"""Lines of that length would make 16 MiB of the ring."""
SPLIT_MARK = " …[line goes on]"


@dataclass(frozen=True, slots=True)
class OutputLines:
    """Lines from a ring."""

    first: int
    """The number of the first one, counted from 1."""
    texts: tuple[str, ...]
    dropped: int
    """How many of those asked for are no longer kept."""
    open_line: str
    """What follows the last newline."""

    @property
    def last(self) -> int:
        """The number of the last whole line."""
        return self.first + len(self.texts) - 1


class LineRing:
    """Takes pieces in one thread and gives lines in another."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lock = Lock()
        self._lines: deque[str] = deque()
        self._chars = 0
        self._total = 0
        self._open = ""

    @property
    def total(self) -> int:
        """How many whole lines there have been."""
        return self._total

    @property
    def seen(self) -> tuple[int, int]:
        """What changes with everything that is written: whole lines, and the open one's length."""
        return self._total, len(self._open)

    def feed(self, data: bytes) -> None:
        """Take a piece of the output."""
        first, *more = self._decoder.decode(data).split("\n")
        ended, open_line = list[str](), self._open + first
        if more:
            ended, open_line = [open_line, *more[:-1]], more[-1]
            if max(map(len, ended)) > LINE_CHARS or any("\r" in line for line in ended):
                ended = [part for line in ended for part in _parts(line)]
        # The last character may be the first half of a line end.
        open_line = open_line[open_line.rfind("\r", 0, -1) + 1 :]
        if len(open_line) > LINE_CHARS:
            *whole, open_line = _parts(open_line)
            ended += whole
        # Whoever asks for lines waits for no more than this, however much is written.
        with self._lock:
            self._open = open_line
            self._add(ended)

    def _add(self, ended: list[str]) -> None:
        self._total += len(ended)
        kept = ended[-RING_LINES:]
        self._lines.extend(kept)
        self._chars += sum(map(len, kept))
        while len(self._lines) > RING_LINES or self._chars > RING_CHARS:
            self._chars -= len(self._lines.popleft())

    def after(self, number: int) -> OutputLines:
        """Give the lines after the one of this number, as far as they are kept."""
        with self._lock:
            oldest = self._total - len(self._lines) + 1
            first = max(number + 1, oldest)
            texts = tuple(self._lines)[first - oldest :]
            return OutputLines(first, texts, first - number - 1, self._open.removesuffix("\r"))

    def last(self, count: int) -> OutputLines:
        """Give the last lines."""
        return self.after(max(self._total - count, 0))


def _parts(line: str) -> list[str]:
    """Make an ended line what a terminal would show, in parts if it is too long."""
    shown = line.removesuffix("\r")
    shown = shown[shown.rfind("\r") + 1 :]
    if len(shown) <= LINE_CHARS:
        return [shown]
    cuts = range(0, len(shown), LINE_CHARS)
    parts = [shown[at : at + LINE_CHARS] + SPLIT_MARK for at in cuts]
    return [*parts[:-1], parts[-1].removesuffix(SPLIT_MARK)]
