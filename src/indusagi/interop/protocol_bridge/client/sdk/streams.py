"""Transports over a pair of MCP SDK streams, and the HTTP headers that MCP adds to their frames.

The SDK's models keep `params` and `result` verbatim: key order, nulls and vendor keys included.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from functools import partial
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
from indusagi.interop.protocol_bridge.rpc.transport import (
    QueuedTransport,
    find_cancelled_id,
    find_request_id,
    get_object,
)
from indusagi.runtime.calls import acting_subject

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable

    from anyio.abc import AsyncResource

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.http.guard import HttpGuard
    from indusagi.interop.protocol_bridge.client.session import ServerFacts
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId
    from indusagi.runtime.calls import SubjectToken


_META_VERSION = "io.modelcontextprotocol/protocolVersion"
_NAMED_BY = {**NAME_BEARING_METHODS, "tasks/get": "taskId", "tasks/update": "taskId", "tasks/cancel": "taskId"}
"""The parameter that the `Mcp-Name` header repeats, by method; the SDK doesn't know tasks."""


class Writer(Protocol):
    """The half of a stream pair that accepts messages."""

    async def send(self, item: SessionMessage, /) -> None:
        """Wait until a message is accepted."""
        ...


Streams: TypeAlias = "tuple[AsyncIterable[SessionMessage | Exception], Writer]"


class StreamTransport(QueuedTransport):
    """Transport over a pair of the SDK's streams."""

    def __init__(self, streams: Streams, guard: HttpGuard | None = None) -> None:
        super().__init__()
        self.headers: McpHeaders | None = None
        """Set before the first frame is sent, if the streams lead to HTTP."""
        self._read, self._write = streams
        self._guard = guard
        self._subjects: dict[RequestId, SubjectToken] = {}
        """Subjects of queued requests made on behalf of a client."""
        if guard is not None:
            detail = FaultDetail(reason="closed", http_status=404)
            guard.on_session_lost = partial(self.finish, "no longer knows our session (HTTP 404)", detail)

    def send(self, frame: JsonObject) -> None:
        """Enqueue a frame, and give up a cancelled HTTP request."""
        cancelled = find_cancelled_id(frame)
        if cancelled is not None and self._guard is not None:
            self._guard.give_up(cancelled)
        subject, request_id = acting_subject.get(), find_request_id(frame)
        if subject is not None and request_id is not None and self._guard is not None:
            self._subjects[request_id] = subject
        super().send(frame)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget why the underlying HTTP request failed."""
        return None if self._guard is None else self._guard.take_detail(request_id)

    # -- outbound ---------------------------------------------------------------------------

    async def write(self) -> None:
        """Send queued frames until the other side closes its stream."""
        try:
            while True:
                frame = await self.next_frame()
                request_id = find_request_id(frame)
                # The SDK sends the HTTP request in a copy of this context, where the guard's authorizer reads it.
                acting_subject.set(None if request_id is None else self._subjects.pop(request_id, None))
                message = self._encode(frame)
                if message is None:
                    continue
                headers = None if self.headers is None else self.headers.build(frame)
                metadata = None if headers is None else ClientMessageMetadata(headers=headers)
                await self._write.send(SessionMessage(message, metadata))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.finish("stopped listening", FaultDetail(reason="closed"))

    def _encode(self, frame: JsonObject) -> JSONRPCMessage | None:
        try:
            message = jsonrpc_message_adapter.validate_python(frame, by_name=False)
            if self._guard is not None:
                # Failing here affects one request; failing in the SDK's transport would end them all.
                message.model_dump(mode="json")
                json.dumps(frame, ensure_ascii=False, allow_nan=False).encode()
        except (ValueError, RecursionError) as exc:
            identity = find_request_id(frame)
            if identity is not None:
                self.fail(identity, f"it cannot be sent: {exc}")
            return None
        return message

    # -- inbound ----------------------------------------------------------------------------

    async def read(self) -> None:
        """Deliver messages until the other side ends the stream."""
        async for item in self._read:
            # Deliver messages that the SDK couldn't read as well, so that they count as invalid.
            self.deliver(None if isinstance(item, Exception) else self._to_frame(item.message))
        self.finish("closed the connection", FaultDetail(reason="closed"))

    def _to_frame(self, message: JSONRPCMessage) -> JsonObject:
        if isinstance(message, JSONRPCError):
            return self._to_error_frame(message)
        if not isinstance(message, JSONRPCResponse):
            return cast("JsonObject", dict(message))
        result = message.result
        if self._guard is not None:
            self._guard.note(message.id, None)
        if self.headers is not None:
            result = self.headers.read_result(message.id, result)
        return {"jsonrpc": "2.0", "id": message.id, "result": result}

    def _to_error_frame(self, message: JSONRPCError) -> JsonObject:
        identity, error = message.id, message.error
        text = error.message
        if self._guard is not None and identity is not None:
            # The SDK's own report about a response; no server sent it.
            is_parse_failure = error.code == PARSE_ERROR and text.startswith("Failed to parse ")
            if is_parse_failure and self._guard.find_failure(identity) is None:
                self._guard.note(identity, build_failure("sent an answer that cannot be read", "malformed"))
            failure = self._guard.find_failure(identity)
            text = f"it {failure.message}" if failure is not None and failure.message else text
        return {"jsonrpc": "2.0", "id": identity, "error": {"code": error.code, "message": text, "data": error.data}}


class HeaderSource(Protocol):
    """The part of a session that `McpHeaders` needs."""

    @property
    def facts(self) -> ServerFacts | None:
        """The result of the handshake, once there is one."""
        ...

    def note(self, note: str, /) -> None:
        """Note an oddity of the server."""
        ...


class McpHeaders:
    """HTTP headers that repeat parts of a frame: version, method, name, marked arguments.

    https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#protocol-version-header
    """

    def __init__(self, session: HeaderSource) -> None:
        self._session = session
        self._listings: set[RequestId] = set()
        self._params: dict[str, dict[tuple[str, ...], str]] = {}

    def build(self, frame: JsonObject) -> dict[str, str] | None:
        """Build the headers for the HTTP request that carries a frame."""
        method, params = frame.get("method"), get_object(frame, "params")
        version = get_object(params, "_meta").get(_META_VERSION)
        if isinstance(version, str) and isinstance(method, str):
            identity = find_request_id(frame)
            if method == "tools/list" and identity is not None:
                self._listings.add(identity)
            headers = {MCP_PROTOCOL_VERSION_HEADER: version, MCP_METHOD_HEADER: method}
            name, arguments = params.get(_NAMED_BY.get(method, "")), params.get("arguments")
            if isinstance(name, str):
                headers[MCP_NAME_HEADER] = encode_header_value(name)
                if method == "tools/call" and name in self._params and is_json_object(arguments):
                    headers |= mcp_param_headers(self._params[name], arguments)
            return headers
        facts = self._session.facts
        if facts is None or method == "initialize":
            return None
        return {MCP_PROTOCOL_VERSION_HEADER: facts.version}

    def read_result(self, identity: RequestId, result: JsonObject) -> JsonObject:
        """Learn from a `tools/list` result which arguments go into headers.

        Drop tools with invalid marks in their schema, which the protocol forbids to use.
        """
        tools = result.get("tools")
        if identity not in self._listings or not isinstance(tools, list):
            return result
        self._listings.discard(identity)
        return {**result, "tools": [row for row in tools if self._admit(row)]}

    def _admit(self, row: JsonValue) -> bool:
        if not is_json_object(row):
            return True
        schema = row.get("inputSchema")
        problem = find_invalid_x_mcp_header(schema)
        if problem is None:
            self._params[str(row.get("name"))] = x_mcp_header_map(schema)
            return True
        self._session.note(f"its tool {row.get('name')!r} was left out: {problem}")
        return False


_FLUSH_S = 1.0
"""Time limit for sending the last frames."""


class HostStreamTransport(StreamTransport):
    """A stream transport that knows when it has sent its queue."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._flushed = asyncio.Event()
        self._flushed.set()

    def send(self, frame: JsonObject) -> None:
        """Enqueue a frame."""
        self._flushed.clear()
        super().send(frame)

    async def next_frame(self) -> JsonObject:
        """Dequeue the next frame; at that point the previous one has been sent."""
        if not self._queue:
            self._flushed.set()
        return await super().next_frame()

    async def wait_flushed(self) -> None:
        """Wait until the queue is sent or the transport has ended, up to `_FLUSH_S` seconds."""
        if self._end is None:
            with anyio.move_on_after(_FLUSH_S):
                await self._flushed.wait()


@asynccontextmanager
async def host_streams(streams: Streams) -> AsyncGenerator[HostStreamTransport]:
    """Serve over a stream pair; close both streams on exit, like the SDK's servers do."""
    transport = HostStreamTransport(streams)

    async def read() -> None:
        try:
            await transport.read()
        except anyio.ClosedResourceError:
            transport.finish("closed the connection", FaultDetail(reason="closed"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(transport.write)
        try:
            yield transport
        finally:
            with anyio.CancelScope(shield=True):
                await transport.wait_flushed()
                tasks.cancel_scope.cancel()
                for stream in streams:
                    await cast("AsyncResource", stream).aclose()
