"""An address of the web, taken apart once: what is checked is what is connected to. Pure.

Two readers of one URL that disagree about its host are how a check is passed by. So there is one
reader here, stricter than the standard, and the parts it found are handed to the HTTP library as
they are. Hosts are brought to one form before anything is compared with them.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import TYPE_CHECKING, Final, Literal, cast
from urllib.parse import quote, urljoin

from indusagi.capabilities.ports import FetchError
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
_KEPT = "/?:@!$&'()*+,;=-._~%"
"""What may stand in a path and a query as it is."""


@dataclass(frozen=True, slots=True)
class Target:
    """The parts of a URL that can be fetched."""

    scheme: Scheme
    host: str
    """In small letters and ASCII, without a dot at its end; an IPv6 address without brackets."""
    port: int
    path: str
    """With the query, as it is sent."""
    address: IPv4Address | IPv6Address | None = None
    """The host, where it is an address."""

    @property
    def authority(self) -> str:
        """The host and, unless it is the usual one, the port, as the server is told."""
        host = f"[{self.host}]" if isinstance(self.address, IPv6Address) else self.host
        return host if self.port == STANDARD_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The one way to write it; without a fragment."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def joined(self, reference: str) -> Target:
        """Follow a reference that was found here.

        Raises:
            FetchError: It leads nowhere that can be fetched.
        """
        # What the standard library would take out without a word is refused before it does so.
        _refuse_odd_letters(reference)
        return parse_target(urljoin(self.url, reference))


def parse_target(url: str) -> Target:
    """Take a URL apart.

    Raises:
        FetchError: It is no http or https address, or its host can be read in two ways.
    """
    url = url.strip(" ")
    _refuse_odd_letters(url)
    found = _URL.fullmatch(url)
    if found is None:
        raise _unusable(url)
    scheme = cast("Scheme", found["scheme"].lower())
    host, port, address = _authority(found["authority"], url)
    path, _, _ = found["rest"].partition("#")
    path = path if path.startswith("/") else f"/{path}"
    return Target(scheme, host, port or STANDARD_PORTS[scheme], quote(path, safe=_KEPT), address=address)


def parse_host_and_port(text: str) -> tuple[str, int | None]:
    """Read `host:port` or `host`, and bring the host to its one form.

    Raises:
        FetchError: It is neither.
    """
    _refuse_odd_letters(text)
    host, port, _ = _authority(text, text)
    return host, port


def same_site(one: Target, other: Target) -> bool:
    """Tell whether a redirect from one to the other stays with the same owner, as far as is known.

    The same host does, and a domain and what lies under it, unless anybody can have a name there.
    """
    if one.host == other.host:
        return True
    if one.address is not None or other.address is not None:
        return False
    short, long = sorted((one.host.removeprefix("www."), other.host.removeprefix("www.")), key=len)
    return short == long or (long.endswith(f".{short}") and not _is_public_suffix(short))


def is_within(host: str, domains: Sequence[str]) -> bool:
    """Tell whether a host is one of the domains or lies under one."""
    return any(host == domain or host.endswith(f".{domain}") for domain in domains)


def _refuse_odd_letters(url: str) -> None:
    if len(url) > LONGEST_URL:
        message = f"the address has {len(url):,} characters; {LONGEST_URL:,} are the most"
        raise FetchError(message, code="denied", reason="url")
    if _CONTROL.search(url) or "\\" in url or _NUL_IN_DISGUISE.search(url):
        message = f"{_shown(url)}: control characters, NUL and backslashes cannot be in an address"
        raise FetchError(message, code="denied", reason="url")


def _unusable(url: str) -> FetchError:
    if _ANY_SCHEME.match(url) and "://" in url:
        message = f"{_shown(url)}: only http and https addresses can be fetched"
        return FetchError(message, code="unsupported", reason="scheme")
    message = f"{_shown(url)} is no web address: it must begin with https:// or http://"
    return FetchError(message, code="unsupported", reason="scheme")


def _authority(text: str, url: str) -> tuple[str, int | None, IPv4Address | IPv6Address | None]:
    if "@" in text:
        message = "an address with a user name or password in it is not fetched: leave them out"
        raise FetchError(message, code="denied", reason="userinfo")
    found = _AUTHORITY.fullmatch(text)
    if found is None:
        raise _bad_host(url, "its host and port cannot be told apart")
    port = int(found["port"]) if found["port"] else None
    if port is not None and not 0 < port < 65_536:
        raise _bad_host(url, f"{port} is no port")
    host, address = _host(found["host"], url)
    return host, port, address


def _host(text: str, url: str) -> tuple[str, IPv4Address | IPv6Address | None]:
    if text.startswith("["):
        try:
            address = IPv6Address(text[1:-1])
        except ValueError:
            raise _bad_host(url, "what is in brackets is no IPv6 address") from None
        if address.scope_id is not None:
            raise _bad_host(url, "an address with a zone cannot be fetched")
        return address.compressed, address
    name = _ascii(text, url).lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > _LONGEST_HOST or not all(_LABEL.fullmatch(label) for label in labels):
        raise _bad_host(url, "its host is no host name")
    if _NUMBER.fullmatch(labels[-1]) is None:
        return name, None
    # A name cannot end in a number: systems read `0x7f.1`, `2130706433` and `010.0.0.1` as
    # addresses, and not all of them as the same.
    try:
        return name, ipaddress.IPv4Address(name)
    except ValueError:
        raise _bad_host(url, "write an IPv4 address as four decimal numbers") from None


def _ascii(text: str, url: str) -> str:
    """Bring a name in other scripts to the form that is looked up."""
    if text.isascii():
        return text
    if len(text) > _LONGEST_HOST:
        raise _bad_host(url, "its host is too long")
    import idna  # noqa: PLC0415 — large tables, for the few names that need them

    try:
        return idna.encode(text, uts46=True).decode("ascii")
    except idna.IDNAError:
        raise _bad_host(url, "its host is no host name") from None


def _bad_host(url: str, why: str) -> FetchError:
    return FetchError(f"{_shown(url)}: {why}", code="denied", reason="host")


def _shown(url: str) -> str:
    return repr(cut_text(clean_text(url)[0], 200))


_REGISTRIES = frozenset({"ac", "co", "com", "edu", "go", "gob", "gov", "ltd", "me", "mil", "ne", "net", "or", "org"})
"""What stands between a country and those who have a name there: `co.uk`, `com.au`."""
_SHARED_HOSTS = frozenset(
    {
        *("amazonaws.com", "appspot.com", "azurewebsites.net", "blogspot.com", "cloudfront.net"),
        *("firebaseapp.com", "fly.dev", "github.io", "gitlab.io", "herokuapp.com", "netlify.app"),
        *("pages.dev", "readthedocs.io", "vercel.app", "web.app", "windows.net", "workers.dev"),
    }
)
"""Where anybody can have a name: the best known. A missing one costs a redirect followed."""


def _is_public_suffix(domain: str) -> bool:
    first, _, rest = domain.partition(".")
    is_registry = first in _REGISTRIES and len(rest) == 2
    return not rest or is_registry or domain in _SHARED_HOSTS
