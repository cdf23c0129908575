"""A headless run, from the prompt on the command line to the exit code.

On a terminal, a call that needs permission asks the user. With JSON output, or if standard error isn't a terminal, such
a call fails.

The first request waits three seconds for a server that was never ready before, and indefinitely for one with
`required: true`. The tools of a server that was ready before are known, so only the first call waits for it. Standard
error and the first event report missing servers, or the last event if they fail later.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.cancel import ending_signals
from indusagi.core.faults import CoreError
from induscode.boot.plans import ConfigPathError
from induscode.cli.signals import signal_code
from induscode.cli.terminal import print_status, redirect_to_null
from induscode.conversations.contract import ExitCode, RequestBudget, RunResult
from induscode.conversations.line_dialog import find_line_dialog
from induscode.conversations.models import InvalidAddressError, NoModelError
from induscode.conversations.opening import open_conversation
from induscode.conversations.output import RunStart, RunSummary, StdoutWriter, create_reporter
from induscode.conversations.prompt import InvalidPromptError, read_prompt
from induscode.conversations.transcript import ConversationError
from induscode.deck.contract import BackendFault, UnknownCapability
from induscode.permissions import InvalidRuleError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from induscode.conversations.conversation import Conversation
    from induscode.conversations.output import Reporter
    from induscode.launch.invocation import Invocation
    from induscode.permissions import PermissionSetup

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
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

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
                reporter = create_reporter(invocation.output_format, writer, verbose=is_interactive)
                run = Run(conversation, reporter, cancel)
                await conversation.loading.wait()
                await conversation.wait_for_servers()
                await reporter.report_start(run.describe_start())
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

    def describe_start(self) -> RunStart:
        """Describe the model, tools and servers before the first request."""
        conversation = self.conversation
        conversation.notes.extend(conversation.list_notes())
        servers: list[JsonObject] = []
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
        return RunStart(
            session=conversation.transcript.id,
            model=conversation.choice.label,
            cwd=conversation.invocation.cwd,
            tools=[card.name for card in conversation.session.deck().shown()],
            servers=servers,
            notes=tuple(conversation.notes),
        )

    async def refuse(self, missing: Sequence[str]) -> int:
        """End before the first request because required servers are missing."""
        names = ", ".join(map(repr, missing))
        message = f"{names} must be ready for this run and is not: no request was made"
        await self._report_end(RunResult(reason="error", message=message), ExitCode.SERVER_MISSING)
        return ExitCode.SERVER_MISSING

    async def execute(self, prompt: str) -> int:
        """Answer the prompt and return the exit code."""
        conversation, sink = self.conversation, self.reporter.report_event
        known = len(conversation.notes)
        budget = RequestBudget(conversation.invocation.max_requests)
        result = await conversation.run_turn(prompt, sink=sink, cancel=self.cancel, budget=budget)
        tasks = conversation.resources.delegate
        while result.reason == "done" and await tasks.wait_for_all(self.cancel):
            # Let the model read the reports of background tasks that ended after its answer.
            result = await conversation.run_turn(_TASKS_ENDED, sink=sink, cancel=self.cancel, budget=budget)
        for note in conversation.notes[known:]:
            print_status(note)
        if result.reason == "cancelled":
            code = signal_code(self.cancel.reason or "")
        elif result.reason == "error":
            code = ExitCode.FAILED if result.fault is None else ExitCode.MODEL
        else:
            code = ExitCode.OK if result.reason == "done" else ExitCode.LIMIT
        if result.note:
            self._warn(result.note)
        await self._report_end(result, code)
        return code

    def _warn(self, message: str) -> None:
        self.conversation.notes.append(message)
        print_status(message)

    async def _report_end(self, result: RunResult, code: int) -> None:
        conversation = self.conversation
        for note in conversation.list_notes():
            if note not in conversation.notes:
                self._warn(note)  # since the start, a server failed or changed its tools
        if conversation.transcript.failure is not None:
            self._warn(f"the end of this conversation is not kept: {conversation.transcript.failure}")
        summary = RunSummary(
            session=conversation.transcript.id,
            result=result,
            usage=conversation.usage,
            exit_code=code,
            denied=tuple(self.reporter.denied),
            notes=tuple(conversation.notes),
        )
        # A cancelled run reports its summary too, if the reader accepts it in time.
        with anyio.move_on_after(_REPORT_S, shield=True):
            await self.reporter.report_end(summary)
