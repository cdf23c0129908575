"""Revisions of MCP, keys of `_meta`, and the HTTP headers of revision 2026-07-28.

The headers repeat a request's version, method, name and the arguments that a tool's schema marks with `x-mcp-header`.
Clients build them here, and the host checks that they agree with the body: proxies route and filter by headers, so a
body that differs from them would bypass every rule in between.
https://modelcontextprotocol.io/specification/2026-07-28/basic/transports/streamable-http#custom-headers-from-tool-parameters
"""

from __future__ import annotations

import re
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, cast

from indusagi.core.json import JsonObject, JsonValue, compact_json, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.rpc.connection import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
)
from indusagi.interop.protocol_bridge.rpc.transport import get_object

MODERN_VERSIONS = ("2026-07-28",)
LEGACY_VERSIONS = ("2024-10-07", "2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
VERSION = "io.modelcontextprotocol/protocolVersion"
CLIENT_INFO = "io.modelcontextprotocol/clientInfo"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SERVER_INFO = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
MISSING_CAPABILITY = -32021
"""`MissingRequiredClientCapabilityError` of the modern protocol."""

VERSION_HEADER = "mcp-protocol-version"
METHOD_HEADER = "mcp-method"
NAME_HEADER = "mcp-name"
ARGUMENT_HEADER = "mcp-param-"
NAMED_BY = {
    "tools/call": "name", "prompts/get": "name", "resources/read": "uri",
    "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId",
}  # fmt: skip
"""The parameter that `Mcp-Name` repeats, by method."""

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
    """Find the arguments that headers repeat; raise `ValueError` for an invalid mark: clients mustn't call the tool."""
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


# -- checks of the host -------------------------------------------------------------------------

MISMATCH = -32020
STATUSES: Mapping[int, int] = MappingProxyType(
    {
        METHOD_NOT_FOUND: 404,
        **dict.fromkeys((PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS), 400),
        **dict.fromkeys((MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION), 400),
    }
)
"""HTTP status by JSON-RPC error code; 200 for all others."""

_ROUTING = frozenset({VERSION_HEADER, METHOD_HEADER, NAME_HEADER})
_INTEGER = re.compile(r"(-?[0-9]{1,640})(?:\.0+)?")
"""As many digits as Python parses under any limit: `sys.int_info.str_digits_check_threshold`."""


@record
class RequestProblem:
    """A JSON-RPC error to refuse a request with."""

    code: int
    message: str
    data: JsonObject | None = None

    @property
    def status(self) -> int:
        """HTTP status of the response."""
        return STATUSES[self.code]

    def to_response(self, request_id: JsonValue) -> bytes:
        """Encode the JSON-RPC response."""
        error: JsonObject = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return compact_json({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()


def check_headers(
    lines: Sequence[tuple[str, str]], frame: JsonObject, find_schema: Callable[[str], JsonObject | None]
) -> RequestProblem | None:
    """Compare a request's header lines (with lower-case names) to its message."""
    names: set[str] = set()
    for name, _ in lines:
        if name in names:  # one reader would use the first value, another the last
            return RequestProblem(MISMATCH, f"the header {name} appears more than once")
        if name in _ROUTING or name.startswith(ARGUMENT_HEADER):
            names.add(name)
    params = frame.get("params")
    meta = params.get("_meta") if is_json_object(params) else None
    if not is_json_object(params) or not is_json_object(meta):
        return RequestProblem(INVALID_PARAMS, f"params._meta must hold {VERSION} and {CAPABILITIES}")
    missing = [key for key in (VERSION, CAPABILITIES) if key not in meta]
    if missing:
        return RequestProblem(INVALID_PARAMS, f"params._meta has no {' and no '.join(missing)}")
    headers, version, method = dict(lines), meta[VERSION], frame["method"]
    name_key = NAMED_BY.get(str(method))
    target = None if name_key is None else params.get(name_key)
    mismatch = None
    if version is None or headers.get(VERSION_HEADER) != version:
        mismatch = VERSION_HEADER
    elif headers.get(METHOD_HEADER) != method:
        mismatch = METHOD_HEADER
    elif target is not None and decode_header_value(headers.get(NAME_HEADER)) != target:
        mismatch = NAME_HEADER
    if mismatch is not None:
        return RequestProblem(MISMATCH, f"the header {mismatch} does not match the body")
    return check_version(str(version)) or _check_arguments(headers, method, params, find_schema)


def check_version(version: str) -> RequestProblem | None:
    """Return the problem if a protocol version is unsupported."""
    if version in MODERN_VERSIONS:
        return None
    data: JsonObject = {"supported": [*MODERN_VERSIONS], "requested": version}
    return RequestProblem(UNSUPPORTED_VERSION, "this version of the protocol is not supported", data)


# -- arguments ----------------------------------------------------------------------------------


def _check_arguments(
    headers: Mapping[str, str], method: JsonValue, params: JsonObject, find_schema: Callable[[str], JsonObject | None]
) -> RequestProblem | None:
    name, value = params.get("name"), params.get("arguments")
    schema = find_schema(name) if method == "tools/call" and isinstance(name, str) else None
    arguments = value if is_json_object(value) else {}
    try:
        marked = () if schema is None else find_header_arguments(schema)
    except ValueError:  # clients mustn't call such a tool
        marked = ()
    for argument in marked:
        present = argument.find_value(arguments)
        header = headers.get(argument.header)
        text = decode_header_value(header)
        if present is None or isinstance(present, (list, dict)):
            why = None if header is None else "has a value without"
        elif header is None:
            why = "is missing, and must repeat"
        elif text is None:
            why = "is invalid base64, and must repeat"
        else:
            is_whole = isinstance(present, int) or (isinstance(present, float) and present.is_integer())
            number = _INTEGER.fullmatch(text) if argument.kind == "integer" and is_whole else None
            if isinstance(present, bool):
                is_equal = text == ("true" if present else "false")
            else:
                is_equal = text == str(present) if number is None else int(number[1]) == present
            why = None if is_equal else "does not repeat"
        if why is not None:
            path = ".".join(argument.path)
            return RequestProblem(MISMATCH, f"the header {argument.header} {why} the argument {path!r}")
    return None


# -- of one connection ------------------------------------------------------------------------


def is_modern(frame: JsonObject) -> bool:
    """Return whether a request names its protocol version, as the modern protocol demands."""
    return isinstance(get_object(get_object(frame, "params"), "_meta").get(VERSION), str)


class McpHeaders:
    """Builds the headers of outgoing frames, from what the server declared earlier."""

    def __init__(self) -> None:
        self.version: str | None = None
        """The version of frames that don't name one."""
        self._marked: dict[str, Sequence[HeaderArgument]] = {}

    def build(self, frame: JsonObject) -> dict[str, str]:
        """Build the headers for the HTTP request that carries a frame.

        Raises `ValueError` if a name or an argument has no encoding.
        """
        method, params = frame.get("method"), get_object(frame, "params")
        version = get_object(params, "_meta").get(VERSION)
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
