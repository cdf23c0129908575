"""A protected resource as its clients use it: metadata, tokens, scopes, limits, and an issuer in trouble."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import anyio
import httpx2
import pytest
from joserfc.jwk import OKPKey
from tests.support.clock import ManualClock
from tests.support.host_tools import Bench
from tests.support.issuer import ec_key, prove, rsa_key, running_issuer, thumbprint
from tests.support.resources import Resource, challenges, protected
from tests.support.transports import LoopTime
from tests.support.waiting import until

from indusagi.core.time import SYSTEM_CLOCK
from indusagi.interop import HttpSettings, create_provider_host
from indusagi.interop.protocol_bridge.contract import StdioServerConfig
from indusagi.interop.protocol_bridge.host.auth.resource import IntrospectionClient, ProtectedResource, ResourceSettings
from indusagi.interop.protocol_bridge.host.http.settings import build_access_policy
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.interop.protocol_bridge.relay import create_relay_host
from indusagi.interop.protocol_bridge.rpc.mcp_headers import LEGACY_VERSIONS

CLIENT = ec_key("client")
ASKING = IntrospectionClient(client_id="indus host", client_secret="s:ecret")
METADATA_PATH = "/.well-known/oauth-authorization-server"
WELL_KNOWN = "/.well-known/oauth-protected-resource"


def now() -> int:
    return int(time.time())  # noqa: TID251 — tokens of the machine's own time


async def texts(responses: list[httpx2.Response]) -> list[str]:
    return [response.json()["result"]["content"][0]["text"] for response in responses]


# -- metadata and challenges -----------------------------------------------------------------


@pytest.mark.parametrize("path", [WELL_KNOWN, f"{WELL_KNOWN}/mcp"])
async def test_metadata_is_at_both_places_without_a_token(path: str) -> None:
    async with protected() as resource:
        response = await resource.client.get(resource.url.removesuffix("/mcp") + path)
        document = response.json()
        assert response.status_code == 200
        assert document["resource"] == resource.url
        assert document["authorization_servers"] == [resource.issuer.url]
        assert document["scopes_supported"] == ["indus:list", "indus:call", "indus:admin"]
        assert document["bearer_methods_supported"] == ["header"]
        assert (await resource.client.post(resource.url.removesuffix("/mcp") + path)).status_code == 405


async def test_a_request_without_a_token_learns_where_the_metadata_is_and_which_scopes_to_ask_for() -> None:
    async with protected() as resource:
        response = await resource.send()
        metadata = resource.url.replace("/mcp", f"{WELL_KNOWN}/mcp")
        assert response.status_code == 401
        assert challenges(response) == f'Bearer resource_metadata="{metadata}", scope="indus:list indus:call"'


async def test_behind_a_proxy_the_public_url_is_the_resource_and_an_accepted_host() -> None:
    public = "https://tools.example.org/team/mcp"
    async with protected(public_url=public) as resource:
        token = resource.issuer.mint(public)
        host = [("host", "tools.example.org")]
        assert (await resource.send("tools/list", token, host)).status_code == 200
        assert (await resource.send("tools/list", resource.mint(), host)).status_code == 401
        local = resource.url.removesuffix("/mcp")
        document = (await resource.client.get(f"{local}{WELL_KNOWN}/team/mcp")).json()
        assert document["resource"] == public
        refused = await resource.send("tools/list", None, host)
        assert f'resource_metadata="https://tools.example.org{WELL_KNOWN}/team/mcp"' in challenges(refused)
        bound = resource.issuer.mint(public, cnf={"jkt": thumbprint(CLIENT)})
        proof = ("dpop", prove(CLIENT, bound, "POST", "https://TOOLS.example.org:443/team/mcp?x"))
        known = ("authorization", f"DPoP {bound}")
        assert (await resource.send("tools/list", None, [*host, known, proof])).status_code == 200


def test_the_policy_of_a_public_url_has_its_host_with_and_without_the_port() -> None:
    auth = ResourceSettings(issuer="https://a.example", public_url="https://b.example/mcp")
    policy = build_access_policy(HttpSettings(), (), 1234, ProtectedResource(auth, "", "/mcp"))
    assert {"b.example", "b.example:443"} <= policy.hosts
    assert "https://b.example" in policy.origins


# -- tokens ----------------------------------------------------------------------------------


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER", "Bearer "])
async def test_the_scheme_is_read_in_any_case(scheme: str) -> None:
    async with protected() as resource:
        known = [("authorization", f"{scheme} {resource.mint()}")]
        assert (await resource.send("tools/list", None, known)).status_code == 200


@pytest.mark.parametrize(
    ("algorithm", "key"),
    [
        ("RS256", rsa_key("rsa")),
        ("PS512", rsa_key("rsa")),
        ("EdDSA", OKPKey.generate_key("Ed25519", {"kid": "ed"})),
        ("Ed25519", OKPKey.generate_key("Ed25519", {"kid": "ed"})),
    ],
    ids=["RS256", "PS512", "EdDSA", "Ed25519"],
)
async def test_a_token_of_each_kind_of_key_is_accepted_once_the_issuer_publishes_it(algorithm: str, key: Any) -> None:
    async with protected(refetch_s=0.0) as resource:
        token = resource.mint(header={"alg": algorithm}, key=key)
        assert (await resource.send(token=token)).status_code == 401
        resource.issuer.published.append(key.as_dict(private=False))
        assert (await resource.send(token=token)).status_code == 200


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"exp": -30}, 200),
        ({"nbf": 30, "iat": 30}, 200),
        ({"exp": -90}, 401),
        ({"header": {"kid": None}}, 200),
        ({"scope": None, "scp": ["indus:list", "x"]}, 200),
        ({"scope": None, "scp": "indus:list"}, 200),
        ({"scope": None}, 403),
        ({"header": {"typ": "APPLICATION/AT+JWT"}}, 200),
    ],
    ids=["within the leeway", "early within it", "past it", "no kid", "scp list", "scp text", "no scope", "long type"],
)
async def test_a_token_is_judged_by_its_claims(changes: dict[str, Any], status: int) -> None:
    # Times count from the moment of the test, not from that of its collection.
    present = {name: now() + value if name in {"exp", "nbf", "iat"} else value for name, value in changes.items()}
    async with protected() as resource:
        assert (await resource.send(token=resource.mint(**present))).status_code == status


async def test_a_plain_jwt_is_accepted_only_where_that_was_chosen() -> None:
    async with protected(accepts_any_type=True, audiences=["api://indus"]) as resource:
        for kind in ("JWT", None):
            token = resource.mint(header={"typ": kind}, audience="api://indus")
            assert (await resource.send(token=token)).status_code == 200
        assert (await resource.send(token=resource.mint(header={"typ": "dpop+jwt"}))).status_code == 401
        assert (await resource.send(token=resource.mint())).status_code == 401


async def test_a_verified_token_ends_with_its_time_although_it_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    async with protected() as resource:
        token = resource.mint(exp=now() + 60)
        assert (await resource.send(token=token)).status_code == 200
        later = (time.time() + 200) * 1000  # noqa: TID251 — tokens of the machine's own time
        monkeypatch.setattr(SYSTEM_CLOCK.__class__, "now_ms", ManualClock(int(later)).now_ms)
        refused = await resource.send(token=token)
        assert refused.status_code == 401
        assert "expired" in challenges(refused)


# -- the principal ---------------------------------------------------------------------------


async def test_a_tool_sees_the_principal_in_both_eras_and_each_identity_is_reported_once() -> None:
    async with protected() as resource:
        alice, bob = resource.mint(), resource.mint(sub="bob", client_id=None, azp="other")
        answers = [await resource.call("who", token) for token in (alice, bob, alice)]
        assert await texts(answers) == ["alice", "bob", "alice"]
        assert [(one.principal, one.client_id) for one in resource.identities] == [
            ("alice", "client-1"),
            ("bob", "other"),
        ]
        session = await open_session(resource, bob)
        answer = await session_call(resource, bob, session, "who")
        assert await texts([answer]) == ["bob"]


async def open_session(resource: Resource, token: str) -> str:
    params: dict[str, Any] = {"protocolVersion": "2025-11-25", "capabilities": {}}
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    known = {"accept": "application/json", "authorization": f"Bearer {token}"}
    opened = await resource.client.post(resource.url, json=body, headers=known)
    assert opened.status_code == 200
    return opened.headers["mcp-session-id"]


async def session_call(resource: Resource, token: str, session: str, tool: str) -> httpx2.Response:
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool}}
    known = {"accept": "application/json", "authorization": f"Bearer {token}", "mcp-session-id": session}
    return await resource.client.post(resource.url, json=body, headers=known)


async def test_a_session_goes_on_with_a_new_token_of_the_same_principal() -> None:
    async with protected() as resource:
        session = await open_session(resource, resource.mint())
        renewed = resource.mint(jti="token-2", exp=now() + 900)
        assert (await session_call(resource, renewed, session, "who")).status_code == 200
        other_client = resource.mint(client_id="client-2")
        assert (await session_call(resource, other_client, session, "who")).status_code == 404


# -- scopes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [
        ("indus:list", {"tools/list"}),
        ("indus:call", {"echo", "media", "count"}),
        ("indus:call:alpha", {"echo"}),
        ("indus:call:alpha indus:call:beta indus:list", {"echo", "media", "tools/list"}),
        ("indus:admin", {"/health"}),
    ],
)
async def test_a_scope_allows_exactly_this(scope: str, allowed: set[str]) -> None:
    async with protected() as resource:
        token = resource.mint(scope=scope)
        health = resource.url.replace("/mcp", "/health")
        known = {"authorization": f"Bearer {token}"}
        statuses = {
            "tools/list": (await resource.send(token=token)).status_code,
            "/health": (await resource.client.get(health, headers=known)).status_code,
            **{name: (await resource.call(name, token)).status_code for name in ("echo", "media", "count")},
        }
        assert {name for name, status in statuses.items() if status == 200} == allowed
        assert set(statuses.values()) <= {200, 403}
        assert await open_session(resource, token)


@pytest.mark.parametrize("version", [*LEGACY_VERSIONS, None])
async def test_a_scope_holds_in_every_revision(version: str | None) -> None:
    async with protected() as resource:
        token = resource.mint(scope="indus:call:beta indus:list")
        session = await open_session(resource, token)
        known = {"accept": "application/json", "authorization": f"Bearer {token}", "mcp-session-id": session}
        if version is not None:
            known["mcp-protocol-version"] = version
        for name, status in (("echo", 403), ("media", 200)):
            body = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": name}}
            assert (await resource.client.post(resource.url, json=body, headers=known)).status_code == status
        assert resource.bench.seen["echo"] == 0


async def test_a_relay_calls_with_the_scope_of_its_server() -> None:
    async with running_issuer() as issuer:
        host = create_relay_host(StdioServerConfig(id="one", command="/nonexistent"))
        async with host.serve_http(HttpSettings(auth=ResourceSettings(issuer=issuer.url))) as serving:
            async with httpx2.AsyncClient(timeout=60, verify=False) as client:
                await until(lambda: issuer.asked["/keys"] > 0)
                for method, scope, status in (
                    ("resources/read", "indus:call:two", 403),
                    ("resources/list", "indus:call:one", 403),
                    ("resources/read", "indus:list", 403),
                    ("resources/read", "indus:call:one", 404),
                    ("resources/list", "indus:list", 404),
                ):
                    headers = {
                        "authorization": f"Bearer {issuer.mint(serving.url, scope=scope)}",
                        "mcp-session-id": "unknown",
                        "accept": "application/json",
                    }
                    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"uri": "a:b"}}
                    response = await client.post(serving.url, json=body, headers=headers)
                    assert response.status_code == status, (method, scope)


# -- limits ----------------------------------------------------------------------------------


async def test_one_principal_at_its_limit_of_running_requests_does_not_hold_up_another() -> None:
    async with protected(principal_requests=1, place_s=0) as resource:
        alice, bob = resource.mint(), resource.mint(sub="bob")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(resource.call, "hang", alice)
            await resource.bench.began.wait()
            crowded = await resource.call("who", alice)
            assert crowded.status_code == 429
            assert crowded.headers["retry-after"] == "1"
            assert (await resource.call("who", bob)).status_code == 200
            resource.bench.let_go.set()
        assert (await resource.call("who", alice)).status_code == 200


async def test_a_principal_that_sends_too_often_is_told_when_to_come_again() -> None:
    async with protected(principal_rate=0.1) as resource:
        alice, bob = resource.mint(), resource.mint(sub="bob")
        statuses = [(await resource.call("who", alice)).status_code for _ in range(3)]
        assert statuses == [200, 429, 429]
        assert (await resource.call("who", bob)).status_code == 200
        assert 1 <= int((await resource.call("who", alice)).headers["retry-after"]) <= 10


# -- views ------------------------------------------------------------------------------------


async def test_a_view_has_its_own_resource_metadata_and_tokens() -> None:
    def is_eve(identity: ClientIdentity) -> bool:
        return identity.principal == "eve"

    async with protected(views={"phone": bool, "guest": is_eve}) as resource:
        phone, guest = f"{resource.url}/v/phone", f"{resource.url}/v/guest"
        refused = await resource.send(url=phone)
        found = re.search(r'resource_metadata="([^"]+)"', challenges(refused))
        assert found is not None
        assert (await resource.client.get(found[1])).json()["resource"] == phone
        whole, narrow = resource.mint(), resource.mint(audience=phone)
        tries = [(whole, phone, 200), (whole, guest, 403), (narrow, phone, 200), (narrow, guest, 403)]
        tries += [(narrow, resource.url, 200), (resource.mint(sub="eve"), guest, 200)]
        tries += [
            (whole, f"{resource.url}/v/none", 404),
            (resource.mint(audience=f"{resource.url}/v/none"), phone, 401),
        ]
        for token, url, status in tries:
            assert (await resource.send("tools/list", token, url=url)).status_code == status, (url, status)


# -- proofs of possession --------------------------------------------------------------------


async def prove_and_list(resource: Resource, token: str, **claims: Any) -> httpx2.Response:
    proof = prove(CLIENT, token, "POST", resource.url, **claims)
    return await resource.send("tools/list", None, [("authorization", f"dpop {token}"), ("dpop", proof)])


async def test_a_bound_token_is_accepted_with_a_proof_of_its_key_again_and_again() -> None:
    async with protected(requires_dpop=True) as resource:
        bound = resource.mint(cnf={"jkt": thumbprint(CLIENT)})
        for _ in range(3):
            assert (await prove_and_list(resource, bound)).status_code == 200
        refused = await resource.send()
        assert challenges(refused).startswith("DPoP ")
        assert 'algs="ES256 ' in challenges(refused)


async def test_a_nonce_is_given_with_the_refusal_and_then_accepted() -> None:
    async with protected(requires_nonce=True) as resource:
        bound = resource.mint(cnf={"jkt": thumbprint(CLIENT)})
        refused = await prove_and_list(resource, bound)
        assert refused.status_code == 401
        assert 'error="use_dpop_nonce"' in challenges(refused)
        assert (await prove_and_list(resource, bound, nonce=refused.headers["dpop-nonce"])).status_code == 200


# -- introspection ---------------------------------------------------------------------------


async def test_an_opaque_token_is_introspected_once_and_remembered_for_a_while() -> None:
    async with protected(introspection=ASKING) as resource:
        claims = resource.issuer.claims(resource.url, iss=None)
        resource.issuer.active["opaque-token"] = {"active": True, **claims}
        for _ in range(3):
            answer = await resource.call("who", "opaque-token")
            assert await texts([answer]) == ["alice"]
        assert resource.issuer.asked["/introspect"] == 1
        # RFC 6749 §2.3.1: "indus host" and "s:ecret", encoded, then joined by a colon.
        assert resource.issuer.credentials == ["Basic aW5kdXMraG9zdDpzJTNBZWNyZXQ="]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"active": False}, 401),
        ({"active": "true"}, 401),
        ({"aud": "https://other.example"}, 401),
        ({"aud": None}, 401),
        ({"iss": "https://other.example"}, 401),
        ({"exp": 1}, 401),
        ({"scope": "openid"}, 403),
    ],
    ids=str,
)
async def test_an_introspected_token_is_checked_like_any_other(changes: dict[str, Any], status: int) -> None:
    async with protected(introspection=ASKING) as resource:
        answer = {"active": True, **resource.issuer.claims(resource.url), **changes}
        resource.issuer.active["opaque-token"] = {key: value for key, value in answer.items() if value is not None}
        assert (await resource.call("echo", "opaque-token")).status_code == status
        assert resource.bench.seen["echo"] == 0


async def test_a_revoked_token_is_refused_after_the_time_that_an_answer_is_used() -> None:
    async with protected(introspection=ASKING, introspected_s=0.0) as resource:
        resource.issuer.active["opaque-token"] = {"active": True, **resource.issuer.claims(resource.url)}
        assert (await resource.call("who", "opaque-token")).status_code == 200
        resource.issuer.active.clear()
        assert (await resource.call("who", "opaque-token")).status_code == 401


# -- an issuer in trouble --------------------------------------------------------------------


async def test_keys_stay_in_use_while_the_issuer_does_not_answer() -> None:
    async with protected(refetch_s=0.0) as resource:
        resource.issuer.is_broken = True
        assert (await resource.send(token=resource.mint(key=ec_key("new")))).status_code == 401
        assert (await resource.send(token=resource.mint())).status_code == 200


async def test_a_token_is_neither_valid_nor_invalid_until_the_keys_were_fetched() -> None:
    async with running_issuer() as issuer:
        issuer.is_broken = True
        issuer.asked["/keys"] = 1  # so that the host is not waited for
        async with protected(issuer, refetch_s=0.0) as resource:
            early = await resource.send(token=resource.mint())
            assert early.status_code == 503
            assert early.headers["retry-after"] == "1"
            await until(lambda: bool(resource.notes))
            assert "500" in str(resource.notes[0])
            issuer.is_broken = False
            assert (await resource.send(token=resource.mint())).status_code == 200


async def test_finding_a1_an_outage_of_the_issuer_ends_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    async with protected() as resource:
        time, known = LoopTime(monkeypatch), resource.mint()
        assert (await resource.send(token=known)).status_code == 200
        resource.issuer.is_broken = True
        await time.passes(601)  # the keys are fetched again, in vain
        await until(lambda: bool(resource.notes))
        assert (await resource.send(token=known)).status_code == 200
        assert (await resource.send(token=resource.mint(sub="bob"))).status_code == 200, "the keys are in use on"
        before = resource.issuer.asked[METADATA_PATH]
        await time.passes(3_601)
        await until(lambda: resource.issuer.asked[METADATA_PATH] > before)
        assert (await resource.send(token=resource.mint(sub="carol"))).status_code == 503
        resource.issuer.is_broken = False
        await time.passes(6)
        assert (await resource.send(token=resource.mint(sub="carol"))).status_code == 200
        assert (await resource.send(token=known)).status_code == 200


async def test_finding_a1_metadata_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with protected() as resource, running_issuer() as moved:
        time = LoopTime(monkeypatch)
        new = ec_key("new")
        moved.published = [new.as_dict(private=False)]
        resource.issuer.published = []
        resource.issuer.metadata["jwks_uri"] = f"{resource.issuer.url}/moved"
        answer = resource.issuer.answer

        def answer_moved(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
            return (200, {"keys": moved.published}) if path == "/moved" else answer(method, path, headers, body)

        monkeypatch.setattr(resource.issuer, "answer", answer_moved)
        await time.passes(601)
        await until(lambda: resource.issuer.asked[METADATA_PATH] > 0)
        assert (await resource.send(token=resource.mint(key=new))).status_code == 200


async def test_finding_a1_a_moved_introspection_endpoint_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    client = IntrospectionClient(client_id="us", client_secret="s")
    async with protected(introspection=client) as resource:
        resource.issuer.active["opaque"] = {"active": True, **resource.issuer.claims(resource.url)}
        resource.issuer.metadata["introspection_endpoint"] = f"{resource.issuer.url}/asked"
        answer = resource.issuer.answer

        def answer_moved(method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
            if path == "/introspect":
                return 404, {}
            return answer(method, "/introspect" if path == "/asked" else path, headers, body)

        monkeypatch.setattr(resource.issuer, "answer", answer_moved)
        assert (await resource.send(token="opaque")).status_code == 503
        assert (await resource.send(token="opaque")).status_code == 200


@pytest.mark.parametrize("failing", ["on_note", "on_identity"])
async def test_finding_f1_a_callback_of_the_program_that_fails_ends_no_host(
    failing: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("the program's own defect")

    async with running_issuer() as issuer:
        issuer.is_broken = failing == "on_note"
        callbacks: dict[str, Any] = {failing: fail}
        auth = ResourceSettings(issuer=issuer.url, refetch_s=0.0, **callbacks)
        async with create_provider_host(Bench().box).serve_http(HttpSettings(auth=auth)) as serving:
            await until(lambda: issuer.asked.total() > 0)
            issuer.is_broken = False
            async with httpx2.AsyncClient(timeout=60) as client:
                resource = Resource(serving.url, issuer, Bench(), client)
                await resource.send(token=resource.mint())
                assert (await resource.send(token=resource.mint())).status_code == 200
    assert "the program's own defect" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"issuer": "https://other.example"}, "names another issuer"),
        ({"jwks_uri": None}, "has no jwks_uri"),
        ({"jwks_uri": "file:///keys"}, "its jwks_uri is not an address"),
        ({"jwks_uri": "http://127.0.0.2:1/keys"}, "is not encrypted"),
        ({"jwks_uri": "https://169.254.169.254/keys"}, "169.254.169.254"),
        ({"jwks_uri": "https://localhost/keys"}, "localhost"),
    ],
    ids=["mix-up", "no keys", "no address", "another machine", "cloud metadata", "this machine"],
)
async def test_metadata_that_leads_elsewhere_is_not_followed(change: dict[str, Any], message: str) -> None:
    async with running_issuer() as issuer:
        issuer.metadata |= change
        issuer.asked["/keys"] = 1
        async with protected(issuer, refetch_s=0.0) as resource:
            assert (await resource.send(token=resource.mint())).status_code == 503
            await until(lambda: bool(resource.notes))
            assert message in str(resource.notes[0])
            assert resource.bench.asked == 0


async def test_the_body_of_a_request_is_read_after_its_token_was_checked() -> None:
    """A request with an unknown key waits for the issuer; bytes of its body arrive before and after."""
    async with protected(refetch_s=0.0) as resource:
        new = ec_key("new")
        resource.issuer.published.append(new.as_dict(private=False))
        body = json.dumps(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "padding": "x" * 200_000},
            }
        ).encode()
        host = resource.url.removeprefix("http://").removesuffix("/mcp")
        head = (
            f"POST /mcp HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {resource.mint(key=new)}\r\n"
            f"content-type: application/json\r\naccept: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        name, port = host.split(":")
        reader, writer = await asyncio.open_connection(name, int(port))
        try:
            with anyio.fail_after(60):
                writer.write(head.encode() + body[:10])
                await until(lambda: resource.issuer.asked["/keys"] > 0)
                writer.write(body[10:])
                assert b"200 OK" in await reader.readline()
        finally:
            writer.transport.abort()
