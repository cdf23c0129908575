"""The state machine of signing in: discovery, registration, grant, refresh and revocation, without I/O.

Each procedure yields steps and receives replies (see `steps`); `driver` runs them. State belongs to an issuer: a
registration and its tokens are loaded by the issuer that discovery has found, so that a server which moves to another
issuer never makes us show the credentials of the first one to the second.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.records import record
from indusagi.interop.auth.contract import AuthFault, CredentialKey, IssuerEndpoints, StoredCredentials, TokenSet
from indusagi.interop.auth.discovery import Discovery, discover
from indusagi.interop.auth.grants import GrantRequest, run_grant
from indusagi.interop.auth.locations import canonical_resource
from indusagi.interop.auth.proofs import PROOF_ALGORITHM, ProofKey
from indusagi.interop.auth.registration import can_reuse, find_registration, register_client
from indusagi.interop.auth.steps import SaveStep, load_credentials, open_redirect, post_form
from indusagi.interop.auth.token_endpoint import TokenClient, build_client_authentication, request_tokens

if TYPE_CHECKING:
    from indusagi.core.time import Clock
    from indusagi.interop.auth.challenge import Challenge
    from indusagi.interop.auth.contract import AuthSettings, ClientRegistration
    from indusagi.interop.auth.metadata import IssuerMetadata
    from indusagi.interop.auth.steps import Steps
    from indusagi.interop.auth.token_endpoint import TokenGrant

_REFUSED_CLIENT = frozenset({"invalid_client", "unauthorized_client", "invalid_redirect_uri", "invalid_request"})
"""Errors of an issuer that cannot use a client ID metadata document."""


@record(kw_only=True)
class SignInRequest:
    """One sign-in: the server, how to sign in, and why."""

    server_url: str
    settings: AuthSettings
    clock: Clock
    challenge: Challenge | None = None
    previous_issuer: str = ""
    """The issuer of the last sign-in, preferred if the server names several."""
    issuer: IssuerMetadata | None = None
    """The issuer, if it is known without discovery."""


def sign_in(request: SignInRequest) -> Steps[StoredCredentials]:
    """Sign in to a server, and save the sign-in.

    Raises:
        AuthFault: A step failed; a registration that was made is kept for the next try.
    """
    settings = request.settings
    if request.issuer is not None:
        found = Discovery(issuer=request.issuer)
    else:
        found = yield from discover(request.server_url, settings, request.challenge, request.previous_issuer)
    key = CredentialKey(found.issuer.issuer, canonical_resource(request.server_url), settings.client_id)
    stored = yield from load_credentials(key)
    scopes = select_scopes(request, found, stored)
    proof_key = _open_proof_key(request, found, stored)
    redirect_uri = ""
    if settings.grant == "authorization_code":
        redirect_uri = yield from open_redirect(() if stored is None else stored.registration.redirect_uris)
    registration = find_registration(found.issuer, settings)
    if registration is None:
        registration = yield from _register(
            request, found, stored, redirect_uri, scopes, uses_dpop=proof_key is not None
        )
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
        # Kept before the person is asked: a sign-in that is given up does not register another client next time.
        # Tokens of an earlier sign-in belong to its registration, and stay until there are new ones.
        yield SaveStep(base)
    try:
        grant = yield from _run(request, found, base, redirect_uri, proof_key)
    except AuthFault as fault:
        can_register = registration.source == "metadata_document" and bool(found.issuer.registration_endpoint)
        if not can_register or fault.error not in _REFUSED_CLIENT:
            raise
        # An issuer may refuse the document's redirect URIs, for example because it compares the port of a loopback one.
        registration = yield from _register(
            request, found, stored, redirect_uri, scopes, uses_dpop=proof_key is not None
        )
        base = replace(base, registration=registration)
        grant = yield from _run(request, found, base, redirect_uri, proof_key)
    signed_in = replace(base, tokens=grant.tokens, account=grant.account)
    yield SaveStep(signed_in)
    return signed_in


def _register(
    request: SignInRequest,
    found: Discovery,
    stored: StoredCredentials | None,
    redirect_uri: str,
    scopes: tuple[str, ...],
    *,
    uses_dpop: bool,
) -> Steps[ClientRegistration]:
    if stored is not None and can_reuse(stored.registration, redirect_uri, request.clock.now_ms()):
        return stored.registration
    return (yield from register_client(found.issuer, request.settings, redirect_uri, scopes, uses_dpop=uses_dpop))


def _run(
    request: SignInRequest, found: Discovery, base: StoredCredentials, redirect_uri: str, key: ProofKey | None
) -> Steps[TokenGrant]:
    client = build_token_client(base, request.settings, request.clock, key)
    grant = GrantRequest(
        client=client,
        issuer=found.issuer,
        scopes=base.requested_scopes,
        indicator=found.indicator,
        redirect_uri=redirect_uri,
    )
    return (yield from run_grant(grant))


def _open_proof_key(request: SignInRequest, found: Discovery, stored: StoredCredentials | None) -> ProofKey | None:
    """Return the key to bind tokens to, where the settings, the server or its challenge want that."""
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
    """Select the scopes to request: of the settings, else of the challenge, else of the metadata, else none.

    Scopes that were requested before stay in the set, so that a step-up for one operation does not take the permission
    for another away. `offline_access` is added where the issuer knows it, since only then it gives a refresh token.
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
    stored: StoredCredentials, settings: AuthSettings, clock: Clock, key: ProofKey | None
) -> TokenClient:
    """Build the client of a stored registration; the secret of a configured client is that of the settings."""
    registration = stored.registration
    if registration.source == "configured":
        registration = replace(registration, client_secret=settings.client_secret)
    return TokenClient(
        issuer=stored.key.issuer,
        token_endpoint=stored.endpoints.token_endpoint,
        registration=registration,
        settings=settings,
        clock=clock,
        key=key,
    )


def refresh(
    stored: StoredCredentials, tokens: TokenSet, settings: AuthSettings, clock: Clock, key: ProofKey | None
) -> Steps[StoredCredentials]:
    """Refresh tokens, and save the new ones; a refresh token that is not replaced stays (RFC 6749 §6).

    Raises:
        AuthFault: The issuer refused (`invalid_grant`: for good), or could not be reached.
    """
    client = build_token_client(stored, settings, clock, key)
    client = replace(client, token_endpoint=stored.endpoints.refresh_endpoint or client.token_endpoint)
    indicator = stored.endpoints.indicator
    fields = {"grant_type": "refresh_token", "refresh_token": tokens.refresh_token or ""}
    grant = yield from request_tokens(client, fields | ({"resource": indicator} if indicator else {}))
    new = grant.tokens
    new = replace(new, refresh_token=new.refresh_token or tokens.refresh_token, scope=new.scope or tokens.scope)
    refreshed = replace(stored, tokens=new, account=grant.account or stored.account)
    yield SaveStep(refreshed)
    return refreshed


def revoke(stored: StoredCredentials, settings: AuthSettings, clock: Clock) -> Steps[bool]:
    """Revoke the tokens of a sign-in (RFC 7009); return whether the issuer has confirmed all of it."""
    endpoint, tokens = stored.endpoints.revocation_endpoint, stored.tokens
    if not endpoint or tokens is None:
        return False
    headers, own = build_client_authentication(build_token_client(stored, settings, clock, None))
    # The refresh token first: most issuers revoke the access tokens of the same sign-in with it.
    named = (("refresh_token", tokens.refresh_token), ("access_token", tokens.access_token))
    confirmed = True
    for kind, token in named:
        if token:
            reply = yield from post_form(endpoint, {"token": token, "token_type_hint": kind, **own}, headers)
            confirmed = confirmed and reply.is_success
    return confirmed
