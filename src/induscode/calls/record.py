"""The record of one call: who made it, what it called, how long it took and how it ended.

A record contains no arguments or results: a keyed digest of the arguments distinguishes different calls, and sizes show
how much was passed. The texts themselves are only kept if the user asks for it (`calls.record`).
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.records import record
from indusagi.core.time import iso_utc
from indusagi.runtime.contract import TextContentBlock, ToolOutcome, ToolResult

if TYPE_CHECKING:
    from indusagi.core.faults import Note
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef

Outcome: TypeAlias = Literal["ok", "error", "fault", "denied", "cancelled"]
"""The tool answered, it returned an error, its server failed, the user or a rule declined the call, or it was
cancelled."""
FAILED_OUTCOMES = ("error", "fault")
DECLINED = "denied"
"""A declined call didn't run: it isn't a failure, and has no duration."""
FAULT_CODES = frozenset({"transport", "protocol", "timeout", "not_connected", "spawn_failed", "drift"})
"""Error codes of a server's tool that mean a server fault. A native command that times out has answered."""
_REASONS: Mapping[str, str] = {
    "drift": "tool changed",
    "failed": "",
    "no_match": "text not found",
    "not_connected": "server not connected",
    "protocol": "protocol violated",
    "spawn_failed": "server didn't start",
    "timeout": "timed out",
    "transport": "connection lost",
}
"""Words for error codes that need others than their own."""
CALLS_FILE = "calls.db"
"""Database name in the state directory."""
_MAX_NODES = 1_000
"""Parts of a JSON value to measure. Larger values are rare, and the size is an estimate."""
CallRow: TypeAlias = tuple[str | int, ...]
"""A record's values without its number, in the order of `COLUMNS`."""


@record(kw_only=True)
class CallOrigin:
    """Facts shared by all calls of a run."""

    via: str = ""
    """Entry point: `session`, `call` or `gateway`."""
    client: str = ""
    conversation: str = ""
    transport: str = ""
    """Transport of a gateway's clients: `pipe` or `tcp`."""


@record
class CallRecord:
    """One call."""

    id: int
    """Its number, which increases and is never reused; 0 before it's stored."""
    at_ms: int
    duration_us: int
    """How long it ran, without `waited_us`."""
    via: str
    client: str
    """Name and version reported by the client."""
    principal: str
    conversation: str
    run: str
    """The ledger's run, whose `turn` shows the deck the model saw."""
    turn: int
    agent: str
    """The sub-agent that made the call."""
    server: str
    """Empty for a native tool."""
    tool: str
    """The server's name for the tool, resource or prompt; `(unlisted)` if the server doesn't list it."""
    call: str
    digest: str
    """Keyed digest of the arguments: equal for equal arguments of one user."""
    argument_bytes: int
    result_bytes: int
    tokens: int
    """Estimated tokens of arguments and text, at four bytes each."""
    outcome: str
    code: str
    """Error code."""
    attempt: int
    """1, or the number of attempts at the same call so far without success."""
    trace: str = field(default="")
    """Trace id, if the call is part of a trace."""
    kind: str = field(default="tool")
    """`tool`, `resource` or `prompt`."""
    waited_us: int = field(default=0)
    """How long it waited for the user: an approval, a form of the server."""
    allowed_by: str = field(default="")
    """The rule with its origin, the flag or the user, whichever allowed it; empty if it needed no permission."""

    @property
    def shown_name(self) -> str:
        """Display name: `github → search`, `@github:repo://readme`, `/github:review`."""
        return format_name(self.kind, self.server, self.tool)

    @property
    def caller(self) -> str:
        """Who made it: principal, client and sub-agent, or else the conversation."""
        return " ".join(filter(None, (self.principal, self.client, self.agent))) or self.conversation

    @property
    def shown_outcome(self) -> str:
        """Display outcome: `ok`, `declined`, `error: text not found`."""
        outcome = {DECLINED: "declined", "fault": "failed"}.get(self.outcome, self.outcome)
        reason = _REASONS.get(self.code, self.code.replace("_", " "))
        return f"{outcome}: {reason}" if reason and self.outcome in FAILED_OUTCOMES else outcome

    def to_json(self) -> JsonObject:
        """Convert to a JSON object, with the time as RFC 3339."""
        values: JsonObject = dict(zip(COLUMNS, self.to_row(), strict=True))
        return {"id": self.id, "at": iso_utc(self.at_ms), **values}

    def to_row(self) -> CallRow:
        """Return the values of the table, which assigns the number itself."""
        return tuple(getattr(self, name) for name in COLUMNS)


COLUMNS: tuple[str, ...] = tuple(one.name for one in fields(CallRecord) if one.name != "id")
"""The fields in the order of the table."""


def format_name(kind: str, server: str, name: str) -> str:
    """Format a tool's name with its server, or a resource's or prompt's as sessions and `indus call` write it."""
    mark = {"resource": "@", "prompt": "/"}.get(kind)
    if mark is not None:
        return f"{mark}{server}:{name}"
    return f"{server} → {name}" if server else name


def format_export(calls: Iterable[CallRecord], kind: str) -> Iterator[str]:
    """Format calls as JSON lines (`jsonl`) or CSV (`csv`), line by line."""
    if kind == "jsonl":
        for call in calls:
            yield json.dumps(call.to_json()) + "\n"  # ASCII, so that it can't contain terminal escapes
        return
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")  # RFC 4180, but with native line endings
    writer.writerow(("id", "at", *COLUMNS))
    for call in calls:
        yield _take(text)
        # Spreadsheets evaluate cells that look like formulas, and clients choose their own names.
        writer.writerow(
            f"'{value}" if isinstance(value, str) and value[:1] in {"=", "+", "-", "@", "\t"} else value
            for value in call.to_json().values()
        )
    yield _take(text)


def _take(text: io.StringIO) -> str:
    """Return the text so far, and start over."""
    written = text.getvalue()
    text.seek(0)
    text.truncate()
    return written


def find_outcome(*, is_cancelled: bool, is_error: bool, code: str, is_remote: bool) -> Outcome:
    """Classify how a call ended."""
    if is_cancelled or code == "cancelled":
        return "cancelled"
    if not is_error:
        return "ok"
    if code == "denied":
        return "denied"
    return "fault" if is_remote and code in FAULT_CODES else "error"


def classify_end(outcome: ToolOutcome | None, *, is_remote: bool) -> tuple[Outcome, str]:
    """Return how a call ended (`None`: its task was cancelled), and the code of its error."""
    code = "" if outcome is None else outcome.result.details.get("code")
    text = code if isinstance(code, str) else ""
    is_error = outcome is not None and outcome.result.is_error
    return find_outcome(is_cancelled=outcome is None, is_error=is_error, code=text, is_remote=is_remote), text


def measure_result(result: ToolResult) -> tuple[int, int]:
    """Measure a result's size in bytes, and its text alone."""
    text = other = 0
    for block in result.content:
        if isinstance(block, TextContentBlock):
            text += measure_text(block.text)
            continue
        resource = block.value.get("resource") if isinstance(block.value, dict) else None
        embedded = resource.get("text") if isinstance(resource, dict) else None
        if isinstance(embedded, str):
            text += measure_text(embedded)
        else:
            other += estimate_size(block.value)[0]
    if not result.content and result.structured is not None:
        text = estimate_size(result.structured)[0]
    return text + other, text


def measure_text(text: str) -> int:
    """Count the bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def estimate_size(value: JsonValue) -> tuple[int, bool]:
    """Estimate a JSON value's size in bytes. Returns False with it if there are too many parts to measure."""
    total, nodes = 0, 0
    pending: list[JsonValue] = [value]
    while pending:
        nodes += 1
        if nodes > _MAX_NODES:
            return total, False
        part = pending.pop()
        if isinstance(part, str):
            total += len(part) + 2
        elif isinstance(part, dict):
            total += sum(map(len, map(str, part))) + 4 * len(part) + 1  # keys may have any type by mistake
            pending.extend(part.values())
        elif isinstance(part, list):
            total += len(part) + 1
            pending.extend(part)
        else:
            total += 4
    return total, True


def find_tool_ref(tool: object) -> RemoteToolRef | None:
    """Find the server and tool behind a card and its wrappers; None for a native tool."""
    while tool is not None:
        ref = getattr(tool, "ref", None)
        if ref is not None:
            return ref
        tool = getattr(tool, "inner", None)
    return None


def report_new_notes(notes: Sequence[Note], said: int, on_note: Callable[[Note], None] | None) -> int:
    """Report the notes after the first `said`, if there's a receiver. Returns how many were reported so far."""
    if on_note is None:
        return said
    for note in notes[said:]:
        on_note(note)
    return max(said, len(notes))
