"""Renders turn events as finished text, which is printed once, and as rows of the live region.

Model text is printed block by block. A tool call becomes one line when it ends, followed by the diff of an edit.
Finished text consists of complete lines, with SGR sequences (colours) as the only control sequences, and none without
colour. rich loads with the first finished block; the live region works without it. All text of a call is untrusted:
it's escaped, and truncated to the terminal's width.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.json import JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.text import format_count
from induscode.cli.terminal import escape_controls, escape_unprintable
from induscode.conversations.contract import (
    RetryScheduled,
    RunEvent,
    TextDelta,
    ThinkingDelta,
    ToolAdvanced,
    ToolAnswered,
    ToolCalled,
)
from induscode.frontends.terminal.blocks import BlockSplitter, MarkdownBlock, cut_to_cells, measure_cells, wrap_to_cells

if TYPE_CHECKING:
    from induscode.conversations.conversation import Conversation
    from induscode.frontends.terminal.markdown import BlockRenderer


_LEAST_WIDTH = 8
_THOUGHT_ROWS = 2
_TAB = 4


@dataclass(slots=True)
class _RunningCall:
    name: str
    arguments: str
    started: float | None = None
    """`None` if the start wasn't reported."""
    progress: str = ""


@dataclass(slots=True)
class _Thought:
    started: float
    text: str = ""


class EventRenderer:
    """Renders the events of a turn.

    `width` returns the terminal's current width in cells, and `clock` times calls and the spinner.
    """

    def __init__(self, *, width: Callable[[], int], color: bool, clock: Callable[[], float] = monotonic) -> None:
        self._width = width
        self._clock = clock
        self._palette = Palette(color)
        self._splitter = BlockSplitter()
        self._blocks: BlockRenderer | None = None
        self._running: dict[str, _RunningCall] = {}
        self._began = clock()
        self._thought: _Thought | None = None
        self._retry: tuple[RetryScheduled, float] | None = None
        """The coming retry, and when it was announced."""
        self._is_writing = False
        self._last: str = ""
        """The kind of the last output in this turn: `text`, `call` or empty."""

    def feed(self, event: RunEvent) -> str:
        """Process an event and return the text it finishes, if any, as complete lines."""
        if isinstance(event, ThinkingDelta):
            self._retry = None
            self._thought = self._thought or _Thought(self._clock())
            self._thought.text += event.text
            return ""
        if isinstance(event, RetryScheduled):
            self._retry = event, self._clock()
            ended = self._fold_thought() + self._render_blocks(self._splitter.finish())
            return ended if event.delay_s else f"{ended}{self._palette.paint(event.describe(0), _YELLOW)}\n"
        if isinstance(event, ToolAdvanced):
            if event.id in self._running:
                self._running[event.id].progress = format_progress(event)
            return ""
        self._retry, self._is_writing = None, isinstance(event, TextDelta)
        return self._fold_thought() + self._render_event(event)

    def _fold_thought(self) -> str:
        """End the reasoning, and return it as one row."""
        thought, self._thought = self._thought, None
        words = "" if thought is None else to_one_line(thought.text.strip())
        if thought is None or not words:
            return ""
        before = "\n" if self._last == "text" else ""
        self._last = "call"
        row = f"✻ Thought for {format_duration(self._clock() - thought.started)} · {words}"
        return f"{before}{self._palette.paint(cut_to_cells(row, self._cells), _DIM)}\n"

    def _render_event(self, event: RunEvent) -> str:
        if isinstance(event, TextDelta):
            ended = self._splitter.finish() if event.starts else ()
            return self._render_blocks([*ended, *self._splitter.feed(event.text)])
        if isinstance(event, ToolCalled):
            finished = self._render_blocks(self._splitter.finish())
            self._running[event.id] = _RunningCall(event.name, format_arguments(event.arguments), self._clock())
            return finished
        if isinstance(event, ToolAnswered):
            finished = self._render_blocks(self._splitter.finish())
            call = self._running.pop(event.id, None)
            if call is not None and call.started is not None:
                call.started += event.waited_s  # don't count the user's time as the tool's
            diff = event.details.get("diff")
            is_changed = isinstance(diff, str) and not event.is_error and event.details.get("changed") is not False
            return finished + self._render_call(
                call or _RunningCall(event.name, ""),
                classify_answer(event),
                format_outcome(event),
                diff=diff if is_changed and isinstance(diff, str) else "",
            )
        return ""

    def live_rows(self, limit: int) -> list[str]:
        """Return the rows of the live region: running calls, then the end of the unfinished block."""
        if limit <= 0:
            return []
        width, now = self._cells, self._clock()
        calls = [*self._running.values()]
        hidden = len(calls) - limit + 1 if len(calls) > limit else 0
        rows = [
            format_call_row(
                self._palette,
                width,
                mark=self._palette.choose_spinner(now),
                name=call.name,
                arguments=call.arguments,
                facts=(_format_time(call, now), call.progress),
            )
            for call in calls[: len(calls) - hidden]
        ]
        if hidden:
            rows.append(cut_to_cells(f"… {hidden} more", width))
        if self._thought is not None and len(rows) < limit:
            thought = [*wrap_to_cells(escape_controls(self._thought.text[-2 * width :]).strip(), width)]
            rows += [self._palette.paint(row, _DIM) for row in thought[-min(_THOUGHT_ROWS, limit - len(rows)) :]]
        tail: list[str] = []
        for line in reversed(self._splitter.pending_lines()):
            if len(tail) >= limit - len(rows):
                break
            tail[:0] = wrap_to_cells(escape_controls(line).expandtabs(_TAB), width)
        left = limit - len(rows)
        return [*rows, *tail[-left:]] if left else rows

    def format_activity(self, what: str = "") -> str:
        """Format what the turn does, or `what`, with the time since its start."""
        now = self._clock()
        if self._retry is not None and not what:
            event, at = self._retry
            text = event.describe(at + event.delay_s - now)
        else:
            text = f"{what or self._name_activity()}… {format_duration(now - self._began, whole=True)}"
        row = cut_to_cells(f"{text} · esc to interrupt", self._cells - 2)
        return f"{self._palette.choose_spinner(now)} {row}"

    def _name_activity(self) -> str:
        names = [call.name for call in self._running.values()]
        if names:
            return f"Running {to_one_line(names[0])}" if len(names) == 1 else f"Running {len(names)} tools"
        return "Writing" if self._is_writing and self._thought is None else "Thinking"

    def finish(self) -> str:
        """End the turn and return everything unfinished, with unanswered calls as interrupted."""
        finished = self._fold_thought() + self._render_blocks(self._splitter.finish())
        for call in self._running.values():
            finished += self._render_call(call, "interrupted", "interrupted")
        self._running.clear()
        self._last = ""
        return finished

    @property
    def _cells(self) -> int:
        return max(_LEAST_WIDTH, self._width())

    def _render_blocks(self, blocks: Sequence[MarkdownBlock]) -> str:
        if not blocks:
            return ""
        if self._blocks is None:
            from induscode.frontends.terminal.markdown import BlockRenderer  # noqa: PLC0415 — rich, a tenth of a second

            self._blocks = BlockRenderer(color=self._palette.color)
        pieces: list[str] = []
        for block in blocks:
            if self._last and block.is_first:
                pieces.append("\n")
            pieces.append(self._blocks.render(block, self._cells))
            self._last = "text"
        return "".join(pieces)

    def _render_call(self, call: _RunningCall, state: CallState, outcome: str, *, diff: str = "") -> str:
        palette, width = self._palette, self._cells
        duration = _format_time(call, self._clock())
        mark = palette.choose_mark(state)

        def format_row(*facts: str) -> str:
            return format_call_row(
                palette, width, mark=mark, name=call.name, arguments=call.arguments, facts=(duration, *facts)
            )

        used = measure_cells(f"{call.name}{call.arguments}{duration}{outcome}") + 7
        if state in {"error", "denied"} and used > width:
            # The reason matters more than the arguments, so it gets separate rows.
            rows = [format_row(), *format_reason_rows(palette, outcome, width)]
        else:
            rows = [format_row(outcome)]
        rows += format_diff_rows(palette, diff, width) if diff else ()
        before = "\n" if self._last == "text" else ""
        self._last = "call"
        return before + "".join(f"{row}\n" for row in rows)


def _format_time(call: _RunningCall, now: float) -> str:
    return "" if call.started is None else format_duration(now - call.started)


_MODES = {"ask": "asks before edits", "auto-edit": "accepts edits", "all": "asks for nothing"}
_FULL = 0.8
"""Share of the context window from which it's nearly full."""


def format_status(conversation: Conversation | None, width: int, palette: Palette) -> str:
    """Format the facts about a session as one row, dropping parts from the right that don't fit."""
    if conversation is None:
        return palette.paint("  starting…", _DIM)
    usage, choice = conversation.usage, conversation.choice
    share = conversation.context_tokens / choice.context_window if choice.context_window else 0.0
    parts = [(escape_unprintable(choice.label), _DIM)]
    if choice.context_window:
        text = f"{share:.0%} of {format_tokens(choice.context_window)}"
        parts.append((f"{text}: /compact", _YELLOW) if share >= _FULL else (text, _DIM))
    else:
        parts.append((f"{format_tokens(conversation.context_tokens)} of context", _DIM))
    if usage.cost_usd:
        parts.append((f"${usage.cost_usd:.2f}", _DIM))
    checks = conversation.permissions.permissions
    mode = "plan mode" if conversation.plan_mode.active else "" if checks is None else _MODES[checks.approval.value]
    parts += [(f"{mode} ⇧⇥", _DIM)] if mode else []
    statuses = conversation.session.mcp.status().values()
    phases = Counter(str(status.phase) for status in statuses)
    if phases["connecting"]:
        starting = f"starting {phases['connecting']} of {format_count(len(statuses), 'server')}"
        parts.append((starting, _DIM))
    if phases["faulted"]:
        parts.append((f"✗ {format_count(phases['faulted'], 'server')}", _RED))
    if running := len(conversation.resources.delegate.list_running()):
        parts.append((f"{format_count(running, 'task')} in the background", _DIM))
    row, room = "", width - 1
    for text, code in parts:
        before = " · " if row else "  "
        room -= measure_cells(before + text)
        if room < 0:
            break
        row += palette.paint(before, _DIM) + palette.paint(text, code)
    return row


def format_farewell(conversation: Conversation) -> str:
    """Say how to resume a conversation, and what the session used."""
    usage = conversation.usage
    if not usage.requests:
        return ""
    facts = [f"{format_tokens(usage.input_tokens + usage.output_tokens)} tokens"]
    facts += [f"${usage.cost_usd:.2f}"] if usage.cost_usd else []
    return f"Resume: indus -c · {', '.join(facts)}"


def format_tokens(count: int) -> str:
    """Format a number of tokens: 950, 12.3k, 1.2M."""
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}k".replace(".0k", "k") if count < 1_000_000 else f"{count / 1_000_000:.1f}M"


# -- calls --------------------------------------------------------------------------------------


CallState: TypeAlias = Literal["ok", "error", "denied", "interrupted"]

DIFF_LINES = 30
_LONGEST_VALUE = 60
_LONGEST_SOURCE = 400
"""Characters of an argument or a result to look at; a row shows fewer."""
_REASON_ROWS = 3
_LEAST_ARGUMENTS = 5
_SPINNER, _SPINNER_HZ = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", 10
_GREEN, _RED, _YELLOW, _CYAN, _BOLD, _DIM = "32", "31", "33", "36", "1", "2"
_STATE_COLORS: Mapping[CallState, str] = {"ok": _GREEN, "error": _RED, "denied": _YELLOW, "interrupted": _YELLOW}
_MARKS: Mapping[CallState, str] = {"ok": "✓", "error": "✗", "denied": "⊘", "interrupted": "⊘"}


@record
class Palette:
    """A terminal's colours, if it has any."""

    color: bool

    def paint(self, text: str, code: str) -> str:
        """Wrap text in SGR sequences (ECMA-48, 8.3.117) if colour is on."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def choose_mark(self, state: CallState) -> str:
        """Return the mark of a finished call."""
        return self.paint(_MARKS[state], _STATE_COLORS[state])

    def choose_spinner(self, now: float) -> str:
        """Return the current spinner frame."""
        return self.paint(_SPINNER[int(now * _SPINNER_HZ) % len(_SPINNER)], _CYAN)


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


def format_duration(seconds: float, *, whole: bool = False) -> str:
    """Format a duration: `0.3s` (without tenths: `0s`), `12s`, `2m 5s`."""
    if seconds < 10 and not whole:
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
    name = cut_to_cells(to_one_line(name), width - 2)
    room = width - 2 - measure_cells(name)
    kept: list[str] = []
    least = min(_LEAST_ARGUMENTS, measure_cells(arguments)) + 1 if arguments else 0
    for text in facts:
        space = room - least - 2
        if not text or space < min(measure_cells(text), _LEAST_ARGUMENTS):
            continue
        kept.append(cut_to_cells(text, space))
        room -= measure_cells(kept[-1]) + 2
    shown = cut_to_cells(arguments, room - 1) if room > 1 else ""
    row = f"{mark} {palette.paint(name, _BOLD)}" + (f" {shown}" if shown else "")
    return row + "".join(f"  {palette.paint(text, _DIM)}" for text in kept)


def format_reason_rows(palette: Palette, reason: str, width: int) -> Iterator[str]:
    """Yield up to three rows with the reason for a failed or denied call."""
    rows = [*wrap_to_cells(reason, width - 2)]
    if len(rows) > _REASON_ROWS:
        rows = [*rows[: _REASON_ROWS - 1], cut_to_cells(" ".join(rows[_REASON_ROWS - 1 :]), width - 2)]
    for row in rows:
        yield "  " + palette.paint(row, _DIM)


def format_diff_rows(palette: Palette, diff: str, width: int) -> Iterator[str]:
    """Yield at most 30 rows of a unified diff without its file names, and the number of remaining lines."""
    lines = diff.removesuffix("\n").split("\n")
    start = next((index for index, line in enumerate(lines) if line.startswith("@@")), 0)
    lines = lines[start:]
    for line in lines[:DIFF_LINES]:
        visible = escape_unprintable(line[:1] + line[1:].removesuffix("\r").expandtabs(_TAB))
        text = cut_to_cells(visible, width - 2)
        code = {"+": _GREEN, "-": _RED, "@": _CYAN}.get(line[:1], _DIM)
        yield "  " + palette.paint(text, code)
    if len(lines) > DIFF_LINES:
        left = format_count(len(lines) - DIFF_LINES, "more line")
        yield "  " + palette.paint(cut_to_cells(f"… {left}", width - 2), _DIM)
