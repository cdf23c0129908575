"""A host's HTTP/1.1 connections: parsing, deadlines, flow control and refusals.

Each connection is an `asyncio.Protocol` around an h11 parser. It reads a request's whole body, within limits, and
passes the request to the application, which answers through `HttpConnection.send_response` or an event stream.
Requests on one connection run one at a time: the next one is read once the client has taken the previous response.

Any client that reaches the port can be slow, send garbage or read nothing. Once some bytes of a request have arrived,
every refusal is an HTTP response. Refusals are counted by reason but never logged, so no client can fill a log.
"""

from __future__ import annotations

import asyncio
import http
import math
import select
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, wraps
from time import asctime, gmtime
from typing import TYPE_CHECKING, ParamSpec, cast

import h11

from indusagi.interop.protocol_bridge.host.boundary import log_failure
from indusagi.interop.protocol_bridge.host.http.request import HEAD_BYTES, HttpRefusal, HttpRequest, check_head
from indusagi.interop.protocol_bridge.host.identity import NOBODY

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.host.http.app import HostApp
    from indusagi.interop.protocol_bridge.host.http.quota import Quota
    from indusagi.interop.protocol_bridge.host.http.request import Headers
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity

P = ParamSpec("P")

_LINGER_S = 5.0
"""How long a refused client may keep sending before we close the connection.

Closing at once would reset the connection and lose the response: https://www.rfc-editor.org/rfc/rfc9112#section-9.6.
"""
_KEEP_ALIVE_S = 15.0
_HANGUP_CHECK_S = 1.0
"""How often to check a client with a pipelined request for a hang-up."""
_HANGUP_EVENTS = getattr(select, "POLLRDHUP", 0)
"""The client closed its half (Linux). `poll` always reports POLLHUP and POLLERR as well."""
_PROGRESS_CHECKS = 4
"""Drop a connection after this many checks without the client reading anything."""
_FRAMING_FACTOR = 8
_FRAMING_BYTES = 1024 * 1024
"""A chunked body may take the factor times the bytes of its data, plus this constant.

A one-byte chunk takes six bytes, and chunk extensions can be any length: without a limit a body could go on forever.
"""


def _guarded(method: Callable[P, None]) -> Callable[P, None]:
    """Wrap an event loop callback: if it fails, answer and close its connection."""

    @wraps(method)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as exc:  # noqa: BLE001 — boundary: keep serving other clients
            cast("HttpConnection", args[0]).fail(exc)

    return run


class HttpConnection(asyncio.Protocol):
    """One HTTP/1.1 connection."""

    transport: asyncio.Transport

    def __init__(self, app: HostApp, quota: Quota, *, is_surplus: bool = False) -> None:
        self.writable = asyncio.Event()
        """Set while the client has taken everything we wrote."""
        self.writable.set()
        self._app = app
        self._quota = quota
        self._tracker = quota.connections
        self._settings = quota.settings
        self._is_surplus = is_surplus
        """Over the connection limit: refuse the first request."""
        self._counted = 0
        """Unread bytes that the quota currently counts for the client."""
        self._loop = asyncio.get_running_loop()
        self._parser = h11.Connection(h11.SERVER, HEAD_BYTES)
        self._request: HttpRequest | None = None
        """The request being received or answered."""
        self._parts: list[bytes] = []
        self._body_bytes = 0
        self._is_chunked = False
        """Whether the body's length isn't known beforehand, from a header that `check_head` compares to the limit."""
        self._received = 0
        """Bytes of the current request, including the framing of its body."""
        self._is_reading = False
        self._is_closing = False
        self._is_lost = False
        self._is_refused = False
        self._is_shutting_down = False
        self._awaits_head = True
        self._is_held = False
        """The request waits for `decide`."""
        self._due = math.inf
        self._on_due: Callable[[], None] = self.abort
        self._timer: asyncio.TimerHandle | None = None
        self._progress_timer: asyncio.TimerHandle | None = None
        self._hangup_timer: asyncio.TimerHandle | None = None
        self._unread: float = 0
        self._checks_in_vain = 0

    # -- transport callbacks --------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self.transport = cast("asyncio.Transport", transport)
        # Any unsent byte pauses writing, so `writable` tells exactly whether the client has read everything.
        self.transport.set_write_buffer_limits(high=0)
        self._tracker.add(self)
        self.set_deadline(self._settings.head_s, self._end_late)

    @_guarded
    def connection_lost(self, exc: Exception | None) -> None:
        """End the current request."""
        self._is_closing = self._is_lost = True
        self._due = math.inf
        for timer in (self._timer, self._hangup_timer):
            if timer is not None:
                timer.cancel()
        self._stop_progress_checks()
        self._count_unread(0)
        self._tracker.remove(self)
        self.writable.set()
        if self._request is not None:
            try:
                self._request.disconnect()
            finally:
                self._request.finish()

    @_guarded
    def eof_received(self) -> None:
        """Refuse a truncated request; the transport then closes itself."""
        state = self._parser.their_state
        if not self._is_closing and (state is h11.SEND_BODY or (state is h11.IDLE and self._parser.trailing_data[0])):
            self.refuse("broken", 400, "the request is incomplete")

    def data_received(self, data: bytes) -> None:
        """Parse more bytes, or ignore them once we've refused the client."""
        if self._is_closing:
            return
        try:
            self._received += len(data)
            self._parser.receive_data(data)
            self._read_events()
        except Exception as exc:  # noqa: BLE001 — boundary: keep serving other clients
            self.fail(exc)

    def pause_writing(self) -> None:
        """Start checking whether the client reads."""
        self.writable.clear()
        self._unread = math.inf
        self._check_progress()

    @_guarded
    def resume_writing(self) -> None:
        """Continue: the client has taken everything."""
        self._stop_progress_checks()
        self._count_unread(0)
        self.writable.set()
        # Not right now: a transport closed while it reports an empty buffer ends twice.
        self._loop.call_soon(self._go_on)

    @_guarded
    def _go_on(self) -> None:
        if self._request is not None and self._request.is_answered and not self._is_lost:
            self._finish_exchange()

    @_guarded
    def _check_progress(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._count_unread(unread)
        self._checks_in_vain = 0 if unread < self._unread else self._checks_in_vain + 1
        self._unread = unread
        if self._checks_in_vain >= _PROGRESS_CHECKS:
            self._tracker.dropped["unread"] += 1
            self.abort()
        else:
            interval_s = self._settings.unread_s / _PROGRESS_CHECKS
            self._progress_timer = self._loop.call_later(interval_s, self._check_progress)

    @property
    def peer(self) -> str:
        """Address of the other end."""
        return str((self.transport.get_extra_info("peername") or ("",))[0])

    @property
    def identity(self) -> ClientIdentity:
        """The client of the current request."""
        return NOBODY if self._request is None else self._request.identity

    @property
    def room(self) -> asyncio.Event:
        """Set while more bytes may wait for this client, on all its connections together."""
        return self.writable if self._request is None else self._quota.find_room(self._request.identity.owner)

    def _count_unread(self, unread: int) -> None:
        if self._request is not None and unread != self._counted:
            self._quota.change_unread(self._request.identity.owner, unread - self._counted)
            self._counted = unread

    def _stop_progress_checks(self) -> None:
        if self._progress_timer is not None:
            self._progress_timer.cancel()
            self._progress_timer = None

    # -- deadlines ------------------------------------------------------------------------------

    def set_deadline(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` after this time, replacing any earlier deadline.

        A loop timer that would fire too early stays, and is re-armed when it does: so requests don't cost a timer each.
        """
        if self._is_lost:
            return
        self._due = self._loop.time() + seconds
        self._on_due = action
        if self._timer is None or self._timer.when() > self._due:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self._loop.call_at(self._due, self._ring)

    @_guarded
    def _ring(self) -> None:
        self._timer = None
        if self._due == math.inf:
            return
        if self._loop.time() < self._due - 0.001:
            self._timer = self._loop.call_at(self._due, self._ring)
            return
        self._due = math.inf
        self._on_due()

    def _end_late(self) -> None:
        if self._request is not None:
            self._refuse_request(self._request, HttpRefusal(408, "the request took too long to arrive"))
        elif self._parser.trailing_data[0]:
            self.refuse("late", 408, "the request took too long to arrive")
        else:
            # No request, so nothing to answer.
            self._tracker.dropped["late"] += 1
            self.abort()

    # -- requests -------------------------------------------------------------------------------

    def _read_events(self) -> None:  # noqa: C901 — one case per parser event
        """Handle parser events until it needs more bytes."""
        if self._is_reading:  # answered while reading: the loop below continues
            return
        self._is_reading = True
        parser = self._parser
        try:
            while not self._is_closing and not self._is_held:
                if parser.their_state is h11.IDLE:
                    received = parser.trailing_data[0]
                    if not received:
                        return
                    self._received = len(received)
                    fault = check_head(received, self._settings.body_bytes)
                    if fault is not None:
                        self.refuse("garbled", fault.status, str(fault))
                        return
                    if not self._awaits_head:
                        self._awaits_head = True
                        self._tracker.set_idle(self, is_idle=False)
                        self.set_deadline(self._settings.head_s, self._end_late)
                event = parser.next_event()
                if isinstance(event, h11.Request):
                    self._begin_request(event)
                elif isinstance(event, h11.Data):
                    self._parts.append(event.data)
                    self._body_bytes += len(event.data)
                    if self._is_chunked:
                        self._check_body(is_parsed=False)
                elif isinstance(event, h11.EndOfMessage):
                    self._end_request()
                else:
                    if event is h11.PAUSED:
                        self.transport.pause_reading()
                        self._watch_hangup()
                    elif parser.their_state is h11.SEND_BODY and self._is_chunked:
                        self._check_body(is_parsed=True)
                    return
        except h11.RemoteProtocolError as exc:
            self.refuse("garbled", exc.error_status_hint, f"the request cannot be read: {exc}")
        finally:
            self._is_reading = False

    @_guarded
    def _watch_hangup(self) -> None:
        """Poll for a hang-up: while a request is pipelined, we don't read and wouldn't notice."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket"), _HANGUP_EVENTS)
        if self._is_closing or self._request is None or self._request.is_answered:
            self._hangup_timer = None
        elif poll.poll(0):
            self.abort()
        else:
            self._hangup_timer = self._loop.call_later(_HANGUP_CHECK_S, self._watch_hangup)

    def _begin_request(self, event: h11.Request) -> None:
        self._awaits_head = False
        self._parts.clear()
        self._body_bytes = 0
        self._request = request = HttpRequest(self, event)
        self._is_chunked = "transfer-encoding" in request.headers
        try:
            if self._is_surplus:
                raise HttpRefusal(503, "too many connections", close=True)
            is_accepted = self._app.accept(request)
        except HttpRefusal as refusal:
            self._refuse_request(request, refusal)
            return
        if is_accepted:
            self._begin_body(request)
        elif not request.is_answered:
            # Read the rest once it's accepted.
            self._is_held = True
            self._due = math.inf
            self.transport.pause_reading()

    @_guarded
    def decide(self, request: HttpRequest, refusal: HttpRefusal | None) -> None:
        """Continue with a request that `accept` neither accepted nor answered."""
        if self._is_closing or not self._is_held or self._request is not request:
            return
        self._is_held = False
        self.transport.resume_reading()
        if refusal is None:
            self._begin_body(request)
        else:
            self._refuse_request(request, refusal)
        self._read_events()

    def _begin_body(self, request: HttpRequest) -> None:
        self._tracker.unauthenticated.pop(self, None)
        if request.has_unread_body:
            self.set_deadline(self._settings.body_s, self._end_late)
            if self._parser.they_are_waiting_for_100_continue:
                # https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1
                self.transport.write(self._parser.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
        else:
            self._due = math.inf

    def _check_body(self, *, is_parsed: bool) -> None:
        request, limit = self._request, self._settings.body_bytes
        if request is None or request.is_answered:
            return
        # Count the current chunk's length (RFC 9112 §7.1) before its data arrives. h11 has no public name for it;
        # `tests/interop/host/http/test_connection.py` fails if the private one goes away.
        chunk_bytes = getattr(getattr(self._parser, "_reader", None), "_bytes_in_chunk", 0)
        if self._body_bytes + chunk_bytes > limit:
            self._refuse_request(request, HttpRefusal(413, f"the body has more than {limit:,} bytes"))
        elif is_parsed and self._received > self._body_bytes * _FRAMING_FACTOR + _FRAMING_BYTES:
            refusal = HttpRefusal(400, "most of the body is the framing of its chunks")
            self._refuse_request(request, refusal)

    def _end_request(self) -> None:
        request = self._request
        if request is None:
            return
        request.has_unread_body = False
        if request.is_answered:
            self._finish_exchange()
            return
        self._due = math.inf
        request.body = b"".join(self._parts)
        self._parts.clear()
        try:
            self._app.handle(request)
        except HttpRefusal as refusal:
            self._refuse_request(request, refusal)

    def _refuse_request(self, request: HttpRequest, refusal: HttpRefusal) -> None:
        self._due = math.inf
        if not request.is_answered:
            self.send_response(refusal.status, refusal.body, refusal.headers)

    # -- responses ------------------------------------------------------------------------------

    def send_response(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Answer the current request in one piece."""
        if self._is_closing or self._request is None or self._request.is_answered:
            return
        self.transport.write(self._encode_response(status, body, headers))
        self._finish_exchange()

    def _encode_response(self, status: int, body: bytes, headers: Headers) -> bytes:
        has_type = not body or any(name == b"content-type" for name, _ in headers)
        kind = [] if has_type else [(b"content-type", b"application/json")]
        head = self._encode_head(status, [*kind, (b"content-length", b"%d" % len(body)), *headers])
        # RFC 9110 §9.3.2: no content in the response to HEAD.
        is_head = self._request is not None and self._request.method == "HEAD"
        data = b"" if is_head else self._parser.send(h11.Data(data=body)) or b""
        return head + data + (self._parser.send(h11.EndOfMessage()) or b"")

    def start_stream(self, headers: Headers) -> None:
        """Start a response of unknown length."""
        if not self._is_closing:
            self.transport.write(self._encode_head(200, [*headers]))

    def write_stream(self, data: bytes) -> None:
        """Write part of a response of unknown length."""
        if not self._is_closing:
            self.transport.write(self._parser.send(h11.Data(data=data)) or b"")
            if self._progress_timer is not None:
                self._count_unread(self.transport.get_write_buffer_size())

    def end_stream(self) -> None:
        """End a response of unknown length."""
        if not self._is_closing:
            self.transport.write(self._parser.send(h11.EndOfMessage()) or b"")
            self._finish_exchange()

    def _encode_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> bytes:
        headers.append((b"date", _format_date(int(self._loop.time()))))
        is_last = self._tracker.is_crowded or (self._request is not None and self._request.has_unread_body)
        if is_last and (b"connection", b"close") not in headers:
            headers.append((b"connection", b"close"))
        reason = http.HTTPStatus(status).phrase.encode()
        return self._parser.send(h11.Response(status_code=status, headers=headers, reason=reason)) or b""

    def _finish_exchange(self) -> None:
        """End the response, and move on to the next request once the client has taken it."""
        request, parser = self._request, self._parser
        if request is not None:
            request.is_answered = True
        self._due = math.inf
        if not self.writable.is_set():
            self._count_unread(self.transport.get_write_buffer_size())
            return
        if request is not None:
            request.finish()
        if parser.our_state is not h11.DONE or self._is_shutting_down:
            self.close()
        elif parser.their_state is h11.DONE:
            self._request = None
            parser.start_next_cycle()
            self._tracker.set_idle(self, is_idle=True)
            self.set_deadline(_KEEP_ALIVE_S, self.close)
            self.transport.resume_reading()
            self._read_events()

    # -- refusals and closing -------------------------------------------------------------------

    def refuse(self, reason: str, status: int, message: str) -> None:
        """Answer with a status and close, or only close if a response is already under way."""
        self._tracker.dropped[reason] += 1
        self._is_refused = True
        if self._request is not None and not self._request.is_answered:
            self._request.disconnect()
        if self._parser.our_state not in {h11.IDLE, h11.SEND_RESPONSE}:
            self.abort()
            return
        refusal = HttpRefusal(status, message, close=True)
        self.transport.write(self._encode_response(status, refusal.body, refusal.headers))
        self.close()

    def fail(self, exc: Exception) -> None:
        """Answer 500 and close: the host itself failed."""
        log_failure("a request", exc)
        if self._is_lost:
            return
        try:
            self.refuse("failed", 500, "internal error")
        except Exception:  # noqa: BLE001 — boundary: too broken to answer
            self.abort()

    def close(self) -> None:
        """Close after flushing. If the client may still be sending, read and ignore its bytes for a while."""
        if self._is_closing:
            return
        self._is_closing = True
        self._due = math.inf
        if not self._is_refused and self._parser.their_state not in {h11.SEND_BODY, h11.ERROR}:
            self.transport.close()
            return
        with suppress(OSError):  # the client has reset the connection
            self.transport.write_eof()
        self.transport.resume_reading()
        self.set_deadline(_LINGER_S, self.abort)
        self._tracker.linger(self)

    def abort(self) -> None:
        """Close now, dropping unread and unwritten data."""
        self._is_closing = True
        self._tracker.remove(self)
        self.transport.abort()

    def shut_down(self) -> None:
        """Close because the host stops, without lingering for refused clients."""
        self._is_shutting_down = True
        if self._is_closing and self.writable.is_set():
            self.abort()
        elif self._request is None or self._request.is_answered:
            self.close()


@lru_cache(maxsize=1)
def _format_date(loop_second: int) -> bytes:
    """Format the Date header, once per second: https://www.rfc-editor.org/rfc/rfc9110#section-6.6.1."""
    day, month, date, clock, year = asctime(gmtime()).split()  # always in English, whatever the locale
    return f"{day}, {date:0>2} {month} {year} {clock} GMT".encode()
