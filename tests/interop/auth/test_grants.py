"""Grants: what each sends, and which answers are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey
from tests.support.clock import ManualClock
from tests.support.issuers import ISSUER, SERVER, MemoryIssuer, Sent, play, read_form, reply_json

from indusagi.interop.auth.contract import (
    AuthFault,
    AuthSettings,
    IdentityProvider,
    StoredCredentials,
    parse_credentials,
)
from indusagi.interop.auth.machine import SignInRequest, refresh, sign_in
from indusagi.interop.auth.metadata import IssuerMetadata
from indusagi.interop.auth.requests import Challenge, HttpReply

CLOCK = ManualClock(1_700_000_000_000)
ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"


def sign_in_with(
    issuer: MemoryIssuer, settings: AuthSettings | None = None, challenge: Challenge | None = None
) -> StoredCredentials:
    request = SignInRequest(server_url=SERVER, settings=settings or AuthSettings(), clock=CLOCK, challenge=challenge)
    return play(sign_in(issuer, request))


# -- the answer to a redirect -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("redirect", "advertised"),
    [
        ({"iss": "https://evil.example"}, True),
        ({"iss": "https://evil.example"}, None),
        ({"iss": f"{ISSUER}/"}, True),
        ({"iss": ""}, None),
        ({}, True),
        ({"iss": "https://evil.example", "error": "access_denied", "code": None}, True),
    ],
)
def test_a_redirect_of_another_issuer_is_refused(redirect: dict[str, str | None], advertised: bool | None) -> None:
    issuer = MemoryIssuer(redirect=redirect)
    issuer.metadata["authorization_response_iss_parameter_supported"] = advertised
    with pytest.raises(AuthFault, match="RFC 9207") as raised:
        sign_in_with(issuer)
    assert "access_denied" not in str(raised.value), "an error of another issuer is not even shown"
    assert issuer.forms == []


@pytest.mark.parametrize("advertised", [True, None])
def test_a_redirect_of_the_same_issuer_is_accepted(advertised: bool | None) -> None:
    issuer = MemoryIssuer(redirect={"iss": ISSUER})
    issuer.metadata["authorization_response_iss_parameter_supported"] = advertised
    assert sign_in_with(issuer).tokens is not None


KNOWN = IssuerMetadata(
    issuer=ISSUER,
    has_identifier=False,
    authorization_endpoint=f"{ISSUER}/realm/authorize",
    token_endpoint=f"{ISSUER}/token",
    refresh_endpoint=f"{ISSUER}/renew",
    supports_s256=True,
)


@pytest.mark.parametrize(
    ("claimed", "is_accepted"),
    [(None, True), (f"{ISSUER}/realm", True), ("https://evil.example", False), ("", False), ("https://as:x/", False)],
)
def test_an_issuer_without_a_known_identifier_answers_from_its_origin(claimed: str | None, is_accepted: bool) -> None:
    issuer = MemoryIssuer(redirect={"iss": claimed})
    settings = AuthSettings(client_id="mine")
    request = SignInRequest(server_url=SERVER, settings=settings, clock=CLOCK, issuer=KNOWN)
    if is_accepted:
        assert play(sign_in(issuer, request)).tokens is not None
        assert [step.url for step in issuer.requests] == [f"{ISSUER}/token"], "nothing is discovered"
    else:
        with pytest.raises(AuthFault, match="RFC 9207"):
            play(sign_in(issuer, request))
        assert issuer.forms == []


def test_tokens_are_refreshed_where_the_issuer_says() -> None:
    issuer = MemoryIssuer(token={"refresh_token": "r1"})
    settings = AuthSettings(client_id="mine")
    stored = play(sign_in(issuer, SignInRequest(server_url=SERVER, settings=settings, clock=CLOCK, issuer=KNOWN)))
    assert parse_credentials(stored.to_json()) == stored
    assert stored.tokens is not None
    play(refresh(issuer, stored, stored.tokens, settings, CLOCK, None))
    assert issuer.requests[-1].url == f"{ISSUER}/renew"


@pytest.mark.parametrize("state", ["", "other", None, "é"])
def test_a_redirect_with_another_state_is_refused(state: str | None) -> None:
    issuer = MemoryIssuer(redirect={"state": state})
    with pytest.raises(AuthFault, match="another sign-in"):
        sign_in_with(issuer)
    assert issuer.forms == []


def test_a_redirect_without_a_code_is_refused() -> None:
    with pytest.raises(AuthFault, match="no code"):
        sign_in_with(MemoryIssuer(redirect={"code": None}))


def test_an_error_of_a_redirect_shows_its_code_and_nothing_else() -> None:
    redirect: dict[str, str | None] = {"code": None, "error": "x<script>", "error_description": "call 555"}
    with pytest.raises(AuthFault) as raised:
        sign_in_with(MemoryIssuer(redirect=redirect))
    assert "script" not in str(raised.value)
    assert "555" not in str(raised.value)


def test_state_and_verifier_are_new_for_each_sign_in() -> None:
    issuer = MemoryIssuer()
    sign_in_with(issuer)
    sign_in_with(issuer)
    for name in ("state", "code_challenge"):
        assert issuer.authorized[0][name] != issuer.authorized[1][name]


# -- tokens -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token", [{"access_token": ""}, {"access_token": "a\nb"}, {"access_token": 7}, {"token_type": "mac"}]
)
def test_a_response_without_a_usable_token_is_refused(token: dict[str, Any]) -> None:
    with pytest.raises(AuthFault):
        sign_in_with(MemoryIssuer(token=token))


@pytest.mark.parametrize(("life", "expires"), [("60", 60_000), (1.5, 1_000), (-1, None), (True, None), (10**12, None)])
def test_the_life_of_a_token_is_read_as_issuers_write_it(life: object, expires: int | None) -> None:
    tokens = sign_in_with(MemoryIssuer(token={"expires_in": life})).tokens
    assert tokens is not None
    assert tokens.expires_at_ms == (None if expires is None else CLOCK.now_ms() + expires)


def test_the_account_is_that_of_the_id_token() -> None:
    key = ECKey.generate_key("P-256")
    id_token = jwt.encode({"alg": "ES256"}, {"sub": "7", "email": "ada@example.org"}, key)
    assert sign_in_with(MemoryIssuer(token={"id_token": id_token})).account == "ada@example.org"


def test_an_error_of_the_token_endpoint_shows_its_code_and_nothing_else() -> None:
    issuer = MemoryIssuer()
    answer = {"error": "invalid_grant", "error_description": "the code the-code was used"}
    issuer.answers[f"{ISSUER}/token"] = lambda _: reply_json(answer, 400)
    with pytest.raises(AuthFault) as raised:
        sign_in_with(issuer)
    assert raised.value.error == "invalid_grant"
    assert "the-code" not in str(raised.value)


# -- client authentication ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("supported", "method"),
    [
        (None, "client_secret_basic"),
        (["client_secret_post"], "client_secret_post"),
        (["client_secret_post", "client_secret_basic"], "client_secret_basic"),
        (["none"], "none"),
    ],
)
def test_the_secret_is_sent_as_the_issuer_supports_it(supported: list[str] | None, method: str) -> None:
    issuer = MemoryIssuer(metadata={"token_endpoint_auth_methods_supported": supported})
    stored = sign_in_with(issuer, AuthSettings(client_id="me:é", client_secret="p w"))
    assert stored.registration.auth_method == method
    headers, form = issuer.requests[-1].headers, issuer.forms[-1]
    assert ("authorization" in headers) == (method == "client_secret_basic")
    assert form.get("client_secret") == ("p w" if method == "client_secret_post" else None)
    if method == "client_secret_basic":
        assert headers["authorization"] == "Basic bWUlM0ElQzMlQTk6cCUyMHc="  # me%3A%C3%A9:p%20w


@pytest.mark.parametrize("algorithm", ["ES256", "RS256", "PS256"])
def test_a_client_with_a_key_signs_an_assertion(algorithm: str) -> None:
    key = ECKey.generate_key("P-256") if algorithm == "ES256" else RSAKey.generate_key(2048)
    issuer = MemoryIssuer()
    settings = AuthSettings(
        grant="client_credentials",
        client_id="me",
        private_key=key.as_pem(private=True).decode(),
        signing_algorithm=algorithm,
    )
    sign_in_with(issuer, settings, Challenge("bearer", {"scope": "read"}))
    form = issuer.forms[0]
    claims = jwt.decode(form["client_assertion"], key, algorithms=[algorithm]).claims
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("me", "me", ISSUER)
    assert claims["exp"] - claims["iat"] <= 300
    assert (form["grant_type"], form["scope"], form["resource"]) == ("client_credentials", "read", SERVER)
    assert issuer.authorized == []


def test_a_key_as_jwk_is_used_with_its_id() -> None:
    key = ECKey.generate_key("P-256", {"kid": "k1"})
    issuer = MemoryIssuer()
    private = json.dumps(key.as_dict(private=True))
    sign_in_with(issuer, AuthSettings(grant="client_credentials", client_id="me", private_key=private))
    assert jwt.decode(issuer.forms[0]["client_assertion"], key).header["kid"] == "k1"


@pytest.mark.parametrize("key", ["nonsense-key", "{}", "{"])
def test_an_unusable_key_is_named_and_not_shown(key: str) -> None:
    with pytest.raises(AuthFault, match="private_key") as raised:
        sign_in_with(MemoryIssuer(), AuthSettings(grant="client_credentials", client_id="me", private_key=key))
    assert "nonsense-key" not in str(raised.value)
    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None


def test_a_missing_secret_is_named() -> None:
    settings = AuthSettings(grant="client_credentials", client_id="me", auth_method="client_secret_basic")
    with pytest.raises(AuthFault, match="client_secret"):
        sign_in_with(MemoryIssuer(), settings)


# -- grants without a browser -------------------------------------------------------------------


def test_a_workload_sends_its_assertion_once() -> None:
    issuer = MemoryIssuer()
    settings = AuthSettings(grant="jwt_bearer", client_id="me", assertion="a.b.c")
    sign_in_with(issuer, settings)
    assert issuer.forms == [
        {
            "grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer",
            "assertion": "a.b.c",
            "resource": SERVER,
            "client_id": "me",
        }
    ]
    issuer.answers[f"{ISSUER}/token"] = lambda step: (
        issuer.forms.append(read_form(step)) or reply_json({"error": "invalid_grant"}, 400)
    )
    with pytest.raises(AuthFault, match="invalid_grant"):
        sign_in_with(issuer, settings)
    assert len(issuer.forms) == 2
    with pytest.raises(AuthFault, match="`assertion`"):
        sign_in_with(issuer, AuthSettings(grant="jwt_bearer", client_id="me"))


def test_an_id_token_is_exchanged_for_an_assertion_of_the_issuer() -> None:
    provider = IdentityProvider(token_endpoint="https://idp.example/token", client_id="idp-me", id_token="id.t.k")
    settings = AuthSettings(grant="id_jag", client_id="me", client_secret="s", identity_provider=provider)
    issuer, exchanged = MemoryIssuer(), list[dict[str, str]]()

    def exchange(step: Sent) -> HttpReply:
        exchanged.append(read_form(step))
        return reply_json({"access_token": "jag", "issued_token_type": ID_JAG, "token_type": "N_A"})

    issuer.answers["https://idp.example/token"] = exchange
    sign_in_with(issuer, settings)
    assert exchanged[0]["requested_token_type"] == ID_JAG
    assert (exchanged[0]["audience"], exchanged[0]["resource"]) == (ISSUER, SERVER)
    assert (exchanged[0]["subject_token"], exchanged[0]["client_id"]) == ("id.t.k", "idp-me")
    assert issuer.forms[0]["assertion"] == "jag"
    assert "id.t.k" not in json.dumps(issuer.forms), "the identity token is for the provider alone"
    issuer.answers["https://idp.example/token"] = lambda _: reply_json({"access_token": "x", "token_type": "Bearer"})
    with pytest.raises(AuthFault, match="ID-JAG"):
        sign_in_with(issuer, settings)
    with pytest.raises(AuthFault, match="identity_provider"):
        sign_in_with(issuer, AuthSettings(grant="id_jag", client_id="me", client_secret="s"))


def device_issuer(*errors: str, **answer: object) -> MemoryIssuer:
    """An issuer that answers the polls of a device with errors, then with a token."""
    issuer = MemoryIssuer(metadata={"device_authorization_endpoint": f"{ISSUER}/device"})
    left = [*errors]
    code = {
        "device_code": "dev",
        "user_code": "ABCD-EFGH",
        "verification_uri": f"{ISSUER}/activate",
        "expires_in": 60,
        **answer,
    }
    issuer.answers[f"{ISSUER}/device"] = lambda _: reply_json(code)

    def poll(step: Sent) -> HttpReply:
        issuer.forms.append(read_form(step))
        if not left:
            return reply_json({"access_token": "t", "token_type": "bearer"})
        error = left.pop(0)
        return HttpReply(503) if error == "503" else reply_json({"error": error}, 400)

    issuer.answers[f"{ISSUER}/token"] = poll
    return issuer


def test_a_device_is_polled_as_slowly_as_the_issuer_wants() -> None:
    issuer = device_issuer("authorization_pending", "slow_down", "503", interval=2)
    stored = sign_in_with(issuer, AuthSettings(grant="device_code"))
    assert stored.tokens is not None
    assert issuer.shown[0].user_code == "ABCD-EFGH"
    assert issuer.waits == [2, 2, 7, 14]
    assert issuer.forms[0]["device_code"] == "dev"
    assert issuer.registered[0]["redirect_uris"] == [], "another device has no redirect"


@pytest.mark.parametrize("error", ["access_denied", "expired_token", "invalid_grant"])
def test_a_device_that_is_refused_ends_the_sign_in(error: str) -> None:
    with pytest.raises(AuthFault, match=error):
        sign_in_with(device_issuer(error), AuthSettings(grant="device_code"))


def test_a_device_code_ends_by_itself() -> None:
    issuer = device_issuer(*["authorization_pending"] * 100)
    with pytest.raises(AuthFault, match="not entered in time"):
        sign_in_with(issuer, AuthSettings(grant="device_code"))
    assert sum(issuer.waits) == 60


@pytest.mark.parametrize("uri", ["javascript:x", "http://as.example/x", "", 7])
def test_a_verification_address_without_https_is_refused(uri: object) -> None:
    issuer = device_issuer(verification_uri=uri)
    with pytest.raises(AuthFault, match="verification address"):
        sign_in_with(issuer, AuthSettings(grant="device_code"))
    assert issuer.shown == []


def test_an_issuer_without_device_codes_is_named() -> None:
    with pytest.raises(AuthFault, match="RFC 8628"):
        sign_in_with(MemoryIssuer(), AuthSettings(grant="device_code"))


# -- DPoP ---------------------------------------------------------------------------------------


def proof_of(step: Sent) -> tuple[dict[str, Any], dict[str, Any]]:
    """Verify the proof of a request with the key in its own header."""
    header = jwt.decode(step.headers["dpop"], lambda token: ECKey.import_key(token.headers()["jwk"]))
    return header.header, header.claims


def test_a_dpop_challenge_binds_the_token_and_obeys_nonces() -> None:
    issuer = MemoryIssuer(token={"token_type": "DPoP"})
    usual = issuer._issue

    def want_nonce(step: Sent) -> HttpReply:
        _, claims = proof_of(step)
        if claims.get("nonce") != "n-1":
            return reply_json({"error": "use_dpop_nonce"}, 400, dpop_nonce="n-1")
        return usual(step)

    issuer.answers[f"{ISSUER}/token"] = want_nonce
    stored = sign_in_with(issuer, challenge=Challenge("dpop"))
    assert stored.tokens is not None
    assert stored.tokens.token_type == "DPoP"
    sent = [step for step in issuer.requests if step.url.endswith("/token")]
    (header, first), (_, second) = map(proof_of, sent)
    assert header["typ"] == "dpop+jwt"
    assert "d" not in header["jwk"], "the private part stays here"
    assert (first["htm"], first["htu"]) == ("POST", f"{ISSUER}/token")
    assert first["jti"] != second["jti"]
    assert issuer.registered[0]["dpop_bound_access_tokens"] is True
    assert stored.dpop_key is not None
    assert "d" in stored.dpop_key


def test_a_nonce_that_never_fits_is_not_tried_for_ever() -> None:
    issuer = MemoryIssuer()
    issuer.answers[f"{ISSUER}/token"] = lambda _: reply_json({"error": "use_dpop_nonce"}, 400, dpop_nonce="n")
    with pytest.raises(AuthFault, match="use_dpop_nonce"):
        sign_in_with(issuer, AuthSettings(dpop=True))
    assert len([step for step in issuer.requests if step.url.endswith("/token")]) == 2


def test_dpop_is_used_where_the_server_requires_it_or_the_user_wants_it() -> None:
    required = MemoryIssuer(resource={"dpop_bound_access_tokens_required": True})
    assert sign_in_with(required).dpop_key is not None
    assert sign_in_with(MemoryIssuer(), AuthSettings(dpop=True)).dpop_key is not None
    assert sign_in_with(required, AuthSettings(dpop=False)).dpop_key is None
    assert sign_in_with(MemoryIssuer()).dpop_key is None


def test_an_issuer_without_our_algorithm_is_named() -> None:
    issuer = MemoryIssuer(metadata={"dpop_signing_alg_values_supported": ["RS256"]})
    with pytest.raises(AuthFault, match="ES256"):
        sign_in_with(issuer, AuthSettings(dpop=True))


def test_a_bound_token_without_a_key_is_refused() -> None:
    with pytest.raises(AuthFault, match="unknown type"):
        sign_in_with(MemoryIssuer(token={"token_type": "DPoP"}))


def test_a_refresh_of_a_bound_token_has_a_proof() -> None:
    from indusagi.interop.auth.token_endpoint import ProofKey  # noqa: PLC0415 — beside its use

    issuer = MemoryIssuer(token={"token_type": "DPoP", "refresh_token": "r"})
    stored = sign_in_with(issuer, AuthSettings(dpop=True))
    assert stored.tokens is not None
    key = ProofKey(stored.dpop_key)
    play(refresh(issuer, stored, stored.tokens, AuthSettings(), CLOCK, key))
    header, _ = proof_of(issuer.requests[-1])
    private = stored.dpop_key
    assert private is not None
    assert header["jwk"]["x"] == private["x"]
