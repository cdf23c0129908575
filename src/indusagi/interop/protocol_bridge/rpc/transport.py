"""Transports: carriers of JSON-RPC frames between a client and a server.

`Transport` is what a connection needs of one. `BaseTransport` implements delivery and the end for every transport of
ours. `QueuedTransport` adds a queue for carriers that must be awaited, such as the streams of the MCP SDK: `send` puts
a frame into the queue, and a task of the transport's owner takes the next one with `next_frame`.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING, Protocol, TypeAlias

from indusagi.core.json import is_json_object
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import FaultDetail

RequestId: TypeAlias = int | str

_QUEUE_FRAMES = 64
"""Frames in the queue from which on `writable` is cleared."""
_NOT_SENT = -32000


@record
class TransportEnd:
    """Why a transport ended."""

    message: str
    detail: FaultDetail


class Transport(Protocol):
    """Carrier of frames to one peer and back."""

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Start delivery, with the frames that came before; `on_end` is called once."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Send a frame; does nothing after the end."""
        ...

    @property
    def writable(self) -> asyncio.Event:
        """Set while the transport accepts more frames without growing its buffer past its limit."""
        ...

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget what is known about a request that failed in transit."""
        ...


class BaseTransport:
    """Delivery of frames and of the end. Frames that come before `attach` are kept for it."""

    def __init__(self, writable: asyncio.Event | None = None) -> None:
        self.writable = writable or asyncio.Event()
        self._early: list[bytes | JsonValue] = []
        self._on_frame: Callable[[bytes | JsonValue], None] | None = None
        self._on_end: Callable[[TransportEnd], None] | None = None
        self._end: TransportEnd | None = None
        if writable is None:
            self.writable.set()

    @property
    def accepts_notifications(self) -> bool:
        """Whether the transport has not ended."""
        return self._end is None

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Start delivery, with the frames that came before; `on_end` is called once."""
        self._on_frame, self._on_end = on_frame, on_end
        early, self._early = self._early, []
        for frame in early:
            on_frame(frame)
        if self._end is not None:
            on_end(self._end)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return `None`: single requests do not fail on this transport."""
        return None

    def deliver(self, frame: bytes | JsonValue) -> None:
        """Pass a frame on; frames after the end are dropped."""
        if self._end is not None:
            return
        if self._on_frame is None:
            self._early.append(frame)
        else:
            self._on_frame(frame)

    def finish(self, message: str, detail: FaultDetail) -> TransportEnd:
        """Declare the end and return it; the first declaration counts."""
        if self._end is None:
            self._end = TransportEnd(message, detail)
            self.writable.set()
            if self._on_end is not None:
                self._on_end(self._end)
        return self._end


class QueuedTransport(BaseTransport):
    """A transport whose frames wait in a queue until its carrier takes them."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: collections.deque[JsonObject] = collections.deque()
        self._queued = asyncio.Event()

    def send(self, frame: JsonObject) -> None:
        """Put a frame into the queue; does nothing after the end."""
        if self._end is not None:
            return
        self._queue.append(frame)
        self._queued.set()
        if len(self._queue) >= _QUEUE_FRAMES:
            self.writable.clear()

    async def next_frame(self) -> JsonObject:
        """Wait for the next frame and take it from the queue."""
        while not self._queue:
            self._queued.clear()
            await self._queued.wait()
        frame = self._queue.popleft()
        if len(self._queue) < _QUEUE_FRAMES:
            self.writable.set()
        return frame

    def fail(self, request_id: RequestId, message: str, code: int = _NOT_SENT) -> None:
        """Deliver an error response to a request that was not sent."""
        error: JsonObject = {"code": code, "message": message}
        self.deliver({"jsonrpc": "2.0", "id": request_id, "error": error})

    def finish(self, message: str, detail: FaultDetail) -> TransportEnd:
        """Declare the end, and drop the queue."""
        self._queue.clear()
        return super().finish(message, detail)


def find_request_id(frame: JsonObject) -> RequestId | None:
    """Return the id of a request; `None` for every other frame."""
    identity = frame.get("id")
    return identity if "method" in frame and isinstance(identity, (int, str)) else None


def find_cancelled_id(frame: JsonObject) -> RequestId | None:
    """Return the id of the request that a `notifications/cancelled` frame names.

    https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/cancellation
    """
    if frame.get("method") != "notifications/cancelled":
        return None
    params = frame.get("params")
    identity = params.get("requestId") if is_json_object(params) else None
    return identity if isinstance(identity, (int, str)) else None
