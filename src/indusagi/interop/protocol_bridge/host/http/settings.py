"""Where a host behind HTTP listens, to whom, how much it takes; and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from indusagi.core.json import JsonObject
from indusagi.interop.protocol_bridge.host.dispatcher import ServerSession

NewSession: TypeAlias = Callable[[bytes], ServerSession]
"""Makes what answers one client; it is told whose client that is: the token's fingerprint."""
FindSchema: TypeAlias = Callable[[str], JsonObject | None]
"""Gives the schema of a tool's arguments; some arguments are repeated in headers."""


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
    head_s: float = 10.0
    """The headers of a request must be there so long after a client connects or begins to send."""
    connections: int = 2_048
    """At once, in all; requests on further ones get a 503. Each takes a file descriptor: the limit
    of this process is raised as far as it may be, and this number lowered to what is allowed."""
    unauthenticated: int = 1_024
    """ConnectionTracker that have shown no token; the oldest of them gets a 503 when another comes."""
    sessions: int = 16
    """Clients of the older protocol; behind a relay each of them has a process of its own."""
    requests: int = 2_048
    """At once, in all; further ones get a 503."""
    requests_each: int = 1_024
    """At once, of one session, or of one token without sessions; further ones get a 429."""
    streams: int = 64
    """Standing ones."""
    idle_s: float = 1800.0
    """A session without a request for so long is ended."""
    spare_s: float = 5.0
    """A session idle for so long makes room when there is none: many clients never end theirs."""
    unread_s: float = 30.0
    """A client that takes nothing of its answer for so long is hung up on."""
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
    connections: int = 0
    """How many it takes at once: what was asked for, or less if the system allows no more."""
