"""What was sent on which stream, for a client that comes back after its stream was closed."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from mcp.server.streamable_http import EventMessage, EventStore

if TYPE_CHECKING:
    from mcp.server.streamable_http import EventCallback
    from mcp_types import JSONRPCMessage

_KEPT = 1000


class Events(EventStore):
    """The latest of them, numbered."""

    def __init__(self) -> None:
        self._latest: deque[tuple[int, str, JSONRPCMessage | None]] = deque(maxlen=_KEPT)
        self._count = 0

    async def store_event(self, stream_id: str, message: JSONRPCMessage | None) -> str:
        """Keep one and give its number."""
        self._count += 1
        self._latest.append((self._count, stream_id, message))
        return str(self._count)

    async def replay_events_after(self, last_event_id: str, send_callback: EventCallback) -> str | None:
        """Send what came later on the stream of an event, and say which stream that is."""
        last = int(last_event_id) if last_event_id.isdecimal() else 0
        stream = next((name for number, name, _ in self._latest if number == last), None)
        for number, name, message in list(self._latest):
            if name == stream and number > last and message is not None:
                await send_callback(EventMessage(message, str(number)))
        return stream
