"""An HTTP request and its possible responses: a JSON body, or an event stream."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol, TypeAlias
from urllib.parse import unquote

import anyio

from indusagi.core.json import JsonObject, compact_json
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.identity import NOBODY
from indusagi.interop.protocol_bridge.host.outgoing import BUSY, SMALL_BYTES
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_REQUEST
from indusagi.interop.protocol_bridge.rpc.transport import RequestId, encode_frame
from indusagi.runtime.calls import SubjectToken

if TYPE_CHECKING:
    import asyncio

    import h11

    from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource
    from indusagi.interop.protocol_bridge.host.auth.verifier import TokenVerifier


Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
JSON = "application/json"
EVENTS = "text/event-stream"
CLIENT_GONE = "the client went away"
REQUEST_CANCELLED = -32800
_BUSY_STATUSES = frozenset({429, 503})
STREAM_HEADERS: Headers = (
    (b"content-type", EVENTS.encode()),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)


class HttpRefusal(Exception):
    """A request to answer with an HTTP status and a JSON-RPC error without an id.

    With status 429 and 503 the response includes Retry-After (RFC 9110 §10.2.3).
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: int | None = None,
        headers: Headers = (),
        retry_s: int = 1,
        close: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        is_busy = status in _BUSY_STATUSES
        error: JsonObject = {"code": code or (BUSY if is_busy else INVALID_REQUEST), "message": message}
        self.body = compact_json({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        retry = [(b"retry-after", b"%d" % retry_s)] if is_busy else []
        self.headers: Headers = [*retry, *headers, *([(b"connection", b"close")] if close else [])]


class Connection(Protocol):
    """The part of a connection that answers its current request."""

    @property
    def writable(self) -> asyncio.Event:
        """Set while the client has taken everything we wrote."""
        ...

    @property
    def peer(self) -> str:
        """Address of the other end."""
        ...

    def send_response(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Answer in one piece."""
        ...

    def start_stream(self, headers: Headers) -> None:
        """Start a response of unknown length."""
        ...

    def write_stream(self, data: bytes) -> None:
        """Write a part of it."""
        ...

    def end_stream(self) -> None:
        """End it."""
        ...

    def set_deadline(self, seconds: float, action: Callable[[], None]) -> None:
        """Call `action` after this time, replacing any earlier deadline."""
        ...

    @property
    def room(self) -> asyncio.Event:
        """Set while more bytes may wait for this client, on all its connections together."""
        ...

    def decide(self, request: HttpRequest, refusal: HttpRefusal | None) -> None:
        """Continue with a request that was neither accepted nor answered."""
        ...


class HttpRequest:
    """A request with its body and the callbacks for its end."""

    __slots__ = ("body", "connection", "has_unread_body", "headers", "identity", "is_answered", "is_finished",
                 "lines", "method", "on_disconnect", "on_finish", "path", "query", "subject")  # fmt: skip

    def __init__(self, connection: Connection, event: h11.Request) -> None:
        self.connection = connection
        self.method = event.method.decode("ascii")
        path, _, query = event.target.decode("ascii").partition("?")
        self.path = unquote(path)
        self.query = query
        self.lines = [(name.decode("ascii"), value.decode("latin-1")) for name, value in event.headers]
        """Header lines with lower-case names; a name may occur several times."""
        self.headers = dict(self.lines)
        self.body = b""
        self.has_unread_body = (
            bool(self.headers.get("content-length", "0").strip("0")) or "transfer-encoding" in self.headers
        )
        self.identity = NOBODY
        """The client; set on acceptance."""
        self.subject: SubjectToken | None = None
        """Access token it was accepted with."""
        self.is_answered = False
        self.is_finished = False
        """The client has taken the response or is gone."""
        self.on_disconnect: Callable[[], None] | None = None
        self.on_finish: list[Callable[[], None]] = []
        """Called in reverse order when the client has taken the response or its connection is lost."""

    def accepts(self, media_type: str) -> bool:
        """Return whether the Accept header allows a media type (RFC 9110 §12.5.1)."""
        accepted = _parse_accept(self.headers.get("accept", ""))
        return media_type in accepted or "*/*" in accepted or f"{media_type.partition('/')[0]}/*" in accepted

    def respond(self, status: int, body: bytes = b"", headers: Headers = ()) -> None:
        """Answer in one piece."""
        self.connection.send_response(status, body, headers)

    def disconnect(self) -> None:
        """Report to the work on this request that the client is gone."""
        self.is_answered = True
        callback, self.on_disconnect = self.on_disconnect, None
        if callback is not None:
            callback()

    def finish(self) -> None:
        """Release everything this request holds."""
        self.is_finished = True
        self.on_disconnect = None
        while self.on_finish:
            self.on_finish.pop()()


@lru_cache(maxsize=64)
def _parse_accept(header: str) -> frozenset[str]:
    return frozenset(part.partition(";")[0].strip() for part in header.lower().split(","))


class HttpResponse:
    """The response to one request, as a `ResponseChannel`.

    A response frame that comes first becomes one JSON body. A notification or request from the host, or `ping_s`
    seconds without a frame, turns the response into an event stream, with comments to keep the connection alive:
    https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#sending-messages-to-the-server.
    """

    __slots__ = ("_connection", "_headers", "_json_only", "_ping_s", "_request", "_response", "_statuses", "_streams",
                 "is_abandoned", "is_ended", "request_id", "writable")  # fmt: skip

    def __init__(
        self,
        request: HttpRequest,
        ping_s: float,
        headers: Headers = (),
        *,
        json_only: bool = False,
        request_id: RequestId | None = None,
        statuses: Mapping[int, int] | None = None,
        is_abandoned: Callable[[], bool] = bool,
    ) -> None:
        self.is_ended = False
        self.is_abandoned = is_abandoned
        """Whether the client ended its session, so a cancelled request ends without a response."""
        self.request_id = request_id
        self._request = request
        self._connection = request.connection
        self.writable = request.connection.writable
        """Set while the client has taken everything we wrote."""
        self._headers = headers
        self._json_only = json_only
        self._ping_s = ping_s
        self._statuses = statuses or {}
        """HTTP status by JSON-RPC error code; 200 for all others."""
        self._response: tuple[int, bytes] | None = None
        """Status and body of a one-piece response."""
        self._streams = False
        if not json_only:
            self._connection.set_deadline(ping_s, self._keep_alive)

    @property
    def room(self) -> asyncio.Event:
        """Set while the client has room for a large response, on all its connections together."""
        return self._connection.room

    @property
    def accepts_notifications(self) -> bool:
        """Whether frames other than the response can be sent."""
        return not self.is_ended and not self._json_only

    def send(self, frame: JsonObject) -> None:
        """Send a frame; a first response waits for `end`. Raises `EncodeError` for a number that JSON doesn't have."""
        if self.is_ended or (self._json_only and "method" in frame):
            return
        data = encode_frame(frame)
        if "method" in frame and len(data) > SMALL_BYTES and not self.room.is_set():
            return
        if not self._streams and "method" not in frame:
            error = frame.get("error")
            code = error.get("code") if isinstance(error, dict) else None
            self._response = self._statuses.get(code, 200) if isinstance(code, int) else 200, data
            return
        self.start_stream()
        self._connection.write_stream(b"event: message\r\ndata: %b\r\n\r\n" % data)
        self._connection.set_deadline(self._ping_s, self._keep_alive)

    def start_stream(self) -> None:
        """Turn the response into an event stream."""
        if not self._streams:
            self._streams = True
            self._connection.start_stream([*STREAM_HEADERS, *self._headers])

    def _keep_alive(self) -> None:
        if self.is_ended:
            return
        if not self._streams:
            self.start_stream()
        elif self.writable.is_set():
            self._connection.write_stream(b": \r\n\r\n")
        self._connection.set_deadline(self._ping_s, self._keep_alive)

    def end(self) -> None:
        """Send the rest. A request without a response was cancelled."""
        if self.is_ended:
            return
        self.is_ended = True
        if self._response is None and not self._json_only and self.is_abandoned():
            # Clients of Python SDK 1 close their queue before they send DELETE, and fail if a response arrives before
            # the one to DELETE. Servers of the SDK send them a stream without events.
            self.start_stream()
        if self._streams:
            self._connection.end_stream()
            return
        if self._response is None:
            cancelled: JsonObject = {"code": REQUEST_CANCELLED, "message": "the request was cancelled"}
            self._response = 200, encode_frame({"jsonrpc": "2.0", "id": self.request_id, "error": cancelled})
        (status, body), self._response = self._response, None
        self._connection.send_response(status, body, self._headers)


class NoResponse:
    """A `ResponseChannel` that drops everything, for messages without a response."""

    def __init__(self, connection: Connection) -> None:
        self.writable = self.room = connection.writable

    accepts_notifications = False

    def send(self, frame: JsonObject) -> None:
        """Drop a frame."""


# -- framing ----------------------------------------------------------------------------------
#
# If two parties disagree on where a body ends, say a proxy and the host behind it, the same bytes can mean different
# requests to them ("request smuggling"). `check_head` refuses every head that RFC 9112 leaves open to interpretation.


HEAD_BYTES = 32 * 1024
"""Limit for the request line and headers together."""
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_HTTP_VERSION = re.compile(rb"[ \t]HTTP/(\d+)\.(\d+)[ \t]*\Z")
_LENGTH_DIGITS = 18
"""A longer number exceeds every limit, so don't parse it."""


def check_head(received: bytes, body_limit: int) -> HttpRefusal | None:  # noqa: C901 — one list of rules
    """Find a fault in a request's framing; None if it's fine or the head is incomplete.

    `received` starts after the previous request.
    """
    end = _HEAD_END.search(received)
    if (len(received) if end is None else end.start()) > HEAD_BYTES:
        return HttpRefusal(431, f"the headers have more than {HEAD_BYTES:,} bytes")
    if end is None:
        return None
    first, *lines = received[: end.start()].lstrip(b"\r\n").replace(b"\r\n", b"\n").split(b"\n")
    version = _HTTP_VERSION.search(first)
    if version is not None and version[1] != b"1":
        return HttpRefusal(505, "only HTTP/1.1 is supported")
    lengths: list[bytes] = []
    has_encoding = False
    for line in lines:
        if line[:1] in {b" ", b"\t"}:
            # https://www.rfc-editor.org/rfc/rfc9112#section-5.2
            return HttpRefusal(400, "a header is folded over several lines")
        name, _, value = line.partition(b":")
        name = name.strip().lower()
        if name == b"content-length":
            lengths.append(value.strip(b" \t"))
        elif name == b"transfer-encoding":
            has_encoding = True
    if has_encoding and lengths:
        # https://www.rfc-editor.org/rfc/rfc9112#section-6.1
        return HttpRefusal(400, "Content-Length and Transfer-Encoding can't be used together")
    if has_encoding and version is not None and version[2] == b"0":
        return HttpRefusal(400, "HTTP/1.0 has no Transfer-Encoding")
    if not lengths:
        return None
    # https://www.rfc-editor.org/rfc/rfc9112#section-6.3
    if len(lengths) > 1 or b"," in lengths[0]:
        return HttpRefusal(400, "there is more than one Content-Length")
    if not lengths[0].isdigit():
        return HttpRefusal(400, "the Content-Length must be a number of digits")
    digits = lengths[0].lstrip(b"0")
    if len(digits) > _LENGTH_DIGITS or int(digits or b"0") > body_limit:
        return HttpRefusal(413, f"the body has more than {body_limit:,} bytes")
    return None


@record
class SiteResponse:
    """A site's answer: a body, or a stream, whose headers name its type."""

    body: bytes = b""
    status: int = 200
    headers: Headers = ()
    events: AsyncGenerator[bytes] | None = None
    """Parts of a stream; each is sent once the client has taken the previous one."""


class Site(Protocol):
    """Answers the requests below `prefix`."""

    @property
    def prefix(self) -> str:
        """Path of its first page, without a trailing slash."""
        ...

    def accept(self, request: HttpRequest) -> bool:
        """Check a request whose token the host hasn't checked, or refuse it; return False if it was answered."""
        ...

    async def respond(self, request: HttpRequest) -> SiteResponse:
        """Answer an accepted request; cancelled if the client disconnects."""
        ...

    def attach(self, resource: ProtectedResource, verifier: TokenVerifier) -> None:
        """Let browsers sign in at the issuer of access tokens."""
        ...


async def serve_site(
    site: Site, request: HttpRequest, take_stream: Callable[[], None], give: Callable[[], None]
) -> None:
    """Answer a request from a site; `take_stream` and `give` count event streams."""
    with anyio.CancelScope() as scope:
        request.on_disconnect = scope.cancel
        if request.is_finished:
            return
        response = await site.respond(request)
        if response.events is None:
            request.respond(response.status, response.body, response.headers)
            return
        take_stream()
        try:
            connection = request.connection
            connection.start_stream(response.headers)
            async for event in response.events:
                await connection.writable.wait()
                connection.write_stream(event)
            connection.end_stream()
        finally:
            give()
            with anyio.CancelScope(shield=True):
                await response.events.aclose()


def refuse_method(method: str) -> HttpRefusal:
    """Build the refusal of any other method: https://www.rfc-editor.org/rfc/rfc9110#section-15.5.6."""
    return HttpRefusal(405, f"only {method}", headers=[(b"allow", method.encode())])
