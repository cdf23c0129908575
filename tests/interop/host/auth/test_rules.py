"""Access by tokens without an issuer: how one is presented, what a refusal says, and which scope a message needs."""

from __future__ import annotations

import json
from typing import Any

import pytest

from indusagi.interop.protocol_bridge.host.auth.proofs import ProofLimitError
from indusagi.interop.protocol_bridge.host.auth.resource import (
    PresentedToken,
    ProtectedResource,
    ResourceSettings,
    TokenRefusal,
    read_token,
)
from indusagi.interop.protocol_bridge.host.http.quota import Quota
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal
from indusagi.interop.protocol_bridge.host.http.resource_access import ResourceAccess
from indusagi.interop.protocol_bridge.host.http.settings import HttpSettings, build_access_policy
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.runtime.calls import SubjectToken, current_subject

pytestmark = pytest.mark.anyio
URL = "https://host.example/mcp"
SETTINGS = ResourceSettings(issuer="https://issuer.example")


def resource(url: str = URL, path: str = "/mcp", **settings: Any) -> ProtectedResource:
    """A resource at a URL."""
    return ProtectedResource(ResourceSettings(issuer="https://issuer.example", **settings), url, path)


# -- the token --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([("authorization", "Bearer abc")], PresentedToken("abc", is_dpop=False)),
        ([("authorization", "bearer   a-._~+/9=="), ("dpop", "p")], PresentedToken("a-._~+/9==", is_dpop=False)),
        (
            [("dpop", "p"), ("authorization", "DPoP abc"), ("dpop", "q"), ("x", "y")],
            PresentedToken("abc", is_dpop=True, proofs=("p", "q")),
        ),
        ([("authorization", "Bearer " + "a" * 16_377)], PresentedToken("a" * 16_377, is_dpop=False)),
    ],
)
def test_a_token_is_read_from_its_header(lines: Any, expected: PresentedToken) -> None:
    assert read_token(lines, "") == expected
    assert read_token(lines, "x=access_token&y=1") == expected


@pytest.mark.parametrize(
    ("lines", "query", "error"),
    [
        ([], "", ""),
        ([("x", "Bearer abc")], "", ""),
        ([("authorization", "Basic abc")], "", ""),
        ([("authorization", "Bearer")], "", ""),
        ([("authorization", "Bearer a b")], "", ""),
        ([("authorization", "Bearer é")], "", ""),
        ([("authorization", "Bearer a"), ("authorization", "Bearer a")], "", "invalid_request"),
        ([("authorization", "Bearer abc")], "a=1&access_token=", "invalid_request"),
        ([("authorization", "Bearer " + "a" * 16_378)], "", "invalid_token"),
    ],
)
def test_a_token_that_is_presented_otherwise_is_refused(lines: Any, query: str, error: str) -> None:
    with pytest.raises(TokenRefusal) as caught:
        read_token(lines, query)
    assert caught.value.error == error


# -- the resource -----------------------------------------------------------------------------


def test_the_metadata_of_a_resource_are_complete() -> None:
    found = resource()
    document = json.loads(found.metadata["/.well-known/oauth-protected-resource/mcp"])
    algorithms = document.pop("dpop_signing_alg_values_supported")
    assert "ES256" in algorithms
    assert document == {
        "resource": URL,
        "authorization_servers": ["https://issuer.example"],
        "scopes_supported": ["indus:list", "indus:call", "indus:admin"],
        "bearer_methods_supported": ["header"],
        "resource_name": "indus",
        "dpop_bound_access_tokens_required": False,
    }
    assert [*found.audiences] == [URL]


def test_each_view_is_a_resource_with_metadata_of_its_own() -> None:
    found = ProtectedResource(SETTINGS, URL, "/mcp", ["for phones"])
    view = f"{URL}/v/for%20phones"
    known = "/.well-known/oauth-protected-resource"
    assert json.loads(found.metadata[f"{known}/mcp/v/for phones"])["resource"] == view
    assert {json.loads(found.metadata[path])["resource"] for path in (known, f"{known}/mcp")} == {URL}
    assert found.audiences == {URL: "", view: "for phones"}
    assert found.build_url("/mcp/v/for phones") == view
    _, ((_, challenge),) = found.build_challenges(TokenRefusal("invalid_token", "x"), "for phones")
    assert f'resource_metadata="https://host.example{known}/mcp/v/for%20phones"' in challenge.decode()


@pytest.mark.parametrize(
    ("public_url", "hosts", "origin"),
    [
        (None, {"127.0.0.1:8000"}, "http://127.0.0.1:8000"),
        ("https://Host.example/a/", {"host.example", "host.example:443"}, "https://host.example"),
        ("http://host.example", {"host.example", "host.example:80"}, "http://host.example"),
        ("https://host.example:8443/a", {"host.example:8443"}, "https://host.example:8443"),
    ],
)
def test_a_resource_has_the_hosts_of_its_public_url(public_url: str | None, hosts: set[str], origin: str) -> None:
    found = resource("http://127.0.0.1:8000/mcp", public_url=public_url, audiences=["x"])
    assert (found.hosts, found.origin, {*found.audiences}) == (hosts, origin, {"x"})
    known = "/.well-known/oauth-protected-resource"
    path = "/mcp" if public_url is None else "" if public_url == "http://host.example" else "/a"
    assert found.metadata.keys() == {known, f"{known}/mcp", f"{known}{path}"}
    assert (found.build_url("/mcp"), found.build_url("/sse")) == (found.url, f"{origin}/sse")


@pytest.mark.parametrize(
    ("error", "status", "scheme"),
    [
        ("", 401, "Bearer"),
        ("invalid_token", 401, "Bearer"),
        ("invalid_request", 400, "Bearer"),
        ("insufficient_scope", 403, "Bearer"),
        ("invalid_dpop_proof", 401, "DPoP"),
        ("use_dpop_nonce", 401, "DPoP"),
    ],
)
def test_a_refusal_is_a_status_and_a_challenge(error: Any, status: int, scheme: str) -> None:
    for requires_dpop in (False, True):
        refusal = TokenRefusal(error, 'no "é"', scope="indus:call:a" if error == "insufficient_scope" else "")
        found, ((name, value),) = resource(requires_dpop=requires_dpop).build_challenges(refusal)
        assert (found, name) == (status, b"www-authenticate")
        text = value.decode()
        assert text.startswith("DPoP " if requires_dpop else f"{scheme} ")
        assert ('algs="' in text) is text.startswith("DPoP")
        scope = "indus:call:a" if error == "insufficient_scope" else "indus:list indus:call"
        assert f'scope="{scope}"' in text
        assert 'resource_metadata="https://host.example/.well-known/oauth-protected-resource/mcp"' in text
        assert (f'error="{error}", error_description="no ???"' in text) is bool(error)
    assert resource().build_challenges(TokenRefusal("unavailable", "x")) == (503, [])


# -- scopes -----------------------------------------------------------------------------------


class Request:
    """A request of a client with scopes."""

    def __init__(self, *scopes: str, path: str = "/mcp", method: str = "POST") -> None:
        self.identity = ClientIdentity(owner=b"o", principal="p", scopes=frozenset(scopes))
        self.subject, self.path, self.method = SubjectToken("abc", "https://issuer.example"), path, method
        self.responded: list[Any] = []

    def respond(self, *response: Any) -> None:
        self.responded.append(response)


def authorize(message: Any, *scopes: str, target: tuple[str, str | None] | None = None) -> str | None:
    """Return the scope that a message lacks; None if it may run."""
    access: Any = build_access_policy(HttpSettings(), (), 80, resource())
    asked: list[Any] = []

    def find_target(method: str, params: Any) -> tuple[str, str | None]:
        asked.append((method, params))
        return target or (method, None)

    try:
        access.authorize(Request(*scopes), message, find_target)
    except HttpRefusal as exc:
        if exc.status != 403:
            raise
        (challenge,) = (value for name, value in exc.headers if name == b"www-authenticate")
        return challenge.decode().partition('scope="')[2].partition('"')[0]
    assert current_subject.get() == SubjectToken("abc", "https://issuer.example")
    assert all(isinstance(params, dict) for _, params in asked)
    return None


@pytest.mark.parametrize(
    "method", ["initialize", "ping", "server/discover", "logging/setLevel", "notifications/x", None, 7, []]
)
def test_some_messages_need_no_scope(method: Any) -> None:
    assert authorize({"method": method}) is None


@pytest.mark.parametrize("method", ["tools/list", "resources/templates/list", "subscriptions/listen"])
def test_lists_need_the_scope_of_lists(method: str) -> None:
    assert authorize({"method": method}) == "indus:list"
    assert authorize({"method": method}, "indus:call", "indus:admin") == "indus:list"
    assert authorize({"method": method, "params": 7}, "indus:list") is None


@pytest.mark.parametrize("method", ["tools/call", "resources/read", "prompts/get"])
def test_other_requests_need_the_scope_of_calls(method: str) -> None:
    assert authorize({"method": method}, "indus:list") == "indus:call"
    assert authorize({"method": method}, "indus:call") is None
    narrow = (method, "a")
    assert authorize({"method": method}, "indus:list", target=narrow) == "indus:call:a"
    assert authorize({"method": method}, "indus:call:b", target=narrow) == "indus:call:a"
    assert authorize({"method": method}, "indus:call:a", target=narrow) is None
    assert authorize({"method": method}, "indus:call", target=narrow) is None


def test_a_tool_that_lists_is_a_list() -> None:
    assert authorize({"method": "tools/call"}, "indus:call", target=("tools/list", None)) == "indus:list"
    assert authorize({"method": "tools/call"}, "indus:list", target=("tools/list", None)) is None
    assert authorize({"method": "resources/read"}, "indus:call", target=("tools/list", None)) is None


@pytest.mark.parametrize(
    ("scopes", "scope", "server", "missing"),
    [
        (None, "indus:call", "a", None),
        ({"indus:call"}, "indus:call", "a", None),
        ({"indus:call:a"}, "indus:call", "a", None),
        ({"indus:call:a"}, "indus:call", None, "indus:call"),
        ({"indus:list:a"}, "indus:list", "a", "indus:list"),
        (set[str](), "indus:admin", None, "indus:admin"),
    ],
)
def test_an_identity_names_the_scope_that_it_lacks(scopes: Any, scope: str, server: Any, missing: str | None) -> None:
    identity = ClientIdentity(scopes=None if scopes is None else frozenset(scopes))
    assert identity.find_missing_scope(scope, server) == missing


@pytest.mark.parametrize(
    ("scopes", "expected"),
    [
        (None, True),
        ({"indus:list"}, True),
        ({"indus:call"}, True),
        ({"indus:admin"}, True),
        ({"indus:call:a"}, True),
        ({"indus:callx", "openid"}, False),
        (set[str](), False),
    ],
)
def test_a_token_for_something_else_has_no_scope_of_ours(scopes: Any, *, expected: bool) -> None:
    assert ClientIdentity(scopes=None if scopes is None else frozenset(scopes)).has_any_scope is expected


async def test_health_and_metrics_need_the_scope_of_administrators() -> None:
    access: Any = build_access_policy(HttpSettings(), (), 80, resource())
    for path in ("/health", "/metrics"):
        with pytest.raises(HttpRefusal) as caught:
            access.admit(Request(path=path), ClientIdentity(scopes=frozenset({"indus:call"}), credential="principal"))
        assert caught.value.status == 403
        assert "it needs the scope indus:admin" in str(caught.value)
        with pytest.raises(HttpRefusal, match="needs the token of the user"):
            access.admit(Request(path=path), ClientIdentity(credential="browser"))
        admin = ClientIdentity(scopes=frozenset({"indus:admin"}), credential="principal")
        request = Request(path=path)
        access.admit(request, admin)
        assert request.identity is admin
    access.admit(Request(), ClientIdentity(scopes=frozenset()))


async def test_a_principal_has_so_many_requests() -> None:
    quota = Quota(HttpSettings(principal_rate=0.1), 16)
    one, other, quick = (
        ClientIdentity(principal="1"),
        ClientIdentity(principal="2"),
        ClientIdentity(principal="3", rate=1.0),
    )
    quota.count_request(one)
    with pytest.raises(HttpRefusal) as caught:
        quota.count_request(one)
    assert caught.value.status == 429
    quota.count_request(other)
    for _ in range(10):  # a burst at its own rate
        quota.count_request(quick)
    with pytest.raises(HttpRefusal):
        quota.count_request(quick)


@pytest.mark.parametrize(
    ("path", "method", "status"),
    [
        ("/.well-known/oauth-protected-resource", "GET", 200),
        ("/.well-known/oauth-protected-resource/mcp", "GET", 200),
        ("/.well-known/oauth-protected-resource/mcp", "POST", 405),
    ],
)
def test_the_metadata_are_public(path: str, method: str, status: int) -> None:
    access: Any = ResourceAccess(SETTINGS, resource())
    request = Request(path=path, method=method)
    if status == 200:
        assert access.describe(request)
        assert request.responded == [(200, access.resource.metadata[path], [(b"cache-control", b"max-age=300")])]
    else:
        with pytest.raises(HttpRefusal) as caught:
            access.describe(request)
        assert (caught.value.status, caught.value.headers) == (405, [(b"allow", b"GET")])


def test_a_refused_proof_is_told_with_a_nonce_where_one_is_needed() -> None:
    plain: Any = ResourceAccess(SETTINGS, resource())
    wants: Any = ResourceAccess(ResourceSettings(issuer="https://issuer.example", requires_nonce=True), resource())
    cases: list[Any] = [
        (plain, "use_dpop_nonce", False),
        (wants, "use_dpop_nonce", True),
        (wants, "invalid_token", False),
    ]
    for access, error, has_nonce in cases:
        refusal = access._refuse(Request(), TokenRefusal(error, "why"))
        assert any(name == b"dpop-nonce" for name, _ in refusal.headers) is has_nonce
        assert str(refusal) == "the access token is refused: why"
    assert str(plain._refuse(Request(), TokenRefusal("", "why"))) == "why"
    assert plain._refuse(Request(), ProofLimitError()).status == 429
