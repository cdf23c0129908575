"""Which proxy stands between us and a server: the one of its configuration, or of the environment.

The HTTP client is not left to find that out: it looks for proxies only where it is given no guard,
and would go to this machine itself through one.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from typing import TYPE_CHECKING, TypeAlias

import httpx2

from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.interop.protocol_bridge.contract import SseServerConfig, StreamableHttpServerConfig

_Number: TypeAlias = "ipaddress.IPv4Address | ipaddress.IPv6Address"

_SCHEMES = {"http": 80, "https": 443}
_LAST_PORT = 65_535


def proxy_for(
    config: SseServerConfig | StreamableHttpServerConfig, address: httpx2.URL, environ: Mapping[str, str]
) -> httpx2.Proxy | None:
    """Give the proxy through which a server is reached; None: it is reached directly.

    What the environment says is never meant for this machine itself: such a server would be out of
    reach, and what is sent to it would leave the machine.

    Raises:
        ProtocolFault: What is given as a proxy is none that we can speak to.
    """
    if config.proxy is not None:
        return _parsed(config.proxy, "its configuration", config.id) if config.proxy else None
    name, given = _from_environment(address.scheme, environ)
    port = address.port or _SCHEMES[address.scheme]
    if not given or is_this_machine(address.host):
        return None
    if is_excepted(address.host, port, _either_case("no_proxy", environ)[1]):
        return None
    return _parsed(given, name, config.id)


def _from_environment(scheme: str, environ: Mapping[str, str]) -> tuple[str, str]:
    name, given = _either_case(f"{scheme}_proxy", environ)
    if name == "HTTP_PROXY" and "REQUEST_METHOD" in environ:
        # Under CGI this variable is the header `Proxy:` of whoever calls.
        return name, ""
    return name, given


def _either_case(name: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Look a variable up; written small it counts more, and empty it says: none."""
    found = name if name in environ else name.upper()
    return found, environ.get(found, "").strip()


def _parsed(text: str, source: str, server: str) -> httpx2.Proxy:
    try:
        found = httpx2.Proxy(text if "://" in text else f"http://{text}")
    except (httpx2.InvalidURL, ValueError):
        found = None
    # Told outside of the handler: the error would go along, and has the password in it.
    if found is None or found.url.scheme not in _SCHEMES or not _has_place(found.url):
        message = (
            f"server {server!r}: the proxy of {source} is no http or https address; "
            "to go without one, configure an empty proxy for this server"
        )
        detail = FaultDetail(server=server, reason="malformed")
        raise ProtocolFault("transport", message, detail=detail)
    return found


def _has_place(url: httpx2.URL) -> bool:
    return bool(url.host) and 0 < (url.port or _SCHEMES[url.scheme]) <= _LAST_PORT


# -- hosts ----------------------------------------------------------------------------------


def is_this_machine(host: str) -> bool:
    """Tell whether a host is this machine, as far as its name says so: nothing is looked up."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    number = _number(name)
    return number is not None and (number.is_loopback or number.is_unspecified)


def is_excepted(host: str, port: int, rules: str) -> bool:
    """Tell whether a `NO_PROXY` says that a host is reached directly.

    It lists names (with all that is below them), addresses, networks, each perhaps with a port,
    or `*` for everything.
    """
    name = host.rstrip(".").lower()
    entries = [entry.lower() for entry in re.split(r"[\s,]+", rules) if entry]
    return any(_matches(entry, name, port) for entry in entries)


def _matches(entry: str, name: str, port: int) -> bool:
    if entry == "*":
        return True
    wanted, _, its_port = entry.rpartition(":")
    if its_port.isdecimal() and (":" not in wanted or wanted.endswith("]")):
        if int(its_port) != port:
            return False
        entry = wanted
    number = _number(name)
    if number is not None:
        return _holds(entry.strip("[]"), number)
    entry = entry.removeprefix("*").strip(".")
    return bool(entry) and (name == entry or name.endswith(f".{entry}"))


def _holds(entry: str, number: _Number) -> bool:
    try:
        return number in ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return False


def _number(name: str) -> _Number | None:
    try:
        found = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return _short_number(name)
    return (found.ipv4_mapped or found) if found.version == 6 else found


def _short_number(name: str) -> _Number | None:
    """Read an address in one of the forms that only the resolver takes: `127.1`, `0x7f000001`."""
    try:
        return ipaddress.IPv4Address(socket.inet_aton(name))
    except (OSError, ValueError):
        return None
