"""The toolbox of a gateway whose tools are searched: three tools are listed, and all others are found.

Every tool stays callable by its own name. Which tools there are, and what a call may do, is decided by the box behind
it: the gateway's own, or that of a view.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.records import record
from induscode.code_mode.contract import RUN_CODE
from induscode.deck.provision import DeckRunner
from induscode.search.cards import build_search_cards, resolve_call
from induscode.search.finder import ToolFinder
from induscode.search.options import DESCRIBE_TOOLS, FIND_TOOLS, SEARCH_CARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from indusagi.core.cancel import CancelToken
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from indusagi.runtime.contract import ProgressSink, ToolCall, ToolDescriptor, ToolOutcome
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.gateway.view_box import SearchableBox
    from induscode.search.finder import SearchReport
    from induscode.search.index import ToolIndex
    from induscode.search.options import SearchOptions


@record
class _SearchedTools:
    """The tools of a box, without those whose names the search cards have."""

    box: SearchableBox

    def descriptors(self) -> Sequence[ToolDescriptor]:
        return [tool for tool in self.box.descriptors() if tool.name not in SEARCH_CARDS]

    def find_ref(self, name: str) -> RemoteToolRef | None:
        return self.box.find_ref(name)

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        return self.box.find_denied(names)

    def list_disabled(self) -> Sequence[DisabledTool]:
        return self.box.list_disabled()


def select_listed(tools: Iterable[ToolDescriptor], options: SearchOptions) -> Sequence[ToolDescriptor]:
    """Select the tools that clients are listed beside the search cards."""
    # A person who asks for scripts wants models to see that they can write one.
    return [tool for tool in tools if tool.name == RUN_CODE or options.lists(tool.name)]


class SearchBox:
    """A toolbox with the three search cards in front of another one."""

    def __init__(
        self,
        box: SearchableBox,
        options: SearchOptions,
        open_index: Callable[[], ToolIndex],
        on_search: Callable[[SearchReport], None] | None = None,
    ) -> None:
        self.box = box
        self.finder = finder = ToolFinder(_SearchedTools(box), open_index, on_search)
        cards = {card.name: card for card in build_search_cards(finder)}
        self._cards = DeckRunner(cards, box.context)
        listed = select_listed(finder.tools.values(), options)
        self._descriptors = (*(card.descriptor for card in cards.values()), *listed)

    @property
    def runner(self) -> SearchBox:
        """The runner of the calls: this object."""
        return self

    def descriptors(self) -> Sequence[ToolDescriptor]:
        """List the search cards and the tools that stay listed."""
        return self._descriptors

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: ProgressSink | None = None
    ) -> ToolOutcome:
        """Run a search, or the call of a tool by its own name."""
        call = self.resolve_call(call)
        if call.name in SEARCH_CARDS:
            return await self._cards.run(call, cancel)
        return await self.box.run(call, cancel, on_progress=on_progress)

    def resolve_call(self, call: ToolCall) -> ToolCall:
        """Return the call that `call_tool` stands for."""
        return resolve_call(
            call,
            lambda name: name in SEARCH_CARDS or self.answers_unlisted(name),
            self.finder.tools,
            lambda: [tool.name for tool in self.box.list_disabled()],
        )

    def is_listing(self, name: str) -> bool:
        """Tell whether a tool only lists other tools."""
        return name in {FIND_TOOLS, DESCRIBE_TOOLS}

    def suggest_names(self, name: str) -> Sequence[str]:
        """List the names that are nearest to an unknown one."""
        return self.finder.suggest(name)

    def answers_unlisted(self, name: str) -> bool:
        """Tell whether there is a tool of this name, or a disabled one."""
        return name in self.finder.tools or self.box.answers_unlisted(name)

    def forwards_input(self, name: str) -> bool:
        """Tell whether a tool belongs to a server."""
        return self.box.forwards_input(name)

    def find_server(self, name: str) -> str | None:
        """Find the server of a tool."""
        return self.box.find_server(name)
