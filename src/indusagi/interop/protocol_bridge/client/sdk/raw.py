"""The links of a relay to a server behind an address: raw frames over the SDK's transport."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.inbound import find_invalid_x_mcp_header, x_mcp_header_map

from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.client.http.guard import open_guarded_client
from indusagi.interop.protocol_bridge.client.http.sse import sse_transport
from indusagi.interop.protocol_bridge.client.sdk.streams import McpHeaders, StreamTransport
from indusagi.interop.protocol_bridge.client.session import ServerFacts
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.codec import encode_object
from indusagi.interop.protocol_bridge.rpc.connection import INTERNAL_ERROR

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from mcp_types import JSONRPCError, JSONRPCMessage

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.session import ClientSession
    from indusagi.interop.protocol_bridge.contract import SseServerConfig, StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.rpc.connection import Transport


_log = logging.getLogger(__name__)


@asynccontextmanager
async def remote_transport(
    config: SseServerConfig | StreamableHttpServerConfig, version: Callable[[], str | None]
) -> AsyncGenerator[Transport]:
    """Reach a server behind an address, and let it go when the block is left."""
    if config.kind == "sse":
        async with sse_transport(config) as link:
            await link.opened()
            yield link
        return
    async with (
        open_guarded_client(config) as (client, guard),
        # The guard counts the bytes of each event; the SDK's own cap knows no configuration.
        streamable_http_client(config.url, http_client=client, max_sse_event_size=None) as streams,
        anyio.create_task_group() as tasks,
    ):
        link = RawStreamTransport(streams, guard)
        link.stamp = RawMcpHeaders(cast("ClientSession", _Met(version)))
        tasks.start_soon(link.read)
        tasks.start_soon(link.write)
        try:
            yield link
        finally:
            link.finish("was let go", FaultDetail(reason="closed"))
            tasks.cancel_scope.cancel()


class RawStreamTransport(StreamTransport):
    """A link that adds nothing to what the server said."""

    def _frame(self, message: JSONRPCMessage) -> JsonObject:
        frame = super()._frame(message)
        try:
            return {key: _kept(value) for key, value in frame.items() if value is not None}
        except ValueError:
            said = "it sent a number that is too large to be passed on"
            if "method" in frame:
                _log.warning("a server said %s: %s", frame["method"], said)
                return {}
            error: JsonObject = {"code": INTERNAL_ERROR, "message": said}
            return {"jsonrpc": "2.0", "id": frame.get("id"), "error": error}

    def _error(self, message: JSONRPCError) -> JsonObject:
        frame = super()._error(message)
        error = cast("JsonObject", frame["error"])
        if error["data"] is None:
            del error["data"]
        return frame


def _kept(value: JsonValue) -> JsonValue:
    return encode_object(value) if isinstance(value, dict) else value


class _Met:
    """What a stamp wants to know of a server."""

    def __init__(self, version: Callable[[], str | None]) -> None:
        self.notes: list[str] = []
        self._version = version

    @property
    def facts(self) -> ServerFacts | None:
        version = self._version()
        return None if version is None else ServerFacts("legacy", version)


class RawMcpHeaders(McpHeaders):
    """Repeats in headers what has to be there, and leaves every list as it is."""

    def _admits(self, row: JsonValue) -> bool:
        if is_json_object(row):
            schema = row.get("inputSchema")
            if find_invalid_x_mcp_header(schema) is None:
                self._params[str(row.get("name"))] = x_mcp_header_map(schema)
        return True
