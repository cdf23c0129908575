"""Line diffs between two versions of a file, as a patch for programs and as an excerpt for the model.

We compare lines as bytes, so patches work in any encoding. After trimming the common start and end, lines that occur
exactly once in each version anchor the rest (as in `git diff --patience`, see
https://git-scm.com/docs/git-diff#Documentation/git-diff.txt---patience). Only the lines between two anchors need a
search, with a bounded amount of work.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from indusagi.core.records import record
from indusagi.core.text import INVISIBLE, common_end, common_start

CONTEXT_LINES = 3
MAX_EXCERPT_LINES = 60
"""Enough to check a change; `read` shows more."""
LONGEST_LINE = 300
FIRST_LINES = 5
_NO_NEWLINE = b"\\ No newline at end of file\n"
_MAX_COMPARISONS = 20_000_000
"""Budget for lines between anchors; beyond it, the whole block counts as replaced."""
_C_ESCAPES = {7: "a", 8: "b", 9: "t", 10: "n", 11: "v", 12: "f", 13: "r", 34: '"', 92: "\\"}
_SURROGATE = re.compile("[\ud800-\udfff]")
_INVISIBLE = re.compile(f"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000{INVISIBLE}]")


@record
class LineBlock:
    """Lines `old_start:old_end` of the old version become `new_start:new_end`; 0-based."""

    old_start: int
    old_end: int
    new_start: int
    new_end: int


@record
class LineDiff:
    """Two versions of a file, trimmed to their differences plus context."""

    skipped: int
    """Number of trimmed lines at the start."""
    old: Sequence[bytes]
    new: Sequence[bytes]
    blocks: Sequence[LineBlock]
    added: int
    removed: int

    def hunks(self) -> Iterator[tuple[LineBlock, list[LineBlock]]]:
        """Yield groups of nearby blocks, each with the range it covers including context."""
        groups: list[list[LineBlock]] = []
        for block in self.blocks:
            if groups and block.old_start - groups[-1][-1].old_end <= 2 * CONTEXT_LINES:
                groups[-1].append(block)
            else:
                groups.append([block])
        for group in groups:
            first, last = group[0], group[-1]
            around = LineBlock(
                max(0, first.old_start - CONTEXT_LINES),
                min(len(self.old), last.old_end + CONTEXT_LINES),
                max(0, first.new_start - CONTEXT_LINES),
                min(len(self.new), last.new_end + CONTEXT_LINES),
            )
            yield around, group


def compare_lines(old: bytes, new: bytes) -> LineDiff:
    """Diff two versions of a file."""
    start = common_start(old, new)
    end = common_end(old, new, start)
    for _ in range(CONTEXT_LINES + 1):
        start = max(0, old.rfind(b"\n", 0, start))
    start += bool(start)
    old_lines = _split_lines(old, start, len(old) - end)
    new_lines = _split_lines(new, start, len(new) - end)
    blocks = list(_find_blocks(old_lines, new_lines))
    added = sum(block.new_end - block.new_start for block in blocks)
    removed = sum(block.old_end - block.old_start for block in blocks)
    return LineDiff(old.count(b"\n", 0, start), old_lines, new_lines, blocks, added, removed)


def _split_lines(data: bytes, start: int, end: int) -> list[bytes]:
    """Split part of a file into lines, keeping newlines and a few lines of context after `end`."""
    for _ in range(CONTEXT_LINES + 1):
        end = data.find(b"\n", end) + 1
        if not end:
            end = len(data)
            break
    lines = data[start:end].split(b"\n")
    last = lines.pop()
    ended = [line + b"\n" for line in lines]
    return [*ended, last] if last else ended


def _find_blocks(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[LineBlock]:
    whole = _trim(old, new, LineBlock(0, len(old), 0, len(new)))
    if whole is None:
        return
    old_lines, new_lines = old[whole.old_start : whole.old_end], new[whole.new_start : whole.new_end]
    if set(old_lines).isdisjoint(new_lines):
        yield whole
        return
    left = _MAX_COMPARISONS
    start, new_start = whole.old_start, whole.new_start
    for anchor, new_anchor in [*_find_anchors(old, new, whole), (whole.old_end, whole.new_end)]:
        block = _trim(old, new, LineBlock(start, anchor, new_start, new_anchor))
        start, new_start = anchor + 1, new_anchor + 1
        if block is None:
            continue
        counts = Counter(new[block.new_start : block.new_end])
        pairs = sum(counts[line] for line in old[block.old_start : block.old_end])
        cost = pairs * max(1, min(block.old_end - block.old_start, block.new_end - block.new_start))
        if cost == 0 or cost > left:
            yield block
        else:
            from difflib import SequenceMatcher  # noqa: PLC0415 — only for lines that anchors do not settle

            left -= cost
            first, new_first = block.old_start, block.new_start
            matcher = SequenceMatcher(None, old[first : block.old_end], new[new_first : block.new_end], autojunk=False)
            for tag, here, end, there, new_end in matcher.get_opcodes():
                if tag != "equal":
                    yield LineBlock(first + here, first + end, new_first + there, new_first + new_end)


def _trim(old: Sequence[bytes], new: Sequence[bytes], block: LineBlock) -> LineBlock | None:
    """Trim common lines from both ends of a block; None if nothing is left."""
    start, new_start, end, new_end = block.old_start, block.new_start, block.old_end, block.new_end
    while start < end and new_start < new_end and old[start] == new[new_start]:
        start, new_start = start + 1, new_start + 1
    while start < end and new_start < new_end and old[end - 1] == new[new_end - 1]:
        end, new_end = end - 1, new_end - 1
    return LineBlock(start, end, new_start, new_end) if start < end or new_start < new_end else None


def _find_anchors(old: Sequence[bytes], new: Sequence[bytes], block: LineBlock) -> list[tuple[int, int]]:
    """Pair lines that occur once on each side: the longest sequence in the same order on both."""
    new_unique = _find_unique(new, block.new_start, block.new_end)
    old_unique = _find_unique(old, block.old_start, block.old_end)
    pairs = sorted((index, new_unique[line]) for line, index in old_unique.items() if line in new_unique)
    # Longest increasing subsequence of the second members, by patience sorting.
    tops: list[int] = []
    top_pairs: list[int] = []
    previous = [-1] * len(pairs)
    for number, (_, value) in enumerate(pairs):
        pile = bisect_left(tops, value)
        previous[number] = top_pairs[pile - 1] if pile else -1
        tops[pile : pile + 1] = [value]
        top_pairs[pile : pile + 1] = [number]
    anchors: list[tuple[int, int]] = []
    number = top_pairs[-1] if top_pairs else -1
    while number >= 0:
        anchors.append(pairs[number])
        number = previous[number]
    return anchors[::-1]


def _find_unique(lines: Sequence[bytes], start: int, end: int) -> dict[bytes, int]:
    counts = Counter(lines[start:end])
    return {lines[index]: index for index in range(start, end) if counts[lines[index]] == 1}


def format_patch(diff: LineDiff, name: str, *, created: bool = False, limit: int | None = None) -> tuple[bytes, bool]:
    """Format a unified diff that `git apply` and `patch -p1` accept, and return whether it's complete.

    The format is https://www.gnu.org/software/diffutils/manual/html_node/Detailed-Unified.html with the header of
    https://git-scm.com/docs/diff-format. `name` is relative to the directory to apply the patch in. The patch is cut
    after `limit` bytes, at a line end.
    """
    if not diff.blocks and not created:
        return b"", True
    old_name, new_name = _quote_name(f"a/{name}"), _quote_name(f"b/{name}")
    parts = [b"diff --git %s %s\n" % (old_name, new_name)]
    if created:
        parts.append(b"new file mode 100644\n")
    if diff.blocks:
        # A tab terminates a name with spaces; otherwise the rest of the line could be a date.
        old_end, new_end = (b"\t" if b" " in n and not n.startswith(b'"') else b"" for n in (old_name, new_name))
        parts.append(b"--- %s\n" % (b"/dev/null" if created else old_name + old_end))
        parts.append(b"+++ %s\n" % (new_name + new_end))
    left = None if limit is None else limit - len(b"".join(parts))
    for line in _format_hunks(diff):
        if left is not None:
            left -= len(line)
            if left < 0:
                return b"".join(parts), False
        parts.append(line)
    return b"".join(parts), True


def _format_hunks(diff: LineDiff) -> Iterator[bytes]:
    for around, blocks in diff.hunks():
        ranges: list[bytes] = []
        for start, end in ((around.old_start, around.old_end), (around.new_start, around.new_end)):
            first = diff.skipped + start + (end > start)  # an empty range refers to the line before it
            ranges.append(b"%d" % first if end - start == 1 else b"%d,%d" % (first, end - start))
        yield b"@@ -%s +%s @@\n" % (ranges[0], ranges[1])
        position = around.old_start
        parts: list[tuple[bytes, Sequence[bytes]]] = []
        for block in blocks:
            parts.append((b" ", diff.old[position : block.old_start]))
            parts.append((b"-", diff.old[block.old_start : block.old_end]))
            parts.append((b"+", diff.new[block.new_start : block.new_end]))
            position = block.old_end
        parts.append((b" ", diff.old[position : around.old_end]))
        for mark, lines in parts:
            for line in lines:
                yield mark + line if line.endswith(b"\n") else mark + line + b"\n" + _NO_NEWLINE


def _quote_name(name: str) -> bytes:
    """Quote a path like git (`core.quotePath` in https://git-scm.com/docs/git-config) if necessary.

    We also quote a path that ends in a space, because `patch` would drop it.
    """
    raw = os.fsencode(name)
    if raw.isascii() and raw.decode("ascii").isprintable() and not raw.endswith(b" ") and not {*raw} & {*b'"\\'}:
        return raw
    quoted = "".join(
        f"\\{_C_ESCAPES[byte]}" if byte in _C_ESCAPES else chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}"
        for byte in raw
    )
    return f'"{quoted}"'.encode("ascii")


def format_excerpt(diff: LineDiff, encoding: str) -> str:
    """Format the changed lines of the new version, numbered and with context."""
    parts: list[str] = []
    left = MAX_EXCERPT_LINES
    hunks = list(diff.hunks())
    for shown, (around, _) in enumerate(hunks):
        if left <= 0:
            parts.append(f"… and {len(hunks) - shown} more places")
            break
        start, end = around.new_start, around.new_end
        ranges = [(start, end)]
        # Exceeding the limit by a few lines beats a gap of a few lines.
        if end - start > left + CONTEXT_LINES:
            tail = min(left // 2, 2 * CONTEXT_LINES)
            ranges = [(start, start + left - tail), (end - tail, end)]
        texts: list[str] = []
        for first, last in ranges:
            lines = (line.decode(encoding, "replace") for line in diff.new[first:last])
            texts.append(number_lines(enumerate(lines, diff.skipped + first + 1)))
        parts.append(f"\n     … {end - start - left} more lines\n".join(texts))
        left -= end - start
    return "\n     …\n".join(part for part in parts if part)


def number_lines(lines: Iterable[tuple[int, str]]) -> str:
    """Format lines like `read`, prefixed with their numbers."""
    return "\n".join(f"{number:6d}\t{format_line(line)}" for number, line in lines)


def format_line(line: str, limit: int = LONGEST_LINE) -> str:
    """Format one line without its ending, cutting it if it's too long."""
    text = line.rstrip("\r\n")
    more = f"… [+{len(text) - limit} chars]" if len(text) > limit else ""
    return (text[:limit] if text.isascii() else replace_surrogates(text[:limit])) + more


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which represent bytes that are invalid in the file's encoding."""
    return _SURROGATE.sub("\ufffd", text)


def format_visible(line: str) -> str:
    """Format one line with visible whitespace: · for a space, → for a tab."""
    text = format_line(line).replace(" ", "·").replace("\t", "→")
    return _INVISIBLE.sub(lambda match: f"\\u{ord(match.group()):04x}", text)


def format_first_lines(text: str) -> str:
    """Format the first lines of a text, numbered."""
    lines = text.removesuffix("\n").split("\n", FIRST_LINES)[:FIRST_LINES]
    return number_lines(enumerate(lines, 1)) if text else "(empty)"


def count_first_lines(text: str, *, is_cut: bool = False) -> int:
    """Count the lines that `format_first_lines` shows in full, up to the first one that's cut.

    `is_cut` says that the file continues, so the last line may be incomplete.
    """
    lines = text.removesuffix("\n").split("\n", FIRST_LINES)
    if is_cut or len(lines) > FIRST_LINES:
        lines = lines[: min(FIRST_LINES, len(lines) - 1)]
    for number, line in enumerate(lines):
        if format_line(line) != line.rstrip("\r"):
            return number
    return len(lines)
