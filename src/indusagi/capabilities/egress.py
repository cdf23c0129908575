"""The way out to the web, as shapes: what a host allows, and who searches. Nothing is opened here.

A host puts `WebSettings` and its search providers into the `Framework` of a context. The web tools
reach the network through the guarded client that these settings describe, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from indusagi import __version__

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from indusagi.core.json import JsonValue

Resolver: TypeAlias = "Callable[[str, int], Awaitable[Sequence[str]]]"
"""Turns a host name and a port into addresses as text; raises `OSError` when there are none."""
Freshness: TypeAlias = Literal["day", "week", "month", "year"]
"""How old a search result may be."""

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What may be fetched from the web, and at what cost."""

    allow_private: Sequence[str] = ()
    """Servers of one's own that may be reached though their address is private.

    Each is a `host:port`, or a `host` for all of its ports.
    """
    ports: Sequence[int] = (80, 443, 8080, 8443)
    """Ports that may be dialled; those in `allow_private` come on top."""
    default_bytes: int = _MIB
    """How much of a text is read unless the caller asks for another size."""
    hard_bytes: int = 5 * _MIB
    """The most that is ever read of one answer, packed or unpacked."""
    ratio: int = 20
    """How many times its packed size a body may grow; short bodies are let be."""
    redirects: int = 5
    connect_s: float = 10.0
    """For the look-up of a name, and again for the connection."""
    total_s: float = 30.0
    """For one fetch with all its redirects."""
    user_agent: str = f"indus/{__version__}"
    resolver: Resolver | None = None
    """In place of the system's."""
    proxy: str | None = None
    """An HTTP proxy, as `http://host:port`, that looks up names and dials in our place.

    None is taken from the environment. What a name leads to is then for the proxy to check: here
    only addresses and names of one's own network are refused. `allow_private` goes past it.
    """
    proxy_auth: tuple[str, str] | None = None
    """The user name and password for the proxy."""
    tls: ssl.SSLContext | None = None
    """In place of the system's certificates."""
    cache_s: float = 15 * 60.0
    cache_bytes: int = 50_000_000
    searxng_url: str | None = None
    """A SearXNG instance that answers with JSON; `INDUS_SEARXNG_URL` is read when this is None."""
    search_each_s: float = 10.0
    search_total_s: float = 20.0


class WebTrouble(OSError):
    """A page that could not be fetched: why in words, and a code and facts for programs."""

    def __init__(self, message: str, *, code: str, **facts: JsonValue) -> None:
        super().__init__(message)
        self.code = code
        self.facts: Mapping[str, JsonValue] = facts


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchQuery:
    """What is looked for. A provider may ignore all but the text; the tool filters once more."""

    text: str
    limit: int
    domains: Sequence[str] = ()
    exclude_domains: Sequence[str] = ()
    freshness: Freshness | None = None


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result, as the provider gave it."""

    title: str
    url: str
    snippet: str = ""
    published: str | None = field(default=None, kw_only=True)


class SearchTrouble(OSError):
    """A provider that could not answer: why in words, and a code for programs."""

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class SearchProvider(Protocol):
    """Whoever can search the web."""

    @property
    def name(self) -> str:
        """The name a person knows it by."""
        ...

    async def search(self, query: SearchQuery) -> Sequence[SearchHit]:
        """Give results, the best first.

        Raises:
            SearchTrouble: It cannot answer.
        """
        ...
