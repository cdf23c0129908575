"""Settings of a protected resource, and the refusal of a request by them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from indusagi.core.faults import CoreError, Note
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity

RefusalError: TypeAlias = Literal[
    "", "invalid_request", "invalid_token", "insufficient_scope", "invalid_dpop_proof", "use_dpop_nonce", "unavailable"
]
"""The error code of a challenge (RFC 6750 §3.1, RFC 9449 §7.1); empty: no token was presented. `unavailable` is ours:
the authorization server did not answer, so the token is neither valid nor invalid."""


class TokenRefusal(Exception):
    """A request whose access token is absent, invalid or insufficient; the message holds no part of a token."""

    def __init__(self, error: RefusalError, message: str, *, scope: str = "") -> None:
        super().__init__(message)
        self.error = error
        self.scope = scope
        """The scope that the request needs."""


class IssuerError(CoreError):
    """The authorization server cannot be used: it does not answer, or its documents are invalid."""


@record(kw_only=True)
class IntrospectionClient:
    """The credentials of this host at the introspection endpoint of the issuer (RFC 7662 §2.1)."""

    client_id: str
    client_secret: str = field(repr=False)


@record(kw_only=True)
class ResourceSettings:
    """Whose access tokens a host accepts, and for what."""

    issuer: str
    """The issuer identifier of the authorization server, exactly as its metadata has it (RFC 8414 §2)."""
    public_url: str | None = None
    """The URL at which clients reach this host, if a proxy stands before it; None: the address it listens on."""
    audiences: Sequence[str] = ()
    """Accepted values of `aud`; empty: the URL of the host."""
    accepts_any_type: bool = False
    """Accept JWTs with the type `JWT` or none besides `at+jwt` (RFC 9068 §2.1)."""
    introspection: IntrospectionClient | None = None
    """Introspect tokens instead of reading them as JWT."""
    requires_dpop: bool = False
    """Refuse tokens that are not bound to a key of the client."""
    requires_nonce: bool = False
    """Refuse proofs without a nonce of this host (RFC 9449 §9)."""
    requests: int = 256
    """Running requests of one principal; further ones get a 429."""
    rate: float = 200.0
    """Requests per second of one principal on average, ten seconds' worth at once; further ones get a 429."""
    leeway_s: int = 60
    """How far the clocks of the issuer and of clients may differ from ours."""
    refresh_s: float = 600.0
    """How often the keys of the issuer are fetched."""
    stale_s: float = 3_600.0
    """How long keys are used that could not be fetched again."""
    refetch_s: float = 30.0
    """The shortest time between two fetches of the keys for tokens with an unknown key."""
    fetch_s: float = 10.0
    """The time limit of one request to the issuer."""
    introspected_s: float = 30.0
    """How long the answer of an introspection is used."""
    on_identity: Callable[[ClientIdentity], None] | None = field(default=None, compare=False, repr=False)
    """Called with each principal and client, at its first request."""
    on_note: Callable[[Note], None] | None = field(default=None, compare=False, repr=False)
    """Called when the issuer cannot be used."""
