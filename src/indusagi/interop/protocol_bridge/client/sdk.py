"""Sessions, servers and streams of the MCP SDK that a caller injects, and stream pairs given to a host.

The only module that imports the SDK, which is optional: `load_sdk` imports this one when such a value is injected. The
SDK only carries frames; the protocol is ours. Its models keep `params` and `result` verbatim: key order, nulls and
vendor keys included.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
from mcp.client import Client
from mcp.client import ClientSession as SdkSession
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    ClientNotification,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    Notification,
    ProgressNotification,
    Request,
    jsonrpc_message_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from indusagi.interop.protocol_bridge.client.session import ClientSession, Era, ServerFacts
from indusagi.interop.protocol_bridge.contract import FaultDetail, ServerConfig
from indusagi.interop.protocol_bridge.rpc.transport import (
    QueuedTransport,
    find_cancelled_id,
    find_request_id,
    get_object,
)

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from mcp.client.session import IncomingMessage, MessageHandlerFnT

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId

_log = logging.getLogger(__name__)
# Without a handler, `logging` would write to the terminal as a last resort.
logging.getLogger("mcp").addHandler(logging.NullHandler())
_CLOSED = FaultDetail(reason="closed")
_FLUSH_S = 1.0
"""Time limit for sending the last frames."""
# Any: the SDK expects a model here, but accepts any adapter's result.
_raw: TypeAdapter[Any] = TypeAdapter(dict[str, Any])


# Any: the SDK's send streams have no type in common.
Streams: TypeAlias = "tuple[AsyncIterable[SessionMessage | Exception], Any]"


# -- stream pairs ---------------------------------------------------------------------------


class StreamTransport(QueuedTransport):
    """Transport over a pair of the SDK's streams, which knows when it has sent its queue."""

    def __init__(self, streams: Streams) -> None:
        super().__init__()
        self._read, self._write = streams
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

    async def write(self) -> None:
        """Send queued frames until the other side closes its stream."""
        try:
            while True:
                frame = await self.next_frame()
                try:
                    message = jsonrpc_message_adapter.validate_python(frame, by_name=False)
                except (ValueError, RecursionError) as exc:
                    if (request_id := find_request_id(frame)) is not None:
                        self.fail(request_id, f"it cannot be sent: {exc}")
                    continue
                await self._write.send(SessionMessage(message))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self.finish("stopped listening", _CLOSED)

    async def read(self) -> None:
        """Deliver messages until the other side ends the stream."""
        with suppress(anyio.ClosedResourceError):
            async for item in self._read:
                # Deliver messages that the SDK couldn't read as well, so that they count as invalid.
                self.deliver(None if isinstance(item, Exception) else _to_frame(item.message))
        self.finish("closed the connection", _CLOSED)


def _to_frame(message: JSONRPCMessage) -> JsonObject:
    if isinstance(message, JSONRPCResponse):
        return {"jsonrpc": "2.0", "id": message.id, "result": message.result}
    if not isinstance(message, JSONRPCError):
        return cast("JsonObject", dict(message))
    error = message.error
    told: JsonObject = {"code": error.code, "message": error.message, "data": error.data}
    return {"jsonrpc": "2.0", "id": message.id, "error": told}


@asynccontextmanager
async def stream_transport(streams: Streams, *, owned: bool) -> AsyncGenerator[StreamTransport]:
    """Run a transport over a stream pair; if it's `owned`, send the last frames and close both streams on exit."""
    transport = StreamTransport(streams)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(transport.read)
        tasks.start_soon(transport.write)
        try:
            yield transport
        finally:
            with anyio.CancelScope(shield=True):
                if owned:
                    await transport.wait_flushed()
                transport.finish("was let go", _CLOSED)
                tasks.cancel_scope.cancel()
                for stream in cast("tuple[Any, Any]", streams) if owned else ():
                    await stream.aclose()


# -- sessions -------------------------------------------------------------------------------


def _read_session_facts(session: SdkSession) -> ServerFacts:
    """Return a session's knowledge about its server."""
    result = session.discover_result or session.initialize_result
    dumped = {} if result is None else result.model_dump(by_alias=True, exclude_none=True)
    version = session.protocol_version or ""
    era: Era = "modern" if version in MODERN_PROTOCOL_VERSIONS else "legacy"
    return ServerFacts(era, version, dumped)


class NotificationTap:
    """Observes the notifications that an SDK client receives, and passes them on to the client's handler."""

    def __init__(self, handler: MessageHandlerFnT | None) -> None:
        self.transport: SdkSessionTransport | None = None
        """Where to deliver them, once it's set."""
        self._handler = handler

    async def __call__(self, message: IncomingMessage) -> None:
        """Deliver a message from the SDK's session."""
        # Progress reaches the transport through a callback, with the transport's request id.
        if self.transport is not None and not isinstance(message, (Exception, ProgressNotification)):
            self.transport.deliver(message.model_dump(by_alias=True, mode="json", exclude_none=True))
        if self._handler is not None:
            await self._handler(message)


@contextmanager
def tap_notifications(client: object) -> Generator[NotificationTap | None]:
    """Observe the notifications of a client before it's entered; other values have none to observe."""
    if not isinstance(client, Client):
        yield None
        return
    handler = client.message_handler
    client.message_handler = tap = NotificationTap(handler)
    try:
        yield tap
    finally:
        client.message_handler = handler


class SdkSessionTransport(QueuedTransport):
    """Transport over an SDK session, whose own callbacks stay in effect."""

    def __init__(self, session: SdkSession) -> None:
        super().__init__()
        self._session = session
        self._requests: dict[RequestId, anyio.CancelScope] = {}

    async def write(self, tasks: TaskGroup) -> None:
        """Send queued frames, each request in a separate task."""
        while True:
            frame = await self.next_frame()
            identity, cancelled = find_request_id(frame), find_cancelled_id(frame)
            if identity is not None:
                self._requests[identity] = anyio.CancelScope()
                tasks.start_soon(self._request, identity, frame)
            elif cancelled in self._requests:
                self._requests[cancelled].cancel()
            elif cancelled is None:
                notification = Notification[Any, Any](method=frame.get("method"), params=frame.get("params"))
                await self._session.send_notification(cast("ClientNotification", notification))

    async def _request(self, identity: RequestId, frame: JsonObject) -> None:
        try:
            with self._requests[identity]:
                result = await self._send_request(identity, frame)
                self.deliver({"jsonrpc": "2.0", "id": identity, "result": result})
        except MCPError as exc:
            if exc.code == CONNECTION_CLOSED and exc.message == "Connection closed":
                self.finish("closed the connection", FaultDetail(reason="closed"))
            error: JsonObject = {"code": exc.code, "message": exc.message, "data": exc.error.data}
            self.deliver({"jsonrpc": "2.0", "id": identity, "error": error})
        except ValidationError as exc:
            message = f"the session could not read the answer: {exc}"
            self.fail(identity, message, FaultDetail(reason="malformed"))
        except SubscriptionLost as exc:
            self.fail(identity, str(exc))
        finally:
            self._requests.pop(identity, None)

    async def _send_request(self, identity: RequestId, frame: JsonObject) -> JsonObject:
        if frame["method"] == "subscriptions/listen":
            async with listen(self._session, tools_list_changed=True) as changes:
                async for _ in changes:
                    self.deliver({"method": "notifications/tools/list_changed"})
            return {}

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            report: JsonObject = {"progressToken": identity, "progress": progress}
            report |= {} if total is None else {"total": total}
            report |= {} if message is None else {"message": message}
            self.deliver({"method": "notifications/progress", "params": report})

        request = Request[Any, Any](method=frame["method"], params=frame.get("params"))
        meta = get_object(get_object(frame, "params"), "_meta")
        callback = on_progress if "progressToken" in meta else None
        return await self._session.send_request(request, _raw, progress_callback=callback)


# -- opening --------------------------------------------------------------------------------


def injected_session(
    value: object, config: ServerConfig, handlers: Handlers, tap: NotificationTap | None
) -> AbstractAsyncContextManager[ClientSession] | None:
    """Return a session over a connected SDK session, a low-level server or a stream pair; `None` for other values."""
    if isinstance(value, Client):
        value = value.session
    if isinstance(value, SdkSession):
        return _sdk_session(value, config, handlers, tap)
    if isinstance(value, Server):
        return _stream_session(_run_server(cast("Server[Any]", value)), config, handlers)
    pair: tuple[Any, ...] = cast("tuple[Any, ...]", value) if isinstance(value, tuple) else ()
    if len(pair) in {2, 3} and hasattr(pair[0], "receive") and hasattr(pair[1], "send"):
        # The caller closes its streams.
        return _stream_session(nullcontext((pair[0], pair[1])), config, handlers)
    return None


@asynccontextmanager
async def _stream_session(
    opening: AbstractAsyncContextManager[Streams], config: ServerConfig, handlers: Handlers
) -> AsyncGenerator[ClientSession]:
    failure: Exception | None = None
    async with opening as streams, stream_transport(streams, owned=False) as transport:
        session = ClientSession(transport, config, handlers)
        try:
            await session.connect()
        except Exception as exc:  # noqa: BLE001 — boundary: raised below, outside the task group
            failure = exc
        else:
            yield session
        finally:
            await session.connection.close()
    if failure is not None:
        raise failure


@asynccontextmanager
async def _run_server(server: Server[Any]) -> AsyncGenerator[Streams]:
    """Run a server in this process, in a task of this block."""
    async with create_client_server_memory_streams() as (ours, theirs), anyio.create_task_group() as tasks:

        async def run() -> None:
            options = server.create_initialization_options(NotificationOptions(tools_changed=True))
            read, write = theirs
            async with read, write:
                try:
                    await server.run(read, write, options)
                except Exception:  # noqa: BLE001 — boundary: the server is the caller's
                    _log.exception("a server in this process failed")

        tasks.start_soon(run)
        try:
            yield ours
        finally:
            tasks.cancel_scope.cancel()


@asynccontextmanager
async def _sdk_session(
    sdk_session: SdkSession, config: ServerConfig, handlers: Handlers, tap: NotificationTap | None
) -> AsyncGenerator[ClientSession]:
    if sdk_session.protocol_version is None:
        await sdk_session.initialize()
    transport = SdkSessionTransport(sdk_session)
    session = ClientSession(transport, config, handlers)
    facts = session.facts = _read_session_facts(sdk_session)
    session.is_modern = facts.era == "modern"
    # A modern session subscribes to changes and would receive them twice.
    if not session.is_modern and tap is not None:
        tap.transport = transport
    elif not session.is_modern and facts.offers("tools", "listChanged"):
        session.notes.append("its session was made elsewhere: changes of its tools are not noticed")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(transport.write, tasks)
        try:
            yield session
        finally:
            await session.connection.close()
            transport.finish("was let go", _CLOSED)
            tasks.cancel_scope.cancel()
