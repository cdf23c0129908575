"""What opens a host behind HTTP: the token, the names it goes by, the pages that may speak to it.

Requests are taken only under the names that are expected (`Host`) and from the pages that are
expected (`Origin`), whatever address it listens on: a web page must not be able to speak to it
through the browser of its user.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file, state_dir
from indusagi.interop.protocol_bridge.host.dispatcher import BUSY
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from ipaddress import IPv4Address, IPv6Address

    from indusagi.interop.protocol_bridge.host.http.request import Request
    from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings


HEALTH = "/health"
OLD_STREAM = "/sse"
OLD_MESSAGES = "/messages"
TOKEN_FILE = "serve-token"
LEAST_TOKEN = 32
"""Characters: 128 bits in hexadecimal digits."""
_TOKEN_BYTES = 32
_MOST_TOKEN = 4096
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """What a request must show."""

    tokens: tuple[bytes, ...] = field(repr=False)
    """Empty: nothing."""
    hosts: frozenset[str]
    origins: frozenset[str]
    paths: frozenset[str]
    """Behind which there is something."""


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


def build_access_policy(settings: HttpSettings, tokens: Sequence[str], port: int) -> AccessPolicy:
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
    paths = {settings.path, HEALTH}
    if settings.sse:
        paths |= {OLD_STREAM, OLD_MESSAGES}
    shown = tuple(token.encode() for token in tokens)
    return AccessPolicy(shown, frozenset(hosts), frozenset(origins), frozenset(paths))


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token in a file that only its user can read."""

    token: str = field(repr=False)
    path: str
    is_new: bool


def load_token() -> StoredToken:
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
        return StoredToken(_known_token(place), place, is_new=False)
    with os.fdopen(handle, "w", encoding="ascii") as file:
        file.write(token + "\n")
    return StoredToken(token, place, is_new=True)


def _new_token() -> str:
    from secrets import token_hex  # noqa: PLC0415 — few serve over HTTP

    return token_hex(_TOKEN_BYTES)


def _known_token(place: str) -> str:
    if os.lstat(place).st_mode & 0o077:
        raise PermissionError(f"others may read {place!r}: remove it, and another one is made")
    token = read_small_file(place, _MOST_TOKEN, follow=False).decode("ascii", "replace").strip()
    if len(token) < LEAST_TOKEN:
        raise ValueError(f"there is no token in {place!r}: remove it, and another one is made")
    return token


_WAIT = {"retry-after": "1"}


def authorize(request: Request, policy: AccessPolicy) -> None:
    """Look at the name, the page, the path and the token of a request, and note whose it is.

    Raises:
        HttpRefusal: One of them is not right.
    """
    names = [value.lower() for name, value in request.lines if name == "host"]
    if len(names) != 1 or names[0] not in policy.hosts:
        raise HttpRefusal(421, "this host is not known under that name")
    origins = [value for name, value in request.lines if name == "origin"]
    if any(origin.lower() not in policy.origins for origin in origins):
        raise HttpRefusal(403, "requests from that page are not taken")
    request.owner = _shown(request, policy.tokens)
    if request.path not in policy.paths:
        # Before the token: a client that is asked for one where it looks for a place to sign in
        # would take that for a beginning.
        raise HttpRefusal(404, "there is nothing here")
    if policy.tokens and not request.owner:
        challenge = {"www-authenticate": "Bearer"}
        raise HttpRefusal(401, "a token is needed: Authorization: Bearer ...", headers=challenge)


def _shown(request: Request, tokens: tuple[bytes, ...]) -> bytes:
    """Give the token that a request shows, if it is one of ours; a wrong one takes as long."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    shown = given.strip().encode("utf-8", "replace")
    found = b""
    for token in tokens:
        if hmac.compare_digest(token, shown) and scheme.lower() == "bearer":
            found = token
    return found


class Quota:
    """Counts what runs, in all and of each, and what stands."""

    def __init__(self, settings: HttpSettings) -> None:
        self.running = 0
        self.streams = 0
        self._settings = settings
        self._each: dict[bytes, int] = {}
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_idle(self) -> None:
        """Wait until nothing runs."""
        await self._idle.wait()

    @contextmanager
    def request(self, whose: bytes) -> Generator[None]:
        """Count a request while it is answered.

        Raises:
            HttpRefusal: There are too many.
        """
        if self.running >= self._settings.requests:
            raise HttpRefusal(503, "there are too many requests at once", BUSY, _WAIT)
        if self._each.get(whose, 0) >= self._settings.requests_each:
            raise HttpRefusal(429, "this client has too many requests at once", BUSY, _WAIT)
        self.running += 1
        self._each[whose] = self._each.get(whose, 0) + 1
        self._idle.clear()
        try:
            yield
        finally:
            self.running -= 1
            self._each[whose] -= 1
            if not self._each[whose]:
                del self._each[whose]
            if not self.running:
                self._idle.set()

    @contextmanager
    def stream(self) -> Generator[None]:
        """Count a stream while it stands.

        Raises:
            HttpRefusal: There are too many.
        """
        if self.streams >= self._settings.streams:
            raise HttpRefusal(503, "there are too many streams", BUSY, _WAIT)
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1
