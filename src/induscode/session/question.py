"""One question of a session, once everything is open: told, answered, and written down."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.ids import new_ulid
from induscode.session.delegate import Parent
from induscode.session.events import Ended, ToolAnswered, Usage
from induscode.session.exits import ExitCode, signal_code
from induscode.session.output import Closing, Opening
from induscode.session.plan import RequestBudget, RunPlan
from induscode.terminal import print_status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.boot.session import Session
    from induscode.launch.invocation import Invocation
    from induscode.session.events import Event
    from induscode.session.model_loop import Engine
    from induscode.session.models import ModelChoice
    from induscode.session.output import Reporter
    from induscode.session.resources import Handles
    from induscode.session.system_prompt import Briefing
    from induscode.session.transcript import Transcript


@dataclass(slots=True)
class Question:
    """One question, once everything is open."""

    invocation: Invocation
    session: Session
    choice: ModelChoice
    transcript: Transcript
    handles: Handles
    briefing: Briefing
    reporter: Reporter
    cancel: CancelToken
    notes: list[str]
    """What was found odd so far; more is added on the way."""
    denied: list[JsonObject] = field(default_factory=list["JsonObject"])

    def opening(self) -> Opening:
        """Tell what there is."""
        self.notes.extend(self._notes())
        return Opening(
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
        await self._closed(Ended(reason="error", text="", said=said), ExitCode.SERVER_MISSING)
        return ExitCode.SERVER_MISSING

    async def conversed(self, prompt: str) -> int:
        """Have the prompt answered."""
        from induscode.session.model_loop import Engine, open_model  # noqa: PLC0415 — warmed up

        model = await to_thread.run_sync(open_model, self.choice)
        async with Engine(model) as engine:
            ended = await self._asked(engine, prompt)
            code = _code(ended, self.cancel)
            if ended.note:
                self._remark(ended.note)
            await self._closed(ended, code, engine.usage)
            return code

    async def _asked(self, engine: Engine, prompt: str) -> Ended:
        budget = RequestBudget(self.invocation.max_requests)
        session, briefing = self.session, self.briefing
        node = new_ulid()
        try:
            await to_thread.run_sync(self.handles.checkpoints.begin, node)
        except OSError as exc:
            self._remark(f"what files held before is not kept: {exc}")
        turns = _TurnKeeper(session, self.transcript, node)
        self.handles.delegate.serve(
            Parent(engine, session.deck, self._servers_of, briefing, budget, self._heard, turns.keep)
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

    async def _heard(self, event: Event) -> None:
        if isinstance(event, ToolAnswered) and event.code == "denied":
            self.denied.append({"id": event.id, "name": event.name, "reason": event.text})
        await self.reporter.event(event)

    def _remark(self, said: str) -> None:
        self.notes.append(said)
        print_status(said)

    async def _closed(self, ended: Ended, code: int, usage: Usage | None = None) -> None:
        for said in self._notes():
            if said not in self.notes:
                self._remark(said)  # a server that was not waited for has failed, or lists others
        if self.transcript.trouble is not None:
            self._remark(f"the end of this conversation is not kept: {self.transcript.trouble}")
        closing = Closing(
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


def _code(ended: Ended, cancel: CancelToken) -> int:
    if ended.reason == "cancelled":
        return signal_code(cancel.reason or "")
    return {
        "done": ExitCode.OK,
        "limit": ExitCode.LIMIT,
        "repeat": ExitCode.LIMIT,
        "time": ExitCode.LIMIT,
        "error": ExitCode.MODEL if ended.fault is not None else ExitCode.FAILED,
    }[ended.reason]
