"""One headless run, from the prompt on the command line to the exit code of the program.

A server that has never been ready is waited for before the first request, so that a model has every tool; so is one
with `required: true`. The tools of a server that was ready before are known, and the first call waits for the server.
Missing servers are reported on standard error and in the first event, or in the last one if they fail later.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.faults import CoreError
from indusagi.core.ids import new_ulid
from indusagi.core.signals import ending_signals
from indusagi.core.tasks import BackgroundTask
from indusagi.core.text import clean_text, cut_text, format_count
from induscode.boot.runners import ConfigPathError, check_named_configs
from induscode.boot.session import open_session
from induscode.deck.contract import BackendFault, DeckFramework, UnknownCapability
from induscode.deck.stores import FileCheckpoints, FileMemory
from induscode.deck.stores.memory_file import MEMORY_NAME
from induscode.session.contract import ExitCode, RequestBudget, RunPlan, RunResult, Usage, signal_code
from induscode.session.delegate import ParentSession, SubSessions
from induscode.session.models import InvalidAddressError, NoModelError, choose_model
from induscode.session.output import RunStart, RunSummary, StdoutWriter, create_reporter
from induscode.session.permissions import InvalidRuleError, load_permissions
from induscode.session.plan_mode import PlanMode
from induscode.session.prompt import InvalidPromptError, SystemPrompt, read_project_instructions, read_prompt
from induscode.session.transcript import ConversationError, ConversationReadState, Transcript, open_transcript
from induscode.terminal import print_status, redirect_to_null

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from typing import IO

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.boot.session import Session
    from induscode.launch.invocation import Invocation
    from induscode.session.models import ModelChoice
    from induscode.session.output import Reporter
    from induscode.session.permissions import PermissionSetup

SMALL_WINDOW = 16_384
"""Context window in tokens up to which a model is shown only the native tools below."""
SMALL_WINDOW_TOOLS = ("read", "ls", "grep", "find", "write", "edit", "bash")
_CLOSING_S = 5.0
"""Time to close everything after a signal."""
_REPORT_S = 1.0
"""Time to write the summary after a cancellation."""
_SHOWN_COMMAND = 60
_STANDARD_OUTPUT = 1
_USAGE_ERRORS = (
    InvalidAddressError,
    InvalidPromptError,
    InvalidRuleError,
    ConversationError,
    ConfigPathError,
    UnknownCapability,
    BackendFault,
)


# -- the program --------------------------------------------------------------------------------


def run_headless(invocation: Invocation, permissions: PermissionSetup | None = None) -> int:
    """Answer the prompt of an invocation, and give the exit code of the program.

    Call it in the main thread, without a running event loop. `permissions` replaces those that the invocation asks for.
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
        # A thread is blocked in a write that has no reader; it would keep the interpreter alive.
        os._exit(code)
    return code


def _limit_shutdown(token: CancelToken) -> None:
    """Exit after a time limit, or at once at the second SIGINT."""
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
    """Answer the prompt of an invocation in a running event loop; errors become exit codes."""
    try:
        async with AsyncExitStack() as stack:
            run: Run | None = None
            prompt = ""
            # Resources opened inside the cancel scope are closed outside of it, without a deadline.
            with cancel.guard():
                prompt, note = await to_thread.run_sync(
                    read_prompt, invocation.prompt, stdin or sys.stdin, lambda: cancel.cancelled
                )
                notes = [note] if note else []
                run = await _open_run(invocation, permissions, writer, cancel, stack, notes)
            if run is None:
                code = int(ExitCode.FAILED)
            elif missing := run.session.mcp.missing():
                code = await run.refuse(missing)
            else:
                code = await run.execute(prompt)
    except BrokenPipeError:
        code = int(ExitCode.READER_LEFT)
    except _USAGE_ERRORS as exc:
        print_status(str(exc))
        code = int(ExitCode.USAGE)
    except NoModelError as exc:
        print_status(str(exc))
        code = int(ExitCode.MODEL)
    except (CoreError, OSError) as exc:
        print_status(str(exc))
        code = int(ExitCode.FAILED)
    return signal_code(cancel.reason or "") if cancel.cancelled else code


# -- opening ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionResources:
    """Stores that the session gives to the cards of its deck."""

    memory: FileMemory
    checkpoints: FileCheckpoints
    """Closed by the caller of `build_resources`."""
    delegate: SubSessions
    read_state: ConversationReadState


def build_resources(cwd: str, transcript: Transcript) -> SessionResources:
    """Build the resources of a session in `cwd`; files are opened at first use."""
    return SessionResources(
        FileMemory(os.path.join(cwd, MEMORY_NAME)),
        FileCheckpoints(os.path.join(transcript.directory, "checkpoints")),
        SubSessions(os.path.join(transcript.directory, "tasks"), cwd),
        ConversationReadState(transcript),
    )


def list_leftover_jobs() -> list[str]:
    """Describe the jobs that still run after a crash, with the command that ends them. It blocks."""
    from indusagi.capabilities.receipts import find_leftover_jobs  # noqa: PLC0415 — loaded with the tools

    try:
        jobs = find_leftover_jobs()
    except OSError:  # the ledger store reports an unusable state directory
        return []
    if not jobs:
        return []
    command = cut_text(" ".join(clean_text(jobs[0].command)[0].split()), _SHOWN_COMMAND)
    count = format_count(len(jobs), "job of a run that crashed runs", "jobs of runs that crashed run")
    return [f"{count} on, such as {command!r}: `indus mcp doctor --end-leftovers` ends it"]


async def _open_run(
    invocation: Invocation,
    permissions: PermissionSetup | None,
    writer: StdoutWriter,
    cancel: CancelToken,
    stack: AsyncExitStack,
    notes: list[str],
) -> Run:
    await to_thread.run_sync(check_named_configs, invocation)
    choice = await choose_model(invocation, os.environ)
    window = choice.context_window
    if window is not None and window <= SMALL_WINDOW and not invocation.tools and not invocation.no_tools:
        invocation = replace(invocation, tools=SMALL_WINDOW_TOOLS)
        notes.append(
            f"{choice.label} reads {window:,} tokens, so of the native tools only "
            f"{', '.join(SMALL_WINDOW_TOOLS)} are shown; --tools names others"
        )
    mode = PlanMode(approves=invocation.approval != "ask")
    permissions = permissions or await to_thread.run_sync(load_permissions, invocation, mode)
    notes.extend(map(str, permissions.notes))
    notes.extend(await to_thread.run_sync(list_leftover_jobs))
    transcript = await stack.enter_async_context(_open_conversation(invocation, notes))
    mode.folder = transcript.directory
    resources = build_resources(invocation.cwd, transcript)
    stack.callback(resources.checkpoints.close)
    framework = DeckFramework(
        read_state=resources.read_state,
        checkpoint=resources.checkpoints,
        delegate=resources.delegate,
        memory=resources.memory,
    )
    loading = await stack.enter_async_context(_preload())
    session = await stack.enter_async_context(
        open_session(invocation, framework=framework, wrap=permissions.wrap, plan_mode=True, wait=False)
    )
    instructions = await to_thread.run_sync(read_project_instructions, invocation.cwd)
    system_prompt = SystemPrompt(invocation.cwd, permissions.posture, instructions)
    is_interactive = sys.stderr is not None and sys.stderr.isatty()
    reporter = create_reporter(invocation.output_format, writer, verbose=is_interactive)
    run = Run(invocation, session, choice, transcript, resources, system_prompt, reporter, cancel, notes)
    await loading.wait()
    await session.mcp.wait_for_required()
    await reporter.report_start(run.describe_start())
    if not gc.isenabled():  # imports are done: collect garbage from here on
        gc.freeze()
        gc.enable()
    return run


@asynccontextmanager
async def _open_conversation(invocation: Invocation, notes: list[str]) -> AsyncGenerator[Transcript]:
    """Open the conversation; a new one that cannot be stored is held in a temporary directory."""
    async with AsyncExitStack() as stack:
        open_stored = partial(open_transcript, invocation.cwd, resume=invocation.resume, last=invocation.continue_last)
        try:
            transcript = await to_thread.run_sync(open_stored)
        except OSError as exc:
            if invocation.resume is not None or invocation.continue_last:
                raise
            notes.append(f"this conversation cannot be kept: {exc}")
            folder = await to_thread.run_sync(partial(mkdtemp, prefix="indus-"))
            stack.push_async_callback(to_thread.run_sync, partial(rmtree, folder))
            path = os.path.join(folder, new_ulid())
            transcript = await to_thread.run_sync(Transcript, path, invocation.cwd)
        stack.callback(transcript.close)
        yield transcript


@asynccontextmanager
async def _preload() -> AsyncGenerator[BackgroundTask]:
    """Import the model loop in a thread while servers start: it takes longer than they do."""
    loading = BackgroundTask("loading of the model loop")

    def load() -> None:
        import_module("induscode.session.model_loop")

    loading.start(to_thread.run_sync(load, abandon_on_cancel=True))
    try:
        yield loading
    finally:
        loading.cancel()
        await loading.join()


# -- running ------------------------------------------------------------------------------------


@dataclass(slots=True)
class Run:
    """One run with everything open: reported, executed, and recorded."""

    invocation: Invocation
    session: Session
    choice: ModelChoice
    transcript: Transcript
    resources: SessionResources
    system_prompt: SystemPrompt
    reporter: Reporter
    cancel: CancelToken
    notes: list[str]
    """Warnings so far; more are added while the run goes on."""

    def describe_start(self) -> RunStart:
        """Describe the model, the tools and the servers before the first request."""
        self.notes.extend(self._list_notes())
        servers: list[JsonObject] = []
        for name, status in self.session.mcp.status().items():
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
            session=self.transcript.id,
            model=self.choice.label,
            cwd=self.invocation.cwd,
            tools=[card.name for card in self.session.deck().tools()],
            servers=servers,
            notes=tuple(self.notes),
        )

    def _list_notes(self) -> list[str]:
        notes = [self.choice.note] if self.choice.note else []
        notes.extend(str(note) for note in (*self.session.notes, *self.session.mcp.enrolment.notes))
        for name, status in self.session.mcp.status().items():
            if status.fault is not None:
                fault = str(status.fault)
                notes.append(fault if repr(name) in fault else f"server {name!r}: {fault}")
        return list(dict.fromkeys(notes))

    async def refuse(self, missing: Sequence[str]) -> int:
        """End before the first request, because required servers are missing."""
        names = ", ".join(map(repr, missing))
        message = f"{names} must be ready for this run and is not: no request was made"
        await self._report_end(RunResult(reason="error", message=message), ExitCode.SERVER_MISSING)
        return ExitCode.SERVER_MISSING

    async def execute(self, prompt: str) -> int:
        """Have the model answer the prompt, and give the exit code."""
        from induscode.session.model_loop import ModelLoop, open_model  # noqa: PLC0415 — imported by `_preload`

        model = await to_thread.run_sync(open_model, self.choice)
        async with ModelLoop(model) as loop:
            budget = RequestBudget(self.invocation.max_requests)
            session, system_prompt, report_event = self.session, self.system_prompt, self.reporter.report_event
            node = new_ulid()
            try:
                await to_thread.run_sync(self.resources.checkpoints.begin, node)
            except OSError as exc:
                self._warn(f"what files held before is not kept: {exc}")
            turns = TurnRecorder(session, self.transcript, node)
            parent = ParentSession(
                loop, session.deck, self._map_servers, system_prompt, budget, report_event, turns.record
            )
            self.resources.delegate.attach(parent)
            plan = RunPlan(
                toolbox=session.box,
                system_prompt=lambda: system_prompt.render(
                    [card.name for card in session.deck().tools()], self._map_servers()
                ),
                cancel=self.cancel,
                budget=budget,
                history=self.transcript.messages(),
                sink=report_event,
                on_turn=turns.record,
                on_message=partial(to_thread.run_sync, self.resources.read_state.save_message),
            )
            result = await loop.run(prompt, plan)
            if result.reason == "cancelled":
                code = signal_code(self.cancel.reason or "")
            elif result.reason == "error":
                code = ExitCode.FAILED if result.fault is None else ExitCode.MODEL
            else:
                code = ExitCode.OK if result.reason == "done" else ExitCode.LIMIT
            if result.note:
                self._warn(result.note)
            await self._report_end(result, code, loop.usage)
            return code

    def _map_servers(self) -> dict[str, str]:
        """Map the names of remote tools to their servers."""
        return {card.name: card.ref.server for card in self.session.mcp.capabilities}

    def _warn(self, message: str) -> None:
        self.notes.append(message)
        print_status(message)

    async def _report_end(self, result: RunResult, code: int, usage: Usage | None = None) -> None:
        for note in self._list_notes():
            if note not in self.notes:
                self._warn(note)  # a server has failed, or lists other tools, since the start
        if self.transcript.failure is not None:
            self._warn(f"the end of this conversation is not kept: {self.transcript.failure}")
        summary = RunSummary(
            session=self.transcript.id,
            result=result,
            usage=usage or Usage(cost_usd=0.0),
            exit_code=code,
            denied=tuple(self.reporter.denied),
            notes=tuple(self.notes),
        )
        # A cancelled run reports its summary too, as long as there is a reader.
        with anyio.move_on_after(_REPORT_S, shield=True):
            await self.reporter.report_end(summary)


class TurnRecorder:
    """Records the deck of each turn, in the ledger and in the conversation."""

    def __init__(self, session: Session, transcript: Transcript, node: str) -> None:
        self._journal = session.mcp.journal
        self._transcript, self._node = transcript, node

    async def record(self, descriptors: Sequence[ToolDescriptor]) -> None:
        """Record the tools that the model is shown next."""
        digest = self._journal.record_turn(descriptors)
        mark = partial(
            self._transcript.mark, "turn", node=self._node, run=self._journal.run, turn=self._journal.turns, deck=digest
        )
        await to_thread.run_sync(mark)
