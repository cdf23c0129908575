"""The connections of a host behind HTTP: how many there may be, and how long a client may take.

Anyone who can reach the port can connect, be slow, send garbage and read nothing. Every refusal is
an HTTP answer as soon as something of a request has come. None of it is logged, since that would
let strangers fill a log: it is counted, by reason.

This subclasses the HTTP/1.1 protocol of uvicorn, whose internals are no public interface:
`tests/interop/host/http/test_framing.py` names the versions it was tried with.
"""

from __future__ import annotations

import http
import logging
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from indusagi.core.json import compact_json
from indusagi.interop.protocol_bridge.host.dispatcher import BUSY, INVALID_REQUEST
from indusagi.interop.protocol_bridge.host.http.framing import check_head

if TYPE_CHECKING:
    import asyncio

    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings

ON_AUTHENTICATED = "welcome"
"""The key of what is called when a client has shown that it may come in."""
RECEIVED = "received"
"""The key of what tells how many bytes have come of a request, framing included."""
ANNOUNCED = "announced"
"""The key of what tells how many bytes the chunk that has begun still announces."""
CROWDED = "crowded"
"""The key of what tells whether there are more connections than are allowed."""
LINGERING = 256
"""So many refused clients may still be sending; the oldest of them is hung up on."""
_LINGER_S = 5.0
"""How long a refused client may go on sending before the connection is closed.

Closing at once would reset the connection, and the answer would be lost on its way:
https://www.rfc-editor.org/rfc/rfc9112#section-9.6.
"""
_LOOKS = 4
"""So many times it is looked whether a client has taken anything before it is given up."""
_log = logging.getLogger(__name__)


class _Quiet(logging.Logger):
    """Takes what the server says: anybody can make it warn, so that is a detail."""

    def __init__(self) -> None:
        super().__init__(__name__, logging.DEBUG)

    def handle(self, record: logging.LogRecord) -> None:
        """Pass it on; only what is broken in here is an error."""
        level = logging.ERROR if record.exc_info else logging.DEBUG
        _log.log(level, "%s", record.getMessage().strip(), exc_info=record.exc_info)


_QUIET = _Quiet()


class ConnectionTracker:
    """All connections of a host, and those among them that are not known or not wanted."""

    def __init__(self, settings: HttpSettings, limit: int) -> None:
        self.settings = settings
        self.limit = limit
        """So many at once; requests on further ones are refused."""
        self.dropped: Counter[str] = Counter()
        """How many were refused or given up, by reason."""
        self._open: set[HttpConnection] = set()
        self._unauthenticated: dict[HttpConnection, None] = {}
        """Those that have shown no token, the oldest first."""
        self._lingering: dict[HttpConnection, None] = {}
        """Those that were refused and may still be sending, the oldest first."""

    @property
    def crowded(self) -> bool:
        """Whether there are more than are allowed; those that are being closed do not count."""
        return len(self._open) - len(self._lingering) > self.limit

    def enter(self, connection: HttpConnection) -> None:
        """Note one whose client is not known yet; too many of them, and the oldest is refused."""
        if len(self._unauthenticated) >= self.settings.unauthenticated:
            next(iter(self._unauthenticated)).refuse("crowded", 503, "there are too many connections")
        self._open.add(connection)
        self._unauthenticated[connection] = None

    def know(self, connection: HttpConnection) -> None:
        """Note that its client has shown a token."""
        self._unauthenticated.pop(connection, None)

    def linger(self, connection: HttpConnection) -> None:
        """Note that it is refused, and closed once its client has stopped sending."""
        self._unauthenticated.pop(connection, None)
        if len(self._lingering) >= LINGERING:
            next(iter(self._lingering)).hang_up()
        self._lingering[connection] = None

    def leave(self, connection: HttpConnection) -> None:
        """Forget one that is gone."""
        self._open.discard(connection)
        self._unauthenticated.pop(connection, None)
        self._lingering.pop(connection, None)


class LingeringTransport:
    """A transport whose `close` leaves the client time to stop sending and to read its answer."""

    def __init__(self, transport: asyncio.Transport, connection: HttpConnection) -> None:
        self._transport = transport
        self._connection = connection
        self.lingers = False

    def __getattr__(self, name: str) -> Any:  # Any: whatever a transport has
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Tell whether nothing more is to be written."""
        return self.lingers or self._transport.is_closing()

    def close(self) -> None:
        """Close; a client that may be sending is read, and not heeded, for a while longer."""
        if self.is_closing():
            return
        if not self._connection.may_be_sending:
            self._transport.close()
            return
        self.lingers = True
        self._transport.write_eof()
        self._transport.resume_reading()
        self._connection.linger()


class HttpConnection(H11Protocol):
    """One connection."""

    def __init__(self, connections: ConnectionTracker, **given: Any) -> None:  # Any: the server's own affair
        super().__init__(**given)
        self.logger = _QUIET
        self.app_state = {
            **self.app_state,
            ON_AUTHENTICATED: self._welcome,
            RECEIVED: lambda: self._received,
            ANNOUNCED: self._announced_bytes,
            CROWDED: lambda: connections.crowded,
        }
        self._connections = connections
        self._due: asyncio.TimerHandle | None = None
        """Rings when a request should have begun, or a refused client should have left."""
        self._look: asyncio.TimerHandle | None = None
        """Rings when something of what is written should have been taken."""
        self._left = self._in_vain = 0
        self._received = 0
        """Bytes of the present request."""
        self._refused = False

    def _welcome(self) -> None:
        self._connections.know(self)

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Begin."""
        super().connection_made(cast("asyncio.Transport", LingeringTransport(transport, self)))
        # Whoever answers waits for all of it to be taken, and is told of any rest.
        transport.set_write_buffer_limits(high=0)
        self._connections.enter(self)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._expect_nothing()
        self._look_no_more()
        self._connections.leave(self)
        super().connection_lost(exc)

    # -- what is asked ----------------------------------------------------------------------

    @property
    def _answers(self) -> bool:
        """Whether a request is being answered."""
        # Typed as always there, which it is not before the first request.
        return bool(self.cycle) and not self.cycle.response_complete

    @property
    def may_be_sending(self) -> bool:
        """Whether the client has begun a request and not ended it."""
        return self._refused or self.conn.their_state in {h11.SEND_BODY, h11.ERROR}

    def data_received(self, data: bytes) -> None:
        """Take what came; what begins no request may not go on for long."""
        if self.transport.is_closing():
            return
        self._received += len(data)
        super().data_received(data)
        if self._answers:
            self._expect_nothing()
        elif not self.transport.is_closing():
            self._expect_head()

    def handle_events(self) -> None:
        """Handle what has come, unless the head of the next request already is at fault."""
        if self.conn.their_state is h11.IDLE:
            received, _ = self.conn.trailing_data
            self._received = len(received)
            fault = check_head(received, self._connections.settings.body_bytes)
            if fault is not None:
                self.refuse("garbled", fault.status, fault.message)
                return
        super().handle_events()
        if self._announced_bytes() > self._connections.settings.body_bytes:
            # The application waits for data of the chunk: it is to look at the size at once.
            self.cycle.message_event.set()

    def _announced_bytes(self) -> int:
        """Tell how much of the present chunk is still to come (RFC 9112, section 7.1).

        h11 keeps the number in its reader and tells it nowhere else; see `h11` in pyproject.toml.
        """
        return int(getattr(getattr(self.conn, "_reader", None), "_bytes_in_chunk", 0))

    def eof_received(self) -> None:
        """Answer a request that was broken off; a client that has asked, and leaves, is gone."""
        begun = self.conn.their_state is h11.IDLE and self.conn.trailing_data[0]
        if not self.transport.is_closing() and (begun or self.conn.their_state is h11.SEND_BODY):
            self.refuse("broken", 400, "the request was broken off")

    def _expect_head(self) -> None:
        if self._due is None:
            head_s = self._connections.settings.head_s
            self._due = self.loop.call_later(head_s, self._end_late_request)

    def _expect_nothing(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _end_late_request(self) -> None:
        if self.conn.trailing_data[0]:
            self.refuse("late", 408, "the request took too long to arrive")
        else:
            # Nothing was asked, so nothing is answered.
            self._connections.dropped["late"] += 1
            self.hang_up()

    # -- refusals ---------------------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be parsed, with the status that the parser has found for it."""
        error = sys.exception()
        known = isinstance(error, h11.RemoteProtocolError)
        status = error.error_status_hint if known else http.HTTPStatus.BAD_REQUEST
        self.refuse("garbled", status, f"the request cannot be read: {error if known else msg}")

    def refuse(self, reason: str, status: int, message: str) -> None:
        """Answer with a status and close; once another answer has begun there is no way to."""
        self._connections.dropped[reason] += 1
        self._refused = True
        if self._answers:
            # Whoever answers the request so far would write behind this.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.hang_up()
            return
        code = BUSY if status == http.HTTPStatus.SERVICE_UNAVAILABLE else INVALID_REQUEST
        error = {"code": code, "message": message}
        body = compact_json({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body)))]
        if status == http.HTTPStatus.SERVICE_UNAVAILABLE:
            headers.append(("retry-after", "1"))
        headers.append(("connection", "close"))
        phrase = http.HTTPStatus(status).phrase
        answer = h11.Response(status_code=status, headers=headers, reason=phrase)
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def linger(self) -> None:
        """Be read, and not heeded, until the client leaves or its time is over."""
        self._expect_nothing()
        self._unset_keepalive_if_required()
        self._due = self.loop.call_later(_LINGER_S, self.hang_up)
        self._connections.linger(self)

    def hang_up(self) -> None:
        """End the connection now, whatever has not been read or written."""
        self._connections.leave(self)
        self.transport.abort()

    def shutdown(self) -> None:
        """End when the host does; one that was refused already is not waited for."""
        if self.transport.is_closing():
            self.hang_up()
        else:
            super().shutdown()

    # -- what is answered -------------------------------------------------------------------

    def pause_writing(self) -> None:
        """Begin to look whether the client takes what is written."""
        super().pause_writing()
        self._left, self._in_vain = self.transport.get_write_buffer_size(), 0
        self._look_later()

    def resume_writing(self) -> None:
        """It has taken all."""
        self._look_no_more()
        super().resume_writing()

    def _look_later(self) -> None:
        unread_s = self._connections.settings.unread_s
        self._look = self.loop.call_later(unread_s / _LOOKS, self._looked)

    def _looked(self) -> None:
        left = self.transport.get_write_buffer_size()
        self._in_vain = 0 if left < self._left else self._in_vain + 1
        self._left = left
        if self._in_vain >= _LOOKS:
            self._connections.dropped["unread"] += 1
            self.hang_up()
        else:
            self._look_later()

    def _look_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
