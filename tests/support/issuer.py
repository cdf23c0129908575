"""An authorization server for tests of a protected resource: metadata, keys, introspection, tokens of every kind."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import json
import time
import warnings
from collections import Counter
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from joserfc import jws
from joserfc.jwk import ECKey, RSAKey

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from joserfc.jwk import Key

    from indusagi.core.json import JsonObject

ALL_SCOPES = "indus:list indus:call indus:admin"
_proof_ids = itertools.count(1)


@cache
def ec_key(name: str) -> ECKey:
    """Make a key once; each name has its own."""
    return ECKey.generate_key("P-256", {"kid": name, "use": "sig", "alg": "ES256"})


@cache
def rsa_key(name: str, bits: int = 2048) -> RSAKey:
    """Make an RSA key once; a short one too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RSAKey.generate_key(bits, {"kid": name, "use": "sig"})


def encode(data: bytes) -> str:
    """Encode a part of a JWT."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(header: Any, claims: Any, key: Key, signed_by: str | None = None) -> str:
    """Sign a JWT, whatever its header says; with the algorithm it names, unless another is given."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    body = claims if isinstance(claims, bytes) else json.dumps(claims).encode()
    data = f"{encode(head)}.{encode(body)}"
    algorithm = jws.JWSRegistry.algorithms[signed_by or json.loads(head)["alg"]]
    return f"{data}.{encode(algorithm.sign(data.encode(), key))}"


class Issuer:
    """A running authorization server, and what it was asked."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.key: Key = ec_key("one")
        self.published: list[dict[str, Any]] = [ec_key("one").as_dict(private=False)]
        self.asked: Counter[str] = Counter()
        self.metadata: dict[str, Any] = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "introspection_endpoint": f"{self.url}/introspect",
            "token_endpoint": f"{self.url}/token",
            "authorization_endpoint": f"{self.url}/authorize",
            "registration_endpoint": f"{self.url}/register",
            "code_challenge_methods_supported": ["S256"],
        }
        self.codes: dict[str, tuple[str, dict[str, str]]] = {}
        """Whom a code is for, and the request it answers."""
        self.forms: list[dict[str, str]] = []
        """Requests for tokens, in their order."""
        self.refuses_exchange = False
        self.active: dict[str, JsonObject] = {}
        """Answers of the introspection by token."""
        self.credentials: list[str] = []
        """The Authorization headers of introspections."""
        self.is_broken = False

    def claims(self, audience: str, **changes: Any) -> dict[str, Any]:
        """Make the claims of a good token; a change to None removes one."""
        now = int(time.time())  # noqa: TID251 — tokens of the machine's own time
        claims: dict[str, Any] = {
            "iss": self.url,
            "aud": audience,
            "sub": "alice",
            "client_id": "client-1",
            "iat": now,
            "exp": now + 600,
            "jti": "token-1",
            "scope": ALL_SCOPES,
            **changes,
        }
        return {name: value for name, value in claims.items() if value is not None}

    def mint(self, audience: str, header: Any = None, key: Key | None = None, **changes: Any) -> str:
        """Issue a token."""
        chosen = key or self.key
        head: dict[str, Any] = {"alg": "ES256", "typ": "at+jwt", "kid": chosen.kid, **(header or {})}
        head = {name: value for name, value in head.items() if value is not None}
        return sign(head, self.claims(audience, **changes), chosen)

    def answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, Any]:
        """Answer one request."""
        self.asked[path] += 1
        if self.is_broken:
            return 500, {}
        if path == "/.well-known/oauth-authorization-server":
            return 200, self.metadata
        if path == "/keys":
            return 200, {"keys": self.published}
        if path == "/introspect" and method == "POST":
            self.credentials.append(headers.get("authorization", ""))
            token = body.decode().partition("token=")[2].partition("&")[0]
            return 200, self.active.get(token, {"active": False})
        if path == "/register" and method == "POST":
            return 201, {"client_id": "page"}
        if path == "/token" and b"authorization_code" in body:
            return self._redeem(dict(parse_qsl(body.decode())))
        if path == "/token" and method == "POST":
            return self._issue(dict(parse_qsl(body.decode())), headers.get("authorization", ""))
        return 404, {}

    def authorize(self, url: str, person: str) -> str:
        """Sign a person in, and return where the browser goes with the code."""
        query = dict(parse_qsl(urlsplit(url).query))
        code = f"code-{len(self.codes)}"
        self.codes[code] = person, query
        return f"{query['redirect_uri']}?{urlencode({'code': code, 'state': query['state']})}"

    def _redeem(self, form: dict[str, str]) -> tuple[int, Any]:
        """Issue a token for a code."""
        person, query = self.codes.pop(form["code"], ("", {}))
        challenge = encode(hashlib.sha256(form["code_verifier"].encode()).digest())
        if not person or (query["redirect_uri"], query["code_challenge"]) != (form["redirect_uri"], challenge):
            return 400, {"error": "invalid_grant"}
        token = self.mint(query["resource"], sub=person, client_id=query["client_id"], scope=query["scope"])
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": 600}

    def _issue(self, form: dict[str, str], authorization: str) -> tuple[int, Any]:
        """Issue a token by client credentials, or in exchange for another one (RFC 8693)."""
        self.forms.append(form)
        client = base64.b64decode(authorization.removeprefix("Basic ")).decode().partition(":")[0]
        subject, actor = client, None
        if form["grant_type"].endswith(":token-exchange"):
            if self.refuses_exchange:
                return 400, {"error": "invalid_target"}
            part = form["subject_token"].split(".")[1]
            subject = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["sub"]
            actor = {"sub": client}
        token = self.mint(form["resource"], sub=subject, client_id=client, act=actor)
        return 200, {"access_token": token, "token_type": "Bearer", "expires_in": 600}


@asynccontextmanager
async def running_issuer() -> AsyncGenerator[Issuer]:
    """Serve an issuer on this machine while the block runs."""
    made: list[Issuer] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            first, *lines = head.strip().split("\r\n")
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, path, _ = first.split(" ")
            status, document = made[0].answer(method, path, headers, body)
            data = json.dumps(document).encode()
            writer.write(
                f"HTTP/1.1 {status} x\r\ncontent-type: application/json\r\nconnection: close\r\n"
                f"content-length: {len(data)}\r\n\r\n".encode()
                + data
            )
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the host was stopped meanwhile
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        made.append(Issuer(server.sockets[0].getsockname()[1]))
        yield made[0]
    finally:
        server.close()
        await server.wait_closed()


def thumbprint(key: Key) -> str:
    """Give the thumbprint that a token is bound to."""
    return key.thumbprint()


def prove(
    key: Key, token: str, method: str, url: str, header: Any = None, signer: Key | None = None, **changes: Any
) -> str:
    """Make a DPoP proof; a change to None removes a claim."""
    public = key.as_dict(private=False)
    bare = {name: public[name] for name in ("kty", "crv", "x", "y") if name in public}
    claims: dict[str, Any] = {
        "jti": f"proof-{next(_proof_ids)}",
        "htm": method,
        "htu": url,
        "iat": int(time.time()),  # noqa: TID251 — proofs of the machine's own time
        "ath": encode(hashlib.sha256(token.encode()).digest()),
        **changes,
    }
    claims = {name: value for name, value in claims.items() if value is not None}
    head: dict[str, Any] = {"alg": "ES256", "typ": "dpop+jwt", "jwk": bare, **(header or {})}
    return sign(head, claims, signer or key)
