"""A gateway's toolbox with search: it lists three search tools, which find all others.

Every tool stays callable by name. The box behind it (the gateway's or a view's) decides which tools exist and which
calls may run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from induscode.code_mode.contract import RUN_CODE
from induscode.deck.layers import ToolBoxLayer
from induscode.deck.provision import DeckRunner
from induscode.search.cards import ToolFinder, build_search_cards, resolve_call
from induscode.search.options import DESCRIBE_TOOLS, FIND_TOOLS, SEARCH_CARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.runtime.contract import ProgressSink, ToolCall, ToolDescriptor, ToolOutcome
    from induscode.deck.layers import ServedBox
    from induscode.search.cards import SearchReport
    from induscode.search.index import ToolIndex
    from induscode.search.options import SearchOptions


class _SearchedTools(ToolBoxLayer):
    """The tools of a box, minus any that share a name with a search card."""

    def descriptors(self) -> Sequence[ToolDescriptor]:
        return [tool for tool in self.box.descriptors() if tool.name not in SEARCH_CARDS]


def select_listed(tools: Iterable[ToolDescriptor], options: SearchOptions) -> Sequence[ToolDescriptor]:
    """Select the tools listed next to the search cards."""
    # A user who enables scripts wants models to see that they can write one.
    return [tool for tool in tools if tool.name == RUN_CODE or options.lists(tool.name)]


class SearchBox(ToolBoxLayer):
    """Three search cards in front of another toolbox."""

    def __init__(
        self,
        box: ServedBox,
        options: SearchOptions,
        open_index: Callable[[], ToolIndex],
        on_search: Callable[[SearchReport], None] | None = None,
    ) -> None:
        super().__init__(box)
        self.finder = finder = ToolFinder(_SearchedTools(box), open_index, on_search)
        cards = {card.name: card for card in build_search_cards(finder)}
        self._cards = DeckRunner(cards, box.context)
        listed = select_listed(finder.tools.values(), options)
        self._descriptors = (*(card.descriptor for card in cards.values()), *listed)

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the search cards and the tools that stay listed."""
        return self._descriptors

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run a search, or call a tool by name."""
        call = self.resolve_call(call)
        if call.name in SEARCH_CARDS:
            return await self._cards.run(call, cancel)
        return await self.box.run(call, cancel, on_progress=on_progress)

    def resolve_call(self, call: ToolCall) -> ToolCall:
        """Return the call wrapped in `call_tool`."""
        return resolve_call(
            call,
            lambda name: name in SEARCH_CARDS or self.answers_unlisted(name),
            self.finder.tools,
            lambda: [tool.name for tool in self.box.list_disabled()],
        )

    def is_listing(self, name: str) -> bool:
        """Return whether a tool only lists other tools."""
        return name in {FIND_TOOLS, DESCRIBE_TOOLS}

    def suggest_names(self, name: str) -> Sequence[str]:
        """List the names closest to an unknown one."""
        return self.finder.suggest(name)

    def answers_unlisted(self, name: str) -> bool:
        """Return whether a tool of this name exists, even if disabled."""
        return name in self.finder.tools or self.box.answers_unlisted(name)
