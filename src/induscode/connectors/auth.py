"""How a connector authenticates: variables with its credentials, or OAuth with a scheme of its document.

The store holds names of variables, never values; they're read when sending a request. In anything shown to a model or
the user, each value is replaced by its variable's name, in every spelling a service could send back.

OAuth endpoints come from the approved document (`oauth2`, https://spec.openapis.org/oas/v3.1.1.html#oauth-flows-object),
or from the metadata it references (`openIdConnect`). The store holds the client id and the name of the variable with
its secret. Tokens are sign-ins, and live in the credential store like server sign-ins.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final, Literal, TypeAlias, cast, get_args
from urllib.parse import urljoin

from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.records import record
from indusagi.core.secrets import REFERENCE, list_spellings, parse_secret, parse_secret_text
from indusagi.core.tasks import run_in_daemon_thread
from indusagi.core.text import clean_json
from indusagi.interop.auth.contract import AuthFault, AuthMethod, AuthSettings
from indusagi.interop.auth.metadata import IssuerMetadata, check_endpoint, get_origin_of
from induscode.connectors.openapi import ConnectorFault, DocumentFault, resolve_object

AuthKind: TypeAlias = Literal["bearer", "header", "query", "basic"]
AUTH_FORMS: Final = (
    "bearer:VARIABLE, header:NAME:VARIABLE, query:NAME:VARIABLE or basic:USER_VARIABLE:PASSWORD_VARIABLE"
)
_VARIABLE_NAME = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")
_NAME = re.compile(r"[A-Za-z0-9_.~-]{1,100}")
_PARTS: Final = {"bearer": 1, "header": 2, "query": 2, "basic": 2}
_MIN_SECRET_CHARS: Final = 4
"""Shorter values would also replace ordinary text."""


@record
class AuthReference:
    """How a connector authenticates."""

    kind: AuthKind
    variables: tuple[str, ...]
    name: str = ""
    """Name of the header or query parameter."""

    def __str__(self) -> str:
        return ":".join([self.kind, *([self.name] if self.name else []), *self.variables])

    @property
    def sends(self) -> frozenset[tuple[str, str]]:
        """The parameter it fills, as place and lower-case name."""
        if self.kind in {"header", "query"}:
            return frozenset({(str(self.kind), self.name.lower())})
        return frozenset({("header", "authorization")})

    async def find_credentials(self, environ: Mapping[str, str]) -> Credentials:
        """Read the credentials without blocking. Raises like `read_credentials`."""
        if not any(map(parse_secret, self.variables)):
            return self.read_credentials(environ)
        return await run_in_daemon_thread("secrets", self.read_credentials, environ)

    def read_credentials(self, environ: Mapping[str, str]) -> Credentials:
        """Read the values of the variables. Blocks where one is a reference to a secret.

        Raises `ConnectorFault` if a variable isn't set, or its value can't be sent.
        """
        check_values(self.variables, environ)
        values = [_read_value(name, environ) for name in self.variables]
        for name, value in zip(self.variables, values, strict=True):
            if not value.isascii() or not value.isprintable():
                raise ConnectorFault(
                    f"the variable {name} contains characters a header can't carry: use printable ASCII"
                )
        secrets = dict(zip(values, self.variables, strict=True))
        if self.kind == "bearer":
            return Credentials({"Authorization": f"Bearer {values[0]}"}, None, secrets)
        if self.kind == "header":
            return Credentials({self.name: values[0]}, None, secrets)
        if self.kind == "query":
            return Credentials({}, (self.name, values[0]), secrets)
        pair = b64encode(":".join(values).encode("ascii")).decode("ascii")
        secrets = {pair: "+".join(self.variables), values[1]: self.variables[1]}
        return Credentials({"Authorization": f"Basic {pair}"}, None, secrets)


@record
class Credentials:
    """Values for one request, hidden from `repr`."""

    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    query: tuple[str, str] | None = field(default=None, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """Maps each value to its replacement: its variable's name."""

    def hide(self, value: JsonValue) -> JsonValue:
        """Replace every variable's value, in texts and keys."""
        forms: dict[str, str] = {}
        for secret, name in self.secrets.items():
            if len(secret) >= _MIN_SECRET_CHARS:
                forms |= dict.fromkeys(list_spellings(secret), f"[{name}]")
        if not forms:
            return value
        ordered = sorted(forms, key=len, reverse=True)
        pattern = re.compile("|".join(map(re.escape, ordered)))
        return clean_json(value, lambda text: pattern.subn(lambda match: forms[match[0]], text))[0]

    def hide_text(self, text: str) -> str:
        """Replace every variable's value in a text."""
        return cast("str", self.hide(text))


def find_unset(variables: Iterable[str], environ: Mapping[str, str]) -> list[str]:
    """List the variables without a value."""
    return [name for name in variables if parse_secret(name) is None and not environ.get(name)]


def check_values(variables: Iterable[str], environ: Mapping[str, str]) -> None:
    """Check that variables have values, or raise `ConnectorFault`."""
    missing = find_unset(variables, environ)
    if missing:
        raise ConnectorFault(f"the variable {missing[0]} is not set in this run: set it and start again")


def _read_value(name: str, environ: Mapping[str, str]) -> str:
    """Return the value of a variable, or of the reference in its place."""
    if parse_secret(name) is None:
        return environ[name]
    from indusagi.interop.auth.secrets import SecretFault, reveal  # noqa: PLC0415 — for a reference

    try:
        return reveal(parse_secret_text(name))
    except SecretFault as exc:
        raise ConnectorFault(str(exc)) from exc


def check_variable(name: str, option: str) -> None:
    """Check a reference, or the name of a variable with a secret. An error never repeats it: it may be the secret.

    Raises `ConnectorFault` if it's neither.
    """
    reference = parse_secret(name)
    if reference is not None and reference.kind == "file" and not reference.name.startswith(("/", "~")):
        raise ConnectorFault(f"{option}: a file needs its full path in ${{file:…}}")
    if reference is None and not _VARIABLE_NAME.fullmatch(name):
        problem = "takes the name of an environment variable, in capital letters, or a reference such as "
        problem += "${keyring:NAME}; the secret itself is never given"
        raise ConnectorFault(f"{option} {problem}")


def parse_auth(text: str) -> AuthReference:
    """Parse how a connector authenticates. An error never repeats the text, which may be a secret.

    Raises `ConnectorFault` if the form is wrong, or it names no variable.
    """
    references = iter(re.findall(REFERENCE, text))
    kind, *parts = (next(references) if part == "\0" else part for part in re.sub(REFERENCE, "\0", text).split(":"))
    if _PARTS.get(kind) != len(parts):
        raise ConnectorFault(f"--auth has the form {AUTH_FORMS}")
    kind = cast("AuthKind", kind)
    name = parts.pop(0) if kind in {"header", "query"} else ""
    if name and not _NAME.fullmatch(name):
        raise ConnectorFault(f"--auth names no {kind} parameter: the form is {AUTH_FORMS}")
    for part in parts:
        check_variable(part, "--auth")
    return AuthReference(kind, tuple(parts), name)


# -- OAuth ------------------------------------------------------------------------------------


ConnectorGrant: TypeAlias = Literal["authorization_code", "client_credentials"]
CONNECTOR_GRANTS: tuple[ConnectorGrant, ...] = get_args(ConnectorGrant)
SecretMethod: TypeAlias = Literal["client_secret_basic", "client_secret_post"]
SECRET_METHODS: tuple[SecretMethod, ...] = get_args(SecretMethod)
_FLOWS: Final[Mapping[ConnectorGrant, str]] = {
    "authorization_code": "authorizationCode",
    "client_credentials": "clientCredentials",
}
_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""A scope by RFC 6749 §3.3."""


@record(kw_only=True)
class OAuthReference:
    """How a connector signs in: a scheme of its document, and a client registered there."""

    scheme: str
    grant: ConnectorGrant = "authorization_code"
    client_id: str = ""
    """Empty to register a client dynamically, if the issuer supports it."""
    secret_variable: str = ""
    """Environment variable with the client secret; empty without one."""
    auth_method: SecretMethod | None = None
    """How to send the secret; None for the issuer's preference."""
    scopes: tuple[str, ...] = ()
    """Scopes of the first sign-in; empty for the ones the reading operations need."""

    def __str__(self) -> str:
        return f"oauth:{self.scheme}"

    @property
    def sends(self) -> frozenset[tuple[str, str]]:
        """The parameter it fills, as place and lower-case name."""
        return frozenset({("header", "authorization")})

    @property
    def variables(self) -> tuple[str, ...]:
        """Variables that hold a secret."""
        return (self.secret_variable,) if self.secret_variable else ()

    def build_settings(self, environ: Mapping[str, str], openid_url: str = "") -> AuthSettings:
        """Build the settings of a sign-in. `openid_url` is the metadata the document references."""
        return AuthSettings(
            grant=self.grant,
            client_id=self.client_id,
            client_secret=parse_secret_text(self.secret_variable)
            if parse_secret(self.secret_variable)
            else environ.get(self.secret_variable) or None,
            auth_method=cast("AuthMethod | None", self.auth_method),
            metadata_url=openid_url,
            # OpenAPI documents can't say; an issuer without PKCE ignores it (RFC 6749 §3.1).
            assume_pkce=True,
        )

    def to_json(self) -> JsonObject:
        """Build the stored form."""
        return {
            "kind": "oauth",
            "scheme": self.scheme,
            "grant": self.grant,
            "clientId": self.client_id,
            "secretVariable": self.secret_variable,
            "authMethod": self.auth_method,
            "scopes": [*self.scopes],
        }


ConnectorAuth: TypeAlias = AuthReference | OAuthReference
"""How a connector authenticates."""


def parse_stored_auth(value: JsonValue) -> ConnectorAuth | None:
    """Parse the stored form of a connector's authentication.

    Raises:
        ConnectorFault: It's damaged. Without its credentials, it would be another connector.
    """
    if value is None or isinstance(value, str):
        return None if value is None else parse_auth(value)
    reference = _parse_reference(value) if is_json_object(value) else None
    if reference is None:
        raise ConnectorFault("the stored form of a sign-in is damaged")
    return reference


def _parse_reference(value: JsonObject) -> OAuthReference | None:
    """Parse the output of `OAuthReference.to_json`, or return None."""
    grant: ConnectorGrant | None = next((name for name in CONNECTOR_GRANTS if name == value.get("grant")), None)
    scheme, client_id, variable = value.get("scheme"), value.get("clientId"), value.get("secretVariable")
    scopes = value.get("scopes")
    if value.get("kind") != "oauth" or grant is None or not isinstance(scheme, str) or not isinstance(scopes, list):
        return None
    if not isinstance(client_id, str) or not isinstance(variable, str):
        return None
    return OAuthReference(
        scheme=scheme,
        grant=grant,
        client_id=client_id,
        secret_variable=variable,
        auth_method=next((name for name in SECRET_METHODS if name == value.get("authMethod")), None),
        scopes=tuple(scope for scope in scopes if isinstance(scope, str)),
    )


# -- schemes of a document --------------------------------------------------------------------


@record(kw_only=True)
class OAuthScheme:
    """A scheme of a document that a connector can sign in with."""

    name: str
    openid_url: str = ""
    """The issuer's metadata; empty if the endpoints are in `issuers`."""
    issuers: Mapping[ConnectorGrant, IssuerMetadata]
    """Endpoints of each flow; empty for `openIdConnect`."""

    @property
    def grants(self) -> tuple[ConnectorGrant, ...]:
        """The supported grants."""
        return CONNECTOR_GRANTS if self.openid_url else tuple(self.issuers)

    def list_addresses(self, grant: ConnectorGrant) -> str:
        """List where the user signs in and the client credentials go. Changing one needs an approval."""
        if self.openid_url:
            return self.openid_url
        issuer = self.issuers[grant]
        pages = (issuer.authorization_endpoint, issuer.device_endpoint, issuer.token_endpoint, issuer.refresh_endpoint)
        return ", ".join(dict.fromkeys(page for page in pages if page))


def list_schemes(root: JsonObject, base_url: str) -> tuple[Sequence[OAuthScheme], Sequence[str]]:
    """List the schemes of a document that a connector can sign in with, and the problems of the others."""
    components = root.get("components")
    raw = components.get("securitySchemes") if is_json_object(components) else None
    schemes: list[OAuthScheme] = []
    problems: list[str] = []
    for name, value in (raw if is_json_object(raw) else {}).items():
        try:
            scheme = resolve_object(root, value)
            if scheme.get("type") == "openIdConnect":
                openid_url = _read_url(scheme, "openIdConnectUrl", name, base_url)
                schemes.append(OAuthScheme(name=name, openid_url=openid_url, issuers={}))
            elif scheme.get("type") == "oauth2":
                issuers = _read_flows(scheme, name, base_url)
                if not issuers:
                    offered = scheme.get("flows")
                    listed = ", ".join(offered) if is_json_object(offered) else "none"
                    raise DocumentFault(f"its flows are {listed}; supported are {', '.join(_FLOWS.values())}")
                schemes.append(OAuthScheme(name=name, issuers=issuers))
        except (AuthFault, DocumentFault) as exc:
            problems.append(f"scheme {name!r}: {exc}")
    return schemes, problems


def choose_scheme(root: JsonObject, base_url: str, reference: OAuthReference) -> OAuthScheme:
    """Choose the scheme a reference names, or the only one, and check that its client can sign in there.

    Raises `ConnectorFault` if there's none, there are several, or the client can't sign in.
    """
    scheme = _find_scheme(root, base_url, reference.scheme)
    if reference.grant not in scheme.grants:
        offered = " or ".join(f"--grant {grant}" for grant in scheme.grants)
        raise ConnectorFault(f"the scheme {scheme.name!r} has no flow {_FLOWS[reference.grant]}: use {offered}")
    if not reference.client_id and (scheme.issuers or reference.grant == "client_credentials"):
        message = f"the scheme {scheme.name!r} needs a client: register one at its service, and give its --client-id"
        raise ConnectorFault(message)
    if not reference.secret_variable and reference.grant == "client_credentials":
        raise ConnectorFault("--grant client_credentials needs the variable with the secret: --client-secret VARIABLE")
    return scheme


def _find_scheme(root: JsonObject, base_url: str, name: str) -> OAuthScheme:
    schemes, problems = list_schemes(root, base_url)
    chosen = [scheme for scheme in schemes if not name or scheme.name == name]
    if len(chosen) == 1:
        return chosen[0]
    names = ", ".join(scheme.name for scheme in schemes)
    detail = f" ({'; '.join(problems)})" if problems else ""
    if not schemes:
        raise ConnectorFault(f"the document has no usable scheme oauth2 or openIdConnect{detail}")
    if name:
        raise ConnectorFault(f"the document has no usable OAuth scheme {name!r}; it has: {names}{detail}")
    raise ConnectorFault(f"the document has several OAuth schemes: choose one with --auth oauth:NAME ({names})")


def _read_flows(scheme: JsonObject, name: str, base_url: str) -> Mapping[ConnectorGrant, IssuerMetadata]:
    flows = scheme.get("flows")
    issuers: dict[ConnectorGrant, IssuerMetadata] = {}
    device = flows.get("deviceAuthorization") if is_json_object(flows) else None
    for grant, key in _FLOWS.items():
        flow = flows.get(key) if is_json_object(flows) else None
        if not is_json_object(flow):
            continue
        token_endpoint, scopes = _read_url(flow, "tokenUrl", name, base_url), flow.get("scopes")
        issuers[grant] = IssuerMetadata(
            issuer=get_origin_of(token_endpoint),
            has_identifier=False,
            token_endpoint=token_endpoint,
            refresh_endpoint=_read_url(flow, "refreshUrl", name, base_url) if flow.get("refreshUrl") else "",
            authorization_endpoint=(
                _read_url(flow, "authorizationUrl", name, base_url) if grant == "authorization_code" else ""
            ),
            # A flow from OpenAPI 3.2 that 3.1 documents already use: https://spec.openapis.org/oas/v3.2.0.html.
            device_endpoint=(
                _read_url(device, "deviceAuthorizationUrl", name, base_url) if is_json_object(device) else ""
            ),
            scopes=tuple(scopes) if is_json_object(scopes) else (),
            supports_s256=True,
        )
    return issuers


def _read_url(owner: JsonObject, key: str, scheme: str, base_url: str) -> str:
    """Read an address of a scheme, relative to the base URL.

    Raises `AuthFault` if it isn't an address that may receive a secret.
    """
    value = owner.get(key)
    try:
        url = urljoin(f"{base_url}/", value) if isinstance(value, str) else ""
    except ValueError:  # it isn't a URL
        url = ""
    return check_endpoint(url, key, f"scheme {scheme!r}")


# -- requirements of operations ---------------------------------------------------------------


def list_alternatives(security: JsonValue, scheme: str) -> tuple[tuple[str, ...], ...]:
    """List the alternative sets of scopes that allow calling an operation, ignoring invalid scopes."""
    alternatives: list[tuple[str, ...]] = []
    for requirement in security if isinstance(security, list) else ():
        scopes = requirement.get(scheme) if is_json_object(requirement) else None
        if isinstance(scopes, list):
            named = [scope for scope in scopes if isinstance(scope, str) and _SCOPE.fullmatch(scope)]
            alternatives.append(tuple(named))
    return tuple(alternatives)


def is_public(security: JsonValue) -> bool:
    """Return whether an operation needs no credentials: `security` is empty, or has an empty requirement."""
    return isinstance(security, list) and (not security or any(requirement == {} for requirement in security))


def parse_scopes(text: str) -> tuple[str, ...]:
    """Parse scopes from the user, separated by spaces or commas; raises `ConnectorFault` if one of them is invalid."""
    scopes = tuple(dict.fromkeys(text.replace(",", " ").split()))
    for scope in scopes:
        if not _SCOPE.fullmatch(scope):
            raise ConnectorFault(f"--scopes: {scope[:60]!r} is no scope")
    return scopes
