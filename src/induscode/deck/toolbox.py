"""Cards behind the runtime's contract: the box that a loop, a command or a gateway calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.registry import RegistryRunner
from indusagi.core.json import JsonValue
from indusagi.runtime.content import project_content
from indusagi.runtime.contract import ToolDescriptor, ToolResult
from induscode.deck.around import is_foreign
from induscode.deck.contract import Capability, describe


class DeckRunner(RegistryRunner):
    """Runs the card that a call names, in the deck's one context."""

    def __init__(self, cards: Mapping[str, Capability], context: ToolContext) -> None:
        super().__init__(cards, context, frozenset(name for name, card in cards.items() if is_foreign(card)))
        self.cards = cards


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
