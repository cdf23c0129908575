"""A headless run, from the prompt on the command line to the exit code.

On a terminal, a call that needs permission asks the user. With JSON output, or if standard error isn't a terminal, such
a call fails.

The first request waits three seconds for a server that was never ready before, and indefinitely for one with
`required: true`. The tools of a server that was ready before are known, so only the first call waits for it. Standard
error and the first event report missing servers, or the last event if they fail later.

Only the answer goes to standard output, in one of three formats; everything else goes to standard error. A slow reader
delays the session but never the event loop. A reader that closes the pipe ends the session.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from asyncio import get_running_loop
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import IO, TYPE_CHECKING, TypeAlias

import anyio
from anyio import to_thread

from indusagi.core.cancel import CancelToken, ending_signals
from indusagi.core.faults import CoreError
from induscode.boot.plans import ConfigPathError
from induscode.cli.signals import signal_code
from induscode.cli.terminal import print_status, redirect_to_null
from induscode.conversations.contract import (
    ExitCode,
    RetryScheduled,
    RunResult,
    TextDelta,
    ThinkingDelta,
    ToolAdvanced,
    ToolAnswered,
    ToolCalled,
)
from induscode.conversations.line_dialog import find_line_dialog
from induscode.conversations.models import InvalidAddressError, NoModelError
from induscode.conversations.opening import open_conversation
from induscode.conversations.prompt import InvalidPromptError, read_prompt
from induscode.conversations.transcript import ConversationError
from induscode.deck.contract import BackendFault, UnknownCapability
from induscode.permissions import InvalidRuleError, PermissionSetup

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.conversations.contract import AnswerEvent, RunEvent
    from induscode.conversations.conversation import Conversation
    from induscode.launch.invocation import Invocation


_CLOSING_S = 5.0
"""Time limit for the shutdown after a signal."""
_REPORT_S = 1.0
"""Time limit for writing the summary after a cancellation."""
_STANDARD_OUTPUT = 1
_TASKS_ENDED = "Your background tasks have ended. Go on with their reports, and give the complete answer."
USAGE_ERRORS = (
    InvalidAddressError,
    InvalidPromptError,
    InvalidRuleError,
    ConversationError,
    ConfigPathError,
    UnknownCapability,
    BackendFault,
)
"""Errors in the user's flags, files or names."""


def run_headless(invocation: Invocation, permissions: PermissionSetup | None = None) -> int:
    """Answer the prompt of an invocation and return the exit code.

    Call it in the main thread, without a running event loop. `permissions` overrides the invocation's.
    """
    writer = StdoutWriter(_STANDARD_OUTPUT)
    if sys.stdout is not None:
        sys.stdout.flush()

    async def run_until_signal() -> int:
        async with ending_signals() as token:
            forget = token.on_cancel(lambda: _limit_shutdown(token))
            try:
                return await answer_prompt(invocation, permissions, writer=writer, cancel=token)
            finally:
                forget()

    try:
        code = anyio.run(run_until_signal)
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    if code == ExitCode.READER_LEFT:
        redirect_to_null(_STANDARD_OUTPUT)
    if writer.stuck:
        # A thread blocked in a write without a reader would keep the interpreter alive.
        os._exit(code)
    return code


def _limit_shutdown(token: CancelToken) -> None:
    """Exit after a time limit, or immediately on a second SIGINT."""
    code = signal_code(token.reason or "")

    def exit_now(*_: object) -> None:
        os._exit(code)

    signal.signal(signal.SIGINT, exit_now)
    get_running_loop().call_later(_CLOSING_S, exit_now)


async def answer_prompt(
    invocation: Invocation,
    permissions: PermissionSetup | None,
    *,
    writer: StdoutWriter,
    cancel: CancelToken,
    stdin: IO[str] | None = None,
) -> int:
    """Answer the prompt of an invocation in a running event loop, turning errors into exit codes."""
    try:
        async with AsyncExitStack() as stack:
            run: Run | None = None
            prompt = ""
            # Resources opened inside the cancel scope close outside it, without a deadline.
            with cancel.guard():
                prompt, note = await to_thread.run_sync(
                    read_prompt, invocation.prompt, stdin or sys.stdin, lambda: cancel.cancelled
                )
                notes = [note] if note else []
                dialog = None
                if invocation.output_format == "text":
                    dialog = await to_thread.run_sync(find_line_dialog, cancel)
                conversation = await stack.enter_async_context(
                    open_conversation(invocation, permissions, notes=notes, dialog=dialog)
                )
                is_interactive = sys.stderr is not None and sys.stderr.isatty()
                reporter = create_reporter(invocation, writer, shows_calls=is_interactive)
                run = Run(conversation, reporter, cancel)
                await conversation.loading.wait()
                await conversation.wait_for_servers()
                await run.report_start()
            if run is None:
                code = int(ExitCode.FAILED)
            elif missing := run.conversation.session.mcp.missing():
                code = await run.refuse(missing)
            else:
                code = await run.execute(prompt)
    except BrokenPipeError:
        code = int(ExitCode.READER_LEFT)
    except (*USAGE_ERRORS, CoreError, OSError) as exc:
        print_status(str(exc))
        code = to_exit_code(exc)
    return signal_code(cancel.reason or "") if cancel.cancelled else code


def to_exit_code(exc: Exception) -> int:
    """Return the exit code for the error that ended a run."""
    if isinstance(exc, USAGE_ERRORS):
        return ExitCode.USAGE
    return ExitCode.MODEL if isinstance(exc, NoModelError) else ExitCode.FAILED


@dataclass(slots=True)
class Run:
    """Runs and reports the turns of a headless conversation."""

    conversation: Conversation
    reporter: Reporter
    cancel: CancelToken
    denied: list[JsonValue] = field(default_factory=list["JsonValue"])
    """Calls that the permissions denied."""

    async def report_start(self) -> None:
        """Report model, tools and servers before the first request.

        Notes go to standard error too, in case the reader ignores them in the JSON.
        """
        start = self.describe_start()
        for note in self.conversation.notes:
            print_status(note)
        await self.reporter.report_start(start)

    def describe_start(self) -> JsonObject:
        """Build the `init` event."""
        conversation = self.conversation
        conversation.notes.extend(conversation.list_notes())
        servers: list[JsonValue] = []
        for name, status in conversation.session.mcp.status().items():
            fault = status.fault
            servers.append(
                {
                    "name": name,
                    "phase": str(status.phase),
                    "tools": status.tool_count,
                    "fault": None if fault is None else {"kind": str(fault.kind), "message": str(fault)},
                }
            )
        return {
            "type": "init",
            "session_id": conversation.transcript.id,
            "model": conversation.choice.label,
            "cwd": conversation.invocation.cwd,
            "tools": [card.name for card in conversation.session.deck().shown()],
            "mcp_servers": servers,
            "notes": [*conversation.notes],
        }

    async def refuse(self, missing: Sequence[str]) -> int:
        """End before the first request because required servers are missing."""
        names = ", ".join(map(repr, missing))
        message = f"{names} must be ready for this run and is not: no request was made"
        await self._report_end(RunResult(reason="error", message=message), ExitCode.SERVER_MISSING)
        return ExitCode.SERVER_MISSING

    async def execute(self, prompt: str) -> int:
        """Answer the prompt and return the exit code."""
        conversation = self.conversation
        known = len(conversation.notes)
        answer = partial(
            conversation.run_turn, sink=self._report_event, cancel=self.cancel, budget=conversation.open_budget()
        )
        result = await answer(prompt)
        while result.reason == "done" and await conversation.resources.delegate.wait_for_all(self.cancel):
            # Let the model read the reports of background tasks that ended after its answer.
            result = await answer(_TASKS_ENDED)
        for note in conversation.notes[known:]:
            print_status(note)
        if result.reason == "cancelled":
            code = signal_code(self.cancel.reason or "")
        elif result.reason == "error":
            code = ExitCode.FAILED if result.fault is None else ExitCode.MODEL
        else:
            is_refused = conversation.invocation.fail_on_denied and bool(self.denied)
            code = ExitCode.OK if result.reason == "done" and not is_refused else ExitCode.LIMIT
        if result.note:
            self._warn(result.note)
        await self._report_end(result, code)
        return code

    async def _report_event(self, event: RunEvent) -> None:
        if isinstance(event, ToolAnswered) and event.code == "denied":
            self.denied.append({"id": event.id, "name": event.name, "reason": event.text})
        await self.reporter.report_event(event)

    def _warn(self, message: str) -> None:
        self.conversation.notes.append(message)
        print_status(message)

    async def _report_end(self, result: RunResult, code: int) -> None:
        """Report the `result` event."""
        conversation = self.conversation
        for note in conversation.list_notes():
            if note not in conversation.notes:
                self._warn(note)  # since the start, a server failed or changed its tools
        if conversation.transcript.failure is not None:
            self._warn(f"the end of this conversation is not kept: {conversation.transcript.failure}")
        # A cancelled run reports its summary too, if the reader accepts it in time.
        with anyio.move_on_after(_REPORT_S, shield=True):
            await self.reporter.report_end(self.describe_end(result, code))

    def describe_end(self, result: RunResult, code: int) -> JsonObject:
        """Build the `result` event."""
        conversation = self.conversation
        fault, usage = result.fault, conversation.usage
        return {
            "type": "result",
            "session_id": conversation.transcript.id,
            "result": result.text,
            "reason": result.reason,
            "is_error": result.reason != "done",
            "error": result.message or None,
            "fault": None if fault is None else {"kind": fault.kind, "message": fault.message},
            "turns": usage.requests,
            "usage": usage.to_json(),
            "cost_usd": usage.cost_usd,
            "denied": self.denied,
            "notes": [*conversation.notes],
            "exit_code": code,
        }


# -- output -------------------------------------------------------------------------------------


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
        """Write all of a text; `BrokenPipeError` if the reader closed the pipe."""
        data = text.encode("utf-8", "backslashreplace")

        def write_all() -> None:
            left = memoryview(data)
            while left:
                left = left[os.write(self._handle, left) :]

        async with self._lock:
            self.stuck = True
            await to_thread.run_sync(write_all, abandon_on_cancel=True)
            self.stuck = False


@dataclass(slots=True)
class TextReporter:
    """Writes the answer at the end, or with `--verbose` all of the model's text as it arrives."""

    writer: StdoutWriter
    streams: bool = False
    shows_calls: bool = False
    """Whether to show tool calls on standard error, because it's a terminal."""
    _line_open: bool = field(default=False, init=False)
    """Whether the last line has no newline yet."""
    _has_text: bool = field(default=False, init=False)
    _gap: bool = field(default=False, init=False)
    """Whether an empty line precedes the next text."""

    async def report_start(self, start: JsonObject) -> None:
        """Write nothing: text output is the answer."""

    async def report_event(self, event: RunEvent) -> None:
        """Write the model's text. Other events go to standard error."""
        if isinstance(event, TextDelta):
            if not self.streams:
                return
            text = _CONTROL.sub("", event.text)
            self._gap = self._gap or (event.starts and self._has_text)
            if text:
                before = ("\n\n" if self._line_open else "\n") if self._gap else ""
                self._has_text, self._gap, self._line_open = True, False, not text.endswith("\n")
                await self.writer.write(before + text)
        elif isinstance(event, ToolAnswered) and event.code == "denied":
            print_status(event.text)
        elif isinstance(event, RetryScheduled):
            print_status(event.describe(event.delay_s))
        elif isinstance(event, ToolCalled) and self.shows_calls:
            print_status(f"calling {event.name}")
        elif isinstance(event, ToolAdvanced) and self.shows_calls:
            share = f"{event.done:g}" if event.total is None else f"{event.done:g}/{event.total:g}"
            print_status(f"{event.name}: {share} {event.message}")

    async def report_end(self, summary: JsonObject) -> None:
        """Write the answer or end its last line, and print the reason for an early end on standard error."""
        text = "" if self.streams else _CONTROL.sub("", str(summary["result"]))
        if self._line_open or text:
            self._line_open = False
            await self.writer.write(text.removesuffix("\n") + "\n")
        if summary["error"]:
            print_status(str(summary["error"]))


@dataclass(slots=True)
class JsonReporter:
    """Writes one object at the end or, with `stream`, one line per event."""

    writer: StdoutWriter
    stream: bool

    async def report_start(self, start: JsonObject) -> None:
        """Write the `init` object if `stream` is set."""
        if self.stream:
            await self.writer.write(_format_line(start))

    async def report_event(self, event: RunEvent) -> None:
        """Write a line if `stream` is set. Reasoning and retries aren't part of the answer."""
        if self.stream and not isinstance(event, (ThinkingDelta, RetryScheduled)):
            await self.writer.write(_format_line(event_to_json(event)))

    async def report_end(self, summary: JsonObject) -> None:
        """Write the `result` object."""
        await self.writer.write(_format_line(summary))


Reporter: TypeAlias = TextReporter | JsonReporter


def event_to_json(event: AnswerEvent) -> JsonObject:
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


def create_reporter(invocation: Invocation, writer: StdoutWriter, *, shows_calls: bool) -> Reporter:
    """Create the reporter for the output format."""
    if invocation.output_format == "text":
        return TextReporter(writer, invocation.verbose, shows_calls)
    return JsonReporter(writer, stream=invocation.output_format == "stream-json")


def _format_line(value: JsonObject) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
