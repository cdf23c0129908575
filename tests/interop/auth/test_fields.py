"""Every field that a server or an issuer sends while signing in, with every kind of value: one fault, no traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.clock import ManualClock
from tests.support.issuers import ISSUER, SERVER, MemoryIssuer, play, reply_json

from indusagi.interop.auth.callback import read_state
from indusagi.interop.auth.contract import AuthFault, AuthSettings
from indusagi.interop.auth.machine import SignInRequest, sign_in
from indusagi.interop.auth.metadata import (
    build_issuer_metadata_urls,
    build_resource_metadata_urls,
    canonical_resource,
    check_endpoint,
    get_origin_of,
    is_loopback,
    is_resource_of,
)
from indusagi.interop.auth.requests import Challenge

if TYPE_CHECKING:
    from collections.abc import Callable

MALFORMED = ["http://[", "https://[::1", "https://a:b/", "https://a:99999999/", "https://[a]/", "https://a:-1/", "//[/"]
VALUES: list[Any] = [
    "\ud800",
    "a\udfff",
    [],
    ["\ud800"],
    [[]],
    {},
    {"a": 1},
    5,
    10**400,
    1e300,
    True,
    False,
    "",
    *MALFORMED,
]
RESOURCE = ("resource", "authorization_servers", "scopes_supported", "dpop_bound_access_tokens_required")
METADATA = (
    "issuer", "authorization_endpoint", "token_endpoint", "registration_endpoint", "revocation_endpoint",
    "device_authorization_endpoint", "scopes_supported", "token_endpoint_auth_methods_supported",
    "code_challenge_methods_supported", "dpop_signing_alg_values_supported",
)  # fmt: skip
TOKEN = ("access_token", "refresh_token", "token_type", "scope", "expires_in", "id_token")
REGISTRATION = ("client_id", "client_secret", "client_secret_expires_at", "token_endpoint_auth_method")
DEVICE = (
    "device_code", "user_code", "verification_uri", "verification_uri_complete", "expires_in", "interval",
)  # fmt: skip


def attempt(issuer: MemoryIssuer, settings: AuthSettings | None = None, challenge: Challenge | None = None) -> None:
    """Sign in; a fault is fine, and everything else is raised."""
    chosen = settings or AuthSettings()
    request = SignInRequest(server_url=SERVER, settings=chosen, clock=ManualClock(1_000_000), challenge=challenge)
    try:
        play(sign_in(issuer, request))
    except AuthFault as fault:
        str(fault).encode()


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:16])
def test_finding_f14_any_field_of_a_document_is_used_or_a_fault(value: Any) -> None:
    for field in RESOURCE:
        attempt(MemoryIssuer(resource={field: value}))
        attempt(MemoryIssuer(resource={field: [value]}))
    for field in METADATA:
        attempt(MemoryIssuer(metadata={field: value}))
        attempt(MemoryIssuer(metadata={field: [value]}))
    for field in TOKEN:
        attempt(MemoryIssuer(token={field: value}))
    for field in REGISTRATION:
        issuer = MemoryIssuer()
        issuer.answers[f"{ISSUER}/register"] = lambda _, field=field: reply_json({"client_id": "c", field: value}, 201)
        attempt(issuer)
    for field in DEVICE:
        issuer = MemoryIssuer(metadata={"device_authorization_endpoint": f"{ISSUER}/device"})
        code = {"device_code": "d", "user_code": "u", "verification_uri": f"{ISSUER}/enter", field: value}
        issuer.answers[f"{ISSUER}/device"] = lambda _, code=code: reply_json(code)
        attempt(issuer, AuthSettings(grant="device_code"))


@pytest.mark.parametrize("url", MALFORMED)
def test_finding_f14_a_malformed_address_is_a_fault_and_no_value_error(url: str) -> None:
    attempt(MemoryIssuer(), challenge=Challenge("bearer", {"resource_metadata": url}))
    attempt(MemoryIssuer(), AuthSettings(issuer=url))
    attempt(MemoryIssuer(), AuthSettings(metadata_url=url))
    assert is_resource_of(url, SERVER) is False
    assert is_resource_of(SERVER, url) is False
    assert is_loopback(url) is False
    uses: list[Callable[[str], object]] = [
        canonical_resource,
        get_origin_of,
        build_resource_metadata_urls,
        build_issuer_metadata_urls,
        read_state,
        lambda url: check_endpoint(url, "address", "it"),
    ]
    for use in uses:
        with pytest.raises(AuthFault):
            use(url)
