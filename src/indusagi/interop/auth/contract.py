"""Sign-in types: settings, stored credentials, the store, the prompt, and the faults.

The procedures (`machine`) do all I/O through an `AuthIO` (`requests`). The driver (`driver`) is one, on the guarded
HTTP client: `driver.sign_in(url, auth, name=…) -> StoredCredentials` signs in with the prompt of `auth` and saves,
`driver.sign_out(url, auth) -> bool` revokes and deletes the tokens, and `driver.refresh` is single-flight under the
store's lock. `settings.grant = "device_code"` selects the device grant. A product implements `CredentialStore` and
`SignInPrompt`. `repr` omits every secret field, and no fault message contains a secret.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, field, fields
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar, cast, get_args

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record

T = TypeVar("T")
Grant: TypeAlias = Literal[
    "authorization_code", "device_code", "client_credentials", "jwt_bearer", "id_jag", "token_exchange"
]
"""How to obtain an access token: by the user in a browser (RFC 6749 §4.1) or on another device (RFC 8628), with the
client's secret or key (RFC 6749 §4.4), with a workload's JWT (RFC 7523 §2.1), or with an assertion from an enterprise
identity provider (ID-JAG: token exchange, RFC 8693, then RFC 7523). With `token_exchange`, a call on behalf of a
gateway's client exchanges that client's token (RFC 8693); other requests work as with `client_credentials`."""
AuthMethod: TypeAlias = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
"""How the client authenticates at the token endpoint (RFC 7591 §2)."""
ResourceKind: TypeAlias = Literal["server", "connector"]
"""The target of a sign-in: an MCP server, or a service behind an OpenAPI document."""
LOGIN_COMMANDS: Mapping[ResourceKind, str] = {"server": "indus mcp login", "connector": "indus connectors login"}
RegistrationSource: TypeAlias = Literal["configured", "metadata_document", "dynamic"]
GRANTS: tuple[Grant, ...] = get_args(Grant)
AUTH_METHODS: tuple[AuthMethod, ...] = get_args(AuthMethod)
SIGN_IN_WAIT_S: Final = 300.0
"""How long the user has to sign in."""
INTERACTIVE_GRANTS: frozenset[Grant] = frozenset({"authorization_code", "device_code"})
"""Grants that need the user."""


# -- faults ---------------------------------------------------------------------------------


class AuthFault(CoreError):
    """Signing in failed. The message names the issuer or server, the cause and the remedy, and contains no secret."""

    def __init__(self, message: str, *, error: str = "", is_transient: bool = False) -> None:
        super().__init__(message)
        self.error = error
        """The error code of the authorization server (RFC 6749 §5.2), or empty."""
        self.is_transient = is_transient
        """The network or the server failed: stored credentials stay valid, and a retry may succeed."""


class SignInRequired(AuthFault):
    """Only the user can continue: there are no usable credentials, and no prompt to ask for them.

    Args:
        name: Configured name of the resource.
        problem: Predicate of a sentence about it.
        kind: Kind of the resource.
        remedy: How its user signs in, if that's not by a command.
    """

    def __init__(
        self, name: str, problem: str = "needs a sign-in", kind: ResourceKind = "server", remedy: str = ""
    ) -> None:
        self.problem = f"{problem}: {remedy or f'{LOGIN_COMMANDS[kind]} {shlex.quote(name)}'}"
        """The problem, and what fixes it."""
        super().__init__(f"{kind} {name!r} {self.problem}")


# -- settings -------------------------------------------------------------------------------


@record(kw_only=True)
class IdentityProvider:
    """Identity provider of enterprise-managed authorization, which issues an ID-JAG.

    https://github.com/modelcontextprotocol/ext-auth/blob/main/specification/draft/enterprise-managed-authorization.mdx
    """

    token_endpoint: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    id_token: str = field(repr=False)
    """Assertion from the user's sign-in at the identity provider."""


@record(kw_only=True)
class AuthSettings:
    """How to sign in to one server: the `auth` object of its configuration row, or all defaults without one."""

    grant: Grant = "authorization_code"
    client_id: str = ""
    """A pre-registered client; empty: use a metadata document or dynamic registration."""
    client_secret: str | None = field(default=None, repr=False)
    auth_method: AuthMethod | None = None
    """`None`: choose one that the issuer supports."""
    private_key: str | None = field(default=None, repr=False)
    """PEM or JWK of `private_key_jwt`."""
    signing_algorithm: str = "ES256"
    client_metadata_url: str = ""
    """The https URL of our client ID metadata document, used as client id where the issuer supports that."""
    scopes: tuple[str, ...] | None = None
    """Override the scopes that the server asks for. `None`: use the challenge, then the metadata, then none."""
    callback_port: int | None = None
    """Local port of the redirect; `None`: any free one."""
    redirect_uri: str = ""
    """The complete redirect URI, instead of `http://127.0.0.1:<port>/callback`."""
    issuer: str = ""
    """The authorization server, if the server names several or none."""
    metadata_url: str = ""
    """The authorization server's metadata document, instead of the well-known locations."""
    assume_pkce: bool = False
    """Accept an issuer whose metadata doesn't mention PKCE; some support it anyway."""
    assertion: str | None = field(default=None, repr=False)
    """The workload's JWT for the grant `jwt_bearer`."""
    assertion_file: str = ""
    """File with that JWT, read for each token request: platforms renew it in place."""
    identity_provider: IdentityProvider | None = None
    dpop: bool | None = None
    """Bind tokens to a key (RFC 9449). `None`: only if the server or the issuer requires it."""
    per_user: bool = False
    """Whether each user of a gateway with access tokens signs in, instead of its operator for all."""
    header_command: tuple[str, ...] = ()
    """Command that prints headers as a JSON object. Replaces OAuth, and runs again after a 401."""

    @property
    def needs_person(self) -> bool:
        """Whether a first sign-in needs the user."""
        return not self.header_command and self.grant in INTERACTIVE_GRANTS


# -- stored credentials ---------------------------------------------------------------------


@record
class CredentialKey:
    """Identifies a sign-in, and names its lock across processes."""

    issuer: str
    resource: str
    """The canonical URI of the server (RFC 8707 §2); see `canonical_resource`."""
    client: str = ""
    """The configured client id; empty if we registered the client."""


@record(kw_only=True)
class ClientRegistration:
    """The client as one issuer knows it."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    auth_method: AuthMethod = "none"
    source: RegistrationSource = "configured"
    redirect_uris: tuple[str, ...] = ()
    secret_expires_at_ms: int | None = None


@record(kw_only=True)
class TokenSet:
    """Tokens from one response of a token endpoint (RFC 6749 §5.1)."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    token_type: Literal["Bearer", "DPoP"] = "Bearer"
    scope: tuple[str, ...] | None = None
    """Granted scopes; `None`: the issuer named none, so they're the requested ones."""
    obtained_at_ms: int = 0
    expires_at_ms: int | None = None

    def is_expired(self, now_ms: int, margin_ms: int = 0) -> bool:
        """Return whether the access token expires within `margin_ms`; without an expiry it never does."""
        return self.expires_at_ms is not None and now_ms + margin_ms >= self.expires_at_ms


@record(kw_only=True)
class IssuerEndpoints:
    """Issuer data for refreshing and revoking, so that neither needs another discovery."""

    token_endpoint: str
    refresh_endpoint: str = ""
    """Where to refresh tokens; empty: at the token endpoint."""
    revocation_endpoint: str = ""
    indicator: str = ""
    """The `resource` parameter of token requests (RFC 8707); empty: omit it, for servers of 2025-03-26."""


@record(kw_only=True)
class StoredCredentials:
    """One stored sign-in."""

    key: CredentialKey
    registration: ClientRegistration
    endpoints: IssuerEndpoints
    tokens: TokenSet | None = None
    """`None`: registered or signed out, but not signed in."""
    requested_scopes: tuple[str, ...] = ()
    """Scopes that the tokens were requested with; a step-up requests them plus the new ones."""
    wanted_scopes: tuple[str, ...] = ()
    """Scopes that the server has asked for since; the next sign-in requests them."""
    dpop_key: JsonObject | None = field(default=None, repr=False)
    """The private JWK that the tokens are bound to."""
    account: str = ""
    """Account name from the ID token, if any; for display only."""

    def drop_tokens(self) -> StoredCredentials:
        """Return the registration alone."""
        return StoredCredentials(key=self.key, registration=self.registration, endpoints=self.endpoints)

    def to_json(self) -> JsonObject:
        """Convert to JSON, secrets included."""
        document: dict[str, Any] = {
            **asdict(self.key),
            "registration": asdict(self.registration),
            "endpoints": asdict(self.endpoints),
            "requested_scopes": self.requested_scopes,
            "wanted_scopes": self.wanted_scopes,
            "account": self.account,
        }
        if self.tokens is not None:
            document["tokens"] = asdict(self.tokens)
        if self.dpop_key is not None:
            document["dpop_key"] = self.dpop_key
        return cast("JsonObject", json.loads(json.dumps(document)))  # tuples become lists


def parse_credentials(document: JsonValue) -> StoredCredentials | None:
    """Parse the output of `StoredCredentials.to_json`; `None` for anything else."""
    if not is_json_object(document):
        return None
    tokens, key = document.get("tokens"), (str(document.get(name, "")) for name in ("issuer", "resource", "client"))
    try:
        rest = {
            "key": CredentialKey(*key),
            "registration": _build(ClientRegistration, document.get("registration")),
            "endpoints": _build(IssuerEndpoints, document.get("endpoints")),
            "tokens": None if tokens is None else _build(TokenSet, tokens),
        }
        return _build(StoredCredentials, {**document, **rest})
    except TypeError:
        return None


def _build(made: type[T], members: object) -> T:
    """Build one of these records from its JSON, without members that it doesn't have (any more).

    Raises `TypeError` if it lacks one, or isn't an object.
    """
    given = dict(cast("JsonObject", members)) if isinstance(members, dict) else {}
    values = {one.name: given[one.name] for one in fields(cast("Any", made)) if one.name in given}
    return made(**{name: tuple(value) if isinstance(value, list) else value for name, value in values.items()})


def parse_texts(document: JsonObject, name: str) -> tuple[str, ...]:
    """Return the strings of a list; empty if it isn't one."""
    value = document.get(name)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


# -- implemented by products ----------------------------------------------------------------


class CredentialStore(Protocol):
    """Stores sign-ins. Its methods raise `AuthFault` if the storage itself fails."""

    async def load(self, resource: str, client: str = "") -> StoredCredentials | None:
        """Return the server's most recently saved sign-in, with any issuer."""
        ...

    async def find(self, key: CredentialKey) -> StoredCredentials | None:
        """Return the sign-in with exactly this key."""
        ...

    async def save(self, credentials: StoredCredentials) -> None:
        """Store a sign-in atomically and durably, replacing the one with the same key."""
        ...

    async def delete(self, key: CredentialKey) -> None:
        """Remove a sign-in, if it exists."""
        ...

    async def list_credentials(self) -> Sequence[StoredCredentials]:
        """List every sign-in."""
        ...

    def lock(self, key: CredentialKey) -> AbstractAsyncContextManager[None]:
        """Keep other tasks and processes from refreshing this sign-in; raise `AuthFault` after a deadline."""
        ...


class RedirectReceiver(Protocol):
    """Receives the redirect of one authorization request."""

    @property
    def redirect_uri(self) -> str:
        """Where the authorization server sends the browser."""
        ...

    async def authorize(self, url: str) -> Mapping[str, str]:
        """Show `url` to the user and return the query parameters of the redirect, including errors.

        Raises `AuthFault` if the user gave up, or the deadline passed.
        """
        ...


@record(kw_only=True)
class DeviceCode:
    """The code for signing in on another device (RFC 8628 §3.2)."""

    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_s: int = 600


class SignInPrompt(Protocol):
    """Talks to the user: shows and receives, while the sign-in polls, checks and exchanges."""

    def open_redirect(
        self, settings: AuthSettings, registered: Sequence[str]
    ) -> AbstractAsyncContextManager[RedirectReceiver]:
        """Prepare for a redirect, reusing one of the stored registration's `registered` redirect URIs if possible."""
        ...

    async def show_device_code(self, code: DeviceCode) -> None:
        """Show a code and where to enter it; return at once."""
        ...


@record(kw_only=True)
class ServerAuth:
    """How a client signs in to one server: settings, store, and a prompt if a user is present."""

    settings: AuthSettings = field(default_factory=AuthSettings)
    store: CredentialStore = field(repr=False, compare=False)
    prompt: SignInPrompt | None = field(default=None, repr=False, compare=False)
    """`None`: a needed sign-in raises `SignInRequired`."""
    user: str = ""
    """Whose sign-in it is, if each user of a gateway has one (`ClientIdentity.user`)."""
    remedy: str = ""
    """How that user signs in; empty: by a command."""


# -- used by transports ---------------------------------------------------------------------


@record
class Refusal:
    """A response of 401 or 403."""

    status: int
    challenges: Sequence[str] = ()
    """Values of its `WWW-Authenticate` headers."""
    nonce: str = ""
    """Value of its `DPoP-Nonce` header."""


class RequestAuthorizer(Protocol):
    """Adds headers to a connection's requests, and reacts to refusals."""

    async def build_headers(self, method: str, url: str) -> dict[str, str]:
        """Build the headers of a request. Raises `AuthFault` if it can't, for a reason that the user should know."""
        ...

    async def handle_refusal(self, sent: dict[str, str], refusal: Refusal) -> bool:
        """Return whether to retry with new headers; `sent` are the refused ones.

        Raises `AuthFault` if retrying won't help.
        """
        ...

    def accept(self, sent: dict[str, str], nonce: str) -> None:
        """Record that the server accepted the headers."""
        ...

    async def close(self) -> None:
        """Stop any work in progress."""
        ...
