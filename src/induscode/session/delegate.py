"""Sub-sessions for the `task` card: a new history on the same servers, with the same permissions.

A sub-session has the deck of its parent without `task`, and takes its requests from the parent's budget. At a limit it
reports what it has, with an id under which it can be continued.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from anyio import to_thread

from indusagi.capabilities.context import ContextId
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.runtime.contract import ToolProgress
from induscode.deck.cards.checkpoint import CHECKPOINTED_TOOLS, path_of
from induscode.deck.contract import DelegateReport
from induscode.deck.provision import DeckRunner, DeckToolBox
from induscode.session.contract import RequestBudget, RunPlan, ToolAnswered, ToolCalled
from induscode.session.plan_mode import ENTER, EXIT
from induscode.session.transcript import ConversationError, ConversationReadState, Transcript

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.contract import DelegateRequest
    from induscode.deck.provision import ToolDeck
    from induscode.session.contract import EndReason, EventSink, RunEvent, RunResult
    from induscode.session.prompt import SystemPrompt

AGENTS = ("general", "explore")
"""`general` has every tool of its parent but `task`; `explore` only the read-only ones."""
_TURNS = 20
_TIME_S = 600.0
_LARGEST_REPORT = 40_000

_REASONS: dict[EndReason, str] = {
    "limit": "turns",
    "repeat": "error",
    "time": "time",
    "cancelled": "cancelled",
    "error": "error",
}


class ModelRunner(Protocol):
    """Runs a prompt with a model."""

    async def run(self, prompt: str, plan: RunPlan) -> RunResult:
        """Run a prompt to its result."""
        ...


@dataclass(frozen=True, slots=True)
class ParentSession:
    """What a sub-session shares with the session that started it."""

    runner: ModelRunner
    deck: Callable[[], ToolDeck]
    servers: Callable[[], dict[str, str]]
    system_prompt: SystemPrompt
    budget: RequestBudget
    sink: EventSink
    """Receives the denied calls of sub-sessions."""
    on_turn: Callable[[Sequence[ToolDescriptor]], Awaitable[None]]
    """Called before every request with the tools that the model is shown."""


class SubSessions:
    """Runs sub-sessions. It exists before its session does; `attach` connects the two."""

    def __init__(self, directory: str, cwd: str) -> None:
        self._directory, self._cwd = directory, cwd
        self._parent: ParentSession | None = None

    def attach(self, parent: ParentSession) -> None:
        """Connect the session whose tasks are run here."""
        self._parent = parent

    def list_agents(self) -> Sequence[str]:
        """List the kinds of sub-sessions."""
        return AGENTS

    async def run(self, request: DelegateRequest, ctx: ToolContext) -> DelegateReport:
        """Run a sub-session, and give its report."""
        parent = self._parent
        if parent is None:
            return DelegateReport(ok=False, text="The session is not open yet.", reason="error")
        name = request.resume or new_ulid()
        directory = os.path.join(self._directory, name)
        if request.resume is not None and not (is_ulid(name) and await to_thread.run_sync(os.path.isdir, directory)):
            return DelegateReport(ok=False, text=f"There is no task {name!r} to go on with.", reason="error")
        try:
            transcript = await to_thread.run_sync(Transcript, directory, self._cwd)
        except (OSError, ConversationError) as exc:
            return DelegateReport(ok=False, text=str(exc), reason="error")
        try:
            return await self._run(request, ctx, parent, transcript)
        except ConversationError as exc:
            return DelegateReport(ok=False, text=str(exc), reason="error")
        finally:
            await to_thread.run_sync(transcript.close)

    async def _run(
        self, request: DelegateRequest, ctx: ToolContext, parent: ParentSession, transcript: Transcript
    ) -> DelegateReport:
        limit = min(request.max_turns or _TURNS, parent.budget.left)
        budget = RequestBudget(limit)
        # Todo lists, jobs and read state are the sub-session's own. The file system is the parent's: that of the
        # `task` call itself may be narrower than its calls need.
        above = parent.deck().context
        read_state = ConversationReadState(transcript)
        context = replace(
            above,
            context_id=ContextId(f"ctx_{new_ulid()}"),
            framework=replace(above.framework, read_state=read_state),
            cancel=ctx.cancel,
        )

        def select_deck() -> ToolDeck:
            # An `explore` agent may not end the plan mode of its parent.
            return parent.deck().retain(
                lambda card: card.name not in {"task", ENTER, EXIT} and (card.read_only or request.agent != "explore")
            )

        def build_toolbox() -> DeckToolBox:
            return DeckToolBox(DeckRunner({card.name: card for card in select_deck().tools()}, context))

        changed = ChangedFiles(self._cwd)

        async def report_event(event: RunEvent) -> None:
            changed.follow(event)
            if isinstance(event, ToolCalled):
                ctx.report(ToolProgress(budget.used, limit, f"calling {event.name}"))
            elif isinstance(event, ToolAnswered) and event.code == "denied":
                await parent.sink(event)

        plan = RunPlan(
            toolbox=build_toolbox,
            system_prompt=lambda: parent.system_prompt.render(
                [card.name for card in select_deck().tools()], parent.servers()
            ),
            cancel=ctx.cancel,
            budget=budget,
            history=transcript.messages(),
            sink=report_event,
            on_turn=parent.on_turn,
            on_message=partial(to_thread.run_sync, read_state.save_message),
            time_s=(request.timeout_ms or _TIME_S * 1_000) / 1_000,
        )
        facts = f"\n\nWhat is known:\n{request.context}" if request.context else ""
        prompt = f"{request.objective}{facts}\n\nEnd with a report of what you found or did."
        try:
            result = await parent.runner.run(prompt, plan)
        finally:
            parent.budget.used += budget.used
        is_done = result.reason == "done"
        text = result.text if is_done else "\n\n".join((*result.passages, f"[{result.message}]"))
        if len(text) > _LARGEST_REPORT:
            text = f"{text[:_LARGEST_REPORT]}\n[the report went on]"
        return DelegateReport(
            ok=is_done, text=text, id=transcript.id, reason=_REASONS.get(result.reason), files=changed.paths()
        )


class ChangedFiles:
    """Files that the calls of a session have written or edited, each once, in order."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._calls: dict[str, str] = {}
        self._paths: dict[str, None] = {}

    def follow(self, event: RunEvent) -> None:
        """Record the path of a call, and count it when the call succeeds."""
        if isinstance(event, ToolCalled) and event.name in CHECKPOINTED_TOOLS:
            path = path_of(event.arguments)
            if path is not None:
                self._calls[event.id] = path
        elif isinstance(event, ToolAnswered):
            path = self._calls.pop(event.id, None)
            if path is not None and not event.is_error:
                full = os.path.normpath(os.path.join(self._cwd, os.path.expanduser(path)))
                self._paths.setdefault(full.removeprefix(os.path.join(self._cwd, "")))

    def paths(self) -> tuple[str, ...]:
        """List the paths, relative to the working directory if they are in it."""
        return tuple(self._paths)
