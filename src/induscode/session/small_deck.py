"""Deck of a model with a small context window: its cards take at most a quarter of the window.

The cards that most work needs come first, then the tools of servers and addons, then all other native cards if there is
room for all of them. The model is told in its system prompt what was left out, and the person by a note.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.faults import Note
from indusagi.core.json import compact_json
from induscode.boot.runners import canon_tool_name
from induscode.deck.catalog import has_capability
from induscode.deck.contract import describe
from induscode.deck.provision import ToolDeck
from induscode.session.compaction import estimate_tokens
from induscode.session.prompt import list_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from induscode.deck.contract import Capability

SMALL_WINDOW = 32_768
"""The largest context window in tokens for which cards are left out."""
SHARE = 4
"""The cards take at most this part of the window: one quarter."""
ESSENTIAL_CARDS = ("read", "grep", "edit", "write", "ls", "bash", "task")


class DeckLimit:
    """Limits the cards of a session to what the context window of its model has room for.

    Args:
        model: The name of the model for the note.
        window: Its context window in tokens; None if it is unknown, and nothing is left out.
        named: Native tools that the person has named: they are never left out.
    """

    def __init__(self, model: str, window: int | None, named: Iterable[str] = ()) -> None:
        self.model = model
        self.window = window
        self.left_out: Sequence[str] = ()
        """Names of the cards that the last deck lacks."""
        self._named = {canon_tool_name(name) for name in named}

    def fit(self, deck: ToolDeck) -> ToolDeck:
        """Leave out the cards that the window has no room for, with a note."""
        self.left_out = ()
        if self.window is None or self.window > SMALL_WINDOW:
            return deck
        cards = deck.tools()
        named = [card for card in cards if canon_tool_name(card.name) in self._named]
        others = [card for card in cards if card not in named]
        essential = [card for name in ESSENTIAL_CARDS for card in others if card.name == name]
        foreign = [card for card in others if not has_capability(card.name)]
        rest = [card for card in others if card not in essential and card not in foreign]
        room = self.window // SHARE - sum(map(estimate_card, named))
        kept = {card.name for card in named}
        for card in (*essential, *foreign):
            if (size := estimate_card(card)) <= room:
                kept.add(card.name)
                room -= size
        if len(kept) == len(cards) - len(rest) and sum(map(estimate_card, rest)) <= room:
            return deck
        self.left_out = tuple(card.name for card in cards if card.name not in kept)
        note = Note(
            f"model {self.model}",
            f"reads {self.window:,} tokens, so these tools are left out: {list_names(self.left_out)}",
            "--tools names the native tools to keep, exclude_tools of a server those to drop",
        )
        return ToolDeck((card for card in cards if card.name in kept), deck.context, (*deck.notes, note))


def estimate_card(card: Capability) -> int:
    """Estimate the tokens of a card's definition."""
    descriptor = describe(card)
    definition = (descriptor.name, descriptor.description, compact_json(descriptor.parameters))
    return sum(map(estimate_tokens, definition))
