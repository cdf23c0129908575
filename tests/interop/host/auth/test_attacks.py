"""Attacks on a protected resource, through its real HTTP application: each is refused, and no tool runs.

Sources: RFC 6750 §5, RFC 8725 (JWT best practices), RFC 9068 §5, RFC 9449 §11, RFC 9700 (OAuth security).
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from tests.support.issuer import ec_key, encode, prove, rsa_key, sign, thumbprint
from tests.support.resources import Resource, challenges, protected

if TYPE_CHECKING:
    import httpx2

    from indusagi.core.json import JsonObject

Run: TypeAlias = "Callable[[Resource], Awaitable[httpx2.Response]]"
INVALID = 'error="invalid_token"'
BAD_PROOF = 'error="invalid_dpop_proof"'
EVIL = ec_key("evil")
CLIENT = ec_key("client")
HEAD: dict[str, Any] = {"alg": "ES256", "typ": "at+jwt", "kid": "one"}


@dataclass(frozen=True)
class Attack:
    """What is sent, and how it is refused."""

    sentence: str
    run: Run
    status: int = 401
    error: str = INVALID
    settings: tuple[tuple[str, Any], ...] = ()


def now() -> int:
    return int(time.time())  # noqa: TID251 — tokens of the machine's own time


def bearer(make: Callable[[Resource], str]) -> Run:
    """Call a tool with the token that is made."""

    async def run(resource: Resource) -> httpx2.Response:
        return await resource.call("echo", make(resource), text="stolen")

    return run


def changed(**changes: Any) -> Run:
    """Call with a well-signed token whose claims are changed."""
    return bearer(lambda resource: resource.mint(**changes))


def headed(**header: Any) -> Run:
    """Call with a well-signed token whose header is changed."""
    return bearer(lambda resource: resource.mint(header=header))


def authorized(make: Callable[[str], list[tuple[str, str]]]) -> Run:
    """Call with header lines that are made from a good token."""

    async def run(resource: Resource) -> httpx2.Response:
        return await resource.send("tools/call", None, make(resource.mint()), name="echo", arguments={})

    return run


def unsigned(resource: Resource, algorithm: str) -> str:
    head = encode(json.dumps({**HEAD, "alg": algorithm}).encode())
    return f"{head}.{encode(json.dumps(resource.issuer.claims(resource.url)).encode())}."


def hmac_with(resource: Resource, secret: bytes) -> str:
    claims = resource.issuer.claims(resource.url)
    data = f"{encode(json.dumps({**HEAD, 'alg': 'HS256'}).encode())}.{encode(json.dumps(claims).encode())}"
    return f"{data}.{encode(hmac.digest(secret, data.encode(), 'sha256'))}"


def doubled(resource: Resource, part: str) -> str:
    """Make a token in which one name occurs twice, with a good signature."""
    head, claims = json.dumps(HEAD), json.dumps(resource.issuer.claims(resource.url))
    if part == "header":
        head = '{"alg": "none", ' + head[1:]
    else:
        claims = '{"sub": "bob", ' + claims[1:]
    return sign(head.encode(), claims.encode(), resource.issuer.key)


def spliced(resource: Resource) -> str:
    """Give a good token the claims of another one."""
    first, second = resource.mint(), resource.mint(sub="bob")
    head, _, signature = first.split(".")
    return f"{head}.{second.split('.')[1]}.{signature}"


async def removed_key(resource: Resource) -> httpx2.Response:
    """Use a token after the issuer has withdrawn its key."""
    token = resource.mint()
    assert (await resource.call("fail", token)).status_code == 200
    resource.issuer.published = [ec_key("two").as_dict(private=False)]
    # A token of the new key makes the host fetch the keys.
    assert (await resource.call("fail", resource.mint(key=ec_key("two")))).status_code == 200
    return await resource.call("echo", token)


async def other_issuer(resource: Resource) -> httpx2.Response:
    """Mix-up: a token of another issuer for this host, whose key has the same name."""
    claims = {**resource.issuer.claims(resource.url), "iss": "https://other.example"}
    return await resource.call("echo", sign(HEAD, claims, EVIL))


async def in_query(resource: Resource) -> httpx2.Response:
    url = f"{resource.url}?access_token={resource.mint()}"
    return await resource.send("tools/call", None, url=url, name="echo", arguments={})


async def in_query_and_header(resource: Resource) -> httpx2.Response:
    url = f"{resource.url}?x=1&access_token={resource.mint()}"
    return await resource.send("tools/call", resource.mint(), url=url, name="echo", arguments={})


async def in_body(resource: Resource) -> httpx2.Response:
    headers = {"accept": "application/json", "mcp-protocol-version": "2026-07-28"}
    return await resource.client.post(resource.url, data={"access_token": resource.mint()}, headers=headers)


async def in_cookie(resource: Resource) -> httpx2.Response:
    cookie = [("cookie", f"access_token={resource.mint()}")]
    return await resource.send("tools/call", None, cookie, name="echo", arguments={})


async def other_origin(resource: Resource) -> httpx2.Response:
    headers = [("origin", "https://evil.example")]
    return await resource.send("tools/call", resource.mint(), headers, name="echo", arguments={})


async def other_host(resource: Resource) -> httpx2.Response:
    headers = [("host", "evil.example")]
    return await resource.send("tools/call", resource.mint(), headers, name="echo", arguments={})


async def other_session(resource: Resource) -> httpx2.Response:
    """Use the session of another principal."""
    params: JsonObject = {"protocolVersion": "2025-11-25", "capabilities": {}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    accept = {"accept": "application/json, text/event-stream"}
    known = {**accept, "authorization": f"Bearer {resource.mint()}"}
    opened = await resource.client.post(resource.url, json=body, headers=known)
    session = {"mcp-session-id": opened.headers["mcp-session-id"]}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo"}}
    assert (
        await resource.client.post(resource.url, json={**call, "params": {"name": "fail"}}, headers=known | session)
    ).status_code == 200
    stolen = {**accept, **session, "authorization": f"Bearer {resource.mint(sub='bob')}"}
    return await resource.client.post(resource.url, json=call, headers=stolen)


def with_proof(
    *,
    token: dict[str, Any] | None = None,
    header: dict[str, Any] | None = None,
    scheme: str = "DPoP",
    count: int = 1,
    key: Any = CLIENT,
    signer: Any = None,
    uses: int = 1,
    **claims: Any,
) -> Run:
    """Call with a token that is bound to the client's key, and a proof."""

    async def run(resource: Resource) -> httpx2.Response:
        bound = resource.mint(**({"cnf": {"jkt": thumbprint(CLIENT)}} if token is None else token))
        proof = prove(key, bound, "POST", resource.url, header, signer, **claims)
        headers = [("authorization", f"{scheme} {bound}"), *([("dpop", proof)] * count)]
        for number in range(uses):
            name = "echo" if number == uses - 1 else "fail"
            response = await resource.send("tools/call", None, headers, name=name, arguments={})
            assert number == uses - 1 or response.status_code == 200
        return response  # pyright: ignore[reportPossiblyUnboundVariable] — there is one use or more

    return run


ATTACKS = [
    # -- the algorithm and the key
    Attack("a token without a signature (alg none)", bearer(lambda r: unsigned(r, "none"))),
    Attack("a token without a signature (alg None)", bearer(lambda r: unsigned(r, "None"))),
    Attack("a token with an empty signature of a good algorithm", bearer(lambda r: unsigned(r, "ES256"))),
    Attack(
        "an HMAC with the public key as its secret (PEM)", bearer(lambda r: hmac_with(r, ec_key("one").as_pem(False)))
    ),
    Attack(
        "an HMAC with the public key as its secret (JWK)",
        bearer(lambda r: hmac_with(r, json.dumps(r.issuer.published[0]).encode())),
    ),
    Attack(
        "an algorithm of another type than the key",
        bearer(lambda r: sign({**HEAD, "alg": "RS256"}, r.issuer.claims(r.url), r.issuer.key, "ES256")),
    ),
    Attack(
        "a signature by another key under the known name", bearer(lambda r: sign(HEAD, r.issuer.claims(r.url), EVIL))
    ),
    Attack("the claims of one token with the signature of another", bearer(spliced)),
    Attack("a key that the issuer has withdrawn", removed_key, settings=(("refetch_s", 0.0),)),
    Attack("a key that the issuer never had", bearer(lambda r: r.mint(key=EVIL))),
    Attack("a name of a key that is no text", headed(kid=["one"])),
    Attack("a name of a key that is a path", headed(kid="../../../../dev/null")),
    Attack("a header that leads to other keys (jku)", headed(jku="https://evil.example/keys")),
    Attack("a header that leads to a certificate (x5u)", headed(x5u="https://evil.example/cert")),
    Attack("a header that brings a certificate (x5c)", headed(x5c=["MIIB"])),
    Attack(
        "a header that brings the key itself (jwk)",
        bearer(lambda r: r.mint(header={"jwk": EVIL.as_dict(private=False), "kid": "evil"}, key=EVIL)),
    ),
    Attack("an extension that must be understood (crit)", headed(crit=["exp"], exp=1)),
    Attack("an unencoded payload (b64)", headed(b64=False)),
    Attack("a name that occurs twice in the header", bearer(lambda r: doubled(r, "header"))),
    Attack("a name that occurs twice in the claims", bearer(lambda r: doubled(r, "claims"))),
    # -- the kind of token
    Attack("an ID token in place of an access token", headed(typ="JWT")),
    Attack("a token without a type", headed(typ=None)),
    Attack("a logout token in place of an access token", headed(typ="logout+jwt")),
    Attack("a proof in place of an access token", bearer(lambda r: prove(CLIENT, "x", "POST", r.url))),
    Attack("a nested token (cty JWT)", headed(cty="JWT")),
    Attack("a signed token inside of a signed token", bearer(lambda r: sign(HEAD, r.mint().encode(), r.issuer.key))),
    Attack("an encrypted token of five parts", bearer(lambda r: f"{r.mint()}.AAAA.AAAA")),
    Attack("a token that is no JWT", bearer(lambda _: "a" * 64)),
    Attack("claims that are a list", bearer(lambda r: sign(HEAD, b"[]", r.issuer.key))),
    Attack("claims that are no JSON", bearer(lambda r: sign(HEAD, b"{", r.issuer.key))),
    Attack("claims nested a thousand levels deep", bearer(lambda r: sign(HEAD, b"[" * 9_000, r.issuer.key))),
    # -- issuer, audience, time, subject
    Attack("a token of another issuer (mix-up)", other_issuer),
    Attack("a token of an issuer with a slash more", bearer(lambda r: r.mint(iss=f"{r.issuer.url}/"))),
    Attack("a token without an issuer", changed(iss=None)),
    Attack("a token for another server", changed(audience="https://other.example/mcp")),
    Attack("a token for a server whose URL begins like ours", bearer(lambda r: r.mint(audience=f"{r.url}/other"))),
    Attack("a token for nobody in particular", changed(aud=None)),
    Attack("a token for an empty list of servers", changed(aud=[])),
    Attack("a token for a list with an object", bearer(lambda r: r.mint(aud=[{"url": r.url}]))),
    Attack("an expired token", changed(exp=now() - 3_600)),
    Attack("a token without an end", changed(exp=None)),
    Attack("a token whose end is a text", changed(exp="2099-01-01")),
    Attack(
        "a token whose end is infinite",
        bearer(
            lambda r: sign(
                HEAD,
                json.dumps(r.issuer.claims(r.url)).replace('"exp": ', '"exp": 1e999, "x": ').encode(),
                r.issuer.key,
            )
        ),
    ),
    Attack("a token whose end is true", changed(exp=True)),
    Attack("a token that is not valid yet (nbf)", changed(nbf=now() + 3_600)),
    Attack("a token of the future (iat)", changed(iat=now() + 3_600)),
    Attack("a token without a subject", changed(sub=None)),
    Attack("a subject with a line break", changed(sub="alice\nadmin")),
    Attack("a subject that looks like another (Cyrillic a)", changed(sub="\u0430lice")),
    Attack("a subject that is a number", changed(sub=7)),
    Attack("a subject of a thousand letters", changed(sub="a" * 1_000)),
    # -- scopes
    Attack("a token without a scope of this server", changed(scope="openid profile"), 403, "insufficient_scope"),
    Attack("a call with a token for lists", changed(scope="indus:list"), 403, 'scope="indus:call:alpha"'),
    Attack("a call of another server's tool", changed(scope="indus:call:beta"), 403, 'scope="indus:call:alpha"'),
    Attack("a scope in other letters", changed(scope="INDUS:CALL"), 403, "insufficient_scope"),
    Attack("scopes joined by a comma", changed(scope="indus:list,indus:call"), 403, "insufficient_scope"),
    # -- where and how the token stands
    Attack("no token", authorized(lambda _: []), error="Bearer resource_metadata="),
    Attack("a token in the query", in_query, 400, "invalid_request"),
    Attack("a token in the query and in the header", in_query_and_header, 400, "invalid_request"),
    Attack("a token in the body", in_body, error="Bearer resource_metadata="),
    Attack("a token in a cookie", in_cookie, error="Bearer resource_metadata="),
    Attack(
        "two Authorization headers",
        authorized(lambda t: [("authorization", f"Bearer {t}"), ("authorization", "Bearer x")]),
        400,
        "invalid_request",
    ),
    Attack(
        "two tokens in one header",
        authorized(lambda t: [("authorization", f"Bearer {t}, Bearer {t}")]),
        error="Bearer resource_metadata=",
    ),
    Attack(
        "a token of another scheme",
        authorized(lambda t: [("authorization", f"Basic {t}")]),
        error="Bearer resource_metadata=",
    ),
    Attack(
        "a scheme with a letter of another script",
        authorized(lambda t: [("authorization", f"Be\u0430rer {t}")]),
        error="Bearer resource_metadata=",
    ),
    Attack(
        "a tabulator after the scheme",
        authorized(lambda t: [("authorization", f"Bearer\t{t}")]),
        error="Bearer resource_metadata=",
    ),
    Attack(
        "a no-break space after the scheme",
        authorized(lambda t: [("authorization", f"Bearer\u00a0{t}")]),
        error="Bearer resource_metadata=",
    ),
    Attack(
        "a space inside of the token",
        authorized(lambda t: [("authorization", f"Bearer {t[:20]} {t[20:]}")]),
        error="Bearer resource_metadata=",
    ),
    Attack("an oversized token", changed(x="a" * 16_000)),
    Attack("a head past all limits", changed(x="a" * 40_000), 431, ""),
    Attack(
        "many headers", authorized(lambda t: [("authorization", f"Bearer {t}"), *[("x", "y" * 100)] * 400]), 431, ""
    ),
    Attack("a page of another origin", other_origin, 403, ""),
    Attack("another name of the host (DNS rebinding)", other_host, 421, ""),
    Attack("the session of another principal", other_session, 404, ""),
    # -- proofs of possession
    Attack("a bound token as a bearer token", changed(cnf={"jkt": thumbprint(CLIENT)})),
    Attack("a token bound to a certificate", changed(cnf={"x5t#S256": "AAAA"})),
    Attack("an unbound token with the scheme DPoP", with_proof(token={}), error=INVALID),
    Attack("an unbound token where binding is required", changed(), settings=(("requires_dpop", True),)),
    Attack("a bound token without a proof", with_proof(count=0), error=BAD_PROOF),
    Attack("a bound token with two proofs", with_proof(count=2), error=BAD_PROOF),
    Attack("a replayed proof", with_proof(uses=2), error=BAD_PROOF),
    Attack("a proof of another key", with_proof(key=EVIL), error=BAD_PROOF),
    Attack("a proof signed by another key", with_proof(signer=EVIL), error=BAD_PROOF),
    Attack("a proof for another URL", with_proof(htu="https://evil.example/mcp"), error=BAD_PROOF),
    Attack("a proof for another path", with_proof(htu="http://127.0.0.1/health"), error=BAD_PROOF),
    Attack("a proof for another method", with_proof(htm="GET"), error=BAD_PROOF),
    Attack("a proof for another token", with_proof(ath=encode(b"x" * 32)), error=BAD_PROOF),
    Attack("a proof without a token", with_proof(ath=None), error=BAD_PROOF),
    Attack("a proof of the past", with_proof(iat=now() - 3_600), error=BAD_PROOF),
    Attack("a proof of the future", with_proof(iat=now() + 3_600), error=BAD_PROOF),
    Attack("a proof without a time", with_proof(iat=None), error=BAD_PROOF),
    Attack("a proof without an id", with_proof(jti=None), error=BAD_PROOF),
    Attack("a proof of another type", with_proof(header={"typ": "JWT"}), error=BAD_PROOF),
    Attack(
        "a proof that brings a private key", with_proof(header={"jwk": CLIENT.as_dict(private=True)}), error=BAD_PROOF
    ),
    Attack(
        "a proof without a nonce where one is required",
        with_proof(),
        error='error="use_dpop_nonce"',
        settings=(("requires_nonce", True),),
    ),
    Attack(
        "a proof with an invented nonce",
        with_proof(nonce="invented"),
        error='error="use_dpop_nonce"',
        settings=(("requires_nonce", True),),
    ),
]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.sentence)
async def test_an_attack_is_refused(attack: Attack) -> None:
    async with protected(**dict(attack.settings)) as resource:
        response = await attack.run(resource)
        assert response.status_code == attack.status, response.text
        assert attack.error in challenges(response)
        assert resource.bench.seen["echo"] == 0
        assert "eyJ" not in response.text + challenges(response)


async def test_a_flood_of_unknown_keys_is_one_request_to_the_issuer() -> None:
    async with protected() as resource:
        for number in range(40):
            token = resource.mint(header={"kid": f"flood-{number}"})
            assert (await resource.call("echo", token)).status_code == 401
        assert resource.issuer.asked["/keys"] <= 1
        assert (await resource.call("echo", resource.mint())).status_code == 200


async def test_tokens_of_other_issuers_are_refused_without_a_request_to_ours() -> None:
    async with protected(refetch_s=0.0) as resource:
        for number in range(20):
            token = resource.mint(header={"kid": f"flood-{number}"}, iss="https://other.example")
            assert (await resource.call("echo", token)).status_code == 401
        assert resource.issuer.asked["/keys"] == 0


async def test_an_algorithm_of_a_key_that_is_too_short_is_refused() -> None:
    async with protected(refetch_s=0.0) as resource:
        short = rsa_key("short", 1024)
        resource.issuer.published = [short.as_dict(private=False), ec_key("one").as_dict(private=False)]
        token = resource.mint(header={"alg": "RS256"}, key=short)
        assert (await resource.call("echo", token)).status_code == 401
