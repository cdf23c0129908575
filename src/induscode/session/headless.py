"""One question from the command line: everything from the prompt to the exit code.

Servers are waited for before the first request, so that a model never has to do without a tool that
was merely late. Whatever is missing is said, on standard error and in the first event.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread

from indusagi.core.faults import CoreError
from indusagi.core.ids import new_ulid
from indusagi.core.owner import Owner
from indusagi.core.signals import ending_signals
from induscode.boot.runners import NoSuchConfig
from induscode.boot.session import open_session
from induscode.deck.contract import UnknownCapability
from induscode.session.briefing import Briefing, project_words
from induscode.session.delegate import Parent
from induscode.session.events import Ended, ToolAnswered, Usage
from induscode.session.exits import ExitCode, signal_code
from induscode.session.handles import make_handles
from induscode.session.models import NoModel, choose_model
from induscode.session.output import Closing, Opening, Page, reporter_for
from induscode.session.plan import RequestBudget, RunPlan
from induscode.session.prompt import BadPrompt, read_prompt
from induscode.session.transcript import NoConversation, open_transcript
from induscode.terminal import complain, drop

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from typing import IO

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.boot.session import Session
    from induscode.deck.contract import Capability
    from induscode.launch.invocation import Invocation
    from induscode.session._pydantic_ai import Engine
    from induscode.session.events import Event
    from induscode.session.handles import Handles
    from induscode.session.models import ModelChoice
    from induscode.session.output import Reporter
    from induscode.session.transcript import Transcript

_CLOSING_S = 5.0
"""How long everything may take to close once the program was told to end."""
_STANDARD_OUTPUT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """What stands between the model's calls and the cards."""

    wrap: Callable[[Capability], Capability] | None = None
    posture: str = ""
    """What the model is told about it."""


def run_headless(invocation: Invocation, guarding: Guarding | None = None) -> int:
    """Answer the prompt of an invocation and give the exit code of the program.

    Call it in the main thread, without a running event loop.
    """
    page = Page(_STANDARD_OUTPUT)
    if sys.stdout is not None:
        sys.stdout.flush()
    try:
        code = anyio.run(_told_to_end, invocation, guarding or Guarding(), page)
    except KeyboardInterrupt:
        code = int(ExitCode.INTERRUPTED)
    if page.stuck:
        # A thread hangs in a write that nobody reads, and would keep the interpreter from ending.
        os._exit(code)
    return code


async def _told_to_end(invocation: Invocation, guarding: Guarding, page: Page) -> int:
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
    guarding: Guarding,
    *,
    page: Page,
    cancel: CancelToken,
    stdin: IO[str] | None = None,
) -> int:
    """Answer the prompt of an invocation in a running loop, until `cancel` says otherwise."""
    try:
        code = await _answered(invocation, guarding, page, cancel, stdin or sys.stdin)
    except BrokenPipeError:
        drop(_STANDARD_OUTPUT)
        code = int(ExitCode.READER_LEFT)
    except (BadPrompt, NoConversation, NoSuchConfig, UnknownCapability) as exc:
        complain(str(exc))
        code = int(ExitCode.USAGE)
    except NoModel as exc:
        complain(str(exc))
        code = int(ExitCode.MODEL)
    except (CoreError, OSError) as exc:
        complain(str(exc))
        code = int(ExitCode.FAILED)
    return signal_code(cancel.reason or "") if cancel.cancelled else code


async def _answered(
    invocation: Invocation,
    guarding: Guarding,
    page: Page,
    cancel: CancelToken,
    stdin: IO[str] | None,
) -> int:
    async with AsyncExitStack() as stack:
        opened: tuple[str, _Run] | None = None
        # What is opened here stays open beyond the scope, and is closed in peace whatever happens.
        with cancel.guard():
            prompt = await to_thread.run_sync(
                read_prompt, invocation.prompt, stdin, abandon_on_cancel=True
            )
            opened = prompt, await _opened(invocation, guarding, page, cancel, stack)
        if opened is None:
            return ExitCode.FAILED
        prompt, run = opened
        missing = run.session.mcp.missing()
        return await run.refused(missing) if missing else await run.conversed(prompt)


async def _opened(
    invocation: Invocation,
    guarding: Guarding,
    page: Page,
    cancel: CancelToken,
    stack: AsyncExitStack,
) -> _Run:
    choice = await choose_model(invocation, os.environ)
    transcript = await stack.enter_async_context(_transcript(invocation))
    handles = make_handles(invocation.cwd, transcript)
    stack.callback(handles.checkpoints.close)
    loading = await stack.enter_async_context(_loading())
    session = await stack.enter_async_context(
        open_session(invocation, framework=handles.framework(), wrap=guarding.wrap)
    )
    words = await to_thread.run_sync(project_words, invocation.cwd)
    briefing = Briefing(invocation.cwd, guarding.posture, words)
    reporter = reporter_for(invocation.output_format, page, chatty=_watched())
    run = _Run(invocation, session, choice, transcript, handles, briefing, reporter, cancel)
    await reporter.opened(run.opening())
    await loading.watched()
    return run


def _watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty()


@asynccontextmanager
async def _transcript(invocation: Invocation) -> AsyncGenerator[Transcript]:
    def opened() -> Transcript:
        return open_transcript(
            invocation.cwd, resume=invocation.resume, last=invocation.continue_last
        )

    transcript = await to_thread.run_sync(opened)
    try:
        yield transcript
    finally:
        transcript.close()


@asynccontextmanager
async def _loading() -> AsyncGenerator[Owner]:
    """Load the loop in a thread while servers start: it takes longer than they do."""
    loading = Owner("loading of the model loop")
    loading.start(to_thread.run_sync(_load, abandon_on_cancel=True))
    try:
        yield loading
    finally:
        loading.cancel()
        await loading.ended()


def _load() -> None:
    from importlib import import_module  # noqa: PLC0415 — for this one

    import_module("induscode.session._pydantic_ai")


@dataclass(slots=True)
class _Run:
    """One question, once everything is open."""

    invocation: Invocation
    session: Session
    choice: ModelChoice
    transcript: Transcript
    handles: Handles
    briefing: Briefing
    reporter: Reporter
    cancel: CancelToken
    denied: list[JsonObject] = field(default_factory=list["JsonObject"])
    notes: list[str] = field(default_factory=list[str])

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
        said.extend(str(note) for note in self.session.notes)
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
                    "fault": None
                    if fault is None
                    else {"kind": str(fault.kind), "message": str(fault)},
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
        from induscode.session._pydantic_ai import Engine, open_model  # noqa: PLC0415 — warmed up

        model = await to_thread.run_sync(open_model, self.choice)
        async with Engine(model) as engine:
            ended = await self._asked(engine, prompt)
            code = _code(ended, self.cancel)
            await self._closed(ended, code, engine.usage)
            return code

    async def _asked(self, engine: Engine, prompt: str) -> Ended:
        budget = RequestBudget(self.invocation.max_requests)
        session, briefing = self.session, self.briefing
        self.handles.delegate.serve(
            Parent(engine, session.deck, self._servers_of, briefing, budget)
        )
        node = new_ulid()
        await to_thread.run_sync(self.handles.checkpoints.begin, node)
        plan = RunPlan(
            box=session.box,
            briefing=lambda: briefing.text(
                [card.name for card in session.deck().tools()], self._servers_of()
            ),
            cancel=self.cancel,
            budget=budget,
            history=self.transcript.messages(),
            sink=self._heard,
            on_turn=_TurnKeeper(session, self.transcript, node).keep,
            on_message=self._keep,
        )
        return await engine.run(prompt, plan)

    def _servers_of(self) -> dict[str, str]:
        ledger = self.session.mcp.ledger
        return {} if ledger is None else {c.name: c.ref.server for c in ledger.live_capabilities()}

    async def _keep(self, message: JsonObject) -> None:
        await to_thread.run_sync(self.transcript.keep, message)

    async def _heard(self, event: Event) -> None:
        if isinstance(event, ToolAnswered) and event.code == "denied":
            self.denied.append({"id": event.id, "name": event.name, "reason": event.text})
        await self.reporter.event(event)

    async def _closed(self, ended: Ended, code: int, usage: Usage | None = None) -> None:
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
        from induscode.deck.mcp.journal import Journal  # noqa: PLC0415 — needs a running session

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
