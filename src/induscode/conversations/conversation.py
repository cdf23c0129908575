"""An open conversation: deck, servers, model, transcript and permissions, for any number of turns.

`indus -p` runs one turn, the interactive session many. A thread imports the model loop while the servers start; the
first turn opens the model.
"""

from __future__ import annotations

import gc
import os
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from shutil import rmtree
from tempfile import mkdtemp
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.ids import new_ulid
from indusagi.core.json import estimate_tokens
from indusagi.core.tasks import BackgroundTask
from induscode.boot.config_watch import ConfigFiles, list_config_files
from induscode.boot.plans import check_named_configs
from induscode.boot.session import open_session
from induscode.calls.record import CallOrigin
from induscode.cli.terminal import print_status
from induscode.conversations.agents.files import load_agents
from induscode.conversations.agents.sub_session import ParentSession
from induscode.conversations.compaction import (
    AUTOMATIC_SHARE,
    SUMMARY_INSTRUCTIONS,
    CompactionError,
    NothingToCompactError,
    compact_transcript,
    measure_context,
)
from induscode.conversations.contract import RequestBudget, RunPlan, Usage
from induscode.conversations.deck_limit import DeckLimit, DeckSearch, build_deck_limit, list_shown_names
from induscode.conversations.kept_state import KeptState
from induscode.conversations.mentions import build_resources, find_leftovers, list_leftover_jobs
from induscode.conversations.models import choose_agent_model, choose_model
from induscode.conversations.prompt import SystemPrompt, read_project_instructions
from induscode.conversations.server_requests import SamplingModel, build_server_handlers
from induscode.conversations.servers import LateServers, ServerPhases, SessionServers
from induscode.conversations.transcript import Transcript, add_session_note, open_transcript
from induscode.deck.contract import DeckFramework, DelegateRequest
from induscode.deck.mcp.boot import BootOptions
from induscode.deck.mcp.content import CONTENT_KINDS
from induscode.deck.provision import DeckRunner, DeckToolBox
from induscode.permissions import load_permissions
from induscode.permissions.plan_mode import PlanMode

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from indusagi.adapters.content import Attachment
    from indusagi.core.cancel import CancelToken
    from indusagi.core.faults import Note
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.fleet import FleetEvent
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.boot.session import Session
    from induscode.cli.dialog import Dialog
    from induscode.conversations.agents.files import AgentDefinition
    from induscode.conversations.compaction import CompactionReport
    from induscode.conversations.contract import EventSink, RunResult
    from induscode.conversations.mentions import SessionResources
    from induscode.conversations.model_loop import ModelLoop
    from induscode.conversations.models import ModelChoice
    from induscode.launch.invocation import Invocation
    from induscode.permissions import PermissionSetup

_SUMMARY_TIMEOUT_S = 300.0
_SAVE_TIMEOUT_S = 2.0
USAGE_OP = "usage"
_PLAN_MODE_FACTS = {
    True: (
        "The user has turned plan mode on: only read-only tools run until a plan is approved. Look around, and "
        "present a plan with exit_plan_mode."
    ),
    False: "The user has turned plan mode off: changes are possible again.",
}


@dataclass(slots=True, kw_only=True)
class Conversation:
    """An open conversation. Turns run one at a time, in the task that opened it."""

    invocation: Invocation
    session: Session
    choice: ModelChoice
    transcript: Transcript
    resources: SessionResources
    permissions: PermissionSetup
    plan_mode: PlanMode
    system_prompt: SystemPrompt
    limit: DeckLimit
    """Hides or drops cards that don't fit the model's context window."""
    search: DeckSearch
    """Opens the toolboxes, and finds hidden cards in them."""
    notes: list[str]
    """Warnings so far. The list grows during the conversation."""
    stack: AsyncExitStack
    """Closes resources that a turn opens for later turns."""
    loading: BackgroundTask
    """Imports the model loop."""
    late_servers: LateServers
    state: KeptState
    """Session state stored alongside the messages."""
    facts: list[str] = field(default_factory=list[str])
    """Session notes to send to the model with the next prompt."""
    on_note: Callable[[str], None] | None = None
    """Receives notes immediately during a turn. If unset, they go to `notes`."""
    sampling: SamplingModel = field(default_factory=SamplingModel)
    """Answers sampling requests from servers with the turn's model."""
    servers: SessionServers | None = None
    """Applies configuration changes; `None` if the servers don't change."""
    loop: ModelLoop | None = field(default=None, init=False)
    context_tokens: int = field(default=0, init=False)
    """Tokens of the last request and its response, which the next request starts with."""
    plan_told: bool = field(default=False, init=False)
    """Whether the model believes that plan mode is on."""
    _loop_stack: AsyncExitStack = field(default_factory=AsyncExitStack, init=False)
    """Closes the model."""
    _past_usage: Usage = field(default_factory=lambda: Usage(cost_usd=0.0), init=False)
    """Usage of earlier models and of agents' models."""

    @property
    def usage(self) -> Usage:
        """Requests, tokens and cost of all turns so far."""
        return self._past_usage if self.loop is None else self._past_usage.add(self.loop.usage)

    async def run_turn(
        self,
        prompt: str,
        *,
        sink: EventSink,
        cancel: CancelToken,
        attachments: Sequence[Attachment] = (),
        budget: RequestBudget | None = None,
    ) -> RunResult:
        """Answer a prompt. Failures and cancellation are results too.

        Requests count against `budget`, or against a new one if omitted.

        Raises:
            OSError: The sink failed because its reader is gone.
            ConversationError: The history is invalid.
        """
        loop = await self._open_loop()
        await self._compact_if_full(prompt, cancel)
        budget = budget or RequestBudget(self.invocation.max_requests)
        session = self.session
        turns = TurnRecorder(session, self.transcript, await self.resources.begin_node(self._note))
        tasks, late = self.resources.delegate, self.late_servers
        take_notices = lambda: [*late.take_notices(), *tasks.take_notices()]  # noqa: E731 — two lists as one
        self.sampling.attach(partial(loop.complete_message, budget=budget))
        self._attach_tasks(loop, budget, sink, turns)
        plan = RunPlan(
            toolbox=lambda: self.search.open_box(session.deck()),
            system_prompt=self.render_system_prompt,
            cancel=cancel,
            budget=budget,
            history=self.transcript.messages(),
            sink=sink,
            on_turn=turns.record,
            on_message=self._save_message,
            attachments=attachments,
            notices=take_notices,
        )
        self.state.model = self.choice.label
        before = self.usage
        facts, self.facts = [*self.facts, *take_notices()], []
        if self.plan_mode.active != self.plan_told:
            facts.append(_PLAN_MODE_FACTS[self.plan_mode.active])
        prompt = add_session_note(prompt, facts)
        telemetry = session.calls.telemetry
        with nullcontext() if telemetry is None else telemetry.follow_turn(self.transcript.id, self.choice.name):
            result = await loop.run(prompt, plan)
            if result.fault is not None and result.fault.kind == "context_window":
                result = await self._retry_compacted(prompt, plan, result)
        self.context_tokens = result.context_tokens or self.context_tokens
        self.plan_told = self.plan_mode.active
        await self.state.save()
        await self._store_usage(before)
        return result

    # -- tasks ----------------------------------------------------------------------------------

    def _attach_tasks(self, loop: ModelLoop, budget: RequestBudget, sink: EventSink, turns: TurnRecorder) -> None:
        """Connect tasks to the model and budget of the coming turn."""
        tasks = self.resources.delegate
        tasks.on_end = lambda task: self._note(task.describe_end())
        tasks.attach(
            ParentSession(
                runner=loop,
                deck=self.session.deck,
                servers=self.map_servers,
                system_prompt=self.system_prompt,
                budget=budget,
                sink=sink,
                on_turn=turns.record,
                leases=self.session.mcp.fleet.leases,
                search=self.search,
                open_runner=self._open_agent_model,
            )
        )

    @asynccontextmanager
    async def _open_agent_model(self, agent: AgentDefinition) -> AsyncGenerator[ModelLoop]:
        """Open an agent's model. Its usage counts towards the conversation.

        Raises:
            NoModelError: The model is unknown, or a project agent names another provider's model.
            InvalidAddressError: The model server's address is invalid.
        """
        from induscode.conversations.model_loop import open_loop  # noqa: PLC0415 — imported by `loading`

        choice = await choose_agent_model(
            agent.model, self.invocation, self.choice, from_project=agent.origin == "project"
        )
        if choice == self.choice:  # a second copy of a local model would double its memory
            yield await self._open_loop()
            return
        async with open_loop(choice, self.session.calls.telemetry) as loop:
            try:
                yield loop
            finally:
                self._past_usage = self._past_usage.add(loop.usage)

    async def resume_task(self, identity: str, objective: str) -> str:
        """Continue a task in the background at the user's request, and return a one-line status."""
        loop = await self._open_loop()
        budget = RequestBudget(self.invocation.max_requests)
        node = await self.resources.begin_node(self._note)
        self._attach_tasks(loop, budget, _ignore, TurnRecorder(self.session, self.transcript, node))
        request = DelegateRequest(objective=objective, resume=identity, background=True)
        report = await self.resources.delegate.run(request, self.session.native.context)
        return f"task {identity} goes on in the background" if report.ok else report.text

    async def _save_message(self, message: JsonObject) -> None:
        await to_thread.run_sync(self.resources.read_state.save_message, message)
        await self.state.save()

    async def _store_usage(self, before: Usage) -> None:
        usage = self.usage.subtract(before)
        if usage.requests:
            mark = partial(self.transcript.mark, USAGE_OP, **usage.to_json(), cost_usd=usage.cost_usd)
            await to_thread.run_sync(mark)

    def note_addon(self, note: Note) -> None:
        """Report a failed addon or unrecorded calls."""
        self._note(str(note))

    def _note(self, note: str) -> None:
        if self.on_note is None:
            self.notes.append(note)
        else:
            self.on_note(note)

    # -- compaction -----------------------------------------------------------------------------

    async def compact(self, instructions: str = "", *, cancel: CancelToken) -> CompactionReport:
        """Replace older messages with a summary, which the model writes in one request.

        Raises:
            NothingToCompactError: There's nothing to replace.
            CompactionError: The model returned no summary or storing it failed. Nothing changed.
        """
        loop = await self._open_loop()

        async def summarise(text: str) -> str:
            plan = RunPlan(
                toolbox=lambda: DeckToolBox(DeckRunner({}, self.session.native.context)),
                system_prompt=lambda: SUMMARY_INSTRUCTIONS,
                cancel=cancel,
                budget=RequestBudget(1),
                history=(),
                sink=_ignore,
                on_turn=_ignore,
                on_message=_ignore,
                time_s=_SUMMARY_TIMEOUT_S,
            )
            result = await loop.run(text, plan)
            if result.reason != "done":
                raise CompactionError(f"the model gave no summary: {result.message}")
            return result.text

        before = self.usage
        try:
            report = await compact_transcript(
                self.transcript,
                summarise,
                partial(to_thread.run_sync, self.transcript.append_rows),
                window=self.choice.context_window,
                instructions=instructions,
            )
        finally:
            await self._store_usage(before)
        saved = report.tokens_before - report.tokens_after
        self.context_tokens = max(report.tokens_after, self.context_tokens - saved)
        return report

    async def _compact_if_full(self, prompt: str, cancel: CancelToken) -> None:
        window = self.choice.context_window
        if window is None or self.context_tokens + estimate_tokens(prompt) <= window * AUTOMATIC_SHARE:
            return
        try:
            report = await self.compact(cancel=cancel)
        except NothingToCompactError:
            return
        except CompactionError as exc:
            self._note(f"the context window is nearly full, and could not be compacted: {exc}")
        else:
            self._note(f"the context window was nearly full: {report}")

    async def _retry_compacted(self, prompt: str, plan: RunPlan, result: RunResult) -> RunResult:
        """Compact a conversation that the model rejected as too long, and retry the turn once."""
        assert self.loop is not None
        try:
            report = await self.compact(cancel=plan.cancel)
        except CompactionError as exc:
            self._note(f"the conversation could not be compacted: {exc}")
            return result
        self._note(f"the context window was full: {report}")
        history = self.transcript.messages()
        is_stored = bool(history) and history[-1].get("kind") == "request"
        return await self.loop.run(None if is_stored else prompt, replace(plan, history=history))

    # -- model and servers ----------------------------------------------------------------------

    async def switch_model(self, name: str) -> None:
        """Use another model from the next turn on, with the tools that fit its context window.

        Raises:
            NoModelError: The model is unknown.
            InvalidAddressError: The model server's address is invalid.
        """
        invocation = replace(self.invocation, model=name)
        choice = await choose_model(invocation, os.environ)
        self._past_usage, self.loop = self.usage, None
        self.invocation, self.choice = invocation, choice
        self.limit.set_model(choice.label, choice.context_window)
        if self.resources.delegate.list_running():
            self._loop_stack = AsyncExitStack()  # background tasks still use the old model
        else:
            await self._loop_stack.aclose()

    async def restore_state(self) -> None:
        """Restore read state, checklists, plan mode and context size after a rewind."""
        await to_thread.run_sync(self.resources.read_state.restore)
        await to_thread.run_sync(self.state.restore)
        self.plan_told = self.plan_mode.active
        self.context_tokens = await to_thread.run_sync(measure_context, self.transcript)

    async def reload_config(self) -> list[str]:
        """Apply server and connector changes and approvals from other processes, and describe the changes."""
        changes = [] if self.servers is None else await self.servers.apply_changes()
        return [*changes, *await self.session.refresh_connectors()]

    async def wait_for_servers(self) -> None:
        """Wait for required servers, and a few seconds for servers that no earlier run has seen."""
        for note in await self.late_servers.wait():
            self._note(note)

    async def _open_loop(self) -> ModelLoop:
        if self.loop is None:
            await self.loading.wait()
            from induscode.conversations.model_loop import open_loop  # noqa: PLC0415 — imported by `loading`

            self.loop = await self._loop_stack.enter_async_context(open_loop(self.choice, self.session.calls.telemetry))
            self.stack.push_async_callback(self._loop_stack.aclose)
        return self.loop

    def render_system_prompt(self) -> str:
        """Render the system prompt for the current deck."""
        deck = self.session.deck()
        left_out, hidden = self.limit.left_out, deck.hidden
        return self.system_prompt.render(list_shown_names(deck), self.map_servers(), left_out, hidden=hidden)

    def map_servers(self) -> dict[str, str]:
        """Map remote tool names to their servers."""
        return {card.name: card.ref.server for card in self.session.mcp.capabilities}

    def list_notes(self) -> list[str]:
        """List the current notes about the model, the deck and the servers."""
        notes = [self.choice.note] if self.choice.note else []
        checks = self.permissions.permissions
        stored = () if checks is None else checks.notes
        notes.extend(str(note) for note in (*self.session.notes, *self.session.mcp.enrolment.notes, *stored))
        for name, status in self.session.mcp.status().items():
            if status.fault is not None:
                fault = str(status.fault)
                notes.append(fault if repr(name) in fault else f"server {name!r}: {fault}")
        return list(dict.fromkeys(notes))


async def _ignore(_: object) -> None:
    pass


class TurnRecorder:
    """Records the deck of each turn in the ledger and in the conversation."""

    def __init__(self, session: Session, transcript: Transcript, node: str) -> None:
        self._journal = session.mcp.journal
        self._transcript, self._node = transcript, node

    async def record(self, descriptors: Sequence[ToolDescriptor]) -> None:
        """Record the tools of the model's next request."""
        digest = self._journal.record_turn(descriptors)
        mark = partial(
            self._transcript.mark, "turn", node=self._node, run=self._journal.run, turn=self._journal.turns, deck=digest
        )
        await to_thread.run_sync(mark)


# -- opening ------------------------------------------------------------------------------------


@asynccontextmanager
async def open_conversation(
    invocation: Invocation,
    permissions: PermissionSetup | None = None,
    *,
    notes: Sequence[str] = (),
    follow_config: bool = False,
    dialog: Dialog | None = None,
    on_event: Callable[[FleetEvent], None] | None = None,
) -> AsyncGenerator[Conversation]:
    """Open an invocation's conversation for the duration of the block. Servers start in the background.

    `permissions` overrides the invocation's. With `follow_config`, opening waits for no server, and `reload_config`
    applies configuration changes. With a `dialog`, the user decides on calls, plans and server requests; without one,
    anything that needs the user's consent fails. `on_event` receives server events from the first start on.

    Raises:
        NoModelError: No model is available.
        InvalidAddressError: The model server's address is invalid.
        InvalidRuleError: A rule on the command line is invalid.
        ConversationError: The conversation doesn't exist, or another process has it open.
        ConfigPathError: An `--mcp` path doesn't exist or has no usable server.
        UnknownCapability: A tool in `--tools` is unknown.
        BackendFault: A tool in `--tools` lacks its backend.
        OSError: A stored conversation can't be opened.
    """
    warnings = [*notes]
    async with AsyncExitStack() as stack:
        await to_thread.run_sync(check_named_configs, invocation)
        choice = await choose_model(invocation, os.environ)
        limit = build_deck_limit(choice, invocation)
        sampling, approver, handlers = SamplingModel(), None, None
        if dialog is not None:
            from induscode.permissions.approver import PersonApprover  # noqa: PLC0415 — loads the table of programs

            approver = PersonApprover(dialog)
            handlers = build_server_handlers(dialog, sampling.complete, (invocation.cwd,))
        mode = PlanMode(approves=invocation.approval != "ask", approver=approver)
        permissions = permissions or await to_thread.run_sync(load_permissions, invocation, mode, approver)
        warnings.extend(map(str, permissions.notes))
        warnings.extend(await to_thread.run_sync(list_leftover_jobs))
        transcript = await stack.enter_async_context(_open_stored(invocation, warnings))
        mode.folder = transcript.directory
        agents = await to_thread.run_sync(load_agents, invocation.cwd)
        warnings.extend(agents.notes)
        resources = build_resources(invocation.cwd, transcript, agents)
        stack.callback(resources.checkpoints.close)
        framework = DeckFramework(
            read_state=resources.read_state,
            checkpoint=resources.checkpoints,
            delegate=resources.delegate,
            memory=resources.memory,
        )
        loading = await stack.enter_async_context(_preload())
        phases = ServerPhases(on_event)
        options = BootOptions(
            reloadable=follow_config,
            handlers=handlers,
            on_event=phases if follow_config or on_event else None,
            # Only an interactive user mentions resources and enters prompts.
            kinds=CONTENT_KINDS if follow_config else (),
        )
        # Take the snapshot before reading the files, so that edits during the read count as changes.
        config_files = await to_thread.run_sync(lambda: ConfigFiles(list_config_files(invocation)))
        session = await stack.enter_async_context(
            open_session(
                invocation,
                framework=framework,
                fit=limit.fit,
                wrap=permissions.wrap,
                plan_mode=True,
                wait=False,
                options=options,
                origin=CallOrigin(via="session", conversation=transcript.id),
            )
        )
        search = DeckSearch(session.mcp)
        stack.push_async_callback(search.aclose)
        instructions = await to_thread.run_sync(read_project_instructions, invocation.cwd)
        system_prompt = SystemPrompt(invocation.cwd, permissions.posture, instructions)
        state = KeptState(transcript, session.native.context, mode, permissions.permissions)
        facts = await to_thread.run_sync(_restore_state, state)
        warnings.extend(facts)
        if state.last_model not in {"", choice.label}:
            warnings.append(f"{state.last_model} has answered so far; {choice.label} continues")
        conversation = Conversation(
            invocation=invocation,
            session=session,
            choice=choice,
            transcript=transcript,
            resources=resources,
            permissions=permissions,
            plan_mode=mode,
            system_prompt=system_prompt,
            limit=limit,
            search=search,
            notes=warnings,
            stack=stack,
            loading=loading,
            sampling=sampling,
            state=state,
            facts=facts,
            servers=SessionServers(invocation, session.mcp, config_files, phases) if follow_config else None,
            late_servers=LateServers(session.mcp),
        )
        session.addons.on_note = conversation.note_addon
        session.calls.report_to(conversation.note_addon)
        conversation.plan_told = mode.active
        conversation.context_tokens = await to_thread.run_sync(measure_context, transcript)
        try:
            yield conversation
        finally:
            conversation.on_note = lambda note: None if note in conversation.notes else print_status(note)
            await resources.delegate.aclose()
            with anyio.move_on_after(_SAVE_TIMEOUT_S, shield=True):
                await state.save()
            if conversation.servers is not None:
                await conversation.servers.aclose()


def _restore_state(state: KeptState) -> list[str]:
    """Restore stored state, and describe jobs that ended or lost their session. Blocks."""
    lost = state.restore()
    marks = {job.mark for job in find_leftovers()} if lost else set[str]()
    return [f"background job {replace(job, runs=job.mark in marks)}" for job in lost]


@asynccontextmanager
async def _open_stored(invocation: Invocation, notes: list[str]) -> AsyncGenerator[Transcript]:
    """Open the transcript. A new one that can't be stored goes to a temporary directory."""
    async with AsyncExitStack() as stack:
        given = {"resume": invocation.resume, "last": invocation.continue_last, "fork": invocation.fork}
        open_stored = partial(open_transcript, invocation.cwd, **given, scripted=invocation.prompt is not None)
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
    """Import the model loop in a thread while servers start, because it takes longer than they do."""
    loading = BackgroundTask("loading of the model loop")

    def load() -> None:
        import_module("induscode.conversations.model_loop")
        if not gc.isenabled():  # collect garbage once the large imports are done
            gc.freeze()
            gc.enable()

    loading.start(to_thread.run_sync(load, abandon_on_cancel=True))
    try:
        yield loading
    finally:
        loading.cancel()
        await loading.join()
