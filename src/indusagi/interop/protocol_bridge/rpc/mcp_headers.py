"""HTTP headers that repeat parts of a frame: its version, and since 2026-07-28 its method, name and marked arguments.

A tool's schema marks arguments with `x-mcp-header`. Clients build the headers with this module, and the host compares
them to the body.
https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http#custom-headers-from-tool-parameters
"""

from __future__ import annotations

import re
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from typing import TYPE_CHECKING, TypeAlias, cast

from indusagi.core.json import is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.rpc.transport import get_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from indusagi.core.json import JsonObject, JsonValue

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
ARGUMENT_HEADER = "mcp-param-"
NAMED_BY = {
    "tools/call": "name", "prompts/get": "name", "resources/read": "uri",
    "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId",
}  # fmt: skip
"""The parameter that `Mcp-Name` repeats, by method."""

_META_VERSION = "io.modelcontextprotocol/protocolVersion"
_KEYWORD = "x-mcp-header"
_BASE64_VALUE = re.compile(r"=\?base64\?(.*)\?=")
_PLAIN_VALUE = re.compile(r"[\x20-\x7e]*")
_TOKEN = re.compile(r"[\w!#$%&'*+\-.^`|~]+", re.ASCII)
_TYPES = frozenset({"string", "integer", "boolean"})
_HOLD_ONE = frozenset({
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_HOLD_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_HOLD_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties"})
"""Keywords with subschemas (draft 2020-12): one schema, a list, a map."""


@record
class HeaderArgument:
    """An argument repeated in a header."""

    path: tuple[str, ...]
    header: str
    kind: str

    def find_value(self, arguments: JsonObject) -> JsonValue:
        """Return the argument's value, or `None` if it's missing."""
        value: JsonValue = arguments
        for step in self.path:
            value = value.get(step) if is_json_object(value) else None
        return value


def encode_header_value(text: str) -> str:
    """Wrap a value as `=?base64?…?=`, unless a header can hold it as it is."""
    if _PLAIN_VALUE.fullmatch(text) and text == text.strip() and not _BASE64_VALUE.fullmatch(text):
        return text
    return f"=?base64?{b2a_base64(text.encode(), newline=False).decode()}?="


def decode_header_value(value: str | None) -> str | None:
    """Decode a header value that may be wrapped as `=?base64?…?=`; None if invalid."""
    match = None if value is None else _BASE64_VALUE.fullmatch(value)
    if match is None:
        return value
    try:
        # Non-ASCII or non-UTF-8 text raises a ValueError too.
        text = a2b_base64(match[1], strict_mode=True)
        # Canonical form only: proxies compare encoded values.
        if b2a_base64(text, newline=False).decode() != match[1]:
            return None
        return text.decode()
    except (NotBase64, ValueError):
        return None


def build_argument_headers(marked: Sequence[HeaderArgument], arguments: JsonObject) -> dict[str, str]:
    """Build the headers that repeat marked arguments; one without a scalar value gets none."""
    headers: dict[str, str] = {}
    for argument in marked:
        value = argument.find_value(arguments)
        if isinstance(value, bool):
            headers[argument.header] = "true" if value else "false"
        elif isinstance(value, (str, int, float)):
            headers[argument.header] = encode_header_value(str(value))
    return headers


def find_header_arguments(schema: JsonObject) -> Sequence[HeaderArgument]:
    """Find the arguments that headers repeat.

    Raises:
        ValueError: A mark is invalid, so clients mustn't call the tool.
    """
    marked: dict[str, HeaderArgument] = {}
    for path, level in _iterate_levels(schema):
        if _KEYWORD not in level:
            continue
        if not path:
            raise ValueError(f"{_KEYWORD} isn't on a property that `properties` alone leads to")
        names = _list_names(path)
        where, token, kind = ".".join(names), level[_KEYWORD], level.get("type")
        if not isinstance(token, str) or _TOKEN.fullmatch(token) is None:
            raise ValueError(f"{_KEYWORD} of the property {where!r} isn't the name of a header")
        if not isinstance(kind, str) or kind not in _TYPES:
            raise ValueError(f"{_KEYWORD} of the property {where!r}, which isn't a string, integer or boolean")
        header = ARGUMENT_HEADER + token.lower()
        if header in marked:
            raise ValueError(f"{_KEYWORD} {token!r} is on two properties")
        marked[header] = HeaderArgument(names, header, kind)
    return [*marked.values()]


_Path: TypeAlias = tuple["_Path", str] | tuple[()]
"""Path of an argument, linked from its end, so that walking a schema of any depth takes linear time."""


def _list_names(path: _Path) -> tuple[str, ...]:
    names: list[str] = []
    while path:
        path, name = cast("tuple[_Path, str]", path)
        names.append(name)
    return tuple(reversed(names))


def _iterate_levels(schema: JsonObject) -> Iterator[tuple[_Path | None, JsonObject]]:
    """Yield a schema and all its subschemas, with the path of the argument, or None if that's uncertain."""
    waiting: list[tuple[_Path | None, JsonValue]] = [((), schema)]
    while waiting:
        path, level = waiting.pop()
        if not is_json_object(level):
            continue
        yield path, level
        for key, value in level.items():
            if key == "properties" and is_json_object(value):
                waiting += [(None if path is None else (path, name), inner) for name, inner in value.items()]
            elif key in _HOLD_ONE:
                waiting.append((None, value))
            elif key in _HOLD_SEVERAL and isinstance(value, list):
                waiting += [(None, inner) for inner in value]
            elif key in _HOLD_NAMED and is_json_object(value):
                waiting += [(None, inner) for inner in value.values()]


# -- of one connection ------------------------------------------------------------------------


def is_modern(frame: JsonObject) -> bool:
    """Return whether a request names its protocol version, as the modern protocol demands."""
    return isinstance(get_object(get_object(frame, "params"), "_meta").get(_META_VERSION), str)


class McpHeaders:
    """Builds the headers of outgoing frames, from what the server declared earlier."""

    def __init__(self) -> None:
        self.version: str | None = None
        """The version of frames that don't name one."""
        self._marked: dict[str, Sequence[HeaderArgument]] = {}

    def build(self, frame: JsonObject) -> dict[str, str]:
        """Build the headers for the HTTP request that carries a frame.

        Raises:
            ValueError: A name or an argument has no encoding.
        """
        method, params = frame.get("method"), get_object(frame, "params")
        version = get_object(params, "_meta").get(_META_VERSION)
        if isinstance(version, str) and isinstance(method, str):
            self.version = version
            headers = {VERSION_HEADER: version, METHOD_HEADER: method}
            name, arguments = params.get(NAMED_BY.get(method, "")), params.get("arguments")
            if isinstance(name, str):
                headers[NAME_HEADER] = encode_header_value(name)
                if method == "tools/call" and is_json_object(arguments):
                    headers |= build_argument_headers(self._marked.get(name, ()), arguments)
            return headers
        # The handshake negotiates the version.
        return {} if self.version is None or method == "initialize" else {VERSION_HEADER: self.version}

    def learn_version(self, result: JsonObject) -> None:
        """Learn the negotiated version from a result of `initialize`."""
        version = result.get("protocolVersion")
        self.version = version if isinstance(version, str) else None

    def learn_tools(self, result: JsonObject, on_invalid: Callable[[str], None] | None) -> JsonObject:
        """Learn from a result of `tools/list` which arguments go into headers.

        With `on_invalid`, report tools with invalid marks in their schema and drop them, since the protocol forbids
        their use. Otherwise return the result unchanged.
        """
        tools = result.get("tools")
        if not isinstance(tools, list):
            return result
        kept: list[JsonValue] = []
        for row in tools:
            schema = row.get("inputSchema") if is_json_object(row) else None
            if is_json_object(row) and is_json_object(schema):
                try:
                    self._marked[str(row.get("name"))] = find_header_arguments(schema)
                except ValueError as exc:
                    if on_invalid is not None:
                        on_invalid(f"its tool {row.get('name')!r} was left out: {exc}")
                        continue
            kept.append(row)
        return result if on_invalid is None or len(kept) == len(tools) else {**result, "tools": kept}
