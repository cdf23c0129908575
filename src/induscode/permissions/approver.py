"""Approver: asks the user about permission requests and plans in a dialog.

A question describes the call in one sentence, lists every fact, gives the reason for asking, and shows the exact rule
that a lasting answer creates. Enter, Ctrl-C and Ctrl-D mean no.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.runtime.calls import current_agent
from induscode.cli.dialog import Choice, Question
from induscode.cli.terminal import escape_unprintable
from induscode.permissions.confirm import ApprovalScope, PermissionAnswer
from induscode.permissions.plan_mode import PlanAnswer, PlanDecision

if TYPE_CHECKING:
    from induscode.cli.dialog import Dialog
    from induscode.permissions.confirm import PermissionRequest

_SCOPE_KEYS = {
    "y": ApprovalScope.ONCE,
    "s": ApprovalScope.SESSION,
    "a": ApprovalScope.ALWAYS_TOOL,
    "v": ApprovalScope.ALWAYS_SERVER,
}
_NO = Choice(key="n", label="No, and say what to do instead", takes_text=True, refuses=True)
_ACCEPT_EDITS = "Yes, and accept edits automatically"
_REVISE = "Change the plan: say what's missing"
_PLAN_CHOICES = {
    "y": (PlanAnswer.APPROVE, Choice(key="y", label="Yes")),
    "e": (PlanAnswer.ACCEPT_EDITS, Choice(key="e", label=_ACCEPT_EDITS, lasts=True)),
    "r": (PlanAnswer.REVISE, Choice(key="r", label=_REVISE, takes_text=True, refuses=True)),
    "n": (PlanAnswer.REFUSE, Choice(key="n", label="No", takes_text=True, refuses=True)),
}


class PersonApprover:
    """Asks the user at a dialog about calls and plans."""

    def __init__(self, dialog: Dialog) -> None:
        self._dialog = dialog

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Ask about a call, offering the scopes of the request."""
        reply = await self._dialog.ask(build_permission_question(request))
        if reply.cancelled:
            return PermissionAnswer()
        scope = _SCOPE_KEYS.get(reply.key)
        if scope in request.scopes:
            return PermissionAnswer(scope)
        return PermissionAnswer(None, reply.text.strip())

    async def approve_plan(self, plan: str, stored: str, /) -> PlanDecision:
        """Show a complete plan and ask about it."""
        lines = [escape_unprintable(line.expandtabs(4)) for line in plan.splitlines()]
        if stored:
            lines += ["", escape_unprintable(stored)]
        choices = tuple(choice for _, choice in _PLAN_CHOICES.values())
        title = "Plan ready. Start work?"
        reply = await self._dialog.ask(Question(title=title, lines=tuple(lines), choices=choices, default="n"))
        if reply.cancelled or reply.key not in _PLAN_CHOICES:
            return PlanDecision(PlanAnswer.REFUSE)
        return PlanDecision(_PLAN_CHOICES[reply.key][0], reply.text.strip())


def build_permission_question(request: PermissionRequest) -> Question:
    """Build the question for a permission request."""
    rules = " and ".join(request.saves)
    labels = {
        ApprovalScope.ONCE: "Yes",
        ApprovalScope.SESSION: f"Yes, and don't ask again this session for {rules}",
        ApprovalScope.ALWAYS_TOOL: f"Always allow {rules} in this project",
        ApprovalScope.ALWAYS_SERVER: f"Always allow every {request.server} tool in this project",
    }
    agent = current_agent.get()  # a background task asks while the user does something else
    lines = [f"for the agent: {agent}"] if agent else []
    lines += [*request.lines, f"asks because: {'; '.join(request.reasons)}"]
    if rules:
        lines.append(f"rule: allow {rules}")
    choices = [
        Choice(key=key, label=escape_unprintable(labels[scope]), lasts=scope is not ApprovalScope.ONCE)
        for key, scope in _SCOPE_KEYS.items()
        if scope in request.scopes
    ]
    return Question(
        title=escape_unprintable(request.title),
        lines=tuple(map(escape_unprintable, lines)),
        choices=(*choices, _NO),
        default=_NO.key,
    )
