"""In-memory transports: a client and a host in one process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeGuard

from indusagi.interop.protocol_bridge.client.session import ClientSession
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.transport import BaseTransport, TransportEnd

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import Transport

_CLOSED = FaultDetail(reason="closed")


class MemoryTransport(BaseTransport):
    """One end of a pair; a frame sent here is delivered there, in the next iteration of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.other = self
        self._received: deque[JsonObject] = deque()

    def send(self, frame: JsonObject) -> None:
        """Send a frame to the other end; does nothing after the end."""
        if self._end is None:
            self.other.receive(frame)

    def receive(self, frame: JsonObject) -> None:
        """Take a frame from the other end, and deliver it in the next iteration of the event loop."""
        if not self._received:
            asyncio.get_running_loop().call_soon(self._deliver_all)
        self._received.append(frame)

    def finish(self, message: str = "closed the connection", detail: FaultDetail = _CLOSED) -> TransportEnd:
        """End both transports, after the frames that are on their way; safe to call twice."""
        self._deliver_all()
        is_first = self._end is None
        end = super().finish(message, detail)
        if is_first:
            self.other.finish(message, detail)
        return end

    def _deliver_all(self) -> None:
        while self._received:
            self.deliver(self._received.popleft())


def linked_pair() -> tuple[MemoryTransport, MemoryTransport]:
    """Build two transports; give one to a host's `connect` and the other to an endpoint."""
    ours, theirs = MemoryTransport(), MemoryTransport()
    ours.other, theirs.other = theirs, ours
    return ours, theirs


def is_transport(value: object) -> TypeGuard[Transport]:
    """Return whether a value has the methods of a `Transport`, as an end of a `linked_pair` has."""
    return not isinstance(value, type) and all(
        callable(getattr(value, name, None)) for name in ("attach", "send", "detail")
    )


@asynccontextmanager
async def transport_session(
    transport: Transport, config: ServerConfig, handlers: Handlers, client_info: JsonObject
) -> AsyncGenerator[ClientSession]:
    """Open a session over a transport, and end both when the block is left."""
    session = ClientSession(transport, config.limits, handlers, client_info)
    try:
        await session.connect()
        yield session
    finally:
        await session.connection.close()
        finish = getattr(transport, "finish", None)
        if callable(finish):
            finish()
