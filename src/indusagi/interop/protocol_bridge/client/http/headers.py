"""HTTP headers that repeat parts of the frames of one connection: version, method, name, marked arguments.

https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#protocol-version-header
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.rpc.mcp_headers import (
    METHOD_HEADER,
    NAME_HEADER,
    NAMED_BY,
    VERSION_HEADER,
    build_argument_headers,
    encode_header_value,
    find_header_arguments,
)
from indusagi.interop.protocol_bridge.rpc.transport import get_object

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.rpc.mcp_headers import HeaderArgument

_META_VERSION = "io.modelcontextprotocol/protocolVersion"


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
