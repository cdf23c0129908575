"""HTTP+SSE client transport: one event stream for all server messages, and a POST for each of ours.

https://modelcontextprotocol.io/specification/2024-11-05/basic/transports#http-with-sse. This replaces the SDK's client,
which refuses events over 1 MiB, silently stops sending after one failed POST, and sends one message at a time.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import httpx2

from indusagi.interop.protocol_bridge.client.http.failures import build_redirect_failure, get_origin
from indusagi.interop.protocol_bridge.client.http.guard import REQUEST, open_guarded_client
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError
from indusagi.interop.protocol_bridge.rpc.transport import QueuedTransport, find_cancelled_id, find_request_id

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import TaskGroup

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.http.guard import GuardedClient, HttpGuard
    from indusagi.interop.protocol_bridge.contract import SseServerConfig, StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId, TransportEnd

_TURN_EVENTS = 16
"""How many events of one server to handle per event loop iteration."""
_STREAM = "events"
"""Request id under which the guard records failures of the event stream itself."""


@asynccontextmanager
async def sse_transport(config: SseServerConfig | StreamableHttpServerConfig) -> AsyncGenerator[SseTransport]:
    """Open a server's event stream; close it on exit."""
    async with open_guarded_client(config) as (client, guard), anyio.create_task_group() as tasks:
        transport = SseTransport(config.url, client, guard)
        tasks.start_soon(transport.read)
        tasks.start_soon(transport.write, tasks)
        try:
            yield transport
        finally:
            transport.finish("was let go", FaultDetail(reason="closed"))
            tasks.cancel_scope.cancel()


class SseTransport(QueuedTransport):
    """Transport over an event stream and POST requests."""

    def __init__(self, url: str, client: GuardedClient, guard: HttpGuard) -> None:
        super().__init__()
        self.via = guard.via
        """Origin of the proxy, if any."""
        self._url = url
        self._client = client
        self._guard = guard
        self._post_url: asyncio.Future[httpx2.URL] = asyncio.get_running_loop().create_future()

    async def wait_open(self) -> None:
        """Wait for the `endpoint` event, which names the URL for messages.

        Raises:
            ConnectionClosedError: The stream ended first.
        """
        await self._post_url

    def send(self, frame: JsonObject) -> None:
        """Enqueue a frame; give up the POST of a cancelled request."""
        if (cancelled := find_cancelled_id(frame)) is not None:
            self._guard.give_up(cancelled)
        super().send(frame)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget why a request's POST failed."""
        return self._guard.take_detail(request_id)

    # -- inbound ----------------------------------------------------------------------------

    async def read(self) -> None:
        """Deliver messages until the stream ends."""
        try:
            async with self._client.stream(
                "GET",
                self._url,
                headers={"accept": "text/event-stream", "cache-control": "no-store"},
                extensions={REQUEST: _STREAM},
                follow_redirects=True,
            ) as response:
                if response.is_success:
                    count = 0
                    async for event in httpx2.EventSource(response, max_event_size=None):
                        self._handle_event(event, response.url)
                        count += 1
                        if count % _TURN_EVENTS == 0:
                            # Hundreds may arrive at once; let other servers have their turn.
                            await asyncio.sleep(0)
        except (httpx2.HTTPError, httpx2.StreamError):
            pass  # the guard has recorded the failure
        failure = self._guard.find_failure(_STREAM)
        if failure is None or failure.detail.reason == "closed":
            self.finish("ended its stream of events", FaultDetail(reason="closed"))
        else:
            self.finish(failure.message, failure.detail)

    def _handle_event(self, event: httpx2.ServerSentEvent, url: httpx2.URL) -> None:
        if event.event == "endpoint" and not self._post_url.done():
            target = url.join(event.data)
            if get_origin(target) == get_origin(url):
                self._post_url.set_result(target)
            else:
                failure = build_redirect_failure(target)
                self.finish(failure.message, failure.detail)
        elif event.event == "message" and event.data:
            self.deliver(event.data.encode("utf-8", "surrogatepass"))

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
            if find_request_id(frame) is None:
                await self._post(target, frame)
            else:
                tasks.start_soon(self._post, target, frame)

    async def _post(self, target: httpx2.URL, frame: JsonObject) -> None:
        identity = find_request_id(frame)
        try:
            text = json.dumps(frame, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        except (ValueError, RecursionError) as exc:
            if identity is not None:
                self.fail(identity, f"it cannot be sent: {exc}")
            return
        request = self._client.build_request(
            "POST",
            target,
            content=text.encode("utf-8", "backslashreplace"),
            headers={"content-type": "application/json"},
            extensions={} if identity is None else {REQUEST: identity},
        )
        response = await self._client.send(request, stream=True)
        await response.aclose()
        if identity is None:
            return
        if response.is_success:
            self._guard.note(identity, None)
        elif (failure := self._guard.find_failure(identity)) is not None:
            self.fail(identity, f"it {failure.message}")
