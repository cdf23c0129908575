"""Lines of a text as `read` shows them: numbered, between two lines that tell what they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.capabilities.files.text.invisible import find_invisible
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from indusagi.capabilities.files.text.codec import TextForm
    from indusagi.capabilities.files.text.lines import Scan, Wanted
    from indusagi.core.json import JsonValue

_GUTTER = 6
_SMALLEST_LINE = _GUTTER + 2


@dataclass(frozen=True, slots=True)
class NumberedLines:
    """Lines that fit a budget."""

    lines: Sequence[tuple[int, str]]

    @property
    def first(self) -> int:
        """The number of the first line."""
        return self.lines[0][0]

    @property
    def last(self) -> int:
        """The number of the last line."""
        return self.lines[-1][0]

    def __str__(self) -> str:
        return "\n".join(f"{number:{_GUTTER}}\t{text}" for number, text in self.lines)


def fitting(lines: Iterable[tuple[int, str]], most_bytes: int) -> NumberedLines:
    """Take as many lines as fit, one at least."""
    taken: list[tuple[int, str]] = []
    left = most_bytes
    for number, text in lines:
        left -= len(text.encode("utf-8")) + _SMALLEST_LINE
        if left < 0 and taken:
            break
        taken.append((number, text))
    return NumberedLines(taken)


def show_lines(scan: Scan, wanted: Wanted, name: str, known: dict[str, JsonValue], *, note: str = "") -> ToolResult:
    """Answer with the lines that were found; a note stands above them."""
    known = {**known, "kind": "text", **_facts(scan)}
    if not scan.lines:
        return _nothing(scan, wanted, name, known)
    nul = next((line.number for line in scan.lines if b"\0" in line.head), None)
    if nul is not None:
        why = f"line {nul} of {name} holds NUL characters and is not text; other lines may be"
        return ToolResult.error(why, code="binary", **known)
    shown = fitting(((line.number, line.shown(scan.form)) for line in scan.lines), wanted.most_bytes)
    at_end = shown.last == scan.total
    parts = [_head(scan, shown, note), str(shown), _tail(scan, shown, at_end=at_end)]
    following = None if at_end else shown.last + 1
    known.update(first=shown.first, last=shown.last, next=following)
    return ToolResult.text("\n".join(part for part in parts if part), **known)


def _facts(scan: Scan) -> dict[str, JsonValue]:
    return {
        "encoding": scan.form.encoding,
        "ending": scan.form.line_ending,
        "mark": bool(scan.form.bom),
        "bytes": scan.size,
        "lines": scan.total,
        "digest": scan.digest,
    }


def _nothing(scan: Scan, wanted: Wanted, name: str, known: dict[str, JsonValue]) -> ToolResult:
    if scan.total == 0:
        but = " but for a byte order mark" if scan.form.bom else ""
        return ToolResult.text(f"[{name} is empty{but}]", **known)
    if scan.total is None:
        why = f"{name} is too large to look for these lines: read it from the start, or use tail or sed in a shell"
        return ToolResult.error(why, code="too_large", **known)
    lines = "1 line" if scan.total == 1 else f"{scan.total:,} lines"
    # Nothing was shown, so nothing is to be remembered as seen.
    why = f"offset {wanted.first:,} is past the end: {name} has {lines}"
    return ToolResult.error(why, code="not_found", **known)


def _head(scan: Scan, shown: NumberedLines, note: str) -> str:
    notes = [note] if note else []
    notes.extend(_form_notes(scan.form, scan.crlf, scan.total))
    hidden = find_invisible(shown.lines)
    if hidden:
        notes.append("hidden characters: " + ", ".join(str(kind) for kind in hidden))
    return f"[{'; '.join(notes)}]" if notes else ""


def _form_notes(form: TextForm, crlf: int, total: int | None) -> Iterable[str]:
    if form.encoding != "utf-8":
        yield f"encoding: {form.encoding}" + (" (guessed)" if form.guessed else "")
    if form.bom:
        yield "byte order mark"
    if form.damaged:
        shown = "U+FFFD" if form.wide else "\\xNN"
        yield f"some bytes are not {form.encoding}, shown as {shown}"
    if form.line_ending == "mixed":
        yield f"mixed line endings ({crlf:,} of {total or 'many'} are CRLF)"
    elif form.line_ending in {"crlf", "cr"}:
        yield f"{form.line_ending.upper()} line endings"


def _tail(scan: Scan, shown: NumberedLines, *, at_end: bool) -> str:
    which = f"line {shown.first}" if shown.first == shown.last else (f"lines {shown.first}-{shown.last}")
    if scan.total is None:
        return f"[{which}; the file is too large to count its lines; next offset={shown.last + 1}]"
    if not at_end:
        return f"[{which} of {scan.total}; next offset={shown.last + 1}]"
    end = "" if scan.form.final_newline else ", without a newline there"
    return f"[{which} of {scan.total}; end of file{end}]"
