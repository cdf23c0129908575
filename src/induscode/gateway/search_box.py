"""A gateway's toolbox with search: it lists three search tools, which find all others.

Every tool stays callable by name. The box behind it (the gateway's or a view's) decides which tools exist and which
calls may run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, TypeAlias

from indusagi.capabilities.registry import ToolRegistry
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from induscode.cli.terminal import print_status
from induscode.code_mode.contract import RUN_CODE
from induscode.deck.provision import DeckRunner, ServedBox, ToolBoxLayer
from induscode.launch.settings import TOOL_SEARCH_ALWAYS_LIST, Settings
from induscode.search.options import DESCRIBE_TOOLS, FIND_TOOLS, SEARCH_CARDS, SearchOptions

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from indusagi.core.faults import Note
    from indusagi.runtime.contract import ProgressSink, ToolBox, ToolCall, ToolDescriptor, ToolOutcome
    from induscode.search.background import BackgroundIndex
    from induscode.search.cards import SearchReport
    from induscode.search.index import ToolIndex

BoxSource: TypeAlias = Callable[[], ServedBox | None]


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
        from induscode.search.cards import ToolFinder, build_search_cards, resolve_call  # noqa: PLC0415 — for a list that is searched

        super().__init__(box)
        self._resolve_call = resolve_call
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
        return self._resolve_call(
            call,
            lambda name: name in SEARCH_CARDS or self.answers_unlisted(name),
            self.finder.tools,
            lambda: [tool.name for tool in self.box.list_disabled()],
        )

    def find_denied(self, names: Collection[str]) -> Collection[str]:
        """Return the tools that the caller may never call. Searching counts as listing."""
        return self.box.find_denied([name for name in names if name not in SEARCH_CARDS])

    def is_listing(self, name: str) -> bool:
        """Return whether a tool only lists other tools."""
        return name in {FIND_TOOLS, DESCRIBE_TOOLS}

    def suggest_names(self, name: str) -> Sequence[str]:
        """List the names closest to an unknown one."""
        return self.finder.suggest(name)

    def answers_unlisted(self, name: str) -> bool:
        """Return whether a tool of this name exists, even if disabled."""
        return name in self.finder.tools or self.box.answers_unlisted(name)


NO_TOOLS = ToolRegistry().to_tool_box(make_inert_context())
"""Served until the servers are known."""


def serve_current(source: BoxSource) -> Callable[[], ToolBox]:
    """Return a function that returns the current box of `source`."""
    return lambda: source() or NO_TOOLS


def report_idle_patterns(options: SearchOptions, settings: Settings, names: Collection[str]) -> None:
    """Print `--always-list` patterns that match no tool, unless they come from the settings, which suit any servers."""
    for pattern in options.find_idle_patterns(names):
        if options.mode == "off" or pattern in settings.get(TOOL_SEARCH_ALWAYS_LIST):
            continue
        print_status(f"--always-list {pattern!r}: no tool is called so (indus tools lists the names)")


class SearchedBoxes:
    """The search boxes of a gateway: one for clients without a view, and one per view.

    With `auto`, a box that was searched once stays so: its list must not flip back while servers come and go. The
    modules of the search load with the first searched box, so a gateway with few tools never loads them.
    """

    def __init__(
        self,
        options: SearchOptions,
        on_note: Callable[[Note], None] = lambda _: None,
        on_search: Callable[[SearchReport], None] | None = None,
    ) -> None:
        self._options, self._on_note, self._on_search = options, on_note, on_search
        self._indexes: list[BackgroundIndex] = []

    def wrap(self, source: BoxSource) -> Callable[[], ToolBox]:
        """Return a function that returns the current box of `source`, behind a search where that applies."""
        if self._options.mode == "off":
            return serve_current(source)
        is_searched = False
        known: tuple[ServedBox, ToolBox] | None = None
        index: BackgroundIndex | None = None

        def find_box() -> ToolBox:
            nonlocal is_searched, known, index
            box = source()
            if box is None:
                return NO_TOOLS
            if known is not None and known[0] is box:
                return known[1]
            is_searched = is_searched or self._options.applies_to(box.descriptors())
            searched: ToolBox = box
            if is_searched:
                if index is None:
                    from induscode.search.background import BackgroundIndex  # noqa: PLC0415 — for a list that is searched

                    index = BackgroundIndex(report=self._on_note)
                    self._indexes.append(index)
                searched = search = SearchBox(box, self._options, index.open, self._on_search)
                index.fill_soon(search.finder.fill_index)
            known = box, searched
            return searched

        return find_box

    async def aclose(self) -> None:
        """Close the indexes and end their threads."""
        for index in self._indexes:
            await index.aclose()
