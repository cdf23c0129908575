"""Deck limit: which cards a model is listed, where its deck takes too much of its context window.

Cards that are not listed are found by search, and stay callable. A large deck is searched above the limits of
`SearchOptions`: then the native cards are listed, and the tools of servers and addons are found. In a small window
cards are shown in their lean form, and the listed ones take at most a quarter: the essential ones come first, then the
tools of servers and addons if there is room for all of them, then all other native cards if there is room for all of
them. Where search is off, a small window loses the rest: the model is told in its system prompt what was left out, and
the person by a note.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.faults import Note
from induscode.boot.plans import canon_tool_name
from induscode.calls.record import find_tool_ref
from induscode.code_mode.contract import RUN_CODE
from induscode.conversations.prompt import list_names
from induscode.deck.catalog import has_capability
from induscode.deck.contract import SECOND_NAMES, LeanCard, describe
from induscode.deck.provision import DeckRunner, DeckToolBox, ToolDeck
from induscode.search.background import BackgroundIndex
from induscode.search.cards import build_search_cards, resolve_call
from induscode.search.finder import ToolFinder
from induscode.search.options import SearchOptions, estimate_definition, read_search_options

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from indusagi.runtime.contract import ToolCall, ToolDescriptor
    from induscode.conversations.models import ModelChoice
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.launch.invocation import Invocation
    from induscode.search.finder import SearchReport

SMALL_WINDOW = 32_768
"""The largest context window in tokens in which listed cards have a quarter of the room."""
SHARE = 4
LEAST_SEARCHED = 4_096
"""The smallest window with search: in a smaller one the search cards would take the place of others."""
ESSENTIAL_CARDS = ("read", "grep", "edit", "write", "ls", "bash", "task")


class DeckLimit:
    """Limits the listed cards of a session to what the context window of its model has room for.

    Args:
        model: The name of the model for the note.
        window: Its context window in tokens; None if it is unknown.
        named: Native tools that the person has named: they are always listed.
        search: When cards are searched, and which stay listed.
    """

    def __init__(
        self, model: str, window: int | None, named: Iterable[str] = (), search: SearchOptions | None = None
    ) -> None:
        self._named = {canon_tool_name(name) for name in named}
        self._search = search or SearchOptions()
        self.set_model(model, window)

    def set_model(self, model: str, window: int | None) -> None:
        """Set the model that the next deck is for."""
        self.model, self.window = model, window
        self.left_out: Sequence[str] = ()
        """Names of the cards that the last deck lacks."""
        self._is_searched = False

    def fit(self, deck: ToolDeck) -> ToolDeck:
        """Hide the cards that are found by search, or leave them out with a note where there is no search."""
        self.left_out = ()
        is_small = self.window is not None and self.window <= SMALL_WINDOW
        if is_small:
            lean = (card.lean if isinstance(card, LeanCard) else card for card in deck.tools())
            deck = ToolDeck(lean, deck.context, deck.notes)
        cards = deck.shown()
        can_search = self._search.mode != "off" and (self.window is None or self.window >= LEAST_SEARCHED)
        listed = self._select_small(cards, can_search=can_search) if is_small else None
        if listed is None and can_search and self._is_large(cards):
            listed = {card.name for card in cards if has_capability(card.name) or self._is_kept(card)}
        if listed is None or len(listed) == len(cards):
            return deck
        rest = tuple(card.name for card in cards if card.name not in listed)
        if can_search:
            return deck.hide(rest)
        self.left_out = rest
        note = Note(
            f"model {self.model}",
            f"reads {self.window:,} tokens, so these tools are left out: {list_names(rest)}",
            "--tools names the native tools to keep, exclude_tools of a server those to drop",
        )
        kept = (card for card in deck.tools() if {card.name, SECOND_NAMES.get(card.name)} & listed)
        return ToolDeck(kept, deck.context, (*deck.notes, note))

    def _is_large(self, cards: Sequence[Capability]) -> bool:
        """Tell whether the deck is searched; once it was, it stays so: the list of the model must not change back."""
        searched = self._is_searched or self._search.applies_to([*map(describe, cards)], self.window)
        self._is_searched = searched
        return searched

    def _is_kept(self, card: Capability) -> bool:
        if card.name == RUN_CODE:  # a person who asks for scripts wants the model to see that it can write one
            return True
        return canon_tool_name(card.name) in self._named or self._search.lists(card.name)

    def _select_small(self, cards: Sequence[Capability], *, can_search: bool) -> set[str] | None:
        """Select the cards that a small window has room for; None if it has room for all."""
        kept = [card for card in cards if self._is_kept(card)]
        others = [card for card in cards if card not in kept]
        essential = [card for name in ESSENTIAL_CARDS for card in others if card.name == name]
        foreign = [card for card in others if not has_capability(card.name)]
        rest = [card for card in others if card not in essential and card not in foreign]
        room = (self.window or 0) // SHARE - sum(map(_estimate_card, kept))
        listed = {card.name for card in kept}
        for card in essential:
            if (size := _estimate_card(card)) <= room:
                listed.add(card.name)
                room -= size
        fits = sum(map(_estimate_card, foreign)) <= room
        for card in foreign if fits or not can_search else ():  # of a part a model would choose instead of searching
            if (size := _estimate_card(card)) <= room:
                listed.add(card.name)
                room -= size
        if len(listed) == len(cards) - len(rest) and sum(map(_estimate_card, rest)) <= room:
            return None
        return listed


def build_deck_limit(choice: ModelChoice, invocation: Invocation) -> DeckLimit:
    """Build the limit for a model, with the tools that the invocation names and the search of its settings."""
    options = read_search_options(invocation.settings)
    return DeckLimit(choice.label, choice.context_window, invocation.tools or (), options)


def _estimate_card(card: Capability) -> int:
    return estimate_definition(describe(card))


# -- deck search ------------------------------------------------------------------------------
#
# A model whose provider searches by itself gets the hidden cards as deferred ones, with our search behind it; every
# other model gets the three search cards.


class DeckSearch:
    """Makes the toolboxes of one session or sub-session, with search where cards are hidden.

    Args:
        bridge: The servers, whose journal records each search; None if there are none.
    """

    def __init__(self, bridge: BootedBridge | None = None) -> None:
        self.bridge = bridge
        self._index = BackgroundIndex()
        self._is_opened = False

    def open_box(self, deck: ToolDeck, context: ToolContext | None = None) -> DeckToolBox:
        """Make the toolbox of a deck, in the deck's context or another one."""
        context = context or deck.context
        cards = {card.name: card for card in deck.tools()}
        if not deck.hidden:
            return DeckToolBox(DeckRunner(cards, context))
        disabled = () if self.bridge is None else self.bridge.disabled
        found = {card.name: card for card in deck.shown()}
        finder = ToolFinder(_SearchedDeck(found, context, disabled), self._index.open, self._record)
        if not self._is_opened:  # each later box is indexed by its first search
            self._index.fill_soon(finder.fill_index)
            self._is_opened = True

        async def find(queries: Sequence[str]) -> Sequence[str]:
            report = await to_thread.run_sync(finder.find, queries)
            self._record(report)
            return report.found

        search: dict[str, Capability] = {card.name: card for card in build_search_cards(finder)}
        return DeckToolBox(
            DeckRunner({**search, **cards}, context), deck.hidden, find, {tool.name for tool in disabled}
        )

    def _record(self, report: SearchReport) -> None:
        if self.bridge is not None:
            self.bridge.journal.record_search(report.queries, report.server, report.found, report.left_out)

    async def aclose(self) -> None:
        """Free the index, and end its thread."""
        await self._index.aclose()


class _SearchedDeck:
    """The cards of a deck as a source of a finder."""

    def __init__(self, cards: dict[str, Capability], context: ToolContext, disabled: Sequence[DisabledTool]) -> None:
        self._cards, self._context, self._disabled = cards, context, disabled

    def descriptors(self) -> Sequence[ToolDescriptor]:
        return [describe(card) for card in self._cards.values()]

    def find_ref(self, name: str) -> RemoteToolRef | None:
        return find_tool_ref(self._cards.get(name))

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        return find_denied_cards(self._cards, self._context, names)

    def list_disabled(self) -> Sequence[DisabledTool]:
        return [tool for tool in self._disabled if tool.ref.kind == "tool"]


def find_denied_cards(cards: Mapping[str, Capability], context: ToolContext, names: Collection[str]) -> Collection[str]:
    """Tell which of these names belong to cards that a rule denies to the caller of this task."""
    from induscode.permissions.check import is_denied  # noqa: PLC0415 — loads the table of programs

    workspace = os.path.realpath(context.cwd)
    return {name for name in names if name in cards and is_denied(cards[name], workspace)}


def find_denied_tools(box: DeckToolBox, names: Collection[str]) -> Collection[str]:
    """Tell which of these names belong to tools of a box that a rule denies to the caller of this task."""
    return find_denied_cards(box.runner.cards, box.context, names)


def resolve_deck_call(box: DeckToolBox, call: ToolCall) -> ToolCall:
    """Return the call that a call of `call_tool` stands for, where cards are hidden."""
    if not box.hidden:
        return call
    return resolve_call(call, box.runner.cards.__contains__, box.runner.cards, lambda: box.disabled)


def list_shown_names(deck: ToolDeck) -> list[str]:
    """List the names of the cards that the model of a deck is shown."""
    return [card.name for card in deck.shown() if card.name not in deck.hidden]
