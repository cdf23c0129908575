"""A gateway's search boxes: which toolboxes get a search, and their indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.capabilities.registry import ToolRegistry
from indusagi.interop.protocol_bridge.bridge import make_inert_context
from induscode.cli.terminal import print_status
from induscode.launch.settings import TOOL_SEARCH_ALWAYS_LIST

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from typing import TypeAlias

    from indusagi.core.faults import Note
    from indusagi.runtime.contract import ToolBox
    from induscode.deck.layers import ServedBox
    from induscode.launch.settings import Settings
    from induscode.search.background import BackgroundIndex
    from induscode.search.cards import SearchReport
    from induscode.search.options import SearchOptions

    BoxSource: TypeAlias = Callable[[], ServedBox | None]


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
    search modules load with the first searched box, so a gateway with few tools never loads them.
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
                from induscode.gateway.search_box import SearchBox  # noqa: PLC0415 — imports the index

                index = index or self._open_index()
                searched = search = SearchBox(box, self._options, index.open, self._on_search)
                index.fill_soon(search.finder.fill_index)
            known = box, searched
            return searched

        return find_box

    def _open_index(self) -> BackgroundIndex:
        from induscode.search.background import BackgroundIndex  # noqa: PLC0415 — for a list that is searched

        index = BackgroundIndex(report=self._on_note)
        self._indexes.append(index)
        return index

    async def aclose(self) -> None:
        """Close the indexes and end their threads."""
        for index in self._indexes:
            await index.aclose()
