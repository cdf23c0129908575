"""HTTP client for one server: credentials, origin, sizes and failures.

Requests stay on the origin of the configured URL and carry the server's credentials. Bodies are requested without
compression, and their size is limited. Whatever goes wrong is an `HttpRequestError` that says why. Only connecting has
a deadline; the deadlines of responses belong to the caller.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import urllib.request
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from email.message import Message
from http import HTTPStatus
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

import anyio

from indusagi.core.faults import describe_error
from indusagi.core.json import is_json_object
from indusagi.core.process.child import run_for_output
from indusagi.interop.auth.contract import AuthFault, Refusal, RequestAuthorizer
from indusagi.interop.protocol_bridge.client.http.failures import (
    EVENTS,
    HttpRequestError,
    build_error,
    build_incomplete_error,
    build_redirect_error,
    classify_auth_fault,
    classify_network_error,
    classify_status,
    find_rpc_error,
)
from indusagi.interop.protocol_bridge.client.start import reveal_config
from indusagi.interop.protocol_bridge.client.stdio import child_environment
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.net.address import FetchError, HttpPolicy, WebUrl, parse_url
from indusagi.net.client import REDIRECTS, SAME_METHOD, EventParser, EventTooLargeError, ServerEvent, get_media_type
from indusagi.net.dial import BodyEndedEarly, HttpAnswer, Network, find_proxy, open_network, parse_proxy, shared_tls

if TYPE_CHECKING:
    from http.client import HTTPResponse

    from anyio.abc import TaskGroup

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


class HttpClient:
    """Sends requests to one server.

    Args:
        network: Connects to the server.
        url: The configured URL.
        limits: The server's limits.
        headers: Headers of every request.
        via: Origin of the proxy, if any.
        authorizer: Adds credentials, and reacts to refusals.
    """

    def __init__(
        self,
        network: Network,
        url: WebUrl,
        limits: ServerLimits,
        headers: Mapping[str, str],
        via: str | None = None,
        authorizer: RequestAuthorizer | None = None,
    ) -> None:
        self.url = url
        self.via = via
        self._network = network
        self._limits = limits
        self._headers = {"accept": "*/*", "user-agent": HttpPolicy().user_agent}
        self._headers |= {name.lower(): value for name, value in headers.items()} | url.authorization
        self._authorizer = authorizer
        self.on_credentials: Callable[[Mapping[str, str]], None] = lambda _: None
        """Receives the credentials of each request, so that the server's messages can hide them."""
        # Some load balancers recognize a session by a cookie.
        self._cookies = CookieJar()

    # -- requests ---------------------------------------------------------------------------

    @asynccontextmanager
    async def request(
        self, method: str, headers: Mapping[str, str], content: bytes | None = None, url: WebUrl | None = None
    ) -> AsyncGenerator[HttpAnswer]:
        """Send a request and yield its response, which isn't a refusal; close it on exit.

        Raises `HttpRequestError` if the request failed, or the server refused it.
        """
        target = url or self.url
        self._check_origin(target)
        try:
            answer = await self._follow(method, target, headers, content)
        except UnicodeEncodeError as exc:  # a session or event id of the server that isn't ASCII
            raise build_error("sent an id that no header can hold", "malformed") from exc
        except AuthFault as exc:
            raise classify_auth_fault(exc) from exc
        except (TimeoutError, FetchError) as exc:
            raise classify_network_error(exc, self.via) from exc
        except HttpRequestError:
            raise
        except Exception as exc:  # boundary: an authorizer that fails ends its request, not the session
            raise build_error(f"could not be signed in to: {describe_error(exc)}", "auth") from exc
        try:
            await self._check(answer)
            yield answer
        finally:
            await answer.aclose()

    async def _follow(
        self, method: str, target: WebUrl, headers: Mapping[str, str], content: bytes | None
    ) -> HttpAnswer:
        """Send a request, following redirects that keep its origin, method and body."""
        for redirects_left in range(_MAX_REDIRECTS, -1, -1):
            answer = await self._authorize(method, target, headers, content)
            status, location = answer.status, answer.headers.get("location")
            if status not in REDIRECTS or location is None:
                return answer
            await answer.aclose()
            try:
                target = target.join(location)
            except FetchError as exc:
                raise build_error("redirects to something that is not a web address", "redirect", status) from exc
            self._check_origin(target, status)
            if method != "GET" and status not in SAME_METHOD:
                raise build_redirect_error(target, status)
            if not redirects_left:
                raise build_error(f"redirects without end (HTTP {status})", "redirect", status)
        raise AssertionError("the last redirect raises")

    def _check_origin(self, url: WebUrl, status: int | None = None) -> None:
        if url.origin != self.url.origin:
            raise build_redirect_error(url, status)

    async def _authorize(
        self, method: str, target: WebUrl, headers: Mapping[str, str], content: bytes | None
    ) -> HttpAnswer:
        """Send a request with the authorizer's credentials, retrying refusals it can handle."""
        authorizer = self._authorizer
        if authorizer is None:
            return await self._send(method, target, headers, content)
        for tries_left in range(_MAX_AUTH_RETRIES, -1, -1):
            sent = await authorizer.build_headers(method, target.url)
            self.on_credentials(sent)
            answer = await self._send(method, target, {**headers, **sent}, content)
            nonce = answer.headers.get("dpop-nonce", "")
            if answer.status not in _REFUSALS or not tries_left:
                authorizer.accept(sent, nonce)
                return answer
            challenges = [value for name, value in answer.rows if name == "www-authenticate"]
            try:
                is_renewed = await authorizer.handle_refusal(sent, Refusal(answer.status, challenges, nonce))
            except BaseException:
                await answer.aclose()
                raise
            if not is_renewed:
                return answer
            await answer.aclose()
        raise AssertionError("the last try returns")

    async def _send(self, method: str, target: WebUrl, headers: Mapping[str, str], content: bytes | None) -> HttpAnswer:
        """Send a request with the configured headers and the server's cookies, and keep the cookies of the response."""
        names = {**self._headers, **headers, "accept-encoding": "identity"}
        asked = urllib.request.Request(target.url)
        if self._cookies:
            self._cookies.add_cookie_header(asked)
            # A configured cookie may be the credential: the server's don't replace it.
            names = {name.lower(): value for name, value in asked.header_items()} | names
        answer = await self._network.send(method, target, names, content)
        if "set-cookie" in answer.headers:
            self._cookies.extract_cookies(cast("HTTPResponse", _CookieSource(answer)), asked)
        return answer

    # -- responses --------------------------------------------------------------------------

    async def _check(self, answer: HttpAnswer) -> None:
        status, length = answer.status, answer.headers.get("content-length", "")
        is_plain = answer.headers.get("content-encoding", "").strip().lower() in {"", "identity"}
        if status >= HTTPStatus.BAD_REQUEST:
            error = find_rpc_error(await self._read_refusal(answer)) if is_plain else None
            refusal = classify_status(answer, self.via)
            if error is not None and refusal.detail.reason not in {"auth", "rate_limited"}:
                refusal = build_error("", None, status, refusal.detail.retry_after_s)
            refusal.error = error
            raise refusal
        if not is_plain:
            message = "answered with a compressed body, which was not asked for"
            raise build_error(message, "malformed", status)
        # The events of a stream are limited one by one.
        if get_media_type(answer.headers) != EVENTS and length.isdecimal() and int(length) > self._limits.frame_bytes:
            raise self._build_size_error()

    async def _read_refusal(self, answer: HttpAnswer) -> bytes:
        """Read the body of a refusal if it's short and arrives in time."""
        body = b""
        with suppress(BodyEndedEarly), anyio.move_on_after(self._limits.close_s):
            async for piece in answer.pieces:
                body += piece
                if len(body) > _MAX_ERROR_BODY_BYTES:
                    return b""
            return body
        return b""

    async def read_body(self, answer: HttpAnswer) -> bytes:
        """Read a whole body. Raises `HttpRequestError` if it's too large or incomplete."""
        body = bytearray()
        try:
            async for piece in answer.pieces:
                body += piece
                if len(body) > self._limits.frame_bytes:
                    raise self._build_size_error()
        except BodyEndedEarly as exc:
            raise build_incomplete_error() from exc
        return bytes(body)

    async def discard_body(self, answer: HttpAnswer) -> None:
        """Read a body that doesn't matter: its connection can be used again only after that."""
        with suppress(HttpRequestError):
            await self.read_body(answer)

    async def read_events(
        self, answer: HttpAnswer, parser: EventParser, on_event: Callable[[ServerEvent], None]
    ) -> None:
        """Read an event stream to its end.

        Raises `HttpRequestError` if an event is too large, or the connection broke.
        """
        parser.reset()
        count = 0
        try:
            async for piece in answer.pieces:
                for event in parser.feed(piece):
                    on_event(event)
                    count += 1
                    if count % _TURN_EVENTS == 0:
                        # Hundreds may arrive at once; let other servers have their turn.
                        await asyncio.sleep(0)
        except EventTooLargeError:
            raise self._build_size_error() from None
        except BodyEndedEarly as exc:
            raise build_incomplete_error() from exc

    def _build_size_error(self) -> HttpRequestError:
        message = f"sent a message of more than {self._limits.frame_bytes:,} bytes"
        return build_error(message, "frame_too_large")


class _CookieSource:
    """A response as the cookie jar reads it."""

    def __init__(self, answer: HttpAnswer) -> None:
        self._answer = answer

    def info(self) -> Message:
        message = Message()
        for name, value in self._answer.rows:
            if name == "set-cookie":
                message[name] = value
        return message


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
        self, tasks: TaskGroup, content: bytes, headers: Mapping[str, str], url: WebUrl | None = None, *, is_first: bool
    ) -> None:
        """Start a post; wait a moment for `initialized`, which some servers must read first, or if there are many."""
        self._count += 1
        self._has_ended.clear()
        tasks.start_soon(self._post, content, headers, url)
        if is_first or self._count > _MAX_POSTS:
            with anyio.move_on_after(_POST_WAIT_S):
                await self._has_ended.wait()

    async def _post(self, content: bytes, headers: Mapping[str, str], url: WebUrl | None) -> None:
        try:
            with anyio.move_on_after(self._limit_s):
                async with self._http.request("POST", headers, content, url) as answer:
                    await self._http.discard_body(answer)
        except HttpRequestError as exc:
            self._on_failure(exc)
        finally:
            self._count -= 1
            self._has_ended.set()


# -- opening ----------------------------------------------------------------------------------


@asynccontextmanager
async def open_http_client(config: SseServerConfig | StreamableHttpServerConfig) -> AsyncGenerator[HttpClient]:
    """Open a server's HTTP client; close it on exit.

    Raises `ProtocolFault` if the URL, a header or the proxy is invalid.
    """
    config = await reveal_config(config)
    for name, value in config.headers.items():
        if not is_valid_header(name, value):
            raise _build_fault(config, f"its header {name!r} cannot be sent: check its text")
    url, problem = None, ""
    try:
        url = parse_url(config.url, with_user=True)
    except FetchError as exc:
        problem = f": {exc.facts['problem']}" if "problem" in exc.facts else ""
    # Raise outside of the handler: the error of the parser repeats the address, which may contain a password.
    if url is None:
        raise _build_fault(config, f"its url is no http or https address{problem}")
    try:
        proxy = find_proxy(url) if config.proxy is None else None
        proxy = parse_proxy(config.proxy, "its configuration") if config.proxy else proxy
    except FetchError as exc:
        remedy = "to go without one, configure an empty proxy for this server"
        raise _build_fault(config, f"{exc}; {remedy}") from exc
    is_secure = "https" in {url.scheme, "" if proxy is None else proxy.scheme}
    # In threads: they load certificates and modules.
    tls = await asyncio.to_thread(shared_tls) if is_secure else None
    authorizer = await asyncio.to_thread(_open_authorizer, config, proxy)
    limits = config.limits
    network = open_network(connect_s=limits.start_s, tls=tls, proxy=proxy, keepalive=limits.in_flight)
    try:
        via = None if proxy is None else proxy.origin
        yield HttpClient(network, url, limits, config.headers, via, authorizer)
    finally:
        try:
            if authorizer is not None:
                await authorizer.close()
        finally:
            await network.aclose()


def _build_fault(config: SseServerConfig | StreamableHttpServerConfig, problem: str) -> ProtocolFault:
    detail = FaultDetail(server=config.id, reason="malformed")
    return ProtocolFault("transport", f"server {config.id!r}: {problem}", detail=detail)


def _open_authorizer(
    config: SseServerConfig | StreamableHttpServerConfig, proxy: WebUrl | None
) -> RequestAuthorizer | None:
    """Create the server's authorizer, unless the configuration sets an `Authorization` header."""
    auth = config.auth
    if auth is None or any(name.lower() == "authorization" for name in config.headers):
        return None
    if auth.settings.header_command:
        return HeaderCommand(auth.settings.header_command, config.id, config.url, config.limits.start_s)
    # Lazily, in a thread: only servers with a sign-in need it.
    from indusagi.interop.auth.authorizer import OAuthAuthorizer, TokenExchangeAuthorizer  # noqa: PLC0415
    from indusagi.interop.auth.driver import AuthDriver  # noqa: PLC0415

    user = "" if proxy is None or proxy.user is None else ":".join(quote(part, safe="") for part in proxy.user) + "@"
    via = None if proxy is None else f"{proxy.scheme}://{user}{proxy.authority}"
    driver = AuthDriver(config.url, auth, name=config.id, proxy=via)
    if auth.settings.grant == "token_exchange":
        if config.kind == "sse":
            # With SSE, credentials belong to the connection, not to a call.
            raise _build_fault(config, "token exchange needs Streamable HTTP, and not SSE")
        return TokenExchangeAuthorizer(driver)
    return OAuthAuthorizer(driver)


# -- headers from a command ------------------------------------------------------------------------
#
# For credentials managed by another program (`vault`, `gcloud`, a company's helper). The command runs for the first
# request and after a 401: without a shell, with a server process's environment plus the server's name and URL in
# `INDUS_SERVER` and `INDUS_SERVER_URL`. Its output is secret and never appears in messages.


_MAX_OUTPUT_BYTES = 64 * 1024
# RFC 9110 §5.1 (field names are tokens), §5.5 (field values)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_UNAUTHORIZED = 401


def is_valid_header(name: str, value: str) -> bool:
    """Return whether a header can be sent."""
    return bool(_HEADER_NAME.fullmatch(name) and _HEADER_VALUE.fullmatch(value))


class HeaderCommand:
    """Authorizer that gets its headers from a command; one run serves all requests until a 401."""

    def __init__(self, command: Sequence[str], server: str, url: str, within_s: float) -> None:
        self._command = command
        self._server = server
        self._url = url
        self._within_s = within_s
        self._headers: dict[str, str] | None = None
        self._is_accepted = False
        self._lock = asyncio.Lock()

    async def build_headers(self, method: str, url: str) -> dict[str, str]:
        """Return the headers of the last run; the first request runs the command."""
        if self._headers is None:
            async with self._lock:
                if self._headers is None:
                    self._headers, self._is_accepted = await self._run(), False
        return self._headers

    async def handle_refusal(self, sent: dict[str, str], refusal: Refusal) -> bool:
        """Discard refused headers, so that the command runs again, unless they come from a fresh run."""
        if refusal.status != _UNAUTHORIZED:
            return False
        if sent is not self._headers:
            return True  # another request has run the command in between
        if not self._is_accepted:
            return False
        self._headers = None
        return True

    def accept(self, sent: dict[str, str], nonce: str) -> None:
        """Record that the server accepted the headers."""
        self._is_accepted = self._is_accepted or sent is self._headers

    async def close(self) -> None:
        """Do nothing: each run belongs to a request."""

    async def _run(self) -> dict[str, str]:
        own = {"INDUS_SERVER": self._server, "INDUS_SERVER_URL": self._url}
        owner = f"the header command of server {self._server!r}"
        try:
            env = child_environment(os.environ, own)
            code, output = await run_for_output(self._command, env, None, self._within_s, _MAX_OUTPUT_BYTES)
        except TimeoutError:
            raise AuthFault(f"{owner} took longer than {self._within_s:g} s", is_transient=True) from None
        except (OSError, ValueError) as exc:
            raise AuthFault(f"{owner} cannot be started: {exc}") from exc
        if code:
            raise AuthFault(f"{owner} failed (exit code {code})", is_transient=True)
        headers = _parse_headers(output)
        if headers is None:
            raise AuthFault(f"{owner} printed no JSON object of header names and texts")
        return headers


def _parse_headers(data: bytes) -> dict[str, str] | None:
    try:
        document: object = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not is_json_object(document) or not document:
        return None
    headers = {name.lower(): value for name, value in document.items() if isinstance(value, str)}
    is_valid = all(is_valid_header(name, value) for name, value in headers.items())
    return headers if is_valid and len(headers) == len(document) else None
