"""An open conversation: deck, servers, model, transcript and permissions, for any number of turns.

`indus -p` runs one turn, the interactive session many. The first turn opens the model.
"""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.faults import CoreError
from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject, estimate_tokens
from indusagi.core.records import record
from indusagi.core.tasks import BackgroundTask
from indusagi.runtime.contract import ToolCall, ToolDescriptor
from induscode.addons.hooks import MOST_STOPS, CommandHooks
from induscode.addons.skills import SkillSet
from induscode.cli.terminal import print_status
from induscode.conversations.agents.delegate import SubSessions
from induscode.conversations.agents.sub_session import ParentSession
from induscode.conversations.compaction import (
    AUTOMATIC_SHARE,
    SUMMARY_INSTRUCTIONS,
    CompactionError,
    CompactionReport,
    NothingToCompactError,
    compact_transcript,
    measure_context,
)
from induscode.conversations.contract import (
    EventSink,
    MessageSource,
    RequestBudget,
    RunPlan,
    RunResult,
    SpendLimit,
    Usage,
)
from induscode.conversations.deck_limit import DeckLimit, DeckSearch, list_shown_names
from induscode.conversations.kept_state import KeptState
from induscode.conversations.models import ModelChoice, choose_agent_model, choose_model
from induscode.conversations.prompt import SystemPrompt
from induscode.conversations.server_requests import SamplingModel
from induscode.conversations.servers import LateServers, SessionServers
from induscode.conversations.transcript import ConversationReadState, Transcript, add_session_note
from induscode.deck.cards.memory import MEMORY_NAME, FileMemory
from induscode.deck.contract import DelegateRequest
from induscode.deck.provision import DeckRunner, DeckToolBox
from induscode.deck.stores import FileCheckpoints
from induscode.permissions import build_call_checks
from induscode.permissions.plan_mode import PlanMode

if TYPE_CHECKING:
    from indusagi.adapters.calls import Attachment
    from indusagi.core.cancel import CancelToken
    from induscode.boot.session import Session
    from induscode.cli.dialog import Dialog
    from induscode.conversations.agents.files import AgentDefinition, AgentFiles
    from induscode.conversations.model_loop import ModelLoop
    from induscode.launch.invocation import Invocation
    from induscode.permissions import PermissionSetup

_SUMMARY_TIMEOUT_S = 300.0
USAGE_OP = "usage"
_PLAN_MODE_FACTS = {
    True: (
        "The user has turned plan mode on: only read-only tools run until a plan is approved. Look around, and "
        "present a plan with exit_plan_mode."
    ),
    False: "The user has turned plan mode off: changes are possible again.",
}


class ConversationNotes(list[str]):
    """A conversation's warnings so far. `on_note` shows new ones at once; without it, they're appended."""

    def __init__(self, notes: Iterable[str] = (), on_note: Callable[[str], None] | None = None) -> None:
        super().__init__(notes)
        self._show: Callable[[str], None] = on_note or self.append

    def report(self, note: object) -> None:
        """Show or append a note."""
        self._show(str(note))

    def close(self) -> None:
        """Print further notes, as the user interface is about to end."""
        self._show = lambda note: None if note in self else print_status(note)


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
    notes: ConversationNotes
    stack: AsyncExitStack
    """Closes resources that a turn opens for later turns."""
    loading: BackgroundTask
    """Imports the model loop."""
    late_servers: LateServers
    skills: SkillSet
    hooks: CommandHooks
    state: KeptState
    """Session state stored alongside the messages."""
    facts: list[str] = field(default_factory=list[str])
    """Session notes to send to the model with the next prompt."""
    spend: SpendLimit = field(default_factory=SpendLimit)
    """Limits for the tokens and the cost of the session."""
    sampling: SamplingModel = field(default_factory=SamplingModel)
    """Answers sampling requests from servers with the turn's model."""
    servers: SessionServers | None = None
    """Applies configuration changes; `None` if the servers don't change."""
    context_tokens: int
    """Tokens of the last request and its response, which the next request starts with."""
    plan_told: bool
    """Whether the model believes that plan mode is on."""
    loop: ModelLoop | None = field(default=None, init=False)
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
        take_messages: MessageSource | None = None,
    ) -> RunResult:
        """Answer a prompt. Failures and cancellation are results too.

        Requests count against `budget`, or against a new one if omitted. `take_messages` returns the user's messages
        since the last request, for the model's next one.

        Raises:
            OSError: The sink failed because its reader is gone.
            ConversationError: The history is invalid.
        """
        with cancel.guard():
            denial, told = await self.hooks.check_prompt(prompt)
            if denial:
                return RunResult(reason="error", message=f"a hook denies the prompt: {denial}")
            self.facts += told
        loop = await self._open_loop()
        await self._compact_if_full(prompt, cancel)
        budget = budget or self.open_budget()
        session = self.session
        record_turn = partial(self._record_turn, await self.resources.begin_node(self.notes.report))
        tasks, late = self.resources.delegate, self.late_servers
        take_notices = lambda: [*late.take_notices(), *tasks.take_notices()]  # noqa: E731 — two lists as one
        self.sampling.attach(partial(loop.complete_message, budget=budget))
        self._attach_tasks(loop, budget, sink, record_turn)
        plan = RunPlan(
            toolbox=lambda: self.search.open_box(session.deck()),
            system_prompt=self.render_system_prompt,
            cancel=cancel,
            budget=budget,
            history=self.transcript.messages(),
            sink=sink,
            on_turn=record_turn,
            on_message=self._save_message,
            attachments=attachments,
            notices=take_notices,
            take_messages=None if take_messages is None else partial(self._take_messages, take_messages),
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
            result = await self._obey_stop_hooks(loop, plan, result)
        self.context_tokens = result.context_tokens or self.context_tokens
        self.plan_told = self.plan_mode.active
        await self.state.save()
        await self._store_usage(before)
        return result

    async def _take_messages(self, take: MessageSource) -> Sequence[str]:
        """Take the user's messages that no hook denies."""
        taken: list[str] = []
        for message in await take():
            denial, facts = await self.hooks.check_prompt(message)
            if denial:
                self.notes.report(f"a hook denies the message: {denial}")
            else:
                taken.append(add_session_note(message, facts))
        return taken

    async def _obey_stop_hooks(self, loop: ModelLoop, plan: RunPlan, result: RunResult) -> RunResult:
        """Have the model go on for as long as a hook says so."""
        for count in range(MOST_STOPS):
            reason = ""
            if result.reason == "done":
                with plan.cancel.guard():
                    reason = await self.hooks.check_stop(is_again=count > 0)
            if not reason:
                break
            plan = replace(plan, history=self.transcript.messages(), attachments=())
            result = await loop.run(f"A hook of the session says: {reason}", plan)
        return result

    def open_budget(self) -> RequestBudget:
        """Open the budget of a turn."""
        return RequestBudget(self.invocation.max_requests, session=self.spend)

    # -- tasks ----------------------------------------------------------------------------------

    async def _record_turn(self, node: str, descriptors: Sequence[ToolDescriptor]) -> None:
        """Record the tools of the model's next request in the ledger and in the conversation."""
        journal = self.session.mcp.journal
        digest = sys.intern(journal.record_turn(descriptors))  # the same one most of the time
        mark = partial(self.transcript.mark, "turn", node=node, run=journal.run, turn=journal.turns, deck=digest)
        await to_thread.run_sync(mark)

    def _attach_tasks(
        self,
        loop: ModelLoop,
        budget: RequestBudget,
        sink: EventSink,
        record_turn: Callable[[Sequence[ToolDescriptor]], Awaitable[None]],
    ) -> None:
        """Connect tasks to the model and budget of the coming turn."""
        self.resources.delegate.attach(
            ParentSession(
                runner=loop,
                deck=self.session.deck,
                servers=self.map_servers,
                system_prompt=self.system_prompt,
                budget=budget,
                sink=sink,
                on_turn=record_turn,
                leases=self.session.mcp.fleet.leases,
                search=self.search,
                open_runner=self._open_agent_model,
            )
        )

    @asynccontextmanager
    async def _open_agent_model(self, agent: AgentDefinition) -> AsyncGenerator[ModelLoop]:
        """Open an agent's model, see `choose_agent_model`. Its usage counts towards the conversation."""
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
        budget = self.open_budget()
        node = await self.resources.begin_node(self.notes.report)
        self._attach_tasks(loop, budget, _ignore, partial(self._record_turn, node))
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

    async def run_command(self, command: str, *, sink: EventSink, cancel: CancelToken, dialog: Dialog) -> str:
        """Run a shell command that the user typed, in the sandbox of `bash`, and return its output.

        Deny rules apply, and rules that ask ask at the dialog. `CoreError` if the session has no `bash`.
        """
        from induscode.conversations.tool_calls import ToolCalls  # noqa: PLC0415 — for a typed command

        card = next((card for card in self.session.native.tools() if card.name == "bash"), None)
        if card is None:
            raise CoreError("this session has no bash tool")
        checks = await to_thread.run_sync(build_call_checks, self.invocation.cwd, dialog)
        box = DeckToolBox(DeckRunner({card.name: checks.native(card)}, self.session.native.context))
        call = ToolCall(new_ulid(), card.name, {"command": command})
        return (await ToolCalls(sink, cancel, tuple).run(box, call)).text

    # -- compaction -----------------------------------------------------------------------------

    async def compact(self, instructions: str = "", *, cancel: CancelToken) -> CompactionReport:
        """Replace older messages with a summary, which the model writes in one request. See `compact_transcript`."""
        loop = await self._open_loop()

        async def summarise(text: str) -> str:
            plan = RunPlan(
                toolbox=lambda: DeckToolBox(DeckRunner({}, self.session.native.context)),
                system_prompt=lambda: SUMMARY_INSTRUCTIONS,
                cancel=cancel,
                budget=RequestBudget(1, session=self.spend),
                history=(),
                sink=_ignore,
                on_turn=_ignore,
                on_message=_ignore,
                time_s=_SUMMARY_TIMEOUT_S,
            )
            result = await loop.run(text, plan)
            if result.reason == "limit" and not self.spend.find_reached():
                raise CompactionError("the model called a tool instead of writing a summary")
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
            self.notes.report(f"the context window is nearly full, and could not be compacted: {exc}")
        else:
            self.notes.report(f"the context window was nearly full: {report}")

    async def _retry_compacted(self, prompt: str, plan: RunPlan, result: RunResult) -> RunResult:
        """Compact a conversation that the model rejected as too long, and retry the turn once."""
        assert self.loop is not None
        try:
            report = await self.compact(cancel=plan.cancel)
        except CompactionError as exc:
            self.notes.report(f"the conversation could not be compacted: {exc}")
            return result
        self.notes.report(f"the context window was full: {report}")
        history = self.transcript.messages()
        is_stored = bool(history) and history[-1].get("kind") == "request"
        return await self.loop.run(None if is_stored else prompt, replace(plan, history=history))

    # -- model and servers ----------------------------------------------------------------------

    async def switch_model(self, name: str) -> None:
        """Use another model from the next turn on, with the tools that fit its context window.

        `NoModelError` or `InvalidAddressError` if it can't be used.
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
            self.notes.report(note)

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


# -- stores -------------------------------------------------------------------------------------


@record
class SessionResources:
    """A session's stores for the cards of its deck."""

    memory: FileMemory
    checkpoints: FileCheckpoints
    """Closed by the caller of `build_resources`."""
    delegate: SubSessions
    read_state: ConversationReadState

    async def begin_node(self, note: Callable[[str], None]) -> str:
        """Start a rewind point and return its id, reporting a failure to `note`."""
        node = new_ulid()
        try:
            await to_thread.run_sync(self.checkpoints.begin, node)
        except OSError as exc:
            note(f"what files held before isn't kept, so a rewind can't restore it: {exc}")
        return node


def build_resources(
    cwd: str, transcript: Transcript, agents: AgentFiles, on_task_end: Callable[[str], None]
) -> SessionResources:
    """Build the resources of a session in `cwd`. Files open on first use."""
    return SessionResources(
        FileMemory(os.path.join(cwd, MEMORY_NAME)),
        FileCheckpoints(os.path.join(transcript.directory, "checkpoints"), cwd),
        SubSessions(os.path.join(transcript.directory, "tasks"), cwd, agents, on_end=on_task_end),
        ConversationReadState(transcript),
    )
