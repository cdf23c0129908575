"""The one place where the MCP SDK is used: its HTTP transport, its streams, its sessions.

Loading it takes longer than starting most servers, so this module is imported when it is needed.
The SDK carries frames; what they mean is ours to know. Every block here opens and closes in the
task that entered it, and owns the tasks it starts.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
from mcp.client import Client
from mcp.client import ClientSession as SdkSession
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.shared.memory import create_client_server_memory_streams

from indusagi.interop.protocol_bridge.client.http.guard import open_guarded_client
from indusagi.interop.protocol_bridge.client.http.sse import sse_transport
from indusagi.interop.protocol_bridge.client.memory import is_transport, transport_session
from indusagi.interop.protocol_bridge.client.sdk.session import SdkSessionTransport, session_facts, tap_notifications
from indusagi.interop.protocol_bridge.client.sdk.streams import McpHeaders, StreamTransport
from indusagi.interop.protocol_bridge.client.session import ClientSession
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError, RpcError

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
# Without a handler of anybody's, the last resort of logging would write to the terminal.
logging.getLogger("mcp").addHandler(logging.NullHandler())
_OTHER_TRANSPORT = frozenset({404, 405})
"""What a server that knows only the old HTTP transport answers to a POST at its address."""
_NOT_THE_TRANSPORT = frozenset({401, 403, 407, 408, 429})
"""Refusals that another transport would meet as well."""
_LET_GO = FaultDetail(reason="closed")


# -- servers behind an address --------------------------------------------------------------


@asynccontextmanager
async def remote_session(
    config: RemoteConfig, handlers: Handlers, client_info: JsonObject
) -> AsyncGenerator[ClientSession]:
    """Connect to a server behind an address; the caller sets the deadline.

    A server that refuses the present transport outright is asked in the old one as well.
    """
    async with AsyncExitStack() as stack:
        if config.kind == "sse":
            peer = await _old_or_present(config, handlers, client_info, stack)
        else:
            peer = await _either(config, handlers, client_info, stack)
        yield peer


async def _either(
    config: StreamableHttpServerConfig, handlers: Handlers, client_info: JsonObject, stack: AsyncExitStack
) -> ClientSession:
    try:
        return await stack.enter_async_context(_http_peer(config, handlers, client_info))
    except RpcError as exc:
        if exc.detail is None or exc.detail.http_status not in _OTHER_TRANSPORT:
            raise
        refused = exc
    try:
        peer = await stack.enter_async_context(_sse_peer(config, handlers, client_info))
    except (RpcError, ConnectionClosedError):
        raise refused from None
    peer.notes.append("it speaks only the old HTTP transport (SSE)")
    return peer


async def _old_or_present(
    config: SseServerConfig, handlers: Handlers, client_info: JsonObject, stack: AsyncExitStack
) -> ClientSession:
    """Connect by the old HTTP transport, or by the present one where the server has only that.

    A server of the present transport refuses the GET that opens the old one (405, or 4xx for want
    of a session), or opens a stream on which it never names an address to post to.
    https://modelcontextprotocol.io/specification/2025-06-18/basic/transports
    """
    opening = _sse_peer(config, handlers, client_info, config.limits.probe_s)
    try:
        return await stack.enter_async_context(opening)
    except (RpcError, ConnectionClosedError, TimeoutError) as exc:
        if not _may_be_present(exc):
            raise
        refused = exc
    try:
        peer = await stack.enter_async_context(_http_peer(config, handlers, client_info))
    except (RpcError, ConnectionClosedError):
        if not isinstance(refused, TimeoutError):
            raise refused from None
        return await stack.enter_async_context(_sse_peer(config, handlers, client_info))
    peer.notes.append("it is configured as SSE and speaks the present HTTP transport")
    return peer


def _may_be_present(exc: Exception) -> bool:
    """Tell whether a server that refused the old HTTP transport may speak the present one."""
    if not isinstance(exc, ConnectionClosedError):
        return isinstance(exc, TimeoutError)
    detail = exc.end.detail
    if detail.http_status is None:
        return detail.reason == "closed"  # it answered, and ended the stream or sent another type
    return 400 <= detail.http_status < 500 and detail.http_status not in _NOT_THE_TRANSPORT


@asynccontextmanager
async def _http_peer(
    config: RemoteConfig, handlers: Handlers, client_info: JsonObject
) -> AsyncGenerator[ClientSession]:
    async with open_guarded_client(config) as (client, guard):
        # The guard counts the bytes of each event; the SDK's own cap knows no configuration.
        transport = streamable_http_client(config.url, http_client=client, max_sse_event_size=None)
        async with _stream_peer(transport, config, handlers, client_info, guard) as peer:
            _tell_of_proxy(peer, config, guard.via)
            yield peer


@asynccontextmanager
async def _sse_peer(
    config: RemoteConfig, handlers: Handlers, client_info: JsonObject, opened_s: float | None = None
) -> AsyncGenerator[ClientSession]:
    failure: Exception | None = None
    async with sse_transport(config) as link:
        peer = ClientSession(link, config.limits, handlers, client_info)
        try:
            async with asyncio.timeout(opened_s):
                await link.opened()
            # Whoever speaks this transport speaks the older protocol.
            await peer.connect("legacy")
        except Exception as exc:  # noqa: BLE001 — boundary: told to the caller, outside of the group
            failure = exc
        else:
            _tell_of_proxy(peer, config, link.via)
            yield peer
        finally:
            await peer.close()
    if failure is not None:
        raise failure


def _tell_of_proxy(peer: ClientSession, config: RemoteConfig, via: str | None) -> None:
    if via is not None:
        open_to_it = "" if config.url.lower().startswith("https:") else ", which can read all of it"
        peer.notes.append(f"it is reached through the proxy {via}{open_to_it}")


# -- streams of the SDK ---------------------------------------------------------------------


@asynccontextmanager
async def _stream_peer(
    transport: AbstractAsyncContextManager[Streams],
    config: ServerConfig,
    handlers: Handlers,
    client_info: JsonObject,
    guard: HttpGuard | None = None,
) -> AsyncGenerator[ClientSession]:
    failure: Exception | None = None
    async with transport as streams, anyio.create_task_group() as tasks:
        link = StreamTransport(streams, guard)
        peer = ClientSession(link, config.limits, handlers, client_info)
        if guard is not None:
            link.stamp = McpHeaders(peer)
            guard.on_foreign_answer = peer.note
        tasks.start_soon(link.read)
        tasks.start_soon(link.write)
        try:
            await peer.connect()
        except Exception as exc:  # noqa: BLE001 — boundary: told to the caller, outside of the group
            failure = exc
        else:
            yield peer
        finally:
            await peer.close()
            link.finish("was let go", _LET_GO)
            tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure


# -- what a caller brings along -------------------------------------------------------------


@asynccontextmanager
async def injected_session(
    config: ServerConfig,
    handlers: Handlers,
    client_info: JsonObject,
    session_factory: Callable[[], AbstractAsyncContextManager[object]],
) -> AsyncGenerator[ClientSession]:
    """Speak through what a factory yields: a stream pair, a low-level server, or a session.

    Raises:
        ProtocolFault: It yields something else.
    """
    async with AsyncExitStack() as stack:
        coming = session_factory()
        # Once it is entered, nobody can be told any more what its server says unasked.
        ear = stack.enter_context(tap_notifications(coming)) if isinstance(coming, Client) else None
        given = await stack.enter_async_context(coming)
        if isinstance(given, Client):
            given = given.session
        if isinstance(given, SdkSession):
            opening = _session_peer(given, config, handlers, client_info, ear)
        elif isinstance(given, Server):
            transport = _served(cast("Server[Any]", given))
            opening = _stream_peer(transport, config, handlers, client_info)
        elif is_transport(given):
            opening = transport_session(given, config, handlers, client_info)
        else:
            transport = _lent(_stream_pair(given, config))
            opening = _stream_peer(transport, config, handlers, client_info)
        async with opening as peer:
            yield peer


def _stream_pair(given: object, config: ServerConfig) -> Streams:
    pair = [*cast("tuple[Any, ...]", given)] if isinstance(given, tuple) else []
    if len(pair) in {2, 3} and hasattr(pair[0], "receive") and hasattr(pair[1], "send"):
        return pair[0], pair[1]
    kind = type(cast("object", given)).__name__
    message = (
        f"server {config.id!r}: the session factory yields {kind}; "
        "it must yield a ClientSession, a pair of streams, a low-level Server or a link"
    )
    detail = FaultDetail(server=config.id, reason="malformed")
    raise ProtocolFault("protocol", message, detail=detail)


@asynccontextmanager
async def _lent(streams: Streams) -> AsyncGenerator[Streams]:
    """Use streams that somebody else closes."""
    yield streams


@asynccontextmanager
async def _served(server: Server[Any]) -> AsyncGenerator[Streams]:
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


# -- sessions of the SDK --------------------------------------------------------------------


@asynccontextmanager
async def _session_peer(
    session: SdkSession, config: ServerConfig, handlers: Handlers, client_info: JsonObject, ear: NotificationTap | None
) -> AsyncGenerator[ClientSession]:
    if session.protocol_version is None:
        await session.initialize()
    link = SdkSessionTransport(session)
    peer = ClientSession(link, config.limits, handlers, client_info)
    peer.facts = session_facts(session)
    # A modern session subscribes to changes, and would be told twice.
    if peer.facts.era == "legacy" and ear is not None:
        ear.link = link
    elif peer.facts.era == "legacy" and peer.facts.offers("tools", "listChanged"):
        peer.notes.append("its session was made elsewhere: changes of its tools are not noticed")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(link.write, tasks)
        try:
            yield peer
        finally:
            await peer.close()
            link.finish("was let go", _LET_GO)
            tasks.cancel_scope.cancel()
