"""HTTP with a guard: whatever goes wrong with one request stays with that request.

The SDK's transport treats a lost connection as the end of the session, forgets the status of what
it was refused with, reads bodies of any size and unpacks them too. The guard stands between it and
the network. It turns failures into answers, remembers for each JSON-RPC request what befell it,
asks for plain bodies and counts their bytes, paces what reconnects, and lets nothing leave the
origin of the configured address. It sets no deadline for answers: those belong to the wire.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import json
import os
import re
import ssl
import threading
import weakref
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

import httpx2

from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.client.http.failures import (
    TransportFailure,
    build_failure,
    by_error,
    by_status,
    content_type,
    elsewhere,
    format_origin,
    get_origin,
    is_rpc_error,
    suspicion,
)
from indusagi.interop.protocol_bridge.client.http.proxy import proxy_for
from indusagi.interop.protocol_bridge.client.http.responses import EventFilter, add_response_id, classify_message
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.connection import PARSE_ERROR

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from indusagi.interop.protocol_bridge.contract import ServerLimits, SseServerConfig, StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.rpc.connection import RequestId


REQUEST = "indusagi.request"
"""The extension of an HTTP request that holds the id of the JSON-RPC request in it."""
REDIRECTS = 3
_SESSION = "mcp-session-id"
_REMEMBERED = 256
_ERROR_BODY = 64 * 1024
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_making_tls = threading.Lock()
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\x20-\x7e\t]*")


class HttpGuard(httpx2.AsyncBaseTransport):
    """Stands between an HTTP client and the network, for one server."""

    def __init__(
        self, inner: httpx2.AsyncBaseTransport, address: httpx2.URL, limits: ServerLimits, via: str | None = None
    ) -> None:
        self.via = via
        """The origin of the proxy between us and the server."""
        self.on_session_lost: Callable[[], None] = _nothing
        self.on_foreign_answer: Callable[[str], None] = _ignore
        """Told, in a sentence about the server, that it has answered another request."""
        self._session_lost = False
        self._inner = inner
        self._origin = get_origin(address)
        self._limits = limits
        self._mishaps: collections.OrderedDict[RequestId, TransportFailure] = collections.OrderedDict()
        self._by_task: weakref.WeakKeyDictionary[asyncio.Task[Any], ResumableRequest] = weakref.WeakKeyDictionary()
        self._by_id: weakref.WeakValueDictionary[RequestId, ResumableRequest] = weakref.WeakValueDictionary()

    # -- what is known of a request ---------------------------------------------------------

    def note(self, identity: RequestId | None, what: TransportFailure | None) -> None:
        """Remember what befell a request, in place of what was known; None: nothing did."""
        if identity is None:
            return
        self._mishaps.pop(identity, None)
        if what is not None:
            self._mishaps[identity] = what
            while len(self._mishaps) > _REMEMBERED:
                self._mishaps.popitem(last=False)

    def known(self, identity: RequestId) -> TransportFailure | None:
        """Tell what befell a request."""
        return self._mishaps.get(identity)

    def take_detail(self, identity: RequestId) -> FaultDetail | None:
        """Tell what befell a request, and forget it."""
        found = self._mishaps.pop(identity, None)
        return None if found is None else found.detail

    def give_up(self, identity: RequestId) -> None:
        """Let go of a request that nobody waits for, once its server had time to end it."""
        journey = self._by_id.get(identity)
        if journey is not None:
            journey.give_up(asyncio.get_running_loop().time() + self._limits.close_s)

    # -- requests ---------------------------------------------------------------------------

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; failures of the network come back as responses."""
        request.headers["accept-encoding"] = "identity"
        journey = self._journey(request)
        if get_origin(request.url) != self._origin:
            return self._refusal(journey, elsewhere(request.url))
        if request.method == "DELETE":
            return await self._farewell(request)
        if request.method == "GET":
            await journey.pace(resumes="last-event-id" in request.headers)
            if journey.given_up:
                return self._refusal(journey, build_failure("was given up", "cancelled"))
        # The SDK sends nothing else while a notification is on its way: it must not hang.
        hurry = request.method == "POST" and journey.identity is None
        try:
            answer = self._inner.handle_async_request(request)
            response = await journey.bounded(answer, self._limits.start_s if hurry else None)
            return await self._judged(request, response, journey)
        except TimeoutError:
            return self._refusal(journey, build_failure("did not answer in time", "closed"))
        except httpx2.TransportError as exc:
            return self._refusal(journey, by_error(exc, self.via))

    def _journey(self, request: httpx2.Request) -> ResumableRequest:
        identity = cast("RequestId | None", request.extensions.get(REQUEST))
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        journey = self._by_task.get(task)
        if journey is None or (identity is not None and journey.identity != identity):
            journey = ResumableRequest(identity)
            self._by_task[task] = journey
            if identity is not None:
                self._by_id[identity] = journey
        return journey

    async def _farewell(self, request: httpx2.Request) -> httpx2.Response:
        """Say good-bye to a session, without insisting."""
        if self._session_lost:
            return httpx2.Response(HTTPStatus.NO_CONTENT)
        try:
            async with asyncio.timeout(self._limits.close_s):
                response = await self._inner.handle_async_request(request)
                await response.aclose()
        except (TimeoutError, httpx2.TransportError):
            # It ends by itself, some day.
            pass
        return httpx2.Response(HTTPStatus.NO_CONTENT)

    # -- responses --------------------------------------------------------------------------

    async def _judged(
        self, request: httpx2.Request, response: httpx2.Response, journey: ResumableRequest
    ) -> httpx2.Response:
        coding = response.headers.get("content-encoding", "identity").strip().lower()
        length = response.headers.get("content-length", "")
        if coding not in {"", "identity"}:
            await response.aclose()
            said = "answered with a compressed body, which was not asked for"
            return self._refusal(journey, build_failure(said, "malformed", response.status_code))
        if length.isdecimal() and int(length) > self._limits.frame_bytes:
            await response.aclose()
            return self._refusal(journey, self._too_large())
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            return await self._rejected(request, response, journey)
        self.note(journey.identity, suspicion(request, response, asks=journey.identity is not None))
        kind = content_type(response)
        watched = _Watched(response, self, journey, self._limits.frame_bytes, events=kind == "text/event-stream")
        stream: httpx2.AsyncByteStream = watched
        headers = response.headers
        if journey.identity is not None and response.status_code == HTTPStatus.OK:
            # A GET that resumes an answer belongs to the request of its journey; one that is marked
            # itself is the stream of the old transport, on which all answers come.
            is_shared = request.method == "GET" and REQUEST in request.extensions
            if kind == "text/event-stream" and not is_shared:
                stream = _OwnEvents(watched, self, journey.identity)
            elif kind == "application/json" and request.method == "POST":
                stream = _OwnAnswer(watched, self, journey.identity)
                headers = httpx2.Headers(headers)
                # Another body may take its place.
                headers.pop("content-length", None)
        return httpx2.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)

    async def _rejected(
        self, request: httpx2.Request, response: httpx2.Response, journey: ResumableRequest
    ) -> httpx2.Response:
        body = await self._error_body(response)
        found = by_status(response, self.via)
        known = response.status_code != HTTPStatus.NOT_FOUND or _SESSION not in request.headers
        if not known and request.method == "POST":
            self._session_lost = True
            self.on_session_lost()
        if not is_rpc_error(body):
            return self._refusal(journey, found, response.status_code)
        if found.detail.reason not in {"auth", "rate_limited"}:
            found = build_failure("", None, response.status_code)
        self.note(journey.identity, found)
        headers = {"content-type": "application/json"}
        return httpx2.Response(response.status_code, headers=headers, content=body)

    async def _error_body(self, response: httpx2.Response) -> bytes:
        """Read what comes with a refusal, unless it is long or slow."""
        body = b""
        try:
            async with asyncio.timeout(self._limits.close_s):
                async for piece in cast("httpx2.AsyncByteStream", response.stream):
                    body += piece
                    if len(body) > _ERROR_BODY:
                        return b""
        except (TimeoutError, httpx2.TransportError):
            return b""
        finally:
            await response.aclose()
        return body

    def _refusal(
        self, journey: ResumableRequest, what: TransportFailure, status: int = HTTPStatus.BAD_GATEWAY
    ) -> httpx2.Response:
        """Answer in the server's place; the SDK passes the error on to whoever asked."""
        self.note(journey.identity, what)
        error = {"code": -32000, "message": f"it {what.said}"}
        body = {"jsonrpc": "2.0", "id": None, "error": error}
        return httpx2.Response(status, json=body)

    def _too_large(self) -> TransportFailure:
        said = f"sent a message of more than {self._limits.frame_bytes:,} bytes"
        return build_failure(said, "frame_too_large")

    def too_large(self, journey: ResumableRequest) -> str:
        """Note that a body went past the cap, and say so."""
        what = self._too_large()
        self.note(journey.identity, what)
        return what.said

    async def aclose(self) -> None:
        """Close every connection."""
        await self._inner.aclose()


class _Watched(httpx2.AsyncByteStream):
    """The body of a response, counted: as a whole, or event by event."""

    def __init__(
        self, response: httpx2.Response, guard: HttpGuard, journey: ResumableRequest, cap: int, *, events: bool
    ) -> None:
        self._inner = cast("httpx2.AsyncByteStream", response.stream)
        self._guard = guard
        self._journey = journey
        self._cap = cap
        self._events = events
        self._size = 0
        self._tail = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._inner)
        while (piece := await self._next(pieces)) is not None:
            self._count(piece)
            if self._size > self._cap:
                said = self._guard.too_large(self._journey)
                # After the one the SDK gives up, after the other it would ask for the rest.
                raise httpx2.SSEError(said) if self._events else httpx2.StreamError(said)
            yield piece

    async def _next(self, pieces: AsyncIterator[bytes]) -> bytes | None:
        early = build_failure("ended its answer before it was complete", "closed")
        try:
            return await self._journey.bounded(anext(pieces))
        except StopAsyncIteration:
            if self._events:
                self._guard.note(self._journey.identity, early)
            return None
        except TimeoutError:
            raise httpx2.SSEError("nobody waits for this answer any more") from None
        except httpx2.TransportError:
            self._guard.note(self._journey.identity, early)
            raise httpx2.StreamError(early.said) from None

    def _count(self, piece: bytes) -> None:
        if not self._events:
            self._size += len(piece)
            return
        # An event may end in the middle of a piece, and its end may be cut in two.
        seen = self._tail + piece
        ends = [found.end() for found in _EVENT_END.finditer(seen)]
        self._size = len(seen) - ends[-1] if ends else self._size + len(piece)
        self._tail = seen[-3:]

    async def aclose(self) -> None:
        await self._inner.aclose()


class _OwnEvents(httpx2.AsyncByteStream):
    """The events that answer one request, without answers to others."""

    def __init__(self, inner: _Watched, guard: HttpGuard, asked: RequestId) -> None:
        self._inner = inner
        self._guard = guard
        self._asked = asked

    async def __aiter__(self) -> AsyncIterator[bytes]:
        filtered = EventFilter(self._asked)
        async for piece in self._inner:
            events = filtered.take(piece)
            if filtered.foreign is not None:
                self._guard.on_foreign_answer(f"it {_foreign(filtered.foreign)}, which was ignored")
            if events:
                yield events
        if rest := filtered.finish():
            yield rest
        if filtered.foreign is not None:
            # The request will now be told that the stream has ended: this is why.
            self._guard.note(self._asked, build_failure(_foreign(filtered.foreign), "malformed"))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _OwnAnswer(httpx2.AsyncByteStream):
    """The JSON body that answers one request; anything else becomes an error of that request."""

    def __init__(self, inner: _Watched, guard: HttpGuard, asked: RequestId) -> None:
        self._inner = inner
        self._guard = guard
        self._asked = asked

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = b"".join([piece async for piece in self._inner])
        judged = classify_message(body, self._asked)
        if judged.kind in {"own", "unnamed"}:
            yield body if judged.kind == "own" else add_response_id(body, self._asked)
            return
        said = _foreign(judged.shown_id)
        if judged.kind == "other":
            said = "answered with a message that is not an answer"
        self._guard.note(self._asked, build_failure(said, "malformed"))
        error = {"code": PARSE_ERROR, "message": f"it {said}"}
        yield json.dumps({"jsonrpc": "2.0", "id": self._asked, "error": error}).encode()

    async def aclose(self) -> None:
        await self._inner.aclose()


def _foreign(shown_id: str) -> str:
    return f"answered a request that was not asked (id {shown_id})"


class GuardedClient(httpx2.AsyncClient):
    """An HTTP client that tells its guard which JSON-RPC request it sends."""

    def build_request(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        method: str,
        url: httpx2.URL | str,
        *,
        json: Any = None,
        extensions: dict[str, Any] | None = None,
        **rest: Any,
    ) -> httpx2.Request:
        """Build a request, marked with the id of what it asks."""
        marked = dict(extensions or {})
        if is_json_object(json) and "method" in json and "id" in json:
            marked[REQUEST] = json["id"]
        return super().build_request(method, url, json=json, extensions=marked, **rest)


@asynccontextmanager
async def open_guarded_client(
    config: SseServerConfig | StreamableHttpServerConfig,
) -> AsyncGenerator[tuple[GuardedClient, HttpGuard]]:
    """Make the HTTP client of a server, and close it when the block is left.

    Raises:
        ProtocolFault: The address, a header or the proxy cannot be used.
    """
    address = _checked(config)
    limits = config.limits
    proxy = proxy_for(config, address, os.environ)
    # In a thread: the first one loads half of the HTTP library, and the certificates.
    inner = await asyncio.to_thread(_network, address.scheme == "https", limits.in_flight, proxy)
    guard = HttpGuard(inner, address, limits, None if proxy is None else format_origin(proxy.url))
    # Whoever waits for an answer has a deadline; here only what comes before is bounded.
    client = GuardedClient(
        transport=guard,
        headers=dict(config.headers),
        timeout=httpx2.Timeout(None, connect=limits.start_s),
        max_redirects=REDIRECTS,
        trust_env=False,
    )
    async with client:
        yield client, guard


def _checked(config: SseServerConfig | StreamableHttpServerConfig) -> httpx2.URL:
    detail = FaultDetail(server=config.id, reason="malformed")
    for name, value in config.headers.items():
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            message = f"server {config.id!r}: its header {name!r} cannot be sent: check its text"
            raise ProtocolFault("transport", message, detail=detail)
    try:
        address = httpx2.URL(config.url)
    except httpx2.InvalidURL:
        address = httpx2.URL()
    if address.scheme not in {"http", "https"} or not address.host:
        message = f"server {config.id!r}: its url is no http or https address"
        raise ProtocolFault("transport", message, detail=detail)
    return address


def _network(secure: bool, kept: int, proxy: httpx2.Proxy | None) -> httpx2.AsyncHTTPTransport:
    many = httpx2.Limits(max_connections=None, max_keepalive_connections=kept)
    tls = _shared_tls() if secure else _no_tls()
    if proxy is not None and proxy.url.scheme == "https":
        proxy.ssl_context = _shared_tls()
    return httpx2.AsyncHTTPTransport(verify=tls, limits=many, proxy=proxy)


def _shared_tls() -> ssl.SSLContext:
    """Give the one TLS context of the process."""
    with _making_tls:
        return _make_tls()


@functools.cache
def _make_tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


@functools.cache
def _no_tls() -> ssl.SSLContext:
    """Stand for TLS where it is not spoken: it trusts nobody."""
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def _ignore(said: str) -> None:
    """Nobody wants to know."""


def _nothing() -> None:
    """Stand for a listener that nobody has set."""


T = TypeVar("T")

_FIRST_PAUSE_S = 0.5
_PAUSE_FACTOR = 1.6
_LONGEST_PAUSE_S = 60.0


class ResumableRequest:
    """A request of ours and the GETs by which the SDK goes on with it; all in one task."""

    def __init__(self, identity: RequestId | None) -> None:
        self.identity = identity
        self._ends_at: float | None = None
        self._timer: asyncio.Timeout | None = None
        self._next_get_at: float | None = None
        self._pause_s = _FIRST_PAUSE_S

    async def bounded(self, waiting: Awaitable[T], within_s: float | None = None) -> T:
        """Wait for the network, until the request is given up."""
        ends_at = self._ends_at
        if within_s is not None:
            ends_at = asyncio.get_running_loop().time() + within_s
        async with asyncio.timeout_at(ends_at) as timer:
            self._timer = timer
            try:
                return await waiting
            finally:
                self._timer = None

    @property
    def given_up(self) -> bool:
        """Whether nobody waits for it any more."""
        return self._ends_at is not None

    def give_up(self, at: float) -> None:
        """Let it go on until then, and no longer."""
        self._ends_at = at
        if self._timer is not None:
            self._timer.reschedule(at)

    async def pace(self, *, resumes: bool) -> None:
        """Let the first GET of a standing stream pass, and each other one wait longer."""
        loop = asyncio.get_running_loop()
        if self._next_get_at is None and resumes:
            self._next_get_at = loop.time() + self._pause_s
        if self._next_get_at is not None:
            if loop.time() - self._next_get_at > _LONGEST_PAUSE_S:
                self._pause_s = _FIRST_PAUSE_S
            await asyncio.sleep(max(0.0, self._next_get_at - loop.time()))
            self._pause_s = min(self._pause_s * _PAUSE_FACTOR, _LONGEST_PAUSE_S)
        self._next_get_at = loop.time() + self._pause_s
