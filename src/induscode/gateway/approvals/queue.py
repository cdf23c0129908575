"""The queue of a gateway's calls that wait for a person, and of the answers.

It asks the client that made the call, if that takes questions (elicitation:
https://modelcontextprotocol.io/specification/2025-11-25/client/elicitation). Otherwise the request waits in the store
for the page, `indus approvals` or another node. A yes is spent right before the call runs, and once.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal, TypeAlias

import anyio
from anyio import to_thread

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.core.secrets import hide_secrets
from indusagi.core.tasks import Listeners
from indusagi.interop.protocol_bridge.client.handlers import Caller, current_caller
from indusagi.interop.protocol_bridge.rpc.connection import RpcError
from indusagi.runtime.calls import waiting_for_user
from indusagi.runtime.contract import ProgressSink, ToolProgress
from induscode.cli.terminal import print_status
from induscode.gateway.approvals.store import Approval, ApprovalState, ApprovalStore
from induscode.permissions import UnansweredError

_log = logging.getLogger(__name__)

ApprovalMode: TypeAlias = Literal["ask", "deny"]
POLL_S: Final = 0.25
"""How often answers of other processes are read, while a call waits."""
_PROGRESS_S: Final = 10.0
"""How often a waiting client hears that its request is alive."""
_PROGRESS_STEP: Final = 1e-6
"""Progress has to grow, and the tool's own begins afterwards."""
_MOST_WAITING: Final = 32
"""Waiting calls of one principal."""
_SCHEMA: Final[JsonObject] = {
    "type": "object",
    "properties": {"approve": {"type": "boolean", "title": "Allow this call", "default": False}},
    "required": ["approve"],
}


@record(kw_only=True)
class ApprovalOptions:
    """How a gateway asks."""

    mode: ApprovalMode | None = None
    """`ask`: about every call that needs a person, even if nobody is known to answer. By default only where a rule
    asks, and somebody can answer."""
    wait_s: float = 300.0
    target: str | Sequence[str] | None = None
    """Where to announce requests: `desktop`, a URL or a command."""
    has_page: bool = False
    node: str = ""

    def may_ask(self, *, by_rule: bool) -> bool:
        """Return whether to ask about a call of the current client."""
        if self.mode is not None:
            return self.mode == "ask"
        return by_rule and (_find_client() is not None or self.target is not None or self.has_page)


@dataclass(slots=True)
class _Waiting:
    """A waiting call of this process."""

    approval: Approval
    answered: anyio.Event = field(default_factory=anyio.Event)


class ApprovalQueue:
    """The calls of one gateway that wait for a person. `run` has to run meanwhile."""

    def __init__(self, options: ApprovalOptions, store: ApprovalStore | None = None) -> None:
        self.options = options
        self.store = store or ApprovalStore()
        self.hide: Callable[[str], str] = hide_secrets
        self.write_event: Callable[[JsonObject], None] = lambda facts: None
        """Writes to the ledger."""
        self.on_asked: Listeners[[Approval]] = Listeners()
        self.on_ended: Listeners[[Approval]] = Listeners()
        """Called when a request can't be answered or used any more."""
        self._waiting: dict[str, _Waiting] = {}
        self._has_waiting = anyio.Event()

    async def hold(
        self, approval: Approval, is_current: Callable[[], Awaitable[bool]], report: ProgressSink | None = None
    ) -> Approval:
        """Hold the current client's call until a person answers, and spend a yes.

        Return the request as it was answered. Raises `UnansweredError` if nobody answers, or the call isn't the same
        any more (`is_current`).
        """
        own = sum(other.approval.principal == approval.principal for other in self._waiting.values())
        if own >= _MOST_WAITING:
            raise UnansweredError(f"{own} calls wait for approval already")
        waiting = self._waiting[approval.id] = _Waiting(approval)
        self._has_waiting.set()
        ended = ApprovalState.WITHDRAWN
        try:
            await self._put(approval)
            with waiting_for_user(), anyio.move_on_after(self.options.wait_s):
                await self._wait(waiting, report)
            answered = waiting.approval
            if answered.state is ApprovalState.WAITING:
                ended = ApprovalState.EXPIRED
                raise UnansweredError(f"nobody answered within {self.options.wait_s:g} s (approval {approval.id})")
            self._record(answered, answered.state)
            if answered.state is not ApprovalState.APPROVED:
                ended = answered.state
                return answered
            if not await to_thread.run_sync(self.store.use, approval.id, approval.digest):
                ended = ApprovalState.EXPIRED
                raise UnansweredError(f"the yes came too late (approval {approval.id})")
            ended = ApprovalState.USED
            if not await is_current():
                ended = ApprovalState.REFUSED
                raise UnansweredError(
                    "it was approved, but its server, definition or a rule has changed since: try again"
                )
            return answered
        finally:
            with anyio.CancelScope(shield=True):
                await self._end(waiting, ended)

    async def _put(self, approval: Approval) -> None:
        try:
            await to_thread.run_sync(self.store.add, approval)
        except (OSError, sqlite3.Error) as exc:
            raise UnansweredError(f"the request for approval cannot be stored: {exc}") from exc
        self._record(approval, "asked")
        self.on_asked(approval)

    async def _end(self, waiting: _Waiting, state: ApprovalState) -> None:
        approval = waiting.approval
        del self._waiting[approval.id]
        if state is not ApprovalState.DENIED:
            self._record(approval, state)
        try:
            if state is ApprovalState.REFUSED:  # after the yes was spent
                await to_thread.run_sync(self.store.end, approval.id, state, (ApprovalState.USED,))
            elif state is not ApprovalState.USED:
                await to_thread.run_sync(self.store.end, approval.id, state)
        except (OSError, sqlite3.Error) as exc:
            _log.debug("the end of approval %s is not stored: %s", approval.id, exc)
        self.on_ended(approval)

    def _record(self, approval: Approval, event: str) -> None:
        """Write an event to the ledger."""
        facts: JsonObject = {
            "name": approval.tool,
            "server": approval.server,
            "subject": event,
            "detail": approval.answered_by or approval.principal or approval.client,
            "approval": approval.id,
            "consent": approval.digest,
            "principal": approval.principal,
            "client": approval.client,
        }
        self.write_event(facts)

    # -- waiting ----------------------------------------------------------------------------

    async def _wait(self, waiting: _Waiting, report: ProgressSink | None) -> None:
        approval, caller = waiting.approval, _find_client()
        async with anyio.create_task_group() as tasks:
            if report is not None:
                tasks.start_soon(_keep_client, report, approval.id)
            tasks.start_soon(self._ask, caller, approval)
            await waiting.answered.wait()  # by anybody: a dialog of the client may still be open
            tasks.cancel_scope.cancel()

    async def _ask(self, caller: Caller | None, approval: Approval) -> None:
        if caller is None or not await self._ask_client(caller, approval):
            print_status(f"{approval.title} waits for approval: indus approvals show {approval.id}")
            if self.options.target is not None:
                await self._announce(approval, self.options.target)

    async def _ask_client(self, caller: Caller, approval: Approval) -> bool:
        """Ask the client's user. Return False if the client cannot be asked after all."""
        message = "\n".join((f"{approval.title}. Allow this call?", *approval.lines))
        try:
            result = await caller.ask("elicitation/create", {"message": message, "requestedSchema": _SCHEMA})
        except RpcError as exc:
            _log.debug("the client does not answer: %s", exc)
            return False
        content = result.get("content")
        is_yes = result.get("action") == "accept" and isinstance(content, dict) and content.get("approve") is True
        by = approval.principal or approval.client or "the client's user"
        await self.answer(approval.id, approval.digest, approve=is_yes, by=by)
        return True

    async def _announce(self, approval: Approval, target: str | Sequence[str]) -> None:
        from induscode.gateway.approvals.announce import announce  # noqa: PLC0415 — loads the web client

        if (note := await announce(approval, target)) is not None:
            print_status(str(note))

    # -- answers ----------------------------------------------------------------------------

    async def answer(self, approval_id: str, digest: str, *, approve: bool, by: str, comment: str = "") -> bool:
        """Answer a request, and return whether it still waited; raises like the store."""
        answer = partial(self.store.answer, approval_id, digest, approve=approve, by=by, comment=comment)
        is_answered = await to_thread.run_sync(answer)
        await self.read_answers()
        return is_answered

    async def read_answers(self) -> None:
        """Wake the calls that were answered."""
        if not self._waiting:
            return
        answered = await to_thread.run_sync(self.store.list_answered, [*self._waiting])
        for approval_id, approval in answered.items():
            waiting = self._waiting.get(approval_id)
            if waiting is not None and not waiting.answered.is_set():
                waiting.approval = approval
                waiting.answered.set()

    async def run(self) -> None:
        """Read the answers of other processes while calls wait, until cancelled."""
        while True:
            await self._has_waiting.wait()
            if not self._waiting:
                self._has_waiting = anyio.Event()
                continue
            await anyio.sleep(POLL_S)
            try:
                await self.read_answers()
            except (OSError, sqlite3.Error) as exc:
                _log.debug("the answers to requests for approval cannot be read: %s", exc)


async def _keep_client(report: ProgressSink, approval_id: str) -> None:
    """Report progress, so that the client keeps waiting."""
    step = 0
    while True:
        step += 1
        report(ToolProgress(step * _PROGRESS_STEP, None, f"waiting for approval {approval_id}"))
        await anyio.sleep(_PROGRESS_S)


def _find_client() -> Caller | None:
    """Return the client behind this task's call, if its user can answer a form."""
    caller = current_caller.get()
    elicitation = None if caller is None else caller.capabilities.get("elicitation")
    # An empty object means forms.
    can_answer = isinstance(elicitation, dict) and ("form" in elicitation or not elicitation)
    return caller if can_answer else None
