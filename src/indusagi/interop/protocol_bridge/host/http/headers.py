"""Checks that a request's headers agree with its body, in revision 2026-07-28.

Proxies route and filter by headers. If the host acted on a body that differs from them, clients could bypass every
rule in between.
"""

from __future__ import annotations

import re
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias, cast

from indusagi.core.json import compact_json, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.client.handlers import CAPABILITIES
from indusagi.interop.protocol_bridge.client.session import MODERN_VERSIONS
from indusagi.interop.protocol_bridge.host.client_requests import INVALID_PARAMS
from indusagi.interop.protocol_bridge.host.session import VERSION
from indusagi.interop.protocol_bridge.rpc.connection import (
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host.http.settings import FindSchema

VERSION_HEADER = "mcp-protocol-version"
_METHOD_HEADER = "mcp-method"
_NAME_HEADER = "mcp-name"
_ARGUMENT_HEADER = "mcp-param-"
_HEADER_KEYWORD = "x-mcp-header"

MISMATCH = -32020
_MISSING_CAPABILITY = -32021
STATUSES: Mapping[int, int] = MappingProxyType(
    {
        METHOD_NOT_FOUND: 404,
        **dict.fromkeys((PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS), 400),
        **dict.fromkeys((MISMATCH, _MISSING_CAPABILITY, UNSUPPORTED_VERSION), 400),
    }
)
"""HTTP status by JSON-RPC error code; 200 for all others."""

_ROUTING = frozenset({VERSION_HEADER, _METHOD_HEADER, _NAME_HEADER})
_NAMED_BY = {
    "tools/call": "name", "prompts/get": "name", "resources/read": "uri",
    "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId",
}  # fmt: skip
_BASE64_VALUE = re.compile(r"=\?base64\?(.*)\?=")
_TOKEN = re.compile(r"[\w!#$%&'*+\-.^`|~]+", re.ASCII)
_INTEGER = re.compile(r"(-?[0-9]{1,640})(?:\.0+)?")
"""As many digits as Python parses under any limit: `sys.int_info.str_digits_check_threshold`."""

_HEADER_TYPES = frozenset({"string", "integer", "boolean"})
_HOLD_ONE = frozenset({
    "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not", "propertyNames", "then",
    "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
_HOLD_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_HOLD_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties"})
"""Keywords with subschemas (draft 2020-12): one schema, a list, a map."""


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


@record
class _HeaderArgument:
    """An argument repeated in a header."""

    path: tuple[str, ...]
    header: str
    kind: str


def check_headers(
    lines: Sequence[tuple[str, str]], frame: JsonObject, find_schema: FindSchema
) -> RequestProblem | None:
    """Compare a request's header lines (with lower-case names) to its message."""
    names: set[str] = set()
    for name, _ in lines:
        if name in names:  # one reader would use the first value, another the last
            return RequestProblem(MISMATCH, f"the header {name} appears more than once")
        if name in _ROUTING or name.startswith(_ARGUMENT_HEADER):
            names.add(name)
    params = frame.get("params")
    meta = params.get("_meta") if is_json_object(params) else None
    if not is_json_object(params) or not is_json_object(meta):
        return RequestProblem(INVALID_PARAMS, f"params._meta must hold {VERSION} and {CAPABILITIES}")
    missing = [key for key in (VERSION, CAPABILITIES) if key not in meta]
    if missing:
        return RequestProblem(INVALID_PARAMS, f"params._meta has no {' and no '.join(missing)}")
    headers, version, method = dict(lines), meta[VERSION], frame["method"]
    name_key = _NAMED_BY.get(str(method))
    target = None if name_key is None else params.get(name_key)
    mismatch = None
    if version is None or headers.get(VERSION_HEADER) != version:
        mismatch = VERSION_HEADER
    elif headers.get(_METHOD_HEADER) != method:
        mismatch = _METHOD_HEADER
    elif target is not None and decode_header_value(headers.get(_NAME_HEADER)) != target:
        mismatch = _NAME_HEADER
    if mismatch is not None:
        return RequestProblem(MISMATCH, f"the header {mismatch} does not match the body")
    return check_version(str(version)) or _check_arguments(headers, method, params, find_schema)


def check_version(version: str) -> RequestProblem | None:
    """Return the problem if a protocol version is unsupported."""
    if version in MODERN_VERSIONS:
        return None
    data: JsonObject = {"supported": [*MODERN_VERSIONS], "requested": version}
    return RequestProblem(UNSUPPORTED_VERSION, "this version of the protocol is not supported", data)


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


# -- arguments ----------------------------------------------------------------------------------


def _check_arguments(
    headers: Mapping[str, str], method: JsonValue, params: JsonObject, find_schema: FindSchema
) -> RequestProblem | None:
    name, value = params.get("name"), params.get("arguments")
    schema = find_schema(name) if method == "tools/call" and isinstance(name, str) else None
    arguments = value if is_json_object(value) else {}
    for argument in () if schema is None else _find_header_arguments(schema):
        present: JsonValue = arguments
        for step in argument.path:
            present = present.get(step) if is_json_object(present) else None
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


def _find_header_arguments(schema: JsonObject) -> Sequence[_HeaderArgument]:
    """Find the arguments that headers repeat; none if any mark is invalid, since clients mustn't call such a tool."""
    marked: dict[str, _HeaderArgument] = {}
    for path, schema_level in _iterate_levels(schema):
        if _HEADER_KEYWORD not in schema_level:
            continue
        token, kind = schema_level[_HEADER_KEYWORD], schema_level.get("type")
        if not path or not isinstance(token, str) or not isinstance(kind, str):
            return ()
        header = _ARGUMENT_HEADER + token.lower()
        if _TOKEN.fullmatch(token) is None or kind not in _HEADER_TYPES or header in marked:
            return ()
        names: list[str] = []
        while path:
            path, name = cast("tuple[_Path, str]", path)
            names.append(name)
        marked[header] = _HeaderArgument(tuple(reversed(names)), header, kind)
    return [*marked.values()]


_Path: TypeAlias = tuple["_Path", str] | tuple[()]
"""Path of an argument, linked from its end, so that walking a schema of any depth takes linear time."""


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
