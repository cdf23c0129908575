"""Web addresses: the parser of http and https URLs, the kinds of IP addresses, and the policy of requests.

SSRF checks get bypassed when two parsers disagree about the host of a URL
(https://owasp.org/www-community/attacks/Server_Side_Request_Forgery). We only use this parser, which is stricter than
RFC 3986, and pass its parts to the HTTP library unchanged. Hosts are normalized before any comparison.
"""

from __future__ import annotations

import ipaddress
import re
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, cast
from urllib.parse import quote, unquote, urljoin

from indusagi import __version__
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text

if TYPE_CHECKING:
    import ssl

    from indusagi.core.json import JsonValue


Scheme = Literal["http", "https"]
STANDARD_PORTS: Final[dict[str, int]] = {"http": 80, "https": 443}
LONGEST_URL: Final = 8_192
_LONGEST_HOST: Final = 253
_URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.IGNORECASE)
_USER = re.compile(r"(https?://)([^/?#]*)@", re.IGNORECASE)
_ANY_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*:")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NUL_IN_DISGUISE = re.compile(r"%00|^[^?#]*%0[ad]", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?P<host>\[[^\]]*\]|[^:]*)(?::(?P<port>[0-9]{0,5}))?")
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_SAFE = "/?:@!$&'()*+,;=-._~%"
"""Characters we don't percent-encode in a path and query."""


@record
class WebUrl:
    """A parsed URL."""

    scheme: Scheme
    host: str
    """Lower-case ASCII without a trailing dot; an IPv6 address without brackets."""
    port: int
    path: str
    """Includes the query, as sent."""
    address: IPv4Address | IPv6Address | None = None
    """The host, if it's an IP address."""
    user: tuple[str, str] | None = field(default=None, repr=False)
    """User name and password; never part of `url`."""

    @property
    def authorization(self) -> dict[str, str]:
        """The header for its user name and password, if any (RFC 7617 §2)."""
        if self.user is None:
            return {}
        return {"authorization": f"Basic {b64encode(':'.join(self.user).encode()).decode('ascii')}"}

    @property
    def server(self) -> str:
        """The host and port, as in `allow_private`."""
        return f"[{self.host}]:{self.port}" if isinstance(self.address, IPv6Address) else f"{self.host}:{self.port}"

    @property
    def authority(self) -> str:
        """The `Host` header: the host, plus the port unless it's the default."""
        return self.server.removesuffix(f":{STANDARD_PORTS[self.scheme]}")

    @property
    def origin(self) -> str:
        """Scheme, host and port, which can't contain secrets (RFC 6454 §4)."""
        return f"{self.scheme}://{self.authority}"

    @property
    def url(self) -> str:
        """The normalized URL, without a fragment."""
        return f"{self.origin}{self.path}"

    def join(self, reference: str) -> WebUrl:
        """Resolve a relative reference (RFC 3986 §5). Raises `FetchError` if the result isn't a fetchable URL."""
        # `urljoin` silently drops control characters, so reject them first.
        _check_characters(reference)
        try:
            return parse_url(urljoin(self.url, reference))
        except ValueError:  # brackets that are not closed
            raise _host_error(reference, "the text in brackets is not an IPv6 address") from None


def parse_url(url: str, *, with_user: bool = False) -> WebUrl:
    """Parse a URL; only one the user configured may contain a user name and password (`with_user`).

    Raises `FetchError` if it isn't an http or https URL, or its host is ambiguous. The message may repeat the URL.
    """
    url = url.strip(" ")
    _check_characters(url)
    user = None
    if with_user and (found := _USER.match(url)):
        name, _, password = found[2].partition(":")
        user, url = (unquote(name), unquote(password)), found[1] + url[found.end() :]
    found = _URL.fullmatch(url)
    if found is None:
        problem = "is not a web address: it must begin with https:// or http://"
        if _ANY_SCHEME.match(url) and "://" in url:
            problem = "has another scheme: only http and https addresses can be fetched"
        raise FetchError(f"{shorten_url(url)!r} {problem}", code="unsupported", reason="scheme")
    scheme = cast("Scheme", found["scheme"].lower())
    host, port, address = _parse_authority(found["authority"], url)
    path, _, _ = found["rest"].partition("#")
    path = path if path.startswith("/") else f"/{path}"
    return WebUrl(scheme, host, port or STANDARD_PORTS[scheme], quote(path, safe=_SAFE), address, user)


def parse_host_and_port(text: str) -> tuple[str, int | None]:
    """Parse `host:port` or `host`, and normalize the host. Raises `FetchError` if it is neither."""
    _check_characters(text)
    host, port, _ = _parse_authority(text, text)
    return host, port


def is_same_site(one: WebUrl, other: WebUrl) -> bool:
    """Return whether two URLs belong to the same site: same host, or a domain and its subdomain.

    Domains open to public registration (`co.uk`, `github.io`) don't count as a common site.
    """
    if one.host == other.host:
        return True
    if one.address is not None or other.address is not None:
        return False
    short, long = sorted((one.host.removeprefix("www."), other.host.removeprefix("www.")), key=len)
    first, _, rest = short.partition(".")
    is_registry = not rest or (first in _REGISTRIES and len(rest) == 2) or short in _SHARED_HOSTS
    return short == long or (long.endswith(f".{short}") and not is_registry)


def is_same_origin(one: WebUrl, other: WebUrl) -> bool:
    """Return whether two URLs have the same origin (RFC 6454 §5).

    Upgrading from `http` to `https`, both on their standard ports, counts as the same origin.
    """
    is_upgrade = (one.scheme, one.port, other.scheme, other.port) == ("http", 80, "https", 443)
    return one.host == other.host and ((one.scheme, one.port) == (other.scheme, other.port) or is_upgrade)


def is_subdomain(host: str, domains: Sequence[str]) -> bool:
    """Return whether a host is one of the domains or a subdomain of one."""
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def _check_characters(url: str) -> None:
    if len(url) > LONGEST_URL:
        message = f"the address has {len(url):,} characters; {LONGEST_URL:,} are the most"
        raise FetchError(message, code="denied", reason="url")
    if _CONTROL.search(url) or "\\" in url or _NUL_IN_DISGUISE.search(url):
        message = f"{shorten_url(url)!r}: control characters, NUL and backslashes cannot be in an address"
        raise FetchError(message, code="denied", reason="url")


def _parse_authority(text: str, url: str) -> tuple[str, int | None, IPv4Address | IPv6Address | None]:
    if "@" in text:
        message = "an address with a user name or password in it is not fetched: leave them out"
        raise FetchError(message, code="denied", reason="userinfo")
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise _host_error(url, "its host and port are ambiguous")
    port = int(found["port"]) if found["port"] else None
    if port is not None and not 0 < port < 65_536:
        raise _host_error(url, f"{port} is not a valid port")
    host, address = _parse_host(found["host"], url)
    return host, port, address


def _parse_host(text: str, url: str) -> tuple[str, IPv4Address | IPv6Address | None]:
    if text.startswith("["):
        try:
            address = IPv6Address(text[1:-1])
        except ValueError:
            raise _host_error(url, "the text in brackets is not an IPv6 address") from None
        if address.scope_id is not None:
            raise _host_error(url, "an address with a zone cannot be fetched")
        return address.compressed, address
    if not text.isascii():  # an internationalized name (UTS #46)
        if len(text) > _LONGEST_HOST:
            raise _host_error(url, "its host is too long")
        import idna  # noqa: PLC0415 — large tables, only for non-ASCII names

        try:
            text = idna.encode(text, uts46=True).decode("ascii")
        except idna.IDNAError:
            raise _host_error(url, "its host is not a valid host name") from None
    name = text.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _LONGEST_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise _host_error(url, "its host is not a valid host name")
    if _NUMBER.fullmatch(labels[-1]) is None:
        return name, None
    # A host that ends in a number is an address (https://url.spec.whatwg.org/#ends-in-a-number-checker). Systems
    # disagree about `0x7f.1`, `2130706433` and `010.0.0.1`, so only accept the dotted form.
    try:
        return name, ipaddress.IPv4Address(name)
    except ValueError:
        raise _host_error(url, "write an IPv4 address as four decimal numbers") from None


def _host_error(url: str, why: str) -> FetchError:
    return FetchError(f"{shorten_url(url)!r}: {why}", code="denied", reason="host", problem=why)


def shorten_url(url: str) -> str:
    """Shorten a URL for a message, without invisible characters."""
    return cut_text(clean_text(url)[0], 200)


_REGISTRIES = frozenset({"ac", "co", "com", "edu", "go", "gob", "gov", "ltd", "me", "mil", "ne", "net", "or", "org"})
"""Second-level registries under country domains: `co.uk`, `com.au`."""
_SHARED_HOSTS = frozenset(
    {
        *("amazonaws.com", "appspot.com", "azurewebsites.net", "blogspot.com", "cloudfront.net"),
        *("firebaseapp.com", "fly.dev", "github.io", "gitlab.io", "herokuapp.com", "netlify.app"),
        *("pages.dev", "readthedocs.io", "vercel.app", "web.app", "windows.net", "workers.dev"),
    }
)
"""The best-known domains open to public registration. A missing entry means we follow one redirect too many."""


# -- addresses --------------------------------------------------------------------------------
#
# Only `public` addresses are allowed. The tables follow the IANA special-purpose registries
# (https://www.iana.org/assignments/iana-ipv4-special-registry/, RFC 6890), since `ipaddress.is_global` differs between
# Python versions and accepts IPv6 ranges that embed an IPv4 address. Unlisted IPv6 outside 2000::/3 isn't allowed.


AddressKind: TypeAlias = Literal[
    "public", "loopback", "private", "shared", "link-local", "metadata", "unspecified", "multicast", "reserved",
    "documentation", "transition", "malformed",
]  # fmt: skip
"""Kinds of addresses; `shared` is carrier-grade NAT (RFC 6598)."""
PRIVATE_KINDS: Final[frozenset[AddressKind]] = frozenset({"loopback", "private", "shared"})
"""Kinds the user may allow; no setting allows the others."""

_METADATA: Final = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # most clouds
        "169.254.170.2",  # containers on AWS
        "100.100.100.200",  # Alibaba
        "192.0.0.192",  # Oracle
        "168.63.129.16",  # Azure, at a public address
        "fd00:ec2::254",  # AWS
        "fd20:ce::254",  # Google
    )
)
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")
"""All IPv6 addresses allocated so far."""
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""IPv4 addresses embedded for NAT64 (RFC 6052): classified as the embedded address."""
_SPECIAL: Final[dict[str, AddressKind]] = {  # the first match decides
    "0.0.0.0/8": "unspecified",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared",
    "127.0.0.0/8": "loopback",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "transition",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "reserved",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/128": "unspecified",
    "::1/128": "loopback",
    "::/96": "transition",
    "::ffff:0:0:0/96": "transition",
    "64:ff9b:1::/48": "transition",
    "100::/64": "reserved",
    "2001::/32": "transition",
    "2001::/23": "reserved",
    "2001:db8::/32": "documentation",
    "2002::/16": "transition",
    "3fff::/20": "documentation",
    "fc00::/7": "private",
    "fe80::/10": "link-local",
    "fec0::/10": "private",
    "ff00::/8": "multicast",
}
_NETWORKS: Final[tuple[tuple[IPv4Network | IPv6Network, AddressKind], ...]] = tuple(
    (ipaddress.ip_network(text), kind) for text, kind in _SPECIAL.items()
)
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""Upper half of an ISATAP interface identifier (RFC 5214), which embeds an IPv4 address."""


def classify_address(address: str | IPv4Address | IPv6Address) -> AddressKind:
    """Classify an address; only `public` is the open web."""
    if isinstance(address, str):
        try:
            address = ipaddress.ip_address(address)
        except ValueError:
            return "malformed"
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return "link-local"  # a zone identifies a local network interface
    if isinstance(address, IPv6Address) and (address in _MAPPED or address in _NAT64):
        address = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _METADATA:
        return "metadata"
    for network, kind in _NETWORKS:
        if address in network:
            return kind
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return "reserved"
    is_isatap = isinstance(address, IPv6Address) and (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP
    return "transition" if is_isatap else "public"


def is_loopback(host: str) -> bool:
    """Return whether a host name or address always means this machine (RFC 6761 §6.3)."""
    return is_subdomain(host.lower().removesuffix("."), ("localhost",)) or classify_address(host) == "loopback"


# -- policy -----------------------------------------------------------------------------------


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
