"""The memory of used proofs, nonces, and the form of URLs."""

from __future__ import annotations

import pytest

from indusagi.interop.protocol_bridge.host.auth.proofs import NonceSource, ProofLimitError, ReplayCache, normalize_url
from indusagi.interop.protocol_bridge.host.http.quota import RateLimit


def test_a_proof_is_used_once_per_key_until_it_can_no_longer_be_valid() -> None:
    cache = ReplayCache(keep_s=10)
    assert cache.use("key", "1", 100)
    assert not cache.use("key", "1", 109)
    assert cache.use("other", "1", 109)
    assert cache.use("key", "1", 110)


def test_a_full_memory_refuses_and_one_key_cannot_fill_it() -> None:
    cache = ReplayCache(keep_s=10, most=5, most_each=3)
    assert all(cache.use("flood", str(number), 0) for number in range(3))
    with pytest.raises(ProofLimitError):
        cache.use("flood", "more", 0)
    assert cache.use("other", "1", 0)
    assert cache.use("third", "1", 0)
    with pytest.raises(ProofLimitError):
        cache.use("fourth", "1", 0)
    assert len(cache) == 5
    assert cache.use("flood", "more", 10)
    assert len(cache) == 1


def test_a_nonce_is_accepted_for_two_periods_and_only_where_it_was_made() -> None:
    nonces = NonceSource()
    nonce = nonces.build(1_000)
    assert nonces.is_current(nonce, 1_000)
    assert nonces.is_current(nonce, 1_300)
    assert not nonces.is_current(nonce, 1_900)
    assert not NonceSource().is_current(nonce, 1_000)
    assert not nonces.is_current(None, 1_000)
    assert not nonces.is_current("\u00e9", 1_000)


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("https://A.example/mcp?x=1#y", "https://a.example:443/mcp"),
        ("HTTPS://a.example:443/mcp", "https://a.example:443/mcp"),
        ("http://a.example", "http://a.example:80/"),
        ("https://a.example/MCP", "https://a.example:443/MCP"),
        ("https://user@a.example/mcp", None),
        ("ftp://a.example/mcp", None),
        ("https://a.example:port/mcp", None),
        ("/mcp", None),
        (7, None),
    ],
)
def test_a_url_has_one_form(url: object, normal: str | None) -> None:
    assert normalize_url(url) == normal


def test_a_rate_allows_a_burst_and_then_its_average() -> None:
    limit = RateLimit(2.0)
    assert [limit.take("a", 0.0) for _ in range(20)] == [0] * 20
    assert limit.take("a", 0.0) == 1
    assert limit.take("b", 0.0) == 0
    assert limit.take("a", 0.5) == 0
    assert limit.take("a", 0.5) == 1
