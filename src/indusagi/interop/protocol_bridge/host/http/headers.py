"""Checks that a request's headers agree with its body, in revision 2026-07-28.

Proxies route and filter by headers. If the host acted on a body that differs from them, clients could bypass every
rule in between.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

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
from indusagi.interop.protocol_bridge.rpc.mcp_headers import (
    ARGUMENT_HEADER,
    METHOD_HEADER,
    NAME_HEADER,
    NAMED_BY,
    VERSION_HEADER,
    decode_header_value,
    find_header_arguments,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host.http.settings import FindSchema

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
    lines: Sequence[tuple[str, str]], frame: JsonObject, find_schema: FindSchema
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
    headers: Mapping[str, str], method: JsonValue, params: JsonObject, find_schema: FindSchema
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
