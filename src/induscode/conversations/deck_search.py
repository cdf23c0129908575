"""Search in the deck of a session: cards that its model is not listed are found, and called by their own names.

A model whose provider searches by itself gets the hidden cards as deferred ones, with our search behind it; every other
model gets the three search cards.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from anyio import to_thread

from induscode.calls.record import find_tool_ref
from induscode.deck.contract import describe
from induscode.deck.provision import DeckRunner, DeckToolBox
from induscode.search.background import BackgroundIndex
from induscode.search.cards import build_search_cards, resolve_call
from induscode.search.finder import ToolFinder

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from indusagi.runtime.contract import ToolCall, ToolDescriptor
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.provision import ToolDeck
    from induscode.search.finder import SearchReport


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
