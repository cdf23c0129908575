"""Access tokens: the claims of a JWT (RFC 9068) or of an introspection (RFC 7662), checked for this host.

Pure. The signature of a JWT, or the answer of the issuer, is verified before its claims are read here.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.auth.settings import TokenRefusal
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host.auth.settings import ResourceSettings
    from indusagi.interop.protocol_bridge.host.auth.signatures import SignedText

ACCESS_TYPES = frozenset({"at+jwt", "application/at+jwt"})
_PLAIN_TYPES = frozenset({"jwt", ""})
_LONGEST_NAME = 255
"""Characters of a subject: https://openid.net/specs/openid-connect-core-1_0.html#IDToken."""
_MOST_SCOPES = 256


@record
class AccessToken:
    """A token that is valid for this host."""

    identity: ClientIdentity
    expires_at: float
    """Seconds since 1970, without leeway."""
    thumbprint: str | None = None
    """The key of the client that it is bound to (`cnf.jkt`, RFC 9449 §6.1); None: every holder may use it."""


def check_type(signed: SignedText, settings: ResourceSettings) -> None:
    """Check that a JWT is meant as an access token: an ID token must not serve as one (RFC 9068 §4).

    Raises:
        TokenRefusal: It is another kind of JWT.
    """
    value = signed.header.get("typ", "")
    kind = value.lower() if isinstance(value, str) else None
    if kind not in ACCESS_TYPES and not (settings.accepts_any_type and kind in _PLAIN_TYPES):
        raise TokenRefusal("invalid_token", "its type is not at+jwt")


def check_claims(
    claims: JsonObject, settings: ResourceSettings, audiences: frozenset[str], now: float, *, is_introspected: bool
) -> AccessToken:
    """Check who issued a token, for whom and for how long, and read who presents it.

    Raises:
        TokenRefusal: It is not valid for this host now; the description names the claim.
    """
    leeway = settings.leeway_s
    # An answer of the issuer's own endpoint may leave its name out.
    if claims.get("iss", settings.issuer if is_introspected else None) != settings.issuer:
        raise TokenRefusal("invalid_token", "it was issued by another issuer (iss)")
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if not any(isinstance(name, str) and name in audiences for name in named):
        raise TokenRefusal("invalid_token", "it was issued for another server (aud)")
    expires_at = _read_time(claims, "exp")
    if expires_at is None:
        raise TokenRefusal("invalid_token", "it has no end (exp)")
    if expires_at + leeway <= now:
        raise TokenRefusal("invalid_token", "it has expired (exp)")
    for name in ("nbf", "iat"):
        begins_at = _read_time(claims, name)
        if begins_at is not None and begins_at - leeway > now:
            raise TokenRefusal("invalid_token", f"it is not valid yet ({name})")
    client_id = _read_name(claims, "client_id") or _read_name(claims, "azp")
    # RFC 9068 §2.2: the subject of a client that acts for itself is its id; an introspection may leave that out.
    subject = _read_name(claims, "sub") or (client_id if is_introspected else "")
    if not subject:
        raise TokenRefusal("invalid_token", "it has no subject (sub)")
    owner = hashlib.sha256(compact_json([settings.issuer, subject, client_id]).encode()).digest()
    identity = ClientIdentity(
        owner=owner, principal=subject, client_id=client_id, scopes=_read_scopes(claims), credential="principal"
    )
    return AccessToken(identity, expires_at, _read_thumbprint(claims))


def _read_time(claims: JsonObject, name: str) -> float | None:
    """Read a NumericDate (RFC 7519 §2); one that is no number makes the token invalid."""
    value = claims.get(name)
    if value is None and name not in claims:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12 or math.isnan(value):
        raise TokenRefusal("invalid_token", f"its {name} is no time")
    return float(value)


def _read_name(claims: JsonObject, name: str) -> str:
    """Read a name that rules and records show: printable ASCII, so that two names never look alike."""
    value = claims.get(name, "")
    if not isinstance(value, str) or len(value) > _LONGEST_NAME or not (value.isascii() and value.isprintable()):
        raise TokenRefusal("invalid_token", f"its {name} is no name")
    if value != value.strip():
        raise TokenRefusal("invalid_token", f"its {name} begins or ends with a space")
    return value


def _read_scopes(claims: JsonObject) -> frozenset[str]:
    """Read `scope` (RFC 9068 §2.2.3), or `scp`, which some issuers write instead, as text or as a list."""
    value: JsonValue = claims.get("scope", claims.get("scp", ""))
    items = value.split(" ") if isinstance(value, str) else value
    if not isinstance(items, list) or len(items) > _MOST_SCOPES:
        raise TokenRefusal("invalid_token", "its scope is no list of scopes")
    return frozenset(item for item in items if isinstance(item, str) and item)


def _read_thumbprint(claims: JsonObject) -> str | None:
    """Read to which key a token is bound; a binding that cannot be verified here makes it invalid."""
    confirmation = claims.get("cnf")
    if confirmation is None and "cnf" not in claims:
        return None
    thumbprint = confirmation.get("jkt") if is_json_object(confirmation) else None
    if not isinstance(thumbprint, str) or not is_json_object(confirmation) or len(confirmation) != 1:
        raise TokenRefusal("invalid_token", "it is bound in a way that this host cannot verify (cnf)")
    return thumbprint
