"""Raw transports from a relay to a remote server: frames pass the SDK's HTTP transport unchanged."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio
from mcp.client.streamable_http import streamable_http_client

from indusagi.interop.protocol_bridge.client.http.guard import open_guarded_client
from indusagi.interop.protocol_bridge.client.http.sse import sse_transport
from indusagi.interop.protocol_bridge.client.sdk.streams import McpHeaders, StreamTransport
from indusagi.interop.protocol_bridge.client.session import ServerFacts
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import INTERNAL_ERROR
from indusagi.interop.protocol_bridge.rpc.transport import encode_object

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from mcp_types import JSONRPCError, JSONRPCMessage

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import SseServerConfig, StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import Transport


_log = logging.getLogger(__name__)


@asynccontextmanager
async def remote_transport(
    config: SseServerConfig | StreamableHttpServerConfig, version: Callable[[], str | None]
) -> AsyncGenerator[Transport]:
    """Open a transport to a remote server; close it on exit."""
    if config.kind == "sse":
        async with sse_transport(config) as transport:
            await transport.wait_open()
            yield transport
        return
    async with (
        open_guarded_client(config) as (client, guard),
        # The guard counts the bytes of each event; the SDK's limit isn't configurable per server.
        streamable_http_client(config.url, http_client=client, max_sse_event_size=None) as streams,
        anyio.create_task_group() as tasks,
    ):
        transport = RawStreamTransport(streams, guard)
        transport.headers = RawMcpHeaders(_AgreedVersion(version))
        tasks.start_soon(transport.read)
        tasks.start_soon(transport.write)
        try:
            yield transport
        finally:
            transport.finish("was let go", FaultDetail(reason="closed"))
            tasks.cancel_scope.cancel()


class RawStreamTransport(StreamTransport):
    """A stream transport that delivers frames without the keys added by the SDK's models."""

    def _to_frame(self, message: JSONRPCMessage) -> JsonObject:
        frame = super()._to_frame(message)
        try:
            return {
                key: encode_object(value) if isinstance(value, dict) else value
                for key, value in frame.items()
                if value is not None
            }
        except ValueError:
            problem = "it sent a number that is too large to be passed on"
            if "method" in frame:
                _log.warning("a server sent %s: %s", frame["method"], problem)
                return {}
            error: JsonObject = {"code": INTERNAL_ERROR, "message": problem}
            return {"jsonrpc": "2.0", "id": frame.get("id"), "error": error}

    def _to_error_frame(self, message: JSONRPCError) -> JsonObject:
        frame = super()._to_error_frame(message)
        error = cast("JsonObject", frame["error"])
        if error["data"] is None:
            del error["data"]
        return frame


class _AgreedVersion:
    """Provides the version of a handshake that passed through the relay to `McpHeaders`."""

    def __init__(self, version: Callable[[], str | None]) -> None:
        self._version = version

    @property
    def facts(self) -> ServerFacts | None:
        version = self._version()
        return None if version is None else ServerFacts("legacy", version)

    def note(self, note: str, /) -> None:
        """Drop the note: the relay's client sees the server's own list."""


class RawMcpHeaders(McpHeaders):
    """MCP headers for a relay, which keeps `tools/list` results complete."""

    def _admit(self, row: JsonValue) -> bool:
        super()._admit(row)
        return True
