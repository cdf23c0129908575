"""URLs of signing in: canonical forms, well-known locations, and which are safe."""

from __future__ import annotations

import pytest

from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.auth.metadata import (
    build_issuer_metadata_urls,
    build_resource_metadata_urls,
    canonical_resource,
    check_endpoint,
    is_resource_of,
)


@pytest.mark.parametrize(
    ("url", "canonical"),
    [
        ("HTTPS://Mcp.Example:443/mcp", "https://mcp.example/mcp"),
        ("https://mcp.example", "https://mcp.example"),
        ("https://mcp.example/", "https://mcp.example"),
        ("https://mcp.example/Mcp/?key=1#x", "https://mcp.example/Mcp/"),
        ("http://127.0.0.1:8080/mcp", "http://127.0.0.1:8080/mcp"),
        ("http://[::1]:80/mcp", "http://[::1]/mcp"),
    ],
)
def test_the_canonical_uri_of_a_server(url: str, canonical: str) -> None:
    assert canonical_resource(url) == canonical
    assert canonical_resource(canonical) == canonical


@pytest.mark.parametrize(
    ("resource", "covered"),
    [
        ("https://mcp.example/mcp", True),
        ("https://mcp.example", True),
        ("https://mcp.example/", True),
        ("https://mcp.example/mc", False),
        ("https://mcp.example/mcp/more", False),
        ("https://mcp.example.evil", False),
        ("http://mcp.example/mcp", False),
        ("https://mcp.example:8443/mcp", False),
    ],
)
def test_a_resource_covers_its_own_paths_alone(resource: str, covered: bool) -> None:
    assert is_resource_of(resource, "https://mcp.example/mcp") is covered


def test_well_known_locations_are_in_the_order_of_the_specification() -> None:
    assert build_resource_metadata_urls("https://a.example/x/mcp?q") == (
        "https://a.example/.well-known/oauth-protected-resource/x/mcp",
        "https://a.example/.well-known/oauth-protected-resource",
    )
    assert build_issuer_metadata_urls("https://a.example/t1") == (
        "https://a.example/.well-known/oauth-authorization-server/t1",
        "https://a.example/.well-known/openid-configuration/t1",
        "https://a.example/t1/.well-known/openid-configuration",
    )
    assert build_issuer_metadata_urls("https://a.example") == (
        "https://a.example/.well-known/oauth-authorization-server",
        "https://a.example/.well-known/openid-configuration",
    )


@pytest.mark.parametrize(
    "url",
    ["https://a.example/x", "http://localhost:1/x", "http://127.9.9.9/x", "http://[::1]:2/x", "http://x.localhost"],
)
def test_https_and_this_machine_are_safe(url: str) -> None:
    assert check_endpoint(url, "endpoint", "x") == url


@pytest.mark.parametrize(
    "url",
    [
        *("http://a.example", "http://localhost.evil", "http://127.0.0.1.evil", "http://10.0.0.1", "ftp://a.example"),
        *("javascript:alert(1)", "file:///etc/passwd", "https://", "https://user@a.example", "https://a.example/\n"),
        *("https://a.example:99999", "https://[::1", "", "//a.example", "https://a.example/ x"),
    ],
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(AuthFault, match="no https address"):
        check_endpoint(url, "endpoint", "x")
