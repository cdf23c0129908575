"""What changed in a file: the lines that differ, and a patch that other programs can apply.

Lines are compared as bytes, so that a patch is right whatever the encoding. What both versions
begin and end with is set aside first; lines that occur once in each tie the rest together; only
what lies between them is searched, and no longer than a fixed amount of work.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.core.text import common_end, common_start

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

CONTEXT_LINES = 3
_NO_NEWLINE = b"\\ No newline at end of file\n"
_WORK = 20_000_000
"""Comparisons that are spent on what unique lines do not settle; the rest is told as replaced."""


@dataclass(frozen=True, slots=True)
class Block:
    """Lines `old_start` up to `old_end`, which gave way to `new_start` up to `new_end`; from 0."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int

    @property
    def empty(self) -> bool:
        """Whether there is nothing on either side."""
        return self.old_start == self.old_end and self.new_start == self.new_end


@dataclass(frozen=True, slots=True)
class LineDiff:
    """Two versions of a file, line by line, and where they differ.

    What both begin and end with is left out, but for a few lines of context.
    """

    skipped: int
    """Lines before the first that is here, the same in both."""
    old: Sequence[bytes]
    new: Sequence[bytes]
    blocks: Sequence[Block]

    @property
    def added(self) -> int:
        """How many lines of the new version are not in the old one."""
        return sum(block.new_end - block.new_start for block in self.blocks)

    @property
    def removed(self) -> int:
        """How many lines of the old version are not in the new one."""
        return sum(block.old_end - block.old_start for block in self.blocks)

    def hunks(self) -> Iterator[tuple[Block, list[Block]]]:
        """Give blocks that are near each other together, with the context around them."""
        group: list[Block] = []
        for block in self.blocks:
            if group and block.old_start - group[-1].old_end > 2 * CONTEXT_LINES:
                yield self._around(group), group
                group = []
            group.append(block)
        if group:
            yield self._around(group), group

    def _around(self, group: Sequence[Block]) -> Block:
        first, last = group[0], group[-1]
        return Block(
            max(0, first.old_start - CONTEXT_LINES),
            min(len(self.old), last.old_end + CONTEXT_LINES),
            max(0, first.new_start - CONTEXT_LINES),
            min(len(self.new), last.new_end + CONTEXT_LINES),
        )


def compare(old: bytes, new: bytes) -> LineDiff:
    """Find the lines in which two versions of a file differ."""
    start = common_start(old, new)
    end = common_end(old, new, start)
    start = _lines_before(old, start)
    before = _lines(old[start : _lines_after(old, len(old) - end)])
    after = _lines(new[start : _lines_after(new, len(new) - end)])
    return LineDiff(old.count(b"\n", 0, start), before, after, list(_blocks(before, after)))


def patch_of(diff: LineDiff, name: str, *, created: bool = False, most: int | None = None) -> tuple[bytes, bool]:
    """Write a unified diff that `git apply` and `patch -p1` take.

    Args:
        diff: What changed.
        name: The path below the directory in which the patch is applied.
        created: There was no such file.
        most: Bytes at which it is cut, after a whole line.

    Returns:
        The patch, and whether it is whole.
    """
    if not diff.blocks and not created:
        return b"", True
    old_name, new_name = _quoted(f"a/{name}"), _quoted(f"b/{name}")
    parts = [b"diff --git %s %s\n" % (old_name, new_name)]
    if created:
        parts.append(b"new file mode 100644\n")
    if diff.blocks:
        parts.append(b"--- %s\n" % (b"/dev/null" if created else _ended(old_name)))
        parts.append(b"+++ %s\n" % _ended(new_name))
    left = None if most is None else most - len(b"".join(parts))
    for around, blocks in diff.hunks():
        for part in _hunk(diff, around, blocks):
            if left is not None:
                left -= len(part)
                if left < 0:
                    return b"".join(parts), False
            parts.append(part)
    return b"".join(parts), True


def _lines_before(data: bytes, at: int) -> int:
    """Go back to the start of a line, and some lines further."""
    for _ in range(CONTEXT_LINES + 1):
        at = data.rfind(b"\n", 0, at)
        if at < 0:
            return 0
    return at + 1


def _lines_after(data: bytes, at: int) -> int:
    """Go on to the end of a line, and some lines further."""
    for _ in range(CONTEXT_LINES + 1):
        at = data.find(b"\n", at) + 1
        if not at:
            return len(data)
    return at


def _lines(data: bytes) -> list[bytes]:
    lines = data.split(b"\n")
    last = lines.pop()
    ended = [line + b"\n" for line in lines]
    return [*ended, last] if last else ended


def _blocks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[Block]:
    whole = _trimmed(old, new, Block(0, len(old), 0, len(new)))
    one_sided = whole.old_start == whole.old_end or whole.new_start == whole.new_end
    anchors = [] if one_sided else _anchors(old, new, whole)
    work = _WORK
    for gap in _between(anchors, whole):
        block = _trimmed(old, new, gap)
        if block.empty:
            continue
        cost = 0 if one_sided else _cost(old, new, block)
        if cost == 0 or cost > work:
            yield block
        else:
            work -= cost
            yield from _searched(old, new, block)


def _trimmed(old: Sequence[bytes], new: Sequence[bytes], block: Block) -> Block:
    """Set aside what both parts begin and end with."""
    start, new_start, end, new_end = block.old_start, block.new_start, block.old_end, block.new_end
    while start < end and new_start < new_end and old[start] == new[new_start]:
        start, new_start = start + 1, new_start + 1
    while start < end and new_start < new_end and old[end - 1] == new[new_end - 1]:
        end, new_end = end - 1, new_end - 1
    return Block(start, end, new_start, new_end)


def _anchors(old: Sequence[bytes], new: Sequence[bytes], block: Block) -> list[tuple[int, int]]:
    """Pair lines that occur once on either side, as many as keep their order."""
    there = _singles(new, block.new_start, block.new_end)
    here = _singles(old, block.old_start, block.old_end)
    pairs = sorted((at, there[line]) for line, at in here.items() if line in there)
    return _rising(pairs)


def _singles(lines: Sequence[bytes], start: int, end: int) -> dict[bytes, int]:
    counts = Counter(lines[start:end])
    return {lines[at]: at for at in range(start, end) if counts[lines[at]] == 1}


def _rising(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Keep the longest run of pairs in which the second rises with the first."""
    tops: list[int] = []
    holders: list[int] = []
    before = [-1] * len(pairs)
    for at, (_, value) in enumerate(pairs):
        place = bisect_left(tops, value)
        before[at] = holders[place - 1] if place else -1
        tops[place : place + 1] = [value]
        holders[place : place + 1] = [at]
    run: list[tuple[int, int]] = []
    at = holders[-1] if holders else -1
    while at >= 0:
        run.append(pairs[at])
        at = before[at]
    return run[::-1]


def _between(anchors: Iterable[tuple[int, int]], whole: Block) -> Iterator[Block]:
    start, new_start = whole.old_start, whole.new_start
    for at, new_at in [*anchors, (whole.old_end, whole.new_end)]:
        if start < at or new_start < new_at:
            yield Block(start, at, new_start, new_at)
        start, new_start = at + 1, new_at + 1


def _cost(old: Sequence[bytes], new: Sequence[bytes], block: Block) -> int:
    """Estimate the work of searching a block: none where the two sides share no line."""
    counts = Counter(new[block.new_start : block.new_end])
    pairs = sum(counts[line] for line in old[block.old_start : block.old_end])
    size = min(block.old_end - block.old_start, block.new_end - block.new_start)
    return pairs * max(size, 1)


def _searched(old: Sequence[bytes], new: Sequence[bytes], block: Block) -> Iterator[Block]:
    from difflib import SequenceMatcher  # noqa: PLC0415 — only for what is not settled by then

    here = old[block.old_start : block.old_end]
    there = new[block.new_start : block.new_end]
    matcher = SequenceMatcher(None, here, there, autojunk=False)
    for tag, start, end, new_start, new_end in matcher.get_opcodes():
        if tag != "equal":
            yield Block(
                block.old_start + start, block.old_start + end, block.new_start + new_start, block.new_start + new_end
            )


def _hunk(diff: LineDiff, around: Block, blocks: Sequence[Block]) -> Iterator[bytes]:
    old_range = _range(diff.skipped + around.old_start, diff.skipped + around.old_end)
    new_range = _range(diff.skipped + around.new_start, diff.skipped + around.new_end)
    yield b"@@ -%s +%s @@\n" % (old_range, new_range)
    at = around.old_start
    for block in blocks:
        yield from _marked(b" ", diff.old[at : block.old_start])
        yield from _marked(b"-", diff.old[block.old_start : block.old_end])
        yield from _marked(b"+", diff.new[block.new_start : block.new_end])
        at = block.old_end
    yield from _marked(b" ", diff.old[at : around.old_end])


def _range(start: int, end: int) -> bytes:
    count = end - start
    first = start + 1 if count else start
    return b"%d" % first if count == 1 else b"%d,%d" % (first, count)


def _marked(mark: bytes, lines: Iterable[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line if line.endswith(b"\n") else mark + line + b"\n" + _NO_NEWLINE


def _quoted(name: str) -> bytes:
    """Write a path the way git does: in quotes where it holds what would end it.

    Also one that ends in a blank, of which `patch` would take the blank away.
    """
    raw = os.fsencode(name)
    if all(0x20 <= byte < 0x7F and byte not in b'"\\' for byte in raw) and raw[-1:] != b" ":
        return raw
    escapes = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
    written = "".join(
        f"\\{escapes[byte]}" if byte in escapes else chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
        for byte in raw
    )
    return f'"{written}"'.encode("ascii")


def _ended(name: bytes) -> bytes:
    """Mark where a name with blanks in it ends; what follows could be a date."""
    return name + b"\t" if b" " in name and not name.startswith(b'"') else name
