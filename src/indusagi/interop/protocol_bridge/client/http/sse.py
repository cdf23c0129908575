"""HTTP+SSE client transport: one event stream for all server messages, and a POST for each of ours.

https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from indusagi.interop.protocol_bridge.client.http.client import INITIALIZED, FramePosts, HttpClient, open_http_client
from indusagi.interop.protocol_bridge.client.http.failures import (
    EVENTS,
    JSON,
    HttpRequestError,
    build_redirect_error,
    check_content_type,
)
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError
from indusagi.interop.protocol_bridge.rpc.transport import (
    QueuedTransport,
    encode_frame,
    find_cancelled_id,
    find_request_id,
)
from indusagi.net.client import EventParser, ServerEvent
from indusagi.net.policy import FetchError

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from indusagi.interop.protocol_bridge.contract import ServerLimits, SseServerConfig, StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId, TransportEnd
    from indusagi.net.address import WebUrl

_POST_HEADERS = {"content-type": JSON}


@asynccontextmanager
async def sse_transport(config: SseServerConfig | StreamableHttpServerConfig) -> AsyncGenerator[SseTransport]:
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


class SseTransport(QueuedTransport):
    """Transport over an event stream and POST requests."""

    def __init__(self, http: HttpClient, limits: ServerLimits) -> None:
        super().__init__()
        self.via = http.via
        """Origin of the proxy, if any."""
        self._http = http
        self._limits = limits
        self._requests: dict[RequestId, anyio.CancelScope] = {}
        """Posts of requests in transit."""
        self._posts = FramePosts(http, limits.start_s, lambda exc: None)
        self._post_url: asyncio.Future[WebUrl] = asyncio.get_running_loop().create_future()

    async def wait_open(self) -> None:
        """Wait for the `endpoint` event, which names the URL for messages.

        Raises `ConnectionClosedError` if the stream ended first.
        """
        await self._post_url

    # -- inbound ----------------------------------------------------------------------------

    async def read(self) -> None:
        """Deliver messages until the stream ends."""
        message, detail = "ended its stream of events", FaultDetail(reason="closed")
        try:
            async with self._http.request("GET", {"accept": EVENTS, "cache-control": "no-store"}) as answer:
                check_content_type(answer, EVENTS)
                parser, url = EventParser(self._limits.frame_bytes), answer.target
                await self._http.read_events(answer, parser, lambda event: self._handle_event(event, url))
        except HttpRequestError as exc:
            if exc.detail.reason != "closed":
                message, detail = exc.message, exc.detail
        self.finish(message, detail)

    def _handle_event(self, event: ServerEvent, url: WebUrl) -> None:
        if event.name == "endpoint" and not self._post_url.done():
            try:
                target = url.join(event.data.decode("utf-8", "replace"))
            except FetchError:
                self.finish("named an endpoint that is not a URL", FaultDetail(reason="malformed"))
                return
            if target.origin == url.origin:
                self._post_url.set_result(target)
            else:
                failure = build_redirect_error(target)
                self.finish(failure.message, failure.detail)
        elif event.name == "message" and event.data:
            self.deliver(event.data)

    def finish(self, message: str, detail: FaultDetail) -> TransportEnd:
        """Declare the end, also to callers of `wait_open`."""
        end = super().finish(message, detail)
        if not self._post_url.done():
            self._post_url.set_exception(ConnectionClosedError(end))
            self._post_url.exception()  # mark it as retrieved, in case nothing awaits it
        return end

    # -- outbound ---------------------------------------------------------------------------

    async def write(self, tasks: TaskGroup) -> None:
        """Send queued frames; requests don't wait for each other."""
        await asyncio.wait({self._post_url})
        if self._post_url.cancelled() or self._post_url.exception() is not None:
            return
        target = self._post_url.result()
        while True:
            frame = await self.next_frame()
            request_id, cancelled = find_request_id(frame), find_cancelled_id(frame)
            if cancelled in self._requests:
                self._requests[cancelled].deadline = anyio.current_time() + self._limits.close_s
            try:
                content = encode_frame(frame)
            except (ValueError, RecursionError) as exc:
                if request_id is not None:
                    self.fail(request_id, f"it cannot be sent: {exc}")
                continue
            if request_id is None:
                is_first = frame.get("method") == INITIALIZED
                await self._posts.start(tasks, content, _POST_HEADERS, target, is_first=is_first)
            else:
                scope = self._requests[request_id] = anyio.CancelScope()
                tasks.start_soon(self._post_request, request_id, scope, target, content)

    async def _post_request(
        self, request_id: RequestId, scope: anyio.CancelScope, target: WebUrl, content: bytes
    ) -> None:
        try:
            with scope:
                async with self._http.request("POST", _POST_HEADERS, content, target) as answer:
                    await self._http.discard_body(answer)
        except HttpRequestError as exc:
            self.fail(request_id, exc.describe(), exc.detail, exc.error)
        finally:
            self._requests.pop(request_id, None)
