"""What opens a host behind HTTP: the token, the names it goes by, the pages that may speak to it.

Requests are taken only under the names that are expected (`Host`) and from the pages that are
expected (`Origin`), whatever address it listens on: a web page must not be able to speak to it
through the browser of its user.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from indusagi.core.places import (
    create_private_file,
    make_private_dir,
    read_small_file,
    state_dir,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address, IPv6Address

    from indusagi.interop.protocol_bridge.host_settings import HttpSettings

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
class Doors:
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
    paths = {settings.path, HEALTH}
    if settings.sse:
        paths |= {OLD_STREAM, OLD_MESSAGES}
    shown = tuple(token.encode() for token in tokens)
    return Doors(shown, frozenset(hosts), frozenset(origins), frozenset(paths))


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
    if len(token) < LEAST_TOKEN:
        raise ValueError(f"there is no token in {place!r}: remove it, and another one is made")
    return token
