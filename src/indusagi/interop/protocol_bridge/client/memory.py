"""Two links in memory that are each other's end: a client and a host in one process."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeGuard

from indusagi.interop.protocol_bridge.client.session import ClientSession
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import TransportEnd

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId, Transport


class MemoryTransport:
    """One end of a pair; what is sent here arrives there, in the next turn of the loop."""

    def __init__(self) -> None:
        self.writable = asyncio.Event()
        self.writable.set()
        self.other = self
        self._arrived: deque[JsonObject] = deque()
        self._on_frame: Callable[[bytes | JsonValue], None] | None = None
        self._on_end: Callable[[TransportEnd], None] | None = None
        self._end: TransportEnd | None = None

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Deliver what comes, also what came before; `on_end` is called once."""
        self._on_frame, self._on_end = on_frame, on_end
        self._deliver()
        if self._end is not None:
            on_end(self._end)

    @property
    def accepts_notifications(self) -> bool:
        """Whether there is anybody at the other end."""
        return self._end is None

    def send(self, frame: JsonObject) -> None:
        """Put a frame on its way; nothing happens on a link that has ended."""
        if self._end is None:
            self.other.arrive(frame)

    def arrive(self, frame: JsonObject) -> None:
        """Take a frame from the other end."""
        if not self._arrived:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._arrived.append(frame)

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Know nothing of single requests."""
        return None

    def finish(self, message: str = "closed the connection") -> None:
        """End both links; safe to call twice."""
        if self._end is None:
            self._end = TransportEnd(message, FaultDetail(reason="closed"))
            self.other.finish(message)
            if self._on_end is not None:
                self._on_end(self._end)

    def _deliver(self) -> None:
        while self._arrived and self._on_frame is not None:
            self._on_frame(self._arrived.popleft())


def is_transport(value: object) -> TypeGuard[Transport]:
    """Tell whether a value carries frames, as an end of a `linked_pair` does."""
    return not isinstance(value, type) and all(
        callable(getattr(value, one, None)) for one in ("attach", "send", "detail")
    )


@asynccontextmanager
async def transport_session(
    link: Transport, config: ServerConfig, handlers: Handlers, client_info: JsonObject
) -> AsyncGenerator[ClientSession]:
    """Speak to a server at the other end of a link, which is ended when the block is left."""
    peer = ClientSession(link, config.limits, handlers, client_info)
    try:
        await peer.connect()
        yield peer
    finally:
        await peer.close()
        finish = getattr(link, "finish", None)
        if callable(finish):
            finish()


def linked_pair() -> tuple[MemoryTransport, MemoryTransport]:
    """Make two links; give one to a host's `connect` and the other to an endpoint."""
    ours, theirs = MemoryTransport(), MemoryTransport()
    ours.other, theirs.other = theirs, ours
    return ours, theirs
