"""Which addresses of the Internet Protocol are the open web, and what the others are. Pure.

The tables are our own: what Python calls global differs between its versions, and counts in ranges
that carry an IPv4 address inside. An address that is not listed here and lies outside of what is
given out to the public network is refused all the same.
"""

from __future__ import annotations

import ipaddress
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Final, Literal, TypeAlias

Kind: TypeAlias = Literal[
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
"""Where an address leads; `shared` is what carriers put between their customers and the web."""
AT_HOME: Final[frozenset[Kind]] = frozenset({"loopback", "private", "shared"})
"""What a host may open for its own servers; the rest stays shut whatever is configured."""

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
_IPV4: Final[dict[str, Kind]] = {
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
"""All that has been given out of IPv6 so far."""
_MAPPED: Final = IPv6Network("::ffff:0:0/96")
_NAT64: Final = IPv6Network("64:ff9b::/96")
"""Where a network without IPv4 finds the IPv4 web: such an address is what it holds."""
_IPV6: Final[dict[str, Kind]] = {  # the first that fits counts
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
_V4_NETWORKS: Final[tuple[tuple[IPv4Network, Kind], ...]] = tuple(
    (IPv4Network(text), kind) for text, kind in _IPV4.items()
)
_V6_NETWORKS: Final[tuple[tuple[IPv6Network, Kind], ...]] = tuple(
    (IPv6Network(text), kind) for text, kind in _IPV6.items()
)
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""The upper half of an interface that stands for the IPv4 address in its lower half."""


def kind_of(address: str | IPv4Address | IPv6Address) -> Kind:
    """Tell where an address leads; only `public` is the open web."""
    if isinstance(address, str):
        try:
            address = ipaddress.ip_address(address)
        except ValueError:
            return "malformed"
    if isinstance(address, IPv4Address):
        return _kind_of_v4(address)
    if address.scope_id is not None:  # a zone: it names a network card of this machine
        return "link-local"
    return _kind_of_v6(address)


def _kind_of_v4(address: IPv4Address) -> Kind:
    if address in _METADATA:
        return "metadata"
    for network, kind in _V4_NETWORKS:
        if address in network:
            return kind
    return "public"


def _kind_of_v6(address: IPv6Address) -> Kind:
    if address in _METADATA:
        return "metadata"
    if address in _MAPPED or address in _NAT64:
        return _kind_of_v4(_last_32_bits(address))
    for network, kind in _V6_NETWORKS:
        if address in network:
            return kind
    if address not in _GLOBAL_IPV6:
        return "reserved"
    if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return "transition"
    return "public"


def _last_32_bits(address: IPv6Address) -> IPv4Address:
    return IPv4Address(int(address) & 0xFFFF_FFFF)
