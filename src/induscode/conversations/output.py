"""Session output in three formats: text, one JSON object, or one JSON line per event.

Only the answer goes to standard output; everything else goes to standard error. A slow reader delays the session but
never the event loop. A reader that closes the pipe ends the session.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio import to_thread

from indusagi.core.records import record
from induscode.cli.terminal import print_status
from induscode.conversations.contract import TextDelta, ToolAdvanced, ToolAnswered, ToolCalled

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.conversations.contract import RunEvent, RunResult, Usage
    from induscode.launch.invocation import OutputFormat

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Control characters other than tab and newline, which a terminal would obey."""


class StdoutWriter:
    """Writes to standard output in threads."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._lock = anyio.Lock()
        self.stuck = False
        """Whether a write was abandoned because the reader stalled."""

    async def write(self, text: str) -> None:
        """Write all of a text.

        Raises:
            BrokenPipeError: The reader closed the pipe.
            OSError: The write failed.
        """
        data = text.encode("utf-8", "backslashreplace")

        def write_all() -> None:
            left = memoryview(data)
            while left:
                left = left[os.write(self._handle, left) :]

        async with self._lock:
            self.stuck = True
            await to_thread.run_sync(write_all, abandon_on_cancel=True)
            self.stuck = False


@record(kw_only=True)
class RunStart:
    """Facts about a run before the first request."""

    session: str
    model: str
    cwd: str
    tools: Sequence[str]
    servers: Sequence[JsonObject]
    notes: Sequence[str]

    def to_json(self) -> JsonObject:
        """Return the `init` event."""
        return {
            "type": "init",
            "session_id": self.session,
            "model": self.model,
            "cwd": self.cwd,
            "tools": [*self.tools],
            "mcp_servers": [*self.servers],
            "notes": [*self.notes],
        }


@record(kw_only=True)
class RunSummary:
    """Facts about a run after the last request."""

    session: str
    result: RunResult
    usage: Usage
    exit_code: int
    denied: Sequence[JsonObject] = ()
    notes: Sequence[str] = ()

    def to_json(self) -> JsonObject:
        """Return the `result` event."""
        result = self.result
        fault: JsonValue = None
        if result.fault is not None:
            fault = {"kind": result.fault.kind, "message": result.fault.message}
        return {
            "type": "result",
            "session_id": self.session,
            "result": result.text,
            "reason": result.reason,
            "is_error": result.reason != "done",
            "error": result.message or None,
            "fault": fault,
            "turns": self.usage.requests,
            "usage": self.usage.to_json(),
            "cost_usd": self.usage.cost_usd,
            "denied": [*self.denied],
            "notes": [*self.notes],
            "exit_code": self.exit_code,
        }


class Reporter(Protocol):
    """Reports a run in one format, and collects denied calls for the summary."""

    denied: list[JsonObject]
    """Calls that the permissions denied."""

    async def report_start(self, start: RunStart) -> None:
        """Report the start of the run."""
        ...

    async def report_event(self, event: RunEvent) -> None:
        """Report an event."""
        ...

    async def report_end(self, summary: RunSummary) -> None:
        """Report the end of the run."""
        ...


@dataclass(slots=True)
class TextReporter:
    """Writes the model's text as it arrives."""

    writer: StdoutWriter
    verbose: bool = False
    """Whether to show tool calls on standard error, because it's a terminal."""
    denied: list[JsonObject] = field(default_factory=list["JsonObject"], init=False)
    _line_open: bool = field(default=False, init=False)
    """Whether the last line has no newline yet."""
    _has_text: bool = field(default=False, init=False)
    _gap: bool = field(default=False, init=False)
    """Whether an empty line precedes the next text."""

    async def report_start(self, start: RunStart) -> None:
        """Print the notes on standard error."""
        for note in start.notes:
            print_status(note)

    async def report_event(self, event: RunEvent) -> None:
        """Write the model's text. Other events go to standard error."""
        if isinstance(event, TextDelta):
            text = _CONTROL.sub("", event.text)
            self._gap = self._gap or (event.starts and self._has_text)
            if text:
                before = ("\n\n" if self._line_open else "\n") if self._gap else ""
                self._has_text, self._gap, self._line_open = True, False, not text.endswith("\n")
                await self.writer.write(before + text)
        elif isinstance(event, ToolAnswered) and event.code == "denied":
            self.denied.append({"id": event.id, "name": event.name, "reason": event.text})
            print_status(event.text)
        elif isinstance(event, ToolCalled) and self.verbose:
            print_status(f"calling {event.name}")
        elif isinstance(event, ToolAdvanced) and self.verbose:
            share = f"{event.done:g}" if event.total is None else f"{event.done:g}/{event.total:g}"
            print_status(f"{event.name}: {share} {event.message}")

    async def report_end(self, summary: RunSummary) -> None:
        """End the last line, and print the reason for an early end on standard error."""
        if self._line_open:
            self._line_open = False
            await self.writer.write("\n")
        if summary.result.message:
            print_status(summary.result.message)


@dataclass(slots=True)
class JsonReporter:
    """Writes one object at the end or, with `stream`, one line per event."""

    writer: StdoutWriter
    stream: bool = False
    denied: list[JsonObject] = field(default_factory=list["JsonObject"], init=False)

    async def report_start(self, start: RunStart) -> None:
        """Print the notes on standard error too, in case the reader ignores them in the JSON."""
        for note in start.notes:
            print_status(note)
        if self.stream:
            await self.writer.write(_format_line(start.to_json()))

    async def report_event(self, event: RunEvent) -> None:
        """Write a line if `stream` is set."""
        if isinstance(event, ToolAnswered) and event.code == "denied":
            self.denied.append({"id": event.id, "name": event.name, "reason": event.text})
        if self.stream:
            await self.writer.write(_format_line(event_to_json(event)))

    async def report_end(self, summary: RunSummary) -> None:
        """Write the `result` object."""
        await self.writer.write(_format_line(summary.to_json()))


def event_to_json(event: RunEvent) -> JsonObject:
    """Convert an event to the JSON of `--output-format stream-json`."""
    if isinstance(event, TextDelta):
        return {"type": "text", "text": event.text, "starts": event.starts}
    if isinstance(event, ToolCalled):
        return {"type": "tool_call", "id": event.id, "name": event.name, "arguments": event.arguments}
    if isinstance(event, ToolAdvanced):
        return {
            "type": "tool_progress",
            "id": event.id,
            "name": event.name,
            "done": event.done,
            "total": event.total,
            "message": event.message,
        }
    if isinstance(event, ToolAnswered):
        return {
            "type": "tool_result",
            "id": event.id,
            "name": event.name,
            "is_error": event.is_error,
            "text": event.text,
            "attachments": [*event.attachments],
            "code": event.code,
        }
    return {"type": "usage", **event.to_json(), "cost_usd": event.cost_usd}


def create_reporter(output_format: OutputFormat, writer: StdoutWriter, *, verbose: bool) -> Reporter:
    """Create the reporter for an output format."""
    if output_format == "text":
        return TextReporter(writer, verbose)
    return JsonReporter(writer, stream=output_format == "stream-json")


def _format_line(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
