"""Connections: looks up names, finds proxies, connects, and sends one request at a time, using httpcore.

We give the library the parsed URL, and for a checked URL a network backend that only connects to the checked addresses.
The host name goes into the `Host` header and the TLS handshake (SNI), and the certificate must match it. The library
adds no cookies, redirects or environment variables.

Importing this module loads the library: import it in a thread, on first use.
"""

from __future__ import annotations

import functools
import socket
import ssl
import threading
import urllib.request
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing, suppress
from types import AsyncGeneratorType
from typing import Final, cast

import httpcore2
from anyio import CancelScope, to_thread

from indusagi.net.address import FetchError, WebUrl, classify_address, is_loopback, parse_url

_MAX_ADDRESSES: Final = 4
"""How many addresses of a name to try, one after the other."""
_IDLE_S: Final = 5.0
"""How long to keep an idle connection for the next request."""


class BodyEndedEarly(FetchError):
    """The connection closed before the body was complete."""


class Network:
    """Connections to servers; reuses idle ones. Close it.

    Args:
        pool: Makes the connections.
        connect_s: Time limit for one connection.
        silence_s: How long a server may send or take nothing; otherwise, only the caller sets a deadline.
    """

    def __init__(self, pool: httpcore2.AsyncConnectionPool, connect_s: float, silence_s: float | None = None) -> None:
        self._pool = pool
        self._timeouts = {"connect": connect_s, "read": silence_s, "write": silence_s}

    async def send(
        self, method: str, target: WebUrl, headers: Mapping[str, str], body: bytes | None = None
    ) -> HttpAnswer:
        """Send a request and return the head of its response. Close the answer.

        Raises:
            FetchError: There was no valid response. Its cause is the library's error, which may repeat a header.
            UnicodeEncodeError: A header isn't ASCII.
        """
        given = {name.lower() for name in headers}
        own = {"Host": target.authority} | ({} if body is None else {"Content-Length": str(len(body))})
        request = httpcore2.Request(
            method,
            httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path),
            headers=[*(row for row in own.items() if row[0].lower() not in given), *headers.items()],
            content=body,
            extensions={"timeout": self._timeouts},
        )
        try:
            return HttpAnswer(target, await self._pool.handle_async_request(request))
        except _FAILURES as exc:
            raise _to_fetch_error(target, exc) from exc

    async def aclose(self) -> None:
        """Close all connections."""
        await self._pool.aclose()


def open_network(
    *,
    connect_s: float,
    tls: ssl.SSLContext | None,
    addresses: Sequence[str] = (),
    proxy: WebUrl | None = None,
    keepalive: int = 0,
    silence_s: float | None = None,
) -> Network:
    """Create a network; it connects on the first request.

    Args:
        connect_s: Time limit for one connection.
        tls: For https servers and proxies.
        addresses: Connect to these instead of looking up the host.
        proxy: Let this proxy look up the host and connect.
        keepalive: How many idle connections to keep.
        silence_s: How long a server may send or take nothing.
    """
    through = None
    if proxy is not None:
        url, secure = proxy.origin, proxy.scheme == "https"
        # As bytes: the library takes only ASCII as text.
        auth = None if proxy.user is None else (proxy.user[0].encode(), proxy.user[1].encode())
        through = httpcore2.Proxy(url, auth=auth, ssl_context=tls if secure else None)
    pool = httpcore2.AsyncConnectionPool(
        ssl_context=tls,
        proxy=through,
        max_connections=None,
        max_keepalive_connections=keepalive,
        keepalive_expiry=_IDLE_S,
        network_backend=PinnedBackend(addresses) if addresses else None,
    )
    return Network(pool, connect_s, silence_s)


class PinnedBackend(httpcore2.AsyncNetworkBackend):
    """A network backend that connects to fixed addresses, ignoring the host name."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses[:_MAX_ADDRESSES]
        # httpcore2 exports a stub by this name if anyio is missing.
        self._inner = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 — the library's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that answers."""
        share = None if timeout is None else timeout / len(self._addresses)
        *others, last = self._addresses
        for address in others:
            try:
                return await self._inner.connect_tcp(address, port, share)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(last, port, share)


class HttpAnswer:
    """The head of a response, and its body as a stream. Close it."""

    def __init__(self, target: WebUrl, response: httpcore2.Response) -> None:
        self.target = target
        """The URL of the request."""
        self.status = response.status
        self.rows = [(name.decode("latin-1").lower(), _decode(value)) for name, value in response.headers]
        """All headers; names are lower-case."""
        self.headers: Mapping[str, str] = dict(reversed(self.rows))
        """By name; for repeated headers, the first one."""
        self.pieces = self._iterate(response)
        """The body, as received."""
        self._response = response

    async def aclose(self) -> None:
        """Close the response; its connection is used again if the whole body was read."""
        with CancelScope(shield=True):
            await self._response.aclose()
            pieces = cast("AsyncGeneratorType[bytes, None]", self.pieces)
            if not pieces.ag_running:  # a task that still reads ends by itself
                await pieces.aclose()

    async def _iterate(self, response: httpcore2.Response) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(response.aiter_stream()) as stream:
                async for piece in stream:
                    yield piece
        except httpcore2.TimeoutException as exc:
            raise _to_fetch_error(self.target, exc) from exc
        except (httpcore2.ProtocolError, httpcore2.NetworkError) as exc:
            message = f"{self.target.host} ended its answer before it was complete: {_shorten_error(exc)}"
            raise BodyEndedEarly(message, code="failed", reason="ended early") from exc


def _decode(value: bytes) -> str:
    # Header values are UTF-8 or Latin-1 in practice; Latin-1 decodes any bytes (RFC 9110 §5.5).
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, httpcore2.ProxyError)


def _to_fetch_error(target: WebUrl, exc: Exception) -> FetchError:
    causes: list[BaseException] = [exc]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None:
        causes.append(cause)
    where = f"{target.host}:{target.port}"
    if isinstance(exc, httpcore2.ConnectTimeout):
        message = f"{where} did not accept a connection in time"
        return FetchError(message, code="timeout", reason="connect")
    if isinstance(exc, httpcore2.TimeoutException):
        return FetchError(f"{where} did not answer in time", code="timeout", reason="silence")
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return FetchError(f"{where} refused the connection", code="failed", reason="refused")
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            detail = getattr(cause, "verify_message", "") or cause.reason or str(cause)
            message = f"{where}: no safe connection could be made: {detail}"
            return FetchError(message, code="failed", reason="tls")
    if isinstance(exc, httpcore2.ProxyError):
        return FetchError(f"the proxy refused {where}: {exc}", code="failed", reason="proxy")
    if isinstance(exc, httpcore2.LocalProtocolError):
        # The error's text repeats the invalid header, which may be a secret.
        message = f"{where} cannot be asked: a header or the url is no valid HTTP"
        return FetchError(message, code="failed", reason="request")
    if isinstance(exc, httpcore2.ProtocolError):
        message = f"{where} did not answer with HTTP: {_shorten_error(exc)}"
        return FetchError(message, code="failed", reason="protocol")
    reason = "unreachable" if isinstance(exc, httpcore2.ConnectError) else "closed"
    return FetchError(f"{where} cannot be reached: {causes[-1]}", code="failed", reason=reason)


def _shorten_error(exc: Exception) -> str:
    """Shorten an error to the library's own words, without quoting the server."""
    return str(exc).partition(":")[0][:200]


@functools.cache
def shared_tls() -> ssl.SSLContext:
    """Return the process-wide TLS context; the first call loads the certificates. Blocks."""
    return httpcore2.default_ssl_context()


# -- proxies ----------------------------------------------------------------------------------


def find_proxy(target: WebUrl) -> WebUrl | None:
    """Find the proxy for a server in the environment; `None` to connect directly.

    `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` work as in `urllib.request`
    (https://docs.python.org/3/library/urllib.request.html#urllib.request.getproxies). Servers on this machine bypass
    the environment's proxy, which couldn't reach them and would make their requests leave the machine. Raises
    `FetchError` if the value isn't an HTTP address.
    """
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get(target.scheme, "").strip()
    # getattr: the function exists since Python 2.6, but type checkers don't know it.
    is_bypassed = cast("Callable[[str, dict[str, str]], bool]", getattr(urllib.request, "proxy_bypass_environment"))  # noqa: B009
    is_here = is_loopback(target.host) or classify_address(target.host) == "unspecified"
    if not proxy or is_here or is_bypassed(f"{target.host}:{target.port}", proxies):
        return None
    return parse_proxy(proxy, f"{target.scheme}_proxy".upper())


def parse_proxy(text: str, source: str) -> WebUrl:
    """Parse the address of a proxy; `source` names where it comes from.

    Raises:
        FetchError: It isn't an http or https address. The message doesn't repeat it, since it may contain a password.
    """
    proxy = None
    with suppress(FetchError):
        proxy = parse_url(text if "://" in text else f"http://{text}", with_user=True)
    if proxy is None:
        raise FetchError(f"the proxy of {source} is no http or https address", code="unsupported", reason="proxy")
    return proxy


# -- names ------------------------------------------------------------------------------------


_MAX_LOOKUPS: Final = 16
"""We can't cancel a lookup, only abandon it, so this limits the number of stuck threads."""
_free = threading.BoundedSemaphore(_MAX_LOOKUPS)


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """Look up the addresses of a host name. Cancelling doesn't wait for the lookup.

    Raises `OSError` if the name has no address, or too many lookups are running.
    """
    if not _free.acquire(blocking=False):
        raise OSError(f"{_MAX_LOOKUPS} names are being looked up already: try again later")

    def look_up() -> Sequence[str]:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        finally:
            _free.release()
        return list(dict.fromkeys(str(address[0]) for *_, address in rows))

    return await to_thread.run_sync(look_up, abandon_on_cancel=True)
