"""What the headers of a request in the newer protocol must say, so that others may route by them.

Whoever stands between a client and a host may read headers alone. Where they repeat what the body
says, the two have to agree: a host that acted on the one after somebody has let the other pass
could be led around every rule in between.
"""

from __future__ import annotations

import re
from binascii import Error as NotBase64
from binascii import a2b_base64, b2a_base64
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from indusagi.interop.protocol_bridge.client.handlers import CAPABILITIES
from indusagi.interop.protocol_bridge.client.session import MODERN_VERSIONS
from indusagi.interop.protocol_bridge.host.client_requests import INVALID_PARAMS
from indusagi.interop.protocol_bridge.host.dispatcher import INVALID_REQUEST
from indusagi.interop.protocol_bridge.host.session import VERSION
from indusagi.interop.protocol_bridge.rpc.connection import METHOD_NOT_FOUND, PARSE_ERROR
from indusagi.interop.protocol_bridge.rpc.errors import UNSUPPORTED_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonScalar, JsonValue
    from indusagi.interop.protocol_bridge.host.http.settings import FindSchema

VERSION_HEADER = "mcp-protocol-version"
_METHOD_HEADER = "mcp-method"
_NAME_HEADER = "mcp-name"
_ARGUMENT_HEADER = "mcp-param-"
_MARK = "x-mcp-header"

MISMATCH = -32020
_MISSING_CAPABILITY = -32021
STATUSES: Mapping[int, int] = MappingProxyType(
    {
        METHOD_NOT_FOUND: 404,
        **dict.fromkeys((PARSE_ERROR, INVALID_REQUEST, INVALID_PARAMS), 400),
        **dict.fromkeys((MISMATCH, _MISSING_CAPABILITY, UNSUPPORTED_VERSION), 400),
    }
)
"""The HTTP status that goes with the code of an error; others are told with a 200."""

_ROUTING = frozenset({VERSION_HEADER, _METHOD_HEADER, _NAME_HEADER})
_NAMED_BY = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_WRAPPED = re.compile(r"=\?base64\?(.*)\?=")
_TOKEN = re.compile(r"[\w!#$%&'*+\-.^`|~]+", re.ASCII)
_WHOLE = re.compile(r"(-?[0-9]+)(?:\.0+)?")

_KINDS = frozenset({"string", "integer", "boolean"})
_HOLD_ONE = frozenset(
    {
        "additionalProperties",
        "contains",
        "contentSchema",
        "else",
        "if",
        "items",
        "not",
        "propertyNames",
        "then",
        "unevaluatedItems",
        "unevaluatedProperties",
    }
)
_HOLD_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_HOLD_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties"})
"""Keywords below which there are schemas, as the revision that knows marks sees them; by shape."""


@dataclass(frozen=True, slots=True)
class RequestProblem:
    """Why a request is not taken: the error it is answered with."""

    code: int
    message: str
    data: JsonObject | None = None

    @property
    def status(self) -> int:
        """The HTTP status that goes with it."""
        return STATUSES[self.code]

    def to_response(self, request_id: JsonValue) -> bytes:
        """Write the JSON-RPC response."""
        error: JsonObject = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return compact_json({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()


@dataclass(frozen=True, slots=True)
class _Marked:
    """An argument that is repeated in a header."""

    path: tuple[str, ...]
    header: str
    kind: str


def check_headers(
    lines: Sequence[tuple[str, str]], frame: JsonObject, find_schema: FindSchema
) -> RequestProblem | None:
    """Compare the header lines of a request, names in lower case, with its body."""
    twice = _said_twice(lines)
    if twice is not None:
        return RequestProblem(MISMATCH, f"the header {twice} appears more than once")
    params = frame.get("params")
    meta = params.get("_meta") if is_json_object(params) else None
    if not is_json_object(params) or not is_json_object(meta):
        return RequestProblem(INVALID_PARAMS, f"params._meta must hold {VERSION} and {CAPABILITIES}")
    missing = [key for key in (VERSION, CAPABILITIES) if key not in meta]
    if missing:
        return RequestProblem(INVALID_PARAMS, f"params._meta has no {' and no '.join(missing)}")
    headers = dict(lines)
    version = meta[VERSION]
    other = _other_words(headers, frame, params, version)
    if other is not None:
        return RequestProblem(MISMATCH, f"the header {other} does not say what the body says")
    return check_version(str(version)) or _object_to_arguments(headers, frame["method"], params, find_schema)


def check_version(version: str) -> RequestProblem | None:
    """Object to a version that is not spoken here."""
    if version in MODERN_VERSIONS:
        return None
    data: JsonObject = {"supported": [*MODERN_VERSIONS], "requested": version}
    return RequestProblem(UNSUPPORTED_VERSION, "this version of the protocol is not spoken here", data)


def _said_twice(lines: Sequence[tuple[str, str]]) -> str | None:
    """Find a header that one reader would take from its first line, another from its last."""
    seen: set[str] = set()
    for name, _ in lines:
        if name in seen:
            return name
        if name in _ROUTING or name.startswith(_ARGUMENT_HEADER):
            seen.add(name)
    return None


def _other_words(headers: Mapping[str, str], frame: JsonObject, params: JsonObject, version: JsonValue) -> str | None:
    """Find a header by which a request would be routed elsewhere than its body belongs."""
    if version is None or headers.get(VERSION_HEADER) != version:
        return VERSION_HEADER
    method = frame["method"]
    if headers.get(_METHOD_HEADER) != method:
        return _METHOD_HEADER
    key = _NAMED_BY.get(str(method))
    name = None if key is None else params.get(key)
    if name is not None and decode_header_value(headers.get(_NAME_HEADER)) != name:
        return _NAME_HEADER
    return None


def decode_header_value(value: str | None) -> str | None:
    """Read a header whose words may be wrapped in base64; None if they cannot be told."""
    found = None if value is None else _WRAPPED.fullmatch(value)
    if found is None:
        return value
    try:
        # Not ASCII is a ValueError too, and so is what is no UTF-8.
        words = a2b_base64(found[1], strict_mode=True)
        # Each text has one form: others would look different to whoever compares headers.
        if b2a_base64(words, newline=False).decode() != found[1]:
            return None
        return words.decode()
    except (NotBase64, ValueError):
        return None


# -- arguments ----------------------------------------------------------------------------------


def _object_to_arguments(
    headers: Mapping[str, str], method: JsonValue, params: JsonObject, find_schema: FindSchema
) -> RequestProblem | None:
    name, given = params.get("name"), params.get("arguments")
    schema = find_schema(name) if method == "tools/call" and isinstance(name, str) else None
    arguments = given if is_json_object(given) else {}
    for marked in () if schema is None else _marked(schema):
        why = _disagreement(marked, headers.get(marked.header), _at(arguments, marked.path))
        if why is not None:
            where = ".".join(marked.path)
            return RequestProblem(MISMATCH, f"the header {marked.header} {why} the argument {where!r}")
    return None


def _marked(schema: JsonObject) -> Sequence[_Marked]:
    """Find the arguments that are repeated in headers.

    None are if one of the marks is wrong: clients must not call such a tool at all, and nobody
    else can know what would have to be there.
    """
    found: dict[str, _Marked] = {}
    for path, place in _places(schema):
        if _MARK not in place:
            continue
        token, kind = place[_MARK], place.get("type")
        if not path or not isinstance(token, str) or not isinstance(kind, str):
            return ()
        header = _ARGUMENT_HEADER + token.lower()
        if _TOKEN.fullmatch(token) is None or kind not in _KINDS or header in found:
            return ()
        found[header] = _Marked(path, header, kind)
    return [*found.values()]


def _places(schema: JsonObject) -> Iterator[tuple[tuple[str, ...] | None, JsonObject]]:
    """Walk through a schema and all below it; the path is None where no argument surely is."""
    waiting: list[tuple[tuple[str, ...] | None, JsonValue]] = [((), schema)]
    while waiting:
        path, place = waiting.pop()
        if not is_json_object(place):
            continue
        yield path, place
        for key, held in place.items():
            if key == "properties" and is_json_object(held):
                for name, inner in held.items():
                    waiting.append((None if path is None else (*path, name), inner))
            else:
                waiting += [(None, inner) for inner in _held(key, held)]


def _held(key: str, held: JsonValue) -> Sequence[JsonValue]:
    if key in _HOLD_ONE:
        return (held,)
    if key in _HOLD_SEVERAL and isinstance(held, list):
        return held
    if key in _HOLD_NAMED and is_json_object(held):
        return [*held.values()]
    return ()


def _at(arguments: JsonObject, path: Sequence[str]) -> JsonValue:
    """Look up what an argument is; None if it is not given."""
    value: JsonValue = arguments
    for step in path:
        value = value.get(step) if is_json_object(value) else None
    return value


def _disagreement(marked: _Marked, said: str | None, value: JsonValue) -> str | None:
    """Say how a header and its argument disagree."""
    if value is None or isinstance(value, (list, dict)):
        return None if said is None else "says something of"
    if said is None:
        return "is missing, and would repeat"
    words = decode_header_value(said)
    if words is None:
        return "is no base64, and would repeat"
    return None if _same(marked.kind, words, value) else "does not repeat"


def _same(kind: str, words: str, value: JsonScalar) -> bool:
    if isinstance(value, bool):
        return words == ("true" if value else "false")
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    number = _WHOLE.fullmatch(words) if kind == "integer" and is_whole else None
    if number is None:
        return words == str(value)
    try:
        return int(number[1]) == value
    except ValueError:  # more digits than Python reads, in a body as well
        return False
