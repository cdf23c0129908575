"""Connects to servers over HTTP, with the transport they turn out to speak.

Import this module lazily: loading an HTTP library takes longer than starting most servers. Every block here opens and
closes in the task that entered it, and owns the tasks it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

from indusagi.interop.protocol_bridge.client.http.sse import SseTransport, sse_transport
from indusagi.interop.protocol_bridge.client.http.streamable import StreamableHttpTransport, streamable_transport
from indusagi.interop.protocol_bridge.client.session import ClientSession
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError, RpcError

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.contract import SseServerConfig, StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import Transport

    RemoteConfig: TypeAlias = SseServerConfig | StreamableHttpServerConfig
    Opening: TypeAlias = AbstractAsyncContextManager[SseTransport | StreamableHttpTransport]
    Connect: TypeAlias = Callable[..., Awaitable[ClientSession]]

_SSE_ONLY = frozenset({404, 405})
"""Statuses with which an HTTP+SSE server refuses a POST to its URL."""
_ANY_TRANSPORT = frozenset({401, 403, 407, 408, 429})
"""Refusals that apply to every transport."""


@asynccontextmanager
async def remote_session(
    config: RemoteConfig, handlers: Handlers, client_info: JsonObject
) -> AsyncGenerator[ClientSession]:
    """Connect to a remote server; the caller sets the deadline.

    If the server refuses the configured HTTP transport, try the other one, as the specification describes:
    https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#backwards-compatibility
    """
    async with AsyncExitStack() as stack:

        async def connect(opening: Opening, open_s: float | None = None) -> ClientSession:
            return await stack.enter_async_context(_connect(opening, config, handlers, client_info, open_s))

        yield await (_open_sse_or_http if config.kind == "sse" else _open_http_or_sse)(config, connect)


async def _open_http_or_sse(config: RemoteConfig, connect: Connect) -> ClientSession:
    try:
        return await connect(streamable_transport(config))
    except RpcError as exc:
        if exc.detail is None or exc.detail.http_status not in _SSE_ONLY:
            raise
        refusal = exc
    try:
        session = await connect(sse_transport(config))
    except (RpcError, ConnectionClosedError):
        raise refusal from None
    session.notes.append("it speaks only the old HTTP transport (SSE)")
    return session


async def _open_sse_or_http(config: RemoteConfig, connect: Connect) -> ClientSession:
    """Connect with HTTP+SSE, falling back to Streamable HTTP.

    A Streamable HTTP server refuses the GET that opens HTTP+SSE (405, or another 4xx because there's no session), or
    opens a stream but never sends the `endpoint` event on it.
    """
    try:
        return await connect(sse_transport(config), config.limits.probe_s)
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
        session = await connect(streamable_transport(config))
    except (RpcError, ConnectionClosedError):
        if not isinstance(refusal, TimeoutError):
            raise refusal from None
        return await connect(sse_transport(config))
    session.notes.append("it is configured as SSE and speaks the present HTTP transport")
    return session


@asynccontextmanager
async def remote_transport(config: RemoteConfig) -> AsyncGenerator[Transport]:
    """Open a transport for a relay, which passes frames on unchanged; close it on exit."""
    if config.kind == "sse":
        async with sse_transport(config) as sse:
            await sse.wait_open()
            yield sse
    else:
        async with streamable_transport(config, verbatim=True) as streamable:
            yield streamable


@asynccontextmanager
async def _connect(
    opening: Opening, config: RemoteConfig, handlers: Handlers, client_info: JsonObject, open_s: float | None
) -> AsyncGenerator[ClientSession]:
    """Connect over a transport; an HTTP+SSE server must open its stream within `open_s`."""
    failure: Exception | None = None
    async with opening as transport:
        session = ClientSession(transport, config.limits, handlers, client_info)
        try:
            if isinstance(transport, SseTransport):
                async with asyncio.timeout(open_s):
                    await transport.wait_open()
                # Servers with this transport speak the legacy protocol.
                await session.connect("legacy")
            else:
                transport.session = session
                await session.connect()
        except Exception as exc:  # noqa: BLE001 — boundary: raised below, outside the task group
            failure = exc
        else:
            if transport.via is not None:
                warning = "" if config.url.lower().startswith("https:") else ", which can read all of it"
                session.notes.append(f"it is reached through the proxy {transport.via}{warning}")
            yield session
        finally:
            await session.connection.close()
    if failure is not None:
        raise failure
