"""The token endpoint: client authentication, DPoP with nonces, and parsing responses."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from urllib.parse import quote

from indusagi.core.records import record
from indusagi.interop.auth.contract import AuthFault, TokenSet
from indusagi.interop.auth.metadata import get_origin_of
from indusagi.interop.auth.proofs import ProofKey, read_claims, sign_client_assertion
from indusagi.interop.auth.steps import build_reply_fault, post_form

if TYPE_CHECKING:
    from collections.abc import Mapping

    from indusagi.core.time import Clock
    from indusagi.interop.auth.contract import AuthMethod, AuthSettings, ClientRegistration
    from indusagi.interop.auth.steps import HttpReply, Steps

_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_TEXT_LIMIT = 64 * 1024
_MAX_LIFE_S = 10 * 366 * 86_400


@record(kw_only=True)
class TokenClient:
    """A client at the token endpoint of one issuer."""

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


def request_tokens(client: TokenClient, fields: Mapping[str, str]) -> Steps[TokenGrant]:
    """Send a token request, and repeat it if the issuer asks for a DPoP nonce (RFC 9449 §8).

    Raises:
        AuthFault: The issuer refused, couldn't be reached, or sent no token of a known type.
    """
    reply = yield from send_token_request(client, fields)
    if not reply.is_success:
        raise build_reply_fault(reply, client.issuer, f"the token request ({fields['grant_type'].rpartition(':')[2]})")
    return parse_token_reply(reply, client)


def send_token_request(client: TokenClient, fields: Mapping[str, str]) -> Steps[HttpReply]:
    """Send a token request as the registered client, and return the raw response."""
    own_headers, own_fields = build_client_authentication(client)
    origin = get_origin_of(client.token_endpoint)
    has_new_nonce = False
    while True:
        headers = dict(own_headers)
        if client.key is not None:
            headers["dpop"] = client.key.sign_proof("POST", client.token_endpoint, origin, client.clock.now_ms())
        reply = yield from post_form(client.token_endpoint, {**fields, **own_fields}, headers)
        nonce = reply.headers.get("dpop-nonce")
        if client.key is None or nonce is None or has_new_nonce:
            return reply
        client.key.nonces[origin] = nonce
        has_new_nonce = True
        if reply.is_success or reply.parse_object().get("error") != "use_dpop_nonce":
            return reply


def build_client_authentication(client: TokenClient) -> tuple[dict[str, str], dict[str, str]]:
    """Build the headers and fields that authenticate a client (RFC 6749 §2.3).

    Raises:
        AuthFault: The method needs a secret or key that's missing.
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

    Raises:
        AuthFault: It has no access token, or one of an unknown type.
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
