"""The approver of a gateway: shows a call to a person, and binds the yes to exactly this call.

A yes covers the principal, client, server, tool, definition and arguments of one request. It's refused if the
definition or a rule has changed when the call would run.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from indusagi.core.ids import new_ulid
from indusagi.core.json import JsonObject
from indusagi.core.secrets import REDACTED, hide_in_json
from indusagi.core.time import now_ms
from indusagi.runtime.calls import current_client
from induscode.core.consent import build_consent
from induscode.gateway.approvals.store import Approval, ApprovalState
from induscode.permissions import UnansweredError
from induscode.permissions.confirm import (
    ApprovalScope,
    ParallelApprover,
    PermissionAnswer,
    PermissionRequest,
    escape_text,
    format_argument,
)

if TYPE_CHECKING:
    from induscode.gateway.approvals.queue import ApprovalQueue
    from induscode.permissions.call_facts import CallFacts

_MOST_CHARS: Final = 128 * 1024
"""Nobody reads more."""


class GatewayApprover(ParallelApprover):
    """Asks about the calls of a gateway's clients.

    `look` returns the present definition and decisions about a call; a different value if one has changed.
    """

    def __init__(self, queue: ApprovalQueue, look: Callable[[CallFacts], Awaitable[object]]) -> None:
        self._queue, self._look = queue, look

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Wait for a person's answer. A yes is spent when this returns."""
        facts = request.facts
        options = self._queue.options
        if facts is None or not options.may_ask(by_rule=request.asked_by_rule):
            is_unset = options.mode is None and request.asked_by_rule
            why = ": its client takes no questions, and the setting approvals.notify has no value" if is_unset else ""
            raise UnansweredError(f"this run cannot ask the user{why}")
        seen = await self._look(facts)

        async def is_current() -> bool:
            return await self._look(facts) == seen

        answered = await self._queue.hold(self._build(request, facts), is_current, request.report)
        by = f"{answered.answered_by} (approval {answered.id})"
        if answered.state is ApprovalState.DENIED:
            return PermissionAnswer(None, answered.comment, by)
        return PermissionAnswer(ApprovalScope.ONCE, by=f"approved by {by}")

    def _build(self, request: PermissionRequest, facts: CallFacts) -> Approval:
        client = current_client.get()
        name = "" if client is None else f"{client.name} {client.version}".strip()
        pin = facts.pin or ""
        given: JsonObject = {
            "nonce": secrets.token_hex(16),  # known to this process alone
            "principal": facts.principal,
            "client": name,
            "server": request.server or "",
            "tool": request.tool if facts.remote is None else facts.remote.name,
            "definition": pin,
            "arguments": facts.arguments,
            "lines": [*request.lines],
            "reasons": [*request.reasons],
        }
        lines = [
            f"principal: {escape_text(facts.principal)}" if facts.principal else "",
            f"client: {escape_text(name)}" if name else "",
            f"definition: {pin}" if pin else "",
            *_hide_lines(request.lines, facts.arguments, self._queue.hide),
            *(f"asks because: {self._queue.hide(reason)}" for reason in request.reasons),
        ]
        if sum(map(len, lines)) > _MOST_CHARS:
            raise UnansweredError(f"its arguments are too long to be shown: more than {_MOST_CHARS:,} characters")
        consent = build_consent(f"call of {request.tool}", given, filter(None, lines))
        asked_ms = now_ms()
        return Approval(
            id=new_ulid(),
            digest=consent.digest,
            node=self._queue.options.node,
            principal=facts.principal,
            client=name,
            server=request.server or "",
            tool=request.tool,
            title=self._queue.hide(request.title),
            lines=consent.lines,
            asked_ms=asked_ms,
            expires_ms=asked_ms + round(self._queue.options.wait_s * 1000),
        )


def _hide_lines(lines: Sequence[str], arguments: JsonObject, hide: Callable[[str], str]) -> Sequence[str]:
    """Replace the secrets in the lines of a request, in arguments before they're escaped."""
    try:
        hidden = hide_in_json(arguments, hide)
        assert isinstance(hidden, dict)
        shown = {
            f"argument {escape_text(name)}: ": format_argument(*item).replace(escape_text(REDACTED)[1:-1], REDACTED)
            for name, item in zip(arguments, hidden.items(), strict=True)
        }
    except (RecursionError, ValueError) as exc:
        raise UnansweredError("its arguments cannot be shown in full") from exc
    return [
        next((text for start, text in shown.items() if line.startswith(start)), None) or hide(line) for line in lines
    ]
