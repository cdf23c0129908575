"""The three search cards: `find_tools`, `describe_tools` and `call_tool`.

They stand for all unlisted tools. `call_tool` itself never runs: its caller resolves it to a call of the named tool, so
permissions, records, progress and results belong to that tool. The definitions are constant, so a list containing them
stays the same while servers come and go.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from indusagi.capabilities.arguments import coerce_to
from indusagi.capabilities.tool import ToolSpec, define_tool
from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.contract import QUALIFIER
from indusagi.runtime.contract import ToolCall, ToolResult
from induscode.deck.mcp.store.events import filter_texts
from induscode.search.finder import MOST_FOUND, NEAREST, UNKNOWN, UnknownServerError
from induscode.search.index import FOUND, LONGEST_NAME, normalize_name
from induscode.search.options import CALL_TOOL, DESCRIBE_TOOLS, FIND_TOOLS, SEARCH_CARDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.tool import DefinedTool, RunTool
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.search.finder import ToolFinder


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
