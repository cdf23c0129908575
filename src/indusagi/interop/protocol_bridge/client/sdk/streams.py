"""Transports over a pair of the MCP SDK's streams, and the HTTP headers that MCP adds to their frames.

The SDK's models hold `params` and `result` as they came: key order, nulls and vendor keys included.
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
from indusagi.interop.protocol_bridge.rpc.transport import QueuedTransport, find_cancelled_id, find_request_id
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
"""The parameter that the header `Mcp-Name` repeats, by method; the SDK knows nothing of tasks."""


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
        """Set before the first frame is sent, where the streams lead to HTTP."""
        self._read, self._write = streams
        self._guard = guard
        self._subjects: dict[RequestId, SubjectToken] = {}
        """Of queued requests that are made in the name of a client."""
        if guard is not None:
            detail = FaultDetail(reason="closed", http_status=404)
            guard.on_session_lost = partial(self.finish, "no longer knows our session (HTTP 404)", detail)

    def send(self, frame: JsonObject) -> None:
        """Put a frame into the queue; a cancelled HTTP request is given up."""
        cancelled = find_cancelled_id(frame)
        if cancelled is not None and self._guard is not None:
            self._guard.give_up(cancelled)
        subject, request_id = acting_subject.get(), find_request_id(frame)
        if subject is not None and request_id is not None and self._guard is not None:
            self._subjects[request_id] = subject
        super().send(frame)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget why the HTTP request that carried it failed."""
        return None if self._guard is None else self._guard.take_detail(request_id)

    # -- outbound ---------------------------------------------------------------------------

    async def write(self) -> None:
        """Send the frames of the queue until the other side closes its stream."""
        try:
            while True:
                frame = await self.next_frame()
                request_id = find_request_id(frame)
                # The SDK sends the HTTP request in a copy of this context; the authorizer of the guard reads it there.
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
                # Here it fails one request; in the SDK's transport it would end all of them.
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
            # What the SDK could not read is delivered too, to be counted as invalid.
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
            # The SDK's own report about a response, which no server has sent.
            is_parse_failure = error.code == PARSE_ERROR and text.startswith("Failed to parse ")
            if is_parse_failure and self._guard.find_failure(identity) is None:
                self._guard.note(identity, build_failure("sent an answer that cannot be read", "malformed"))
            failure = self._guard.find_failure(identity)
            text = f"it {failure.message}" if failure is not None and failure.message else text
        return {"jsonrpc": "2.0", "id": identity, "error": {"code": error.code, "message": text, "data": error.data}}


class HeaderSource(Protocol):
    """What `McpHeaders` needs of a session."""

    @property
    def facts(self) -> ServerFacts | None:
        """The result of the handshake, once there was one."""
        ...

    def note(self, note: str, /) -> None:
        """Note what is odd about the server."""
        ...


class McpHeaders:
    """The headers of an HTTP request that repeat parts of its frame: version, method, name, marked arguments.

    https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#protocol-version-header
    """

    def __init__(self, session: HeaderSource) -> None:
        self._session = session
        self._listings: set[RequestId] = set()
        self._params: dict[str, dict[tuple[str, ...], str]] = {}

    def build(self, frame: JsonObject) -> dict[str, str] | None:
        """Build the headers of the HTTP request that carries a frame."""
        method, value = frame.get("method"), frame.get("params")
        params = value if is_json_object(value) else {}
        meta = params.get("_meta")
        version = meta.get(_META_VERSION) if is_json_object(meta) else None
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

        The protocol forbids the use of a tool whose schema marks them in an invalid way: it is left out.
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
"""How long the last frames may take to be accepted."""


class HostStreamTransport(StreamTransport):
    """A stream transport that knows when its queue has been sent."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._flushed = asyncio.Event()
        self._flushed.set()

    def send(self, frame: JsonObject) -> None:
        """Put a frame into the queue."""
        self._flushed.clear()
        super().send(frame)

    async def next_frame(self) -> JsonObject:
        """Take the next frame; by then the one before has been accepted."""
        if not self._queue:
            self._flushed.set()
        return await super().next_frame()

    async def wait_flushed(self) -> None:
        """Wait until the queue has been sent or the transport has ended, at most `_FLUSH_S` seconds."""
        if self._end is None:
            with anyio.move_on_after(_FLUSH_S):
                await self._flushed.wait()


@asynccontextmanager
async def host_streams(streams: Streams) -> AsyncGenerator[HostStreamTransport]:
    """Serve over a stream pair, and close both streams when the block is left, as a server of the SDK does."""
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
