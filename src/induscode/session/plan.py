"""One question to a model, and everything around it: what a loop is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.toolbox import DeckToolBox
    from induscode.session.events import Sink


@dataclass(slots=True)
class RequestBudget:
    """How many requests a run may still make; those of its sub-sessions count too."""

    limit: int
    used: int = 0

    @property
    def left(self) -> int:
        """Give the number that is left."""
        return max(0, self.limit - self.used)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """One question to a model, and everything around it."""

    box: Callable[[], DeckToolBox]
    """Gives the deck as it is; asked at every step."""
    briefing: Callable[[], str]
    cancel: CancelToken
    budget: RequestBudget
    history: Sequence[JsonObject]
    sink: Sink
    on_turn: Callable[[Sequence[ToolDescriptor]], Awaitable[None]]
    """Told what the model is shown, before every request."""
    on_message: Callable[[JsonObject], Awaitable[None]]
    """Told every message, once it is complete."""
    time_s: float | None = None
