"""`task` for real: a sub-session with a fresh history on the same servers and under the same guard.

It gets the deck of its parent without `task`, so that it can do nothing its parent cannot, and a
part of the parent's requests. At a limit it reports what it has, under an id to go on with.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from anyio import to_thread

from indusagi.capabilities.context import ContextId
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.runtime.contract import ToolProgress
from induscode.deck.cards.checkpoint import CHECKPOINTED_TOOLS, path_of
from induscode.deck.contract import DelegateReport
from induscode.deck.toolbox import DeckRunner, DeckToolBox
from induscode.session.contract import RequestBudget, RunPlan, ToolAnswered, ToolCalled
from induscode.session.plan_mode import ENTER, EXIT
from induscode.session.transcript import ConversationError, ConversationReadState, Transcript

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.contract import DelegateRequest
    from induscode.deck.provision import ToolDeck
    from induscode.session.contract import EndReason, RunEvent, RunResult, Sink
    from induscode.session.prompt import SystemPrompt

AGENTS = ("general", "explore")
"""`general` has every tool of its parent but `task`; `explore` only those that change nothing."""
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
    """Whatever has a question answered by a model."""

    async def run(self, prompt: str, plan: RunPlan) -> RunResult:
        """Have a question answered."""
        ...


@dataclass(frozen=True, slots=True)
class ParentSession:
    """What a sub-session has of the session it was started in."""

    engine: ModelRunner
    deck: Callable[[], ToolDeck]
    servers: Callable[[], dict[str, str]]
    briefing: SystemPrompt
    budget: RequestBudget
    sink: Sink
    """Told of calls that were not allowed, whoever made them."""
    on_turn: Callable[[Sequence[ToolDescriptor]], Awaitable[None]]
    """Told what a model is shown, in whichever session."""


class SubSessions:
    """Runs sub-sessions. It is made before the session is, and told of it afterwards."""

    def __init__(self, directory: str, cwd: str) -> None:
        self._directory, self._cwd = directory, cwd
        self._parent: ParentSession | None = None

    def serve(self, parent: ParentSession) -> None:
        """Take the session whose work is handed on here."""
        self._parent = parent

    def list_agents(self) -> Sequence[str]:
        """Name the agents there are."""
        return AGENTS

    async def run(self, request: DelegateRequest, ctx: ToolContext) -> DelegateReport:
        """Have a piece of work done."""
        parent = self._parent
        if parent is None:
            return DelegateReport(ok=False, text="The session is not open yet.", reason="error")
        try:
            transcript = await to_thread.run_sync(self._opened, request.resume)
        except (OSError, ConversationError) as exc:
            return DelegateReport(ok=False, text=str(exc), reason="error")
        try:
            return await self._worked(request, ctx, parent, transcript)
        except ConversationError as exc:
            return DelegateReport(ok=False, text=str(exc), reason="error")
        finally:
            await to_thread.run_sync(transcript.close)

    def _opened(self, resume: str | None) -> Transcript:
        name = resume or new_ulid()
        directory = os.path.join(self._directory, name)
        if resume is not None and not (is_ulid(name) and os.path.isdir(directory)):
            raise ConversationError(f"There is no task {resume!r} to go on with.")
        return Transcript(directory, self._cwd)

    async def _worked(
        self, request: DelegateRequest, ctx: ToolContext, parent: ParentSession, transcript: Transcript
    ) -> DelegateReport:
        limit = min(request.max_turns or _TURNS, parent.budget.left)
        budget = RequestBudget(limit)
        # Lists, jobs and what was read belong to the sub-session alone; the doors are the parent's,
        # not those of this call, which may be narrower than what each call of the work needs.
        above = parent.deck().context
        reads = ConversationReadState(transcript)
        own = replace(
            above,
            context_id=ContextId(f"ctx_{new_ulid()}"),
            framework=replace(above.framework, read_state=reads),
            cancel=ctx.cancel,
        )

        def deck() -> ToolDeck:
            return parent.deck().retain(lambda card: _allowed(card.name, card.read_only, request))

        def box() -> DeckToolBox:
            return DeckToolBox(DeckRunner({card.name: card for card in deck().tools()}, own))

        changed = ChangedFiles(self._cwd)

        async def heard(event: RunEvent) -> None:
            changed.hear(event)
            if isinstance(event, ToolCalled):
                ctx.report(ToolProgress(budget.used, limit, f"calling {event.name}"))
            elif isinstance(event, ToolAnswered) and event.code == "denied":
                await parent.sink(event)

        async def keep(message: JsonObject) -> None:
            await to_thread.run_sync(reads.keep, message)

        plan = RunPlan(
            box=box,
            briefing=lambda: parent.briefing.text([card.name for card in deck().tools()], parent.servers()),
            cancel=ctx.cancel,
            budget=budget,
            history=transcript.messages(),
            sink=heard,
            on_turn=parent.on_turn,
            on_message=keep,
            time_s=(request.timeout_ms or _TIME_S * 1_000) / 1_000,
        )
        try:
            ended = await parent.engine.run(_prompt(request), plan)
        finally:
            parent.budget.used += budget.used
        return _report(ended, transcript.id, changed.paths())


def _allowed(name: str, read_only: bool, request: DelegateRequest) -> bool:
    # Who is sent to look does not lead whoever sent it out of plan mode.
    return name not in {"task", ENTER, EXIT} and (read_only or request.agent != "explore")


def _prompt(request: DelegateRequest) -> str:
    facts = f"\n\nWhat is known:\n{request.context}" if request.context else ""
    return f"{request.objective}{facts}\n\nEnd with a report of what you found or did."


class ChangedFiles:
    """The files that the calls of a session have written or edited, each once, in order."""

    def __init__(self, cwd: str) -> None:
        self._cwd = cwd
        self._called: dict[str, str] = {}
        self._paths: dict[str, None] = {}

    def hear(self, event: RunEvent) -> None:
        """Follow a call from the arguments, which name the file, to an answer that is no error."""
        if isinstance(event, ToolCalled) and event.name in CHECKPOINTED_TOOLS:
            path = path_of(event.arguments)
            if path is not None:
                self._called[event.id] = path
        elif isinstance(event, ToolAnswered):
            path = self._called.pop(event.id, None)
            if path is not None and not event.is_error:
                self._paths.setdefault(self._shown(path))

    def _shown(self, path: str) -> str:
        """Give a path as seen from the working directory, if it is in it."""
        whole = os.path.normpath(os.path.join(self._cwd, os.path.expanduser(path)))
        return whole.removeprefix(os.path.join(self._cwd, ""))

    def paths(self) -> tuple[str, ...]:
        """List them."""
        return tuple(self._paths)


def _report(ended: RunResult, identity: str, files: tuple[str, ...]) -> DelegateReport:
    text = ended.text
    if ended.reason != "done":
        text = "\n\n".join((*ended.passages, f"[{ended.said}]"))
    if len(text) > _LARGEST_REPORT:
        text = f"{text[:_LARGEST_REPORT]}\n[the report went on]"
    return DelegateReport(
        ok=ended.reason == "done", text=text, id=identity, reason=_REASONS.get(ended.reason), files=files
    )
