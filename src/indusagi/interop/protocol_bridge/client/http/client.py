"""HTTP client for one server: credentials, origin, sizes and failures.

Requests stay on the origin of the configured URL and carry the server's credentials. Bodies are requested without
compression, and their size is limited. Whatever goes wrong is an `HttpRequestError` that says why. Only connecting has
a deadline; the deadlines of responses belong to the caller.
"""

from __future__ import annotations

import asyncio
import functools
import ssl
import threading
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import TYPE_CHECKING

import anyio
import httpx2

from indusagi.core.faults import describe_error
from indusagi.interop.auth.contract import AuthFault, Refusal
from indusagi.interop.protocol_bridge.client.http.events import EventTooLargeError
from indusagi.interop.protocol_bridge.client.http.failures import (
    EVENTS,
    HttpRequestError,
    build_error,
    build_redirect_error,
    classify_auth_fault,
    classify_network_error,
    classify_status,
    find_rpc_error,
    format_origin,
    get_content_type,
    get_origin,
)
from indusagi.interop.protocol_bridge.client.http.header_command import HeaderCommand, is_valid_header
from indusagi.interop.protocol_bridge.client.http.proxy import find_proxy
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

    from anyio.abc import TaskGroup

    from indusagi.interop.auth.contract import RequestAuthorizer
    from indusagi.interop.protocol_bridge.client.http.events import EventParser, ServerEvent
    from indusagi.interop.protocol_bridge.contract import ServerLimits, SseServerConfig, StreamableHttpServerConfig

_MAX_REDIRECTS = 3
_REFUSALS = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_MAX_AUTH_RETRIES = 5
"""Enough for a nonce, a refresh, a sign-in and a step-up."""
_MAX_ERROR_BODY_BYTES = 64 * 1024
_TURN_EVENTS = 16
"""How many events of one server to handle per event loop iteration."""
INITIALIZED = "notifications/initialized"
_MAX_POSTS = 64
"""Concurrent posts before the next frame waits."""
_POST_WAIT_S = 1.0
"""How long other frames wait for the response to `initialized`, or for a free slot."""
_tls_lock = threading.Lock()


class HttpClient:
    """Sends requests to one server."""

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: httpx2.URL,
        limits: ServerLimits,
        via: str | None = None,
        authorizer: RequestAuthorizer | None = None,
    ) -> None:
        self.url = url
        self.via = via
        """Origin of the proxy, if any."""
        self._client = client
        self._limits = limits
        self._authorizer = authorizer

    # -- requests ---------------------------------------------------------------------------

    @asynccontextmanager
    async def request(
        self, method: str, headers: Mapping[str, str], content: bytes | None = None, url: httpx2.URL | None = None
    ) -> AsyncGenerator[httpx2.Response]:
        """Send a request and yield its response, which isn't a refusal; close it on exit.

        Raises:
            HttpRequestError: The request failed, or the server refused it.
        """
        uncompressed = {**headers, "accept-encoding": "identity"}
        try:
            request = self._client.build_request(method, url or self.url, headers=uncompressed, content=content)
            response = await self._follow(request)
        except UnicodeEncodeError as exc:  # a session or event id of the server that isn't ASCII
            raise build_error("sent an id that no header can hold", "malformed") from exc
        except AuthFault as exc:
            raise classify_auth_fault(exc) from exc
        except (TimeoutError, httpx2.TransportError) as exc:
            raise classify_network_error(exc, self.via) from exc
        except HttpRequestError:
            raise
        except Exception as exc:  # boundary: an authorizer that fails ends its request, not the session
            raise build_error(f"could not be signed in to: {describe_error(exc)}", "auth") from exc
        try:
            await self._check(response)
            yield response
        finally:
            await response.aclose()

    async def _follow(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, following redirects that keep its origin, method and body."""
        for redirects_left in range(_MAX_REDIRECTS, -1, -1):
            self._check_origin(request.url)
            response = await self._send(request)
            target, status = response.next_request, response.status_code
            if target is None:
                return response
            await response.aclose()
            self._check_origin(target.url, status)
            if target.method != request.method:
                raise build_redirect_error(target.url, status)
            if not redirects_left:
                raise build_error(f"redirects without end (HTTP {status})", "redirect", status)
            request = target
        raise AssertionError("the last redirect raises")

    def _check_origin(self, url: httpx2.URL, status: int | None = None) -> None:
        if get_origin(url) != get_origin(self.url):
            raise build_redirect_error(url, status)

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request with the authorizer's credentials, retrying refusals it can handle."""
        authorizer = self._authorizer
        if authorizer is None:
            return await self._client.send(request, stream=True)
        for tries_left in range(_MAX_AUTH_RETRIES, -1, -1):
            sent = await authorizer.build_headers(request.method, str(request.url))
            request.headers.update(sent)
            # Credentials in the URL must not replace the authorizer's.
            auth = _keep_headers if sent else httpx2.USE_CLIENT_DEFAULT
            response = await self._client.send(request, stream=True, auth=auth)
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

    async def _check(self, response: httpx2.Response) -> None:
        status, length = response.status_code, response.headers.get("content-length", "")
        is_plain = response.headers.get("content-encoding", "").strip().lower() in {"", "identity"}
        if status >= HTTPStatus.BAD_REQUEST:
            error = find_rpc_error(await self._read_refusal(response)) if is_plain else None
            refusal = classify_status(response, self.via)
            if error is not None and refusal.detail.reason not in {"auth", "rate_limited"}:
                refusal = build_error("", None, status, refusal.detail.retry_after_s)
            refusal.error = error
            raise refusal
        if not is_plain:
            message = "answered with a compressed body, which was not asked for"
            raise build_error(message, "malformed", status)
        # The events of a stream are limited one by one.
        if get_content_type(response) != EVENTS and length.isdecimal() and int(length) > self._limits.frame_bytes:
            raise self._build_size_error()

    async def _read_refusal(self, response: httpx2.Response) -> bytes:
        """Read the body of a refusal if it's short and arrives in time."""
        body = b""
        with suppress(httpx2.TransportError), anyio.move_on_after(self._limits.close_s):
            async for piece in response.aiter_raw():
                body += piece
                if len(body) > _MAX_ERROR_BODY_BYTES:
                    return b""
            return body
        return b""

    async def read_body(self, response: httpx2.Response) -> bytes:
        """Read a whole body.

        Raises:
            HttpRequestError: It's too large or incomplete.
        """
        pieces: list[bytes] = []
        size = 0
        try:
            async for piece in response.aiter_raw():
                pieces.append(piece)
                size += len(piece)
                if size > self._limits.frame_bytes:
                    raise self._build_size_error()
        except httpx2.TransportError as exc:
            raise build_incomplete_error() from exc
        return b"".join(pieces)

    async def discard_body(self, response: httpx2.Response) -> None:
        """Read a body that doesn't matter: its connection can be used again only after that."""
        with suppress(HttpRequestError):
            await self.read_body(response)

    async def read_events(
        self, response: httpx2.Response, parser: EventParser, on_event: Callable[[ServerEvent], None]
    ) -> None:
        """Read an event stream to its end.

        Raises:
            HttpRequestError: An event is too large, or the connection broke.
        """
        parser.reset()
        count = 0
        try:
            async for piece in response.aiter_raw():
                for event in parser.feed(piece):
                    on_event(event)
                    count += 1
                    if count % _TURN_EVENTS == 0:
                        # Hundreds may arrive at once; let other servers have their turn.
                        await asyncio.sleep(0)
        except EventTooLargeError:
            raise self._build_size_error() from None
        except httpx2.TransportError as exc:
            raise build_incomplete_error() from exc

    def _build_size_error(self) -> HttpRequestError:
        message = f"sent a message of more than {self._limits.frame_bytes:,} bytes"
        return build_error(message, "frame_too_large")


class FramePosts:
    """Posts frames in tasks, so that a slow server doesn't hold up the frames behind them.

    Args:
        http: Sends the requests.
        limit_s: Deadline of one post.
        on_failure: Receives the error of a failed post.
    """

    def __init__(self, http: HttpClient, limit_s: float, on_failure: Callable[[HttpRequestError], None]) -> None:
        self._http = http
        self._limit_s = limit_s
        self._on_failure = on_failure
        self._count = 0
        self._has_ended = asyncio.Event()

    async def start(
        self,
        tasks: TaskGroup,
        content: bytes,
        headers: Mapping[str, str],
        url: httpx2.URL | None = None,
        *,
        is_first: bool,
    ) -> None:
        """Start a post; wait a moment for `initialized`, which some servers must read first, or if there are many."""
        self._count += 1
        self._has_ended.clear()
        tasks.start_soon(self._post, content, headers, url)
        if is_first or self._count > _MAX_POSTS:
            with anyio.move_on_after(_POST_WAIT_S):
                await self._has_ended.wait()

    async def _post(self, content: bytes, headers: Mapping[str, str], url: httpx2.URL | None) -> None:
        try:
            with anyio.move_on_after(self._limit_s):
                async with self._http.request("POST", headers, content, url) as response:
                    await self._http.discard_body(response)
        except HttpRequestError as exc:
            self._on_failure(exc)
        finally:
            self._count -= 1
            self._has_ended.set()


def build_incomplete_error() -> HttpRequestError:
    """Build the error for a response that ended too early."""
    return build_error("ended its answer before it was complete", "closed")


def _keep_headers(request: httpx2.Request) -> httpx2.Request:
    return request


# -- opening ----------------------------------------------------------------------------------


@asynccontextmanager
async def open_http_client(config: SseServerConfig | StreamableHttpServerConfig) -> AsyncGenerator[HttpClient]:
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
    client = httpx2.AsyncClient(
        transport=network,
        headers=dict(config.headers),
        # Bounds connecting only; responses have their request's deadline.
        timeout=httpx2.Timeout(None, connect=limits.start_s),
        trust_env=False,
    )
    async with client:
        try:
            via = None if proxy is None else format_origin(proxy.url)
            yield HttpClient(client, address, limits, via, authorizer)
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
