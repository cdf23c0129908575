"""Modes of an editor session: how much it does without asking, and plan mode.

https://agentclientprotocol.com/protocol/session-modes. `default` asks, `auto-edit` writes files of the workspace
without asking, `plan` only reads until a plan is approved. `all` exists where the user has started with
`--approval all`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.frontends.acp.params import invalid
from induscode.permissions.policy import ApprovalMode

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.conversations.conversation import Conversation

DEFAULT, AUTO_EDIT, PLAN, ALL = "default", "auto-edit", "plan", "all"
_MODES = {
    DEFAULT: (ApprovalMode.ASK, "Ask", "Asks before it changes, runs or sends something"),
    AUTO_EDIT: (ApprovalMode.AUTO_EDIT, "Edit", "Changes files of the workspace without asking"),
    ALL: (ApprovalMode.ALL, "All", "Asks about nothing, except what a rule names"),
}


class SessionModes:
    """The modes of one conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._names = [DEFAULT, AUTO_EDIT]
        if conversation.invocation.approval == ApprovalMode.ALL.value:
            self._names.append(ALL)

    def find_current(self) -> str:
        """Give the present mode: the model and an approved plan change it too."""
        if self._conversation.plan_mode.active:
            return PLAN
        checks = self._conversation.permissions.permissions
        approval = ApprovalMode.ASK if checks is None else checks.approval
        return next(name for name, (mode, _, _) in _MODES.items() if mode is approval)

    def change(self, name: str) -> None:
        """Change the mode.

        Raises:
            RpcError: There is no such mode.
        """
        plan_mode = self._conversation.plan_mode
        if name == PLAN:
            plan_mode.active = True
            return
        if name not in self._names:
            raise invalid(f"there is no mode {name!r}: {', '.join((*self._names, PLAN))}")
        plan_mode.active = False
        checks = self._conversation.permissions.permissions
        if checks is not None:
            checks.change_approval(_MODES[name][0])

    def describe(self) -> JsonObject:
        """Describe the modes for the editor."""
        modes: list[JsonValue] = [
            {"id": name, "name": _MODES[name][1], "description": _MODES[name][2]} for name in self._names
        ]
        modes.append({"id": PLAN, "name": "Plan", "description": "Only reads, until you approve a plan"})
        return {"currentModeId": self.find_current(), "availableModes": modes}
