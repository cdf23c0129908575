"""A session of the SDK that somebody else made, as a link.

The session stamps and validates by itself, answers what an older server asks with the callbacks it
was made with, and tells the change notices of such a server only to the handler it was made with.
That handler cannot be exchanged later; a `Client` that is not yet entered can still be given one
(`tap_notifications`). The end of a session shows only when something is asked of it.
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

from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.client.session import ServerFacts
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.transport import QueuedTransport, find_cancelled_id, find_request_id

if TYPE_CHECKING:
    from collections.abc import Generator

    from anyio.abc import TaskGroup
    from mcp.client import Client
    from mcp.client import ClientSession as SdkSession
    from mcp.client.session import IncomingMessage, MessageHandlerFnT

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.session import Era
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

# Any: the SDK wants a model here, and takes whatever an adapter makes.
_raw: TypeAdapter[Any] = TypeAdapter(dict[str, Any])


def session_facts(session: SdkSession) -> ServerFacts:
    """Say what a session has found out about its server."""
    result = session.discover_result or session.initialize_result
    dumped = {} if result is None else result.model_dump(by_alias=True, exclude_none=True)
    version = session.protocol_version or ""
    era: Era = "modern" if version in MODERN_PROTOCOL_VERSIONS else "legacy"
    return ServerFacts(era, version, dumped)


class NotificationTap:
    """Hears what a client of the SDK is told, before whoever was to hear it anyway."""

    def __init__(self, rightful: MessageHandlerFnT | None) -> None:
        self.link: SdkSessionTransport | None = None
        """Set once there is somebody to hand it on to."""
        self._rightful = rightful

    async def __call__(self, message: IncomingMessage) -> None:
        """Hand on a message of the SDK's session."""
        # Progress comes to the link by another way, under the id that the link has for the request.
        if self.link is not None and not isinstance(message, (Exception, ProgressNotification)):
            self.link.deliver(message.model_dump(by_alias=True, mode="json", exclude_none=True))
        if self._rightful is not None:
            await self._rightful(message)


@contextmanager
def tap_notifications(client: Client) -> Generator[NotificationTap]:
    """Listen in to a client that is about to be entered; its own handler hears all as before."""
    rightful = client.message_handler
    client.message_handler = ear = NotificationTap(rightful)
    try:
        yield ear
    finally:
        client.message_handler = rightful


class SdkSessionTransport(QueuedTransport):
    """A link over a session; its own callbacks stay in force."""

    def __init__(self, session: SdkSession) -> None:
        super().__init__()
        self._session = session
        self._asking: dict[RequestId, anyio.CancelScope] = {}
        self._details: dict[RequestId, FaultDetail] = {}

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Tell what is known about a request that failed, and forget it."""
        return self._details.pop(request_id, None)

    async def write(self, tasks: TaskGroup) -> None:
        """Pass on what stands in line; each request in a task of its own."""
        while True:
            frame = await self.following()
            identity, unwanted = find_request_id(frame), find_cancelled_id(frame)
            if identity is not None:
                self._asking[identity] = anyio.CancelScope()
                tasks.start_soon(self._ask, identity, frame)
            elif unwanted in self._asking:
                self._asking[unwanted].cancel()
            elif unwanted is None:
                await self._tell(frame)

    async def _tell(self, frame: JsonObject) -> None:
        notice = Notification[Any, Any](method=frame.get("method"), params=frame.get("params"))
        await self._session.send_notification(cast("ClientNotification", notice))

    async def _ask(self, identity: RequestId, frame: JsonObject) -> None:
        try:
            with self._asking[identity]:
                result = await self._answer(identity, frame)
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
            self._asking.pop(identity, None)

    async def _answer(self, identity: RequestId, frame: JsonObject) -> JsonObject:
        if frame["method"] == "subscriptions/listen":
            return await self._listen()

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            notice: JsonObject = {"progressToken": identity, "progress": progress}
            notice |= {} if total is None else {"total": total}
            notice |= {} if message is None else {"message": message}
            self.deliver({"method": "notifications/progress", "params": notice})

        asked = Request[Any, Any](method=frame["method"], params=frame.get("params"))
        return await self._session.send_request(
            asked, _raw, progress_callback=progressed if _wants_progress(frame) else None
        )

    async def _listen(self) -> JsonObject:
        async with listen(self._session, tools_list_changed=True) as changes:
            async for _ in changes:
                self.deliver({"method": "notifications/tools/list_changed"})
        return {}


def _wants_progress(frame: JsonObject) -> bool:
    params = frame.get("params")
    meta = params.get("_meta") if is_json_object(params) else None
    return is_json_object(meta) and "progressToken" in meta
