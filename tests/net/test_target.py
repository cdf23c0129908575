"""One reader of URLs: what it takes apart, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ssrf import LOCATIONS, URLS

from indusagi.net.address import (
    FetchError,
    classify_address,
    is_same_origin,
    is_same_site,
    is_subdomain,
    parse_host_and_port,
    parse_url,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from ipaddress import IPv4Address


@pytest.mark.parametrize(
    ("given_url", "url", "host", "port", "path"),
    [
        ("https://Example.COM", "https://example.com/", "example.com", 443, "/"),
        ("HTTP://example.com.:80/a?b#c", "http://example.com/a?b", "example.com", 80, "/a?b"),
        ("https://example.com:8443?q", "https://example.com:8443/?q", "example.com", 8443, "/?q"),
        (" https://example.com/a b ", "https://example.com/a%20b", "example.com", 443, "/a%20b"),
        ("https://bücher.example/ö", "https://xn--bcher-kva.example/%C3%B6", "xn--bcher-kva.example", 443, "/%C3%B6"),
        ("http://a_b.example/%7e%20", "http://a_b.example/%7e%20", "a_b.example", 80, "/%7e%20"),
        ("http://8.8.8.8./", "http://8.8.8.8/", "8.8.8.8", 80, "/"),
        ("http://[2606:4700:0::1111]:8080/", "http://[2606:4700::1111]:8080/", "2606:4700::1111", 8080, "/"),
        ("https://example.com:/", "https://example.com/", "example.com", 443, "/"),
        ("https://example.com/?a=%0A", "https://example.com/?a=%0A", "example.com", 443, "/?a=%0A"),
        ("https://example.com/@me:x", "https://example.com/@me:x", "example.com", 443, "/@me:x"),
    ],
)
def test_a_url_has_one_form(given_url: str, url: str, host: str, port: int, path: str) -> None:
    target = parse_url(given_url)
    assert (target.url, target.host, target.port, target.path) == (url, host, port, path)
    assert parse_url(target.url) == target


@pytest.mark.parametrize("url", URLS)
def test_a_form_that_leads_astray_is_refused_or_seen_for_what_it_is(url: str) -> None:
    try:
        target = parse_url(url.format(port=8080))
    except FetchError:
        return
    names = {"localhost", "open.example"}  # left to the look-up, and to the rule for ports
    assert target.host in names or classify_address(target.host) != "public"


@pytest.mark.parametrize(
    "url",
    [
        "http://evil.com\x00.allowed.com/",
        "http://evil.com%00.allowed.com/",
        "http://evil.com\r\n.allowed.com/",
        "http://evil.com%0d%0a.allowed.com/",
        "http://evil.com\u2028.allowed.com/",
        "http://evil.com\ud800.allowed.com/",
        "http://allowed.com..evil.com./..",
        "http://" + "a" * 64 + ".com/",
        "http://" + "a." * 130 + "com/",
        "http://" + "ü" * 300 + ".com/",
        "http://ü..com/",
        "http://-a.com/",
        "https://example.com/" + "a" * 9_000,
    ],
)
def test_c15_a_host_that_hides_another_is_refused_before_anything_is_matched(url: str) -> None:
    if url.endswith("/.."):
        url = url.removesuffix("/..")
    with pytest.raises(FetchError) as caught:
        parse_url(url)
    assert caught.value.code == "denied"


@pytest.mark.parametrize(
    ("dots", "host"), [("evil。com", "evil.com"), ("evil\uff0ecom", "evil.com"), ("evil\uff61com", "evil.com")]
)
def test_c15_dots_of_other_scripts_are_dots(dots: str, host: str) -> None:
    assert parse_url(f"http://{dots}/").host == host


@pytest.mark.parametrize("url", ["", "example.com", "/etc/passwd", "mailto:a@b.c", "ftp://x.y/"])
def test_what_is_no_web_address_is_said_to_be_none(url: str) -> None:
    with pytest.raises(FetchError, match="http") as caught:
        parse_url(url)
    assert caught.value.code == "unsupported"


@pytest.mark.parametrize(
    ("reference", "url"),
    [
        ("/b", "https://example.com/b"),
        ("b?c", "https://example.com/a/b?c"),
        ("//other.example/", "https://other.example/"),
        ("http://example.com:8080/", "http://example.com:8080/"),
        ("?q", "https://example.com/a/x?q"),
        ("", "https://example.com/a/x"),
    ],
)
def test_a_reference_is_followed_from_where_it_was_found(reference: str, url: str) -> None:
    assert parse_url("https://example.com/a/x").join(reference).url == url


def test_a_reference_with_half_a_bracket_is_refused() -> None:
    with pytest.raises(FetchError, match="not an IPv6 address"):
        parse_url("https://example.com/").join("http://[::1")


@pytest.mark.parametrize("location", LOCATIONS)
def test_a_reference_gets_no_milder_reading(location: str) -> None:
    try:
        target = parse_url("https://open.example/").join(location.format(port=80))
    except FetchError:
        return
    own = {"localhost", "db.internal", "wiki"}  # refused by the client, by their names
    assert target.host in own or classify_address(target.host) not in {"public", "malformed"}


def test_a_reference_with_a_line_end_is_refused_not_mended() -> None:
    with pytest.raises(FetchError):
        parse_url("https://example.com/").join("/a\nb")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("example.com", "example.com", True),
        ("example.com", "www.example.com", True),
        ("www.example.com", "docs.example.com", True),
        ("docs.example.com", "example.com", True),
        ("a.docs.example.com", "docs.example.com", True),
        ("docs.example.com", "api.example.com", False),
        ("example.com", "example.org", False),
        ("example.com", "notexample.com", False),
        ("com", "example.com", False),
        ("www.com", "example.com", False),
        ("co.uk", "example.co.uk", False),
        ("example.co.uk", "www.example.co.uk", True),
        ("github.io", "someone.github.io", False),
        ("8.8.8.8", "8.8.8.8", True),
        ("8.8.8.8", "8.8.4.4", False),
        ("8.8.8.8", "example.com", False),
    ],
)
def test_a_site_is_a_host_and_what_surely_belongs_to_it(one: str, other: str, same: bool) -> None:
    first, second = parse_url(f"https://{one}/"), parse_url(f"https://{other}/x")
    assert is_same_site(first, second) is is_same_site(second, first) is same


def test_a_server_of_ones_own_is_named_by_host_and_port() -> None:
    assert parse_host_and_port("LocalHost.:3000") == ("localhost", 3000)
    assert parse_host_and_port("[0::1]:80") == ("::1", 80)
    assert parse_host_and_port("dev.example") == ("dev.example", None)
    with pytest.raises(FetchError):
        parse_host_and_port("http://localhost")


def test_a_domain_holds_itself_and_what_lies_under_it() -> None:
    assert is_subdomain("a.example.com", ["example.com"])
    assert is_subdomain("example.com", ["example.com"])
    assert not is_subdomain("notexample.com", ["example.com"])


def _dotted(address: IPv4Address, form: str) -> str:
    return ".".join(format(byte, form) for byte in address.packed)


WRITINGS: tuple[Callable[[IPv4Address], str], ...] = (
    str,
    lambda address: f"{address}.",
    lambda address: str(int(address)),
    lambda address: hex(int(address)),
    lambda address: f"0{int(address):o}",
    lambda address: _dotted(address, "#x"),
    lambda address: _dotted(address, "04o"),
    lambda address: f"{address.packed[0]}.{int(address) & 0xFFFFFF}",
    lambda address: "".join(chr(0xFF10 + int(c)) if c.isdigit() else "\u3002" for c in str(address)),
    lambda address: f"[::ffff:{address}]",
    lambda address: f"[::{address}]",
    lambda address: f"[64:ff9b::{address}]",
    lambda address: f"[64:ff9b:1::{address}]",
    lambda address: f"[2002:{int(address) >> 16:x}:{int(address) & 0xFFFF:x}::1]",
    lambda address: f"[fe80::5efe:{address}]",
    lambda address: "".join(f"%{ord(c):x}" for c in str(address)),
    lambda address: f"open.example@{address}",
)
PRIVATE = ["127.0.0.0/8", "10.0.0.0/8", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10"]


@given(
    st.sampled_from(PRIVATE).flatmap(lambda network: st.ip_addresses(network=network)),
    st.sampled_from(WRITINGS),
    st.sampled_from(["http", "https", "HTTP"]),
)
def test_a_private_address_is_private_however_it_is_written(
    address: IPv4Address, write: Callable[[IPv4Address], str], scheme: str
) -> None:
    try:
        target = parse_url(f"{scheme}://{write(address)}/")
    except FetchError:
        return
    assert classify_address(target.host) != "public"


@given(st.text(max_size=60))
def test_any_text_is_taken_apart_or_refused(text: str) -> None:
    for url in (text, f"http://{text}", f"https://{text}/x", f"https://example.com/{text}"):
        try:
            target = parse_url(url)
        except FetchError:
            continue
        assert target.url.isascii()
        assert not set(target.url) & set("\r\n\x00\\ ")
        assert parse_url(target.url) == target


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("https://a.example/x", "https://A.example:443/y", True),
        ("http://a.example", "https://a.example", True),
        ("https://a.example", "http://a.example", False),
        ("http://a.example:8080", "https://a.example", False),
        ("https://a.example", "https://a.example:8443", False),
        ("https://a.example", "https://www.a.example", False),
    ],
)
def test_an_origin_is_scheme_host_and_port(one: str, other: str, *, same: bool) -> None:
    assert is_same_origin(parse_url(one), parse_url(other)) is same
