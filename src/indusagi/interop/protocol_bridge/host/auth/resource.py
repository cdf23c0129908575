"""The protected resource: its URLs, metadata document and challenges, and reading tokens from requests.

Metadata: https://www.rfc-editor.org/rfc/rfc9728. Challenges: RFC 6750 §3, RFC 9449 §7.1, and
https://modelcontextprotocol.io/specification/2025-11-25/basic/authorization#scope-challenge-handling.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import field
from typing import Literal, TypeAlias
from urllib.parse import parse_qsl, quote, urlsplit

from indusagi.core.faults import CoreError, Note
from indusagi.core.json import JsonObject, compact_json
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.identity import CALL_SCOPE, LIST_SCOPE, SCOPES, ClientIdentity

ALGORITHMS = {
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
    "Ed25519": ("OKP", "Ed25519"),
    "PS256": ("RSA", None),
    "PS384": ("RSA", None),
    "PS512": ("RSA", None),
    "RS256": ("RSA", None),
    "RS384": ("RSA", None),
    "RS512": ("RSA", None),
}
"""Accepted algorithms, with the type and curve of their keys. All are asymmetric: anyone can read a public key, so it
must not serve as an HMAC secret."""
WELL_KNOWN = "/.well-known/oauth-protected-resource"
_MAX_TOKEN_CHARS = 16 * 1024
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)
"""RFC 6750 §2.1."""
_SCHEMES = frozenset({"bearer", "dpop"})
_UNQUOTABLE = re.compile(r'[^\x20-\x7e]|["\\]')
_STATUSES = {"invalid_request": 400, "insufficient_scope": 403, "unavailable": 503}
_DPOP_ERRORS = frozenset({"invalid_dpop_proof", "use_dpop_nonce"})


@record
class PresentedToken:
    """An access token as presented in a request."""

    token: str = field(repr=False)
    is_dpop: bool
    """Whether the scheme was DPoP."""
    proofs: Sequence[str] = field(default=(), repr=False)
    """Values of the DPoP headers."""


def read_token(lines: Sequence[tuple[str, str]], query: str) -> PresentedToken:
    """Read a request's token from its header lines, which have lower-case names.

    Raises `TokenRefusal` if there is none, more than one, or one in the URL (RFC 6750 §5.3).
    """
    if "access_token" in query and any(name == "access_token" for name, _ in parse_qsl(query, keep_blank_values=True)):
        raise TokenRefusal("invalid_request", "a token belongs in the Authorization header, not in the URL")
    values = [value for name, value in lines if name == "authorization"]
    if not values:
        raise TokenRefusal("", "an access token is needed: Authorization: Bearer ...")
    if len(values) > 1:
        raise TokenRefusal("invalid_request", "there is more than one Authorization header")
    if len(values[0]) > _MAX_TOKEN_CHARS:
        raise TokenRefusal("invalid_token", f"the token has more than {_MAX_TOKEN_CHARS:,} characters")
    scheme, _, rest = values[0].partition(" ")
    scheme, token = scheme.lower(), rest.lstrip(" ")  # case-insensitive: RFC 9110 §11.1
    if scheme not in _SCHEMES or _TOKEN.fullmatch(token) is None:
        raise TokenRefusal("", "an access token is needed: Authorization: Bearer ...")
    is_dpop = scheme == "dpop"
    proofs = tuple(value for name, value in lines if name == "dpop") if is_dpop else ()
    return PresentedToken(token, is_dpop, proofs)


class ProtectedResource:
    """URLs and documents of a host with access tokens."""

    def __init__(self, settings: ResourceSettings, url: str, path: str, views: Collection[str] = ()) -> None:
        self.url = settings.public_url or url
        """Resource identifier (RFC 8707 §2), which clients request tokens for."""
        self.settings = settings
        self.requires_dpop = settings.requires_dpop
        parts = urlsplit(self.url)
        self.origin = f"{parts.scheme}://{parts.netloc}".lower()
        port = 443 if parts.scheme == "https" else 80
        names = (parts.netloc, f"{parts.hostname}:{port}" if parts.port is None else parts.netloc)
        self.hosts = frozenset(name.lower() for name in names)
        """`Host` headers of requests to its public URL."""
        self._public_path = parts.path.rstrip("/")
        self.views = {f"{path}/v/{view}": view for view in views} | {path: ""}
        """Views by path; each is a resource."""
        self.audiences = dict.fromkeys(settings.audiences, "") or {self.url: ""} | {
            self._build_url(view): view for view in views
        }
        """Accepted audiences, each with the view that its tokens open; empty: all of them."""
        self.metadata: dict[str, bytes] = {}
        """Documents by path."""
        for place, view in self.views.items():
            document: JsonObject = {
                "resource": self._build_url(view),
                "authorization_servers": [settings.issuer],
                "scopes_supported": [*SCOPES],
                "bearer_methods_supported": ["header"],
                "resource_name": f"indus: {view}" if view else "indus",
                "dpop_signing_alg_values_supported": [*ALGORITHMS],
                "dpop_bound_access_tokens_required": settings.requires_dpop,
            }
            public = f"{self._public_path}/v/{view}" if view else self._public_path
            for known in (place, public, *(() if view else ("",))):
                self.metadata[f"{WELL_KNOWN}{known}"] = compact_json(document).encode()

    def _build_url(self, view: str) -> str:
        return f"{self.url.rstrip('/')}/v/{quote(view, safe='')}" if view else self.url

    def build_url(self, path: str) -> str:
        """Build a client's URL for a path of this host."""
        return self._build_url(self.views[path]) if path in self.views else f"{self.origin}{path}"

    def build_challenges(self, refusal: TokenRefusal, view: str = "") -> tuple[int, list[tuple[bytes, bytes]]]:
        """Build a refusal's status and `WWW-Authenticate` headers."""
        status = _STATUSES.get(refusal.error, 401)
        if status == 503:
            return status, []
        document = f"{self.origin}{WELL_KNOWN}{self._public_path}" + (f"/v/{quote(view, safe='')}" if view else "")
        values = {"resource_metadata": document, "scope": refusal.scope or f"{LIST_SCOPE} {CALL_SCOPE}"}
        if refusal.error:
            values |= {"error": refusal.error, "error_description": _UNQUOTABLE.sub("?", str(refusal))}
        parameters = ", ".join(f'{name}="{_UNQUOTABLE.sub("", value)}"' for name, value in values.items())
        if refusal.error in _DPOP_ERRORS or self.requires_dpop:
            challenge = f'DPoP {parameters}, algs="{" ".join(ALGORITHMS)}"'
        else:
            challenge = f"Bearer {parameters}"
        return status, [(b"www-authenticate", challenge.encode("ascii"))]


# -- settings ---------------------------------------------------------------------------------


RefusalError: TypeAlias = Literal[
    "", "invalid_request", "invalid_token", "insufficient_scope", "invalid_dpop_proof", "use_dpop_nonce", "unavailable"
]
"""Error code of a challenge (RFC 6750 §3.1, RFC 9449 §7.1); empty: no token was presented. `unavailable` is ours:
the authorization server didn't answer, so the token is neither valid nor invalid."""


class TokenRefusal(Exception):
    """The access token is missing, invalid or insufficient; the message contains no part of it."""

    def __init__(self, error: RefusalError, message: str, *, scope: str = "") -> None:
        super().__init__(message)
        self.error = error
        self.scope = scope
        """Scope that the request needs."""


class IssuerError(CoreError):
    """The authorization server can't be used: it doesn't answer, or its documents are invalid."""


@record(kw_only=True)
class IntrospectionClient:
    """This host's credentials at the issuer's introspection endpoint (RFC 7662 §2.1)."""

    client_id: str
    client_secret: str = field(repr=False)


@record(kw_only=True)
class PageClient:
    """This host's client at the issuer for sign-ins of browsers."""

    client_id: str = ""
    """Empty: registered dynamically (RFC 7591)."""
    client_secret: str | None = field(default=None, repr=False)


@record(kw_only=True)
class ResourceSettings:
    """Which access tokens a host accepts, and for what."""

    issuer: str
    """Issuer identifier of the authorization server, exactly as in its metadata (RFC 8414 §2)."""
    public_url: str | None = None
    """URL where clients reach this host through a proxy; None: the address it listens on."""
    audiences: Sequence[str] = ()
    """Accepted values of `aud`; empty: the host's URL."""
    accepts_any_type: bool = False
    """Accept JWTs with type `JWT` or none in addition to `at+jwt` (RFC 9068 §2.1)."""
    introspection: IntrospectionClient | None = None
    """Introspect tokens instead of reading them as JWT."""
    page_client: PageClient = field(default_factory=lambda: PageClient())
    """The client by which browsers sign in to the page."""
    requires_dpop: bool = False
    """Refuse tokens that aren't bound to a client key."""
    requires_nonce: bool = False
    """Refuse proofs without one of this host's nonces (RFC 9449 §9)."""
    leeway_s: int = 60
    """How far the issuer's and clients' clocks may differ from ours."""
    refresh_s: float = 600.0
    """How often to fetch the issuer's keys."""
    stale_s: float = 3_600.0
    """How long to use keys while they can't be fetched again."""
    refetch_s: float = 30.0
    """Minimum time between two fetches of the keys for tokens with an unknown key."""
    fetch_s: float = 10.0
    """Timeout of a request to the issuer."""
    introspected_s: float = 30.0
    """How long to reuse an introspection response."""
    on_identity: Callable[[ClientIdentity], None] | None = field(default=None, compare=False, repr=False)
    """Called with each principal and client on its first request."""
    on_note: Callable[[Note], None] | None = field(default=None, compare=False, repr=False)
    """Called when the issuer can't be used."""
