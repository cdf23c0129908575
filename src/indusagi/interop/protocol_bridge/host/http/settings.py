"""Address, access and limits of a host behind HTTP: its settings, its access policy and the token file of the user.

`check_request` applies the policy. `Host` and `Origin` are checked whatever address the host listens on, so that a
web page cannot reach it through the browser of its user (DNS rebinding):
https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#security-warning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file, state_dir
from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.auth.resource import ResourceSettings
from indusagi.interop.protocol_bridge.host.dispatcher import ServerSession
from indusagi.interop.protocol_bridge.host.http.site import Site
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address

    from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest

NewSession: TypeAlias = Callable[[ClientIdentity], ServerSession]
"""Creates the session of a client."""
FindSchema: TypeAlias = Callable[[str], JsonObject | None]
"""Finds the argument schema of a tool by name."""
FindTarget: TypeAlias = Callable[[str, JsonObject], tuple[str, str | None]]
"""Finds what a request (method, parameters) is for, for scopes: the method that is meant, and the server; None for
this host itself."""

HEALTH = "/health"
METRICS = "/metrics"
TOKEN_FILE = "serve-token"
LEAST_TOKEN = 32
"""Characters: 128 bits in hexadecimal digits."""
_TOKEN_BYTES = 32
_MOST_TOKEN = 4096
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


class SessionRouter(Protocol):
    """Sends requests to the node of a cluster that has their session or suspended call."""

    def seal(self, identity: str) -> str:
        """Return the id that a client gets for a session or suspended call of this node."""
        ...

    def find_node(self, identity: str) -> str | None:
        """Find the other node that an id belongs to; None: it is one of this node, or none of ours."""
        ...

    def forward(self, request: HttpRequest, node: str) -> None:
        """Have the other node answer a request whose access was checked here."""
        ...

    def attach(self, handle: Callable[[HttpRequest], None], url: str) -> None:
        """Answer requests that other nodes forward with `handle`, which may refuse them; this host is at `url`."""
        ...


@record(kw_only=True)
class HttpSettings:
    """Address, access and limits of a host."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free port."""
    path: str = "/mcp"
    tokens: Sequence[str] | None = field(default=None, repr=False)
    """Accepted bearer tokens; None: the user's token file, which is created if it is missing."""
    more_tokens: Sequence[str] = field(default=(), repr=False)
    """Further accepted tokens, beside those of `tokens` or of the user's file; they open no `/health` or `/metrics`."""
    without_token: bool = False
    """Accept requests without a token; only on a loopback address."""
    auth: ResourceSettings | None = None
    """Accept access tokens of an authorization server instead."""
    allowed_hosts: Sequence[str] = ()
    """Accepted `Host` headers (`name:port`) besides those of this machine."""
    allowed_origins: Sequence[str] = ()
    """Accepted `Origin` headers besides those of the host itself."""
    metrics: Callable[[], str] | None = field(default=None, repr=False)
    """Returns metrics in the Prometheus text format, which `/metrics` serves with those of the host; None: it is not
    served."""
    router: SessionRouter | None = field(default=None, repr=False)
    """Sends requests for sessions of other nodes there; None: all sessions are here."""
    site: Site | None = field(default=None, repr=False)
    """Pages for a browser beside the MCP endpoint; None: there are none."""
    body_bytes: int = 4 * 1024 * 1024
    body_s: float = 10.0
    head_s: float = 10.0
    """How long the headers of a request may take, from the connection or the first byte."""
    connections: int = 2_048
    """Open connections; further ones wait for `queue_s`, then get a 503. Each takes a file descriptor: the process's
    soft limit is raised as far as possible, and this number is lowered to what is allowed."""
    unauthenticated: int = 1_024
    """Connections that have presented no token; the oldest of them gets a 503 when another needs its place."""
    queue_s: float = 1.0
    """How long a connection may wait for a place."""
    unread_bytes: int = 64 * 1024 * 1024
    """Bytes of responses that wait until one client reads them; a response past the limit becomes an error."""
    sessions: int = 16
    """Sessions of clients with a handshake; behind a relay each of them has its own server process."""
    requests: int = 2_048
    """Running requests in all; further ones get a 503."""
    requests_each: int = 1_024
    """Running requests of one session, or of one token without sessions; further ones get a 429."""
    streams: int = 64
    """Open event streams that belong to no call."""
    idle_s: float = 1800.0
    """A session without a request for this long is ended."""
    spare_s: float = 5.0
    """A session idle for this long is ended when a new one needs its place: many clients never end theirs."""
    unread_s: float = 30.0
    """A client that reads nothing of its response for this long is disconnected."""
    ping_s: float = 15.0
    """An event stream gets a comment after this long without an event."""
    stop_s: float = 5.0
    """How long calls may finish when the host is stopped."""


@record
class HttpHost:
    """A listening host."""

    url: str
    port: int
    token: str | None = field(default=None, repr=False)
    """The token of the user's file; None if tokens were configured, or none is needed."""
    token_path: str | None = None
    token_is_new: bool = False
    """The token was created now and should be displayed: it will not be again."""
    connections: int = 0
    """Connections that are accepted at once: those of the settings, or fewer if the system allows no more."""


@record
class AccessPolicy:
    """What a request must present."""

    tokens: tuple[bytes, ...] = field(repr=False)
    """Empty: no token is required."""
    hosts: frozenset[str]
    origins: frozenset[str]
    paths: frozenset[str]
    """Paths that are served."""
    site: str | None = None
    """The path below which a site answers."""
    limited: frozenset[bytes] = field(default=frozenset(), repr=False)
    """Tokens that open the protocol alone: what runs for other clients is unknown to their clients."""

    def is_site(self, path: str) -> bool:
        """Tell whether a path belongs to the site."""
        return self.site is not None and (path == self.site or path.startswith(f"{self.site}/"))


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on is reachable from this machine only."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    from ipaddress import ip_address  # noqa: PLC0415 — only `indus serve --http` needs it

    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def build_access_policy(
    settings: HttpSettings, tokens: Sequence[str], port: int, resource: ProtectedResource | None = None
) -> AccessPolicy:
    """Build the policy of a host on this port: its own names, those of the settings, and its public one."""
    names = [*_LOOPBACK]
    address = _address(settings.host)
    if address is None:
        names.append(settings.host.lower())
    elif not address.is_unspecified:
        names.append(f"[{address}]" if address.version == 6 else str(address))
    hosts = {f"{name}:{port}" for name in names} | {name.lower() for name in settings.allowed_hosts}
    if port == 80:
        hosts |= set(names)
    origins = {f"http://{host}" for host in hosts} | {o.lower() for o in settings.allowed_origins}
    paths = {settings.path, HEALTH}
    if resource is not None:
        paths |= resource.metadata_paths
        hosts |= resource.hosts
        origins |= {resource.origin}
    if settings.metrics is not None:
        paths.add(METRICS)
    encoded = tuple(token.encode() for token in tokens)
    site = None if settings.site is None else settings.site.prefix
    return AccessPolicy(
        encoded,
        frozenset(hosts),
        frozenset(origins),
        frozenset(paths),
        site,
        frozenset(token.encode() for token in settings.more_tokens),
    )


def build_url(settings: HttpSettings, port: int) -> str:
    """Build the URL of a host that listens on this port."""
    name = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
    return f"http://{name}:{port}{settings.path}"


@record
class StoredToken:
    """A token in a private file."""

    token: str = field(repr=False)
    path: str
    is_new: bool


def load_token() -> StoredToken:
    """Read this user's token from its private file; a new one is created if there is none.

    Raises:
        OSError: It can be neither read nor created, or other users can read it.
        ValueError: The file holds no token.
    """
    from secrets import token_hex  # noqa: PLC0415 — only `indus serve --http` needs it

    path = os.path.join(make_private_dir(state_dir()), TOKEN_FILE)
    token = token_hex(_TOKEN_BYTES)
    try:
        handle = create_private_file(path)
    except FileExistsError:
        handle = None
    if handle is not None:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(token + "\n")
        return StoredToken(token, path, is_new=True)
    if os.lstat(path).st_mode & 0o077:
        raise PermissionError(f"other users may read {path!r}: remove it, and a new one is created")
    token = read_small_file(path, _MOST_TOKEN, follow=False).decode("ascii", "replace").strip()
    if len(token) < LEAST_TOKEN:
        raise ValueError(f"there is no token in {path!r}: remove it, and a new one is created")
    return StoredToken(token, path, is_new=False)
