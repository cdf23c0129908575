"""Client registration: the client id that an issuer gets to see.

In the order of the specification: a client that the user has registered, a client ID metadata document where the issuer
supports that, dynamic registration (RFC 7591).
https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#client-registration-approaches. A
registration belongs to one issuer and is never shown to another; the URL of a metadata document is public.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.interop.auth.contract import AUTH_METHODS, AuthFault, ClientRegistration
from indusagi.interop.auth.steps import build_reply_fault, post_json
from indusagi.interop.auth.token_endpoint import choose_auth_method

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonLike
    from indusagi.interop.auth.contract import AuthMethod, AuthSettings
    from indusagi.interop.auth.metadata import IssuerMetadata
    from indusagi.interop.auth.steps import Steps

CLIENT_NAME = "indus"
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def find_registration(
    issuer: IssuerMetadata, settings: AuthSettings, *, allows_document: bool = True
) -> ClientRegistration | None:
    """Return the registration that needs no request: the configured client, or the metadata document."""
    if settings.client_id:
        has_secret = settings.client_secret is not None
        method = choose_auth_method(settings, issuer.auth_methods, has_secret=has_secret)
        # The secret stays in the configuration: what is stored has no copy of it.
        return ClientRegistration(client_id=settings.client_id, auth_method=method, source="configured")
    if settings.client_metadata_url and issuer.supports_client_documents and allows_document:
        method = choose_auth_method(settings, issuer.auth_methods, has_secret=False)
        return ClientRegistration(
            client_id=settings.client_metadata_url, auth_method=method, source="metadata_document"
        )
    return None


def can_reuse(stored: ClientRegistration, redirect_uri: str, now_ms: int) -> bool:
    """Return whether a stored dynamic registration still fits: its redirect URI is the same, its secret is valid.

    RFC 8252 §7.3 lets the port of a loopback redirect vary, and many issuers compare it all the same.
    """
    is_expired = stored.secret_expires_at_ms is not None and now_ms >= stored.secret_expires_at_ms
    # Without a redirect, for another device, a client is registered for that grant alone.
    fits = redirect_uri in stored.redirect_uris if redirect_uri else not stored.redirect_uris
    return stored.source == "dynamic" and not is_expired and fits


def register_client(
    issuer: IssuerMetadata, settings: AuthSettings, redirect_uri: str, scopes: Sequence[str], *, uses_dpop: bool = False
) -> Steps[ClientRegistration]:
    """Register a client dynamically (RFC 7591 §3.1).

    Raises:
        AuthFault: The issuer does not offer that, or refused.
    """
    if not issuer.registration_endpoint:
        problem = "it registers no clients by itself; register one there, and set `client_id` in the row's `auth`"
        raise AuthFault(f"{issuer.issuer}: {problem}")
    method = _choose_method(issuer, settings)
    is_device = settings.grant == "device_code"
    document: dict[str, JsonLike] = {
        "client_name": CLIENT_NAME,
        "application_type": "native",
        "grant_types": [_DEVICE_GRANT if is_device else "authorization_code", "refresh_token"],
        "token_endpoint_auth_method": method,
    }
    # Named also without a redirect: absent, the response types are `code`, which needs one (RFC 7591 §2).
    document["redirect_uris"] = [redirect_uri] if redirect_uri else []
    document["response_types"] = ["code"] if redirect_uri else []
    if scopes:
        document["scope"] = " ".join(scopes)
    if uses_dpop:
        document["dpop_bound_access_tokens"] = True
    reply = yield from post_json(issuer.registration_endpoint, document)
    answer = reply.parse_object()
    client_id, secret = answer.get("client_id"), answer.get("client_secret")
    if not reply.is_success or not isinstance(client_id, str) or not client_id:
        raise build_reply_fault(reply, issuer.issuer, "registering a client")
    expires_s, named = answer.get("client_secret_expires_at"), answer.get("token_endpoint_auth_method")
    granted: AuthMethod | None = next((name for name in AUTH_METHODS if name == named), None)
    return ClientRegistration(
        client_id=client_id,
        client_secret=secret if isinstance(secret, str) and secret else None,
        auth_method=granted or method,
        source="dynamic",
        redirect_uris=(redirect_uri,) if redirect_uri else (),
        secret_expires_at_ms=expires_s * 1000 if isinstance(expires_s, int) and expires_s > 0 else None,
    )


def _choose_method(issuer: IssuerMetadata, settings: AuthSettings) -> AuthMethod:
    """Choose the method to ask for: none, since a program on the user's machine keeps no secret (RFC 8252 §8.5)."""
    if settings.auth_method is not None:
        return settings.auth_method
    if not issuer.auth_methods or "none" in issuer.auth_methods:
        return "none"
    return choose_auth_method(settings, issuer.auth_methods, has_secret=True)
