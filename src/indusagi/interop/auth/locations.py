"""URLs of signing in: the canonical URI of a server, well-known locations, and which URLs may be used at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from indusagi.interop.auth.contract import AuthFault

if TYPE_CHECKING:
    from urllib.parse import SplitResult

RESOURCE_SUFFIX = "/.well-known/oauth-protected-resource"
_OAUTH_SUFFIX = "/.well-known/oauth-authorization-server"
_OPENID_SUFFIX = "/.well-known/openid-configuration"
_PORTS = {"http": 80, "https": 443}
_SHOWN_CHARS = 200
_LOOPBACK = re.compile(r"localhost|(?:[^.]+\.)+localhost|127(?:\.\d{1,3}){3}|::1", re.IGNORECASE)


def split_address(url: str) -> SplitResult:
    """Split a URL that a server, an issuer or a user has named.

    Raises:
        AuthFault: It is malformed.
    """
    try:
        parts = urlsplit(url)
        _ = parts.hostname, parts.port  # parsed when they are read
    except ValueError as exc:
        raise AuthFault(f"{url[:_SHOWN_CHARS]!r} is not an address: {exc}") from None
    return parts


def canonical_resource(url: str) -> str:
    """Return the canonical URI of a server: scheme and host in lower case, no default port, query or fragment.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#canonical-server-uri. A query is left
    out too: RFC 8707 §2 advises against one, and a query of a server's URL often holds a key.

    Raises:
        AuthFault: The URL is malformed.
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
    """Return where the metadata of a protected resource may be: below its path, then at the root (RFC 9728 §3.1)."""
    return _insert_suffix(url, RESOURCE_SUFFIX), f"{get_origin_of(url)}{RESOURCE_SUFFIX}"


def build_issuer_metadata_urls(issuer: str) -> tuple[str, ...]:
    """Return where the metadata of an issuer may be, in the order of the specification.

    https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#authorization-server-metadata-discovery
    """
    inserted = (_insert_suffix(issuer, _OAUTH_SUFFIX), _insert_suffix(issuer, _OPENID_SUFFIX))
    appended = f"{issuer.rstrip('/')}{_OPENID_SUFFIX}"
    return tuple(dict.fromkeys((*inserted, appended)))


def get_origin_of(url: str) -> str:
    """Return scheme and authority, without a default port.

    Raises:
        AuthFault: The URL is malformed.
    """
    parts = split_address(url)
    return f"{parts.scheme}://{_get_authority(parts)}"


def is_loopback(url: str) -> bool:
    """Return whether a URL leads to this machine, by its form alone (RFC 6761 §6.3)."""
    try:
        return _LOOPBACK.fullmatch(split_address(url).hostname or "") is not None
    except AuthFault:
        return False


def check_endpoint(url: str, role: str, owner: str) -> str:
    """Return a URL to which a secret or a person may be sent: https, or http on this machine (RFC 8252 §8.3).

    A scheme such as `javascript` or `file` would run in the browser or the desktop of the user.

    Raises:
        AuthFault: It is another URL.
    """
    try:
        parts = split_address(url)
        is_usable = bool(parts.hostname) and parts.username is None and parts.port != 0
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(url))
    except AuthFault:
        is_usable = is_safe = False
    if not (is_usable and is_safe and url.isprintable() and " " not in url):
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
