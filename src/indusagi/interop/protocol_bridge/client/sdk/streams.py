"""A pair of the SDK's streams as a link, and what HTTP adds to the frames on them.

The SDK's models hold `params` and `result` as they came, key order, nulls and vendor keys included.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

import anyio
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCResponse, jsonrpc_message_adapter

from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.client.http.failures import build_failure
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import PARSE_ERROR
from indusagi.interop.protocol_bridge.rpc.transport import QueuedTransport, find_cancelled_id, find_request_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable

    from anyio.abc import AsyncResource

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.http.guard import HttpGuard
    from indusagi.interop.protocol_bridge.client.session import ClientSession
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId


_STAMPED_VERSION = "io.modelcontextprotocol/protocolVersion"


class Writer(Protocol):
    """The half of a stream pair that takes messages."""

    async def send(self, item: SessionMessage, /) -> None:
        """Wait until a message is taken."""
        ...


Streams: TypeAlias = "tuple[AsyncIterable[SessionMessage | Exception], Writer]"


class StreamTransport(QueuedTransport):
    """A link over a pair of the SDK's streams."""

    def __init__(self, streams: Streams, guard: HttpGuard | None = None) -> None:
        super().__init__()
        self.stamp: McpHeaders | None = None
        """Set before anything is sent, where the streams lead to HTTP."""
        self._read, self._write = streams
        self._guard = guard
        if guard is not None:
            guard.on_session_lost = self._session_lost

    def send(self, frame: JsonObject) -> None:
        """Put a frame in line."""
        unwanted = find_cancelled_id(frame)
        if unwanted is not None and self._guard is not None:
            self._guard.give_up(unwanted)
        super().send(frame)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Tell what befell the HTTP request that carried it, and forget it."""
        return None if self._guard is None else self._guard.take_detail(request_id)

    # -- out --------------------------------------------------------------------------------

    async def write(self) -> None:
        """Send what stands in line, until the other side is gone."""
        try:
            while True:
                frame = await self.following()
                message = self._message(frame)
                if message is not None:
                    await self._write.send(SessionMessage(message, self._metadata(frame)))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.finish("stopped listening", FaultDetail(reason="closed"))

    def _metadata(self, frame: JsonObject) -> ClientMessageMetadata | None:
        headers = None if self.stamp is None else self.stamp.headers(frame)
        return None if headers is None else ClientMessageMetadata(headers=headers)

    def _message(self, frame: JsonObject) -> JSONRPCMessage | None:
        try:
            message = jsonrpc_message_adapter.validate_python(frame, by_name=False)
            if self._guard is not None:
                # Found out here it is one failed request; later it would be the end of them all.
                message.model_dump(mode="json")
                json.dumps(frame, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as exc:
            identity = find_request_id(frame)
            if identity is not None:
                self.fail(identity, f"it cannot be sent: {exc}")
            return None
        return message

    # -- in ---------------------------------------------------------------------------------

    async def read(self) -> None:
        """Hand on what comes, until the other side ends it."""
        async for item in self._read:
            # What the SDK could not read is handed on too, to be counted.
            self.deliver(None if isinstance(item, Exception) else self._frame(item.message))
        self.finish("closed the connection", FaultDetail(reason="closed"))

    def _frame(self, message: JSONRPCMessage) -> JsonObject:
        if isinstance(message, JSONRPCError):
            return self._error(message)
        if not isinstance(message, JSONRPCResponse):
            return cast("JsonObject", dict(message))
        result = message.result
        if self._guard is not None:
            self._guard.note(message.id, None)
        if self.stamp is not None:
            result = self.stamp.answered(message.id, result)
        return {"jsonrpc": "2.0", "id": message.id, "result": result}

    def _error(self, message: JSONRPCError) -> JsonObject:
        identity, given = message.id, message.error
        said = given.message
        if self._guard is not None and identity is not None:
            if self._guard.known(identity) is None and _is_parse_failure(message):
                unread = build_failure("sent an answer that cannot be read", "malformed")
                self._guard.note(identity, unread)
            found = self._guard.known(identity)
            said = f"it {found.said}" if found is not None and found.said else said
        error: JsonObject = {"code": given.code, "message": said, "data": given.data}
        return {"jsonrpc": "2.0", "id": identity, "error": error}

    def _session_lost(self) -> None:
        detail = FaultDetail(reason="closed", http_status=404)
        self.finish("no longer knows our session (HTTP 404)", detail)


def _is_parse_failure(message: JSONRPCError) -> bool:
    """Tell the SDK's own complaint about an answer from an error that a server answered."""
    error = message.error
    return error.code == PARSE_ERROR and error.message.startswith("Failed to parse ")


class McpHeaders:
    """Repeats in HTTP headers what the modern protocol wants those on the way to see."""

    def __init__(self, peer: ClientSession) -> None:
        self._peer = peer
        self._listings: set[RequestId] = set()
        self._params: dict[str, dict[tuple[str, ...], str]] = {}

    def headers(self, frame: JsonObject) -> dict[str, str] | None:
        """Give the headers of the HTTP request that carries a frame."""
        method, params = frame.get("method"), frame.get("params")
        given = params if is_json_object(params) else {}
        meta = given.get("_meta")
        stamped = meta.get(_STAMPED_VERSION) if is_json_object(meta) else None
        if isinstance(stamped, str) and isinstance(method, str):
            self._expect(frame)
            return {MCP_PROTOCOL_VERSION_HEADER: stamped, **self._routing(method, given)}
        facts = self._peer.facts
        if facts is None or method == "initialize":
            return None
        return {MCP_PROTOCOL_VERSION_HEADER: facts.version}

    def _routing(self, method: str, params: JsonObject) -> dict[str, str]:
        headers = {MCP_METHOD_HEADER: method}
        name = params.get(NAME_BEARING_METHODS.get(method, ""))
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            arguments = params.get("arguments")
            if method == "tools/call" and name in self._params and is_json_object(arguments):
                headers |= mcp_param_headers(self._params[name], arguments)
        return headers

    def _expect(self, frame: JsonObject) -> None:
        identity = find_request_id(frame)
        if frame.get("method") == "tools/list" and identity is not None:
            self._listings.add(identity)

    def answered(self, identity: RequestId, result: JsonObject) -> JsonObject:
        """Learn from a list of tools which arguments go into headers.

        The protocol forbids to use a tool whose schema says so in a wrong way: it is left out.
        """
        tools = result.get("tools")
        if identity not in self._listings or not isinstance(tools, list):
            return result
        self._listings.discard(identity)
        return {**result, "tools": [row for row in tools if self._admits(row)]}

    def _admits(self, row: JsonValue) -> bool:
        if not is_json_object(row):
            return True
        schema = row.get("inputSchema")
        why = find_invalid_x_mcp_header(schema)
        if why is None:
            self._params[str(row.get("name"))] = x_mcp_header_map(schema)
            return True
        self._peer.note(f"its tool {row.get('name')!r} was left out: {why}")
        return False


_FLUSH_S = 1.0
"""How long the last words may take to be read."""


class HostStreamTransport(StreamTransport):
    """A link that can tell when all was said."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._said = asyncio.Event()
        self._said.set()

    @property
    def accepts_notifications(self) -> bool:
        """Whether there is anybody at the other end."""
        return self._end is None

    def send(self, frame: JsonObject) -> None:
        """Put a frame in line."""
        self._said.clear()
        super().send(frame)

    async def following(self) -> JsonObject:
        """Take the next frame; by then the one before has been taken."""
        if not self._line:
            self._said.set()
        return await super().following()

    async def flushed(self) -> None:
        """Wait until all was said, or there is nobody to hear it."""
        if self._end is None:
            with anyio.move_on_after(_FLUSH_S):
                await self._said.wait()


@asynccontextmanager
async def host_streams(streams: Streams) -> AsyncGenerator[HostStreamTransport]:
    """Carry what goes over a stream pair, and close it at the end, as a server of the SDK does."""
    link = HostStreamTransport(streams)

    async def read() -> None:
        try:
            await link.read()
        except anyio.ClosedResourceError:
            link.finish("closed the connection", FaultDetail(reason="closed"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(link.write)
        try:
            yield link
        finally:
            with anyio.CancelScope(shield=True):
                await link.flushed()
                tasks.cancel_scope.cancel()
                for stream in streams:
                    await cast("AsyncResource", stream).aclose()
