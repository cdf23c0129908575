"""The access policy of a host behind HTTP (bearer token, `Host` and `Origin`), and the token file of the user.

`HostApp.accept` applies the policy. `Host` and `Origin` are checked whatever address the host listens on, so that a
web page cannot reach it through the browser of its user (DNS rebinding):
https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#security-warning.
"""

from __future__ import annotations

import os
from dataclasses import field
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import create_private_file, make_private_dir, read_small_file, state_dir
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence
    from ipaddress import IPv4Address, IPv6Address

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


@record
class AccessPolicy:
    """What a request must present."""

    tokens: tuple[bytes, ...] = field(repr=False)
    """Empty: no token is required."""
    hosts: frozenset[str]
    origins: frozenset[str]
    paths: frozenset[str]
    """Paths that are served."""


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


def build_access_policy(settings: HttpSettings, tokens: Sequence[str], port: int) -> AccessPolicy:
    """Build the policy of a host on this port: its own names, and those of the settings."""
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
    encoded = tuple(token.encode() for token in tokens)
    return AccessPolicy(encoded, frozenset(hosts), frozenset(origins), frozenset(paths))


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
