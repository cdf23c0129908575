"""The procedures of a sign-in: discovery, registration, grant, refresh and revocation.

All I/O goes through an `AuthIO`. State belongs to an issuer: registrations and tokens are loaded by the issuer that
discovery found, so a server that moves to another issuer can't make us show the first issuer's credentials to the
second.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from indusagi.core.json import JsonLike
from indusagi.core.records import record
from indusagi.core.time import Clock
from indusagi.interop.auth.contract import (
    AUTH_METHODS,
    AuthFault,
    AuthMethod,
    AuthSettings,
    ClientRegistration,
    CredentialKey,
    IssuerEndpoints,
    RedirectReceiver,
    StoredCredentials,
    TokenSet,
)
from indusagi.interop.auth.metadata import (
    IssuerMetadata,
    ResourceMetadata,
    build_default_metadata,
    build_issuer_metadata_urls,
    build_resource_metadata_urls,
    canonical_resource,
    check_endpoint,
    get_origin_of,
    parse_issuer_metadata,
    parse_resource_metadata,
)
from indusagi.interop.auth.requests import AuthIO, Challenge, build_reply_fault
from indusagi.interop.auth.token_endpoint import (
    PROOF_ALGORITHM,
    GrantRequest,
    ProofKey,
    TokenClient,
    TokenGrant,
    build_client_authentication,
    choose_auth_method,
    request_tokens,
    run_grant,
)

_REFUSED_CLIENT = frozenset({"invalid_client", "unauthorized_client", "invalid_redirect_uri", "invalid_request"})
"""Errors from issuers that can't use a client ID metadata document."""


@record(kw_only=True)
class SignInRequest:
    """One sign-in: the server, how to sign in, and why."""

    server_url: str
    settings: AuthSettings
    clock: Clock
    challenge: Challenge | None = None
    previous_issuer: str = ""
    """Issuer of the last sign-in, preferred if the server names several."""
    issuer: IssuerMetadata | None = None
    """The issuer, if known without discovery."""
    resource: ResourceMetadata | None = None
    """The server's metadata, with a known issuer."""


async def sign_in(io: AuthIO, request: SignInRequest) -> StoredCredentials:
    """Sign in to a server and save the result.

    Raises `AuthFault` if a step failed. A new registration is kept for the next try.
    """
    settings = request.settings
    # A token is for the server: it must not cross the network unencrypted (RFC 6750 §5.3).
    check_endpoint(request.server_url, "address", get_origin_of(request.server_url))
    if request.issuer is not None:
        found = Discovery(issuer=request.issuer, resource=request.resource)
    else:
        found = await discover(io, request.server_url, settings, request.challenge, request.previous_issuer)
        _check_issuer(found.issuer.issuer, settings, request.previous_issuer)
    key = CredentialKey(found.issuer.issuer, canonical_resource(request.server_url), settings.client_id)
    stored = await io.store.find(key)
    scopes = select_scopes(request, found, stored)
    proof_key = _open_proof_key(request, found, stored)
    async with AsyncExitStack() as stack:
        receiver = None
        if settings.grant == "authorization_code":
            registered = () if stored is None else stored.registration.redirect_uris
            receiver = await stack.enter_async_context(io.require_prompt().open_redirect(settings, registered))
        redirect_uri = "" if receiver is None else receiver.redirect_uri

        async def register() -> ClientRegistration:
            if stored is not None and can_reuse(stored.registration, redirect_uri, request.clock.now_ms()):
                return stored.registration
            uses_dpop = proof_key is not None
            return await register_client(io, found.issuer, settings, redirect_uri, scopes, uses_dpop=uses_dpop)

        registration = find_registration(found.issuer, settings) or await register()
        base = StoredCredentials(
            key=key,
            registration=registration,
            endpoints=IssuerEndpoints(
                token_endpoint=found.issuer.token_endpoint,
                refresh_endpoint=found.issuer.refresh_endpoint,
                revocation_endpoint=found.issuer.revocation_endpoint,
                indicator=found.indicator,
            ),
            requested_scopes=scopes,
            dpop_key=None if proof_key is None else proof_key.to_json(),
        )
        if registration.source == "dynamic" and (stored is None or stored.tokens is None):
            # Save before asking the user: an abandoned sign-in shouldn't register another client next time. Tokens of
            # an earlier sign-in belong to its registration, and stay until there are new ones.
            await io.store.save(base)
        try:
            grant = await _run(io, request, found, base, receiver, proof_key)
        except AuthFault as fault:
            can_register = registration.source == "metadata_document" and bool(found.issuer.registration_endpoint)
            if not can_register or fault.error not in _REFUSED_CLIENT:
                raise
            # An issuer may refuse the document's redirect URIs, for example if it compares the port of a loopback one.
            base = replace(base, registration=await register())
            grant = await _run(io, request, found, base, receiver, proof_key)
        signed_in = replace(base, tokens=grant.tokens, account=grant.account)
        await io.store.save(signed_in)
        return signed_in


def _check_issuer(issuer: str, settings: AuthSettings, previous: str) -> None:
    """Refuse to show the user's own credentials to another issuer than before: the server alone has named it."""
    has_own = settings.client_secret or settings.private_key or settings.assertion or settings.identity_provider
    if has_own and previous not in {"", issuer} and not (settings.issuer or settings.metadata_url):
        problem = f"the server named {previous} before, and your credentials are for that one"
        raise AuthFault(f"{issuer}: {problem}; if that has changed, set `issuer` in `auth`")


async def _run(
    io: AuthIO,
    request: SignInRequest,
    found: Discovery,
    base: StoredCredentials,
    receiver: RedirectReceiver | None,
    key: ProofKey | None,
) -> TokenGrant:
    client = build_token_client(io, base, request.settings, request.clock, key)
    grant = GrantRequest(
        client=client, issuer=found.issuer, scopes=base.requested_scopes, indicator=found.indicator, receiver=receiver
    )
    return await run_grant(grant)


def _open_proof_key(request: SignInRequest, found: Discovery, stored: StoredCredentials | None) -> ProofKey | None:
    """Return the key to bind tokens to, if the settings, the server or its challenge require one."""
    wanted = request.settings.dpop
    if wanted is None:
        is_challenged = request.challenge is not None and request.challenge.scheme == "dpop"
        wanted = is_challenged or (found.resource is not None and found.resource.requires_dpop)
    if not wanted:
        return None
    if found.issuer.dpop_algorithms and PROOF_ALGORITHM not in found.issuer.dpop_algorithms:
        raise AuthFault(f"{found.issuer.issuer}: it accepts no DPoP proofs with {PROOF_ALGORITHM}")
    return ProofKey(None if stored is None else stored.dpop_key)


def select_scopes(request: SignInRequest, found: Discovery, stored: StoredCredentials | None) -> tuple[str, ...]:
    """Select the scopes to request: from the settings, else the challenge, else the metadata, else none.

    Previously requested scopes stay in the set, so a step-up for one operation doesn't revoke the permission for
    another. `offline_access` is added if the issuer knows it, since it gives a refresh token only then.
    https://modelcontextprotocol.io/specification/draft/basic/authorization#scope-selection-strategy
    """
    settings, challenge = request.settings, request.challenge
    if settings.scopes is not None:
        scopes = settings.scopes
    else:
        named = None if found.resource is None else found.resource.scopes
        asked = challenge.scopes if challenge is not None and challenge.scopes else named or ()
        scopes = asked if stored is None else (*stored.requested_scopes, *stored.wanted_scopes, *asked)
    scopes = tuple(scope for scope in dict.fromkeys(scopes) if scope != "offline_access")
    if settings.needs_person and "offline_access" in found.issuer.scopes:
        scopes = (*scopes, "offline_access")
    return scopes


def build_token_client(
    io: AuthIO, stored: StoredCredentials, settings: AuthSettings, clock: Clock, key: ProofKey | None
) -> TokenClient:
    """Build the client of a stored registration; a configured client takes its secret from the settings."""
    registration = stored.registration
    if registration.source == "configured":
        registration = replace(registration, client_secret=settings.client_secret)
    return TokenClient(
        io=io,
        issuer=stored.key.issuer,
        token_endpoint=stored.endpoints.token_endpoint,
        registration=registration,
        settings=settings,
        clock=clock,
        key=key,
    )


async def refresh(
    io: AuthIO, stored: StoredCredentials, tokens: TokenSet, settings: AuthSettings, clock: Clock, key: ProofKey | None
) -> StoredCredentials:
    """Refresh and save tokens; an unreplaced refresh token stays valid (RFC 6749 §6).

    Raises `AuthFault` if the issuer refused (`invalid_grant`: for good), or couldn't be reached.
    """
    client = build_token_client(io, stored, settings, clock, key)
    client = replace(client, token_endpoint=stored.endpoints.refresh_endpoint or client.token_endpoint)
    indicator = stored.endpoints.indicator
    fields = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token or ""}
    grant = await request_tokens(client, fields | ({"resource": indicator} if indicator else {}))
    new = grant.tokens
    new = replace(new, refresh_token=new.refresh_token or tokens.refresh_token, scope=new.scope or tokens.scope)
    refreshed = replace(stored, tokens=new, account=grant.account or stored.account)
    await io.store.save(refreshed)
    return refreshed


async def revoke(io: AuthIO, stored: StoredCredentials, settings: AuthSettings, clock: Clock) -> bool:
    """Revoke the tokens of a sign-in (RFC 7009); return whether the issuer confirmed it for all of them."""
    endpoint, tokens = stored.endpoints.revocation_endpoint, stored.tokens
    if not endpoint or tokens is None:
        return False
    headers, own = build_client_authentication(build_token_client(io, stored, settings, clock, None))
    # Refresh token first: most issuers revoke the sign-in's access tokens along with it.
    named = (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token))
    confirmed = True
    for kind, token in named:
        if token:
            reply = await io.post_form(endpoint, {"token": token, "token_type_hint": kind, **own}, headers)
            confirmed = confirmed and reply.is_success
    return confirmed


# -- discovery --------------------------------------------------------------------------------
#
# https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#authorization-server-discovery. A server
# without metadata follows revision 2025-03-26: it's its own issuer, at the root of its origin.


_MAX_ISSUERS = 4
"""How many of a server's issuers to try."""


@record(kw_only=True)
class Discovery:
    """A server's issuer and metadata, found before a sign-in."""

    issuer: IssuerMetadata
    resource: ResourceMetadata | None = None
    """`None`: a server without metadata (2025-03-26)."""

    @property
    def indicator(self) -> str:
        """The `resource` parameter of every request to the issuer (RFC 8707 §2); empty if unknown."""
        return "" if self.resource is None else self.resource.resource


async def discover(
    io: AuthIO, server_url: str, settings: AuthSettings, challenge: Challenge | None, preferred: str = ""
) -> Discovery:
    """Find a server's issuer; `preferred` is the one of an earlier sign-in.

    Raises `AuthFault` if metadata is missing, contradicts itself, or couldn't be fetched.
    """
    resource = await _find_resource_metadata(io, server_url, challenge)
    if settings.metadata_url:
        url = check_endpoint(settings.metadata_url, "metadata document", get_origin_of(settings.metadata_url))
        reply, document = await io.fetch_json(url)
        if not document:
            raise build_reply_fault(reply, url, "fetching the issuer's metadata")
        return Discovery(issuer=parse_issuer_metadata(document, settings.issuer), resource=resource)
    if resource is None and not settings.issuer:
        # https://modelcontextprotocol.io/specification/2025-03-26/basic/authorization#server-metadata-discovery
        origin = get_origin_of(server_url)
        found = await _find_issuer_metadata(io, check_endpoint(origin, "address", origin), f"{origin}/")
        return Discovery(issuer=build_default_metadata(origin) if found is None else found)
    named = resource.issuers if resource is not None else ()
    # Issuers are independent of each other: take the user's choice, then the one used before, then the server's order.
    candidates = [settings.issuer] if settings.issuer else sorted(named, key=lambda issuer: issuer != preferred)
    for issuer in candidates[:_MAX_ISSUERS]:
        found = await _find_issuer_metadata(io, check_endpoint(issuer, "address", issuer))
        if found is not None:
            assumed = ResourceMetadata(resource=canonical_resource(server_url), issuers=(issuer,))
            return Discovery(issuer=found, resource=resource or assumed)
    raise AuthFault(f"{', '.join(candidates)}: no metadata is published (RFC 8414); set `metadata_url` in `auth`")


async def _find_resource_metadata(io: AuthIO, server_url: str, challenge: Challenge | None) -> ResourceMetadata | None:
    origin = get_origin_of(server_url)
    urls = build_resource_metadata_urls(server_url)
    if challenge is not None and (named := challenge.parameters.get("resource_metadata", "")):
        is_own = get_origin_of(named) == origin
        urls = (named if is_own else check_endpoint(named, "metadata document", origin), *urls)
    for url in urls:
        reply, document = await io.fetch_json(url)
        if document:
            return parse_resource_metadata(document, server_url)
        if reply.is_transient:
            # Otherwise an outage would look like a server without metadata, and lead to another issuer.
            raise build_reply_fault(reply, origin, "fetching its metadata")
    return None


async def _find_issuer_metadata(io: AuthIO, issuer: str, *also: str) -> IssuerMetadata | None:
    for url in build_issuer_metadata_urls(issuer):
        reply, document = await io.fetch_json(url)
        if document:
            return parse_issuer_metadata(document, issuer, *also)
        if reply.is_transient:
            raise build_reply_fault(reply, issuer, "fetching its metadata")
    return None


# -- registration -----------------------------------------------------------------------------
#
# In the order of the specification: a client that the user registered, a client ID metadata document if the issuer
# supports it, dynamic registration (RFC 7591).
# https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#client-registration-approaches. Never
# show a registration to another issuer; the URL of a metadata document is public.


CLIENT_NAME = "indus"
_DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


def find_registration(issuer: IssuerMetadata, settings: AuthSettings) -> ClientRegistration | None:
    """Return the registration that takes no request: the configured client, or the metadata document."""
    if settings.client_id:
        has_secret = settings.client_secret is not None
        method = choose_auth_method(settings, issuer.auth_methods, has_secret=has_secret)
        # The secret stays in the configuration; don't store a copy.
        return ClientRegistration(client_id=settings.client_id, auth_method=method, source="configured")
    if settings.client_metadata_url and issuer.supports_client_documents:
        method = choose_auth_method(settings, issuer.auth_methods, has_secret=False)
        return ClientRegistration(
            client_id=settings.client_metadata_url, auth_method=method, source="metadata_document"
        )
    return None


def can_reuse(stored: ClientRegistration, redirect_uri: str, now_ms: int) -> bool:
    """Return whether a stored dynamic registration still fits: same redirect URI, and an unexpired secret.

    RFC 8252 §7.3 lets the port of a loopback redirect vary, but many issuers compare it anyway.
    """
    is_expired = stored.secret_expires_at_ms is not None and now_ms >= stored.secret_expires_at_ms
    # Without a redirect (for another device), a client is registered for that grant only.
    fits = redirect_uri in stored.redirect_uris if redirect_uri else not stored.redirect_uris
    return stored.source == "dynamic" and not is_expired and fits


async def register_client(
    io: AuthIO,
    issuer: IssuerMetadata,
    settings: AuthSettings,
    redirect_uri: str,
    scopes: Sequence[str],
    *,
    uses_dpop: bool = False,
) -> ClientRegistration:
    """Register a client dynamically (RFC 7591 §3.1).

    Raises `AuthFault` if the issuer doesn't support it, or refused.
    """
    if not issuer.registration_endpoint:
        problem = "it registers no clients by itself; register one there, and set `client_id` in the row's `auth`"
        raise AuthFault(f"{issuer.issuer}: {problem}")
    method = _choose_method(issuer, settings)
    is_device = settings.grant == "device_code"
    document: dict[str, JsonLike] = {
        "client_name": CLIENT_NAME,
        # A gateway's own page is a web client (OpenID Connect Dynamic Client Registration 1.0 §2).
        "application_type": "web" if redirect_uri.startswith("https:") else "native",
        "grant_types": [_DEVICE_GRANT if is_device else "authorization_code", "refresh_token"],
        "token_endpoint_auth_method": method,
    }
    # Sent even without a redirect: the default response type is `code`, which needs one (RFC 7591 §2).
    document["redirect_uris"] = [redirect_uri] if redirect_uri else []
    document["response_types"] = ["code"] if redirect_uri else []
    if scopes:
        document["scope"] = " ".join(scopes)
    if uses_dpop:
        document["dpop_bound_access_tokens"] = True
    reply = await io.post_json(issuer.registration_endpoint, document)
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
    """Choose the method to ask for: "none" if possible, since local programs can't keep a secret (RFC 8252 §8.5)."""
    if settings.auth_method is not None:
        return settings.auth_method
    if not issuer.auth_methods or "none" in issuer.auth_methods:
        return "none"
    return choose_auth_method(settings, issuer.auth_methods, has_secret=True)
