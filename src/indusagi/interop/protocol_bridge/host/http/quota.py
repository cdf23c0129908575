"""Limits of an HTTP host: connections, requests, streams, and bytes that clients haven't read.

Every route counts against them. A connection over the limit waits briefly in the listening socket's queue and makes an
idle one close. Responses over the limit of unread bytes wait, and so do requests while their client has too many
running. Everything else over its limit is refused with a Retry-After.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass
from typing import Protocol

from indusagi.interop.protocol_bridge.host.http.request import CLIENT_GONE, HttpRefusal
from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity

LINGERING = 256
"""Refused clients that may still be sending; past this number the oldest is disconnected."""
_HEAD_GRACE_S = 0.5
"""How long every new connection gets to present a token, however many wait behind it."""
_CROWDED = "this client has too many requests at once"


class TrackedConnection(Protocol):
    """A connection as its tracker sees it."""

    @property
    def identity(self) -> ClientIdentity:
        """The client of its current request."""
        ...

    def refuse(self, reason: str, status: int, message: str) -> None:
        """Answer with a status and close."""
        ...

    def close(self) -> None:
        """Close after flushing."""
        ...

    def abort(self) -> None:
        """Close now."""
        ...

    def shut_down(self) -> None:
        """Close because the host stops."""
        ...


class ConnectionTracker:
    """All connections of a host. Counts refusals, and makes room for new connections."""

    def __init__(self, settings: HttpSettings, limit: int) -> None:
        self.limit = limit
        """Concurrent connections; more have to wait, and are refused if there's no room in time."""
        self.dropped: Counter[str] = Counter()
        """Refused and dropped connections by reason."""
        self.open: set[TrackedConnection] = set()
        self.is_crowded = False
        """Connections are waiting: don't keep an answered one open for another request."""
        self._settings = settings
        self._empty = asyncio.Event()
        self._empty.set()
        self.unauthenticated: dict[TrackedConnection, float] = {}
        """Connections without a valid token so far and since when, oldest first."""
        self._idle: dict[TrackedConnection, None] = {}
        """Connections between two requests, longest idle first."""
        self._lingering: dict[TrackedConnection, None] = {}
        """Refused connections whose clients may still be sending, and closing ones, oldest first."""

    def find_place(self, connecting: int) -> bool:
        """Return whether to accept one more connection, closing an idle one or a silent stranger if necessary."""
        if len(self.open) - len(self._lingering) + connecting >= self.limit:
            if not self._idle:
                return False
            idle = next(iter(self._idle))
            idle.close()
            self._leave(idle)
        if len(self.unauthenticated) + connecting >= self._settings.unauthenticated:
            oldest, since = next(iter(self.unauthenticated.items()), (None, 0.0))
            # A connection counts as a stranger until we've read its head: a burst of known clients needs a moment.
            if oldest is None or asyncio.get_running_loop().time() - since < _HEAD_GRACE_S:
                return False
            oldest.refuse("crowded", 503, "too many connections")
        return True

    def may_refuse(self, connecting: int) -> bool:
        """Return whether to accept a connection over the limit in order to refuse it with an answer."""
        return len(self.open) + connecting < self.limit + min(LINGERING, self.limit)

    def add(self, connection: TrackedConnection) -> None:
        """Track a new connection."""
        self.open.add(connection)
        self._empty.clear()
        self.unauthenticated[connection] = asyncio.get_running_loop().time()

    def set_idle(self, connection: TrackedConnection, *, is_idle: bool) -> None:
        """Record that a connection has answered a request, or receives another one."""
        if is_idle and connection not in self.unauthenticated:
            self._idle[connection] = None
        else:
            self._idle.pop(connection, None)

    def linger(self, connection: TrackedConnection) -> None:
        """Record that a refused connection waits for its client to stop sending."""
        if len(self._lingering) >= min(LINGERING, self.limit):
            next(iter(self._lingering)).abort()
        self._leave(connection)

    def _leave(self, connection: TrackedConnection) -> None:
        self.unauthenticated.pop(connection, None)
        self._idle.pop(connection, None)
        if connection in self.open:
            self._lingering[connection] = None

    def remove(self, connection: TrackedConnection) -> None:
        """Forget a closed connection."""
        self.open.discard(connection)
        self.unauthenticated.pop(connection, None)
        self._idle.pop(connection, None)
        self._lingering.pop(connection, None)
        if not self.open:
            self._empty.set()

    async def close(self, within_s: float) -> None:
        """Close every connection, disconnecting clients that don't read their response in time."""
        for connection in [*self.open]:
            connection.shut_down()
        try:
            await asyncio.wait_for(self._empty.wait(), within_s)
        except TimeoutError:
            for connection in [*self.open]:
                connection.abort()
        await asyncio.sleep(0)  # transports release their sockets in the next turn of the loop


_BURST_S = 10.0
"""Allow this many seconds' worth of requests at once."""
_BUCKETS = 4_096


class RateLimit:
    """Token bucket per principal."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """Remaining tokens and their time, least recently used first. A full bucket may be forgotten."""

    def take(self, principal: str, now: float, rate: float = 0.0) -> int:
        """Count a request, at its own rate or the default; return 0, or the seconds until the next one is allowed."""
        rate = rate or self._rate
        capacity = max(1.0, rate * _BURST_S)
        left, at = self._buckets.pop(principal, (capacity, now))
        left = min(capacity, left + (now - at) * rate)
        is_allowed = left >= 1
        self._buckets[principal] = (left - 1 if is_allowed else left, now)
        if len(self._buckets) > _BUCKETS:
            self._buckets.popitem(last=False)
        return 0 if is_allowed else math.ceil((1 - left) / rate)


class UnreadBytes:
    """Response bytes that a client hasn't read."""

    def __init__(self) -> None:
        self.count = 0
        self.room = asyncio.Event()


@dataclass(slots=True, eq=False)
class Place:
    """A request's place among the running ones of its client, or in the queue for one."""

    owner: bytes
    identity: ClientIdentity
    size: int
    is_taken: bool = False
    turn: asyncio.Future[None] | None = None
    """Done when the request may run, or failed with its refusal; None if it never had to wait."""
    timer: asyncio.TimerHandle | None = None
    """Ends the wait."""


class Quota:
    """Limits of a host: connections; running requests in total, per client and per principal; streams; bytes."""

    def __init__(self, settings: HttpSettings, connections: int) -> None:
        self.settings = settings
        self.connections = ConnectionTracker(settings, connections)
        self._rates = RateLimit(settings.principal_rate)
        self.running = 0
        self.streams = 0
        self._each: dict[bytes | str, int] = {}
        """Running requests by client or session (bytes), and by principal (text)."""
        self._queues: dict[bytes, deque[Place]] = {}
        """Requests that wait for a place by client or session, longest waiting first."""
        self._queued: Counter[str] = Counter()
        """Their number by principal."""
        self._queued_bytes = 0
        self._unread: dict[bytes, UnreadBytes] = {}
        """By client, as long as there are some."""
        self._room = asyncio.Event()
        self._room.set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def waiting(self) -> int:
        """Requests that wait for a place."""
        return self._queued.total()

    async def wait_idle(self) -> None:
        """Wait until no request runs."""
        await self._idle.wait()

    def count_request(self, identity: ClientIdentity) -> None:
        """Count a request against the rate of its principal, or refuse it."""
        wait_s = self._rates.take(identity.principal, asyncio.get_running_loop().time(), identity.rate)
        if wait_s:
            raise HttpRefusal(429, f"{identity.principal!r} sends too many requests", retry_s=wait_s)

    def enter(self, owner: bytes, identity: ClientIdentity, size: int) -> Place:
        """Give a request of `size` bytes a place for its session or client and its principal, or queue it for one.

        Refuses it if too many requests, or too many bytes, are in the queue already.
        """
        place = Place(owner, identity, size)
        refusal = self._find_refusal(place)
        if owner not in self._queues and refusal is None:
            self._start(place)
            return place
        refusal = refusal or HttpRefusal(429, _CROWDED)
        settings, principal = self.settings, identity.principal
        most = settings.principal_requests if principal else settings.requests_each
        if self._queued[principal] >= most or self._queued_bytes + size > settings.queued_bytes:
            raise refusal
        loop = asyncio.get_running_loop()
        place.turn = loop.create_future()
        place.timer = loop.call_later(settings.place_s, self.end_wait, place, refusal)
        self._queues.setdefault(owner, deque()).append(place)
        self._queued[principal] += 1
        self._queued_bytes += size
        return place

    def _find_refusal(self, place: Place) -> HttpRefusal | None:
        """Return why a request can't run now, or None."""
        settings, principal = self.settings, place.identity.principal
        if self.running >= settings.requests:
            return HttpRefusal(503, "too many requests at once")
        if self._each.get(place.owner, 0) >= settings.requests_each:
            return HttpRefusal(429, _CROWDED)
        if principal and self._each.get(principal, 0) >= settings.principal_requests:
            return HttpRefusal(429, "this principal has too many requests at once")
        return None

    def _start(self, place: Place) -> None:
        self.running += 1
        for key in (place.owner, place.identity.principal):
            self._each[key] = self._each.get(key, 0) + 1
        self._idle.clear()
        place.is_taken = True
        if place.turn is not None:
            place.turn.set_result(None)

    def leave(self, place: Place) -> None:
        """Give a place back, and start the request that waited for it; or leave the queue."""
        if not place.is_taken:
            self.end_wait(place, HttpRefusal(400, CLIENT_GONE))
            return
        place.is_taken = False
        self.running -= 1
        for key in (place.owner, place.identity.principal):
            self._each[key] -= 1
            if not self._each[key]:
                del self._each[key]
        if self._queues:
            self._start_next(place.owner)
        if not self.running:
            self._idle.set()

    def _start_next(self, owner: bytes) -> None:
        """Start a request that fits: of this client first, then of the one that has waited longest for a turn."""
        for key in [owner, *self._queues]:
            queue = self._queues.get(key)
            if queue is not None and self._find_refusal(queue[0]) is None:
                place = queue[0]
                self._unqueue(place)
                if key in self._queues:
                    self._queues[key] = self._queues.pop(key)
                self._start(place)
                return

    def end_wait(self, place: Place, refusal: HttpRefusal) -> None:
        """Answer a request with this refusal if it's still in the queue."""
        if place.turn is not None and not place.turn.done():
            self._unqueue(place)
            place.turn.set_exception(refusal)
            place.turn.exception()  # nobody may be waiting any more

    def _unqueue(self, place: Place) -> None:
        if place.timer is not None:
            place.timer.cancel()
        queue, principal = self._queues[place.owner], place.identity.principal
        queue.remove(place)
        if not queue:
            del self._queues[place.owner]
        self._queued[principal] -= 1
        if not self._queued[principal]:
            del self._queued[principal]
        self._queued_bytes -= place.size

    def take_stream(self) -> None:
        """Count a stream until `give_stream`, or refuse it."""
        if self.streams >= self.settings.streams:
            raise HttpRefusal(503, "too many streams")
        self.streams += 1

    def give_stream(self) -> None:
        """Stop counting a stream."""
        self.streams -= 1

    def find_room(self, owner: bytes) -> asyncio.Event:
        """Return an event that's set while more response bytes may wait for a client."""
        unread = self._unread.get(owner)
        return self._room if unread is None else unread.room

    def change_unread(self, owner: bytes, change: int) -> None:
        """Change the number of bytes waiting for a client."""
        unread = self._unread.setdefault(owner, UnreadBytes())
        unread.count += change
        if unread.count < self.settings.unread_bytes:
            unread.room.set()
        else:
            unread.room.clear()
        if unread.count <= 0:
            del self._unread[owner]
