"""Connects to servers over HTTP, with the transport they turn out to speak.

Import this module lazily: loading an HTTP library takes longer than starting most servers. Every block here opens and
closes in the task that entered it, and owns the tasks it starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, TypeAlias

import anyio

from indusagi.interop.protocol_bridge.client.http.client import HttpClient, open_http_client
from indusagi.interop.protocol_bridge.client.http.failures import (
    EVENTS,
    JSON,
    HttpRequestError,
    build_redirect_error,
    check_content_type,
)
from indusagi.interop.protocol_bridge.client.http.streamable import (
    ResumableRequest,
    StreamableHttpTransport,
    streamable_transport,
)
from indusagi.interop.protocol_bridge.client.session import ClientSession
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError, RpcError
from indusagi.interop.protocol_bridge.rpc.transport import QueuedTransport
from indusagi.net.address import FetchError
from indusagi.net.client import EventParser, ServerEvent

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.contract import ServerLimits, SseServerConfig, StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import Transport, TransportEnd
    from indusagi.net.address import WebUrl

    RemoteConfig: TypeAlias = SseServerConfig | StreamableHttpServerConfig
    Opening: TypeAlias = AbstractAsyncContextManager["SseTransport | StreamableHttpTransport"]
    Connect: TypeAlias = Callable[..., Awaitable[ClientSession]]

_SSE_ONLY = frozenset({404, 405})
"""Statuses with which an HTTP+SSE server refuses a POST to its URL."""
_ANY_TRANSPORT = frozenset({401, 403, 407, 408, 429})
"""Refusals that apply to every transport."""


@asynccontextmanager
async def remote_session(config: RemoteConfig, handlers: Handlers) -> AsyncGenerator[ClientSession]:
    """Connect to a remote server; the caller sets the deadline.

    If the server refuses the configured HTTP transport, try the other one, as the specification describes:
    https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#backwards-compatibility
    """
    async with AsyncExitStack() as stack:

        async def connect(opening: Opening, open_s: float | None = None) -> ClientSession:
            return await stack.enter_async_context(_connect(opening, config, handlers, open_s))

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
    opening: Opening, config: RemoteConfig, handlers: Handlers, open_s: float | None
) -> AsyncGenerator[ClientSession]:
    """Connect over a transport; an HTTP+SSE server must open its stream within `open_s`."""
    failure: Exception | None = None
    async with opening as transport:
        session = ClientSession(transport, config, handlers)
        transport.http.on_credentials = session.redaction.learn_headers
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


# -- HTTP+SSE ---------------------------------------------------------------------------------
#
# One event stream for all server messages, and a POST for each of ours:
# https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse.


@asynccontextmanager
async def sse_transport(config: RemoteConfig) -> AsyncGenerator[SseTransport]:
    """Open a server's event stream; close it on exit."""
    async with open_http_client(config) as http, anyio.create_task_group() as tasks:
        transport = SseTransport(http, config.limits)
        tasks.start_soon(transport.read)
        tasks.start_soon(transport.write, tasks)
        try:
            yield transport
        finally:
            transport.finish("was let go", FaultDetail(reason="closed"))
            tasks.cancel_scope.cancel()


class SseTransport(StreamableHttpTransport):
    """Transport over an event stream that carries all responses, and POST requests that carry none."""

    def __init__(self, http: HttpClient, limits: ServerLimits) -> None:
        super().__init__(http, limits)
        self._endpoint: asyncio.Future[WebUrl] = asyncio.get_running_loop().create_future()

    async def wait_open(self) -> None:
        """Wait for the `endpoint` event, which names the URL for messages.

        Raises `ConnectionClosedError` if the stream ended first.
        """
        await self._endpoint

    # -- inbound ----------------------------------------------------------------------------

    async def read(self) -> None:
        """Deliver messages until the stream ends."""
        message, detail = "ended its stream of events", FaultDetail(reason="closed")
        try:
            async with self.http.request("GET", {"accept": EVENTS, "cache-control": "no-store"}) as answer:
                check_content_type(answer, EVENTS)
                parser, url = EventParser(self._limits.frame_bytes), answer.target
                await self.http.read_events(answer, parser, lambda event: self._handle_event(event, url))
        except HttpRequestError as exc:
            if exc.detail.reason != "closed":
                message, detail = exc.message, exc.detail
        self.finish(message, detail)

    def _handle_event(self, event: ServerEvent, url: WebUrl) -> None:
        if event.name == "endpoint" and not self._endpoint.done():
            try:
                target = url.join(event.data.decode("utf-8", "replace"))
            except FetchError:
                self.finish("named an endpoint that is not a URL", FaultDetail(reason="malformed"))
                return
            if target.origin == url.origin:
                self._endpoint.set_result(target)
            else:
                failure = build_redirect_error(target)
                self.finish(failure.message, failure.detail)
        elif event.name == "message" and event.data:
            self.deliver(event.data)

    def finish(self, message: str, detail: FaultDetail) -> TransportEnd:
        """Declare the end, also to callers of `wait_open`."""
        end = super().finish(message, detail)
        if not self._endpoint.done():
            self._endpoint.set_exception(ConnectionClosedError(end))
            self._endpoint.exception()  # mark it as retrieved, in case nothing awaits it
        return end

    # -- outbound ---------------------------------------------------------------------------

    def send(self, frame: JsonObject) -> None:
        """Enqueue a frame. All are sent with our own sign-in, since their responses share one stream."""
        QueuedTransport.send(self, frame)

    async def write(self, tasks: TaskGroup) -> None:
        """Send queued frames; requests don't wait for each other."""
        await asyncio.wait({self._endpoint})
        if not self._endpoint.cancelled() and self._endpoint.exception() is None:
            self._post_url = self._endpoint.result()
            await super().write(tasks)

    def _build_headers(self, frame: JsonObject) -> dict[str, str]:
        return {"content-type": JSON}

    async def _exchange(self, request: ResumableRequest, content: bytes, headers: dict[str, str]) -> None:
        async with self.http.request("POST", headers, content, self._post_url) as answer:
            await self.http.discard_body(answer)
