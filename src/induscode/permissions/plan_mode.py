"""Plan mode: only read-only tools run until the user approves a plan.

The two cards of plan mode return marks, which take effect here: the session stores the mode, which the permissions
check on every call, stores the plan, and asks the user to approve it. Plan mode denies all commands, so none of them
needs a stricter sandbox.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from anyio import to_thread

from indusagi.capabilities.context import ToolContext
from indusagi.core.json import JsonValue
from indusagi.core.records import record
from indusagi.core.tasks import Listeners
from indusagi.core.text import escape_invisible
from indusagi.runtime.calls import waiting_for_user
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolResult
from induscode.deck.contract import Capability, CardWrapper, is_foreign

ENTER, EXIT = "enter_plan_mode", "exit_plan_mode"
_ENTERED = (
    "Plan mode is on: whatever changes something is refused until a plan is approved. Look around, "
    "and when you know what to do, present it with exit_plan_mode."
)
_NOT_ON = "Plan mode was not on: nothing has changed."
_APPROVED = "The plan is approved and plan mode is off. Go ahead."
_EDITS_ACCEPTED = " Files of the working directory may be changed without asking."
_REVISE = "The user wants the plan changed: plan mode stays on. Change the plan, and present it again."
_REFUSED = "The user refused the plan: plan mode stays on. Change nothing, and ask what the user wants instead."
_UNAPPROVED = (
    "This run cannot ask the user to approve the plan: plan mode stays on. Change nothing, and end with the plan as "
    "your answer."
)


class PlanAnswer(StrEnum):
    """The user's answer to a plan."""

    APPROVE = "approve"
    ACCEPT_EDITS = "approve and accept edits"
    REVISE = "revise"
    REFUSE = "refuse"


@record
class PlanDecision:
    """The user's answer to a plan, with a comment for the model."""

    answer: PlanAnswer
    comment: str = ""


class PlanApprover(Protocol):
    """Asks the user about a plan."""

    async def approve_plan(self, plan: str, stored: str, /) -> PlanDecision:
        """Show a plan and a sentence about its file, and wait for the answer."""
        ...


class PlanMode:
    """Plan mode of a session, initially off."""

    def __init__(self, *, approves: bool, approver: PlanApprover | None = None) -> None:
        """Create the mode.

        With an `approver`, the user decides on every plan. Without one, `approves` tells whether the user approved
        changes in advance. If so, every plan is approved as presented; otherwise plan mode stays on until the run ends.
        """
        self.active = False
        self.folder: str | None = None
        """Directory for plan files, or `None` to not store plans."""
        self.approver = approver
        self.on_accept_edits = Listeners[[]]()
        """Called when the user approves a plan and accepts its edits."""
        self._approves = approves

    def wrap(self, card: Capability) -> Capability:
        """Wrap a card of plan mode so that its marks take effect, for `map_capabilities`."""
        if card.name not in {ENTER, EXIT} or is_foreign(card):
            return card
        return _PlanCard(card, self)

    async def store_plan(self, plan: str) -> str:
        """Store a plan and return a sentence about its location."""
        from induscode.deck.cards.plan import write_plan  # noqa: PLC0415 — cards are loaded late

        if self.folder is None:
            return ""
        try:
            return f" It is kept in {await to_thread.run_sync(write_plan, self.folder, plan)}."
        except OSError as exc:
            return f" It could not be kept: {exc}."

    async def present_plan(self, plan: str) -> tuple[bool, str]:
        """Store a plan and get a decision. Return whether that ended plan mode, and a text for the model."""
        stored = await self.store_plan(plan)
        if not self.active:
            return False, _NOT_ON + stored
        if self.approver is None:
            self.active = not self._approves
            return self._approves, (_APPROVED if self._approves else _UNAPPROVED) + stored
        with waiting_for_user():
            decision = await self.approver.approve_plan(plan, stored.strip())
        comment = f" The user says: {escape_invisible(decision.comment)[0]}" if decision.comment else ""
        if decision.answer in {PlanAnswer.REVISE, PlanAnswer.REFUSE}:
            return False, (_REVISE if decision.answer is PlanAnswer.REVISE else _REFUSED) + comment + stored
        self.active = False
        text = _APPROVED
        if decision.answer is PlanAnswer.ACCEPT_EDITS:
            self.on_accept_edits()
            text += _EDITS_ACCEPTED
        return True, text + comment + stored


class _PlanCard(CardWrapper):
    def __init__(self, inner: Capability, mode: PlanMode) -> None:
        super().__init__(inner)
        self.mode = mode

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Enter plan mode, or present the plan and leave plan mode if it's approved."""
        result = await self.inner.run(arguments, ctx)
        if result.is_error:
            return result
        if self.name == ENTER:
            applied, text = True, _ENTERED
            self.mode.active = True
        else:
            applied, text = await self.mode.present_plan(str(result.details.get("plan", "")))
        mark = {**result.details, "applied": applied}
        return ToolResult((JsonContentBlock(mark), TextContentBlock(text)), details=mark)
