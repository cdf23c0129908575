"""Grants: ways from a registered client to a first access token.

An authorization server's redirect is checked before anything in it is used or shown: `state` (RFC 6749 §10.12), then
`iss` (RFC 9207 §2.4), then its error.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from indusagi.core.records import record
from indusagi.interop.auth.contract import AuthFault, ClientRegistration, DeviceCode
from indusagi.interop.auth.metadata import IssuerMetadata, check_endpoint, get_origin_of
from indusagi.interop.auth.requests import build_reply_fault
from indusagi.interop.auth.token_endpoint import (
    TokenClient,
    TokenGrant,
    build_client_authentication,
    encode_base64url,
    parse_token_reply,
    request_tokens,
    send_token_request,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.auth.contract import RedirectReceiver

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
