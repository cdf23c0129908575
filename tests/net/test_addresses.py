"""Which addresses are the open web."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.net.address import PRIVATE_KINDS, AddressKind, classify_address

EXPECTED: dict[str, AddressKind] = {
    "1.1.1.1": "public",
    "8.8.8.8": "public",
    "9.255.255.255": "public",
    "11.0.0.0": "public",
    "100.63.255.255": "public",
    "100.128.0.0": "public",
    "172.15.255.255": "public",
    "172.32.0.0": "public",
    "192.0.1.0": "public",
    "223.255.255.255": "public",
    "2606:4700:4700::1111": "public",
    "2a00:1450:4001:81b::200e": "public",
    "::ffff:8.8.8.8": "public",
    "64:ff9b::808:808": "public",
    "0.0.0.0": "unspecified",
    "::": "unspecified",
    "127.0.0.1": "loopback",
    "::1": "loopback",
    "::ffff:127.0.0.1": "loopback",
    "64:ff9b::7f00:1": "loopback",
    "10.0.0.1": "private",
    "172.16.0.1": "private",
    "192.168.1.1": "private",
    "fc00::1": "private",
    "fec0::1": "private",
    "100.64.0.1": "shared",
    "169.254.1.1": "link-local",
    "fe80::1": "link-local",
    "fe80::1%eth0": "link-local",
    "2606:4700::1%eth0": "link-local",
    "169.254.169.254": "metadata",
    "::ffff:a9fe:a9fe": "metadata",
    "64:ff9b::a9fe:a9fe": "metadata",
    "168.63.129.16": "metadata",
    "192.0.0.192": "metadata",
    "fd00:ec2::254": "metadata",
    "192.0.0.1": "reserved",
    "198.18.0.1": "reserved",
    "240.0.0.1": "reserved",
    "255.255.255.255": "reserved",
    "100::1": "reserved",
    "4000::1": "reserved",
    "2001:2::1": "reserved",
    "192.0.2.1": "documentation",
    "2001:db8::1": "documentation",
    "3fff::1": "documentation",
    "224.0.0.1": "multicast",
    "ff02::1": "multicast",
    "192.88.99.1": "transition",
    "::7f00:1": "transition",
    "::8.8.8.8": "transition",
    "::ffff:0:7f00:1": "transition",
    "64:ff9b:1::7f00:1": "transition",
    "2002:7f00:1::": "transition",
    "2002:808:808::": "transition",
    "2001:0:4136:e378::": "transition",
    "2a00::5efe:a00:1": "transition",
    "2a00::200:5efe:a00:1": "transition",
    "0x7f.1": "malformed",
    "127.1": "malformed",
    "010.0.0.1": "malformed",
    "": "malformed",
}


@pytest.mark.parametrize(("address", "kind"), EXPECTED.items())
def test_an_address_is_told_by_where_it_leads(address: str, kind: AddressKind) -> None:
    assert classify_address(address) == kind


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_is_the_same_however_ipv6_carries_it(address: ipaddress.IPv4Address) -> None:
    alone = classify_address(address)
    assert classify_address(ipaddress.IPv6Address(f"::ffff:{address}")) == alone
    assert classify_address(ipaddress.IPv6Address(f"64:ff9b::{address}")) == alone
    six_to_four = ipaddress.IPv6Address((0x2002 << 112) | (int(address) << 80))
    assert classify_address(six_to_four) != "public"


@given(st.ip_addresses())
def test_what_is_public_here_is_global_to_python_too(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    if classify_address(address) == "public":
        inner = address if address.version == 4 else address.ipv4_mapped or address
        assert inner.is_global


def test_nothing_but_servers_of_ones_own_can_be_opened() -> None:
    assert {"loopback", "private", "shared"} == PRIVATE_KINDS
