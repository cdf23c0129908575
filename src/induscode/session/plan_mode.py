"""Plan mode: only read-only tools run until a plan is approved.

The two cards of plan mode return marks. The session acts on them here: it stores the mode, which the permissions read
at every call, stores the plan, and decides whether plan mode ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolResult
from induscode.deck.contract import CardWrapper, is_foreign

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonValue
    from induscode.deck.contract import Capability

ENTER, EXIT = "enter_plan_mode", "exit_plan_mode"
_ENTERED = (
    "Plan mode is on: whatever changes something is refused until a plan is approved. Look around, "
    "and when you know what to do, present it with exit_plan_mode."
)
_NOT_ON = "Plan mode was not on: nothing has changed."
_APPROVED = "The plan is approved and plan mode is off. Go ahead."
_UNAPPROVED = (
    "Nobody is there to approve the plan: plan mode stays on. Change nothing, and end with the plan as your answer."
)


class PlanMode:
    """Plan mode of one session, initially off."""

    def __init__(self, *, approves: bool) -> None:
        """Create the mode; `approves` says whether the user has approved changes in advance.

        Then a plan is approved as soon as it is presented. Otherwise plan mode stays on to the end of the run.
        """
        self.active = False
        self.folder: str | None = None
        """Directory for plans, one file each; None if plans are not stored."""
        self._approves = approves

    def wrap(self, card: Capability) -> Capability:
        """Wrap a card of plan mode so that its marks take effect; for `map_capabilities`."""
        if card.name not in {ENTER, EXIT} or is_foreign(card):
            return card
        return _PlanCard(card, self)

    async def store_plan(self, plan: str) -> str:
        """Store a plan, and say where in a sentence."""
        from induscode.deck.cards.plan import write_plan  # noqa: PLC0415 — cards are loaded late

        if self.folder is None:
            return ""
        try:
            return f" It is kept in {await to_thread.run_sync(write_plan, self.folder, plan)}."
        except OSError as exc:
            return f" It could not be kept: {exc}."

    def try_exit(self) -> bool:
        """End plan mode if that is approved; tell whether it is off."""
        self.active = self.active and not self._approves
        return not self.active


class _PlanCard(CardWrapper):
    def __init__(self, inner: Capability, mode: PlanMode) -> None:
        super().__init__(inner)
        self.mode = mode

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Enter plan mode, or store the plan and leave plan mode if the plan is approved."""
        result = await self.inner.run(arguments, ctx)
        if result.is_error:
            return result
        if self.name == ENTER:
            applied, text = True, _ENTERED
            self.mode.active = True
        else:
            stored = await self.mode.store_plan(str(result.details.get("plan", "")))
            was_active = self.mode.active
            applied = was_active and self.mode.try_exit()
            text = (_NOT_ON if not was_active else _APPROVED if applied else _UNAPPROVED) + stored
        mark = {**result.details, "applied": applied}
        return ToolResult((JsonContentBlock(mark), TextContentBlock(text)), details=mark)
