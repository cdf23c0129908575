"""Discovery: from a server's URL and its challenge to the issuer that gives tokens for it.

https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#authorization-server-discovery. A server
without metadata of its own belongs to the revision 2025-03-26: it is its own issuer, at the root of its origin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.interop.auth.contract import AuthFault
from indusagi.interop.auth.locations import (
    build_issuer_metadata_urls,
    build_resource_metadata_urls,
    canonical_resource,
    check_endpoint,
    get_origin_of,
)
from indusagi.interop.auth.metadata import (
    IssuerMetadata,
    ResourceMetadata,
    build_default_metadata,
    parse_issuer_metadata,
    parse_resource_metadata,
)
from indusagi.interop.auth.steps import build_reply_fault, fetch_json

if TYPE_CHECKING:
    from indusagi.interop.auth.challenge import Challenge
    from indusagi.interop.auth.contract import AuthSettings
    from indusagi.interop.auth.steps import Steps

_WELL_KNOWN_ISSUERS = 4
"""The most issuers of one server that are tried."""


@record(kw_only=True)
class Discovery:
    """What is known about a server and its issuer before a sign-in."""

    issuer: IssuerMetadata
    resource: ResourceMetadata | None = None
    """`None`: a server without metadata (2025-03-26)."""

    @property
    def indicator(self) -> str:
        """The `resource` parameter of every request to the issuer (RFC 8707 §2); empty: none is known."""
        return "" if self.resource is None else self.resource.resource


def discover(
    server_url: str, settings: AuthSettings, challenge: Challenge | None, preferred: str = ""
) -> Steps[Discovery]:
    """Find the issuer of a server; `preferred` is the one that an earlier sign-in has used.

    Raises:
        AuthFault: Metadata is absent, contradicts itself, or could not be fetched.
    """
    resource = yield from _find_resource_metadata(server_url, challenge)
    if settings.metadata_url:
        url = check_endpoint(settings.metadata_url, "metadata document", get_origin_of(settings.metadata_url))
        reply, document = yield from fetch_json(url)
        if not document:
            raise build_reply_fault(reply, url, "fetching the issuer's metadata")
        return Discovery(issuer=parse_issuer_metadata(document, settings.issuer), resource=resource)
    if resource is None and not settings.issuer:
        # https://modelcontextprotocol.io/specification/2025-03-26/basic/authorization#server-metadata-discovery
        origin = get_origin_of(server_url)
        found = yield from _find_issuer_metadata(check_endpoint(origin, "address", origin), f"{origin}/")
        return Discovery(issuer=build_default_metadata(origin) if found is None else found)
    named = resource.issuers if resource is not None else ()
    # Several issuers are independent of each other: the user's choice, then the one already used, then their order.
    candidates = [settings.issuer] if settings.issuer else sorted(named, key=lambda issuer: issuer != preferred)
    for issuer in candidates[:_WELL_KNOWN_ISSUERS]:
        found = yield from _find_issuer_metadata(check_endpoint(issuer, "address", issuer))
        if found is not None:
            return Discovery(issuer=found, resource=resource or _assume_resource(server_url, issuer))
    raise AuthFault(f"{', '.join(candidates)}: no metadata is published (RFC 8414); set `metadata_url` in `auth`")


def _assume_resource(server_url: str, issuer: str) -> ResourceMetadata:
    return ResourceMetadata(resource=canonical_resource(server_url), issuers=(issuer,))


def _find_resource_metadata(server_url: str, challenge: Challenge | None) -> Steps[ResourceMetadata | None]:
    named = "" if challenge is None else challenge.parameters.get("resource_metadata", "")
    if named:
        origin = get_origin_of(server_url)
        is_own = get_origin_of(named) == origin
        reply, document = yield from fetch_json(named if is_own else check_endpoint(named, "metadata document", origin))
        if document:
            return parse_resource_metadata(document, server_url)
        if reply.is_transient:
            raise build_reply_fault(reply, get_origin_of(server_url), "fetching its metadata")
    for url in build_resource_metadata_urls(server_url):
        reply, document = yield from fetch_json(url)
        if document:
            return parse_resource_metadata(document, server_url)
        if reply.is_transient:
            # Otherwise an outage would look like a server without metadata, and lead to another issuer.
            raise build_reply_fault(reply, get_origin_of(server_url), "fetching its metadata")
    return None


def _find_issuer_metadata(issuer: str, *also: str) -> Steps[IssuerMetadata | None]:
    for url in build_issuer_metadata_urls(issuer):
        reply, document = yield from fetch_json(url)
        if document:
            return parse_issuer_metadata(document, issuer, *also)
        if reply.is_transient:
            raise build_reply_fault(reply, issuer, "fetching its metadata")
    return None
