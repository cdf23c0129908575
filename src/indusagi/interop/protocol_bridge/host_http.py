"""A host behind an address: what may be set, the token that opens it, and how it is started.

Whoever can reach the port must show a token, unless that is switched off, which only an address of
this machine alone allows. Requests are taken only under the names that are expected (`Host`) and
from the pages that are expected (`Origin`), whatever address it listens on: a web page must not be
able to speak to it through the browser of its user.
"""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.places import (
    create_private_file,
    make_private_dir,
    read_small_file,
    state_dir,
)
from indusagi.interop.protocol_bridge.contract import ProtocolFault

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from ipaddress import IPv4Address, IPv6Address

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host_session import Served

    NewClient: TypeAlias = Callable[[], Served]
    SchemaOf: TypeAlias = Callable[[str], JsonObject | None]
    """Gives the schema of a tool's arguments; some arguments are repeated in headers."""

TOKEN_FILE = "serve-token"
_TOKEN_BYTES = 32
_LEAST_TOKEN = 32
"""Characters: 128 bits in hexadecimal digits."""
_MOST_TOKEN = 4096
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Where a host listens, to whom, and how much it takes."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: one that is free."""
    path: str = "/mcp"
    tokens: Sequence[str] | None = field(default=None, repr=False)
    """Each opens the host; None: the one of the file, which is made if it is not there."""
    without_token: bool = False
    """Take requests from everybody; only for an address of this machine alone."""
    allowed_hosts: Sequence[str] = ()
    """Names under which it may be addressed (`name:port`), besides those of this machine."""
    allowed_origins: Sequence[str] = ()
    """Pages that may speak to it, besides those it would serve itself."""
    sse: bool = False
    """Also speak the old transport, at `/sse` and `/messages`."""
    body_bytes: int = 4 * 1024 * 1024
    body_s: float = 10.0
    sessions: int = 16
    requests: int = 128
    """At once, in all; further ones get a 503."""
    requests_each: int = 64
    """At once, of one session or token; further ones get a 429."""
    streams: int = 64
    """Standing ones."""
    idle_s: float = 1800.0
    """A session without a request for so long is ended."""
    spare_s: float = 60.0
    """A session idle for so long makes room when there is none."""
    ping_s: float = 15.0
    """A stream on which nothing is said for so long gets a sign of life."""
    stop_s: float = 5.0
    """How long calls may finish when the host is stopped."""


@dataclass(frozen=True, slots=True)
class HttpHost:
    """A host that listens."""

    url: str
    port: int
    token: str | None = field(default=None, repr=False)
    """The one of the file; None if others were given, or none is needed."""
    token_path: str | None = None
    token_is_new: bool = False
    """It was made just now, and should be shown: it will not be again."""


@dataclass(frozen=True, slots=True)
class Doors:
    """What a request must show."""

    tokens: tuple[bytes, ...] = field(repr=False)
    """Empty: nothing."""
    hosts: frozenset[str]
    origins: frozenset[str]


def is_loopback(host: str) -> bool:
    """Tell whether an address to listen on can be reached from this machine alone."""
    address = _address(host)
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    from ipaddress import ip_address  # noqa: PLC0415 — few serve over HTTP

    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def make_doors(settings: HttpSettings, tokens: Sequence[str], port: int) -> Doors:
    """Say under which names and from which pages a host on that port takes requests."""
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
    return Doors(tuple(token.encode() for token in tokens), frozenset(hosts), frozenset(origins))


@dataclass(frozen=True, slots=True)
class KeptToken:
    """A token in a file that only its user can read."""

    token: str = field(repr=False)
    path: str
    is_new: bool


def kept_token() -> KeptToken:
    """Give the token of this user; one is made if there is none.

    Raises:
        OSError: It can be neither read nor made, or others can read it.
        ValueError: There is something else in its file.
    """
    place = os.path.join(make_private_dir(state_dir()), TOKEN_FILE)
    token = _new_token()
    try:
        handle = create_private_file(place)
    except FileExistsError:
        return KeptToken(_known_token(place), place, is_new=False)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return KeptToken(token, place, is_new=True)


def _new_token() -> str:
    from secrets import token_hex  # noqa: PLC0415 — few serve over HTTP

    return token_hex(_TOKEN_BYTES)


def _known_token(place: str) -> str:
    if os.lstat(place).st_mode & 0o077:
        raise PermissionError(f"others may read {place!r}: remove it, and another one is made")
    token = read_small_file(place, _MOST_TOKEN, follow=False).decode("ascii", "replace").strip()
    if len(token) < _LEAST_TOKEN:
        raise ValueError(f"there is no token in {place!r}: remove it, and another one is made")
    return token


@asynccontextmanager
async def open_http(
    new_client: NewClient, schema_of: SchemaOf, settings: HttpSettings | None = None
) -> AsyncGenerator[HttpHost]:
    """Listen until the block is left; calls that run then may finish for a while.

    Raises:
        ProtocolFault: It cannot be started (kind `transport`); the message says why.
    """
    chosen = settings or HttpSettings()
    async with AsyncExitStack() as stack:
        try:
            tokens, kept = await asyncio.to_thread(_tokens, chosen)
            server = await asyncio.to_thread(_loaded_server)
            opening = server.serve_app(new_client, schema_of, chosen, tokens)
            port = await stack.enter_async_context(opening)
        except (OSError, ValueError) as exc:
            said = f"the host cannot listen on {chosen.host}:{chosen.port}: {exc}"
            raise ProtocolFault("transport", said, exc) from exc
        name = f"[{chosen.host.strip('[]')}]" if ":" in chosen.host else chosen.host
        url = f"http://{name}:{port}{chosen.path}"
        if kept is None:
            yield HttpHost(url, port)
        else:
            yield HttpHost(url, port, kept.token, kept.path, kept.is_new)


def _tokens(settings: HttpSettings) -> tuple[tuple[str, ...], KeptToken | None]:
    if settings.without_token:
        if not is_loopback(settings.host):
            raise ValueError("without a token only an address of this machine alone is allowed")
        return (), None
    if settings.tokens is None:
        kept = kept_token()
        return (kept.token,), kept
    if not settings.tokens or any(len(token) < _LEAST_TOKEN for token in settings.tokens):
        raise ValueError(f"a token needs {_LEAST_TOKEN} characters or more")
    return tuple(settings.tokens), None


def _loaded_server():
    # The server and the SDK take longer to load than all the rest: only HTTP pays for them.
    from indusagi.interop.protocol_bridge import _host_http  # noqa: PLC0415

    return _host_http
