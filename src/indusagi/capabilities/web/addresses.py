"""Classification of IP addresses, and the look-up of host names.

Only `public` addresses may be fetched. The tables follow the IANA special-purpose registries
(https://www.iana.org/assignments/iana-ipv4-special-registry/, RFC 6890): `ipaddress.is_global` differs between Python
versions and accepts IPv6 ranges that embed an IPv4 address. An unlisted IPv6 address outside 2000::/3 is refused too.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from anyio import to_thread

if TYPE_CHECKING:
    from collections.abc import Sequence


AddressKind: TypeAlias = Literal[
    "public",
    "loopback",
    "private",
    "shared",
    "link-local",
    "metadata",
    "unspecified",
    "multicast",
    "reserved",
    "documentation",
    "transition",
    "malformed",
]
"""Kinds of addresses; `shared` is carrier-grade NAT (RFC 6598)."""
PRIVATE_KINDS: Final[frozenset[AddressKind]] = frozenset({"loopback", "private", "shared"})
"""Kinds that a user may allow; the others are refused whatever is configured."""

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
_IPV4: Final[dict[str, AddressKind]] = {
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
}
_GLOBAL_IPV6: Final = IPv6Network("2000::/3")
"""All IPv6 addresses that are allocated so far."""
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""IPv4 addresses embedded for NAT64 (RFC 6052): classified as the embedded address."""
_IPV6: Final[dict[str, AddressKind]] = {  # the first match decides
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
_V4_NETWORKS: Final[tuple[tuple[IPv4Network, AddressKind], ...]] = tuple(
    (IPv4Network(text), kind) for text, kind in _IPV4.items()
)
_V6_NETWORKS: Final[tuple[tuple[IPv6Network, AddressKind], ...]] = tuple(
    (IPv6Network(text), kind) for text, kind in _IPV6.items()
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
        return "link-local"  # a zone names a network interface of this machine
    if isinstance(address, IPv6Address) and (address in _MAPPED or address in _NAT64):
        address = IPv4Address(int(address) & 0xFFFF_FFFF)
    if address in _METADATA:
        return "metadata"
    for network, kind in _V4_NETWORKS if isinstance(address, IPv4Address) else _V6_NETWORKS:
        if address in network:
            return kind
    if isinstance(address, IPv6Address) and address not in _GLOBAL_IPV6:
        return "reserved"
    is_isatap = isinstance(address, IPv6Address) and (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP
    return "transition" if is_isatap else "public"


_AT_ONCE: Final = 16
"""Look-ups cannot be cancelled, only abandoned: so many threads may wait in one."""
_free = threading.BoundedSemaphore(_AT_ONCE)


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """Look up the addresses of a host name; a cancelled caller does not wait for them.

    Raises:
        OSError: The name has no address, or too many look-ups are running.
    """
    if not _free.acquire(blocking=False):
        raise OSError(f"{_AT_ONCE} names are being looked up already: try again later")

    def look_up() -> Sequence[str]:
        try:
            rows = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        finally:
            _free.release()
        return list(dict.fromkeys(str(address[0]) for *_, address in rows))

    return await to_thread.run_sync(look_up, abandon_on_cancel=True)
