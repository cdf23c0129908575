"""Transport over an MCP SDK session that the caller has opened.

The SDK's session adds metadata and validates on its own, answers a legacy server's requests with its own callbacks, and
passes such a server's notifications to its one message handler. That handler can't be replaced later, but a `Client`
accepts one until it's entered (`tap_notifications`). A session only notices its end when it sends a request.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import anyio
from mcp.client.subscriptions import SubscriptionLost, listen
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, ClientNotification, Notification, ProgressNotification, Request
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from indusagi.interop.protocol_bridge.client.session import ServerFacts
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.transport import (
    QueuedTransport,
    find_cancelled_id,
    find_request_id,
    get_object,
)

if TYPE_CHECKING:
    from collections.abc import Generator

    from anyio.abc import TaskGroup
    from mcp.client import Client
    from mcp.client import ClientSession as SdkSession
    from mcp.client.session import IncomingMessage, MessageHandlerFnT

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.session import Era
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId

# Any: the SDK expects a model here, but accepts any adapter's result.
_raw: TypeAdapter[Any] = TypeAdapter(dict[str, Any])


def read_session_facts(session: SdkSession) -> ServerFacts:
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
def tap_notifications(client: Client) -> Generator[NotificationTap]:
    """Observe the notifications of a client before it's entered."""
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
        self._details: dict[RequestId, FaultDetail] = {}

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget the details of a failed request."""
        return self._details.pop(request_id, None)

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
            self._details[identity] = FaultDetail(reason="malformed")
            self.fail(identity, f"the session could not read the answer: {exc}")
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
