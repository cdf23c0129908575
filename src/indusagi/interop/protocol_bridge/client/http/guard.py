"""Guarded HTTP client: a failed request doesn't take the session down.

The SDK's transport treats a lost connection as the end of the session, forgets the status of a refusal, and reads and
decompresses bodies of any size. The guard sits between it and the network: it turns failures into responses, records
why each JSON-RPC request failed, requests uncompressed bodies and counts their bytes, delays reconnects, and keeps
requests on the origin of the configured URL. Response deadlines belong to the JSON-RPC connection.
"""

from __future__ import annotations

import asyncio
import collections
import functools
import json
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
from indusagi.interop.protocol_bridge.client.http.header_command import HeaderCommand, is_valid_header
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
"""HTTP request extension that holds the id of the JSON-RPC request."""
REDIRECTS = 3
_SAME_METHOD = frozenset({HTTPStatus.TEMPORARY_REDIRECT, HTTPStatus.PERMANENT_REDIRECT})
"""Redirects that keep method and body (RFC 9110 §15.4)."""
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_MAX_AUTH_RETRIES = 5
"""Enough for a nonce, a refresh, a sign-in and a step-up."""
_SESSION = "mcp-session-id"
_MAX_FAILURES = 256
_MAX_ERROR_BODY_BYTES = 64 * 1024
_CHUNK_BYTES = 64 * 1024
_tls_lock = threading.Lock()
_MAX_POSTS = 64
"""Concurrent notification posts before the next one waits."""
_POST_WAIT_S = 1.0
"""How long other requests wait for the response to `notifications/initialized`, or for a free post slot."""
_FIRST_PAUSE_S, _PAUSE_FACTOR, _LONGEST_PAUSE_S = 0.5, 1.6, 60.0
"""Backoff between two GETs that resume one stream."""


class ResumableRequest:
    """A JSON-RPC request plus the GETs with which the SDK resumes its event stream, all in one task."""

    def __init__(self, request_id: RequestId | None) -> None:
        self.request_id = request_id
        self._ends_at: float | None = None
        self._timeout: asyncio.Timeout | None = None
        self._next_get_at: float | None = None
        self._backoff = Backoff(_FIRST_PAUSE_S, factor=_PAUSE_FACTOR, longest_s=_LONGEST_PAUSE_S, jitter=0)

    async def wait(self, awaitable: Awaitable[T], within_s: float | None = None) -> T:
        """Await network I/O until the request is given up."""
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
        """Let it run until `at`, in event loop time."""
        self._ends_at = at
        if self._timeout is not None:
            self._timeout.reschedule(at)

    async def pace(self, *, resumes: bool, retry_after_s: float | None = None) -> None:
        """Delay a GET with growing pauses; the first GET of a standing stream runs at once."""
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
        """Origin of the proxy, if any."""
        self.on_session_lost: Callable[[], object] = lambda: None
        self.on_foreign_response: Callable[[str], None] = lambda note: None
        """Receives a note when the server answers a different request."""
        self.on_gap: Callable[[], None] = lambda: None
        """Called when the standing stream (messages that belong to no request) reopens."""
        self._had_stream = False
        self._is_session_lost = False
        self._network = network
        self._origin = get_origin(address)
        self._limits = limits
        self._authorizer = authorizer
        self._posts: set[asyncio.Task[None]] = set()
        """Notifications in transit."""
        self._failures: collections.OrderedDict[RequestId, TransportFailure] = collections.OrderedDict()
        self._by_task: weakref.WeakKeyDictionary[asyncio.Task[Any], ResumableRequest] = weakref.WeakKeyDictionary()
        self._by_id: weakref.WeakValueDictionary[RequestId, ResumableRequest] = weakref.WeakValueDictionary()

    # -- failures by request ----------------------------------------------------------------

    def note(self, request_id: RequestId | None, failure: TransportFailure | None) -> None:
        """Record why a request failed, replacing the previous failure; `None` clears it."""
        if request_id is None:
            return
        self._failures.pop(request_id, None)
        if failure is not None:
            self._failures[request_id] = failure
            while len(self._failures) > _MAX_FAILURES:
                self._failures.popitem(last=False)

    def find_failure(self, request_id: RequestId) -> TransportFailure | None:
        """Return why a request failed."""
        return self._failures.get(request_id)

    def take_detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget why a request failed."""
        failure = self._failures.pop(request_id, None)
        return None if failure is None else failure.detail

    def give_up(self, request_id: RequestId) -> None:
        """End a cancelled request after giving the server time to end it."""
        resumable = self._by_id.get(request_id)
        if resumable is not None:
            resumable.give_up(asyncio.get_running_loop().time() + self._limits.close_s)

    # -- requests ---------------------------------------------------------------------------

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; network failures come back as responses."""
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
        """Open the standing stream, retrying while the failure is transient.

        The SDK gives up after two failures and would never receive notifications again.
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
        """End the session; a server that doesn't respond will expire it."""
        if not self._is_session_lost:
            with suppress(TimeoutError, httpx2.TransportError, AuthFault):
                async with asyncio.timeout(self._limits.close_s):
                    await (await self._send(request)).aclose()
        return httpx2.Response(HTTPStatus.NO_CONTENT)

    async def _post_notification(self, request: httpx2.Request) -> httpx2.Response:
        """Send a notification, or a response to the server, in a separate task.

        The SDK sends nothing else until this returns, so a slow server would hold up every call.
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

        posting = asyncio.create_task(post(request))  # noqa: TID251 — owned by the guard; `aclose` ends it
        self._posts.add(posting)
        posting.add_done_callback(self._posts.discard)
        # Some servers refuse requests until they've read `initialized`.
        is_first = b"notifications/initialized" in request.content
        if is_first or len(self._posts) > _MAX_POSTS:
            waited_for = {posting} if is_first else self._posts
            await asyncio.wait(waited_for, timeout=_POST_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        return httpx2.Response(HTTPStatus.ACCEPTED)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request with the authorizer's credentials, retrying refusals it can handle."""
        authorizer = self._authorizer
        if authorizer is None:
            return await self._network.handle_async_request(request)
        for tries_left in range(_MAX_AUTH_RETRIES, -1, -1):
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
        is_events = get_content_type(response) == "text/event-stream"  # limited per event, not in total
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
            # A GET that resumes a response belongs to its task's request. A GET with an id is the stream of the
            # HTTP+SSE transport, which carries all responses.
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
                    if len(body) > _MAX_ERROR_BODY_BYTES:
                        break
        except (TimeoutError, httpx2.TransportError):
            body = b""
        finally:
            await response.aclose()
        failure = classify_status(response, self.via)
        # A server responds 404 to an expired session id:
        # https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#session-management
        is_unknown_session = response.status_code == HTTPStatus.NOT_FOUND and _SESSION in request.headers
        if is_unknown_session and request.method == "POST":
            self._is_session_lost = True
            self.on_session_lost()
        if len(body) > _MAX_ERROR_BODY_BYTES or not is_rpc_error(body):
            return self._fail(resumable, failure, response.status_code)
        if failure.detail.reason not in {"auth", "rate_limited"}:
            failure = build_failure("", None, response.status_code, failure.detail.retry_after_s)
        self.note(resumable.request_id, failure)
        return httpx2.Response(response.status_code, headers={"content-type": "application/json"}, content=body)

    def _fail(
        self, resumable: ResumableRequest, failure: TransportFailure, status: int = HTTPStatus.BAD_GATEWAY
    ) -> httpx2.Response:
        """Respond in the server's place; the SDK turns this into the request's error."""
        self.note(resumable.request_id, failure)
        error = {"code": -32000, "message": f"it {failure.message}"}
        return httpx2.Response(status, json={"jsonrpc": "2.0", "id": None, "error": error})

    def build_size_failure(self) -> TransportFailure:
        """Build the failure for a body over the size limit."""
        return build_failure(f"sent a message of more than {self._limits.frame_bytes:,} bytes", "frame_too_large")

    async def aclose(self) -> None:
        """Cancel pending posts and close every connection."""
        for posting in self._posts:
            posting.cancel()
        if self._posts:
            await asyncio.wait(self._posts)
        await self._network.aclose()


class _CountedBody(httpx2.AsyncByteStream):
    """A response body with a byte limit, in total or per event."""

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
                    return  # the SDK reopens a standing stream that ended, but rarely one that failed
                raise httpx2.StreamError(incomplete.message) from None
            if self._is_events:
                # An event may end in the middle of a chunk, and its end may span two.
                window = self._tail + piece
                ends = [match.end() for match in BLANK_LINE.finditer(window)]
                self._size = len(window) - ends[-1] if ends else self._size + len(piece)
                self._tail = window[-OVERLAP:]
            else:
                self._size += len(piece)
            if self._size > self._cap:
                failure = self._guard.build_size_failure()
                self._guard.note(self._resumable.request_id, failure)
                # The SDK gives up after an `SSEError`, but would resume after a `StreamError`.
                raise httpx2.SSEError(failure.message) if self._is_events else httpx2.StreamError(failure.message)
            yield piece

    async def aclose(self) -> None:
        await self._inner.aclose()


class _OwnBody(httpx2.AsyncByteStream):
    """A response body that may contain responses to other requests, or messages with duplicate keys."""

    def __init__(self, inner: _CountedBody, guard: HttpGuard, request_id: RequestId | None) -> None:
        self._inner = inner
        self._guard = guard
        self._request_id = request_id

    async def aclose(self) -> None:
        await self._inner.aclose()


class _OwnEvents(_OwnBody):
    """The events of one request or of none, without responses to other requests."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        events = EventFilter(self._request_id)
        async for piece in self._inner:
            passed = events.take(piece)
            if events.problem is not None:
                self._guard.on_foreign_response(f"it {events.problem}, which was ignored")
            # Yield small chunks and free each before the next: the SDK copies its input several times.
            held = bytearray(passed)
            del piece, passed
            while held:
                yield bytes(held[:_CHUNK_BYTES])
                del held[:_CHUNK_BYTES]
        if rest := events.finish():
            yield rest
        if events.problem is not None:
            # The request fails because its stream ended; record the actual cause.
            self._guard.note(self._request_id, build_failure(events.problem, "malformed"))


class _OwnResponse(_OwnBody):
    """The JSON body answering one request; anything else becomes that request's error."""

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
    """HTTP client that tags each request with its JSON-RPC id, for the guard."""

    def build_request(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        method: str,
        url: httpx2.URL | str,
        *,
        json: Any = None,
        extensions: dict[str, Any] | None = None,
        **rest: Any,
    ) -> httpx2.Request:
        """Build a request tagged with its JSON-RPC id."""
        marked = dict(extensions or {})
        if is_json_object(json) and "method" in json and "id" in json:
            marked[REQUEST] = json["id"]
        return super().build_request(method, url, json=json, extensions=marked, **rest)


@asynccontextmanager
async def open_guarded_client(
    config: SseServerConfig | StreamableHttpServerConfig,
) -> AsyncGenerator[tuple[GuardedClient, HttpGuard]]:
    """Open a server's HTTP client; close it on exit.

    Raises:
        ProtocolFault: The URL, a header or the proxy is invalid.
    """
    detail = FaultDetail(server=config.id, reason="malformed")
    for name, value in config.headers.items():
        if not is_valid_header(name, value):
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
    # In a thread: the first call loads half of the HTTP library plus the certificates.
    network = await asyncio.to_thread(_open_network, address.scheme == "https", limits.in_flight, proxy)
    authorizer = await asyncio.to_thread(_open_authorizer, config, proxy)
    guard = HttpGuard(network, address, limits, None if proxy is None else format_origin(proxy.url), authorizer)
    client = GuardedClient(
        transport=guard,
        headers=dict(config.headers),
        # Bounds connecting only; responses have their request's deadline.
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
    """Create the server's authorizer, unless the configuration sets an `Authorization` header."""
    auth = config.auth
    if auth is None or any(name.lower() == "authorization" for name in config.headers):
        return None
    if auth.settings.header_command:
        return HeaderCommand(auth.settings.header_command, config.id, config.url, config.limits.start_s)
        # Lazily, in a thread: only servers with a sign-in need it.
    from indusagi.interop.auth.authorizer import OAuthAuthorizer  # noqa: PLC0415
    from indusagi.interop.auth.driver import AuthDriver  # noqa: PLC0415

    via = None if proxy is None else str(proxy.url)
    driver = AuthDriver(config.url, auth, name=config.id, proxy=via)
    if auth.settings.grant == "token_exchange":
        if config.kind == "sse":
            # With SSE, credentials belong to the connection, not to a call.
            message = f"server {config.id!r}: token exchange needs Streamable HTTP, and not SSE"
            raise ProtocolFault("transport", message, detail=FaultDetail(server=config.id, reason="malformed"))
        from indusagi.interop.auth.exchange import TokenExchangeAuthorizer  # noqa: PLC0415 — only such servers need it

        return TokenExchangeAuthorizer(driver)
    return OAuthAuthorizer(driver)


def _open_network(secure: bool, keepalive: int, proxy: httpx2.Proxy | None) -> httpx2.AsyncHTTPTransport:
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=keepalive)
    if proxy is not None and proxy.url.scheme == "https":
        proxy.ssl_context = _get_tls()
        # Plain HTTP needs no certificates, which are slow to load.
    tls = _get_tls() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    return httpx2.AsyncHTTPTransport(verify=tls, limits=limits, proxy=proxy)


def _get_tls() -> ssl.SSLContext:
    """Return the process-wide TLS context, created on first use."""
    with _tls_lock:
        return _make_tls()


@functools.cache
def _make_tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()
