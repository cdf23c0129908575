"""The search of a box's tools, and its three cards: `find_tools`, `describe_tools` and `call_tool`.

A finder serves one box and finds only callable tools: it hides tools that a rule denies to the caller, and names
disabled ones with the reason and the remedy. Each search is reported, for the ledger.

The cards stand for all unlisted tools. `call_tool` itself never runs: its caller resolves it to a call of the named
tool, so permissions, records, progress and results belong to that tool. The definitions are constant, so a list
containing them stays the same while servers come and go.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.tool import DefinedTool, RunTool, ToolSpec, define_tool
from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.core.text import cut_text, format_count
from indusagi.interop.protocol_bridge.contract import QUALIFIER
from indusagi.interop.protocol_bridge.host.catalog import build_tool_row
from indusagi.runtime.contract import ToolCall, ToolDescriptor, ToolResult
from induscode.deck.mcp.store.events import filter_texts
from induscode.search.index import FOUND, LONGEST_NAME, ItemHit, ToolIndex, list_query_words, normalize_name
from induscode.search.items import SearchItem, build_tool_item, format_signature
from induscode.search.options import CALL_TOOL, DESCRIBE_TOOLS, FIND_TOOLS, SEARCH_CARDS

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from induscode.deck.mcp.drift import DisabledTool
    from induscode.deck.provision import ToolSource


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


# -- cards ------------------------------------------------------------------------------------


_MAX_NAMES: Final = 10

_FIND: JsonObject = {
    "type": "object",
    "properties": {
        "queries": {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "maxItems": _MAX_NAMES,
            "description": 'One for each thing you need: a few words, such as "create a calendar event", or a name',
        },
        "server": {"type": "string", "description": "Only tools of this server"},
        "limit": {"type": "integer", "minimum": 1, "maximum": MOST_FOUND, "description": f"{FOUND} by default"},
    },
    "required": ["queries"],
    "additionalProperties": False,
}
_DESCRIBE: JsonObject = {
    "type": "object",
    "properties": {"names": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": _MAX_NAMES}},
    "required": ["names"],
    "additionalProperties": False,
}
_CALL: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "The name as find_tools gives it"},
        "arguments": {"type": "object", "description": "The arguments of that tool"},
    },
    "required": ["name"],
    "additionalProperties": False,
}
_CALL_FIELDS: Final = frozenset({"name", "arguments"})


def build_search_cards(finder: ToolFinder) -> Sequence[DefinedTool]:
    """Build the cards over a finder."""

    async def find(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        queries = [query for query in filter_texts(arguments["queries"]) if query.strip()]
        if not queries:
            return ToolResult.error("Send at least one query with words in it.", code="invalid_arguments")
        server, limit = arguments.get("server"), arguments.get("limit")
        search = partial(
            finder.find,
            queries,
            server if isinstance(server, str) and server else None,
            limit if isinstance(limit, int) else FOUND,
        )
        try:
            report = await to_thread.run_sync(search)
        except UnknownServerError as exc:
            return ToolResult.error(str(exc), code="unknown_server")
        if finder.on_search is not None:
            finder.on_search(report)
        return ToolResult.text(report.text)

    async def describe(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        names = [*dict.fromkeys(filter_texts(arguments["names"]))]
        text, is_known = await to_thread.run_sync(finder.describe, [name for name in names if name not in SEARCH_CARDS])
        listed = [f"{name} is in the list of tools, with its definition." for name in names if name in SEARCH_CARDS]
        text, is_known = "\n".join([*listed, *([text] if text else [])]), is_known or bool(listed)
        return ToolResult.text(text) if is_known else ToolResult.error(text, code="unknown_tool")

    async def refuse(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        name = str(arguments["name"])
        if name == CALL_TOOL:
            return ToolResult.error("call_tool cannot call itself.", code="invalid_arguments")
        message = await to_thread.run_sync(finder.explain_unknown, name)
        first, mark, _ = message.partition("\n")
        if first.endswith(NEAREST):
            message += "\nCall one of these by its complete name, or search with find_tools."
        elif first.startswith(UNKNOWN):
            message += f"{mark or ' '}Search with find_tools."
        return ToolResult.error(message, code="unknown_tool")

    return _define_cards(find, describe, refuse)


def list_search_cards() -> Sequence[ToolDescriptor]:
    """List the cards' definitions, which can't be called."""

    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        raise NotImplementedError

    return [card.descriptor for card in _define_cards(run, run, run)]


def _define_cards(find: RunTool, describe: RunTool, refuse: RunTool) -> Sequence[DefinedTool]:
    return (
        define_tool(
            ToolSpec(
                FIND_TOOLS,
                "Find tools by what they do. Most tools are not listed here: search before you say that something "
                "cannot be done. Gives signatures, the best first; `?` marks optional parameters. Call what you have "
                "found with call_tool.",
                _FIND,
                find,
                title="Find tools",
                read_only=True,
                prepare=coerce_to(_FIND, {"query": "queries"}),
            )
        ),
        define_tool(
            ToolSpec(
                DESCRIBE_TOOLS,
                "Get the complete definitions of found tools, with the schemas of their arguments.",
                _DESCRIBE,
                describe,
                title="Describe tools",
                read_only=True,
                prepare=coerce_to(_DESCRIBE, {"name": "names"}),
            )
        ),
        define_tool(
            ToolSpec(
                CALL_TOOL,
                "Call a tool that is not listed, by its name. Gives the result of that tool.",
                _CALL,
                refuse,
                title="Call a tool",
            )
        ),
    )


def resolve_call(
    call: ToolCall,
    has_tool: Callable[[str], bool],
    names: Iterable[str],
    list_disabled: Callable[[], Iterable[str]] = tuple,
) -> ToolCall:
    """Resolve a `call_tool` call to the call it stands for. Other calls, and calls of unknown tools, stay unchanged.

    Small models misspell names: one that differs from a single tool only in case and separators means that tool. A name
    with a server never means a tool of another server, and one that may mean a disabled tool means no other. A call
    with a field that `call_tool` doesn't have, such as `args`, stays unchanged so that validation rejects it: the tool
    must not run without the arguments meant for it.
    """
    given = call.input
    if call.name != CALL_TOOL or not is_json_object(given) or given.keys() - _CALL_FIELDS:
        return call
    name = given.get("name")
    if not isinstance(name, str) or name == CALL_TOOL:
        return call
    if not has_tool(name):
        same = _find_same(name, names)
        if len(same) != 1 or same[0] == CALL_TOOL or _find_same(name, list_disabled()):
            return call
        name = same[0]
    return ToolCall(call.id, name, _read_arguments(given.get("arguments")))


def _find_same(name: str, names: Iterable[str]) -> list[str]:
    """Find the names that a name can mean. Its server, if any, must be the same."""
    if len(name) > LONGEST_NAME:
        return []
    wanted, (server, mark, _) = normalize_name(name), name.partition(QUALIFIER)
    same = [other for other in names if normalize_name(other) == wanted] if wanted else []
    if not mark:
        return same
    server = normalize_name(server)
    return [other for other in same if normalize_name(other.partition(QUALIFIER)[0]) == server]


def _read_arguments(value: JsonValue) -> JsonValue:
    """Return the arguments as an object if possible, even if a model wrote them as text."""
    if isinstance(value, str):
        try:
            parsed: JsonValue = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return parsed if is_json_object(parsed) else value
    return {} if value is None else value
