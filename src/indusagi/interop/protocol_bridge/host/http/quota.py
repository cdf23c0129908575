"""The quota of a host behind HTTP: connections, requests, streams, and bytes that clients have not read.

Every route takes from it. A connection without a place waits in the queue of the listening socket for a moment, and
makes an idle one close; everything else past its limit is refused, with a time to try again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity

LINGERING = 256
"""Refused clients that may still be sending; past this number the oldest is disconnected."""
_HEAD_GRACE_S = 0.5
"""How long every new connection may take to present a token, however many wait behind it."""


class TrackedConnection(Protocol):
    """A connection as its tracker sees it."""

    def refuse(self, reason: str, status: int, message: str) -> None:
        """Answer with a status and close."""
        ...

    def close(self) -> None:
        """Close after what is written."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...

    def shut_down(self) -> None:
        """Close at the end of the host."""
        ...


class ConnectionTracker:
    """All connections of a host; counts refusals, and finds places for new connections."""

    def __init__(self, settings: HttpSettings, limit: int) -> None:
        self.limit = limit
        """Connections that are accepted at once; further ones wait, and are refused if no place gets free."""
        self.dropped: Counter[str] = Counter()
        """Refused and dropped connections by reason."""
        self.open: set[TrackedConnection] = set()
        self.is_crowded = False
        """Connections wait for a place: an answered one is not kept open for another request."""
        self._settings = settings
        self._empty = asyncio.Event()
        self._empty.set()
        self._unauthenticated: dict[TrackedConnection, float] = {}
        """Connections without a valid token so far and since when, the oldest first."""
        self._idle: dict[TrackedConnection, None] = {}
        """Connections between two requests, idle for the longest time first."""
        self._lingering: dict[TrackedConnection, None] = {}
        """Refused connections whose clients may still be sending, and closing ones, the oldest first."""

    def find_place(self, connecting: int) -> bool:
        """Tell whether one more connection may be accepted; if need be an idle one, or a silent stranger, is closed."""
        if len(self.open) - len(self._lingering) + connecting >= self.limit:
            if not self._idle:
                return False
            idle = next(iter(self._idle))
            idle.close()
            self._leave(idle)
        if len(self._unauthenticated) + connecting >= self._settings.unauthenticated:
            oldest, since = next(iter(self._unauthenticated.items()), (None, 0.0))
            # A connection counts as a stranger until its head is read: a burst of known clients needs a moment.
            if oldest is None or asyncio.get_running_loop().time() - since < _HEAD_GRACE_S:
                return False
            oldest.refuse("crowded", 503, "there are too many connections")
        return True

    def may_refuse(self, connecting: int) -> bool:
        """Tell whether a connection without a place may be accepted, to be refused with an answer."""
        return len(self.open) + connecting < self.limit + min(LINGERING, self.limit)

    def add(self, connection: TrackedConnection) -> None:
        """Track a new connection."""
        self.open.add(connection)
        self._empty.clear()
        self._unauthenticated[connection] = asyncio.get_running_loop().time()

    def on_authenticated(self, connection: TrackedConnection) -> None:
        """Note that a request on this connection has passed the access policy."""
        self._unauthenticated.pop(connection, None)

    def set_idle(self, connection: TrackedConnection, *, is_idle: bool) -> None:
        """Note that a connection has answered a request, or that another one comes."""
        if is_idle and connection not in self._unauthenticated:
            self._idle[connection] = None
        else:
            self._idle.pop(connection, None)

    def linger(self, connection: TrackedConnection) -> None:
        """Note that a connection is refused and waits for its client to stop sending."""
        if len(self._lingering) >= min(LINGERING, self.limit):
            next(iter(self._lingering)).abort()
        self._leave(connection)

    def _leave(self, connection: TrackedConnection) -> None:
        self._unauthenticated.pop(connection, None)
        self._idle.pop(connection, None)
        if connection in self.open:
            self._lingering[connection] = None

    def remove(self, connection: TrackedConnection) -> None:
        """Forget a closed connection."""
        self.open.discard(connection)
        self._unauthenticated.pop(connection, None)
        self._idle.pop(connection, None)
        self._lingering.pop(connection, None)
        if not self.open:
            self._empty.set()

    async def close(self, within_s: float) -> None:
        """Close every connection; a client that does not read its response in time is disconnected."""
        for connection in [*self.open]:
            connection.shut_down()
        try:
            await asyncio.wait_for(self._empty.wait(), within_s)
        except TimeoutError:
            for connection in [*self.open]:
                connection.abort()
        await asyncio.sleep(0)  # transports release their sockets in the next turn of the loop


class Quota:
    """Limits of a host: its connections, running requests in all, per client and per principal, streams, bytes."""

    def __init__(self, settings: HttpSettings, connections: int) -> None:
        self.settings = settings
        self.connections = ConnectionTracker(settings, connections)
        self.running = 0
        self.streams = 0
        self._each: dict[bytes | str, int] = {}
        """Running requests of clients and sessions (bytes) and of principals (text)."""
        self._unread: Counter[bytes] = Counter()
        """Bytes of responses by client that it has not read."""
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until no request runs."""
        await self._idle.wait()

    def take(self, owner: bytes, identity: ClientIdentity) -> None:
        """Count a request until `give`: for its session or client, and for its principal.

        Raises:
            HttpRefusal: The limit is reached.
        """
        settings, running, principal = self.settings, self._each.get(owner, 0), identity.principal
        if self.running >= settings.requests:
            raise HttpRefusal(503, "there are too many requests at once")
        if running >= settings.requests_each:
            raise HttpRefusal(429, "this client has too many requests at once")
        if settings.auth is not None and self._each.get(principal, 0) >= settings.auth.requests:
            raise HttpRefusal(429, "this principal has too many requests at once")
        self.running += 1
        for key in (owner, principal):
            self._each[key] = self._each.get(key, 0) + 1
        self._idle.clear()

    def give(self, owner: bytes, identity: ClientIdentity) -> None:
        """Count a request no longer."""
        self.running -= 1
        for key in (owner, identity.principal):
            self._each[key] -= 1
            if not self._each[key]:
                del self._each[key]
        if not self.running:
            self._idle.set()

    def take_stream(self) -> None:
        """Count a stream until `give_stream`.

        Raises:
            HttpRefusal: The limit is reached.
        """
        if self.streams >= self.settings.streams:
            raise HttpRefusal(503, "there are too many streams")
        self.streams += 1

    def give_stream(self) -> None:
        """Count a stream no longer."""
        self.streams -= 1

    def may_buffer(self, owner: bytes, size: int) -> bool:
        """Tell whether so many bytes may wait for a client, besides those that do; a single response always may."""
        unread = self._unread[owner]
        return not unread or unread + size <= self.settings.unread_bytes

    def change_unread(self, owner: bytes, change: int) -> None:
        """Count bytes that wait for a client, or no longer do."""
        self._unread[owner] += change
        if self._unread[owner] <= 0:
            del self._unread[owner]
