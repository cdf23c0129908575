"""Access tokens in memory: each claim, the known tokens, and the keys of an issuer that answers or not."""

from __future__ import annotations

import math
from typing import Any

import pytest
from tests.support.clock import ManualClock

import indusagi.net.client  # noqa: F401 # pyright: ignore[reportUnusedImport] — loaded in a thread by hosts
from indusagi.interop.protocol_bridge.host.auth import verifier as module
from indusagi.interop.protocol_bridge.host.auth.resource import (
    IntrospectionClient,
    IssuerError,
    PresentedToken,
    ProtectedResource,
    ResourceSettings,
    TokenRefusal,
)
from indusagi.interop.protocol_bridge.host.auth.verifier import IssuerKeys, TokenVerifier, check_claims, check_type
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity

pytestmark = pytest.mark.anyio
ISSUER = "https://issuer.example"
URL = "https://host.example/mcp"
SETTINGS = ResourceSettings(issuer=ISSUER)
NOW = 1_000_000.0
CLAIMS: dict[str, Any] = {
    "iss": ISSUER,
    "aud": URL,
    "exp": NOW + 100,
    "sub": "p",
    "client_id": "c",
    "scope": "indus:call x",
}


def check(is_introspected: bool = False, settings: ResourceSettings = SETTINGS, **changes: Any) -> Any:
    """Check claims; a change to ... leaves one out."""
    claims = {key: value for key, value in {**CLAIMS, **changes}.items() if value is not ...}
    return check_claims(claims, settings, {URL: "", f"{URL}/v/phone": "phone"}, NOW, is_introspected=is_introspected)


def test_a_token_for_a_view_opens_nothing_else() -> None:
    whole, view = check().identity, check(aud=f"{URL}/v/phone").identity
    assert (whole.view, view.view) == ("", "phone")
    assert view.owner == whole.owner + b"/v/phone"  # as with a token for everything at the path of the view
    assert check(aud=[f"{URL}/v/phone", URL]).identity == whole


def refuse(**changes: Any) -> str:
    """Return why claims are refused."""
    with pytest.raises(TokenRefusal) as caught:
        check(**changes)
    assert caught.value.error == "invalid_token"
    return str(caught.value)


def test_a_token_says_who_presents_it() -> None:
    token = check()
    identity = token.identity
    assert (identity.principal, identity.client_id, identity.scopes) == ("p", "c", {"indus:call", "x"})
    assert (token.expires_at, token.thumbprint, len(identity.owner)) == (NOW + 100, None, 32)
    assert check(scope="y").identity.owner == identity.owner
    changes: list[dict[str, Any]] = [{"sub": "q"}, {"client_id": "d"}]
    for change in changes:
        assert check(**change).identity.owner != identity.owner
    other = ResourceSettings(issuer="https://other.example")
    assert check(settings=other, iss="https://other.example").identity.owner != identity.owner
    assert check(client_id=..., azp="d").identity.client_id == "d"
    assert check(client_id=...).identity.client_id == ""


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"iss": "https://issuer.example/"}, "it was issued by another issuer (iss)"),
        ({"iss": ...}, "it was issued by another issuer (iss)"),
        ({"aud": ...}, "it was issued for another server (aud)"),
        ({"aud": "https://other.example"}, "it was issued for another server (aud)"),
        ({"aud": [1, "x"]}, "it was issued for another server (aud)"),
        ({"exp": ...}, "it has no end (exp)"),
        ({"exp": NOW - 60}, "it has expired (exp)"),
        *[({"exp": value}, "its exp is not a time") for value in (None, True, "1", 1e12, math.nan)],
        ({"nbf": NOW + 61}, "it is not valid yet (nbf)"),
        ({"iat": NOW + 61}, "it is not valid yet (iat)"),
        ({"iat": "x"}, "its iat is not a time"),
        ({"sub": ...}, "it has no subject (sub)"),
        ({"sub": ""}, "it has no subject (sub)"),
        *[({"sub": value}, "its sub is not a name") for value in (1, "é", "a\n", "x" * 3_000)],
        ({"sub": " p"}, "its sub begins or ends with a space"),
        ({"client_id": 1}, "its client_id is not a name"),
        *[({"scope": value}, "its scope is not a list of scopes") for value in (1, {"a": 1}, ["x"] * 10_000)],
        *[
            ({"cnf": value}, "it is bound in a way that this host cannot verify (cnf)")
            for value in (None, {"a": 1}, {"jkt": 1}, {"jkt": "t", "x": 1}, {"x5t": "t"}, "t")
        ],
    ],
)
def test_a_claim_that_is_wrong_is_named(changes: dict[str, Any], why: str) -> None:
    assert refuse(**changes) == why


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": ["x", URL]},
        {"exp": NOW - 59},
        {"nbf": NOW + 60, "iat": NOW + 60},
        {"scope": ..., "scp": "indus:call x"},
        {"scope": ..., "scp": ["indus:call", "x", 7, ""]},
        {"scope": "indus:call  x "},
    ],
)
def test_claims_are_read_as_issuers_write_them(changes: dict[str, Any]) -> None:
    assert check(**changes).identity.scopes == {"indus:call", "x"}


def test_an_introspection_may_leave_out_what_is_known() -> None:
    assert check(is_introspected=True, iss=...).identity.principal == "p"
    assert check(is_introspected=True, sub=...).identity.principal == "c"
    assert check(cnf={"jkt": "t"}).thumbprint == "t"
    assert check(scope=...).identity.scopes == frozenset()
    with pytest.raises(TokenRefusal):
        check(is_introspected=True, iss="https://other.example")


@pytest.mark.parametrize(
    ("kind", "strict", "lax"),
    [
        ("at+jwt", True, True),
        ("AT+JWT", True, True),
        ("application/at+jwt", True, True),
        ("JWT", False, True),
        ("", False, True),
        (..., False, True),
        ("dpop+jwt", False, False),
        (7, False, False),
    ],
)
def test_the_type_of_a_token_is_checked(kind: Any, *, strict: bool, lax: bool) -> None:
    signed: Any = type("Signed", (), {"header": {} if kind is ... else {"typ": kind}})()
    for accepts_any_type, is_fine in ((False, strict), (True, lax)):
        settings = ResourceSettings(issuer=ISSUER, accepts_any_type=accepts_any_type)
        if is_fine:
            check_type(signed, settings)
        else:
            with pytest.raises(TokenRefusal, match=r"its type is not at\+jwt"):
                check_type(signed, settings)


# -- the verifier -----------------------------------------------------------------------------


class Issuer:
    """An issuer that answers as a test says."""

    def __init__(self) -> None:
        self.answer: Any = {"active": True, **CLAIMS}
        self.asked = 0

    async def introspect(self, token: str, client: Any) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def fetch_keys(self) -> Any:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def fetch_metadata(self) -> None:
        if isinstance(self.answer, Exception):
            raise self.answer


def verifier(**settings: Any) -> tuple[Any, Issuer, ManualClock, list[ClientIdentity]]:
    """A verifier that introspects."""
    reported: list[ClientIdentity] = []
    client = IntrospectionClient(client_id="me", client_secret="s")
    given = ResourceSettings(issuer=ISSUER, introspection=client, on_identity=reported.append, **settings)
    clock, issuer = ManualClock(int(NOW * 1000)), Issuer()
    found: Any = TokenVerifier(given, ProtectedResource(given, URL, "/mcp"), clock)
    found._client = issuer
    return found, issuer, clock, reported


TOKEN = PresentedToken("abc", is_dpop=False)


async def test_an_introspected_token_is_known_for_a_while() -> None:
    found, issuer, clock, reported = verifier(introspected_s=30.0)
    assert found.check_known(TOKEN, "POST", "/mcp") is None
    identity = await found.check(TOKEN, "POST", "/mcp")
    assert found.check_known(TOKEN, "POST", "/mcp") == identity
    assert (issuer.asked, reported) == (1, [identity])
    clock.advance(29_999)
    assert found.check_known(TOKEN, "POST", "/mcp") == identity
    clock.advance(1)
    assert found.check_known(TOKEN, "POST", "/mcp") is None
    assert await found.check(TOKEN, "POST", "/mcp") == identity
    assert (issuer.asked, reported) == (2, [identity])
    assert found._introspecting == 0


async def test_a_known_token_expires() -> None:
    found, _, clock, _ = verifier(introspected_s=10_000.0)
    await found.check(TOKEN, "POST", "/mcp")
    clock.advance(159_999)
    assert found.check_known(TOKEN, "POST", "/mcp") is not None
    clock.advance(1)
    with pytest.raises(TokenRefusal, match="it has expired"):
        found.check_known(TOKEN, "POST", "/mcp")


@pytest.mark.parametrize(
    ("answer", "error", "why"),
    [
        ({"active": False, **CLAIMS}, "invalid_token", "it is not active"),
        ({**CLAIMS}, "invalid_token", "it is not active"),
        ({"active": 1, **CLAIMS}, "invalid_token", "it is not active"),
        (IssuerError("x"), "unavailable", "the issuer does not answer at the moment"),
        ({"active": True, **CLAIMS, "scope": "openid"}, "insufficient_scope", "it has no scope of this server"),
    ],
)
async def test_a_token_that_the_issuer_does_not_confirm_is_refused(answer: Any, error: str, why: str) -> None:
    found, issuer, _, reported = verifier()
    issuer.answer = answer
    with pytest.raises(TokenRefusal, match=why) as caught:
        await found.check(TOKEN, "POST", "/mcp")
    assert (caught.value.error, reported, found._introspecting) == (error, [], 0)


async def test_so_many_tokens_wait_and_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KNOWN_TOKENS", 2)
    monkeypatch.setattr(module, "_INTROSPECTIONS", 1)
    found, issuer, _, reported = verifier()
    one, two, three = (PresentedToken(text, is_dpop=False) for text in "123")
    await found.check(one, "POST", "/mcp")
    await found.check(two, "POST", "/mcp")
    assert found.check_known(one, "POST", "/mcp") is not None
    await found.check(three, "POST", "/mcp")
    assert found.check_known(two, "POST", "/mcp") is None
    assert found.check_known(one, "POST", "/mcp") is not None
    assert (issuer.asked, len(reported)) == (3, 1)
    found._introspecting = 1
    with pytest.raises(TokenRefusal, match="too many tokens wait") as caught:
        await found.check(two, "POST", "/mcp")
    assert caught.value.error == "unavailable"


async def test_a_token_is_used_with_the_key_that_it_is_bound_to() -> None:
    found, issuer, _, _ = verifier()
    dpop = PresentedToken("abc", is_dpop=True)
    with pytest.raises(TokenRefusal, match="it is not bound to a key"):
        await found.check(dpop, "POST", "/mcp")
    strict, _, _, _ = verifier(requires_dpop=True)
    with pytest.raises(TokenRefusal, match="it is not bound to a key"):
        await strict.check(TOKEN, "POST", "/mcp")
    found, issuer, _, _ = verifier()
    issuer.answer = {"active": True, **CLAIMS, "cnf": {"jkt": "t"}}
    with pytest.raises(TokenRefusal, match="it is bound to a key: use the scheme DPoP"):
        await found.check(TOKEN, "POST", "/mcp")
    checked: list[Any] = []

    class Proofs:
        def check(self, *given: Any) -> None:
            checked.append(given)

    found.proofs = Proofs()
    await found.check(PresentedToken("abc", is_dpop=True, proofs=("p",)), "GET", "/sse")
    assert checked == [(("p",), "abc", "t", "GET", "https://host.example/sse", NOW)]


async def test_identities_are_reported_once_until_they_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_IDENTITIES", 1)
    found, issuer, _, reported = verifier()
    for text, subject in (("1", "a"), ("2", "b"), ("3", "b"), ("4", "a")):
        issuer.answer = {"active": True, **CLAIMS, "sub": subject}
        await found.check(PresentedToken(text, is_dpop=False), "POST", "/mcp")
        found.check_known(PresentedToken(text, is_dpop=False), "POST", "/mcp")
    assert [identity.principal for identity in reported] == ["a", "b", "a"]


# -- the keys ---------------------------------------------------------------------------------


class Keys:
    """Keys of an issuer."""

    def __init__(self, *rows: str) -> None:
        self.rows = rows


class Loop:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def get_running_loop(self) -> Loop:
        return self

    def time(self) -> float:
        return self.now


async def test_keys_are_fetched_as_often_as_it_helps(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop()
    monkeypatch.setattr(module, "asyncio", loop)
    issuer = Issuer()
    client: Any = issuer
    keys: Any = IssuerKeys(ResourceSettings(issuer=ISSUER, refetch_s=30.0, stale_s=100.0), client)
    issuer.answer = IssuerError("down")
    await keys.fetch()
    assert (keys.keys, keys.failure, issuer.asked) == (None, "down", 1)
    issuer.answer = first = Keys("a")
    await keys.fetch()
    assert issuer.asked == 1, "it was tried just now"
    loop.now += module._RETRY_S
    await keys.fetch()
    assert (keys.keys, keys.failure, issuer.asked) == (first, "", 2)
    issuer.answer = Keys("a")
    await keys.fetch(is_forced=True)
    assert (keys.keys is first, issuer.asked) == (True, 3)
    loop.now += 29.0
    await keys.fetch()
    assert issuer.asked == 3
    loop.now += 1.0
    issuer.answer = second = Keys("b")
    await keys.fetch()
    assert (keys.keys is second, issuer.asked) == (True, 4)
    issuer.answer = IssuerError("gone")
    loop.now += 100.0
    await keys.fetch()
    assert (keys.keys is second, keys.failure) == (True, "gone")
    loop.now += 30.0
    await keys.fetch()
    assert keys.keys is None
