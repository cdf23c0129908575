"""Formats tool calls as terminal rows: arguments, outcome, duration, and the diff of a changed file.

All text of a call is untrusted: it's escaped, and truncated to the terminal's width.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.core.text import format_count
from induscode.cli.terminal import escape_unprintable
from induscode.frontends.terminal.blocks import cut_to_cells, measure_cells, wrap_to_cells

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from indusagi.core.json import JsonValue
    from induscode.conversations.contract import ToolAdvanced, ToolAnswered

CallState: TypeAlias = Literal["ok", "error", "denied", "interrupted"]

DIFF_LINES = 30
_LONGEST_VALUE = 60
_LONGEST_SOURCE = 400
"""Characters of an argument or a result to look at; a row shows fewer."""
_REASON_ROWS = 3
_TAB = 4
_LEAST_ARGUMENTS = 5
_SPINNER_HZ = 10
_GREEN, _RED, _YELLOW, _CYAN, _BOLD, _DIM = "32", "31", "33", "36", "1", "2"
_STATE_COLORS: Mapping[CallState, str] = {"ok": _GREEN, "error": _RED, "denied": _YELLOW, "interrupted": _YELLOW}
_MARKS: Mapping[CallState, str] = {"ok": "✓", "error": "✗", "denied": "⊘", "interrupted": "⊘"}
_ASCII_MARKS: Mapping[CallState, str] = {"ok": "+", "error": "x", "denied": "!", "interrupted": "!"}
_ASCII_SYMBOLS = str.maketrans("─│▌•…✓✗⊘−·", "-||*~+x!--")  # noqa: RUF001 — a minus


@record
class Palette:
    """A terminal's capabilities: colours, and characters beyond ASCII."""

    color: bool
    encoding: str = "utf-8"

    @property
    def is_unicode(self) -> bool:
        """Whether the encoding covers every character."""
        return self.encoding.lower().replace("_", "-").startswith("utf")

    @property
    def ellipsis(self) -> str:
        """The one-cell truncation mark."""
        return "…" if self.is_unicode else "~"

    def paint(self, text: str, code: str) -> str:
        """Wrap text in SGR sequences (ECMA-48, 8.3.117) if colour is on."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def encode_text(self, text: str) -> str:
        """Replace characters the encoding lacks: symbols by similar ones, others by escapes."""
        if self.is_unicode or text.isascii():
            return text
        return text.translate(_ASCII_SYMBOLS).encode(self.encoding, "backslashreplace").decode(self.encoding)

    def choose_mark(self, state: CallState) -> str:
        """Return the mark of a finished call."""
        return self.paint((_MARKS if self.is_unicode else _ASCII_MARKS)[state], _STATE_COLORS[state])

    def choose_spinner(self, now: float) -> str:
        """Return the current spinner frame."""
        frames = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏" if self.is_unicode else "|/-\\"
        return self.paint(frames[int(now * _SPINNER_HZ) % len(frames)], _CYAN)


def to_one_line(text: str) -> str:
    """Escape untrusted text and put it on one line."""
    return escape_unprintable(" ".join(text[:_LONGEST_SOURCE].split()))


def format_arguments(arguments: JsonValue) -> str:
    """Format arguments briefly: `path=src/a.py limit=20`."""
    if not is_json_object(arguments):
        return "" if arguments is None else _format_value(arguments)
    return " ".join(f"{to_one_line(name)}={_format_value(value)}" for name, value in arguments.items())


def _format_value(value: JsonValue) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # a model's arguments may be anything
        text = repr(value)
    return cut_to_cells(to_one_line(text), _LONGEST_VALUE)


def format_duration(seconds: float) -> str:
    """Format a duration: `0.3s`, `12s`, `2m 5s`."""
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"


def format_progress(event: ToolAdvanced) -> str:
    """Format progress: a percentage if the total is known, and the message."""
    amount = f"{event.done:g}" if math.isfinite(event.done) else ""
    if event.total is not None and amount and math.isfinite(event.total) and event.total > 0:
        amount = f"{max(0, min(100, 100 * event.done / event.total)):.0f}%"
    return " ".join(part for part in (amount, to_one_line(event.message)) if part)


def classify_answer(event: ToolAnswered) -> CallState:
    """Return how a call ended."""
    if event.code == "denied":
        return "denied"
    return "error" if event.is_error else "ok"


def format_outcome(event: ToolAnswered) -> str:
    """Format a call's outcome in a few words."""
    details = event.details
    lines = [line for line in event.text.splitlines() if line.strip()]
    first = to_one_line(lines[0]) if lines else ""
    if event.code == "denied":
        return first.removeprefix(f"{to_one_line(event.name)} was not run: ")
    if event.is_error:
        code = details.get("exitCode")
        return f"exit {code}: {first}" if isinstance(code, int) and code else first or event.code or "failed"
    if event.attachments:
        return _format_attachments(event)
    added, removed = details.get("added"), details.get("removed")
    if isinstance(details.get("diff"), str) and isinstance(added, int) and isinstance(removed, int):
        return f"+{added} −{removed}" if added or removed else "unchanged"  # noqa: RUF001 — a minus
    if len(lines) > 1:
        return format_count(len(event.text.splitlines()), "line")
    return first or "no output"


def _format_attachments(event: ToolAnswered) -> str:
    kinds = [
        to_one_line(kind) if count == 1 else f"{count} × {to_one_line(kind)}"  # noqa: RUF001 — a multiplication sign
        for kind, count in Counter(event.attachments).items()
    ]
    width, height, size = (event.details.get(name) for name in ("width", "height", "bytes"))
    if len(event.attachments) == 1:
        if isinstance(width, int) and isinstance(height, int):
            kinds.append(f"{width} by {height} pixels")
        if isinstance(size, int):
            kinds.append(f"{size:,} bytes")
    return ", ".join(kinds)


def format_call_row(
    palette: Palette, width: int, *, mark: str, name: str, arguments: str, facts: tuple[str, ...]
) -> str:
    """Format one row about a call, at most `width` cells wide.

    Truncates `arguments` first, then the last of `facts` (duration and outcome, or progress), then drops the others.
    `mark` is a one-cell symbol.
    """
    cut = palette.ellipsis
    name = cut_to_cells(palette.encode_text(to_one_line(name)), width - 2, cut)
    arguments = palette.encode_text(arguments)
    room = width - 2 - measure_cells(name)
    kept: list[str] = []
    least = min(_LEAST_ARGUMENTS, measure_cells(arguments)) + 1 if arguments else 0
    for fact in facts:
        text = palette.encode_text(fact)
        space = room - least - 2
        if not text or space < min(measure_cells(text), _LEAST_ARGUMENTS):
            continue
        text = cut_to_cells(text, space, cut)
        kept.append(text)
        room -= measure_cells(text) + 2
    shown = cut_to_cells(arguments, room - 1, cut) if room > 1 else ""
    row = f"{mark} {palette.paint(name, _BOLD)}" + (f" {shown}" if shown else "")
    return row + "".join(f"  {palette.paint(text, _DIM)}" for text in kept)


def format_reason_rows(palette: Palette, reason: str, width: int) -> Iterator[str]:
    """Yield up to three rows with the reason for a failed or denied call."""
    rows = [*wrap_to_cells(palette.encode_text(reason), width - 2)]
    if len(rows) > _REASON_ROWS:
        rows = [
            *rows[: _REASON_ROWS - 1],
            cut_to_cells(" ".join(rows[_REASON_ROWS - 1 :]), width - 2, palette.ellipsis),
        ]
    for row in rows:
        yield "  " + palette.paint(row, _DIM)


def format_diff_rows(palette: Palette, diff: str, width: int) -> Iterator[str]:
    """Yield at most 30 rows of a unified diff without its file names, and the number of remaining lines."""
    lines = diff.removesuffix("\n").split("\n")
    start = next((index for index, line in enumerate(lines) if line.startswith("@@")), 0)
    lines = lines[start:]
    for line in lines[:DIFF_LINES]:
        visible = escape_unprintable(line[:1] + line[1:].removesuffix("\r").expandtabs(_TAB))
        text = cut_to_cells(palette.encode_text(visible), width - 2, palette.ellipsis)
        code = {"+": _GREEN, "-": _RED, "@": _CYAN}.get(line[:1], _DIM)
        yield "  " + palette.paint(text, code)
    if len(lines) > DIFF_LINES:
        left = format_count(len(lines) - DIFF_LINES, "more line")
        yield "  " + palette.paint(cut_to_cells(f"{palette.ellipsis} {left}", width - 2), _DIM)
