"""Stored credentials as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from indusagi.interop.auth.contract import (
    AUTH_METHODS,
    ClientRegistration,
    CredentialKey,
    IssuerEndpoints,
    RegistrationSource,
    StoredCredentials,
    TokenSet,
    parse_credentials,
)
from indusagi.interop.auth.storage import MemoryCredentialStore

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

TEXT = st.text(min_size=1, max_size=8)
TEXTS = st.lists(TEXT, max_size=3).map(tuple)
TIME = st.none() | st.integers(0, 2**53)
TOKENS = st.builds(
    TokenSet,
    access_token=TEXT,
    refresh_token=st.none() | TEXT,
    token_type=st.sampled_from(["Bearer", "DPoP"]),
    scope=st.none() | TEXTS,
    obtained_at_ms=st.integers(0, 2**53),
    expires_at_ms=TIME,
)
REGISTRATIONS = st.builds(
    ClientRegistration,
    client_id=TEXT,
    client_secret=st.none() | TEXT,
    auth_method=st.sampled_from(AUTH_METHODS),
    source=st.sampled_from(get_args(RegistrationSource)),
    redirect_uris=TEXTS,
    secret_expires_at_ms=TIME,
)
CREDENTIALS = st.builds(
    StoredCredentials,
    key=st.builds(CredentialKey, TEXT, TEXT, TEXT),
    registration=REGISTRATIONS,
    endpoints=st.builds(IssuerEndpoints, token_endpoint=TEXT, revocation_endpoint=TEXT, indicator=TEXT),
    tokens=st.none() | TOKENS,
    requested_scopes=TEXTS,
    wanted_scopes=TEXTS,
    dpop_key=st.none() | st.dictionaries(TEXT, TEXT),
    account=TEXT,
)


@given(CREDENTIALS)
def test_credentials_survive_json(credentials: StoredCredentials) -> None:
    assert parse_credentials(credentials.to_json()) == credentials


@pytest.mark.parametrize("document", [None, [], {}, {"registration": {}, "endpoints": {}}, {"registration": 1}])
def test_another_document_is_none(document: JsonValue) -> None:
    assert parse_credentials(document) is None


async def test_the_memory_store_returns_the_sign_in_that_was_saved_last() -> None:
    def made(issuer: str) -> StoredCredentials:
        return StoredCredentials(
            key=CredentialKey(issuer, "https://s"),
            registration=ClientRegistration(client_id="c"),
            endpoints=IssuerEndpoints(token_endpoint="https://t"),
        )

    store = MemoryCredentialStore()
    one, two = made("https://one"), made("https://two")
    for row in (one, two, one):
        await store.save(row)
    assert await store.load("https://s") == one
    assert await store.find(two.key) == two
    assert await store.load("https://s", "other client") is None
    await store.delete(one.key)
    assert [*await store.list_credentials()] == [two]
