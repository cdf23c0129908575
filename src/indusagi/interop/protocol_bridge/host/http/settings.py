"""Address, access and limits of a host behind HTTP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TypeAlias

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.dispatcher import ServerSession

NewSession: TypeAlias = Callable[[bytes], ServerSession]
"""Creates the session of a client; the argument is the token that authorized it."""
FindSchema: TypeAlias = Callable[[str], JsonObject | None]
"""Finds the argument schema of a tool by name."""


@record(kw_only=True)
class HttpSettings:
    """Address, access and limits of a host."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: a free port."""
    path: str = "/mcp"
    tokens: Sequence[str] | None = field(default=None, repr=False)
    """Accepted bearer tokens; None: the user's token file, which is created if it is missing."""
    without_token: bool = False
    """Accept requests without a token; only on a loopback address."""
    allowed_hosts: Sequence[str] = ()
    """Accepted `Host` headers (`name:port`) besides those of this machine."""
    allowed_origins: Sequence[str] = ()
    """Accepted `Origin` headers besides those of the host itself."""
    sse: bool = False
    """Also serve the HTTP+SSE transport of revision 2024-11-05, at `/sse` and `/messages`."""
    body_bytes: int = 4 * 1024 * 1024
    body_s: float = 10.0
    head_s: float = 10.0
    """How long the headers of a request may take, from the connection or the first byte."""
    connections: int = 2_048
    """Open connections; requests on further ones get a 503. Each takes a file descriptor: the process's soft limit is
    raised as far as possible, and this number is lowered to what is allowed."""
    unauthenticated: int = 1_024
    """Connections that have presented no token; the oldest of them gets a 503 when another comes."""
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
