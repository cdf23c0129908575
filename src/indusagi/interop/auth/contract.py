"""Vocabulary of signing in: settings, stored credentials, the store, the prompt, and the faults.

The state machine (`machine`) reads settings and stored credentials and does no I/O; the driver (`driver`) runs its
requests on the guarded HTTP client: `driver.sign_in(url, auth, name=…) -> StoredCredentials` signs in with the prompt
of `auth` and saves, `driver.sign_out(url, auth) -> bool` revokes the tokens and deletes them, `driver.refresh` is
single-flight under the lock of the store. The device grant is part of the machine: `settings.grant = "device_code"`
selects it. A product implements `CredentialStore` and `SignInPrompt`. Every secret is a field that `repr` leaves out;
no message of a fault contains one.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field, replace
from typing import Literal, Protocol, TypeAlias, get_args

from indusagi.core.faults import CoreError
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record

Grant: TypeAlias = Literal[
    "authorization_code", "device_code", "client_credentials", "jwt_bearer", "id_jag", "token_exchange"
]
"""How an access token is obtained: by a person in a browser (RFC 6749 §4.1), by a person on another device (RFC 8628),
by the client's own secret or key (RFC 6749 §4.4), by a workload's JWT (RFC 7523 §2.1), or by the assertion of an
enterprise's identity provider (ID-JAG: token exchange, RFC 8693, then RFC 7523). With `token_exchange` a call for a
client of a gateway carries a token that the client's own was exchanged for (RFC 8693); other requests are made as with
`client_credentials`."""
AuthMethod: TypeAlias = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
"""How the client authenticates at the token endpoint (RFC 7591 §2)."""
ResourceKind: TypeAlias = Literal["server", "connector"]
"""What is signed in to: an MCP server, or a service behind an OpenAPI document."""
LOGIN_COMMANDS: Mapping[ResourceKind, str] = {"server": "indus mcp login", "connector": "indus connectors login"}
RegistrationSource: TypeAlias = Literal["configured", "metadata_document", "dynamic"]
GRANTS: tuple[Grant, ...] = get_args(Grant)
AUTH_METHODS: tuple[AuthMethod, ...] = get_args(AuthMethod)
_SOURCES: tuple[RegistrationSource, ...] = get_args(RegistrationSource)
INTERACTIVE_GRANTS: frozenset[Grant] = frozenset({"authorization_code", "device_code"})
"""Grants that need a person."""


# -- faults ---------------------------------------------------------------------------------


class AuthFault(CoreError):
    """Signing in failed. The message names the issuer or server, the cause and the remedy; it holds no secret."""

    def __init__(self, message: str, *, error: str = "", is_transient: bool = False) -> None:
        super().__init__(message)
        self.error = error
        """The error code of the authorization server (RFC 6749 §5.2), or empty."""
        self.is_transient = is_transient
        """The network or the server failed: stored credentials stay valid, and a later try may succeed."""


class SignInRequired(AuthFault):
    """Only a person can go on: there are no usable credentials, and no prompt to ask for them.

    Args:
        name: The configured name.
        problem: Continues a sentence about what has that name.
        kind: What has that name.
    """

    def __init__(self, name: str, problem: str = "needs a sign-in", kind: ResourceKind = "server") -> None:
        self.problem = f"{problem}: {LOGIN_COMMANDS[kind]} {shlex.quote(name)}"
        """What is missing, and the command that helps."""
        super().__init__(f"{kind} {name!r} {self.problem}")


# -- settings -------------------------------------------------------------------------------


@record(kw_only=True)
class IdentityProvider:
    """The identity provider of enterprise-managed authorization, from which an ID-JAG is requested.

    https://github.com/modelcontextprotocol/ext-auth/blob/main/specification/draft/enterprise-managed-authorization.mdx
    """

    token_endpoint: str
    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    id_token: str = field(repr=False)
    """The assertion of the person's sign-in at the identity provider."""


@record(kw_only=True)
class AuthSettings:
    """How to sign in to one server: the `auth` object of its configuration row. Without one, all defaults apply."""

    grant: Grant = "authorization_code"
    client_id: str = ""
    """A pre-registered client; empty: a metadata document, or dynamic registration."""
    client_secret: str | None = field(default=None, repr=False)
    auth_method: AuthMethod | None = None
    """`None`: chosen from what the issuer supports."""
    private_key: str | None = field(default=None, repr=False)
    """PEM or JWK of `private_key_jwt`."""
    signing_algorithm: str = "ES256"
    client_metadata_url: str = ""
    """The https URL of our client ID metadata document, which is the client id where the issuer supports that."""
    scopes: tuple[str, ...] | None = None
    """Requested instead of what the server asks for. `None`: the challenge, then the metadata, then none."""
    callback_port: int | None = None
    """The port of the redirect on this machine; `None`: any free one."""
    redirect_uri: str = ""
    """The complete redirect URI, in place of the default `http://127.0.0.1:<port>/callback`."""
    issuer: str = ""
    """The authorization server, where the server names several or none."""
    metadata_url: str = ""
    """The authorization server's metadata document, in place of the well-known locations."""
    assume_pkce: bool = False
    """Go on with an issuer whose metadata does not mention PKCE, as some do that support it."""
    assertion: str | None = field(default=None, repr=False)
    """The workload's JWT of the grant `jwt_bearer`."""
    assertion_file: str = ""
    """A file with that JWT, read for each token request: platforms renew it in place."""
    identity_provider: IdentityProvider | None = None
    dpop: bool | None = None
    """Bind tokens to a key (RFC 9449). `None`: where the server or the issuer requires it."""
    header_command: tuple[str, ...] = ()
    """A command that prints headers as a JSON object; it replaces OAuth, and runs again after a 401."""

    @property
    def needs_person(self) -> bool:
        """Whether a first sign-in needs a person."""
        return not self.header_command and self.grant in INTERACTIVE_GRANTS


# -- stored credentials ---------------------------------------------------------------------


@record
class CredentialKey:
    """What a sign-in belongs to; also the name of its lock across processes."""

    issuer: str
    resource: str
    """The canonical URI of the server (RFC 8707 §2); see `canonical_resource`."""
    client: str = ""
    """The configured client id; empty: registered by us."""


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
    """The tokens of one response of a token endpoint (RFC 6749 §5.1)."""

    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    token_type: Literal["Bearer", "DPoP"] = "Bearer"
    scope: tuple[str, ...] | None = None
    """The granted scopes; `None`: the issuer named none, which means the requested ones."""
    obtained_at_ms: int = 0
    expires_at_ms: int | None = None

    def is_expired(self, now_ms: int, margin_ms: int = 0) -> bool:
        """Return whether the access token ends within `margin_ms`; one without an end never does."""
        return self.expires_at_ms is not None and now_ms + margin_ms >= self.expires_at_ms


@record(kw_only=True)
class IssuerEndpoints:
    """What refreshing and revoking need to know of the issuer, so that neither depends on another discovery."""

    token_endpoint: str
    refresh_endpoint: str = ""
    """Where tokens are refreshed; empty: at the token endpoint."""
    revocation_endpoint: str = ""
    indicator: str = ""
    """The `resource` parameter of token requests (RFC 8707); empty: none, for servers of 2025-03-26."""


@record(kw_only=True)
class StoredCredentials:
    """One sign-in as it is stored."""

    key: CredentialKey
    registration: ClientRegistration
    endpoints: IssuerEndpoints
    tokens: TokenSet | None = None
    """`None`: registered, or signed out, but not signed in."""
    requested_scopes: tuple[str, ...] = ()
    """The scopes that the tokens were requested with; a step-up asks for these and the new ones."""
    wanted_scopes: tuple[str, ...] = ()
    """Scopes that the server has asked for since; the next sign-in requests them."""
    dpop_key: JsonObject | None = field(default=None, repr=False)
    """The private JWK that the tokens are bound to."""
    account: str = ""
    """Who signed in, as far as an ID token tells: for display alone."""

    def to_json(self) -> JsonObject:
        """Convert into JSON, secrets included; absent values are left out."""
        registration, tokens, ends = self.registration, self.tokens, self.endpoints
        document: JsonObject = {
            "issuer": self.key.issuer,
            "resource": self.key.resource,
            "client": self.key.client,
            "registration": {
                "client_id": registration.client_id,
                "client_secret": registration.client_secret,
                "auth_method": registration.auth_method,
                "source": registration.source,
                "redirect_uris": [*registration.redirect_uris],
                "secret_expires_at_ms": registration.secret_expires_at_ms,
            },
            "endpoints": {
                "token_endpoint": ends.token_endpoint,
                "refresh_endpoint": ends.refresh_endpoint,
                "revocation_endpoint": ends.revocation_endpoint,
                "indicator": ends.indicator,
            },
            "requested_scopes": [*self.requested_scopes],
            "wanted_scopes": [*self.wanted_scopes],
            "account": self.account,
        }
        if tokens is not None:
            document["tokens"] = {
                "access_token": tokens.access_token,
                "refresh_token": tokens.refresh_token,
                "token_type": tokens.token_type,
                "scope": None if tokens.scope is None else [*tokens.scope],
                "obtained_at_ms": tokens.obtained_at_ms,
                "expires_at_ms": tokens.expires_at_ms,
            }
        if self.dpop_key is not None:
            document["dpop_key"] = self.dpop_key
        return document

    def without_tokens(self) -> StoredCredentials:
        """Return the same registration, signed out."""
        return replace(self, tokens=None, account="")


def parse_credentials(document: JsonValue) -> StoredCredentials | None:
    """Parse what `StoredCredentials.to_json` made; `None` for anything else."""
    if not is_json_object(document):
        return None
    registration, endpoints = document.get("registration"), document.get("endpoints")
    tokens, key = document.get("tokens"), document.get("dpop_key")
    if not is_json_object(registration) or not is_json_object(endpoints):
        return None
    method: AuthMethod | None = next((name for name in AUTH_METHODS if name == registration.get("auth_method")), None)
    source = next((name for name in _SOURCES if name == registration.get("source")), None)
    client_id, token_endpoint = _text(registration, "client_id"), _text(endpoints, "token_endpoint")
    if method is None or source is None or not (client_id and token_endpoint):
        return None
    token_set = None
    if is_json_object(tokens) and (access_token := _text(tokens, "access_token")):
        token_set = TokenSet(
            access_token=access_token,
            refresh_token=_text(tokens, "refresh_token") or None,
            token_type="DPoP" if tokens.get("token_type") == "DPoP" else "Bearer",
            scope=None if tokens.get("scope") is None else _texts(tokens, "scope"),
            obtained_at_ms=_number(tokens, "obtained_at_ms") or 0,
            expires_at_ms=_number(tokens, "expires_at_ms"),
        )
    return StoredCredentials(
        key=CredentialKey(_text(document, "issuer"), _text(document, "resource"), _text(document, "client")),
        registration=ClientRegistration(
            client_id=client_id,
            client_secret=_text(registration, "client_secret") or None,
            auth_method=method,
            source="configured"
            if source == "configured"
            else "dynamic"
            if source == "dynamic"
            else "metadata_document",
            redirect_uris=_texts(registration, "redirect_uris"),
            secret_expires_at_ms=_number(registration, "secret_expires_at_ms"),
        ),
        endpoints=IssuerEndpoints(
            token_endpoint=token_endpoint,
            refresh_endpoint=_text(endpoints, "refresh_endpoint"),
            revocation_endpoint=_text(endpoints, "revocation_endpoint"),
            indicator=_text(endpoints, "indicator"),
        ),
        tokens=token_set,
        requested_scopes=_texts(document, "requested_scopes"),
        wanted_scopes=_texts(document, "wanted_scopes"),
        dpop_key=key if is_json_object(key) else None,
        account=_text(document, "account"),
    )


def _text(document: JsonObject, name: str) -> str:
    value = document.get(name)
    return value if isinstance(value, str) else ""


def _texts(document: JsonObject, name: str) -> tuple[str, ...]:
    value = document.get(name)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def _number(document: JsonObject, name: str) -> int | None:
    value = document.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# -- what a product implements --------------------------------------------------------------


class CredentialStore(Protocol):
    """Keeps sign-ins. Its methods raise `AuthFault` when the storage itself fails."""

    async def load(self, resource: str, client: str = "") -> StoredCredentials | None:
        """Return the sign-in of a server that was saved last, whatever its issuer."""
        ...

    async def find(self, key: CredentialKey) -> StoredCredentials | None:
        """Return the sign-in of exactly this key."""
        ...

    async def save(self, credentials: StoredCredentials) -> None:
        """Store a sign-in in place of the one with the same key, atomically and durably."""
        ...

    async def delete(self, key: CredentialKey) -> None:
        """Remove a sign-in; absent is as good."""
        ...

    async def list_credentials(self) -> Sequence[StoredCredentials]:
        """List every sign-in."""
        ...

    def lock(self, key: CredentialKey) -> AbstractAsyncContextManager[None]:
        """Exclude other tasks and processes from refreshing this sign-in; `AuthFault` after a deadline."""
        ...


class RedirectReceiver(Protocol):
    """Receives the redirect of one authorization request."""

    @property
    def redirect_uri(self) -> str:
        """Where the authorization server sends the browser."""
        ...

    async def authorize(self, url: str) -> Mapping[str, str]:
        """Show `url` to the person, and return the query parameters of the redirect, errors included.

        Raises:
            AuthFault: The person gave up, or the deadline passed.
        """
        ...


@record(kw_only=True)
class DeviceCode:
    """What a person needs to sign in on another device (RFC 8628 §3.2)."""

    user_code: str
    verification_uri: str
    verification_uri_complete: str = ""
    expires_s: int = 600


class SignInPrompt(Protocol):
    """The way to a person. The machine polls, checks and exchanges; a prompt shows and receives."""

    def open_redirect(
        self, settings: AuthSettings, registered: Sequence[str]
    ) -> AbstractAsyncContextManager[RedirectReceiver]:
        """Prepare for a redirect; `registered` are redirect URIs of a stored registration, best reused if possible."""
        ...

    async def show_device_code(self, code: DeviceCode) -> None:
        """Show a code and where to enter it, and return at once."""
        ...


@record(kw_only=True)
class ServerAuth:
    """How a client signs in to one server: the settings, the store, and the prompt if a person is there."""

    settings: AuthSettings = field(default_factory=AuthSettings)
    store: CredentialStore = field(repr=False, compare=False)
    prompt: SignInPrompt | None = field(default=None, repr=False, compare=False)
    """`None`: a needed sign-in raises `SignInRequired`."""


# -- what a transport uses ------------------------------------------------------------------


@record
class Refusal:
    """A response of 401 or 403."""

    status: int
    challenges: Sequence[str] = ()
    """The values of its `WWW-Authenticate` headers."""
    nonce: str = ""
    """Its `DPoP-Nonce` header."""


class RequestAuthorizer(Protocol):
    """Adds headers to the requests of a connection, and reacts to refusals."""

    async def build_headers(self, method: str, url: str) -> dict[str, str]:
        """Build the headers of a request.

        Raises:
            AuthFault: There are none, for a reason that the user should know.
        """
        ...

    async def handle_refusal(self, sent: dict[str, str], refusal: Refusal) -> bool:
        """Return whether to send the request again, with new headers; `sent` are the refused ones.

        Raises:
            AuthFault: It is refused for good.
        """
        ...

    def accept(self, sent: dict[str, str], nonce: str) -> None:
        """Take note that the server has accepted the headers."""
        ...

    async def close(self) -> None:
        """End what is under way."""
        ...
