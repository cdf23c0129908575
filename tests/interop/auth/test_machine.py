"""Signing in: discovery, registration, scopes, refresh and revocation, against an issuer in memory."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.support.clock import ManualClock
from tests.support.issuers import ISSUER, REDIRECT, SERVER, MemoryIssuer, play, read_form, reply_json

from indusagi.interop.auth.contract import AuthFault, AuthSettings, CredentialKey, StoredCredentials
from indusagi.interop.auth.machine import SignInRequest, refresh, revoke, sign_in
from indusagi.interop.auth.requests import Challenge, HttpReply

CLOCK = ManualClock(1_000_000)
KEY = CredentialKey(ISSUER, SERVER)


def sign_in_with(
    issuer: MemoryIssuer, settings: AuthSettings | None = None, challenge: Challenge | None = None
) -> StoredCredentials:
    request = SignInRequest(server_url=SERVER, settings=settings or AuthSettings(), clock=CLOCK, challenge=challenge)
    return play(sign_in(issuer, request))


def bearer(**parameters: str) -> Challenge:
    return Challenge("bearer", parameters)


# -- a whole sign-in ----------------------------------------------------------------------------


def test_a_first_sign_in_registers_authorizes_and_saves() -> None:
    issuer = MemoryIssuer(token={"refresh_token": "refresh-1", "scope": "read"})
    stored = sign_in_with(issuer, challenge=bearer(scope="read"))
    assert issuer.rows == {KEY: stored}
    assert stored.tokens is not None
    assert (stored.tokens.access_token, stored.tokens.refresh_token) == ("access-1", "refresh-1")
    assert stored.tokens.expires_at_ms == 1_060_000
    asked = issuer.authorized[0]
    assert (asked["scope"], asked["resource"], asked["redirect_uri"]) == ("read", SERVER, REDIRECT)
    assert asked["code_challenge_method"] == "S256"
    # Nothing about the person, and nothing that opens a door: the address may be shown, logged and passed on.
    assert asked.keys() == {
        *("client_id", "code_challenge", "code_challenge_method", "redirect_uri"),
        *("resource", "response_type", "scope", "state"),
    }
    assert issuer.forms[0]["resource"] == SERVER
    assert issuer.registered[0]["application_type"] == "native"
    assert "refresh_token" in issuer.registered[0]["grant_types"]


def test_no_secret_is_shown_by_repr() -> None:
    issuer = MemoryIssuer(token={"refresh_token": "refresh-1"})
    stored = sign_in_with(issuer, AuthSettings(client_id="me", client_secret="s3cret"))
    for shown in (repr(stored), repr(issuer.requests), repr(AuthSettings(client_secret="s3cret", private_key="pem"))):
        assert not {"access-1", "refresh-1", "s3cret", "pem"} & set(shown.replace("'", " ").split())
        assert "s3cret" not in shown


def test_a_registration_is_kept_when_the_person_gives_up() -> None:
    issuer = MemoryIssuer(redirect={"code": None, "error": "access_denied"})
    with pytest.raises(AuthFault, match="access_denied"):
        sign_in_with(issuer)
    issuer.redirect = {}
    sign_in_with(issuer)
    assert len(issuer.registered) == 1


def test_a_registration_for_another_redirect_is_kept_as_well() -> None:
    issuer = MemoryIssuer()
    first = replace(sign_in_with(issuer), tokens=None, account="")
    issuer.rows[KEY] = replace(first, registration=replace(first.registration, redirect_uris=("http://127.0.0.1:9/x",)))
    issuer.redirect = {"code": None, "error": "access_denied"}
    for _ in range(2):
        with pytest.raises(AuthFault):
            sign_in_with(issuer)
    assert len(issuer.registered) == 2


def test_tokens_of_a_sign_in_stay_until_there_are_new_ones() -> None:
    issuer = MemoryIssuer()
    first = sign_in_with(issuer)
    issuer.rows[KEY] = replace(first, registration=replace(first.registration, redirect_uris=("http://127.0.0.1:9/x",)))
    issuer.redirect = {"code": None, "error": "access_denied"}
    with pytest.raises(AuthFault):
        sign_in_with(issuer)
    assert issuer.rows[KEY].tokens == first.tokens
    assert len(issuer.registered) == 2, "another redirect URI needs another registration"


# -- discovery ----------------------------------------------------------------------------------


def test_the_metadata_url_of_the_challenge_comes_first() -> None:
    issuer = MemoryIssuer()
    named = "https://mcp.example/custom.json"
    issuer.answers[named] = lambda _: reply_json({"resource": SERVER, "authorization_servers": [ISSUER]})
    sign_in_with(issuer, challenge=bearer(resource_metadata=named))
    assert issuer.requests[0].url == named
    assert all("oauth-protected-resource" not in request.url for request in issuer.requests)


@pytest.mark.parametrize(
    "resource", ["https://evil.example/mcp", "https://mcp.example/mcp2", "http://mcp.example/mcp", "", None, 7]
)
def test_metadata_of_another_resource_is_refused(resource: object) -> None:
    issuer = MemoryIssuer(resource={"resource": resource})
    with pytest.raises(AuthFault, match="describes another server"):
        sign_in_with(issuer)
    assert issuer.authorized == []


@pytest.mark.parametrize("server", ["http://mcp.example/mcp", "http://10.0.0.1/mcp", "http://localhost.evil/mcp"])
def test_nobody_signs_in_to_a_server_that_is_not_encrypted(server: str) -> None:
    issuer = MemoryIssuer()
    with pytest.raises(AuthFault, match="no https address"):
        play(sign_in(issuer, SignInRequest(server_url=server, settings=AuthSettings(), clock=CLOCK)))
    assert issuer.requests == []


def test_the_resource_is_sent_as_the_server_publishes_it() -> None:
    issuer = MemoryIssuer(resource={"resource": "https://mcp.example"})
    assert sign_in_with(issuer).endpoints.indicator == "https://mcp.example"
    assert issuer.authorized[0]["resource"] == issuer.forms[0]["resource"] == "https://mcp.example"


@pytest.mark.parametrize("claimed", ["https://evil.example", "https://as.example/", "HTTPS://as.example", None])
def test_metadata_of_another_issuer_is_refused(claimed: object) -> None:
    issuer = MemoryIssuer(metadata={"issuer": claimed})
    with pytest.raises(AuthFault, match="another issuer"):
        sign_in_with(issuer)


@pytest.mark.parametrize(
    "endpoint",
    ["http://as.example/authorize", "javascript:alert(1)", "file:///etc/passwd", "https://a b/", "https:///x"],
)
@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "registration_endpoint"])
def test_an_endpoint_without_https_is_refused(name: str, endpoint: str) -> None:
    issuer = MemoryIssuer(metadata={name: endpoint})
    with pytest.raises(AuthFault, match="no https address"):
        sign_in_with(issuer)
    assert issuer.authorized == issuer.forms == []


@pytest.mark.parametrize("methods", [None, [], ["plain"], "S256"])
def test_an_issuer_that_does_not_offer_pkce_is_refused(methods: object) -> None:
    issuer = MemoryIssuer(metadata={"code_challenge_methods_supported": methods})
    with pytest.raises(AuthFault, match="PKCE"):
        sign_in_with(issuer)
    assert issuer.authorized == []
    assert sign_in_with(issuer, AuthSettings(assume_pkce=True)).tokens is not None


@pytest.mark.parametrize("status", [0, 408, 429, 500, 503])
def test_an_outage_is_not_taken_for_absent_metadata(status: int) -> None:
    issuer = MemoryIssuer()
    issuer.answers["https://mcp.example/.well-known/oauth-protected-resource/mcp"] = lambda _: HttpReply(status)
    with pytest.raises(AuthFault) as raised:
        sign_in_with(issuer)
    assert raised.value.is_transient


def test_a_server_without_metadata_is_its_own_issuer() -> None:
    origin = "https://mcp.example"
    issuer = MemoryIssuer(issuer=origin)
    issuer.answers[f"{origin}/.well-known/oauth-protected-resource/mcp"] = lambda _: HttpReply(404)
    stored = sign_in_with(issuer)
    assert stored.key.issuer == origin
    assert "resource" not in issuer.authorized[0], "a server of 2025-03-26 knows no resource"


def test_a_server_without_any_document_has_default_endpoints() -> None:
    issuer = MemoryIssuer(issuer="https://mcp.example")
    for path in ("oauth-protected-resource/mcp", "oauth-authorization-server"):
        issuer.answers[f"https://mcp.example/.well-known/{path}"] = lambda _: HttpReply(404)
    stored = sign_in_with(issuer)
    assert stored.endpoints.token_endpoint == "https://mcp.example/token"


def test_the_issuer_of_the_last_sign_in_is_preferred() -> None:
    issuer = MemoryIssuer(resource={"authorization_servers": ["https://other.example", ISSUER]})
    request = SignInRequest(server_url=SERVER, settings=AuthSettings(), clock=CLOCK, previous_issuer=ISSUER)
    assert play(sign_in(issuer, request)).key.issuer == ISSUER
    assert all("other.example" not in request.url for request in issuer.requests)


def test_the_issuer_of_the_settings_is_used() -> None:
    issuer = MemoryIssuer(resource={"authorization_servers": ["https://other.example"]})
    assert sign_in_with(issuer, AuthSettings(issuer=ISSUER)).key.issuer == ISSUER


def test_the_metadata_document_of_the_settings_is_used() -> None:
    named = "https://as.example/odd/metadata"
    issuer = MemoryIssuer()
    issuer.answers[named] = lambda _: reply_json(issuer.document())
    stored = sign_in_with(issuer, AuthSettings(metadata_url=named))
    assert stored.key.issuer == ISSUER
    with pytest.raises(AuthFault, match="another issuer"):
        sign_in_with(issuer, AuthSettings(metadata_url=named, issuer="https://other.example"))
    issuer.answers[named] = lambda _: HttpReply(404)
    with pytest.raises(AuthFault, match="404"):
        sign_in_with(issuer, AuthSettings(metadata_url=named))


def test_an_issuer_without_metadata_names_the_remedy() -> None:
    issuer = MemoryIssuer(resource={"authorization_servers": ["https://other.example"]})
    with pytest.raises(AuthFault, match="metadata_url"):
        sign_in_with(issuer)


def test_the_next_issuer_is_tried_if_the_first_publishes_nothing() -> None:
    issuer = MemoryIssuer(resource={"authorization_servers": ["https://other.example", ISSUER]})
    assert sign_in_with(issuer).key.issuer == ISSUER


def test_an_absent_document_of_the_challenge_leads_to_the_well_known_one() -> None:
    issuer = MemoryIssuer()
    stored = sign_in_with(issuer, challenge=bearer(resource_metadata="https://mcp.example/gone.json"))
    assert stored.key.issuer == ISSUER
    issuer.answers["https://mcp.example/gone.json"] = lambda _: HttpReply(503)
    with pytest.raises(AuthFault) as raised:
        sign_in_with(issuer, challenge=bearer(resource_metadata="https://mcp.example/gone.json"))
    assert raised.value.is_transient


def test_a_document_of_the_challenge_without_https_is_refused() -> None:
    with pytest.raises(AuthFault, match="no https address"):
        sign_in_with(MemoryIssuer(), challenge=bearer(resource_metadata="http://elsewhere.example/x"))


@pytest.mark.parametrize("issuers", [None, [], "x", [7]])
def test_a_server_that_names_no_issuer_names_the_remedy(issuers: object) -> None:
    with pytest.raises(AuthFault, match="set `issuer`"):
        sign_in_with(MemoryIssuer(resource={"authorization_servers": issuers}))


def test_an_issuer_that_is_down_is_a_passing_failure() -> None:
    issuer = MemoryIssuer()
    issuer.answers[f"{ISSUER}/.well-known/oauth-authorization-server"] = lambda _: HttpReply(502)
    with pytest.raises(AuthFault) as raised:
        sign_in_with(issuer)
    assert raised.value.is_transient


@pytest.mark.parametrize("name", ["token_endpoint", "authorization_endpoint"])
def test_a_missing_endpoint_is_named(name: str) -> None:
    with pytest.raises(AuthFault, match=name.replace("_", " ")):
        sign_in_with(MemoryIssuer(metadata={name: None}))


# -- registration -------------------------------------------------------------------------------


def test_a_configured_client_comes_before_every_other() -> None:
    issuer = MemoryIssuer(metadata={"client_id_metadata_document_supported": True})
    settings = AuthSettings(client_id="me", client_metadata_url="https://indus.example/client.json")
    stored = sign_in_with(issuer, settings)
    assert (stored.registration.client_id, stored.registration.source) == ("me", "configured")
    assert stored.key.client == "me"
    assert issuer.registered == []


def test_a_configured_secret_is_not_stored() -> None:
    stored = sign_in_with(MemoryIssuer(), AuthSettings(client_id="me", client_secret="s3cret"))
    assert "s3cret" not in str(stored.to_json())


def test_a_metadata_document_is_used_where_the_issuer_supports_that() -> None:
    document = "https://indus.example/client.json"
    issuer = MemoryIssuer(metadata={"client_id_metadata_document_supported": True})
    assert sign_in_with(issuer, AuthSettings(client_metadata_url=document)).registration.client_id == document
    issuer = MemoryIssuer()
    assert sign_in_with(issuer, AuthSettings(client_metadata_url=document)).registration.client_id == "client-1"


def test_a_refused_metadata_document_falls_back_to_registration() -> None:
    issuer = MemoryIssuer(metadata={"client_id_metadata_document_supported": True})
    refused: list[int] = []

    def refuse_once(step: object) -> HttpReply:
        refused.append(1)
        del issuer.answers[f"{ISSUER}/token"]
        return reply_json({"error": "invalid_client"}, 401)

    issuer.answers[f"{ISSUER}/token"] = refuse_once
    stored = sign_in_with(issuer, AuthSettings(client_metadata_url="https://indus.example/client.json"))
    assert refused == [1]
    assert (stored.registration.client_id, stored.registration.source) == ("client-1", "dynamic")


def test_another_issuer_never_sees_the_registration_of_the_first() -> None:
    issuer = MemoryIssuer()
    first = sign_in_with(issuer)
    other = MemoryIssuer(issuer="https://other.example", memory=issuer.memory)
    second = sign_in_with(other)
    assert second.key.issuer == "https://other.example"
    assert len(other.registered) == 1
    assert first.registration.client_id.encode() not in b"".join(step.body or b"" for step in other.requests[:-1])
    assert issuer.rows[first.key] == first


@pytest.mark.parametrize(
    "own",
    [
        AuthSettings(grant="client_credentials", client_id="me", client_secret="s3cret"),
        AuthSettings(grant="jwt_bearer", client_id="me", assertion="s3cret"),
        AuthSettings(client_id="me", client_secret="s3cret"),
    ],
    ids=lambda own: own.grant,
)
def test_another_issuer_never_sees_the_credentials_of_the_user(own: AuthSettings) -> None:
    first = MemoryIssuer()
    stored = sign_in_with(first, own)
    moved = MemoryIssuer(issuer="https://evil.example", memory=first.memory)
    again = SignInRequest(server_url=SERVER, settings=own, clock=CLOCK, previous_issuer=stored.key.issuer)
    with pytest.raises(AuthFault, match="set `issuer`"):
        play(sign_in(moved, again))
    assert all(step.body is None for step in moved.requests), "nothing but metadata was asked for"
    assert moved.authorized == []
    named = replace(own, issuer="https://evil.example")
    assert play(sign_in(moved, replace(again, settings=named))).key.issuer == "https://evil.example"


def test_an_issuer_that_registers_no_clients_names_the_remedy() -> None:
    issuer = MemoryIssuer(metadata={"registration_endpoint": None})
    with pytest.raises(AuthFault, match="set `client_id`"):
        sign_in_with(issuer)


def test_an_expired_registration_is_made_again() -> None:
    issuer = MemoryIssuer()
    first = sign_in_with(issuer)
    issuer.rows[KEY] = replace(first, registration=replace(first.registration, secret_expires_at_ms=1))
    assert sign_in_with(issuer).registration.client_id == "client-2"


def test_a_refused_registration_shows_its_error() -> None:
    issuer = MemoryIssuer()
    issuer.answers[f"{ISSUER}/register"] = lambda _: reply_json({"error": "invalid_redirect_uri"}, 400)
    with pytest.raises(AuthFault, match="invalid_redirect_uri"):
        sign_in_with(issuer)


def test_the_method_and_the_secret_of_a_registration_are_those_of_the_issuer() -> None:
    issuer = MemoryIssuer(metadata={"token_endpoint_auth_methods_supported": ["client_secret_post"]})
    answer = {
        "client_id": "c",
        "client_secret": "s",
        "client_secret_expires_at": 2_000,
        "token_endpoint_auth_method": "client_secret_basic",
    }
    issuer.answers[f"{ISSUER}/register"] = lambda _: reply_json(answer, 201)
    registration = sign_in_with(issuer).registration
    assert (registration.auth_method, registration.secret_expires_at_ms) == ("client_secret_basic", 2_000_000)
    assert issuer.requests[-1].headers["authorization"].startswith("Basic ")


def test_the_method_of_the_settings_is_asked_for() -> None:
    issuer = MemoryIssuer()
    sign_in_with(issuer, AuthSettings(auth_method="none"))
    assert issuer.registered[0]["token_endpoint_auth_method"] == "none"


# -- scopes -------------------------------------------------------------------------------------


def test_scopes_come_from_the_settings_the_challenge_or_the_metadata_in_this_order() -> None:
    issuer = MemoryIssuer(resource={"scopes_supported": ["all"]})
    sign_in_with(issuer, AuthSettings(scopes=("mine",)), bearer(scope="read"))
    issuer.rows.clear()
    sign_in_with(issuer, challenge=bearer(scope="read write"))
    issuer.rows.clear()
    sign_in_with(issuer)
    assert [asked.get("scope") for asked in issuer.authorized] == ["mine", "read write", "all"]


def test_without_any_scope_none_is_sent() -> None:
    issuer = MemoryIssuer()
    sign_in_with(issuer)
    assert "scope" not in issuer.authorized[0]


def test_a_step_up_keeps_what_was_requested_before() -> None:
    issuer = MemoryIssuer()
    sign_in_with(issuer, challenge=bearer(scope="read"))
    stored = sign_in_with(issuer, challenge=bearer(scope="write", error="insufficient_scope"))
    assert issuer.authorized[1]["scope"] == "read write"
    assert stored.requested_scopes == ("read", "write")


def test_offline_access_is_requested_where_the_issuer_lists_it() -> None:
    issuer = MemoryIssuer(
        metadata={"scopes_supported": ["offline_access"], "id_token_signing_alg_values_supported": ["ES256"]}
    )
    sign_in_with(issuer, challenge=bearer(scope="read"))
    assert issuer.authorized[0]["scope"] == "read offline_access"
    assert issuer.authorized[0]["prompt"] == "consent"
    issuer = MemoryIssuer(resource={"scopes_supported": ["read", "offline_access"]})
    sign_in_with(issuer)
    assert issuer.authorized[0]["scope"] == "read"


# -- refresh and revocation ---------------------------------------------------------------------


def test_a_refresh_replaces_the_tokens_and_keeps_what_is_not_sent() -> None:
    issuer = MemoryIssuer(token={"refresh_token": "refresh-1", "scope": "read"})
    stored = sign_in_with(issuer)
    assert stored.tokens is not None
    issuer.token = {}
    new = play(refresh(issuer, stored, stored.tokens, AuthSettings(), CLOCK, None))
    assert new.tokens is not None
    assert (new.tokens.access_token, new.tokens.refresh_token, new.tokens.scope) == ("access-2", "refresh-1", ("read",))
    assert issuer.rows[KEY] == new
    assert issuer.forms[-1] == {
        "grant_type": "refresh_token", "refresh_token": "refresh-1", "resource": SERVER, "client_id": "client-1"
    }  # fmt: skip


def test_a_failed_refresh_leaves_the_store_as_it_was() -> None:
    issuer = MemoryIssuer(token={"refresh_token": "refresh-1"})
    stored = sign_in_with(issuer)
    assert stored.tokens is not None
    issuer.answers[f"{ISSUER}/token"] = lambda _: HttpReply(503)
    with pytest.raises(AuthFault) as raised:
        play(refresh(issuer, stored, stored.tokens, AuthSettings(), CLOCK, None))
    assert raised.value.is_transient
    assert issuer.rows[KEY] == stored


def test_signing_out_revokes_the_refresh_token_first() -> None:
    issuer = MemoryIssuer(token={"refresh_token": "refresh-1"})
    stored = sign_in_with(issuer)
    assert play(revoke(issuer, stored, AuthSettings(), CLOCK)) is True
    sent = [read_form(step)["token"] for step in issuer.requests if step.url.endswith("/revoke")]
    assert sent == ["refresh-1", "access-1"]
    issuer.answers[f"{ISSUER}/revoke"] = lambda _: HttpReply(503)
    assert play(revoke(issuer, stored, AuthSettings(), CLOCK)) is False
    assert play(revoke(issuer, replace(stored, tokens=None, account=""), AuthSettings(), CLOCK)) is False
