"""Every field of a token, a proof, a key set and an issuer's metadata, with every kind of value: refused, not fatal."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import pytest
from tests.support.issuer import ec_key, encode, prove, rsa_key, sign, thumbprint
from tests.support.resources import Resource, protected

from indusagi.interop.protocol_bridge.host.auth.resource import ALGORITHMS
from indusagi.interop.protocol_bridge.host.auth.verifier import KeySet

CLIENT = ec_key("client")
VALUES: list[Any] = [
    "\ud800", "a\udfff", 10**400, [], ["\ud800"], [["a"]], {}, {"a": []}, 5, -1, 1e300, True, False, None, "",
    "x" * 9_000,
]  # fmt: skip
HEADER = ("alg", "typ", "kid", "crit", "jwk", "cty", "x5c")
CLAIMS = ("iss", "aud", "sub", "client_id", "azp", "iat", "nbf", "exp", "jti", "scope", "scp", "cnf", "cnf.jkt")
PROOF_HEADER = ("alg", "typ", "jwk", "kid")
KEY = ("kty", "crv", "x", "y", "alg", "use", "key_ops", "kid", "n", "e", "d")
PROOF_CLAIMS = ("jti", "htm", "htu", "iat", "ath", "nonce", "exp")
METADATA = ("issuer", "jwks_uri", "introspection_endpoint", "token_endpoint")
ADDRESSES = ["http://[", "http://[::1", "https://a:b/", "https://a:99999999/", "http://\ud800/", "//", "https://"]


def now() -> int:
    return int(time.time())  # noqa: TID251 — tokens of the machine's own time


def sign_any(header: dict[str, Any], claims: dict[str, Any], key: Any) -> str:
    """Sign by ES256, whatever the header names."""
    return sign(header, claims, key, signed_by="ES256")


class Sender:
    """Sends good tokens and proofs in which one field is changed."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource
        self.good = resource.mint(cnf={"jkt": thumbprint(CLIENT)})

    async def send(self, token: str, proof: str | None) -> int:
        """Send a request; return its status."""
        scheme = "Bearer" if proof is None else "DPoP"
        headers = [("authorization", f"{scheme} {token}"), *([("dpop", proof)] if proof is not None else [])]
        return (await self.resource.send("tools/list", None, headers)).status_code

    async def send_good(self) -> int:
        """Send a request that must pass."""
        return await self.send(self.good, prove(CLIENT, self.good, "POST", self.resource.url))

    async def send_token(self, part: str, field: str, value: Any) -> int:
        """Send a token with one changed field of its header or its claims."""
        header: dict[str, Any] = {"alg": "ES256", "typ": "at+jwt", "kid": "one"}
        claims = self.resource.issuer.claims(self.resource.url)
        if field == "cnf.jkt":
            claims["cnf"] = {"jkt": value}
        else:
            (header if part == "header" else claims)[field] = value
        return await self.send(sign_any(header, claims, self.resource.issuer.key), None)

    async def send_proof(self, part: str, field: str, value: Any) -> int:
        """Send a proof with one changed field of its header, its key or its claims."""
        public = CLIENT.as_dict(private=False)
        jwk: dict[str, Any] = {name: public[name] for name in ("kty", "crv", "x", "y")}
        header: dict[str, Any] = {"alg": "ES256", "typ": "dpop+jwt", "jwk": jwk}
        digest = encode(hashlib.sha256(self.good.encode()).digest())
        claims: dict[str, Any] = {"htm": "POST", "htu": self.resource.url, "iat": now(), "ath": digest}
        claims["jti"] = f"{part}-{field}-{value!r}"[:60]
        {"header": header, "key": jwk, "claims": claims}[part][field] = value
        return await self.send(self.good, sign_any(header, claims, CLIENT))


async def test_finding_f1_no_field_of_a_token_or_proof_ends_a_host(caplog: pytest.LogCaptureFixture) -> None:
    parts: list[tuple[str, str, tuple[str, ...]]] = [
        ("token", "header", HEADER),
        ("token", "claims", CLAIMS),
        ("proof", "header", PROOF_HEADER),
        ("proof", "key", KEY),
        ("proof", "claims", PROOF_CLAIMS),
    ]
    async with protected(principal_rate=1e6) as resource:
        sender = Sender(resource)
        odd: dict[str, int] = {}
        for what, part, fields in parts:
            send = sender.send_token if what == "token" else sender.send_proof
            for field in fields:
                for value in VALUES:
                    status = await send(part, field, value)
                    if status not in {200, 400, 401, 403}:
                        odd[f"{what} {part}.{field}={value!r:.20}"] = status
            assert await sender.send_good() == 200, part
        assert odd == {}
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_finding_f1_half_a_character_in_a_proof_ends_no_host(caplog: pytest.LogCaptureFixture) -> None:
    async with protected() as resource:
        sender = Sender(resource)
        assert await sender.send_proof("claims", "jti", "\ud800") == 401
        assert await sender.send_good() == 200
    assert "Traceback" not in caplog.text


async def test_finding_f1_no_field_of_a_key_set_or_of_metadata_ends_a_host(caplog: pytest.LogCaptureFixture) -> None:
    async with protected(principal_rate=1e6, refetch_s=0.0) as resource:
        issuer, sender = resource.issuer, Sender(resource)
        good_rows, good_metadata, unknown = [*issuer.published], dict(issuer.metadata), ec_key("unknown")

        async def refetch() -> int:
            """Make the host ask its issuer again: no key has this name."""
            return await sender.send(resource.mint(key=unknown), None)

        odd: dict[str, int] = {}
        for field in KEY:
            for value in VALUES:
                for good in (ec_key("two").as_dict(private=False), rsa_key("three").as_dict(private=False)):
                    issuer.published = [{**good, field: value}, *good_rows]
                    if (status := await refetch()) not in {401, 503}:
                        odd[f"keys[].{field}={value!r:.20}"] = status
            assert await sender.send_good() == 200, field
        for value in VALUES:
            issuer.published = value
            assert await refetch() in {401, 503}
        issuer.published = good_rows
        for field in METADATA:
            for value in [*VALUES, *ADDRESSES]:
                issuer.metadata = {**good_metadata, field: value}
                if (status := await refetch()) not in {401, 503}:
                    odd[f"metadata.{field}={value!r:.20}"] = status
            assert await sender.send_good() == 200, field
        assert odd == {}
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("document", [{"keys": value} for value in VALUES] + [{}], ids=str)
def test_a_key_set_of_any_shape_is_read(document: Any) -> None:
    assert KeySet(document).rows == []


@pytest.mark.parametrize("field", KEY)
@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:12])
def test_a_key_with_any_field_is_used_or_left_out(field: str, value: Any) -> None:
    rows: list[Any] = [{**key.as_dict(private=False), field: value} for key in (ec_key("two"), rsa_key("three"))]
    keys = KeySet({"keys": rows})
    assert len(keys.rows) <= 2
    for algorithm in ALGORITHMS:
        assert keys.find(None, algorithm) is None or len(keys.rows) > 0
