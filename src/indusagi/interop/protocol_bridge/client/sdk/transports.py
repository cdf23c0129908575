"""Client sessions over the MCP SDK: its HTTP transport, streams and sessions.

Import this module lazily: loading the SDK takes longer than starting most servers. The SDK only carries frames; the
protocol is ours. Every block here opens and closes in the task that entered it, and owns the tasks it starts.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
from mcp.client import Client
from mcp.client import ClientSession as SdkSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.memory import create_client_server_memory_streams

from indusagi.interop.protocol_bridge.client.http.guard import open_guarded_client
from indusagi.interop.protocol_bridge.client.http.sse import sse_transport
from indusagi.interop.protocol_bridge.client.sdk.session import (
    SdkSessionTransport,
    read_session_facts,
    tap_notifications,
)
from indusagi.interop.protocol_bridge.client.sdk.streams import McpHeaders, StreamTransport
from indusagi.interop.protocol_bridge.client.session import ClientSession, transport_session
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError, RpcError
from indusagi.interop.protocol_bridge.rpc.transport import is_transport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.client.http.guard import HttpGuard
    from indusagi.interop.protocol_bridge.client.sdk.session import NotificationTap
    from indusagi.interop.protocol_bridge.client.sdk.streams import Streams
    from indusagi.interop.protocol_bridge.contract import ServerConfig, SseServerConfig, StreamableHttpServerConfig

RemoteConfig: TypeAlias = "SseServerConfig | StreamableHttpServerConfig"

_log = logging.getLogger(__name__)
# Without a handler, `logging` would write to the terminal as a last resort.
logging.getLogger("mcp").addHandler(logging.NullHandler())
_SSE_ONLY = frozenset({404, 405})
"""Statuses with which an HTTP+SSE server refuses a POST to its URL."""
_ANY_TRANSPORT = frozenset({401, 403, 407, 408, 429})
"""Refusals that apply to every transport."""
_CLOSED = FaultDetail(reason="closed")


# -- remote servers -------------------------------------------------------------------------


@asynccontextmanager
async def remote_session(
    config: RemoteConfig, handlers: Handlers, client_info: JsonObject
) -> AsyncGenerator[ClientSession]:
    """Connect to a remote server; the caller sets the deadline.

    If the server refuses the configured HTTP transport, try the other one, as the specification describes:
    https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#backwards-compatibility
    """
    async with AsyncExitStack() as stack:
        if config.kind == "sse":
            session = await _open_sse_or_http(config, handlers, client_info, stack)
        else:
            session = await _open_http_or_sse(config, handlers, client_info, stack)
        yield session


async def _open_http_or_sse(
    config: StreamableHttpServerConfig, handlers: Handlers, client_info: JsonObject, stack: AsyncExitStack
) -> ClientSession:
    try:
        return await stack.enter_async_context(_http_session(config, handlers, client_info))
    except RpcError as exc:
        if exc.detail is None or exc.detail.http_status not in _SSE_ONLY:
            raise
        refusal = exc
    try:
        session = await stack.enter_async_context(_sse_session(config, handlers, client_info))
    except (RpcError, ConnectionClosedError):
        raise refusal from None
    session.notes.append("it speaks only the old HTTP transport (SSE)")
    return session


async def _open_sse_or_http(
    config: SseServerConfig, handlers: Handlers, client_info: JsonObject, stack: AsyncExitStack
) -> ClientSession:
    """Connect with HTTP+SSE, falling back to Streamable HTTP.

    A Streamable HTTP server refuses the GET that opens HTTP+SSE (405, or another 4xx because there's no session), or
    opens a stream but never sends the `endpoint` event on it.
    """
    try:
        return await stack.enter_async_context(_sse_session(config, handlers, client_info, config.limits.probe_s))
    except TimeoutError as exc:
        refusal = exc
    except ConnectionClosedError as exc:
        reason, status = exc.end.detail.reason, exc.end.detail.http_status
        # No status means that it responded, but ended the stream or sent another content type.
        may_speak_http = reason == "closed" if status is None else 400 <= status < 500 and status not in _ANY_TRANSPORT
        if not may_speak_http:
            raise
        refusal = exc
    try:
        session = await stack.enter_async_context(_http_session(config, handlers, client_info))
    except (RpcError, ConnectionClosedError):
        if not isinstance(refusal, TimeoutError):
            raise refusal from None
        return await stack.enter_async_context(_sse_session(config, handlers, client_info))
    session.notes.append("it is configured as SSE and speaks the present HTTP transport")
    return session


@asynccontextmanager
async def _http_session(
    config: RemoteConfig, handlers: Handlers, client_info: JsonObject
) -> AsyncGenerator[ClientSession]:
    async with open_guarded_client(config) as (client, guard):
        # The guard counts the bytes of each event; the SDK's limit isn't configurable per server.
        streams = streamable_http_client(config.url, http_client=client, max_sse_event_size=None)
        async with _stream_session(streams, config, handlers, client_info, guard) as session:
            _note_proxy(session, config, guard.via)
            yield session


@asynccontextmanager
async def _sse_session(
    config: RemoteConfig, handlers: Handlers, client_info: JsonObject, open_s: float | None = None
) -> AsyncGenerator[ClientSession]:
    failure: Exception | None = None
    async with sse_transport(config) as transport:
        session = ClientSession(transport, config.limits, handlers, client_info)
        try:
            async with asyncio.timeout(open_s):
                await transport.wait_open()
            # Servers with this transport speak the legacy protocol.
            await session.connect("legacy")
        except Exception as exc:  # noqa: BLE001 — boundary: raised below, outside the task group
            failure = exc
        else:
            _note_proxy(session, config, transport.via)
            yield session
        finally:
            await session.connection.close()
    if failure is not None:
        raise failure


def _note_proxy(session: ClientSession, config: RemoteConfig, via: str | None) -> None:
    if via is not None:
        warning = "" if config.url.lower().startswith("https:") else ", which can read all of it"
        session.notes.append(f"it is reached through the proxy {via}{warning}")


# -- SDK streams ----------------------------------------------------------------------------


@asynccontextmanager
async def _stream_session(
    opening: AbstractAsyncContextManager[Streams],
    config: ServerConfig,
    handlers: Handlers,
    client_info: JsonObject,
    guard: HttpGuard | None = None,
) -> AsyncGenerator[ClientSession]:
    failure: Exception | None = None
    async with opening as streams, anyio.create_task_group() as tasks:
        transport = StreamTransport(streams, guard)
        session = ClientSession(transport, config.limits, handlers, client_info)
        if guard is not None:
            transport.headers = McpHeaders(session)
            guard.on_foreign_response = session.note
            guard.on_gap = lambda: session.on_gap()
        tasks.start_soon(transport.read)
        tasks.start_soon(transport.write)
        try:
            await session.connect()
        except Exception as exc:  # noqa: BLE001 — boundary: raised below, outside the task group
            failure = exc
        else:
            yield session
        finally:
            await session.connection.close()
            transport.finish("was let go", _CLOSED)
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


# -- injected sessions, servers and streams -------------------------------------------------


@asynccontextmanager
async def injected_session(
    config: ServerConfig,
    handlers: Handlers,
    client_info: JsonObject,
    session_factory: Callable[[], AbstractAsyncContextManager[object]],
) -> AsyncGenerator[ClientSession]:
    """Open a session over a factory's result: a stream pair, low-level server, transport or SDK session.

    Raises:
        ProtocolFault: The factory yields something else.
    """
    async with AsyncExitStack() as stack:
        manager = session_factory()
        # A client's message handler can't be replaced after entering it.
        tap = stack.enter_context(tap_notifications(manager)) if isinstance(manager, Client) else None
        value = await stack.enter_async_context(manager)
        if isinstance(value, Client):
            value = value.session
        if isinstance(value, SdkSession):
            opening = _sdk_session(value, config, handlers, client_info, tap)
        elif isinstance(value, Server):
            opening = _stream_session(_run_server(cast("Server[Any]", value)), config, handlers, client_info)
        elif is_transport(value):
            opening = transport_session(value, config, handlers, client_info)
        else:
            pair = [*cast("tuple[Any, ...]", value)] if isinstance(value, tuple) else []
            if len(pair) not in {2, 3} or not hasattr(pair[0], "receive") or not hasattr(pair[1], "send"):
                kind = type(cast("object", value)).__name__
                message = (
                    f"server {config.id!r}: the session factory yields {kind}; "
                    "it must yield a ClientSession, a pair of streams, a low-level Server or a transport"
                )
                detail = FaultDetail(server=config.id, reason="malformed")
                raise ProtocolFault("protocol", message, detail=detail)
            # The caller closes its streams.
            streams: Streams = pair[0], pair[1]
            opening = _stream_session(nullcontext(streams), config, handlers, client_info)
        async with opening as session:
            yield session


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
    sdk_session: SdkSession,
    config: ServerConfig,
    handlers: Handlers,
    client_info: JsonObject,
    tap: NotificationTap | None,
) -> AsyncGenerator[ClientSession]:
    if sdk_session.protocol_version is None:
        await sdk_session.initialize()
    transport = SdkSessionTransport(sdk_session)
    session = ClientSession(transport, config.limits, handlers, client_info)
    session.facts = read_session_facts(sdk_session)
    # A modern session subscribes to changes and would receive them twice.
    if session.facts.era == "legacy" and tap is not None:
        tap.transport = transport
    elif session.facts.era == "legacy" and session.facts.offers("tools", "listChanged"):
        session.notes.append("its session was made elsewhere: changes of its tools are not noticed")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(transport.write, tasks)
        try:
            yield session
        finally:
            await session.connection.close()
            transport.finish("was let go", _CLOSED)
            tasks.cancel_scope.cancel()
