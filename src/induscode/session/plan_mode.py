"""Plan mode: a session that may only look until its plan is approved.

The two cards of plan mode answer with marks. Here the session acts upon them: it remembers the
mode, which its gate asks for at every call, keeps the plan, and decides about the way out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.runtime.content import JsonContentBlock, TextContentBlock
from indusagi.runtime.contract import ToolResult
from induscode.deck.around import AroundCard, is_foreign

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
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
    """Whether a session is in plan mode, and what becomes of its plans."""

    def __init__(self, *, approves: bool) -> None:
        """Begin outside of it.

        Args:
            approves: Whether a plan is approved as soon as it is presented, because whoever started
                the session has said yes to changes beforehand. Else there is nobody to approve it.
        """
        self.active = False
        self.folder: str | None = None
        """Where plans are kept, each in a file of its own; nowhere if that is not known."""
        self._approves = approves

    def is_active(self) -> bool:
        """Tell it to the gate."""
        return self.active

    def around(self, card: Capability) -> Capability:
        """Act upon the marks of a card, if it is one of plan mode; for `map_capabilities`."""
        if card.name not in {ENTER, EXIT} or is_foreign(card):
            return card
        return _Enter(card, self) if card.name == ENTER else _Exit(card, self)

    async def keep(self, plan: str) -> str:
        """Keep a plan, and say where."""
        from induscode.deck.cards.plan import write_plan  # noqa: PLC0415 — cards are loaded late

        if self.folder is None:
            return ""
        try:
            return f" It is kept in {await to_thread.run_sync(write_plan, self.folder, plan)}."
        except OSError as exc:
            return f" It could not be kept: {exc}."

    def leave(self) -> bool:
        """Leave it, if that is approved."""
        self.active = self.active and not self._approves
        return not self.active


class _PlanCard(AroundCard):
    def __init__(self, inner: Capability, mode: PlanMode) -> None:
        super().__init__(inner)
        self.mode = mode


class _Enter(_PlanCard):
    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Enter plan mode."""
        result = await self.inner.run(arguments, ctx)
        if result.is_error:
            return result
        self.mode.active = True
        return _marked({**result.details, "applied": True}, _ENTERED)


class _Exit(_PlanCard):
    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Keep the plan, and leave plan mode if it is approved."""
        result = await self.inner.run(arguments, ctx)
        if result.is_error:
            return result
        kept = await self.mode.keep(str(result.details.get("plan", "")))
        if not self.mode.active:
            return _marked({**result.details, "applied": False}, _NOT_ON + kept)
        left = self.mode.leave()
        said = _APPROVED if left else _UNAPPROVED
        return _marked({**result.details, "applied": left}, said + kept)


def _marked(mark: JsonObject, said: str) -> ToolResult:
    return ToolResult((JsonContentBlock(mark), TextContentBlock(said)), details=mark)
