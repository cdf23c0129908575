"""The proxy for a server, from its configuration or the environment.

The HTTP client wouldn't find it: it only looks for one if it creates the transport, and would also use it for servers
on this machine.
"""

from __future__ import annotations

import ipaddress
import socket
import urllib.request
from typing import TYPE_CHECKING, cast

import httpx2

from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.interop.protocol_bridge.contract import SseServerConfig, StreamableHttpServerConfig

_PORTS = {"http": 80, "https": 443}
_LAST_PORT = 65_535


def find_proxy(config: SseServerConfig | StreamableHttpServerConfig, address: httpx2.URL) -> httpx2.Proxy | None:
    """Find the proxy for a server; `None` to connect directly.

    `HTTP_PROXY`, `HTTPS_PROXY` and `NO_PROXY` work as in `urllib.request`
    (https://docs.python.org/3/library/urllib.request.html#urllib.request.getproxies). Servers on this machine bypass
    the environment's proxy, which couldn't reach them and would make their requests leave the machine.

    Raises:
        ProtocolFault: The value isn't an HTTP address.
    """
    if config.proxy is not None:
        return _parse_proxy(config.proxy, "its configuration", config.id) if config.proxy else None
    proxies = urllib.request.getproxies_environment()
    proxy = proxies.get(address.scheme, "").strip()
    if not proxy or is_this_machine(address.host):
        return None
    # getattr: the function exists since Python 2.6, but type checkers don't know it.
    is_bypassed = cast("Callable[[str, dict[str, str]], bool]", getattr(urllib.request, "proxy_bypass_environment"))  # noqa: B009
    if is_bypassed(f"{address.host}:{address.port or _PORTS[address.scheme]}", proxies):
        return None
    return _parse_proxy(proxy, f"{address.scheme}_proxy".upper(), config.id)


def _parse_proxy(text: str, source: str, server: str) -> httpx2.Proxy:
    try:
        proxy = httpx2.Proxy(text if "://" in text else f"http://{text}")
    except (httpx2.InvalidURL, ValueError):
        proxy = None
    # Raise outside the handler: otherwise the error, which contains the password, would become the context.
    url = httpx2.URL() if proxy is None else proxy.url
    if proxy is None or url.scheme not in _PORTS or not (url.host and 0 < (url.port or 80) <= _LAST_PORT):
        message = (
            f"server {server!r}: the proxy of {source} is no http or https address; "
            "to go without one, configure an empty proxy for this server"
        )
        detail = FaultDetail(server=server, reason="malformed")
        raise ProtocolFault("transport", message, detail=detail)
    return proxy


def is_this_machine(host: str) -> bool:
    """Return whether a host name or address always means this machine (RFC 6761 §6.3, RFC 1122 §3.2.1.3)."""
    name = host.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        try:
            # Short forms that resolvers accept: `127.1`, `0x7f000001`.
            address = ipaddress.IPv4Address(socket.inet_aton(name))
        except (OSError, ValueError):
            return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    address = mapped or address
    return address.is_loopback or address.is_unspecified
