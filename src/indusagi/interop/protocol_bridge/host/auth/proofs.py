"""Proofs of possession (DPoP, https://www.rfc-editor.org/rfc/rfc9449): requests signed with the client's key.

A proof contains its request's method and URL and the token it belongs to, and works once: a stolen token or a copied
request is worthless without the key.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, cast
from urllib.parse import urlsplit

from indusagi.core.json import JsonObject, is_json_object, parse_strict_json
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.auth.resource import ALGORITHMS, TokenRefusal

if TYPE_CHECKING:
    from joserfc.jwk import Key


_MIN_RSA_BYTES = 256
"""2,048 bits: RFC 7518 §3.3."""
_REFUSED_HEADERS = ("crit", "b64", "zip", "enc", "cty", "jku", "x5u", "x5c")
"""Extensions we'd have to understand, compression, encryption, nesting, and headers that lead to keys."""
_PARTS = re.compile(r"([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)\.([A-Za-z0-9_-]+)", re.ASCII)
_MAX_CHARS = 16 * 1024
_PRIVATE_MEMBERS = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


class InvalidSignature(Exception):
    """An unacceptable signature; the message contains no part of the text."""


@record
class SignedText:
    """A parsed but unverified signature."""

    text: str = field(repr=False)
    header: JsonObject
    header_text: str
    """The header as sent: equal for texts of one signer."""
    payload: JsonObject = field(repr=False)

    @property
    def algorithm(self) -> str:
        """The algorithm, one of `ALGORITHMS`."""
        return str(self.header["alg"])


def parse_signed(text: str, *, brings_key: bool = False) -> SignedText:
    """Parse a signed text. With `brings_key` its header `jwk` must hold its public key; otherwise that's refused.

    Raises `InvalidSignature` for another format, an unlisted algorithm, or a refused header.
    """
    match = _PARTS.fullmatch(text) if len(text) <= _MAX_CHARS else None
    if match is None:
        raise InvalidSignature("it is not a signed JWT")
    header = _parse_part(match[1])
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise InvalidSignature("its algorithm is not accepted")
    if any(name in header for name in _REFUSED_HEADERS):
        raise InvalidSignature("it has a header that is not accepted")
    if ("jwk" in header) != brings_key:
        raise InvalidSignature("it has no key" if brings_key else "it brings a key of its own")
    return SignedText(text, header, match[1], _parse_part(match[2]))


def _parse_part(part: str) -> JsonObject:
    try:
        value = parse_strict_json(_decode_part(part))
    except ValueError:
        raise InvalidSignature("it is not a signed JWT") from None
    if not is_json_object(value):
        raise InvalidSignature("it is not a signed JWT")
    return value


def _decode_part(part: str) -> bytes:
    return base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)


def import_key(jwk: JsonObject) -> Key | None:
    """Import a public JWK (RFC 7517); None if it's private, symmetric, too short or for another use."""
    from joserfc.jwk import import_key as import_any_key  # noqa: PLC0415 — loads the cryptography, for hosts with access tokens

    key_type = jwk.get("kty")
    is_usable = jwk.get("use", "sig") == "sig" and isinstance(key_type, str) and key_type in {"RSA", "EC", "OKP"}
    if not is_usable or _PRIVATE_MEMBERS & jwk.keys():
        return None
    operations = jwk.get("key_ops")
    if isinstance(operations, list) and "verify" not in operations:
        return None
    modulus = jwk.get("n")
    if key_type == "RSA" and (not isinstance(modulus, str) or len(modulus) * 3 // 4 < _MIN_RSA_BYTES):
        return None
    try:
        key = import_any_key(cast("dict[str, str | list[str]]", jwk))
        key.thumbprint()  # cached; reads members that the import didn't
    except Exception:  # noqa: BLE001 — boundary: a library parses a stranger's key
        return None
    return key


def is_key_for(jwk: JsonObject, algorithm: str) -> bool:
    """Return whether a key may verify an algorithm's signatures, by its type, curve and own `alg`."""
    key_type, curve = ALGORITHMS[algorithm]
    own = jwk.get("alg", algorithm)
    return jwk.get("kty") == key_type and (curve is None or jwk.get("crv") == curve) and own == algorithm


def verify_signed(signed: SignedText, key: Key) -> None:
    """Verify the signature with a key that fits its algorithm; raise `InvalidSignature` if it isn't this key's."""
    from joserfc.jws import JWSRegistry  # noqa: PLC0415 — loads the cryptography, for hosts with access tokens

    # Use the algorithm directly: the library's functions would parse header and payload again.
    algorithm = JWSRegistry.algorithms[signed.algorithm]
    data, _, signature = signed.text.rpartition(".")
    try:
        is_valid = algorithm.verify(data.encode("ascii"), _decode_part(signature), key)
    except Exception:  # noqa: BLE001 — boundary: a library parses a stranger's key and signature
        is_valid = False
    if not is_valid:
        raise InvalidSignature("its signature is wrong")


_TYPE = "dpop+jwt"
_MAX_ID_CHARS = 512
_NONCE_S = 300
"""How long we hand out a nonce; we accept it for twice as long."""
_KNOWN_KEYS = 1_024
_PORTS = {"http": 80, "https": 443}


class ProofLimitError(Exception):
    """A client used more proofs than we can remember."""


class ReplayCache:
    """Ids of used proofs, for as long as a proof with the same id could be valid; limited in total and per key.

    A full cache refuses: forgetting an id would allow a replay. The limit per key keeps one client from filling it.
    """

    def __init__(self, keep_s: float, most: int = 262_144, most_each: int = 65_536) -> None:
        self._keep_s = keep_s
        self._most = most
        self._most_each = most_each
        self._used: OrderedDict[bytes, tuple[float, str]] = OrderedDict()
        """When to forget each id, and its key; oldest first."""
        self._each: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._used)

    def use(self, thumbprint: str, proof_id: str, now: float) -> bool:
        """Record the use of a proof; return False if it was used before; raise `ProofLimitError` if full."""
        while self._used:
            digest, (forget_at, owner) = next(iter(self._used.items()))
            if forget_at > now:
                break
            del self._used[digest]
            self._each[owner] -= 1
            if not self._each[owner]:
                del self._each[owner]
        digest = hashlib.sha256(f"{thumbprint} {proof_id}".encode()).digest()[:16]
        if digest in self._used:
            return False
        if len(self._used) >= self._most or self._each[thumbprint] >= self._most_each:
            raise ProofLimitError
        self._used[digest] = (now + self._keep_s, thumbprint)
        self._each[thumbprint] += 1
        return True


class NonceSource:
    """This host's nonces (RFC 9449 §9), derived from the time so that we don't have to store them."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def build(self, now: float, periods_ago: int = 0) -> str:
        """Return the current nonce, or an earlier one."""
        period = int(now // _NONCE_S) - periods_ago
        return _encode(hmac.digest(self._secret, str(period).encode(), "sha256")[:18])

    def is_current(self, nonce: object, now: float) -> bool:
        """Return whether we handed out a nonce recently."""
        return isinstance(nonce, str) and any(
            hmac.compare_digest(self.build(now, ago).encode(), nonce.encode()) for ago in (0, 1)
        )


class ProofChecker:
    """Checks the proofs of requests."""

    def __init__(self, leeway_s: int, nonces: NonceSource | None) -> None:
        self.replays = ReplayCache(2 * leeway_s + 1)
        self._leeway_s = leeway_s
        self._nonces = nonces
        self._keys: OrderedDict[str, tuple[Key, str]] = OrderedDict()
        """Keys and thumbprints by the header they came in: a client sends the same one with each proof."""

    def check(self, proofs: Sequence[str], token: str, thumbprint: str, method: str, url: str, now: float) -> None:
        """Check that a request comes from the holder of the key its token is bound to (RFC 9449 §4.3).

        Raises `TokenRefusal` if the proof is missing, invalid, for another request or key, or was used before, and
        `ProofLimitError` if the client sent too many.
        """
        # Verify that the key with this thumbprint signed the only proof, and return its claims.
        if len(proofs) != 1:
            raise _refuse("exactly one DPoP header is needed")
        try:
            signed = parse_signed(proofs[0], brings_key=True)
            if signed.header.get("typ") != _TYPE:
                raise InvalidSignature(f"its type is not {_TYPE}")
            key, own_thumbprint = self._find_key(signed)
            verify_signed(signed, key)
        except InvalidSignature as exc:
            raise _refuse(f"the proof cannot be accepted: {exc}") from None
        if own_thumbprint != thumbprint:
            raise _refuse("the token is bound to another key")
        claims = signed.payload
        digest = _encode(hashlib.sha256(token.encode("ascii")).digest())
        proof_id, issued_at = claims.get("jti"), claims.get("iat")
        is_time = isinstance(issued_at, (int, float)) and not isinstance(issued_at, bool) and abs(issued_at) < 1e12
        is_id = isinstance(proof_id, str) and 0 < len(proof_id) <= _MAX_ID_CHARS
        for is_wrong, what in (
            (claims.get("htm") != method, "is for another method (htm)"),
            (normalize_url(claims.get("htu")) != normalize_url(url), "is for another URL (htu)"),
            (claims.get("ath") != digest, "is for another token (ath)"),
            (not is_time, "has no time (iat)"),
            (not is_id, "has no id (jti)"),
        ):
            if is_wrong:
                raise _refuse(f"the proof {what}")
        if self._nonces is not None and not self._nonces.is_current(claims.get("nonce"), now):
            raise TokenRefusal("use_dpop_nonce", "the proof needs a nonce of this server")
        if not abs(now - cast("float", issued_at)) <= self._leeway_s:
            raise _refuse("the proof is too old, or of the future (iat)")
        if not self.replays.use(thumbprint, cast("str", proof_id), now):
            raise _refuse("the proof was used before (jti)")

    def _find_key(self, signed: SignedText) -> tuple[Key, str]:
        known = self._keys.get(signed.header_text)
        if known is not None:
            self._keys.move_to_end(signed.header_text)
            return known
        jwk = signed.header["jwk"]
        key = import_key(jwk) if is_json_object(jwk) and is_key_for(jwk, signed.algorithm) else None
        if key is None:
            raise InvalidSignature("its key is not a public one that fits its algorithm")
        self._keys[signed.header_text] = key, key.thumbprint()
        if len(self._keys) > _KNOWN_KEYS:
            self._keys.popitem(last=False)
        return self._keys[signed.header_text]


def normalize_url(url: object) -> str | None:
    """Normalise a URL, without query and fragment (RFC 9449 §4.3); None if it isn't one."""
    if not isinstance(url, str):
        return None
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS.get(parts.scheme)
    except ValueError:
        return None
    if parts.scheme not in _PORTS or not parts.hostname or parts.username is not None:
        return None
    return f"{parts.scheme}://{parts.hostname}:{port}{parts.path or '/'}"


def _refuse(message: str) -> TokenRefusal:
    return TokenRefusal("invalid_dpop_proof", message)


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode("ascii")
