"""Compact JSON Web Signatures (RFC 7515 §7.1): strict parsing, and verification with keys that we chose.

A signed text declares how to verify it, which is the source of most attacks on it
(https://www.rfc-editor.org/rfc/rfc8725#section-2). Here the algorithm must be on our list and fit the key type, and no
header can name or bring a key.
"""

from __future__ import annotations

import base64
import re
from dataclasses import field
from typing import TYPE_CHECKING, cast

from indusagi.core.json import JsonObject, is_json_object, parse_strict_json
from indusagi.core.records import record

if TYPE_CHECKING:
    from joserfc.jwk import Key

ALGORITHMS = {
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
    "Ed25519": ("OKP", "Ed25519"),
    "PS256": ("RSA", None),
    "PS384": ("RSA", None),
    "PS512": ("RSA", None),
    "RS256": ("RSA", None),
    "RS384": ("RSA", None),
    "RS512": ("RSA", None),
}
"""Accepted algorithms, with the type and curve of their keys. All are asymmetric: anyone can read a public key, so it
must not serve as an HMAC secret."""
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

    Raises:
        InvalidSignature: Another format, an unlisted algorithm, or a refused header.
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
    """Verify the signature with a key that fits its algorithm.

    Raises:
        InvalidSignature: It isn't this key's signature.
    """
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
