"""A client's signed proofs: DPoP proofs (RFC 9449 §4) and client assertions (RFC 7523 §2.2).

The JWT library loads when a key is first used. A DPoP proof is valid for one request: each has a unique id.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
from typing import TYPE_CHECKING, Final, cast

from indusagi.core.json import is_json_object, parse_strict_json
from indusagi.interop.auth.contract import AuthFault

if TYPE_CHECKING:
    from joserfc.jwk import DictKey, Key

    from indusagi.core.json import JsonObject, JsonValue

PROOF_ALGORITHM: Final = "ES256"
_ASSERTION_S: Final = 120
_KEY_TYPES: Final = {"ES": "EC", "RS": "RSA", "PS": "RSA", "Ed": "OKP"}


def encode_base64url(data: bytes) -> str:
    """Encode without padding (RFC 7515 §2)."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")


class ProofKey:
    """A private key that tokens are bound to, with the next nonce for each origin (RFC 9449 §8, §9)."""

    def __init__(self, private_jwk: JsonObject | None = None) -> None:
        from joserfc.jwk import ECKey  # noqa: PLC0415 — the JWT library takes 0.2 s to load

        if private_jwk is None:
            self._key = ECKey.generate_key("P-256", private=True)
        else:
            self._key = ECKey.import_key(cast("DictKey", private_jwk))
        self.nonces: dict[str, str] = {}
        """By origin."""

    def to_json(self) -> JsonObject:
        """Return the private JWK."""
        return cast("JsonObject", dict(self._key.as_dict(private=True)))

    def sign_proof(self, method: str, url: str, origin: str, now_ms: int, access_token: str = "") -> str:
        """Sign the proof of one request, bound to the token if there is one (`ath`)."""
        claims: dict[str, JsonValue] = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": url.partition("?")[0].partition("#")[0],
            "iat": now_ms // 1000,
        }
        if access_token:
            claims["ath"] = encode_base64url(hashlib.sha256(access_token.encode()).digest())
        if nonce := self.nonces.get(origin):
            claims["nonce"] = nonce
        header: dict[str, object] = {"typ": "dpop+jwt", "alg": PROOF_ALGORITHM, "jwk": self._key.as_dict(private=False)}
        return _sign(header, claims, self._key)


def sign_client_assertion(private_key: str, algorithm: str, client_id: str, audience: str, now_ms: int) -> str:
    """Sign the assertion that authenticates a client (`private_key_jwt`).

    Raises:
        AuthFault: The key doesn't work with the algorithm.
    """
    from joserfc import jwk  # noqa: PLC0415 — the JWT library takes 0.2 s to load
    from joserfc.errors import JoseError  # noqa: PLC0415

    claims: dict[str, JsonValue] = {
        "iss": client_id,
        "sub": client_id,
        "aud": audience,
        "jti": secrets.token_urlsafe(16),
        "iat": now_ms // 1000,
        "exp": now_ms // 1000 + _ASSERTION_S,
    }
    try:
        if private_key.lstrip().startswith("{"):
            document: object = json.loads(private_key)
            key = jwk.JWKRegistry.import_key(cast("DictKey", document if is_json_object(document) else {}))
        else:
            key = jwk.JWKRegistry.import_key(private_key, _KEY_TYPES.get(algorithm[:2], "EC"))
        header: dict[str, object] = {"alg": algorithm, "typ": "JWT"}
        if key.kid:
            header["kid"] = key.kid
        return _sign(header, claims, key)
    except (JoseError, ValueError, TypeError):
        problem = f"the private key of client {client_id!r} cannot be used with {algorithm}"
    # Raise outside of the handler: the library's error may show part of the key.
    raise AuthFault(f"{problem}: set `private_key` and `signing_algorithm` in the row's `auth`")


def _sign(header: dict[str, object], claims: dict[str, JsonValue], key: Key) -> str:
    from joserfc import jwt  # noqa: PLC0415 — the JWT library takes 0.2 s to load

    return jwt.encode(header, claims, key, algorithms=[str(header["alg"])])


def read_claims(token: str) -> JsonObject:
    """Return a JWT's claims without checking its signature, only for display; empty if it isn't a JWT."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > 64 * 1024:
        return {}
    try:
        document = parse_strict_json(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except ValueError:
        return {}
    return document if is_json_object(document) else {}
