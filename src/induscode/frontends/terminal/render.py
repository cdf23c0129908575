"""Renders turn events as finished text, which is printed once, and as rows of the live region.

Model text is printed block by block. A tool call becomes one line when it ends, followed by the diff of an edit.
Finished text consists of complete lines, with SGR sequences (colours) as the only control sequences, and none without
colour. rich loads with the first finished block; the live region works without it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING

from induscode.cli.terminal import escape_controls
from induscode.conversations.contract import TextDelta, ToolAdvanced, ToolAnswered, ToolCalled
from induscode.frontends.terminal.blocks import BlockSplitter, cut_to_cells, measure_cells, wrap_to_cells
from induscode.frontends.terminal.calls import (
    Palette,
    classify_answer,
    format_arguments,
    format_call_row,
    format_diff_rows,
    format_duration,
    format_outcome,
    format_progress,
    format_reason_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from induscode.conversations.contract import RunEvent
    from induscode.conversations.conversation import Conversation
    from induscode.frontends.terminal.blocks import MarkdownBlock
    from induscode.frontends.terminal.calls import CallState
    from induscode.frontends.terminal.markdown import BlockRenderer

_LEAST_WIDTH = 8
_TAB = 4


@dataclass(slots=True)
class _RunningCall:
    name: str
    arguments: str
    started: float | None = None
    """`None` if the start wasn't reported."""
    progress: str = ""


class EventRenderer:
    """Renders the events of a turn.

    `width` returns the terminal's current width in cells, `clock` times calls and the spinner, and `encoding` defaults
    to standard output's.
    """

    def __init__(
        self,
        *,
        width: Callable[[], int],
        color: bool,
        clock: Callable[[], float] = monotonic,
        encoding: str | None = None,
    ) -> None:
        self._width = width
        self._clock = clock
        self._palette = Palette(color, encoding or getattr(sys.stdout, "encoding", None) or "utf-8")
        self._splitter = BlockSplitter()
        self._blocks: BlockRenderer | None = None
        self._running: dict[str, _RunningCall] = {}
        self._last: str = ""
        """The kind of the last output in this turn: `text`, `call` or empty."""

    def feed(self, event: RunEvent) -> str:
        """Process an event and return the text it finishes, if any, as complete lines."""
        if isinstance(event, TextDelta):
            ended = self._splitter.finish() if event.starts else ()
            return self._render_blocks([*ended, *self._splitter.feed(event.text)])
        if isinstance(event, ToolCalled):
            finished = self._render_blocks(self._splitter.finish())
            self._running[event.id] = _RunningCall(event.name, format_arguments(event.arguments), self._clock())
            return finished
        if isinstance(event, ToolAdvanced):
            if event.id in self._running:
                self._running[event.id].progress = format_progress(event)
            return ""
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
            rows.append(cut_to_cells(f"{self._palette.ellipsis} {hidden} more", width))
        tail: list[str] = []
        for line in reversed(self._splitter.pending_lines()):
            if len(tail) >= limit - len(rows):
                break
            visible = self._palette.encode_text(escape_controls(line).expandtabs(_TAB))
            tail[:0] = wrap_to_cells(visible, width)
        left = limit - len(rows)
        return [*rows, *tail[-left:]] if left else rows

    def finish(self) -> str:
        """End the turn and return everything unfinished, with unanswered calls as interrupted."""
        finished = self._render_blocks(self._splitter.finish())
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
            encoded = replace(
                block, text=self._palette.encode_text(block.text), info=self._palette.encode_text(block.info)
            )
            pieces.append(self._palette.encode_text(self._blocks.render(encoded, self._cells)))
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


def format_status(conversation: Conversation | None, width: int, *, busy: bool) -> str:
    """Format the status row, dropping parts from the right that don't fit."""
    if conversation is None:
        return "starting…"
    usage = conversation.usage
    window, used = conversation.choice.context_window, conversation.context_tokens
    parts = [conversation.choice.label]
    if conversation.plan_mode.active:
        parts.insert(0, "plan mode")
    if busy:
        parts.insert(0, "Working… esc to interrupt")
    starting = [name for name, status in conversation.session.mcp.status().items() if status.phase == "connecting"]
    if starting:
        parts.append(f"starting {', '.join(starting)}")
    running = len(conversation.resources.delegate.list_running())
    if running:
        parts.append(f"{running} {'task' if running == 1 else 'tasks'} in the background")
    parts.append(
        f"context {used / window:.0%} of {format_tokens(window)}" if window else f"context {format_tokens(used)}"
    )
    if usage.requests:
        parts.append(f"{format_tokens(usage.input_tokens + usage.output_tokens)} tokens")
        if usage.cost_usd:
            parts.append(f"${usage.cost_usd:.2f}")
    row = parts[0]
    for part in parts[1:]:
        if len(row) + len(part) + 3 > width - 1:
            break
        row += f" · {part}"
    return row


def format_tokens(count: int) -> str:
    """Format a number of tokens: 950, 12.3k, 1.2M."""
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}k".replace(".0k", "k") if count < 1_000_000 else f"{count / 1_000_000:.1f}M"
