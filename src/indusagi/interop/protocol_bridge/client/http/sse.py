"""The old HTTP transport: one standing stream of events, and a POST for every message.

Spoken here without the SDK, whose client for it refuses events over 1 MiB with no way to say
otherwise, stops sending without a word after one failed POST, and sends one message at a time.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import httpx2

from indusagi.interop.protocol_bridge.client.http.failures import elsewhere, get_origin
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
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

_TURN_EVENTS = 16
"""So many events of one server are handled in one turn of the event loop."""
_STREAM = "events"
"""The id under which the guard remembers what befell the stream itself."""


@asynccontextmanager
async def sse_transport(config: SseServerConfig | StreamableHttpServerConfig) -> AsyncGenerator[SseTransport]:
    """Open the stream of events of a server, and close it when the block is left."""
    async with open_guarded_client(config) as (client, guard), anyio.create_task_group() as tasks:
        link = SseTransport(config.url, client, guard)
        tasks.start_soon(link.read)
        tasks.start_soon(link.write, tasks)
        try:
            yield link
        finally:
            link.finish("was let go", FaultDetail(reason="closed"))
            tasks.cancel_scope.cancel()


class SseTransport(QueuedTransport):
    """A link over a stream of events."""

    def __init__(self, url: str, client: GuardedClient, guard: HttpGuard) -> None:
        super().__init__()
        self.via = guard.via
        """The origin of the proxy between us and the server."""
        self._url = url
        self._client = client
        self._guard = guard
        self._post_to: asyncio.Future[httpx2.URL] = asyncio.get_running_loop().create_future()

    async def opened(self) -> None:
        """Wait until the server has said where to send messages.

        Raises:
            ConnectionClosedError: It ended before.
        """
        await self._post_to

    def send(self, frame: JsonObject) -> None:
        """Put a frame in line."""
        if (unwanted := find_cancelled_id(frame)) is not None:
            self._guard.give_up(unwanted)
        super().send(frame)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Tell how the POST of a request failed, and forget it."""
        return self._guard.take_detail(request_id)

    # -- the stream -------------------------------------------------------------------------

    async def read(self) -> None:
        """Hand on every message, until the stream ends."""
        try:
            async with self._client.stream(
                "GET",
                self._url,
                headers={"accept": "text/event-stream", "cache-control": "no-store"},
                extensions={REQUEST: _STREAM},
                follow_redirects=True,
            ) as response:
                if response.is_success:
                    taken = 0
                    async for event in httpx2.EventSource(response, max_event_size=None):
                        self._happened(event, response.url)
                        taken += 1
                        if taken % _TURN_EVENTS == 0:
                            # What has come at once may be hundreds: other servers have their turn.
                            await asyncio.sleep(0)
        except (httpx2.HTTPError, httpx2.StreamError):
            # The guard knows what it was.
            pass
        found = self._guard.known(_STREAM)
        if found is None or found.detail.reason == "closed":
            self._over("ended its stream of events", FaultDetail(reason="closed"))
        else:
            self._over(found.said, found.detail)

    def _happened(self, event: httpx2.ServerSentEvent, url: httpx2.URL) -> None:
        if event.event == "endpoint" and not self._post_to.done():
            target = url.join(event.data)
            if get_origin(target) == get_origin(url):
                self._post_to.set_result(target)
            else:
                found = elsewhere(target)
                self._over(found.said, found.detail)
        elif event.event == "message" and event.data:
            self.deliver(event.data.encode("utf-8", "surrogatepass"))

    def _over(self, said: str, detail: FaultDetail) -> None:
        end = self.finish(said, detail)
        if not self._post_to.done():
            self._post_to.set_exception(ConnectionClosedError(end))

    # -- messages ---------------------------------------------------------------------------

    async def write(self, tasks: TaskGroup) -> None:
        """Send what stands in line; requests do not wait for each other."""
        await asyncio.wait({self._post_to})
        if self._post_to.cancelled() or self._post_to.exception() is not None:
            return
        target = self._post_to.result()
        while True:
            frame = await self.following()
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
        elif (found := self._guard.known(identity)) is not None:
            self.fail(identity, f"it {found.said}")
