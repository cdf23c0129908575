"""Random requests: mutations of good ones in their line, headers, token, proof, framing and body."""

from __future__ import annotations

import base64
import hashlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from tests.support.issuer import Issuer, ec_key, rsa_key, sign, thumbprint

from indusagi.core.json import is_json_object

if TYPE_CHECKING:
    from random import Random

    from joserfc.jwk import Key

STAMP: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
METHODS = ("POST", "POST", "POST", "POST", "GET", "DELETE", "PUT", "HEAD", "OPTIONS", "TRACE", "x")
PATHS = (
    "/mcp", "/mcp", "/mcp", "/mcp", "/health", "/metrics", "/ui", "/ui/tools", "/", "/mcp/", "/%6dcp", "/mcp?x=1",
    "/mcp?access_token=a", "/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp",
    "/sse", "/messages", "/%ff%00", "//mcp", "/ui/%2e%2e/mcp",
)  # fmt: skip
RPC = (
    "tools/list", "tools/call", "ping", "initialize", "server/discover", "resources/list", "resources/read",
    "prompts/get", "completion/complete", "logging/setLevel", "tasks/get", "tasks/cancel", "notifications/cancelled",
    "notifications/initialized", "skills/list", "resources/subscribe", "nobody/knows", "", "\ud800",
)  # fmt: skip
SCALARS: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, 1e300, 10**400, "", "a", "\ud800", "a\udfffb", "\x00", "é", "x" * 3_000, [], {},
    [[]], {"a": {"b": []}}, "2026-07-28", "http://[", "../../etc/passwd",
)  # fmt: skip
HEADER_VALUES = (
    b"", b"a", b"\xff\xfe", b"a\tb", b"=?base64?////?=", b"=?base64?eA==?=", b"Bearer", b"Bearer a.b.c", b"DPoP x",
    b"x" * 5_000, b"2026-07-28", b"2025-06-18", b"application/json", b"text/event-stream", b"*/*", b"-1", b"chunked",
)  # fmt: skip
HEADER_NAMES = (
    "Accept", "Content-Type", "MCP-Protocol-Version", "Mcp-Method", "Mcp-Name", "Mcp-Session-Id", "Mcp-Param-X",
    "Origin", "Host", "Authorization", "DPoP", "Last-Event-ID", "Expect", "Cookie", "X-Odd", "Traceparent",
)  # fmt: skip


@dataclass(frozen=True)
class FuzzedRequest:
    """The bytes of a request, and whether the client ends its half of the connection after them."""

    data: bytes
    is_cut: bool = False


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class RequestMaker:
    """Makes requests for one gateway; the same seed makes the same kinds of requests."""

    def __init__(self, random: Random, url: str, issuer: Issuer) -> None:
        self._random = random
        self._url = url
        self._authority = url.split("/")[2]
        self._issuer = issuer
        self._client: Key = ec_key("fuzz-client")
        self._good = issuer.mint(url, exp=int(time.time()) + 86_400)  # noqa: TID251 — a token of the machine's time
        self._bound = issuer.mint(url, cnf={"jkt": thumbprint(self._client)}, exp=int(time.time()) + 86_400)  # noqa: TID251 — as above

    def make_good(self) -> FuzzedRequest:
        """Make a request that must be answered with status 200."""
        body = json.dumps(self._message("tools/list")).encode()
        return FuzzedRequest(self._write("POST", "/mcp", self._headers("tools/list", self._good, len(body)), body))

    def make(self) -> FuzzedRequest:
        """Make a random request."""
        random = self._random
        rpc = random.choice(RPC[:4]) if random.random() < 0.6 else random.choice(RPC)
        method, path = ("POST", "/mcp") if random.random() < 0.6 else (random.choice(METHODS), random.choice(PATHS))
        body = self._make_body(rpc)
        headers = self._headers(rpc, None, len(body))
        headers += self._make_access(method)
        if body and random.random() < 0.03:
            # Its end of the connection tells that no more comes: the request is incomplete.
            data = self._write(method, path, headers, body)
            return FuzzedRequest(data[: random.randrange(1, len(data))], is_cut=True)
        if random.random() < 0.3:
            self._change_headers(headers)
        if random.random() < 0.05:
            headers = [line for line in headers if line[0] != "Content-Length"] + [("Transfer-Encoding", b"chunked")]
            body = self._make_chunks(body)
        data = self._write(method, path, headers, body)
        if random.random() < 0.03:
            place = random.randrange(len(data))
            data = data[:place] + random.randbytes(random.randrange(1, 8)) + data[place + 1 :]
        return FuzzedRequest(data)

    # -- headers --------------------------------------------------------------------------------

    def _headers(self, rpc: str, token: str | None, length: int) -> list[tuple[str, bytes]]:
        headers = [
            ("Host", self._authority.encode()),
            ("Accept", b"application/json, text/event-stream"),
            ("Content-Type", b"application/json"),
            ("Content-Length", b"%d" % length),
        ]
        if token is not None or self._random.random() < 0.7:
            version = b"2026-07-28" if token is not None or self._random.random() < 0.9 else b"2025-11-25"
            name = rpc.encode("utf-8", "replace") or b"-"
            headers += [("MCP-Protocol-Version", version), ("Mcp-Method", name)]
            if rpc == "tools/call":
                headers.append(("Mcp-Name", b"ls"))
        if token is not None:
            headers.append(("Authorization", f"Bearer {token}".encode()))
        return headers

    def _change_headers(self, headers: list[tuple[str, bytes]]) -> None:
        for _ in range(self._random.randrange(1, 4)):
            change = (self._random.choice(HEADER_NAMES), self._random.choice(HEADER_VALUES))
            if self._random.random() < 0.5:
                headers.append(change)
            else:
                headers[self._random.randrange(1, len(headers))] = change

    def _make_access(self, method: str) -> list[tuple[str, bytes]]:
        kind = self._random.random()
        if kind < 0.5:
            return [("Authorization", f"Bearer {self._good}".encode())]
        if kind < 0.7:
            return [("Authorization", f"Bearer {self._make_token()}".encode())]
        if kind < 0.9:
            token = self._bound if self._random.random() < 0.8 else self._make_token()
            return [("Authorization", f"DPoP {token}".encode()), ("DPoP", self._make_proof(method, token).encode())]
        return []

    def _change(self, document: dict[str, Any], more: tuple[str, ...]) -> dict[str, Any]:
        changed = dict(document)
        if self._random.random() < 0.9:
            changed[self._random.choice((*document, *more))] = self._random.choice(SCALARS)
        return changed

    def _sign(self, header: dict[str, Any], claims: dict[str, Any], key: Key) -> str:
        if self._random.random() < 0.05:
            parts = [self._random.randbytes(self._random.randrange(40)) for _ in range(3)]
            return ".".join(_encode(part) for part in parts)
        return sign(header, claims, key, signed_by="ES256")

    def _make_token(self) -> str:
        header: dict[str, Any] = {"alg": "ES256", "typ": "at+jwt", "kid": "one"}
        claims = self._issuer.claims(self._url)
        if self._random.random() < 0.5:
            header = self._change(header, ("crit", "jwk", "jku", "x5c", "b64"))
        else:
            claims = self._change(claims, ("nbf", "azp", "scp", "cnf"))
        return self._sign(header, claims, self._issuer.key)

    def _make_proof(self, method: str, token: str) -> str:
        public = self._client.as_dict(private=False)
        jwk: dict[str, Any] = {name: public[name] for name in ("kty", "crv", "x", "y")}
        header: dict[str, Any] = {"alg": "ES256", "typ": "dpop+jwt", "jwk": jwk}
        claims: dict[str, Any] = {
            "jti": _encode(self._random.randbytes(12)),
            "htm": method,
            "htu": self._url,
            "iat": int(time.time()),  # noqa: TID251 — a proof of the machine's time
            "ath": _encode(hashlib.sha256(token.encode()).digest()),
        }
        part = self._random.random()
        if part < 0.25:
            header = self._change(header, ("kid", "crit"))
        elif part < 0.5:
            header["jwk"] = self._change(jwk, ("d", "n", "e", "use", "alg", "key_ops"))
        elif part < 0.8:
            claims = self._change(claims, ("nonce", "exp"))
        return self._sign(header, claims, self._client)

    # -- bodies ---------------------------------------------------------------------------------

    def _message(self, rpc: str) -> dict[str, Any]:
        params: dict[str, Any] = {"_meta": STAMP}
        if rpc == "tools/call":
            params |= {"name": "ls", "arguments": {}}
        elif rpc == "initialize":
            params |= {"protocolVersion": "2025-11-25", "capabilities": {}}
        return {"jsonrpc": "2.0", "id": 1, "method": rpc, "params": params}

    def _make_body(self, rpc: str) -> bytes:
        random = self._random
        kind = random.random()
        if kind < 0.03:
            return random.randbytes(random.randrange(200))
        if kind < 0.05:
            return b"[" * random.randrange(1, 200_000)
        if kind < 0.07:
            return b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}'
        message = self._message(rpc)
        for _ in range(random.choice((0, 0, 1, 1, 2))):
            target = message
            while random.random() < 0.6:
                key = random.choice([*target] or [""])
                inner = target.get(key)
                if not is_json_object(inner):
                    break
                target[key] = target = cast("dict[str, Any]", {**inner})
            names = (*target, "id", "params", "name", "uri", "cursor", "requestState", "level", "taskId", "ref")
            target[random.choice(names)] = random.choice(SCALARS)
        body: Any = [message] * random.choice((1, 3, 200)) if random.random() < 0.03 else message
        return json.dumps(body, ensure_ascii=random.random() < 0.5).encode("utf-8", "surrogatepass")

    def _make_chunks(self, body: bytes) -> bytes:
        if self._random.random() < 0.2:
            return self._random.choice((b"zz\r\n", b"-1\r\n\r\n", b"5;a=b\r\nabcde\r\n0\r\n\r\n", b"0\r\n\r\n"))
        return b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

    @staticmethod
    def _write(method: str, path: str, headers: list[tuple[str, bytes]], body: bytes) -> bytes:
        lines = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in headers)
        return f"{method} {path} HTTP/1.1\r\n".encode() + lines + b"\r\n" + body


def make_key_sets(random: Random, issuer: Issuer) -> list[dict[str, Any]]:
    """Make the keys that an issuer publishes next: its own, and odd ones."""
    odd = [key.as_dict(private=False) for key in (ec_key("odd"), rsa_key("odd"))]
    members = ("kty", "crv", "x", "y", "n", "e", "use", "alg", "kid", "key_ops", "d")
    changed = [{**row, random.choice(members): random.choice(SCALARS)} for row in odd]
    return [issuer.key.as_dict(private=False), *changed]
