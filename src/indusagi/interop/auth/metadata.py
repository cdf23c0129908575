"""Metadata documents of servers and issuers: parsed, and checked against what they claim to describe.

Documents come from untrusted servers. We reject a document about another server or issuer than the one we asked for
(RFC 9728 §3.3, RFC 8414 §3.3); every endpoint must be https, or http on this machine.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, urlsplit, urlunsplit

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.core.secrets import hide_in_urls
from indusagi.interop.auth.contract import AuthFault, parse_texts


@record(kw_only=True)
class ResourceMetadata:
    """Metadata of a protected resource (RFC 9728 §2)."""

    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] | None = None
    requires_dpop: bool = False


@record(kw_only=True)
class IssuerMetadata:
    """Metadata of an authorization server (RFC 8414 §2), the parts we use."""

    issuer: str
    has_identifier: bool = True
    """Whether `issuer` is its identifier; otherwise only its endpoints are known, and `issuer` is their origin."""
    token_endpoint: str
    refresh_endpoint: str = ""
    """Where to refresh tokens; empty: at the token endpoint."""
    authorization_endpoint: str = ""
    registration_endpoint: str = ""
    revocation_endpoint: str = ""
    device_endpoint: str = ""
    scopes: tuple[str, ...] = ()
    auth_methods: tuple[str, ...] = ()
    """Supported at the token endpoint; empty if the issuer names none."""
    supports_s256: bool
    supports_client_documents: bool = False
    sends_issuer: bool = False
    """It adds `iss` to every authorization response (RFC 9207 §3)."""
    is_openid: bool = False
    dpop_algorithms: tuple[str, ...] = ()


def parse_resource_metadata(document: JsonObject, server_url: str) -> ResourceMetadata:
    """Parse a protected resource's metadata.

    Raises `AuthFault` if it describes another resource, or names no authorization server.
    """
    resource = document.get("resource")
    origin = get_origin_of(server_url)
    if not isinstance(resource, str) or not is_resource_of(resource, server_url):
        raise AuthFault(f"{origin}: its metadata describes another server, so that a token could be misused")
    issuers = parse_texts(document, "authorization_servers")
    if not issuers:
        raise AuthFault(f"{origin}: its metadata names no authorization server; set `issuer` in the row's `auth`")
    return ResourceMetadata(
        resource=resource,
        issuers=issuers,
        scopes=None if document.get("scopes_supported") is None else parse_texts(document, "scopes_supported"),
        requires_dpop=document.get("dpop_bound_access_tokens_required") is True,
    )


def parse_issuer_metadata(document: JsonObject, *issuers: str) -> IssuerMetadata:
    """Parse metadata of one of `issuers`; "" accepts any (the user named the document's URL).

    Raises `AuthFault` if it describes another issuer, or an endpoint isn't safe.
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
        scopes=parse_texts(document, "scopes_supported"),
        auth_methods=parse_texts(document, "token_endpoint_auth_methods_supported"),
        supports_s256="S256" in parse_texts(document, "code_challenge_methods_supported"),
        supports_client_documents=document.get("client_id_metadata_document_supported") is True,
        sends_issuer=document.get("authorization_response_iss_parameter_supported") is True,
        is_openid="id_token_signing_alg_values_supported" in document,
        dpop_algorithms=parse_texts(document, "dpop_signing_alg_values_supported"),
    )


def build_default_metadata(origin: str) -> IssuerMetadata:
    """Build the metadata of a server of revision 2025-03-26 that doesn't publish any.

    https://modelcontextprotocol.io/specification/2025-03-26/basic/authorization#fallbacks-for-servers-without-metadata-discovery

    Raises `AuthFault` if the server doesn't use https.
    """
    return IssuerMetadata(
        issuer=origin,
        authorization_endpoint=check_endpoint(f"{origin}/authorize", "authorization endpoint", origin),
        token_endpoint=f"{origin}/token",
        registration_endpoint=f"{origin}/register",
        supports_s256=True,
    )


# -- locations --------------------------------------------------------------------------------


RESOURCE_SUFFIX = "/.well-known/oauth-protected-resource"
_OAUTH_SUFFIX = "/.well-known/oauth-authorization-server"
_OPENID_SUFFIX = "/.well-known/openid-configuration"
_PORTS = {"http": 80, "https": 443}
_SHOWN_CHARS = 200
_LOOPBACK = re.compile(r"localhost|(?:[^.]+\.)+localhost|127(?:\.\d{1,3}){3}|::1", re.IGNORECASE)


def split_address(url: str) -> SplitResult:
    """Split a URL from a server, an issuer or the user. Raises `AuthFault` if it's malformed."""
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port  # parsed on access
    except ValueError:
        raise AuthFault(f"{hide_in_urls(url)[:_SHOWN_CHARS]!r} is not an address") from None
    return parts


def canonical_resource(url: str) -> str:
    """Return a server's canonical URI: scheme and host in lower case, no default port, query or fragment.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#canonical-server-uri. We drop the query
    too: RFC 8707 §2 advises against one, and the query of a server's URL often holds a key.

    Raises `AuthFault` if the URL is malformed.
    """
    parts = split_address(url)
    path = "" if parts.path == "/" else parts.path
    return urlunsplit((parts.scheme.lower(), _get_authority(parts), path, "", ""))


def is_resource_of(resource: str, url: str) -> bool:
    """Return whether a protected resource covers a URL: the same origin, and the same path or one above it."""
    try:
        resource, url = canonical_resource(resource), canonical_resource(url)
    except AuthFault:
        return False
    return url == resource or url.startswith(f"{resource.rstrip('/')}/")


def build_resource_metadata_urls(url: str) -> tuple[str, ...]:
    """Return possible locations of a resource's metadata: below its path, then at the root (RFC 9728 §3.1)."""
    return _insert_suffix(url, RESOURCE_SUFFIX), f"{get_origin_of(url)}{RESOURCE_SUFFIX}"


def build_issuer_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return possible locations of an issuer's metadata, in the order of the specification.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#authorization-server-metadata-discovery
    """
    inserted = (_insert_suffix(issuer, _OAUTH_SUFFIX), _insert_suffix(issuer, _OPENID_SUFFIX))
    appended = f"{issuer.rstrip('/')}{_OPENID_SUFFIX}"
    return tuple(dict.fromkeys((*inserted, appended)))


def get_origin_of(url: str) -> str:
    """Return scheme and authority, without a default port. Raises `AuthFault` if the URL is malformed."""
    parts = split_address(url)
    return f"{parts.scheme}://{_get_authority(parts)}"


def is_loopback(url: str) -> bool:
    """Return whether a URL points to this machine, judging by its form alone (RFC 6761 §6.3)."""
    try:
        return _LOOPBACK.fullmatch(split_address(url).hostname or "") is not None
    except AuthFault:
        return False


def check_endpoint(url: str, role: str, owner: str) -> str:
    """Return a URL that's safe to send a secret or the user to: https, or http on this machine (RFC 8252 §8.3).

    A scheme such as `javascript` or `file` would run in the user's browser or desktop. Raises `AuthFault` if it's any
    other URL.
    """
    try:
        parts = split_address(url)
        is_usable = bool(parts.hostname) and parts.username is None and parts.port != 0
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url))
    except AuthFault:
        is_usable = is_safe = False
    if not (is_usable and is_safe and url.isascii() and url.isprintable() and " " not in url):
        raise AuthFault(f"{owner}: its {role} is no https address, so that signing in would not be safe")
    return url


def _insert_suffix(url: str, suffix: str) -> str:
    """Insert a well-known suffix between the host and the path (RFC 8414 §3.1)."""
    return f"{get_origin_of(url)}{suffix}{split_address(url).path.rstrip('/')}"


def _get_authority(parts: SplitResult) -> str:
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    is_default = parts.port is None or parts.port == _PORTS.get(parts.scheme)
    return host if is_default else f"{host}:{parts.port}"
