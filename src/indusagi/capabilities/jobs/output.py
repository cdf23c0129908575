"""Output of a command: its last lines by number, and its text as a model gets it.

`LineRing` splits the output into lines as it arrives: a character may be split between two pieces, a line is open until
its newline, and a carriage return overwrites the line. Memory is bounded by the number of lines, the length of one, and
all of them together. `plain_text` removes escape sequences, overwritten progress and control characters.
"""

from __future__ import annotations

import codecs
import re
from collections import deque
from threading import Lock
from typing import TYPE_CHECKING

from indusagi.capabilities.budget import OutputBudget, clip
from indusagi.capabilities.files.text.display import find_invisible
from indusagi.capabilities.sandbox.capture import KEPT_HEAD_BYTES, KEPT_TAIL_BYTES
from indusagi.core.records import record
from indusagi.runtime.contract import Keep

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.capabilities.ports import ShellProcess

RING_LINES = 2_000
LINE_CHARS = 8 * 1024
RING_CHARS = 2 * 1024 * 1024
"""2,000 lines of the longest length would take 16 MiB."""
SPLIT_MARK = " …[line goes on]"
SHOWN_BYTES = 30_000
SHOWN_LINES = 1_900
_WHOLE_BYTES = 1024 * 1024
"""Up to this size the whole output is read: a progress bar writes much and leaves little."""
_HEAD_SHARE = 5
_SNIFFED_BYTES = 8 * 1024
_BINARY_SHARE = 0.3
# Every alternative starts with the same character; otherwise a megabyte takes fifty times as long. The sequences are
# those of ECMA-48 (https://ecma-international.org/publications-and-standards/standards/ecma-48/).
_ESCAPES = re.compile(
    r"\x1b(?:"
    r"\[[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor moves
    # Control strings: titles, clipboards. Without a terminator they end with the line, or the rest would be lost.
    r"|[\]PX^_](?:[^\x07\x1b]*(?:\x07|\x1b\\)|[^\x07\x1b\n]*)"
    r"|[ -/]*[0-~])"  # everything else
)
_SHORT_ESCAPE = re.compile(r"[\x80-\x9f]")
"""C1 control characters: an escape and the character after it in one."""
_OVERSTRUCK = re.compile(r"[^\n]\x08")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_CONTROL_BYTES = bytes({*range(32), 127} - {*b"\t\n"})
"""The same without C1, which `_SHORT_ESCAPE` handles."""


@record
class OutputLines:
    """Consecutive lines of an output."""

    first: int
    """The number of the first one, counted from 1."""
    texts: tuple[str, ...]
    dropped: int
    """How many of the requested lines are no longer kept."""
    open_line: str
    """The text after the last newline."""

    @property
    def last(self) -> int:
        """The number of the last complete line."""
        return self.first + len(self.texts) - 1

    @property
    def all_texts(self) -> tuple[str, ...]:
        """The complete lines, and the open one if it has text."""
        return (*self.texts, self.open_line) if self.open_line else self.texts


class LineRing:
    """The last lines of an output; fed in one thread and read in another."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._lock = Lock()
        self._lines: deque[str] = deque()
        self._chars = 0
        self._total = 0
        self._open = ""

    @property
    def total(self) -> int:
        """How many complete lines there have been."""
        return self._total

    @property
    def progress(self) -> tuple[int, int]:
        """A value that changes with every write: complete lines, and the length of the open one."""
        return self._total, len(self._open)

    def feed(self, data: bytes) -> None:
        """Take a piece of the output."""
        first, *more = self._decoder.decode(data).split("\n")
        complete, open_line = list[str](), self._open + first
        if more:
            complete, open_line = [open_line, *more[:-1]], more[-1]
            if max(map(len, complete)) > LINE_CHARS or any("\r" in line for line in complete):
                complete = [part for line in complete for part in _split_line(line)]
        # A carriage return at the end may be the first half of a line ending.
        open_line = open_line[open_line.rfind("\r", 0, -1) + 1 :]
        if len(open_line) > LINE_CHARS:
            *parts, open_line = _split_line(open_line)
            complete += parts
        # Only this much under the lock, so that readers wait little however much is written.
        with self._lock:
            self._open = open_line
            self._total += len(complete)
            kept = complete[-RING_LINES:]
            self._lines.extend(kept)
            self._chars += sum(map(len, kept))
            while len(self._lines) > RING_LINES or self._chars > RING_CHARS:
                self._chars -= len(self._lines.popleft())

    def after(self, number: int) -> OutputLines:
        """Return the kept lines after line `number`."""
        with self._lock:
            oldest = self._total - len(self._lines) + 1
            first = max(number + 1, oldest)
            texts = tuple(self._lines)[first - oldest :]
            return OutputLines(first, texts, first - number - 1, self._open.removesuffix("\r"))

    def last(self, count: int) -> OutputLines:
        """Return the last `count` lines."""
        return self.after(max(self._total - count, 0))


def _split_line(line: str) -> list[str]:
    """Return what a terminal shows of a complete line, in parts if it is too long."""
    shown = line.removesuffix("\r")
    shown = shown[shown.rfind("\r") + 1 :]
    if len(shown) <= LINE_CHARS:
        return [shown]
    parts = [shown[start : start + LINE_CHARS] + SPLIT_MARK for start in range(0, len(shown), LINE_CHARS)]
    return [*parts[:-1], parts[-1].removesuffix(SPLIT_MARK)]


def plain_text(data: bytes) -> str:
    """Decode an output as a terminal would show it."""
    text = data.decode("utf-8", "replace").replace("\r\n", "\n")
    if b"\xc2" in data:
        text = _SHORT_ESCAPE.sub(lambda match: f"\x1b{chr(ord(match[0]) - 0x40)}", text)
    text = _remove(_ESCAPES, text)
    if "\r" in text:
        text = "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    if "\x08" in text:
        text = _remove(_OVERSTRUCK, text)
    return text.encode().translate(None, _CONTROL_BYTES).decode()


def _remove(pattern: re.Pattern[str], text: str) -> str:
    """Remove all matches; unlike `sub` this releases the GIL between matches."""
    kept: list[str] = []
    start = 0
    for match in pattern.finditer(text):
        kept.append(text[start : match.start()])
        start = match.end()
    return "".join((*kept, text[start:])) if kept else text


def has_line_with(lines: Iterable[str], text: str) -> bool:
    """Tell whether a line, as it is shown, contains `text`."""
    return any(text in line or (_CONTROLS.search(line) and text in plain_text(line.encode())) for line in lines)


def hidden_note(text: str, first: int = 1) -> Sequence[str]:
    """Describe invisible characters in a shown output whose first line has the number `first`; empty without any."""
    hidden = find_invisible(enumerate(text.split("\n"), first))
    return [f"hidden characters: {', '.join(map(str, hidden))}"] if hidden else []


def is_binary(data: bytes) -> bool:
    """Tell whether an output is binary: it has a NUL byte, or too many characters that no terminal shows."""
    sample = data[:_SNIFFED_BYTES]
    if not sample:
        return False
    text = sample.decode("utf-8", "replace")
    odd = sum(1 for char in _ESCAPES.sub("", text) if char == "\ufffd" or _CONTROLS.match(char))
    return b"\0" in sample or odd > _BINARY_SHARE * len(text)


@record
class RenderedOutput:
    """The part of an output that a model gets."""

    text: str
    whole: bool
    """Whether nothing was left out."""


def render_output(process: ShellProcess, path: str | None) -> RenderedOutput:
    """Read the output of a command and cut it for a model; blocks.

    Args:
        process: The command.
        path: The file with the whole output, to be named in the text.

    Raises:
        OSError: The output could not be kept.
    """
    size = process.output_size()
    if is_binary(process.read_output(0, _SNIFFED_BYTES)):
        where = "" if path is None else f", kept in {path}"
        return RenderedOutput(f"[binary {size:,} bytes{where}]", whole=False)
    if size <= _WHOLE_BYTES:
        head = tail = plain_text(process.read_output())
        if OutputBudget(SHOWN_BYTES, SHOWN_LINES).admits(head):
            return RenderedOutput(head, whole=True)
    else:
        head = plain_text(process.read_output(0, _WHOLE_BYTES // 4))
        tail = plain_text(process.read_output(size - _WHOLE_BYTES))
    head_budget = OutputBudget(SHOWN_BYTES // _HEAD_SHARE, SHOWN_LINES // _HEAD_SHARE)
    tail_budget = OutputBudget(SHOWN_BYTES - head_budget.max_bytes, SHOWN_LINES - head_budget.max_lines)
    head = clip(head, head_budget, Keep.HEAD).head
    tail = clip(tail, tail_budget, Keep.TAIL).tail
    is_complete = size <= KEPT_HEAD_BYTES + KEPT_TAIL_BYTES
    what = "The whole is" if is_complete else "Its first and last 32 MiB are"
    where = "" if path is None else f" {what} in {path}: read it with an offset."
    left_out = max(size - len(head.encode()) - len(tail.encode()), 0)
    text = f"{head.rstrip()}\n[… about {left_out:,} of {size:,} bytes left out.{where}]\n{tail}"
    return RenderedOutput(text, whole=False)
