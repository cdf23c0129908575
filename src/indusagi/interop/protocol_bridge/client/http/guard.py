"""Guarded HTTP client: a failure of one request stays with that request.

The SDK's transport treats a lost connection as the end of the session, forgets the status of a refusal, and reads and
decompresses bodies of any size. The guard stands between it and the network. It turns failures into responses, keeps
for each JSON-RPC request why it failed, asks for uncompressed bodies and counts their bytes, delays reconnections, and
lets no request leave the origin of the configured URL. Deadlines of responses belong to the JSON-RPC connection.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import json
import re
import ssl
import threading
import weakref
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeVar, cast

import httpx2

from indusagi.core.backoff import Backoff
from indusagi.core.json import is_json_object
from indusagi.interop.auth.contract import AuthFault, Refusal
from indusagi.interop.protocol_bridge.client.http.failures import (
    TransportFailure,
    build_failure,
    build_redirect_failure,
    check_response,
    classify_auth_fault,
    classify_network_error,
    classify_status,
    format_origin,
    get_content_type,
    get_origin,
    is_rpc_error,
)
from indusagi.interop.protocol_bridge.client.http.header_command import HeaderCommand
from indusagi.interop.protocol_bridge.client.http.proxy import find_proxy
from indusagi.interop.protocol_bridge.client.http.responses import (
    BLANK_LINE,
    OVERLAP,
    EventFilter,
    add_response_id,
    classify_message,
)
from indusagi.interop.protocol_bridge.client.transient import is_passing
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.connection import PARSE_ERROR

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from indusagi.interop.auth.contract import RequestAuthorizer
    from indusagi.interop.protocol_bridge.contract import ServerLimits, SseServerConfig, StreamableHttpServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId

T = TypeVar("T")

REQUEST = "indusagi.request"
"""The extension of an HTTP request that holds the id of its JSON-RPC request."""
REDIRECTS = 3
_SAME_METHOD = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
"""Redirects that repeat the request as it is (RFC 9110 §15.4)."""
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_AUTH_TRIES = 5
"""How often a refused request is sent again: for a nonce, a refresh, a sign-in and a step-up."""
_SESSION = "mcp-session-id"
_KEPT_FAILURES = 256
_ERROR_BODY = 64 * 1024
_PIECE_BYTES = 64 * 1024
_tls_lock = threading.Lock()
# RFC 9110 §5.1 (field names are tokens), §5.5 (field values)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_MAX_POSTS = 64
"""How many notifications are sent at once before the next one waits."""
_FIRST_POST_S = 1.0
"""How long other requests wait for the answer to `notifications/initialized`, or for a place among the posts."""
_FIRST_PAUSE_S, _PAUSE_FACTOR, _LONGEST_PAUSE_S = 0.5, 1.6, 60.0
"""Between two GETs that go on with one stream."""


class ResumableRequest:
    """A JSON-RPC request with the GETs by which the SDK continues its event stream; all run in one task."""

    def __init__(self, request_id: RequestId | None) -> None:
        self.request_id = request_id
        self._ends_at: float | None = None
        self._timeout: asyncio.Timeout | None = None
        self._next_get_at: float | None = None
        self._backoff = Backoff(_FIRST_PAUSE_S, factor=_PAUSE_FACTOR, longest_s=_LONGEST_PAUSE_S, jitter=0)

    async def wait(self, awaitable: Awaitable[T], within_s: float | None = None) -> T:
        """Wait for the network, until the request is given up."""
        ends_at = self._ends_at
        if within_s is not None:
            ends_at = asyncio.get_running_loop().time() + within_s
        async with asyncio.timeout_at(ends_at) as timeout:
            self._timeout = timeout
            try:
                return await awaitable
            finally:
                self._timeout = None

    @property
    def is_given_up(self) -> bool:
        """Whether the request was cancelled."""
        return self._ends_at is not None

    def give_up(self, at: float) -> None:
        """Let it go on until `at`, by the clock of the event loop."""
        self._ends_at = at
        if self._timeout is not None:
            self._timeout.reschedule(at)

    async def pace(self, *, resumes: bool, retry_after_s: float | None = None) -> None:
        """Delay a GET; the first one of a standing stream passes at once, each further one waits longer."""
        loop = asyncio.get_running_loop()
        if self._next_get_at is None and resumes:
            self._next_get_at = loop.time() + self._backoff.next_pause()
        if self._next_get_at is not None:
            if loop.time() - self._next_get_at > _LONGEST_PAUSE_S:
                self._backoff.reset()
            await asyncio.sleep(max(retry_after_s or 0.0, self._next_get_at - loop.time()))
        self._next_get_at = loop.time() + self._backoff.next_pause()


class HttpGuard(httpx2.AsyncBaseTransport):
    """HTTP transport between an HTTP client and the network, for one server."""

    def __init__(
        self,
        network: httpx2.AsyncBaseTransport,
        address: httpx2.URL,
        limits: ServerLimits,
        via: str | None = None,
        authorizer: RequestAuthorizer | None = None,
    ) -> None:
        self.via = via
        """The origin of the proxy between client and server."""
        self.on_session_lost: Callable[[], object] = lambda: None
        self.on_foreign_response: Callable[[str], None] = lambda note: None
        """Receives a sentence about the server when it has answered another request."""
        self.on_gap: Callable[[], None] = lambda: None
        """Called when the stream for messages that belong to no request is open again."""
        self._had_stream = False
        self._is_session_lost = False
        self._network = network
        self._origin = get_origin(address)
        self._limits = limits
        self._authorizer = authorizer
        self._posts: set[asyncio.Task[None]] = set()
        """Notifications that are being sent."""
        self._failures: collections.OrderedDict[RequestId, TransportFailure] = collections.OrderedDict()
        self._by_task: weakref.WeakKeyDictionary[asyncio.Task[Any], ResumableRequest] = weakref.WeakKeyDictionary()
        self._by_id: weakref.WeakValueDictionary[RequestId, ResumableRequest] = weakref.WeakValueDictionary()

    # -- failures by request ----------------------------------------------------------------

    def note(self, request_id: RequestId | None, failure: TransportFailure | None) -> None:
        """Keep why a request failed, in place of what was kept; `None`: it did not fail."""
        if request_id is None:
            return
        self._failures.pop(request_id, None)
        if failure is not None:
            self._failures[request_id] = failure
            while len(self._failures) > _KEPT_FAILURES:
                self._failures.popitem(last=False)

    def find_failure(self, request_id: RequestId) -> TransportFailure | None:
        """Return why a request failed."""
        return self._failures.get(request_id)

    def take_detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget why a request failed."""
        failure = self._failures.pop(request_id, None)
        return None if failure is None else failure.detail

    def give_up(self, request_id: RequestId) -> None:
        """End a cancelled request, once its server had time to end it."""
        resumable = self._by_id.get(request_id)
        if resumable is not None:
            resumable.give_up(asyncio.get_running_loop().time() + self._limits.close_s)

    # -- requests ---------------------------------------------------------------------------

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; failures of the network are returned as responses."""
        request.headers["accept-encoding"] = "identity"
        request_id = cast("RequestId | None", request.extensions.get(REQUEST))
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        resumable = self._by_task.get(task)
        if resumable is None or (request_id is not None and resumable.request_id != request_id):
            resumable = self._by_task[task] = ResumableRequest(request_id)
            if request_id is not None:
                self._by_id[request_id] = resumable
        if get_origin(request.url) != self._origin:
            return self._fail(resumable, build_redirect_failure(request.url))
        if request.method == "DELETE":
            return await self._end_session(request)
        if resumable.request_id is None:
            is_stream = request.method == "GET"
            return await (self._open_stream(request, resumable) if is_stream else self._post_notification(request))
        if request.method == "GET":
            await resumable.pace(resumes="last-event-id" in request.headers)
            if resumable.is_given_up:
                return self._fail(resumable, build_failure("was given up", "cancelled"))
        try:
            response = await resumable.wait(self._send(request))
            return await self._check(request, response, resumable)
        except AuthFault as exc:
            return self._fail(resumable, classify_auth_fault(exc), HTTPStatus.UNAUTHORIZED)
        except (TimeoutError, httpx2.TransportError) as exc:
            return self._fail(resumable, classify_network_error(exc, self.via))

    async def _open_stream(self, request: httpx2.Request, resumable: ResumableRequest) -> httpx2.Response:
        """Open the stream for messages that belong to no request; a failure that passes is waited for.

        The SDK gives up after two failures, and the server's notifications would never come again.
        """
        resumes, retry_after_s = "last-event-id" in request.headers, None
        while True:
            await resumable.pace(resumes=resumes, retry_after_s=retry_after_s)
            response, failure = None, None
            try:
                response = await self._send(request)
            except AuthFault as exc:
                failure = classify_auth_fault(exc)
            except (TimeoutError, httpx2.TransportError) as exc:
                failure = classify_network_error(exc, self.via)
            if response is not None and response.status_code >= HTTPStatus.BAD_REQUEST:
                failure = classify_status(response, self.via)
            if failure is None or not is_passing(failure.detail):
                break
            if response is not None:
                await response.aclose()
            retry_after_s = failure.detail.retry_after_s
        if response is None:
            return self._fail(resumable, failure or build_failure("failed", "closed"))
        if failure is None and self._had_stream:
            self.on_gap()
        self._had_stream = self._had_stream or failure is None
        return await self._check(request, response, resumable)

    async def _end_session(self, request: httpx2.Request) -> httpx2.Response:
        """End the session; a server that does not respond ends it by itself."""
        if not self._is_session_lost:
            with suppress(TimeoutError, httpx2.TransportError, AuthFault):
                async with asyncio.timeout(self._limits.close_s):
                    await (await self._send(request)).aclose()
        return httpx2.Response(HTTPStatus.NO_CONTENT)

    async def _post_notification(self, request: httpx2.Request) -> httpx2.Response:
        """Send a notification, or a response to the server, in its own task.

        The SDK sends nothing else until this returns: a server that answers late would hold up every call.
        """

        async def post(request: httpx2.Request) -> None:
            with suppress(TimeoutError, httpx2.TransportError, AuthFault):
                async with asyncio.timeout(self._limits.start_s):
                    for _ in range(REDIRECTS + 1):
                        response = await self._send(request)
                        await self._check(request, response, ResumableRequest(None))
                        await response.aclose()
                        target = request.url.join(response.headers.get("location", ""))
                        if response.status_code not in _SAME_METHOD or get_origin(target) != self._origin:
                            return
                        request = httpx2.Request("POST", target, headers=request.headers, content=request.content)

        posting = asyncio.create_task(post(request))  # noqa: TID251 — owned by the guard, which ends it in `aclose`
        self._posts.add(posting)
        posting.add_done_callback(self._posts.discard)
        # Some servers refuse requests until they have read `initialized`.
        is_first = b"notifications/initialized" in request.content
        if is_first or len(self._posts) > _MAX_POSTS:
            waited_for = {posting} if is_first else self._posts
            await asyncio.wait(waited_for, timeout=_FIRST_POST_S, return_when=asyncio.FIRST_COMPLETED)
        return httpx2.Response(HTTPStatus.ACCEPTED)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request with the credentials of the authorizer, again if it says so after a refusal."""
        authorizer = self._authorizer
        if authorizer is None:
            return await self._network.handle_async_request(request)
        for tries_left in range(_AUTH_TRIES, -1, -1):
            sent = await authorizer.build_headers(request.method, str(request.url))
            request.headers.update(sent)
            response = await self._network.handle_async_request(request)
            nonce = response.headers.get("dpop-nonce", "")
            if response.status_code not in _REFUSALS or not tries_left:
                authorizer.accept(sent, nonce)
                return response
            refusal = Refusal(response.status_code, response.headers.get_list("www-authenticate"), nonce)
            try:
                is_renewed = await authorizer.handle_refusal(sent, refusal)
            except BaseException:
                await response.aclose()
                raise
            if not is_renewed:
                return response
            await response.aclose()
        raise AssertionError("the last try returns")

    # -- responses --------------------------------------------------------------------------

    async def _check(
        self, request: httpx2.Request, response: httpx2.Response, resumable: ResumableRequest
    ) -> httpx2.Response:
        coding = response.headers.get("content-encoding", "identity").strip().lower()
        length = response.headers.get("content-length", "")
        if coding not in {"", "identity"}:
            await response.aclose()
            message = "answered with a compressed body, which was not asked for"
            return self._fail(resumable, build_failure(message, "malformed", response.status_code))
        is_events = get_content_type(response) == "text/event-stream"  # its limit is one event
        if not is_events and length.isdecimal() and int(length) > self._limits.frame_bytes:
            await response.aclose()
            return self._fail(resumable, self.build_size_failure())
        if response.status_code >= HTTPStatus.BAD_REQUEST:
            return await self._check_refusal(request, response, resumable)
        request_id, content_type, headers = resumable.request_id, get_content_type(response), response.headers
        self.note(request_id, check_response(request, response, is_rpc_request=request_id is not None))
        counted = _CountedBody(response, self, resumable, self._limits.frame_bytes, is_events=is_events)
        stream: httpx2.AsyncByteStream = counted
        if response.status_code == HTTPStatus.OK:
            # A GET that resumes a response belongs to the request of its task; a GET with an id of its own is the
            # stream of the HTTP+SSE transport, which carries all responses.
            is_shared = request.method == "GET" and REQUEST in request.extensions
            if is_events and not is_shared:
                stream = _OwnEvents(counted, self, request_id)
            elif request_id is not None and content_type == "application/json" and request.method == "POST":
                stream = _OwnResponse(counted, self, request_id)
                headers = httpx2.Headers(headers)
                headers.pop("content-length", None)  # the body may be replaced
        return httpx2.Response(response.status_code, headers=headers, stream=stream, extensions=response.extensions)

    async def _check_refusal(
        self, request: httpx2.Request, response: httpx2.Response, resumable: ResumableRequest
    ) -> httpx2.Response:
        body = b""
        try:
            async with asyncio.timeout(self._limits.close_s):
                async for piece in cast("httpx2.AsyncByteStream", response.stream):
                    body += piece
                    if len(body) > _ERROR_BODY:
                        break
        except (TimeoutError, httpx2.TransportError):
            body = b""
        finally:
            await response.aclose()
        failure = classify_status(response, self.via)
        # A server responds 404 to the id of a session that it no longer has:
        # https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#session-management
        is_unknown_session = response.status_code == HTTPStatus.NOT_FOUND and _SESSION in request.headers
        if is_unknown_session and request.method == "POST":
            self._is_session_lost = True
            self.on_session_lost()
        if len(body) > _ERROR_BODY or not is_rpc_error(body):
            return self._fail(resumable, failure, response.status_code)
        if failure.detail.reason not in {"auth", "rate_limited"}:
            failure = build_failure("", None, response.status_code, failure.detail.retry_after_s)
        self.note(resumable.request_id, failure)
        return httpx2.Response(response.status_code, headers={"content-type": "application/json"}, content=body)

    def _fail(
        self, resumable: ResumableRequest, failure: TransportFailure, status: int = HTTPStatus.BAD_GATEWAY
    ) -> httpx2.Response:
        """Respond in the server's place; the SDK passes the error on as the response to the request."""
        self.note(resumable.request_id, failure)
        error = {"code": -32000, "message": f"it {failure.message}"}
        return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error})

    def build_size_failure(self) -> TransportFailure:
        """Build the failure of a body past the size limit."""
        return build_failure(f"sent a message of more than {self._limits.frame_bytes:,} bytes", "frame_too_large")

    async def aclose(self) -> None:
        """Close every connection."""
        for posting in self._posts:
            posting.cancel()
        if self._posts:
            await asyncio.wait(self._posts)
        await self._network.aclose()


class _CountedBody(httpx2.AsyncByteStream):
    """A response body whose bytes are counted: in total, or per event."""

    def __init__(
        self, response: httpx2.Response, guard: HttpGuard, resumable: ResumableRequest, cap: int, *, is_events: bool
    ) -> None:
        self._inner = cast("httpx2.AsyncByteStream", response.stream)
        self._guard = guard
        self._resumable = resumable
        self._cap = cap
        self._is_events = is_events
        self._size = 0
        self._tail = b""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        pieces = aiter(self._inner)
        incomplete = build_failure("ended its answer before it was complete", "closed")
        while True:
            try:
                piece = await self._resumable.wait(anext(pieces))
            except StopAsyncIteration:
                if self._is_events:
                    self._guard.note(self._resumable.request_id, incomplete)
                return
            except TimeoutError:
                raise httpx2.SSEError("the request was cancelled") from None
            except httpx2.TransportError:
                self._guard.note(self._resumable.request_id, incomplete)
                if self._resumable.request_id is None:
                    return  # the SDK opens a standing stream again when it has ended, and not often when it has failed
                raise httpx2.StreamError(incomplete.message) from None
            if self._is_events:
                # An event may end in the middle of a piece, and its end may be split over two.
                window = self._tail + piece
                ends = [match.end() for match in BLANK_LINE.finditer(window)]
                self._size = len(window) - ends[-1] if ends else self._size + len(piece)
                self._tail = window[-OVERLAP:]
            else:
                self._size += len(piece)
            if self._size > self._cap:
                failure = self._guard.build_size_failure()
                self._guard.note(self._resumable.request_id, failure)
                # After an `SSEError` the SDK gives up; after a `StreamError` it would request the rest.
                raise httpx2.SSEError(failure.message) if self._is_events else httpx2.StreamError(failure.message)
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class _OwnBody(httpx2.AsyncByteStream):
    """A response body that may contain responses to other requests, or messages with a name twice."""

    def __init__(self, inner: _CountedBody, guard: HttpGuard, request_id: RequestId | None) -> None:
        self._inner = inner
        self._guard = guard
        self._request_id = request_id

    async def aclose(self) -> None:
        await self._inner.aclose()


class _OwnEvents(_OwnBody):
    """The events that belong to one request or to none, without responses to others."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        events = EventFilter(self._request_id)
        async for piece in self._inner:
            passed = events.take(piece)
            if events.problem is not None:
                self._guard.on_foreign_response(f"it {events.problem}, which was ignored")
            # In small pieces, each freed before the next: the SDK copies what it gets several times.
            held = bytearray(passed)
            del piece, passed
            while held:
                yield bytes(held[:_PIECE_BYTES])
                del held[:_PIECE_BYTES]
        if rest := events.finish():
            yield rest
        if events.problem is not None:
            # The request fails because its stream has ended: this is why.
            self._guard.note(self._request_id, build_failure(events.problem, "malformed"))


class _OwnResponse(_OwnBody):
    """The JSON body that answers one request; anything else becomes an error of that request."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        body = b"".join([piece async for piece in self._inner])
        match = classify_message(body, self._request_id)
        if match.kind in {"own", "unnamed"}:
            yield body if match.kind == "own" else add_response_id(body, self._request_id)
            return
        self._guard.note(self._request_id, build_failure(match.problem, "malformed"))
        error = {"code": PARSE_ERROR, "message": f"it {match.problem}"}
        yield json.dumps({"jsonrpc": "2.0", "id": self._request_id, "error": error}).encode()


class GuardedClient(httpx2.AsyncClient):
    """HTTP client that marks each request with the id of its JSON-RPC request, for the guard."""

    def build_request(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        method: str,
        url: httpx2.URL | str,
        *,
        json: Any = None,
        extensions: dict[str, Any] | None = None,
        **rest: Any,
    ) -> httpx2.Request:
        """Build a request, marked with the id of its JSON-RPC request."""
        marked = dict(extensions or {})
        if is_json_object(json) and "method" in json and "id" in json:
            marked[REQUEST] = json["id"]
        return super().build_request(method, url, json=json, extensions=marked, **rest)


@asynccontextmanager
async def open_guarded_client(
    config: SseServerConfig | StreamableHttpServerConfig,
) -> AsyncGenerator[tuple[GuardedClient, HttpGuard]]:
    """Open the HTTP client of a server, and close it when the block is left.

    Raises:
        ProtocolFault: The URL, a header or the proxy cannot be used.
    """
    detail = FaultDetail(server=config.id, reason="malformed")
    for name, value in config.headers.items():
        if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
            message = f"server {config.id!r}: its header {name!r} cannot be sent: check its text"
            raise ProtocolFault("transport", message, detail=detail)
    address = httpx2.URL()
    with suppress(httpx2.InvalidURL):
        address = httpx2.URL(config.url)
    if address.scheme not in {"http", "https"} or not address.host:
        message = f"server {config.id!r}: its url is no http or https address"
        raise ProtocolFault("transport", message, detail=detail)
    limits = config.limits
    proxy = find_proxy(config, address)
    # In a thread: the first one loads half of the HTTP library, and the certificates.
    network = await asyncio.to_thread(_open_network, address.scheme == "https", limits.in_flight, proxy)
    authorizer = await asyncio.to_thread(_open_authorizer, config, proxy)
    guard = HttpGuard(network, address, limits, None if proxy is None else format_origin(proxy.url), authorizer)
    client = GuardedClient(
        transport=guard,
        headers=dict(config.headers),
        # Connecting is bounded here; waiting for a response has the deadline of its request.
        timeout=httpx2.Timeout(None, connect=limits.start_s),
        max_redirects=REDIRECTS,
        trust_env=False,
    )
    async with client:
        try:
            yield client, guard
        finally:
            if authorizer is not None:
                await authorizer.close()


def _open_authorizer(
    config: SseServerConfig | StreamableHttpServerConfig, proxy: httpx2.Proxy | None
) -> RequestAuthorizer | None:
    """Make what signs in to a server; a header `Authorization` of the configuration stands instead."""
    auth = config.auth
    if auth is None or any(name.lower() == "authorization" for name in config.headers):
        return None
    if auth.settings.header_command:
        return HeaderCommand(auth.settings.header_command, config.id, config.url, config.limits.start_s)
    # In a thread and late: only servers that are signed in to need it.
    from indusagi.interop.auth.authorizer import OAuthAuthorizer  # noqa: PLC0415
    from indusagi.interop.auth.driver import AuthDriver  # noqa: PLC0415

    via = None if proxy is None else str(proxy.url)
    driver = AuthDriver(config.url, auth, name=config.id, proxy=via)
    if auth.settings.grant == "token_exchange":
        if config.kind == "sse":
            # There the credentials belong to the connection, and not to a call.
            message = f"server {config.id!r}: token exchange needs Streamable HTTP, and not SSE"
            raise ProtocolFault("transport", message, detail=FaultDetail(server=config.id, reason="malformed"))
        from indusagi.interop.auth.exchange import TokenExchangeAuthorizer  # noqa: PLC0415 — for such servers alone

        return TokenExchangeAuthorizer(driver)
    return OAuthAuthorizer(driver)


def _open_network(secure: bool, keepalive: int, proxy: httpx2.Proxy | None) -> httpx2.AsyncHTTPTransport:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=keepalive)
    if proxy is not None and proxy.url.scheme == "https":
        proxy.ssl_context = _get_tls()
    # Plain HTTP needs no certificates, whose loading takes long.
    tls = _get_tls() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.AsyncHTTPTransport(verify=tls, limits=limits, proxy=proxy)


def _get_tls() -> ssl.SSLContext:
    """Return the one TLS context of the process, made by the first thread that needs it."""
    with _tls_lock:
        return _make_tls()


@functools.cache
def _make_tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()
