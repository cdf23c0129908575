"""The three ways in which a session is told: as text, as one object, as a line for each event.

Standard output is for the answer alone; everything else goes to standard error. A slow reader holds
up the session, never the event loop, and one who leaves ends it.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import anyio
from anyio import to_thread

from induscode.session.contract import TextDelta, ToolAdvanced, ToolAnswered, ToolCalled
from induscode.terminal import print_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from induscode.launch.invocation import OutputFormat
    from induscode.session.contract import RunEvent, RunResult, Usage

_OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""What a terminal would obey instead of showing it: single characters, wherever chunks end."""


class StdoutWriter:
    """Standard output, written in threads."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._turn = anyio.Lock()
        self.stuck = False
        """Whether a write was given up while its reader did not read."""

    async def write(self, text: str) -> None:
        """Write text; it is out when this returns.

        Raises:
            BrokenPipeError: Nobody reads it.
            OSError: It cannot be written.
        """
        data = text.encode("utf-8", "backslashreplace")
        async with self._turn:
            self.stuck = True
            await to_thread.run_sync(_write_all, self._handle, data, abandon_on_cancel=True)
            self.stuck = False


def _write_all(handle: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(handle, left) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStart:
    """What is known before the first request."""

    session: str
    model: str
    cwd: str
    tools: Sequence[str]
    servers: Sequence[JsonObject]
    notes: Sequence[str]

    def as_json(self) -> JsonObject:
        """Give it for a program."""
        return {
            "type": "init",
            "session_id": self.session,
            "model": self.model,
            "cwd": self.cwd,
            "tools": [*self.tools],
            "mcp_servers": [*self.servers],
            "notes": [*self.notes],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """What is known after the last request."""

    session: str
    ended: RunResult
    usage: Usage
    exit_code: int
    denied: Sequence[JsonObject] = ()
    notes: Sequence[str] = ()

    def as_json(self) -> JsonObject:
        """Give it for a program."""
        ended = self.ended
        fault: JsonValue = None
        if ended.fault is not None:
            fault = {"kind": ended.fault.kind, "message": ended.fault.message}
        return {
            "type": "result",
            "session_id": self.session,
            "result": ended.text,
            "reason": ended.reason,
            "is_error": ended.reason != "done",
            "error": ended.said or None,
            "fault": fault,
            "turns": self.usage.requests,
            "usage": self.usage.as_json(),
            "cost_usd": self.usage.cost_usd,
            "denied": [*self.denied],
            "notes": [*self.notes],
            "exit_code": self.exit_code,
        }


class Reporter(Protocol):
    """Tells what happens, in one of the ways there are."""

    async def opened(self, opening: RunStart) -> None:
        """Tell what there is, before the first request."""
        ...

    async def event(self, event: RunEvent) -> None:
        """Tell what has just happened."""
        ...

    async def closed(self, closing: RunSummary) -> None:
        """Tell what came of it."""
        ...


@dataclass(slots=True)
class TextReporter:
    """Writes what the model says as it says it."""

    page: StdoutWriter
    chatty: bool = False
    """Whether somebody watches who wants to see which tools are called."""
    _open: bool = field(default=False, init=False)
    """Whether the last line has no end yet."""
    _any: bool = field(default=False, init=False)
    _gap: bool = field(default=False, init=False)
    """Whether the next words are set apart from those before."""

    async def opened(self, opening: RunStart) -> None:
        """Say what was left out, on standard error."""
        for note in opening.notes:
            print_status(note)

    async def event(self, event: RunEvent) -> None:
        """Write the model's words; everything else is for whoever watches."""
        if isinstance(event, TextDelta):
            await self._words(event)
        elif isinstance(event, ToolAnswered) and event.code == "denied":
            print_status(event.text)
        elif isinstance(event, ToolCalled) and self.chatty:
            print_status(f"calling {event.name}")
        elif isinstance(event, ToolAdvanced) and self.chatty:
            print_status(f"{event.name}: {_share(event)} {event.message}")

    async def _words(self, event: TextDelta) -> None:
        text = _OBEYED.sub("", event.text)
        self._gap = self._gap or (event.starts and self._any)
        if text:
            before = ("\n\n" if self._open else "\n") if self._gap else ""
            self._any, self._gap, self._open = True, False, not text.endswith("\n")
            await self.page.write(before + text)

    async def closed(self, closing: RunSummary) -> None:
        """End the last line, and say on standard error why it ended early."""
        if self._open:
            self._open = False
            await self.page.write("\n")
        if closing.ended.said:
            print_status(closing.ended.said)


@dataclass(slots=True)
class JsonReporter:
    """Writes one object at the end."""

    page: StdoutWriter

    async def opened(self, opening: RunStart) -> None:
        """Say what was left out, on standard error too: a program may not look at it."""
        for note in opening.notes:
            print_status(note)

    async def event(self, event: RunEvent) -> None:
        """Say nothing until the end."""

    async def closed(self, closing: RunSummary) -> None:
        """Write the object."""
        await self.page.write(_line(closing.as_json()))


@dataclass(slots=True)
class StreamReporter:
    """Writes a line for each event."""

    page: StdoutWriter

    async def opened(self, opening: RunStart) -> None:
        """Write the first line."""
        for note in opening.notes:
            print_status(note)
        await self.page.write(_line(opening.as_json()))

    async def event(self, event: RunEvent) -> None:
        """Write a line."""
        await self.page.write(_line(event_json(event)))

    async def closed(self, closing: RunSummary) -> None:
        """Write the last line."""
        await self.page.write(_line(closing.as_json()))


def event_json(event: RunEvent) -> JsonObject:
    """Give an event for a program."""
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
    return {"type": "usage", **event.as_json(), "cost_usd": event.cost_usd}


def reporter_for(shape: OutputFormat, page: StdoutWriter, *, chatty: bool) -> Reporter:
    """Choose the way in which a session is told."""
    if shape == "json":
        return JsonReporter(page)
    return StreamReporter(page) if shape == "stream-json" else TextReporter(page, chatty)


def _line(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _share(event: ToolAdvanced) -> str:
    return f"{event.done:g}" if event.total is None else f"{event.done:g}/{event.total:g}"
