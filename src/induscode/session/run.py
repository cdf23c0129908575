"""What a session gives to the cards of its deck: notes, the way back, somebody to delegate to.

Jobs of a run that crashed, told to whoever starts the next one.

One question of a session, once everything is open: told, answered, and written down.

One question from the command line: everything from the prompt to the exit code.

A server that was never seen is waited for before the first request, so that a model never has to do
without a tool that was merely late; so is one that is required. The tools of a server that was seen
before are known, and a call of one waits until it is up. Whatever is missing is said, on standard
error and in the first event, or in the last one if it is known only then.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
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
from induscode.session.contract import ExitCode, RequestBudget, RunPlan, RunResult, ToolAnswered, Usage, signal_code
from induscode.session.delegate import ParentSession, SubSessions
from induscode.session.models import InvalidAddressError, NoModelError, choose_model
from induscode.session.output import RunStart, RunSummary, StdoutWriter, reporter_for
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
    from induscode.session.contract import RunEvent
    from induscode.session.model_loop import ModelLoop
    from induscode.session.models import ModelChoice
    from induscode.session.output import Reporter
    from induscode.session.permissions import PermissionSetup


@dataclass(frozen=True, slots=True)
class SessionResources:
    """The handles of one session. The checkpoints are closed by whoever made this."""

    memory: FileMemory
    checkpoints: FileCheckpoints
    delegate: SubSessions
    reads: ConversationReadState

    def framework(self) -> DeckFramework:
        """Give them the way a deck takes them."""
        return DeckFramework(
            read_state=self.reads, checkpoint=self.checkpoints, delegate=self.delegate, memory=self.memory
        )


def build_resources(cwd: str, transcript: Transcript) -> SessionResources:
    """Make the handles of a session that works in `cwd`; nothing is opened yet."""
    return SessionResources(
        FileMemory(os.path.join(cwd, MEMORY_NAME)),
        FileCheckpoints(os.path.join(transcript.directory, "checkpoints")),
        SubSessions(os.path.join(transcript.directory, "tasks"), cwd),
        ConversationReadState(transcript),
    )


_SHOWN_COMMAND = 60


def list_leftover_jobs() -> list[str]:
    """Say what still runs of a run that is gone, and how to end it; not for the event loop."""
    from indusagi.capabilities.receipts import find_leftover_jobs  # noqa: PLC0415 — with the tools

    try:
        left = find_leftover_jobs()
    except OSError:  # whoever can keep no state is told so elsewhere
        return []
    if not left:
        return []
    command = cut_text(" ".join(clean_text(left[0].command)[0].split()), _SHOWN_COMMAND)
    runs = format_count(len(left), "job of a run that crashed runs", "jobs of runs that crashed run")
    return [f"{runs} on, such as {command!r}: `indus mcp doctor --end-leftovers` ends it"]


@dataclass(slots=True)
class Question:
    """One question, once everything is open."""

    invocation: Invocation
    session: Session
    choice: ModelChoice
    transcript: Transcript
    handles: SessionResources
    briefing: SystemPrompt
    reporter: Reporter
    cancel: CancelToken
    notes: list[str]
    """What was found odd so far; more is added on the way."""
    denied: list[JsonObject] = field(default_factory=list["JsonObject"])

    def opening(self) -> RunStart:
        """Tell what there is."""
        self.notes.extend(self._notes())
        return RunStart(
            session=self.transcript.id,
            model=self.choice.label,
            cwd=self.invocation.cwd,
            tools=[card.name for card in self.session.deck().tools()],
            servers=self._servers(),
            notes=tuple(self.notes),
        )

    def _notes(self) -> list[str]:
        said = [self.choice.note] if self.choice.note else []
        said.extend(str(note) for note in (*self.session.notes, *self.session.mcp.list_enrolment_notes()))
        for name, status in self.session.mcp.status().items():
            if status.fault is not None:
                fault = str(status.fault)
                said.append(fault if repr(name) in fault else f"server {name!r}: {fault}")
        return list(dict.fromkeys(said))

    def _servers(self) -> list[JsonObject]:
        rows: list[JsonObject] = []
        for name, status in self.session.mcp.status().items():
            fault = status.fault
            rows.append(
                {
                    "name": name,
                    "phase": str(status.phase),
                    "tools": status.tool_count,
                    "fault": None if fault is None else {"kind": str(fault.kind), "message": str(fault)},
                }
            )
        return rows

    async def refused(self, missing: Sequence[str]) -> int:
        """End before the first request, since a server is missing that must be there."""
        names = ", ".join(map(repr, missing))
        said = f"{names} must be ready for this run and is not: no request was made"
        await self._closed(RunResult(reason="error", text="", said=said), ExitCode.SERVER_MISSING)
        return ExitCode.SERVER_MISSING

    async def conversed(self, prompt: str) -> int:
        """Have the prompt answered."""
        from induscode.session.model_loop import ModelLoop, open_model  # noqa: PLC0415 — loaded in a thread by `_preload`

        model = await to_thread.run_sync(open_model, self.choice)
        async with ModelLoop(model) as engine:
            ended = await self._asked(engine, prompt)
            code = _code(ended, self.cancel)
            if ended.note:
                self._remark(ended.note)
            await self._closed(ended, code, engine.usage)
            return code

    async def _asked(self, engine: ModelLoop, prompt: str) -> RunResult:
        budget = RequestBudget(self.invocation.max_requests)
        session, briefing = self.session, self.briefing
        node = new_ulid()
        try:
            await to_thread.run_sync(self.handles.checkpoints.begin, node)
        except OSError as exc:
            self._remark(f"what files held before is not kept: {exc}")
        turns = _TurnKeeper(session, self.transcript, node)
        self.handles.delegate.serve(
            ParentSession(engine, session.deck, self._servers_of, briefing, budget, self._heard, turns.keep)
        )
        plan = RunPlan(
            box=session.box,
            briefing=lambda: briefing.text([card.name for card in session.deck().tools()], self._servers_of()),
            cancel=self.cancel,
            budget=budget,
            history=self.transcript.messages(),
            sink=self._heard,
            on_turn=turns.keep,
            on_message=self._keep,
        )
        return await engine.run(prompt, plan)

    def _servers_of(self) -> dict[str, str]:
        ledger = self.session.mcp.ledger
        return {} if ledger is None else {c.name: c.ref.server for c in ledger.live_capabilities()}

    async def _keep(self, message: JsonObject) -> None:
        await to_thread.run_sync(self.handles.reads.keep, message)

    async def _heard(self, event: RunEvent) -> None:
        if isinstance(event, ToolAnswered) and event.code == "denied":
            self.denied.append({"id": event.id, "name": event.name, "reason": event.text})
        await self.reporter.event(event)

    def _remark(self, said: str) -> None:
        self.notes.append(said)
        print_status(said)

    async def _closed(self, ended: RunResult, code: int, usage: Usage | None = None) -> None:
        for said in self._notes():
            if said not in self.notes:
                self._remark(said)  # a server that was not waited for has failed, or lists others
        if self.transcript.trouble is not None:
            self._remark(f"the end of this conversation is not kept: {self.transcript.trouble}")
        closing = RunSummary(
            session=self.transcript.id,
            ended=ended,
            usage=usage or Usage(cost_usd=0.0),
            exit_code=code,
            denied=tuple(self.denied),
            notes=tuple(self.notes),
        )
        # Told to end, it still says what came of it, to a reader who still reads.
        with anyio.move_on_after(1.0, shield=True):
            await self.reporter.closed(closing)


class _TurnKeeper:
    """Writes down which deck each turn was shown."""

    def __init__(self, session: Session, transcript: Transcript, node: str) -> None:
        from induscode.deck.mcp.store.journal import Journal  # noqa: PLC0415 — needs a running session

        booted = session.mcp.booted
        self._journal = Journal(session.store) if booted is None else booted.journal
        self._transcript, self._node = transcript, node

    async def keep(self, descriptors: Sequence[ToolDescriptor]) -> None:
        """Keep a turn, in the books of the deck and in the conversation."""
        digest = self._journal.turn(descriptors)
        facts: dict[str, str | int] = {
            "node": self._node,
            "run": self._journal.run,
            "turn": self._journal.turns,
            "deck": digest,
        }
        await to_thread.run_sync(lambda: self._transcript.mark("turn", **facts))


def _code(ended: RunResult, cancel: CancelToken) -> int:
    if ended.reason == "cancelled":
        return signal_code(cancel.reason or "")
    return {
        "done": ExitCode.OK,
        "limit": ExitCode.LIMIT,
        "repeat": ExitCode.LIMIT,
        "time": ExitCode.LIMIT,
        "error": ExitCode.MODEL if ended.fault is not None else ExitCode.FAILED,
    }[ended.reason]


_CLOSING_S = 5.0
"""How long everything may take to close once the program was told to end."""
_STANDARD_OUTPUT = 1
_MISTAKES = (
    InvalidAddressError,
    InvalidPromptError,
    InvalidRuleError,
    ConversationError,
    ConfigPathError,
    UnknownCapability,
    BackendFault,
)


def run_headless(invocation: Invocation, guarding: PermissionSetup | None = None) -> int:
    """Answer the prompt of an invocation and give the exit code of the program.

    Without a guarding of the caller's there is the one that the invocation asks for. Call it in the
    main thread, without a running event loop.
    """
    page = StdoutWriter(_STANDARD_OUTPUT)
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        code = anyio.run(_told_to_end, invocation, guarding, page)
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    if code == ExitCode.READER_LEFT:
        redirect_to_null(_STANDARD_OUTPUT)
    if page.stuck:
        # A thread hangs in a write that nobody reads, and would keep the interpreter from ending.
        os._exit(code)
    return code


async def _told_to_end(invocation: Invocation, guarding: PermissionSetup | None, page: StdoutWriter) -> int:
    async with ending_signals() as token:
        forget = token.on_cancel(lambda: _hurry(token))
        try:
            return await headless(invocation, guarding, page=page, cancel=token)
        finally:
            forget()


def _hurry(token: CancelToken) -> None:
    """See to it that the program ends soon, or at once if it is told again."""
    from asyncio import get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

    code = signal_code(token.reason or "")

    def leave(*_: object) -> None:
        os._exit(code)

    signal.signal(signal.SIGINT, leave)
    get_running_loop().call_later(_CLOSING_S, leave)


async def headless(
    invocation: Invocation,
    guarding: PermissionSetup | None,
    *,
    page: StdoutWriter,
    cancel: CancelToken,
    stdin: IO[str] | None = None,
) -> int:
    """Answer the prompt of an invocation in a running loop, until `cancel` says otherwise."""
    try:
        code = await _answered(invocation, guarding, page, cancel, stdin or sys.stdin)
    except BrokenPipeError:
        code = int(ExitCode.READER_LEFT)
    except _MISTAKES as exc:
        print_status(str(exc))
        code = int(ExitCode.USAGE)
    except NoModelError as exc:
        print_status(str(exc))
        code = int(ExitCode.MODEL)
    except (CoreError, OSError) as exc:
        print_status(str(exc))
        code = int(ExitCode.FAILED)
    return signal_code(cancel.reason or "") if cancel.cancelled else code


async def _answered(
    invocation: Invocation,
    guarding: PermissionSetup | None,
    page: StdoutWriter,
    cancel: CancelToken,
    stdin: IO[str] | None,
) -> int:
    async with AsyncExitStack() as stack:
        opened: tuple[str, Question] | None = None
        # What is opened here stays open beyond the scope, and is closed in peace whatever happens.
        with cancel.guard():
            prompt, note = await to_thread.run_sync(read_prompt, invocation.prompt, stdin, lambda: cancel.cancelled)
            odd = [note] if note else []
            opened = prompt, await _opened(invocation, guarding, page, cancel, stack, odd)
        if opened is None:
            return ExitCode.FAILED
        prompt, run = opened
        missing = run.session.mcp.missing()
        return await run.refused(missing) if missing else await run.conversed(prompt)


async def _opened(
    invocation: Invocation,
    guarding: PermissionSetup | None,
    page: StdoutWriter,
    cancel: CancelToken,
    stack: AsyncExitStack,
    odd: list[str],
) -> Question:
    await to_thread.run_sync(check_named_configs, invocation)
    choice = await choose_model(invocation, os.environ)
    invocation = _fit_tools(invocation, choice, odd)
    mode = PlanMode(approves=invocation.approval != "ask")
    guarding = guarding or await to_thread.run_sync(load_permissions, invocation, mode)
    odd.extend(map(str, guarding.notes))
    odd.extend(await to_thread.run_sync(list_leftover_jobs))
    transcript = await stack.enter_async_context(_transcript(invocation, odd))
    mode.folder = transcript.directory
    handles = build_resources(invocation.cwd, transcript)
    stack.callback(handles.checkpoints.close)
    loading = await stack.enter_async_context(_loading())
    session = await stack.enter_async_context(
        open_session(invocation, framework=handles.framework(), wrap=guarding.wrap, plan_mode=True, wait=False)
    )
    words = await to_thread.run_sync(read_project_instructions, invocation.cwd)
    briefing = SystemPrompt(invocation.cwd, guarding.posture, words)
    reporter = reporter_for(invocation.output_format, page, chatty=_watched())
    run = Question(invocation, session, choice, transcript, handles, briefing, reporter, cancel, odd)
    await loading.wait()
    await session.mcp.wait_for_required()
    await reporter.opened(run.opening())
    if not gc.isenabled():  # everything is imported: from here on there is garbage
        gc.freeze()
        gc.enable()
    return run


SMALL_WINDOW = 16_384
"""Up to so many tokens a model is shown the native tools below, and no others."""
SMALL_WINDOW_TOOLS = ("read", "ls", "grep", "find", "write", "edit", "bash")


def _fit_tools(invocation: Invocation, choice: ModelChoice, odd: list[str]) -> Invocation:
    """Show a model that reads little fewer tools, unless it was said which; and tell so."""
    window = choice.context_window
    if window is None or window > SMALL_WINDOW or invocation.tools or invocation.no_tools:
        return invocation
    names = ", ".join(SMALL_WINDOW_TOOLS)
    odd.append(
        f"{choice.label} reads {window:,} tokens, so of the native tools only {names} are shown; --tools names others"
    )
    return replace(invocation, tools=SMALL_WINDOW_TOOLS)


def _watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@asynccontextmanager
async def _transcript(invocation: Invocation, odd: list[str]) -> AsyncGenerator[Transcript]:
    """Open the conversation; a new one that cannot be kept is held without being kept."""
    wanted = invocation.resume is not None or invocation.continue_last

    def opened() -> Transcript:
        return open_transcript(invocation.cwd, resume=invocation.resume, last=invocation.continue_last)

    async with AsyncExitStack() as stack:
        try:
            transcript = await to_thread.run_sync(opened)
        except OSError as exc:
            if wanted:
                raise
            odd.append(f"this conversation cannot be kept: {exc}")
            folder = await to_thread.run_sync(partial(mkdtemp, prefix="indus-"))
            stack.push_async_callback(to_thread.run_sync, partial(rmtree, folder))
            path = os.path.join(folder, new_ulid())
            transcript = await to_thread.run_sync(Transcript, path, invocation.cwd)
        stack.callback(transcript.close)
        yield transcript


@asynccontextmanager
async def _loading() -> AsyncGenerator[BackgroundTask]:
    """Load the loop in a thread while servers start: it takes longer than they do."""
    loading = BackgroundTask("loading of the model loop")
    loading.start(to_thread.run_sync(_load, abandon_on_cancel=True))
    try:
        yield loading
    finally:
        loading.cancel()
        await loading.join()


def _load() -> None:
    from importlib import import_module  # noqa: PLC0415 — for this one

    import_module("induscode.session.model_loop")
