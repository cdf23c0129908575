"""Renders turn events as finished text, which is printed once, and as rows of the live region.

Model text is printed block by block. A tool call becomes one line when it ends, followed by the diff of an edit.
Finished text consists of complete lines, with SGR sequences (colours) as the only control sequences, and none without
colour. rich loads with the first finished block; the live region works without it. All text of a call is untrusted:
it's escaped, and truncated to the terminal's width.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.records import record
from indusagi.core.text import format_count
from induscode.cli.call_title import CallTitle, describe_call, to_one_line
from induscode.cli.dialog import number_lines
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
_COMMAND = "bash"


@dataclass(slots=True)
class _RunningCall:
    title: CallTitle
    started: float | None = None
    """`None` if the start wasn't reported."""
    progress: str = ""
    latest: str = ""
    """The last line that a command wrote."""


@dataclass(slots=True)
class _Thought:
    started: float
    text: str = ""


class EventRenderer:
    """Renders the events of a turn.

    `width` returns the terminal's current width in cells, `clock` times calls and the spinner, and `keep` takes the
    title and the whole result of each call. Paths below `cwd` are shown relative to it.
    """

    def __init__(
        self,
        *,
        width: Callable[[], int],
        color: bool,
        clock: Callable[[], float] = monotonic,
        cwd: str = "",
        keep: Callable[[str, str], object] = lambda _title, _text: None,
    ) -> None:
        self._width = width
        self._clock = clock
        self._cwd, self._keep = cwd, keep
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
            if (call := self._running.get(event.id)) is not None and event.name == _COMMAND:
                call.latest = to_one_line(event.message.rstrip().rpartition("\n")[2])
            elif call is not None:
                call.progress = format_progress(event)
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
            title = describe_call(event.name, event.arguments, server=event.server, tool=event.tool, cwd=self._cwd)
            self._running[event.id] = _RunningCall(title, self._clock())
            return finished
        if isinstance(event, ToolAnswered):
            finished = self._render_blocks(self._splitter.finish())
            call = self._running.pop(event.id, None)
            if call is not None and call.started is not None:
                call.started += event.waited_s  # don't count the user's time as the tool's
            return finished + self._render_answer(call or _RunningCall(describe_call(event.name, None)), event)
        return ""

    def live_rows(self, limit: int) -> list[str]:
        """Return the rows of the live region: running calls, then the end of the unfinished block."""
        if limit <= 0:
            return []
        width, now = self._cells, self._clock()
        calls = [*self._running.values()]
        hidden = len(calls) - limit + 1 if len(calls) > limit else 0
        rows: list[str] = []
        for call in calls[: len(calls) - hidden]:
            facts = (call.progress, _format_time(call, now))
            rows.append(format_call_row(self._palette, width, self._palette.choose_spinner(now), call.title, facts))
            if call.latest and len(calls) == 1 < limit:
                rows.append(self._palette.dim(cut_to_cells(f"    {call.latest}", width)))
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
        """Format the turn's activity, or `what`, with the time since its start."""
        now = self._clock()
        if self._retry is not None and not what:
            event, at = self._retry
            text = event.describe(at + event.delay_s - now)
        else:
            text = f"{what or self._name_activity()}… {format_duration(now - self._began, whole=True)}"
        row = cut_to_cells(f"{text} · esc to interrupt", self._cells - 2)
        return f"{self._palette.choose_spinner(now)} {row}"

    def _name_activity(self) -> str:
        titles = [call.title for call in self._running.values()]
        if titles:
            name = "command" if titles[0].verb == "$" else titles[0].verb
            return f"Running {name}" if len(titles) == 1 else f"Running {len(titles)} tools"
        return "Writing" if self._is_writing and self._thought is None else "Thinking"

    def finish(self) -> str:
        """End the turn and return everything unfinished, with unanswered calls as interrupted."""
        finished = self._fold_thought() + self._render_blocks(self._splitter.finish())
        for call in self._running.values():
            finished += self._render_call(call, "interrupted", ("interrupted",))
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

    def _render_answer(self, call: _RunningCall, event: ToolAnswered) -> str:
        """Render the line of a finished call, and what's worth seeing of its result."""
        palette, width, state = self._palette, self._cells, classify_answer(event)
        if event.details.get("created") is True and call.title.verb == "Write":
            call.title = replace(call.title, verb="Create")
        diff, lines = event.details.get("diff"), list_output(event)
        self._keep(str(call.title), diff if isinstance(diff, str) and diff else event.text)
        if isinstance(diff, str) and diff and state == "ok" and event.details.get("changed") is not False:
            return self._render_call(call, state, (format_outcome(event),), format_diff_rows(palette, diff, width))
        if event.name == _COMMAND and state in {"ok", "error"}:
            return self._render_call(call, state, _format_exit(event, lines), self._list_excerpt(lines, state))
        outcome = format_outcome(event)
        used = measure_cells(f"{call.title.verb} {call.title.subject} {outcome}") + 6
        if state in {"error", "denied"} and (used > width or (state == "error" and len(lines) > 1)):
            # The reason matters more than the arguments, so it gets separate rows.
            reasons = lines if state == "error" else [outcome]
            return self._render_call(call, state, (), format_reason_rows(palette, reasons, width))
        return self._render_call(call, state, (outcome,))

    def _list_excerpt(self, lines: Sequence[str], state: CallState) -> Iterator[str]:
        """Yield the first two lines and the last one of a command's output, or the last five of one that failed."""
        most = _ERROR_LINES if state == "error" else _OUTPUT_LINES
        left = len(lines) - most
        count = format_count(left, "more line")
        more = self._palette.dim(cut_to_cells(f"    … {count} · ctrl-o shows all", self._cells))
        shown = [*enumerate(lines)] if left <= 0 else [*enumerate(lines)][-most:]
        if left > 0 and state != "error":
            shown = [(0, lines[0]), (1, lines[1]), (len(lines) - 1, lines[-1])]
        for number, line in shown:
            if left > 0 and number == (left if state == "error" else len(lines) - 1):
                yield more
            text = cut_to_cells(to_visible(f"    {line}"), self._cells)
            yield text if state == "error" else self._palette.dim(text)

    def _render_call(
        self, call: _RunningCall, state: CallState, facts: tuple[str, ...], below: Iterable[str] = ()
    ) -> str:
        palette, now = self._palette, self._clock()
        took = "" if state == "denied" else _format_time(call, now)
        row = format_call_row(palette, self._cells, palette.choose_mark(state), call.title, (*facts, took), state)
        before = "\n" if self._last == "text" else ""
        self._last = "call"
        return before + "".join(f"{row}\n" for row in (row, *below))


def _format_time(call: _RunningCall, now: float) -> str:
    took = 0.0 if call.started is None else now - call.started
    return format_duration(took) if took >= 1 else ""


_MODES = {"ask": "asks before changes", "auto-edit": "accepts edits", "plan": "plan mode", "all": "asks for nothing"}
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
    parts += [] if checks is None else [(f"{_MODES[checks.mode]} ⇧⇥", _DIM)]
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
    """Say how to resume a conversation, and the session's use of tokens."""
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
_OUTPUT_LINES, _ERROR_LINES = 3, 5
_LEAST_ARGUMENTS = 5
_BAR = 11
_SPINNER, _SPINNER_HZ = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", 10
_GREEN, _RED, _YELLOW, _CYAN, _BOLD, _DIM = "32", "31", "33", "36", "1", "2"
_STATE_COLORS: Mapping[CallState, str] = {"ok": _GREEN, "error": _RED, "denied": _YELLOW, "interrupted": _YELLOW}
_MARKS: Mapping[CallState, str] = {"ok": "✓", "error": "✗", "denied": "⊘", "interrupted": "⊘"}
_DECLINED = "the user declined"


@record
class Palette:
    """A terminal's colours, if it has any."""

    color: bool

    def paint(self, text: str, code: str) -> str:
        """Wrap text in SGR sequences (ECMA-48, 8.3.117) if colour is on."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.color and text else text

    def dim(self, text: str) -> str:
        """Paint what matters less."""
        return self.paint(text, _DIM)

    def strong(self, text: str) -> str:
        """Paint the subject of a row."""
        return self.paint(text, _BOLD)

    def warn(self, text: str) -> str:
        """Paint what needs the user."""
        return self.paint(text, _YELLOW)

    def choose(self, text: str) -> str:
        """Paint the row that Enter chooses."""
        return self.paint(text, f"{_BOLD};{_CYAN}")

    def fail(self, text: str) -> str:
        """Paint an error."""
        return self.paint(text, _RED)

    def choose_mark(self, state: CallState) -> str:
        """Return the mark of a finished call."""
        return self.paint(_MARKS[state], _STATE_COLORS[state])

    def choose_spinner(self, now: float) -> str:
        """Return the current spinner frame."""
        return self.paint(_SPINNER[int(now * _SPINNER_HZ) % len(_SPINNER)], _CYAN)


def to_visible(line: str) -> str:
    """Escape a line of untrusted text, with its indentation."""
    return escape_unprintable(line.rstrip("\r").expandtabs(_TAB))


def format_duration(seconds: float, *, whole: bool = False) -> str:
    """Format a duration: `0.3s` (without tenths: `0s`), `12s`, `2m 5s`."""
    if seconds < 10 and not whole:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"


def format_progress(event: ToolAdvanced) -> str:
    """Format progress: a bar and a percentage if the total is known, and the message."""
    amount = f"{event.done:g}" if math.isfinite(event.done) and not event.message else ""
    if event.total is not None and math.isfinite(event.done) and math.isfinite(event.total) and event.total > 0:
        part = max(0.0, min(1.0, event.done / event.total))
        full = round(part * _BAR)
        amount = f"{'━' * full}{'─' * (_BAR - full)}  {part:.0%}"
    return " ".join(part for part in (amount, to_one_line(event.message)) if part)


def classify_answer(event: ToolAnswered) -> CallState:
    """Return how a call ended."""
    if event.code == "denied":
        return "denied"
    return "error" if event.is_error else "ok"


def list_output(event: ToolAnswered) -> list[str]:
    """List the lines of a result, without the notes below the output of a command."""
    lines, notes = event.text.splitlines(), event.details.get("notes")
    if event.name == _COMMAND and isinstance(notes, int):
        lines = lines[: len(lines) - notes]
    return [] if lines == ["(no output)"] else [line for line in lines if line.strip()]


def _format_exit(event: ToolAnswered, lines: Sequence[str]) -> tuple[str, ...]:
    """Format how a command ended."""
    code = event.details.get("exitCode")
    parts = [f"exit {code}"] if isinstance(code, int) and code else []
    if event.is_error and not parts:
        parts = [event.code or "failed"]
    if not lines:
        return (*parts, *(() if event.is_error else ("no output",)))
    return (*parts, *([format_count(len(lines), "line")] if len(lines) > _OUTPUT_LINES and not parts else ()))


def format_outcome(event: ToolAnswered) -> str:
    """Format a call's outcome in a few words."""
    details = event.details
    lines = [line for line in event.text.splitlines() if line.strip()]
    first = to_one_line(lines[0]) if lines else ""
    if event.code == "denied":
        reason = first.partition(" was not run: ")[2] or first
        return f"declined{reason.removeprefix(_DECLINED)}" if reason.startswith(_DECLINED) else reason
    if event.code == "unknown_tool":
        return "no such tool"
    if event.is_error:
        return first or event.code or "failed"
    if event.attachments:
        return _format_attachments(event)
    added, removed = details.get("added"), details.get("removed")
    if isinstance(details.get("diff"), str) and isinstance(added, int) and isinstance(removed, int):
        return f"+{added} −{removed}" if added or removed else "unchanged"  # noqa: RUF001 — a minus
    start, end = details.get("first"), details.get("last")
    if isinstance(start, int) and isinstance(end, int):  # without the notes of `read`
        return format_count(end - start + 1, "line")
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
    palette: Palette, width: int, mark: str, title: CallTitle, facts: tuple[str, ...], state: CallState = "ok"
) -> str:
    """Format one row about a call, at most `width` cells wide.

    Truncates the arguments first, then the last of `facts` (outcome or progress, and duration), then drops the others.
    `mark` is a one-cell symbol.
    """
    verb = cut_to_cells(title.verb, width - 2)
    room = width - 2 - measure_cells(verb)
    arguments = f"{title.subject} {title.rest}".strip()
    kept: list[str] = []
    least = min(_LEAST_ARGUMENTS, measure_cells(arguments)) + 1 if arguments else 0
    for text in facts:
        space = room - least - 3
        if not text or space < min(measure_cells(text), _LEAST_ARGUMENTS):
            continue
        kept.append(cut_to_cells(text, space))
        room -= measure_cells(kept[-1]) + 3
    subject = cut_to_cells(title.subject, room - 1) if room > 1 else ""
    room -= measure_cells(subject) + 1 if subject else 0
    rest = cut_to_cells(title.rest, room - 1) if room > _LEAST_ARGUMENTS else ""
    row = f"{mark} {palette.strong(verb)}" + (f" {subject}" if subject else "")
    row += f" {palette.dim(rest)}" if rest else ""
    paint = palette.fail if state == "error" else palette.dim
    return row + "".join(f"{palette.dim(' ·')} {paint(text)}" for text in kept)


def format_reason_rows(palette: Palette, reasons: Sequence[str], width: int) -> Iterator[str]:
    """Yield up to five rows with the reason for a failed or denied call."""
    rows = [row for reason in reasons[:_ERROR_LINES] for row in wrap_to_cells(to_visible(reason), width - 4)]
    left = len(rows) > _ERROR_LINES or len(reasons) > _ERROR_LINES
    for row in rows[: _ERROR_LINES - left]:
        yield f"    {row}"
    if left:
        yield palette.dim(cut_to_cells("    … ctrl-o shows all", width))


def format_diff_rows(palette: Palette, diff: str, width: int, limit: int = DIFF_LINES) -> Iterator[str]:
    """Yield the lines of a unified diff with their numbers, at most `limit`, and the number of the others."""
    rows = [*number_lines(diff)]
    for sign, row in rows[:limit]:
        yield palette.paint(cut_to_cells(row, width), {"+": _GREEN, "-": _RED}.get(sign, _DIM))
    if len(rows) > limit:
        more = format_count(len(rows) - limit, "more line")
        yield palette.dim(cut_to_cells(f"    … {more} · ctrl-o shows all", width))


SIGN_IN = "Sign in at: "


def format_line(palette: Palette, text: str, width: int) -> Iterator[str]:
    """Yield the rows of a finished line, wrapped at words. Notes are dim, prompts bold, the marks of errors red.

    A line with a word longer than a row stays whole: the terminal wraps it, and copies it as one. The page of a sign-in
    is a link of one row (OSC 8) if the terminal has colour, and otherwise a whole line.
    """
    text = escape_unprintable(text)
    if text.startswith(SIGN_IN) and measure_cells(text) > width:
        address = text.removeprefix(SIGN_IN)
        link = f"\x1b]8;;{address}\x1b\\{cut_to_cells(address, width - 1)}\x1b]8;;\x1b\\"
        yield from (SIGN_IN.rstrip(), link if palette.color and address.isascii() else address)
        return
    lead = text[: len(text) - len(text.lstrip())]
    room = width - len(lead) - 2
    paint = palette.dim if text.startswith("note: ") else palette.strong if text.startswith("> ") else str
    if measure_cells(text) <= width or any(measure_cells(word) > room for word in text.split()):
        rows = [text]
    else:
        first, *others = wrap_to_cells(text.lstrip(), room)
        rows = [lead + first, *(f"{lead}  {row}" for row in others)]
    for row in rows:
        yield f"{palette.fail('✗')}{row[1:]}" if row.startswith("✗ ") else paint(row)


def render_markdown(text: str, width: int, *, color: bool) -> str:
    """Render a whole Markdown text."""
    from induscode.frontends.terminal.markdown import BlockRenderer  # noqa: PLC0415 — rich, a tenth of a second

    splitter, blocks = BlockSplitter(), BlockRenderer(color=color)
    parts = [*splitter.feed(text), *splitter.finish()]
    return "\n" + "".join(
        ("\n" if block.is_first and index else "") + blocks.render(block, width) for index, block in enumerate(parts)
    )
