"""What the links that need a carrier have in common: frames wait in line, answers are handed on.

A wire sends without waiting; the transports of the SDK want to be awaited. In between stands a
line: `send` puts a frame at its end, a task of the link's owner takes the next one from its head.
"""

from __future__ import annotations

import asyncio
import collections
from typing import TYPE_CHECKING

from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.rpc.connection import TransportEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import FaultDetail
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId

_LINE = 64
"""So many frames may wait; whoever asks more of the server waits until some have left."""
_NOT_CARRIED = -32000


class QueuedTransport:
    """A link without a carrier; those who derive from it take the frames from `following`."""

    def __init__(self) -> None:
        self._line: collections.deque[JsonObject] = collections.deque()
        self._stirred = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()
        self._on_frame: Callable[[bytes | JsonValue], None] | None = None
        self._on_end: Callable[[TransportEnd], None] | None = None
        self._end: TransportEnd | None = None

    # -- for the wire -----------------------------------------------------------------------

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Deliver what comes; the carriers start only after this."""
        self._on_frame, self._on_end = on_frame, on_end
        if self._end is not None:
            on_end(self._end)

    def send(self, frame: JsonObject) -> None:
        """Put a frame in line; nothing happens on a link that has ended."""
        if self._end is not None:
            return
        self._line.append(frame)
        self._stirred.set()
        if len(self._line) >= _LINE:
            self.writable.clear()

    # -- for the carrier --------------------------------------------------------------------

    async def following(self) -> JsonObject:
        """Take the next frame, as soon as there is one."""
        while not self._line:
            self._stirred.clear()
            await self._stirred.wait()
        frame = self._line.popleft()
        if len(self._line) < _LINE:
            self.writable.set()
        return frame

    def deliver(self, frame: bytes | JsonValue) -> None:
        """Hand on what came; after the end nobody hears it."""
        if self._end is None and self._on_frame is not None:
            self._on_frame(frame)

    def fail(self, request_id: RequestId, message: str, code: int = _NOT_CARRIED) -> None:
        """Tell whoever waits for an answer that none will come."""
        error: JsonObject = {"code": code, "message": message}
        self.deliver({"jsonrpc": "2.0", "id": request_id, "error": error})

    def finish(self, message: str, detail: FaultDetail) -> TransportEnd:
        """Declare the end, and give it; the first one stands."""
        if self._end is None:
            self._end = TransportEnd(message, detail)
            self._line.clear()
            self.writable.set()
            if self._on_end is not None:
                self._on_end(self._end)
        return self._end


def find_request_id(frame: JsonObject) -> RequestId | None:
    """Give the id of a frame that asks for an answer."""
    identity = frame.get("id")
    return identity if "method" in frame and isinstance(identity, (int, str)) else None


def find_cancelled_id(frame: JsonObject) -> RequestId | None:
    """Give the id of the request that a frame says nobody waits for."""
    if frame.get("method") != "notifications/cancelled":
        return None
    params = frame.get("params")
    identity = params.get("requestId") if is_json_object(params) else None
    return identity if isinstance(identity, (int, str)) else None
