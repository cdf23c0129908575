"""The token endpoint: client authentication, DPoP with nonces, grants, and parsing responses; proofs of a client.

The JWT library loads when a key is first used. A DPoP proof is valid for one request: each has a unique id.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import quote, urlencode

from indusagi.core.json import JsonObject, JsonValue, is_json_object, parse_strict_json
from indusagi.core.records import record
from indusagi.interop.auth.contract import AuthFault, AuthMethod, AuthSettings, ClientRegistration, DeviceCode, TokenSet
from indusagi.interop.auth.metadata import IssuerMetadata, check_endpoint, get_origin_of
from indusagi.interop.auth.requests import AuthIO, HttpReply, build_reply_fault

if TYPE_CHECKING:
    from joserfc.jwk import DictKey, Key

    from indusagi.core.time import Clock
    from indusagi.interop.auth.contract import RedirectReceiver


_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_TEXT_LIMIT = 64 * 1024
_MAX_LIFE_S = 10 * 366 * 86_400
PROOF_ALGORITHM: Final = "ES256"
_ASSERTION_S: Final = 120
_KEY_TYPES: Final = {"ES": "EC", "RS": "RSA", "PS": "RSA", "Ed": "OKP"}


@record(kw_only=True)
class TokenClient:
    """A client at the token endpoint of one issuer."""

    io: AuthIO
    issuer: str
    token_endpoint: str
    registration: ClientRegistration
    settings: AuthSettings
    clock: Clock
    key: ProofKey | None = None
    """Binds the tokens (DPoP)."""


@record(kw_only=True)
class TokenGrant:
    """Tokens from a response, and the account from its ID token."""

    tokens: TokenSet
    account: str = ""


async def request_tokens(client: TokenClient, fields: Mapping[str, str]) -> TokenGrant:
    """Send a token request, and repeat it if the issuer asks for a DPoP nonce (RFC 9449 §8).

    Raises `AuthFault` if the issuer refused, couldn't be reached, or sent no token of a known type.
    """
    reply = await send_token_request(client, fields)
    if not reply.is_success:
        raise build_reply_fault(reply, client.issuer, f"the token request ({fields['grant_type'].rpartition(':')[2]})")
    return parse_token_reply(reply, client)


async def send_token_request(client: TokenClient, fields: Mapping[str, str]) -> HttpReply:
    """Send a token request as the registered client, and return the raw response."""
    own_headers, own_fields = build_client_authentication(client)
    origin = get_origin_of(client.token_endpoint)
    has_new_nonce = False
    while True:
        headers = dict(own_headers)
        if client.key is not None:
            headers["dpop"] = client.key.sign_proof("POST", client.token_endpoint, origin, client.clock.now_ms())
        reply = await client.io.post_form(client.token_endpoint, {**fields, **own_fields}, headers)
        nonce = reply.headers.get("dpop-nonce")
        if client.key is None or nonce is None or has_new_nonce:
            return reply
        client.key.nonces[origin] = nonce
        has_new_nonce = True
        if reply.is_success or reply.parse_object().get("error") != "use_dpop_nonce":
            return reply


def build_client_authentication(client: TokenClient) -> tuple[dict[str, str], dict[str, str]]:
    """Build the headers and fields that authenticate a client (RFC 6749 §2.3).

    Raises `AuthFault` if the method needs a secret or key that's missing.
    """
    registration, settings = client.registration, client.settings
    client_id, secret, method = registration.client_id, registration.client_secret, registration.auth_method
    if method == "none":
        return {}, {"client_id": client_id}
    if method == "private_key_jwt":
        if not settings.private_key:
            raise AuthFault(f"{client.issuer}: client {client_id!r} needs a `private_key` in the row's `auth`")
        # Audience is the issuer: https://www.ietf.org/archive/id/draft-ietf-oauth-rfc7523bis-03.html#section-4
        assertion = sign_client_assertion(
            settings.private_key, settings.signing_algorithm, client_id, client.issuer, client.clock.now_ms()
        )
        return {}, {"client_id": client_id, "client_assertion_type": _ASSERTION_TYPE, "client_assertion": assertion}
    if secret is None:
        raise AuthFault(f"{client.issuer}: client {client_id!r} needs a `client_secret` in the row's `auth`")
    if method == "client_secret_post":
        return {}, {"client_id": client_id, "client_secret": secret}
    pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
    # The id isn't secret, and the SDK's authorization server only looks for it in the form.
    headers = {"authorization": f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"}
    return headers, {"client_id": client_id}


def choose_auth_method(settings: AuthSettings, supported: tuple[str, ...], *, has_secret: bool) -> AuthMethod:
    """Choose how a client authenticates, from its settings and the issuer's support."""
    if settings.auth_method is not None:
        return settings.auth_method
    if settings.private_key is not None:
        return "private_key_jwt"
    if not has_secret:
        return "none"
    # Without a list, `client_secret_basic` is the default (RFC 8414 §2).
    if not supported or "client_secret_basic" in supported:
        return "client_secret_basic"
    return "client_secret_post" if "client_secret_post" in supported else "none"


def parse_token_reply(reply: HttpReply, client: TokenClient) -> TokenGrant:
    """Parse a token endpoint's response (RFC 6749 §5.1).

    Raises `AuthFault` if it has no access token, or one of an unknown type.
    """
    document, now_ms = reply.parse_object(), client.clock.now_ms()
    token, kind = document.get("access_token"), str(document.get("token_type", "bearer")).lower()
    if not isinstance(token, str) or not (token.isascii() and token.isprintable() and 0 < len(token) <= _TEXT_LIMIT):
        raise AuthFault(f"{client.issuer}: its response has no access token")
    if kind not in {"bearer", "dpop"} or (kind == "dpop" and client.key is None):
        raise AuthFault(f"{client.issuer}: its response has a token of an unknown type")
    refresh, scope = document.get("refresh_token"), document.get("scope")
    life_s = _parse_seconds(document.get("expires_in"))
    tokens = TokenSet(
        access_token=token,
        refresh_token=refresh if isinstance(refresh, str) and 0 < len(refresh) <= _TEXT_LIMIT else None,
        token_type="DPoP" if kind == "dpop" else "Bearer",
        scope=tuple(scope.split()) if isinstance(scope, str) else None,
        obtained_at_ms=now_ms,
        expires_at_ms=None if life_s is None else now_ms + life_s * 1000,
    )
    claims = read_claims(str(document.get("id_token", "")))
    names = (claims.get(name) for name in ("email", "preferred_username", "name", "sub"))
    account = next((name for name in names if isinstance(name, str) and name.isprintable()), "")
    return TokenGrant(tokens=tokens, account=account[:200])


def _parse_seconds(value: object) -> int | None:
    """Parse a duration in seconds, which some issuers send as text."""
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value[:12])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_LIFE_S:
        return None
    return int(value)


# -- proofs: DPoP (RFC 9449 §4) and client assertions (RFC 7523 §2.2) ---------------------------


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

    Raises `AuthFault` if the key doesn't work with the algorithm.
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


# -- grants ----------------------------------------------------------------------------------------
#
# An authorization server's redirect is checked before anything in it is used or shown: `state` (RFC 6749 §10.12), then
# `iss` (RFC 9207 §2.4), then its error.


_URN = "urn:ietf:params:oauth"
JWT_BEARER = f"{_URN}:grant-type:jwt-bearer"
DEVICE_GRANT = f"{_URN}:grant-type:device_code"
_TOKEN_EXCHANGE = f"{_URN}:grant-type:token-exchange"
_ID_JAG = f"{_URN}:token-type:id-jag"
_ID_TOKEN = f"{_URN}:token-type:id_token"
_ACCESS_TOKEN = f"{_URN}:token-type:access_token"
_POLL_S = 5
_SLOW_DOWN_S = 5
_LONGEST_POLL_S = 60


@record(kw_only=True)
class GrantRequest:
    """Parameters of a grant."""

    client: TokenClient
    issuer: IssuerMetadata
    scopes: tuple[str, ...] = ()
    indicator: str = ""
    receiver: RedirectReceiver | None = None
    """Receives the redirect of an authorization code."""

    @property
    def target(self) -> dict[str, str]:
        """Parameters that tell what the token is for: `scope` and `resource`, if known."""
        scope = {"scope": " ".join(self.scopes)} if self.scopes else {}
        return scope | ({"resource": self.indicator} if self.indicator else {})


async def run_grant(request: GrantRequest) -> TokenGrant:
    """Run the configured grant. Raises `AuthFault` if it was refused, or can't work."""
    settings = request.client.settings
    match settings.grant:
        case "authorization_code":
            return await _request_by_code(request)
        case "device_code":
            return await _request_by_device(request)
        case "client_credentials" | "token_exchange":
            fields = {"grant_type": "client_credentials", **request.target}
            return await request_tokens(request.client, fields)
        case "jwt_bearer":
            if not settings.assertion:
                raise AuthFault(f"{request.issuer.issuer}: the grant needs an `assertion` in the row's `auth`")
            return await _request_by_assertion(request, settings.assertion)
        case "id_jag":
            assertion = await _exchange_id_token(request)
            return await _request_by_assertion(request, assertion)


async def _request_by_code(request: GrantRequest) -> TokenGrant:
    issuer, client, receiver = request.issuer, request.client, request.receiver
    assert receiver is not None
    if not issuer.authorization_endpoint:
        raise AuthFault(f"{issuer.issuer}: its metadata has no authorization endpoint")
    if not issuer.supports_s256 and not client.settings.assume_pkce:
        problem = "its metadata does not offer PKCE with S256, without which a code can be stolen"
        raise AuthFault(f"{issuer.issuer}: {problem}; if it supports it, set `assume_pkce` in the row's `auth`")
    verifier, state = secrets.token_urlsafe(48), secrets.token_urlsafe(24)
    query = {
        "response_type": "code",
        "client_id": client.registration.client_id,
        "redirect_uri": receiver.redirect_uri,
        "state": state,
        "code_challenge": encode_base64url(hashlib.sha256(verifier.encode()).digest()),
        "code_challenge_method": "S256",
        **request.target,
    }
    if issuer.is_openid and "offline_access" in request.scopes:
        query["prompt"] = "consent"  # https://openid.net/specs/openid-connect-core-1_0.html#OfflineAccess
    joint = "&" if "?" in issuer.authorization_endpoint else "?"
    answer = await receiver.authorize(f"{issuer.authorization_endpoint}{joint}{urlencode(query)}")
    code = _check_redirect(answer, state, issuer)
    fields = {
        "grant_type": "authorization_code",
        "code": code,
        "redirect_uri": receiver.redirect_uri,
        "code_verifier": verifier,
        **({"resource": request.indicator} if request.indicator else {}),
    }
    return await request_tokens(client, fields)


def _check_redirect(answer: Mapping[str, str], state: str, issuer: IssuerMetadata) -> str:
    """Return the code of an authorization response."""
    if not hmac.compare_digest(answer.get("state", "").encode(), state.encode()):
        raise AuthFault(f"{issuer.issuer}: the redirect belongs to another sign-in (`state`); sign in again")
    claimed = answer.get("iss")
    if not (_is_own_identifier(claimed, issuer) if claimed is not None else not issuer.sends_issuer):
        # Don't even show such a response's error: another issuer may have sent it (RFC 9207 §2.4).
        raise AuthFault(f"{issuer.issuer}: the redirect does not come from this issuer (`iss`, RFC 9207)")
    if error := answer.get("error"):
        shown = error if len(error) <= 60 and error.replace("_", "").isalnum() else "an unknown error"
        raise AuthFault(f"{issuer.issuer}: signing in was refused ({shown})", error=shown)
    if not (code := answer.get("code", "")):
        raise AuthFault(f"{issuer.issuer}: the redirect has no code")
    return code


def _is_own_identifier(claimed: str, issuer: IssuerMetadata) -> bool:
    """Return whether an `iss` is the issuer's, or shares its origin if the issuer's identifier is unknown."""
    if issuer.has_identifier:
        return claimed == issuer.issuer
    try:
        return get_origin_of(claimed) == get_origin_of(issuer.authorization_endpoint)
    except AuthFault:
        return False


async def _request_by_device(request: GrantRequest) -> TokenGrant:
    issuer, client = request.issuer, request.client
    if not issuer.device_endpoint:
        raise AuthFault(f"{issuer.issuer}: it offers no sign-in on another device (RFC 8628); sign in by a browser")
    headers, own = build_client_authentication(client)
    fields = {"client_id": client.registration.client_id, **own, **request.target}
    reply = await client.io.post_form(issuer.device_endpoint, fields, headers)
    answer = reply.parse_object()
    device_code, user_code = _get_text(answer, "device_code"), _get_text(answer, "user_code")
    if not reply.is_success or not (device_code and user_code):
        raise build_reply_fault(reply, issuer.issuer, "requesting a device code")
    complete, expires_s, poll_s = _get_text(answer, "verification_uri_complete"), answer.get("expires_in"), _POLL_S
    if isinstance(interval := answer.get("interval"), int):
        poll_s = min(max(interval, 1), _LONGEST_POLL_S)
    shown = DeviceCode(
        user_code=user_code,
        verification_uri=check_endpoint(_get_text(answer, "verification_uri"), "verification address", issuer.issuer),
        verification_uri_complete=check_endpoint(complete, "verification address", issuer.issuer) if complete else "",
        expires_s=expires_s if isinstance(expires_s, int) and 0 < expires_s <= 3600 else 600,
    )
    await client.io.require_prompt().show_device_code(shown)
    waited_s = 0
    while waited_s < shown.expires_s:
        await client.io.pause(poll_s)
        waited_s += poll_s
        reply = await send_token_request(client, {"grant_type": DEVICE_GRANT, "device_code": device_code})
        if reply.is_success:
            return parse_token_reply(reply, client)
        error = reply.parse_object().get("error")
        if error == "slow_down":
            poll_s += _SLOW_DOWN_S
        elif reply.is_transient:
            poll_s = min(poll_s * 2, _LONGEST_POLL_S)
        elif error != "authorization_pending":
            raise build_reply_fault(reply, issuer.issuer, "signing in on another device")
    raise AuthFault(f"{issuer.issuer}: the code was not entered in time; sign in again")


async def _request_by_assertion(request: GrantRequest, assertion: str) -> TokenGrant:
    fields = {"grant_type": JWT_BEARER, "assertion": assertion, **request.target}
    return await request_tokens(request.client, fields)


async def _exchange_id_token(request: GrantRequest) -> str:
    """Exchange the user's ID token for an assertion that the issuer accepts (ID-JAG).

    https://www.ietf.org/archive/id/draft-ietf-oauth-identity-assertion-authz-grant-01.html#section-4.3
    """
    settings = request.client.settings
    provider = settings.identity_provider
    if provider is None:
        raise AuthFault(f"{request.issuer.issuer}: the grant needs an `identity_provider` in the row's `auth`")
    fields = {
        "grant_type": _TOKEN_EXCHANGE,
        "requested_token_type": _ID_JAG,
        "audience": request.issuer.issuer,
        "subject_token": provider.id_token,
        "subject_token_type": _ID_TOKEN,
        **request.target,
    }
    endpoint = check_endpoint(provider.token_endpoint, "token endpoint", "the identity provider")
    registration = ClientRegistration(
        client_id=provider.client_id,
        client_secret=provider.client_secret,
        auth_method="none" if provider.client_secret is None else "client_secret_basic",
    )
    client = TokenClient(
        io=request.client.io,
        issuer=endpoint,
        token_endpoint=endpoint,
        registration=registration,
        settings=settings,
        clock=request.client.clock,
    )
    reply = await send_token_request(client, fields)
    answer = reply.parse_object()
    assertion = _get_text(answer, "access_token")
    if not reply.is_success or not assertion or answer.get("issued_token_type") != _ID_JAG:
        raise build_reply_fault(reply, endpoint, "the token exchange (ID-JAG)")
    return assertion


async def exchange_subject(client: TokenClient, subject: str, indicator: str) -> TokenGrant:
    """Exchange a user's access token for one for another server (RFC 8693 §2.1).

    Raises `AuthFault` if the issuer refused, or couldn't be reached.
    """
    scopes = client.settings.scopes
    fields = {
        "grant_type": _TOKEN_EXCHANGE,
        "subject_token": subject,
        "subject_token_type": _ACCESS_TOKEN,
        "requested_token_type": _ACCESS_TOKEN,
        **({"scope": " ".join(scopes)} if scopes else {}),
        **({"resource": indicator} if indicator else {}),
    }
    return await request_tokens(client, fields)


def _get_text(document: JsonObject, name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) and value.isprintable() else ""
