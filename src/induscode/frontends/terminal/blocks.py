"""Splits a Markdown stream (https://spec.commonmark.org) into blocks.

A block is finished when the next one starts: text at an empty line, a code fence at its end, a list at the first line
that isn't part of it. Text is anything else, with its headings, quotes and indented code. Lines are classified when
complete, so blocks depend only on the text, never on how it was chunked. A block that grows too long is emitted in
parts; every character ends up in exactly one part.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from indusagi.core.records import record

BlockKind: TypeAlias = Literal["text", "fence", "list", "table"]

MAX_TEXT_CHARS = 4_000
MAX_CODE_CHARS = 16_000
"""Limits of an unfinished block: code and tables get the larger one."""
MAX_LINES = 200
LIST_LINES = 12
"""A list of this many lines is emitted up to its next item."""
_RULE = re.compile(r" {0,3}([-*_])[ \t]*(?:\1[ \t]*){2,}$")
_HEADING = re.compile(r" {0,3}#{1,6}(?:[ \t]|$)")
_FENCE = re.compile(r"( *)(`{3,}(?=[^`]*$)|~{3,})[ \t]*(.*?)[ \t]*$")
_ITEM = re.compile(r"( *)(?:([-*+])|(\d{1,9})([.)]))(?=[ \t]|$)")
_QUOTE = re.compile(r" {0,3}>")
_TABLE_LINE = re.compile(r" {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$")
_NEXT_WORD = re.compile(r"[ \t](?=[^\W\d_])")
_TEXT_INDENT = 2
"""A line indented by this much below a list belongs to its last item."""
_CODE_INDENT = 4


@record(kw_only=True)
class MarkdownBlock:
    """A finished block, or part of one."""

    kind: BlockKind
    text: str
    """Its lines; for a code fence, the lines between the marks."""
    info: str = ""
    """The info string of a code fence: its language."""
    is_first: bool = True
    """Whether it starts a block."""
    is_last: bool = True
    """Whether it ends the block."""


@dataclass(slots=True)
class _OpenBlock:
    """The block the next line may still belong to."""

    kind: BlockKind = "text"
    lines: list[str] = field(default_factory=list[str])
    chars: int = 0
    is_first: bool = True
    mark: str = ""
    """Opening mark of a code fence, or list marker."""
    info: str = ""
    indent: int = 0
    number: int = 0
    """Number of the next item of an ordered list."""
    head: Sequence[str] = ()
    """First two lines of a table, repeated above each part."""
    inner_fence: str = ""
    """Opening mark of a code fence inside a list."""

    @property
    def max_chars(self) -> int:
        return MAX_CODE_CHARS if self.kind in {"fence", "table"} else MAX_TEXT_CHARS


class BlockSplitter:
    """Collects chunks of text and emits blocks as they're finished."""

    def __init__(self) -> None:
        self._open = _OpenBlock()
        self._line = ""
        """The incomplete last line."""
        self._finished: list[MarkdownBlock] = []

    def feed(self, text: str) -> Sequence[MarkdownBlock]:
        """Add a chunk and return the blocks it finishes."""
        first, *rest = text.split("\n")
        self._add_to_line(first)
        for segment in rest:
            line, self._line = self._line.removesuffix("\r"), ""
            self._take_line(line)
            self._limit_block()
            self._add_to_line(segment)
        finished, self._finished = self._finished, []
        return finished

    def finish(self) -> Sequence[MarkdownBlock]:
        """End the text and return the rest of its blocks."""
        if self._line:
            line, self._line = self._line.removesuffix("\r"), ""
            self._take_line(line)
        self._close()
        finished, self._finished = self._finished, []
        return finished

    def pending_lines(self) -> Sequence[str]:
        """Return the lines of the unfinished block as written."""
        lines = self._open.lines
        if self._open.kind == "fence" and self._open.is_first:
            lines = [f"{self._open.mark}{self._open.info}", *lines]
        return [*lines, self._line] if self._line else lines

    # -- limits -----------------------------------------------------------------------------

    def _add_to_line(self, segment: str) -> None:
        self._line += segment
        self._limit_block()
        while len(self._line) >= self._open.max_chars:
            end = self._open.max_chars
            if self._open.kind != "fence":
                # Make the rest start with a letter, so that it doesn't look like a heading or a list.
                breaks = [match.end() for match in _NEXT_WORD.finditer(self._line, 0, end)]
                end = breaks[-1] if breaks else end
            piece, self._line = self._line[:end], self._line[end:]
            self._take_line(piece)
            self._close(is_last=False)

    def _limit_block(self) -> None:
        block = self._open
        is_long = block.chars + len(self._line) >= block.max_chars or len(block.lines) >= MAX_LINES
        if is_long and block.lines:
            self._close(is_last=False)

    def _close(self, *, is_last: bool = True) -> None:
        """Emit the lines of the open block. Without `is_last` the block goes on."""
        block = self._open
        lines = block.lines
        if block.kind != "fence":
            while lines and not lines[-1].strip():
                lines.pop()
        if lines or (block.kind == "fence" and is_last):
            if block.kind == "table" and not block.is_first:
                lines = [*block.head, *lines]
            finished = MarkdownBlock(
                kind=block.kind, text="\n".join(lines), info=block.info, is_first=block.is_first, is_last=is_last
            )
            self._finished.append(finished)
            block.is_first = False
        block.lines, block.chars = [], 0
        if is_last:
            self._open = _OpenBlock()
        elif block.kind == "list" and not block.inner_fence:
            # The rest is rarely a list by itself; its next marker makes it one again.
            self._open = _OpenBlock(is_first=False)

    # -- lines ------------------------------------------------------------------------------

    def _append(self, line: str) -> None:
        self._open.lines.append(line)
        self._open.chars += len(line) + 1

    def _begin(self, kind: BlockKind, line: str) -> _OpenBlock:
        """Start a block with a line."""
        self._close()
        self._open.kind = kind
        self._append(line)
        return self._open

    def _take_line(self, line: str) -> None:
        """Add a complete line to the open block, or start the next one with it."""
        spaced = line.expandtabs(_CODE_INDENT)
        block = self._open
        if block.kind == "fence" and _closes_fence(spaced, block.mark):
            self._close()
        elif block.kind == "fence":
            removed = min(block.indent, len(line) - len(line.lstrip(" ")))
            self._append(line[removed:])
        elif self._open.kind == "list" and self._continue_list(line, spaced):
            return
        elif not spaced.strip():
            if self._open.lines:
                self._close()
            elif not self._open.is_first:
                self._open = _OpenBlock()
        else:
            self._begin_or_continue(line, spaced)

    def _begin_or_continue(self, line: str, spaced: str) -> None:
        block = self._open
        is_text = block.kind == "text" and bool(block.lines)
        if is_text and "|" in block.lines[-1] and _TABLE_LINE.match(spaced):
            head = block.lines.pop()
            opened = self._begin("table", head) if block.lines else block
            if opened is block:
                block.kind, block.chars = "table", 0
                self._append(head)
            self._append(line)
            self._open.head = (head, line)
        elif self._begin_fence(spaced) or self._begin_list(line, spaced, interrupts=is_text):
            return
        elif block.kind == "list":
            self._begin("text", line)
        else:
            self._append(line)

    def _begin_fence(self, spaced: str) -> bool:
        match = _FENCE.match(spaced)
        if match is None or len(match[1]) >= _CODE_INDENT:
            return False
        block = self._begin("fence", "")
        block.lines, block.chars = [], 0
        block.indent, block.mark, block.info = len(match[1]), match[2], match[3]
        return True

    def _begin_list(self, line: str, spaced: str, *, interrupts: bool) -> bool:
        match = _ITEM.match(spaced)
        if match is None or len(match[1]) >= _CODE_INDENT or _RULE.match(spaced):
            return False
        # https://spec.commonmark.org/0.31.2/#list-items: a number other than 1 doesn't interrupt a paragraph.
        if interrupts and (match[3] not in {None, "1"} or not spaced[match.end() :].strip()):
            return False
        block = self._begin("list", line)
        block.indent, block.mark = len(match[1]), match[2] or match[4]
        block.number = int(match[3] or 0) + 1
        return True

    def _continue_list(self, line: str, spaced: str) -> bool:
        """Add a line to the open list; return False if it isn't part of it."""
        block = self._open
        indent = len(spaced) - len(spaced.lstrip(" "))
        fence = _FENCE.match(spaced)
        if not spaced.strip() or (block.inner_fence and indent >= _TEXT_INDENT):
            if _closes_fence(spaced.lstrip(" "), block.inner_fence):
                block.inner_fence = ""
            self._append(line)
            return True
        block.inner_fence = ""
        item = _ITEM.match(spaced)
        if item is not None and indent < block.indent + _TEXT_INDENT and not _RULE.match(spaced):
            if (item[2] or item[4]) != block.mark:
                return False
            number = block.number
            if len(block.lines) >= LIST_LINES:
                self._close(is_last=False)
                # Keep the item's number in the whole list.
                line = re.sub(r"\d+", str(number), spaced, count=1) if item[3] else line
                block = self._begin("list", line)
                block.is_first = False
                block.indent, block.mark = indent, item[2] or item[4]
            else:
                self._append(line)
            block.number = number + 1
            return True
        if indent >= _TEXT_INDENT:
            block.inner_fence = fence[2] if fence else ""
            self._append(line)
            return True
        follows_text = bool(block.lines) and bool(block.lines[-1].strip())
        begins = fence or any(pattern.match(spaced) for pattern in (_HEADING, _RULE, _QUOTE))
        if not follows_text or begins:
            return False
        self._append(line)
        return True


def _closes_fence(spaced: str, mark: str) -> bool:
    """Return whether a line closes a code fence."""
    text = spaced.strip()
    indent = len(spaced) - len(spaced.lstrip(" "))
    return bool(mark) and indent < _CODE_INDENT and len(text) >= len(mark) and set(text) == {mark[0]}


# -- cells ------------------------------------------------------------------------------------
#
# ASCII text and our own signs are as wide as they're long. Only other characters need rich's width table, which loads
# on first use.


_WORDS = re.compile(r" *[^ ]+| +")
_NARROW = dict.fromkeys(map(ord, "…·−→✓✗⊘●▸━─"), "x")  # noqa: RUF001 — a minus
"""Our own signs, which are one cell wide."""


def measure_cells(text: str) -> int:
    """Return the cell width of text without control characters."""
    if text.isascii() or text.translate(_NARROW).isascii():
        return len(text)
    from rich.cells import cell_len  # noqa: PLC0415 — loads the width table, which most output doesn't need

    return cell_len(text)


def cut_to_cells(text: str, width: int) -> str:
    """Truncate text to `width` cells, ending in an ellipsis."""
    if width <= 0:
        return ""
    return text if measure_cells(text) <= width else _split_at(text, width - 1)[0] + "…"


def wrap_to_cells(text: str, width: int) -> Iterator[str]:
    """Yield the rows of one line, at most `width` cells each, breaking at spaces and inside overlong words.

    Keeps spaces at the start of the line and between words, but drops them at row ends.
    """
    row, used = "", 0
    for match in _WORDS.finditer(text):
        word = match[0]
        size = measure_cells(word)
        if row and used + size > width:
            yield row
            word, row, used = word.lstrip(" "), "", 0
            size = measure_cells(word)
        while size > width:
            head, rest = _split_at(word, width)
            if not head:  # a two-cell character in a one-cell row
                head, rest = word[:1], word[1:]
            yield head
            word = rest
            size = measure_cells(word)
        row, used = row + word, used + size
    yield row.rstrip(" ")


def _split_at(text: str, width: int) -> tuple[str, str]:
    """Split text after the last character that ends within `width` cells."""
    if text.isascii():
        return text[:width], text[width:]
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        if measure_cells(text[:middle]) <= width:
            low = middle
        else:
            high = middle - 1
    return text[:low], text[low:]
