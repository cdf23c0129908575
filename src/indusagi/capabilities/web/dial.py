"""One request to one checked address: the only module of the kernel that speaks HTTP.

The HTTP library is given the parts of the target as they were checked, and a network that leads to
the checked addresses and nowhere else. The name is told to the server in the `Host` header and in
the TLS handshake, and it is the name that the certificate must hold. Cookies, proxies, redirects
and environment variables are none of its business.

Importing this loads the library: import it in a thread, where a page is fetched.
"""

from __future__ import annotations

import functools
import ssl
import threading
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, cast

import httpcore2
from anyio import CancelScope

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web.body import EndedEarly

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Generator, Iterable, Mapping, Sequence

    from indusagi.capabilities.web.target import Target

_TRIED: Final = 4
"""How many addresses of one name are dialled, one after the other."""
_Connection: TypeAlias = "httpcore2.AsyncHTTPConnection | httpcore2.AsyncHTTPProxy"
_making_tls = threading.Lock()


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of a response, and its body as it comes."""

    status: int
    headers: Mapping[str, str]
    """By name in small letters; of several with one name the first."""
    pieces: AsyncGenerator[bytes]


@dataclass(frozen=True, slots=True)
class Route:
    """How to get to a server: straight to one of its addresses or, without any, by a proxy."""

    addresses: Sequence[str]
    connect_s: float
    tls: ssl.SSLContext | None
    """For a server that is to be spoken to in private."""
    proxy: Target | None = None
    proxy_auth: tuple[str, str] | None = None

    def connection(self, origin: httpcore2.Origin) -> _Connection:
        """Make the connection; nothing is dialled yet."""
        if self.proxy is None:
            network = Pinned(self.addresses)
            return httpcore2.AsyncHTTPConnection(origin, ssl_context=self.tls, network_backend=network)
        return httpcore2.AsyncHTTPProxy(self.proxy.url, proxy_auth=self.proxy_auth, ssl_context=self.tls)


class Pinned(httpcore2.AsyncNetworkBackend):
    """A network with a few addresses in it."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses[:_TRIED]
        # The name stands for two classes, of which one is there for want of the other.
        self._inner = cast("httpcore2.AsyncNetworkBackend", httpcore2.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 — the library's signature
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Connect to the first address that answers, whatever the name."""
        share = None if timeout is None else timeout / len(self._addresses)
        *others, last = self._addresses
        for address in others:
            try:
                return await self._inner.connect_tcp(address, port, share)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
        return await self._inner.connect_tcp(last, port, share)


@asynccontextmanager
async def exchange(target: Target, route: Route, headers: Mapping[str, str]) -> AsyncGenerator[Answer]:
    """Send a GET request, and close the connection when the block is left.

    Raises:
        FetchError: There was no answer, or it was no HTTP.
    """
    url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    request = httpcore2.Request(
        "GET",
        url,
        headers={"Host": target.authority, "Connection": "close", **headers},
        extensions={"timeout": {"connect": route.connect_s}},
    )
    connection = route.connection(url.origin)
    try:
        try:
            response = await connection.handle_async_request(request)
        except _FAILURES as exc:
            raise _trouble(target, exc) from exc
        stream = cast("AsyncIterable[bytes]", response.stream)
        pieces = _pieces(target, cast("AsyncGenerator[bytes]", aiter(stream)))
        async with aclosing(pieces):
            yield Answer(response.status, _by_name(response.headers), pieces)
    finally:
        with CancelScope(shield=True):
            await connection.aclose()


async def _pieces(target: Target, stream: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(stream):
            async for piece in stream:
                yield piece
    except (httpcore2.ProtocolError, httpcore2.NetworkError) as exc:
        message = f"{target.host} ended its answer before it was complete: {_told(exc)}"
        raise EndedEarly(message, code="failed", reason="ended early") from exc


def _by_name(headers: Iterable[tuple[bytes, bytes]]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name, value in headers:
        # Servers that put other letters here mean UTF-8; whatever else it is cannot fail.
        try:
            text = value.decode("utf-8")
        except UnicodeDecodeError:
            text = value.decode("latin-1")
        found.setdefault(name.decode("latin-1").lower(), text)
    return found


_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, httpcore2.ProxyError)


def _trouble(target: Target, exc: Exception) -> FetchError:
    causes = list(_causes(exc))
    where = f"{target.host}:{target.port}"
    if isinstance(exc, httpcore2.TimeoutException):
        message = f"{where} did not accept a connection in time"
        return FetchError(message, code="timeout", reason="connect")
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return FetchError(f"{where} refused the connection", code="failed", reason="refused")
    for cause in causes:
        if isinstance(cause, ssl.SSLError):
            detail = getattr(cause, "verify_message", "") or cause.reason or str(cause)
            message = f"{where}: no safe connection could be made: {detail}"
            return FetchError(message, code="failed", reason="tls")
    if isinstance(exc, httpcore2.ProxyError):
        return FetchError(f"the proxy refused {where}: {exc}", code="failed", reason="proxy")
    if isinstance(exc, httpcore2.ProtocolError):
        message = f"{where} did not answer with HTTP: {_told(exc)}"
        return FetchError(message, code="failed", reason="protocol")
    message = f"{where} cannot be reached: {causes[-1]}"
    return FetchError(message, code="failed", reason="unreachable")


def _told(exc: Exception) -> str:
    """Say what the library found, without what it quotes: that was written by the server."""
    return str(exc).partition(":")[0][:200]


def _causes(exc: BaseException | None) -> Generator[BaseException]:
    while exc is not None:
        yield exc
        exc = exc.__cause__


def shared_tls() -> ssl.SSLContext:
    """Give the one TLS context of the process; the first time takes a while: not in the loop."""
    with _making_tls:
        return _make_tls()


@functools.cache
def _make_tls() -> ssl.SSLContext:
    return httpcore2.default_ssl_context()
