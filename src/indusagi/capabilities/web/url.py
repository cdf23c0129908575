"""Parser for http and https URLs, so that we connect to exactly the host we checked.

SSRF checks get bypassed when two parsers disagree about the host of a URL
(https://owasp.org/www-community/attacks/Server_Side_Request_Forgery). We only use this parser, which is stricter than
RFC 3986, and pass its parts to the HTTP library unchanged. Hosts are normalized before any comparison.
"""

from __future__ import annotations

import ipaddress
import re
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final, Literal, cast
from urllib.parse import quote, urljoin

from indusagi.capabilities.ports import FetchError
from indusagi.core.records import record
from indusagi.core.text import clean_text, cut_text

if TYPE_CHECKING:
    from collections.abc import Sequence

Scheme = Literal["http", "https"]
STANDARD_PORTS: Final[dict[str, int]] = {"http": 80, "https": 443}
LONGEST_URL: Final = 8_192
_LONGEST_HOST: Final = 253
_URL = re.compile(r"(?P<scheme>https?)://(?P<authority>[^/?#]*)(?P<rest>.*)", re.IGNORECASE)
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

    @property
    def authority(self) -> str:
        """The `Host` header: the host, plus the port unless it's the default."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == STANDARD_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The normalized URL, without a fragment."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def join(self, reference: str) -> WebUrl:
        """Resolve a relative reference (RFC 3986 §5).

        Raises:
            FetchError: The result isn't a fetchable URL.
        """
        # `urljoin` silently drops control characters, so reject them first.
        _check_characters(reference)
        return parse_url(urljoin(self.url, reference))


def parse_url(url: str) -> WebUrl:
    """Parse a URL.

    Raises:
        FetchError: It isn't an http or https URL, or its host is ambiguous.
    """
    url = url.strip(" ")
    _check_characters(url)
    found = _URL.fullmatch(url)
    if found is None:
        problem = "is not a web address: it must begin with https:// or http://"
        if _ANY_SCHEME.match(url) and "://" in url:
            problem = "has another scheme: only http and https addresses can be fetched"
        raise FetchError(f"{_quote_url(url)} {problem}", code="unsupported", reason="scheme")
    scheme = cast("Scheme", found["scheme"].lower())
    host, port, address = _parse_authority(found["authority"], url)
    path, _, _ = found["rest"].partition("#")
    path = path if path.startswith("/") else f"/{path}"
    return WebUrl(scheme, host, port or STANDARD_PORTS[scheme], quote(path, safe=_SAFE), address=address)


def parse_host_and_port(text: str) -> tuple[str, int | None]:
    """Parse `host:port` or `host`, and normalize the host.

    Raises:
        FetchError: It is neither.
    """
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
        message = f"{_quote_url(url)}: control characters, NUL and backslashes cannot be in an address"
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
    return FetchError(f"{_quote_url(url)}: {why}", code="denied", reason="host")


def _quote_url(url: str) -> str:
    return repr(cut_text(clean_text(url)[0], 200))


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
