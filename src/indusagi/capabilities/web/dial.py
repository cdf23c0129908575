"""Send one HTTP request to a vetted address, using httpcore.

We give the library the parsed URL and a network backend that only connects to the vetted addresses. The host name goes
into the `Host` header and the TLS handshake (SNI), and the certificate must match it. No cookies, redirects or
environment variables.

Importing this module loads the library: import it in a thread, on first use.
"""

from __future__ import annotations

import functools
import ipaddress
import socket
import ssl
import threading
from contextlib import aclosing, asynccontextmanager
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast

import httpcore2
from anyio import CancelScope, to_thread

from indusagi.capabilities.ports import FetchError
from indusagi.capabilities.web.body import BodyEndedEarly
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterable, Iterable, Mapping, Sequence

    from indusagi.capabilities.web.url import WebUrl

_MAX_ADDRESSES: Final = 4
"""How many addresses of a name to try, one after the other."""
_Connection: TypeAlias = "httpcore2.AsyncHTTPConnection | httpcore2.AsyncHTTPProxy"
_making_tls = threading.Lock()


@record
class HttpAnswer:
    """The head of a response, and its body as a stream."""

    status: int
    headers: Mapping[str, str]
    """Keys are lower-case; for repeated headers, the first one."""
    pieces: AsyncGenerator[bytes]


@record
class Route:
    """The route to a server: one of its addresses or, if there are none, a proxy."""

    addresses: Sequence[str]
    connect_s: float
    tls: ssl.SSLContext | None
    """For https."""
    proxy: WebUrl | None = None
    proxy_auth: tuple[str, str] | None = None

    def create_connection(self, origin: httpcore2.Origin) -> _Connection:
        """Create the connection object; it connects on the first request."""
        if self.proxy is None:
            network = PinnedBackend(self.addresses)
            return httpcore2.AsyncHTTPConnection(origin, ssl_context=self.tls, network_backend=network)
        return httpcore2.AsyncHTTPProxy(self.proxy.url, proxy_auth=self.proxy_auth, ssl_context=self.tls)


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


@asynccontextmanager
async def exchange(
    target: WebUrl, route: Route, headers: Mapping[str, str], method: str = "GET", body: bytes | None = None
) -> AsyncGenerator[HttpAnswer]:
    """Send a request; the connection closes at the end of the block.

    Raises:
        FetchError: There was no valid response.
    """
    url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.path)
    framing = {} if body is None else {"Content-Length": str(len(body))}
    request = httpcore2.Request(
        method,
        url,
        headers={"Host": target.authority, "Connection": "close", **framing, **headers},
        content=body,
        extensions={"timeout": {"connect": route.connect_s}},
    )
    connection = route.create_connection(url.origin)
    try:
        try:
            response = await connection.handle_async_request(request)
        except _FAILURES as exc:
            raise _to_fetch_error(target, exc) from exc
        stream = cast("AsyncIterable[bytes]", response.stream)
        pieces = _iterate_body(target, cast("AsyncGenerator[bytes]", aiter(stream)))
        async with aclosing(pieces):
            found: dict[str, str] = {}
            for name, value in response.headers:
                # Header values are UTF-8 or Latin-1 in practice; Latin-1 decodes any bytes (RFC 9110 §5.5).
                try:
                    text = value.decode("utf-8")
                except UnicodeDecodeError:
                    text = value.decode("latin-1")
                found.setdefault(name.decode("latin-1").lower(), text)
            yield HttpAnswer(response.status, found, pieces)
    finally:
        with CancelScope(shield=True):
            await connection.aclose()


async def _iterate_body(target: WebUrl, stream: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    try:
        async with aclosing(stream):
            async for piece in stream:
                yield piece
    except (httpcore2.ProtocolError, httpcore2.NetworkError) as exc:
        message = f"{target.host} ended its answer before it was complete: {_shorten_error(exc)}"
        raise BodyEndedEarly(message, code="failed", reason="ended early") from exc


_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, httpcore2.ProxyError)


def _to_fetch_error(target: WebUrl, exc: Exception) -> FetchError:
    causes: list[BaseException] = [exc]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
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
        message = f"{where} did not answer with HTTP: {_shorten_error(exc)}"
        return FetchError(message, code="failed", reason="protocol")
    message = f"{where} cannot be reached: {causes[-1]}"
    return FetchError(message, code="failed", reason="unreachable")


def _shorten_error(exc: Exception) -> str:
    """Shorten an error to the library's own words, without quoting the server."""
    return str(exc).partition(":")[0][:200]


def shared_tls() -> ssl.SSLContext:
    """Return the process-wide TLS context; the first call loads the certificates. Blocks."""
    with _making_tls:
        return _make_tls()


@functools.cache
def _make_tls() -> ssl.SSLContext:
    return httpcore2.default_ssl_context()


# -- addresses --------------------------------------------------------------------------------
#
# Only `public` addresses are allowed. The tables follow the IANA special-purpose registries
# (https://www.iana.org/assignments/iana-ipv4-special-registry/, RFC 6890), since `ipaddress.is_global` differs between
# Python versions and accepts IPv6 ranges that embed an IPv4 address. Unlisted IPv6 outside 2000::/3 isn't allowed.


AddressKind: TypeAlias = Literal[
    "public",
    "loopback",
    "private",
    "shared",
    "link-local",
    "metadata",
    "unspecified",
    "multicast",
    "reserved",
    "documentation",
    "transition",
    "malformed",
]
"""Kinds of addresses; `shared` is carrier-grade NAT (RFC 6598)."""
PRIVATE_KINDS: Final[frozenset[AddressKind]] = frozenset({"loopback", "private", "shared"})
"""Kinds the user may allow; no setting allows the others."""

_METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # most clouds
        "169.254.170.2",  # containers on AWS
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "168.63.129.16",  # Azure, at a public address
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google
    )
)
_IPV4: Final[dict[str, AddressKind]] = {
    "0.0.0.0/8": "unspecified",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "transition",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "reserved",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")
"""All IPv6 addresses allocated so far."""
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""IPv4 addresses embedded for NAT64 (RFC 6052): classified as the embedded address."""
_IPV6: Final[dict[str, AddressKind]] = {  # the first match decides
    "::/128": "unspecified",
    "::1/128": "loopback",
    "::/96": "transition",
    "::ffff:0:0:0/96": "transition",
    "64:ff9b:1::/48": "transition",
    "100::/64": "reserved",
    "2001::/32": "transition",
    "2001::/23": "reserved",
    "2001:db8::/32": "documentation",
    "2002::/16": "transition",
    "3fff::/20": "documentation",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "private",
    "ff00::/8": "multicast",
}
_V4_NETWORKS: Final[tuple[tuple[IPv4Network, AddressKind], ...]] = tuple(
    (IPv4Network(text), kind) for text, kind in _IPV4.items()
)
_V6_NETWORKS: Final[tuple[tuple[IPv6Network, AddressKind], ...]] = tuple(
    (IPv6Network(text), kind) for text, kind in _IPV6.items()
)
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""Upper half of an ISATAP interface identifier (RFC 5214), which embeds an IPv4 address."""


def classify_address(address: str | IPv4Address | IPv6Address) -> AddressKind:
    """Classify an address; only `public` is the open web."""
    if isinstance(address, str):
        try:
            address = ipaddress.ip_address(address)
        except ValueError:
            return "malformed"
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return "link-local"  # a zone identifies a local network interface
    if isinstance(address, IPv6Address) and (address in _MAPPED or address in _NAT64):
        address = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _METADATA:
        return "metadata"
    for network, kind in _V4_NETWORKS if isinstance(address, IPv4Address) else _V6_NETWORKS:
        if address in network:
            return kind
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return "reserved"
    is_isatap = isinstance(address, IPv6Address) and (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP
    return "transition" if is_isatap else "public"


_MAX_LOOKUPS: Final = 16
"""We can't cancel a lookup, only abandon it, so this limits the number of stuck threads."""
_free = threading.BoundedSemaphore(_MAX_LOOKUPS)


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """Look up the addresses of a host name. Cancelling doesn't wait for the lookup.

    Raises:
        OSError: The name has no address, or too many lookups are running.
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
