"""Cards behind the runtime's contract: the box that a loop, a command or a gateway calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.registry import RegistryRunner
from indusagi.capabilities.tool import make_result
from indusagi.core.cancel import CancelToken
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonValue
from indusagi.runtime.content import project_content
from indusagi.runtime.contract import ProgressSink, ToolCall, ToolDescriptor, ToolOutcome, ToolResult
from induscode.deck.around import is_foreign
from induscode.deck.contract import Capability, describe


class DeckRunner:
    """Finds the card of a call and runs it in the deck's one context."""

    def __init__(self, cards: Mapping[str, Capability], context: ToolContext) -> None:
        self.cards = cards
        self.context = context
        runs = {name: _Run(name, card) for name, card in cards.items()}
        foreign = frozenset(name for name, card in cards.items() if is_foreign(card))
        self._kernel = RegistryRunner(runs, context, foreign)

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run one call; an unknown tool, and a card that breaks, are error outcomes."""
        return await self._kernel.run(call, cancel, on_progress=on_progress)


@dataclass(frozen=True, slots=True)
class _Run:
    """A card whose failures are answers."""

    name: str
    card: Capability

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        try:
            return _check_answer(self.name, await self.card.run(arguments, ctx))
        except Exception as exc:  # noqa: BLE001 — boundary: a card may be anybody's
            said = f"{self.name} failed: {type(exc).__name__}: {describe_error(exc)}"
            return ToolResult.error(said, code="failed")


def _check_answer(name: str, answer: object) -> ToolResult:
    """Make a result of what a card returned, which may be anything at all."""
    if answer is None:
        return ToolResult.error(f"{name} gave no result", code="bad_result")
    return make_result(name, answer)


@dataclass(frozen=True, slots=True)
class DeckToolBox:
    """The cards of a deck, as they were when the box was made."""

    runner: DeckRunner

    @property
    def context(self) -> ToolContext:
        """What every card runs in; close it when the session ends."""
        return self.runner.context

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the cards in the order of the deck."""
        return tuple(describe(card) for card in self.runner.cards.values())


def project_result(result: ToolResult) -> JsonValue:
    """Fold a result into one value: a lone text or JSON block itself, everything else a list."""
    return project_content(result.content)
