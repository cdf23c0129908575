"""Finder: searches a box's tools and describes them by name, where a list would be too long.

A finder serves one box and finds only callable tools: it hides tools that a rule denies to the caller, and names
disabled ones with the reason and the remedy. Each search is reported, for the ledger.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from indusagi.core.json import compact_json
from indusagi.core.records import record
from indusagi.core.text import cut_text, format_count
from indusagi.interop.protocol_bridge.host.catalog import build_tool_row
from induscode.search.index import FOUND, LONGEST_NAME, list_query_words, normalize_name
from induscode.search.items import build_tool_item, format_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.layers import ToolSource
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.search.index import ItemHit, ToolIndex
    from induscode.search.items import SearchItem

_SIGNATURE_CHARS: Final = 200
"""Per tool: five of them and the count of omitted ones take fewer than 300 tokens."""
_MAX_NAMED: Final = 3
"""Disabled tools and similar names per answer."""
_MAX_COMMAND_CHARS: Final = 160
_MAX_SERVERS: Final = 30
MOST_FOUND: Final = 20
"""Upper bound for a caller's limit."""
UNKNOWN: Final = "There is no tool named"
"""Start of an answer about an unknown name."""
NEAREST: Final = "The nearest:"
"""End of the first line of an answer that similar names follow."""
_NO_LIMIT: Final = 1_000_000
_MAX_ECHO_CHARS: Final = 100
"""Characters of the caller's name or server that an answer repeats."""
_GOOD_SHARE: Final = 0.6
"""Fraction of the best score from which the named server's tools are good enough."""


@record
class SearchReport:
    """One search with its results."""

    queries: Sequence[str]
    server: str | None
    found: Sequence[str]
    left_out: int
    """Number of further matches."""
    text: str = ""
    """The answer: one line per tool, and the number of omitted ones."""


class UnknownServerError(ValueError):
    """A search names a server without tools. The message lists the servers that have some."""


class ToolFinder:
    """Finds and describes the tools that a source has at the start. Its methods block, and may run in any thread.

    The index is shared by successive sources, so only changes are reindexed. `on_search` receives each search, in the
    event loop.
    """

    def __init__(
        self,
        source: ToolSource,
        open_index: Callable[[], ToolIndex],
        on_search: Callable[[SearchReport], None] | None = None,
    ) -> None:
        self._source = source
        self._open_index = open_index
        self.on_search = on_search
        self.tools: Mapping[str, ToolDescriptor] = {tool.name: tool for tool in source.descriptors()}
        """All tools, by name."""

    def fill_index(self) -> ToolIndex:
        """Index the tools, unless the index already has this finder's.

        Raises `SearchUnavailableError` if SQLite was built without FTS5.
        """
        index = self._open_index()
        if index.source is not self:
            index.update(map(self._build_item, self.tools.values()), self)
        return index

    def find(self, queries: Sequence[str], server: str | None = None, limit: int = FOUND) -> SearchReport:
        """Find tools, and say how many were omitted and how to see them.

        Models guess optional servers. If a tool of another server fits a query far better than all of the named
        server's, search all servers instead and say so. Like tool names, the server's spelling may vary. Raises
        `UnknownServerError` if no tool belongs to this server.
        """
        index = self.fill_index()
        servers = sorted({item.server for item in index.items} - {""})
        if server is not None:
            server = _find_server(server, servers)
        is_elsewhere = server is not None and any(self._fits_elsewhere(index, query, server) for query in queries)
        lines = [f"{server} has no tool that fits as well as these, of all servers:"] if is_elsewhere else []
        hits = self._search(index, queries, None if is_elsewhere else server)
        shown, left_out = [hit.item for hit in hits[:limit]], max(0, len(hits) - limit)
        lines += [format_signature(item, _SIGNATURE_CHARS) for item in shown]
        if not shown:
            lines.append(f"Nothing matches among {format_count(len(self.tools), 'tool')}.")
            lines += [f"Servers: {_list_servers(servers)}"] if servers else []
        elif left_out:
            has_others = len({hit.item.server for hit in hits}) > 1
            ways = [*(["name a server"] if has_others else []), *(["raise limit"] if limit < MOST_FOUND else [])]
            remedy = ", or ".join(ways) or "search for more exact words"
            lines.append(f"{left_out:,} more {'matches' if left_out == 1 else 'match'}: {remedy}.")
        text = "\n".join([*lines, *self._describe_disabled(queries, server)])
        return SearchReport(queries, server, [item.qualified_name for item in shown], left_out, text)

    def _search(self, index: ToolIndex, queries: Sequence[str], server: str | None = None) -> Sequence[ItemHit]:
        """Search for tools the caller may call, and return every match."""
        hits = index.search(queries, server=server, kinds=("tool",), limit=_NO_LIMIT).hits
        denied = self._source.find_denied([hit.item.qualified_name for hit in hits])
        return [hit for hit in hits if hit.item.qualified_name not in denied]

    def _fits_elsewhere(self, index: ToolIndex, query: str, server: str) -> bool:
        """Return whether a tool of another server fits a query far better than all of this one's."""
        hits = self._search(index, [query])
        own = max((hit.score for hit in hits if hit.item.server == server), default=0.0)
        return bool(hits) and own < _GOOD_SHARE * hits[0].score

    def _build_item(self, tool: ToolDescriptor) -> SearchItem:
        ref = self._source.find_ref(tool.name)
        return build_tool_item(tool) if ref is None else build_tool_item(tool, ref.server, ref.name)

    def _describe_disabled(self, queries: Sequence[str], server: str | None) -> list[str]:
        """Name disabled tools whose name contains a query word. They can't be found or called."""
        words = {word for query in queries for word in list_query_words(query)}
        named = [
            tool
            for tool in self._source.list_disabled()
            if server in {None, tool.ref.server} and words & {*list_query_words(tool.ref.name)}
        ]
        return [*map(_describe_disabled_tool, named[:_MAX_NAMED])]

    def describe(self, names: Sequence[str]) -> tuple[str, bool]:
        """Describe tools completely, one JSON object per line, and return whether any of them is known."""
        denied = self._source.find_denied(names)
        lines: list[str] = []
        is_known = False
        for name in names:
            if name in self.tools and name not in denied:
                is_known = True
                lines.append(compact_json(build_tool_row(self.tools[name])))
            else:
                lines.append(self.explain_unknown(name, denied))
        return "\n".join(lines), is_known

    def explain_unknown(self, name: str, denied: Collection[str] = ()) -> str:
        """Say why a name has no definition: a rule, a changed definition, or another name."""
        every = self._source.list_disabled()
        disabled = next((tool for tool in every if tool.name == name), None)
        if disabled is not None:
            return f"{name!r} is {disabled.reason}. A person can {disabled.remedy}"
        if name in denied and name in self.tools:  # a view may also hide denied tools
            return f"{name!r} is denied by a rule."
        lines = [f"{UNKNOWN} {cut_text(name, _MAX_ECHO_CHARS)!r}."]
        nearest = self.suggest(name)
        if nearest:
            # With signatures, a model that guessed a name doesn't need another search.
            lines[0] += f" {NEAREST}"
            lines += [format_signature(self._build_item(self.tools[one]), _SIGNATURE_CHARS) for one in nearest]
        wanted = "" if len(name) > LONGEST_NAME else normalize_name(name)
        meant = [
            tool for tool in every if wanted and wanted in {normalize_name(tool.name), normalize_name(tool.ref.name)}
        ]
        return "\n".join([*lines, *map(_describe_disabled_tool, meant[:_MAX_NAMED])])

    def suggest(self, name: str) -> Sequence[str]:
        """List the allowed names closest to an unknown one, best first."""
        if len(name) > LONGEST_NAME:
            return []
        wanted = normalize_name(name)
        known: dict[str, list[str]] = {}
        for other in self.tools:
            ref = self._source.find_ref(other)
            for spelling in (other, other if ref is None else ref.name):
                known.setdefault(normalize_name(spelling), []).append(other)
        near = [one for key in get_close_matches(wanted, known, n=2 * _MAX_NAMED) for one in known[key]]
        denied = self._source.find_denied(near)
        return [one for one in dict.fromkeys(near) if one not in denied][:_MAX_NAMED]


def _find_server(given: str, servers: Sequence[str]) -> str:
    """Return the server a caller means: the exact name, or the only one that's spelled differently.

    Raises `UnknownServerError` if there's none.
    """
    if given in servers:
        return given
    wanted = "" if len(given) > LONGEST_NAME else normalize_name(given)
    same = [server for server in servers if wanted and normalize_name(server) == wanted]
    if len(same) == 1:
        return same[0]
    known = f"there are: {_list_servers(servers)}" if servers else "leave it out, no tool here belongs to a server"
    raise UnknownServerError(f"There is no server {cut_text(given, _MAX_ECHO_CHARS)!r} with tools; {known}")


def _list_servers(servers: Sequence[str]) -> str:
    more = len(servers) - _MAX_SERVERS
    return ", ".join([*servers[:_MAX_SERVERS], *([f"and {more:,} more"] if more > 0 else [])])


def _describe_disabled_tool(tool: DisabledTool) -> str:
    # A very long name would make the command that approves the tool unusable: show all changes then.
    command = tool.approve_command if len(tool.approve_command) <= _MAX_COMMAND_CHARS else tool.diff_command
    return f"Not callable: {tool.name}, {cut_text(tool.reason, 120)}; a person can run: {command}"
