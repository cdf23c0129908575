"""Metadata documents of servers and issuers: parsed, and checked against what they claim to describe.

Documents come from servers that are not trusted. A document that describes another server or another issuer than the
one asked for is refused (RFC 9728 §3.3, RFC 8414 §3.3); every endpoint is https, or http on this machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.auth.locations import check_endpoint, get_origin_of, is_resource_of

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject


@record(kw_only=True)
class ResourceMetadata:
    """The metadata of a protected resource (RFC 9728 §2)."""

    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] | None = None
    requires_dpop: bool = False


@record(kw_only=True)
class IssuerMetadata:
    """The metadata of an authorization server (RFC 8414 §2), as far as it is used."""

    issuer: str
    has_identifier: bool = True
    """Whether `issuer` is its identifier; otherwise its endpoints were named without one, and it is their origin."""
    token_endpoint: str
    refresh_endpoint: str = ""
    """Where tokens are refreshed; empty: at the token endpoint."""
    authorization_endpoint: str = ""
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    device_endpoint: str = ""
    scopes: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] = ()
    """Supported at the token endpoint; empty: the issuer names none."""
    supports_s256: bool = False
    supports_client_documents: bool = False
    sends_issuer: bool = False
    """It adds `iss` to every authorization response (RFC 9207 §3)."""
    is_openid: bool = False
    dpop_algorithms: tuple[str, ...] = ()


def parse_resource_metadata(document: JsonObject, server_url: str) -> ResourceMetadata:
    """Parse the metadata of a protected resource.

    Raises:
        AuthFault: It describes another resource, or names no authorization server.
    """
    resource = document.get("resource")
    origin = get_origin_of(server_url)
    if not isinstance(resource, str) or not is_resource_of(resource, server_url):
        raise AuthFault(f"{origin}: its metadata describes another server, so that a token could be misused")
    issuers = _parse_texts(document, "authorization_servers")
    if not issuers:
        raise AuthFault(f"{origin}: its metadata names no authorization server; set `issuer` in the row's `auth`")
    return ResourceMetadata(
        resource=resource,
        issuers=issuers,
        scopes=None if document.get("scopes_supported") is None else _parse_texts(document, "scopes_supported"),
        requires_dpop=document.get("dpop_bound_access_tokens_required") is True,
    )


def parse_issuer_metadata(document: JsonObject, *issuers: str) -> IssuerMetadata:
    """Parse the metadata of one of `issuers`; an empty one accepts any (the user has named the document's URL).

    Raises:
        AuthFault: It describes another issuer, or an endpoint is not safe.
    """
    claimed = document.get("issuer")
    if not isinstance(claimed, str) or not ("" in issuers or claimed in issuers):
        problem = "its metadata describes another issuer (RFC 8414 §3.3); if that one is right, set `issuer` in `auth`"
        raise AuthFault(f"{issuers[0] or 'the issuer'}: {problem}")
    endpoints: dict[str, str] = {}
    for name in ("authorization", "token", "registration", "revocation", "device_authorization"):
        url = document.get(f"{name}_endpoint")
        endpoints[name] = check_endpoint(url, f"{name} endpoint", claimed) if isinstance(url, str) and url else ""
    if not endpoints["token"]:
        raise AuthFault(f"{claimed}: its metadata has no token endpoint")
    return IssuerMetadata(
        issuer=claimed,
        token_endpoint=endpoints["token"],
        authorization_endpoint=endpoints["authorization"],
        registration_endpoint=endpoints["registration"],
        revocation_endpoint=endpoints["revocation"],
        device_endpoint=endpoints["device_authorization"],
        scopes=_parse_texts(document, "scopes_supported"),
        auth_methods=_parse_texts(document, "token_endpoint_auth_methods_supported"),
        supports_s256="S256" in _parse_texts(document, "code_challenge_methods_supported"),
        supports_client_documents=document.get("client_id_metadata_document_supported") is True,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        is_openid="id_token_signing_alg_values_supported" in document,
        dpop_algorithms=_parse_texts(document, "dpop_signing_alg_values_supported"),
    )


def build_default_metadata(origin: str) -> IssuerMetadata:
    """Build what a server of the revision 2025-03-26 has that publishes no metadata.

    https://modelcontextprotocol.io/specification/2025-03-26/basic/authorization#fallbacks-for-servers-without-metadata-discovery

    Raises:
        AuthFault: The server is not reached by https.
    """
    return IssuerMetadata(
        issuer=origin,
        authorization_endpoint=check_endpoint(f"{origin}/authorize", "authorization endpoint", origin),
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
        supports_s256=True,
    )


def _parse_texts(document: JsonObject, name: str) -> tuple[str, ...]:
    value = document.get(name)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()
