"""Deck limit: chooses the cards to list if a deck takes up too much of the model's context window.

Unlisted cards stay callable, and search finds them. Above the limits of `SearchOptions`, the model sees native cards
only and finds the tools of servers and addons by search. In a small window, cards use their lean form, and listed ones
get at most a quarter of it: essential cards first, then the tools of servers and addons if all of them fit, then the
other native cards if all of them fit. With search off, a small window loses the rest. The system prompt tells the model
which ones, and a note tells the user.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.core.faults import Note
from indusagi.core.protocols import offers
from induscode.boot.plans import canon_tool_name
from induscode.calls.record import find_tool_ref
from induscode.code_mode.contract import RUN_CODE
from induscode.conversations.prompt import list_names
from induscode.deck.catalog import has_capability
from induscode.deck.contract import SECOND_NAMES, Capability, LeanCard, describe
from induscode.deck.provision import DeckRunner, DeckToolBox, ToolDeck
from induscode.search.background import BackgroundIndex
from induscode.search.cards import SearchReport, ToolFinder, build_search_cards, resolve_call
from induscode.search.options import SearchOptions, estimate_definition

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from indusagi.runtime.contract import ToolCall, ToolDescriptor
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.deck.mcp.drift import DisabledTool

SMALL_WINDOW = 32_768
"""The largest context window, in tokens, that limits listed cards to a quarter."""
SHARE = 4
LEAST_SEARCHED = 4_096
"""The smallest window with search. In smaller ones, the search cards would displace others."""
ESSENTIAL_CARDS = ("read", "grep", "edit", "write", "ls", "bash", "task")


class DeckLimit:
    """Limits a session's listed cards to fit the model's context window.

    The native tools that the user `named` are always listed. `search` says when to use search, and what stays listed.
    """

    def __init__(
        self, model: str, window: int | None, named: Iterable[str] = (), search: SearchOptions | None = None
    ) -> None:
        self.revision = 0
        """Counts the models: a deck fitted to an earlier one is outdated."""
        self._named = {canon_tool_name(name) for name in named}
        self._search = search or SearchOptions()
        self.set_model(model, window)

    def set_model(self, model: str, window: int | None) -> None:
        """Set the model for the next deck."""
        self.model, self.window = model, window
        self.revision += 1
        self.left_out: Sequence[str] = ()
        """Names of the cards missing from the last deck."""
        self._is_searched = False

    def fit(self, deck: ToolDeck) -> ToolDeck:
        """Hide unlisted cards for search to find, or drop them with a note if search is off."""
        self.left_out = ()
        is_small = self.window is not None and self.window <= SMALL_WINDOW
        if is_small:
            lean = (card.lean if offers(card, LeanCard) else card for card in deck.tools())
            deck = ToolDeck(lean, deck.context, deck.notes)
        cards = deck.shown()
        can_search = self._search.mode != "off" and (self.window is None or self.window >= LEAST_SEARCHED)
        listed = self._select_small(cards, can_search=can_search) if is_small else None
        if listed is None and can_search:
            # A deck that once needed search keeps it, so that the model's list is stable.
            self._is_searched = self._is_searched or self._search.applies_to([*map(describe, cards)], self.window)
        if listed is None and can_search and self._is_searched:
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

    def _is_kept(self, card: Capability) -> bool:
        if card.name == RUN_CODE:  # a user who turns scripts on wants the model to know about them
            return True
        return canon_tool_name(card.name) in self._named or self._search.lists(card.name)

    def _select_small(self, cards: Sequence[Capability], *, can_search: bool) -> set[str] | None:
        """Select the cards that fit a small window, or return `None` if all of them do."""
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
        for card in foreign if fits or not can_search else ():  # given only some, a model wouldn't search for others
            if (size := _estimate_card(card)) <= room:
                listed.add(card.name)
                room -= size
        if len(listed) == len(cards) - len(rest) and sum(map(_estimate_card, rest)) <= room:
            return None
        return listed


def _estimate_card(card: Capability) -> int:
    return estimate_definition(describe(card))


# -- deck search --------------------------------------------------------------------------------
#
# If the provider has its own search, the model gets hidden cards as deferred ones, backed by our search. Other models
# get the three search cards.


class DeckSearch:
    """Opens the toolboxes of a session or sub-session, with search if cards are hidden.

    The journal of the servers (`bridge`) records each search.
    """

    def __init__(self, bridge: BootedBridge | None = None) -> None:
        self.bridge = bridge
        self._index = BackgroundIndex()
        self._is_opened = False

    def open_box(self, deck: ToolDeck, context: ToolContext | None = None) -> DeckToolBox:
        """Open the toolbox of a deck, in the deck's context or another one."""
        if context is None and not deck.hidden:
            return deck.into_tool_box()
        context = context or deck.context
        cards = {card.name: card for card in deck.tools()}
        if not deck.hidden:
            return DeckToolBox(DeckRunner(cards, context))
        disabled = () if self.bridge is None else self.bridge.disabled
        found = {card.name: card for card in deck.shown()}
        finder = ToolFinder(_SearchedDeck(found, context, disabled), self._index.open, self._record)
        if not self._is_opened:  # the first search of a later box indexes it
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
        """Free the index and end its thread."""
        await self._index.aclose()


class _SearchedDeck:
    """The cards of a deck as a source for a finder."""

    def __init__(self, cards: dict[str, Capability], context: ToolContext, disabled: Sequence[DisabledTool]) -> None:
        self._cards, self._context, self._disabled = cards, context, disabled

    def descriptors(self) -> Sequence[ToolDescriptor]:
        return [describe(card) for card in self._cards.values()]

    def find_ref(self, name: str) -> RemoteToolRef | None:
        return find_tool_ref(self._cards.get(name))

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        return find_denied_tools(self._cards, self._context, names)

    def list_disabled(self) -> Sequence[DisabledTool]:
        return [tool for tool in self._disabled if tool.ref.kind == "tool"]


def find_denied_tools(cards: Mapping[str, Capability], context: ToolContext, names: Collection[str]) -> Collection[str]:
    """Return the names of cards that a rule denies the current caller."""
    from induscode.permissions.check import is_denied  # noqa: PLC0415 — loads the table of programs

    workspace = os.path.realpath(context.cwd)
    return {name for name in names if name in cards and is_denied(cards[name], workspace=workspace)}


def resolve_deck_call(box: DeckToolBox, call: ToolCall) -> ToolCall:
    """Resolve a call of `call_tool` to the actual call."""
    return resolve_call(call, box.runner.cards.__contains__, box.runner.cards, lambda: box.disabled)


def list_shown_names(deck: ToolDeck) -> list[str]:
    """List the names of a deck's listed cards."""
    return [card.name for card in deck.shown() if card.name not in deck.hidden]
