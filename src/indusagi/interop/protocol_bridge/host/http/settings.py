"""Address, access and limits of an HTTP host: its settings, its access policy and the user's token file.

`Host` and `Origin` are checked whatever address the host listens on, so that no
web page can reach it through the user's browser (DNS rebinding):
https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#security-warning.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file, state_dir
from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.core.tasks import Listeners
from indusagi.interop.protocol_bridge.host.auth.resource import ProtectedResource, ResourceSettings, TokenRefusal
from indusagi.interop.protocol_bridge.host.dispatcher import ServerSession
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal, HttpRequest, Site
from indusagi.interop.protocol_bridge.host.identity import (
    ADMIN_SCOPE,
    CALL_SCOPE,
    LIST_SCOPE,
    ClientIdentity,
    current_identity,
    find_rights,
)
from indusagi.runtime.calls import current_subject, current_user

if TYPE_CHECKING:
    from ipaddress import IPv4Address, IPv6Address


NewSession: TypeAlias = Callable[[ClientIdentity], ServerSession]
"""Creates the session of a client."""
FindSchema: TypeAlias = Callable[[str], JsonObject | None]
"""Finds the argument schema of a tool by name."""
FindTarget: TypeAlias = Callable[[str, JsonObject], tuple[str, str | None]]
"""Finds the effective method of a request (method, parameters) and its server, for scopes; None for this host."""

HEALTH = "/health"
METRICS = "/metrics"
TOKEN_FILE = "serve-token"
LEAST_TOKEN = 32
"""Minimum characters: 128 bits in hexadecimal digits."""
_TOKEN_BYTES = 32
_MAX_TOKEN_BYTES = 4096
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_UNSCOPED = frozenset({"initialize", "ping", "server/discover", "logging/setLevel"})
"""Requests that every client may send, like notifications."""
_LISTING = frozenset({"subscriptions/listen"})


class NamedTokens(Protocol):
    """Tokens with names that can be revoked, and principals that are locked out."""

    @property
    def on_ended(self) -> Listeners[[]]:
        """Called when clients have lost their access."""
        ...

    def find(self, token: str, peer: str) -> ClientIdentity | str | None:
        """Return the identity of a token's client, or why it's refused; None if it isn't a named token at all."""
        ...

    def find_end(self, identity: ClientIdentity) -> str:
        """Return why a client's access has ended; empty while it may go on."""
        ...

    async def load(self) -> None:
        """Read the tokens; raises `OSError` or `ValueError` if that fails."""
        ...

    async def watch(self) -> None:
        """Follow their changes until cancelled."""
        ...


class SessionRouter(Protocol):
    """Sends requests to the cluster node that has their session or suspended call."""

    def seal(self, identity: str) -> str:
        """Return the client's id for a session or suspended call of this node."""
        ...

    def find_node(self, identity: str) -> str | None:
        """Find the other node that an id belongs to; None if it's this node's, or not ours at all."""
        ...

    def forward(self, request: HttpRequest, node: str) -> None:
        """Let the other node answer a request, after the access check here."""
        ...

    def attach(self, handle: Callable[[HttpRequest], None], url: str) -> None:
        """Answer requests from other nodes with `handle`, which may refuse them; this host is at `url`."""
        ...


@record(kw_only=True)
class HttpSettings:
    """Address, access and limits of a host."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free port."""
    path: str = "/mcp"
    tokens: Sequence[str] | None = field(default=None, repr=False)
    """Accepted bearer tokens; None: use the user's token file, creating it if missing."""
    view_tokens: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Accepted tokens in addition to `tokens` or the user's file, each with its view."""
    named: NamedTokens | None = field(default=None, repr=False)
    """Accepted tokens in addition to all others."""
    views: Mapping[str, Callable[[ClientIdentity], bool]] = field(default_factory=dict, repr=False)  # type: ignore[reportUnknownVariableType]  # pyright: infers no type from `dict`
    """Views with a path of their own, by name; the functions decide which clients may open them."""
    without_token: bool = False
    """Accept requests without a token; only on a loopback address."""
    auth: ResourceSettings | None = None
    """Accept access tokens of an authorization server instead."""
    allowed_hosts: Sequence[str] = ()
    """Accepted `Host` headers (`name:port`) in addition to this machine's."""
    allowed_origins: Sequence[str] = ()
    """Accepted `Origin` headers in addition to the host's own."""
    metrics: Callable[[], str] | None = field(default=None, repr=False)
    """Returns metrics in the Prometheus text format for `/metrics`, which adds the host's; None: don't serve it."""
    router: SessionRouter | None = field(default=None, repr=False)
    """Routes requests to other nodes' sessions; None: all sessions are here."""
    site: Site | None = field(default=None, repr=False)
    """Browser pages next to the MCP endpoint, if any."""
    body_bytes: int = 4 * 1024 * 1024
    body_s: float = 10.0
    head_s: float = 10.0
    """How long a request's headers may take, from the connection or the first byte."""
    connections: int = 2_048
    """Open connections; more wait for `queue_s`, then get a 503. Each takes a file descriptor: we raise the process's
    soft limit as far as possible, and lower this number to fit."""
    unauthenticated: int = 1_024
    """Connections without a token so far; the oldest gets a 503 when another needs its place."""
    queue_s: float = 1.0
    """How long a connection may wait for a place."""
    unread_bytes: int = 64 * 1024 * 1024
    """Response bytes written for one client that it hasn't read; past the limit its next responses wait."""
    sessions: int = 16
    """Sessions of clients with a handshake; behind a relay each has its own server process."""
    requests: int = 2_048
    """Running requests in total; more wait for `place_s`, then get a 503."""
    requests_each: int = 1_024
    """Running requests per session, or per token without sessions; as many more wait for `place_s`, then get a 429."""
    principal_requests: int = 256
    """Running requests per principal; as many more wait for a place, the rest gets a 429."""
    principal_rate: float = 200.0
    """Average requests per second and principal, with bursts of ten seconds' worth; more get a 429."""
    place_s: float = 60.0
    """How long a request may wait until its client has fewer running."""
    queued_bytes: int = 64 * 1024 * 1024
    """Bytes of all requests that wait; further ones are refused at once."""
    streams: int = 64
    """Open event streams outside of calls."""
    idle_s: float = 1800.0
    """End a session after this long without a request."""
    spare_s: float = 5.0
    """End a session idle for this long when a new one needs its place: many clients never end theirs."""
    unread_s: float = 30.0
    """Disconnect a client that reads nothing of its response for this long."""
    ping_s: float = 15.0
    """Send a comment on an event stream after this long without an event."""
    stop_s: float = 5.0
    """How long calls may take to finish when the host stops."""


@record
class HttpHost:
    """A listening host."""

    url: str
    port: int
    token: str | None = field(default=None, repr=False)
    """Token from the user's file; None if tokens are configured or unnecessary."""
    token_path: str | None = None
    token_is_new: bool = False
    """The token is new: display it now, it won't be shown again."""
    connections: int = 0
    """Concurrent connections to accept: as in the settings, or fewer if the system doesn't allow them."""


@record
class AccessPolicy:
    """Requirements for a request."""

    tokens: Mapping[bytes, ClientIdentity] = field(repr=False)
    """Identities by token; empty: no token needed, or access tokens."""
    hosts: frozenset[str]
    origins: frozenset[str]
    paths: frozenset[str]
    """Served paths, except the site's."""
    site: str | None = None
    """Path prefix of the site."""
    named: NamedTokens | None = field(default=None, repr=False)
    views: Mapping[str, str] = field(default_factory=dict[str, str])
    """Views by path."""
    may_open: Mapping[str, Callable[[ClientIdentity], bool]] = field(default_factory=dict, repr=False)  # type: ignore[reportUnknownVariableType]  # pyright: infers no type from `dict`
    """Which clients may open a view, by name."""
    resource: ProtectedResource | None = field(default=None, repr=False)
    """None: no access tokens."""

    def check(self, request: HttpRequest) -> None:
        """Refuse a request for its `Host`, `Origin` or path."""
        hosts = [value for name, value in request.lines if name == "host"]
        if len(hosts) != 1 or hosts[0].lower() not in self.hosts:
            # https://www.rfc-editor.org/rfc/rfc9110#section-15.5.20
            raise HttpRefusal(
                421, "the Host header isn't one of this host's names: indus serve --allowed-host NAME:PORT accepts it"
            )
        if "origin" in request.headers and any(
            value.lower() not in self.origins for name, value in request.lines if name == "origin"
        ):
            raise HttpRefusal(403, "requests from that origin are not allowed")
        if request.path not in self.paths and (
            self.site is None or not (request.path == self.site or request.path.startswith(f"{self.site}/"))
        ):
            # Before the token check: a 401 for a discovery path would make clients start a sign-in there.
            raise HttpRefusal(404, "there is nothing at this path")

    def identify(self, request: HttpRequest) -> ClientIdentity | None:
        """Return the client of a request's token, or refuse the token; None if it has to be an access token."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        token, is_bearer = token.strip(), scheme.lower() == "bearer"
        # A bearer isn't bound to a key.
        if is_bearer and self.named is not None and not (self.resource and self.resource.requires_dpop):
            found = self.named.find(token, request.connection.peer)
            if isinstance(found, str):
                raise HttpRefusal(401, found, headers=[(b"www-authenticate", b'Bearer error="invalid_token"')])
            if found is not None:
                return found
        if self.resource is not None or not self.tokens:
            return None if self.resource is not None else ClientIdentity(credential="open")
        presented, identity = token.encode("utf-8", "replace"), None
        for expected, known in self.tokens.items():  # all, each in constant time: timing says nothing of a wrong token
            if hmac.compare_digest(expected, presented) and is_bearer:
                identity = known
        if identity is None:
            # https://www.rfc-editor.org/rfc/rfc6750#section-3
            message = "a token is needed: Authorization: Bearer ..."
            if is_bearer and token:
                message = "the token is not valid: this host has another one"
            raise HttpRefusal(401, message, headers=[(b"www-authenticate", b"Bearer")])
        return identity

    def admit(self, request: HttpRequest, identity: ClientIdentity) -> None:
        """Set a request's client, or refuse a client whose access has ended, or that may not use this path."""
        if identity.principal:
            self._refuse_ended(identity)
        view = self.views.get(request.path, identity.view)
        if view and view not in self.may_open:
            raise HttpRefusal(403, f"the token opens the view {view!r}, and this host has no such view")
        if identity.view not in {"", view}:
            raise HttpRefusal(403, f"the token opens the view {identity.view!r} only, not {view!r}")
        if view != identity.view:
            if not self.may_open[view](identity):
                raise HttpRefusal(403, f"the view {view!r} is not for {identity.principal or 'this client'!r}")
            # Another owner: neither sessions nor calls of one view can be used in another.
            identity = replace(identity, view=view, owner=identity.owner + f"/v/{view}".encode())
        if request.path in {HEALTH, METRICS} and not find_rights(identity).can_operate:
            if identity.scopes is None or identity.view:
                raise HttpRefusal(403, f"{request.path} needs the token of the user")
            self._require_scope(identity, ADMIN_SCOPE)
        request.identity = identity

    def _refuse_ended(self, identity: ClientIdentity) -> None:
        if self.named is not None and (reason := self.named.find_end(identity)):
            raise HttpRefusal(401, reason, headers=[(b"www-authenticate", b'Bearer error="invalid_token"')])

    def authorize(self, request: HttpRequest, message: JsonObject, find_target: FindTarget) -> None:
        """Refuse a message whose client lacks the scope, and set the identity and subject token of its calls.

        https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#error-handling
        """
        # Always set them: a connection's callbacks share a context.
        current_subject.set(request.subject)
        current_identity.set(request.identity)
        current_user.set(request.identity.user)
        method, params = message.get("method"), message.get("params")
        if request.identity.scopes is None:
            return
        self._refuse_ended(request.identity)  # the body took a while
        if not isinstance(method, str) or method in _UNSCOPED or method.startswith("notifications/"):
            return
        server = None
        if method == "tools/call" or request.identity.find_missing_scope(CALL_SCOPE) is not None:
            # A tool that finds others counts as listing; a tool that calls another one counts as that call.
            method, server = find_target(method, params if isinstance(params, dict) else {})
        if method.endswith("/list") or method in _LISTING:
            self._require_scope(request.identity, LIST_SCOPE)
        else:
            self._require_scope(request.identity, CALL_SCOPE, server)

    def _require_scope(self, identity: ClientIdentity, scope: str, server: str | None = None) -> None:
        missing = identity.find_missing_scope(scope, server)
        if missing is None:
            return
        if identity.credential == "token" or self.resource is None:
            raise HttpRefusal(403, f"the token {identity.principal!r} lacks the scope {missing}")
        refusal = TokenRefusal("insufficient_scope", f"it needs the scope {missing}", scope=missing)
        raise build_refusal(self.resource, refusal, identity.view)


def build_refusal(resource: ProtectedResource, exc: TokenRefusal, view: str = "") -> HttpRefusal:
    """Build the refusal of an access token, with its challenge."""
    status, headers = resource.build_challenges(exc, view)
    return HttpRefusal(status, f"the access token is refused: {exc}" if exc.error else str(exc), headers=headers)


def is_loopback(host: str) -> bool:
    """Return whether a listen address is reachable from this machine only."""
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
    """Build the policy of a host on this port: its own names, configured ones, and its public one."""
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
        paths |= resource.metadata.keys()
        hosts |= resource.hosts
        origins |= {resource.origin}
    if settings.metrics is not None:
        paths.add(METRICS)
    views = {f"{settings.path}/v/{name}": name for name in settings.views}
    site = None if settings.site is None else settings.site.prefix
    return AccessPolicy(
        {token.encode(): _identify(token, settings.view_tokens.get(token, "")) for token in tokens},
        frozenset(hosts),
        frozenset(origins),
        frozenset(paths | views.keys()),
        site,
        settings.named,
        views,
        settings.views,
        resource,
    )


def _identify(token: str, view: str) -> ClientIdentity:
    return ClientIdentity(owner=token.encode(), credential="view" if view else "user", view=view)


def build_url(settings: HttpSettings, port: int) -> str:
    """Build the URL of a host listening on this port."""
    name = f"[{settings.host.strip('[]')}]" if ":" in settings.host else settings.host
    return f"http://{name}:{port}{settings.path}"


@record
class StoredToken:
    """A token in a private file."""

    token: str = field(repr=False)
    path: str
    is_new: bool


def load_token() -> StoredToken:
    """Read this user's token from its private file, creating it if it doesn't exist.

    Raises `OSError` if it can't be read or created, or other users can read it, and `ValueError` if it's no token.
    """
    from secrets import token_hex  # noqa: PLC0415 — only `indus serve --http` needs it

    path = os.path.join(make_private_dir(state_dir()), TOKEN_FILE)
    token = token_hex(_TOKEN_BYTES)
    try:
        handle = create_private_file(path)
    except FileExistsError:
        pass
    else:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(token + "\n")
        return StoredToken(token, path, is_new=True)
    if os.lstat(path).st_mode & 0o077:
        raise PermissionError(f"other users may read {path!r}: remove it, and a new one is created")
    token = read_small_file(path, _MAX_TOKEN_BYTES, follow=False).decode("ascii", "replace").strip()
    if len(token) < LEAST_TOKEN:
        raise ValueError(f"there is no token in {path!r}: remove it, and a new one is created")
    return StoredToken(token, path, is_new=False)
