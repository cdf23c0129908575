"""What a client may reach and how much it reads, and the error of a refused or failed request.

Tools and hosts build policies at startup, so this module imports no network library.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, TypeAlias

from indusagi import __version__
from indusagi.core.records import record

if TYPE_CHECKING:
    import ssl

    from indusagi.core.json import JsonValue

Resolver: TypeAlias = "Callable[[str, int], Awaitable[Sequence[str]]]"
"""Resolves a host name and port to addresses; raises `OSError` if there aren't any."""


@record(kw_only=True)
class HttpPolicy:
    """Limits on a client's requests."""

    allow_private: Sequence[str] = ()
    """Servers on private addresses to allow: `host:port`, or `host` for all its ports."""
    ports: Sequence[int] = (80, 443, 8080, 8443)
    """Ports to allow, in addition to `allow_private`."""
    hard_bytes: int = 5 * 1024 * 1024
    """Hard limit on one response, compressed or not."""
    redirects: int = 5
    connect_s: float = 10.0
    """Time limit for name resolution, and again for the connection."""
    total_s: float = 30.0
    """Time limit of a fetch, including redirects."""
    user_agent: str = f"indus/{__version__}"
    resolver: Resolver | None = None
    """Replaces the system resolver."""
    proxy: str | None = field(default=None, repr=False)
    """An HTTP proxy (`http://user:password@host:port`) that resolves names and connects on our behalf.

    We ignore proxies from the environment. The proxy must check resolved addresses itself: we only refuse private
    addresses and names. Servers in `allow_private` bypass the proxy.
    """
    tls: ssl.SSLContext | None = None
    """Replaces the system's certificates."""


class FetchError(OSError):
    """A failed request: a message for humans, a code and facts for programs."""

    def __init__(self, message: str, *, code: str, **facts: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.facts: Mapping[str, JsonValue] = facts
