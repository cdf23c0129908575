# The types of Authlib know neither our classes nor a request outside Flask and Django.
# pyright: basic, reportAttributeAccessIssue=false, reportOptionalMemberAccess=false
# pyright: reportArgumentType=false, reportAssignmentType=false
# ruff: noqa: RUF012 — lists of Authlib's classes are replaced, as its documentation says
"""An authorization server on Authlib: rotation of refresh tokens with reuse detection, device grant, token exchange.

It runs in the event loop of the test. `GET /authorize` shows a form with one button, so that a browser and an HTTP
client sign in the same way. What it was asked is kept in `requests`; `pause` stops a request at the token endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from html import escape
from typing import Any

import anyio
from authlib.common.security import generate_token
from authlib.common.urls import add_params_to_uri
from authlib.oauth2.rfc6749 import AuthorizationServer, BaseGrant, OAuth2Request, TokenEndpointMixin
from authlib.oauth2.rfc6749.errors import InvalidGrantError, InvalidRequestError, OAuth2Error
from authlib.oauth2.rfc6749.grants import AuthorizationCodeGrant, ClientCredentialsGrant, RefreshTokenGrant
from authlib.oauth2.rfc6749.requests import BasicOAuth2Payload, JsonPayload, JsonRequest
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7591 import ClientRegistrationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge
from authlib.oauth2.rfc8628 import DEVICE_CODE_GRANT_TYPE, DeviceAuthorizationEndpoint, DeviceCodeGrant
from joserfc import jwt
from joserfc.jwk import ECKey
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from indusagi.core.time import now_ms

TOKEN_EXCHANGE = "urn:ietf:params:oauth:grant-type:token-exchange"
PERSON = "ada@example.org"


@dataclass
class Client:
    """A registered client; `redirect_uris` are compared as RFC 8252 §7.3 says: any port of a loopback address."""

    client_id: str
    client_secret: str
    metadata: dict[str, Any]

    def get_client_id(self) -> str:
        return self.client_id

    def get_default_redirect_uri(self) -> str:
        return self.metadata["redirect_uris"][0]

    def get_allowed_scope(self, scope: str) -> str:
        return scope or ""

    def check_redirect_uri(self, redirect_uri: str) -> bool:
        return redirect_uri in self.metadata["redirect_uris"]

    def check_client_secret(self, client_secret: str) -> bool:
        return self.client_secret == client_secret

    def check_endpoint_auth_method(self, method: str, endpoint: str) -> bool:
        return method == self.metadata.get("token_endpoint_auth_method", "client_secret_basic")

    def check_response_type(self, response_type: str) -> bool:
        return response_type == "code"

    def check_grant_type(self, grant_type: str) -> bool:
        return grant_type in self.metadata.get("grant_types", ["authorization_code"])


@dataclass
class Code:
    code: str
    client_id: str
    redirect_uri: str
    scope: str
    user: str
    code_challenge: str
    code_challenge_method: str
    resource: str

    def get_redirect_uri(self) -> str:
        return self.redirect_uri

    def get_scope(self) -> str:
        return self.scope


@dataclass
class Device:
    client_id: str
    scope: str
    device_code: str
    user_code: str
    resource: str

    def get_client_id(self) -> str:
        return self.client_id

    def get_scope(self) -> str:
        return self.scope

    def get_user_code(self) -> str:
        return self.user_code

    def is_expired(self) -> bool:
        return False


@dataclass
class Issued:
    """One answer of the token endpoint."""

    family: str
    access: str
    refresh: str | None
    client_id: str
    scope: str
    user: str
    resource: str
    is_spent: bool = False
    """Its refresh token was used."""
    is_stale: bool = False
    """Its access token has expired."""
    is_revoked: bool = False

    def check_client(self, client: Client) -> bool:
        return self.client_id == client.client_id

    def get_scope(self) -> str:
        return self.scope


@dataclass
class AuthlibServer:
    """The state of the server, and its settings."""

    resource: str = ""
    """The only resource that tokens are issued for; empty: any."""
    lifetime_s: int = 3600
    scopes: tuple[str, ...] = ("read", "write", "openid", "offline_access")
    forgives_reuse: bool = False
    """Whether a spent refresh token is accepted until its successor is used."""
    device_interval_s: int = 0
    issuer: str = ""
    requests: list[tuple[str, int]] = field(default_factory=list)
    """Grant type (or `revoke`, `register`) and status of each answered request."""
    reuses: int = 0
    clients: dict[str, Client] = field(default_factory=dict)
    codes: dict[str, Code] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    approved: dict[str, bool] = field(default_factory=dict)
    """The device codes that a person has decided about, by user code."""
    tokens: list[Issued] = field(default_factory=list)
    seen: set[str] = field(default_factory=set)
    """Access tokens that a server was shown."""
    fail_with: int = 0
    """The status with which the token endpoint fails."""
    pause: str = ""
    """`before` or `after`: token requests wait for `resume` before they are judged, or before their answer is sent.

    A request whose client has gone before is never judged."""
    reached: anyio.Event = field(default_factory=anyio.Event)
    resume: anyio.Event = field(default_factory=anyio.Event)
    key: ECKey = field(default_factory=lambda: ECKey.generate_key("P-256", {"kid": "k1"}))

    def count(self, grant: str, status: int | None = None) -> int:
        return sum(1 for name, code in self.requests if name == grant and status in {None, code})

    def find_live(self, access: str) -> Issued | None:
        """Return the token if a server may accept it."""
        self.seen.add(access)
        return next((t for t in self.tokens if t.access == access and not t.is_revoked and not t.is_stale), None)

    def expire_access(self) -> None:
        for token in self.tokens:
            token.is_stale = True

    def approve(self, user_code: str, *, allowed: bool = True) -> None:
        self.approved[user_code] = allowed

    def metadata(self) -> dict[str, Any]:
        return {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "device_authorization_endpoint": f"{self.issuer}/device",
            "jwks_uri": f"{self.issuer}/jwks",
            "scopes_supported": [*self.scopes],
            "response_types_supported": ["code"],
            "grant_types_supported": [
                "authorization_code",
                "refresh_token",
                "client_credentials",
                DEVICE_CODE_GRANT_TYPE,
                TOKEN_EXCHANGE,
            ],
            "token_endpoint_auth_methods_supported": ["none", "client_secret_basic", "client_secret_post"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }

    # -- the app ------------------------------------------------------------------------------

    def build_app(self) -> Starlette:  # noqa: C901 — one function per route
        server = _Server(self)

        async def describe(_: Any) -> Response:
            return JSONResponse(self.metadata())

        async def jwks(_: Any) -> Response:
            return JSONResponse({"keys": [self.key.as_dict(private=False)]})

        async def authorize(request: Any) -> Response:
            form = {} if request.method == "GET" else dict(await request.form())
            oauth = _HttpRequest(request, dict(request.query_params))
            try:
                grant = server.get_consent_grant(oauth, PERSON)
            except OAuth2Error as exc:
                return HTMLResponse(f"<p>{escape(str(exc))}</p>", 400)
            if request.method == "GET":
                button = '<button id="allow" name="allow" value="yes">Allow</button>'
                return HTMLResponse(f'<title>Sign in</title><form method="post">{button}</form>')
            person = (form.get("person") or PERSON) if form.get("allow") == "yes" else None
            answer = server.create_authorization_response(oauth, person, grant=grant)
            target = add_params_to_uri(answer.headers["location"], {"iss": self.issuer})
            return RedirectResponse(target, 302)

        async def token(request: Any) -> Response:
            form = dict(await request.form())
            if self.pause == "before":
                await self._stop()
                if await request.is_disconnected():
                    return Response(status_code=499)
            if self.fail_with:
                answer: Response = JSONResponse({"error": "temporarily_unavailable"}, self.fail_with)
            else:
                answer = server.create_token_response(_HttpRequest(request, form))
            self.requests.append((str(form.get("grant_type")), answer.status_code))
            if self.pause == "after":
                await self._stop()
            return answer

        async def endpoint(request: Any) -> Response:
            name = {"/revoke": "revocation", "/device": "device_authorization", "/register": "client_registration"}
            path = request.url.path
            if path == "/register":
                converted: Any = JsonRequest("POST", str(request.url), dict(request.headers))
                converted.payload = _Json(await request.json())
            else:
                converted = _HttpRequest(request, dict(await request.form()))
            answer = server.create_endpoint_response(name[path], converted)
            self.requests.append((path[1:], answer.status_code))
            return answer

        async def approve(request: Any) -> Response:
            if request.method == "POST":
                form = await request.form()
                self.approve(form["user_code"])
                return HTMLResponse("<p>Done</p>")
            code = escape(request.query_params.get("user_code", ""))
            return HTMLResponse(
                f'<form method="post"><input name="user_code" value="{code}"><button id="allow">Allow</button></form>'
            )

        post = ["POST"]
        return Starlette(
            routes=[
                Route("/.well-known/oauth-authorization-server", describe),
                Route("/jwks", jwks),
                Route("/authorize", authorize, methods=["GET", "POST"]),
                Route("/token", token, methods=post),
                Route("/register", endpoint, methods=post),
                Route("/revoke", endpoint, methods=post),
                Route("/device", endpoint, methods=post),
                Route("/approve", approve, methods=["GET", "POST"]),
            ]
        )

    async def _stop(self) -> None:
        self.reached.set()
        await self.resume.wait()


class _Json(JsonPayload):
    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document

    @property
    def data(self) -> dict[str, Any]:
        return self._document


class _HttpRequest(OAuth2Request):
    def __init__(self, request: Any, data: dict[str, Any]) -> None:
        # Authlib refuses http; here every address is one of this machine.
        super().__init__(request.method, str(request.url).replace("http://", "https://"), None, request.headers)
        self.payload = BasicOAuth2Payload(data)
        self._data = data

    @property
    def args(self) -> dict[str, Any]:
        return self._data if self.method == "GET" else {}

    @property
    def form(self) -> dict[str, Any]:
        return self._data


class _Server(AuthorizationServer):
    def __init__(self, state: AuthlibServer) -> None:
        super().__init__(list(state.scopes))
        self.state = state
        self.register_token_generator("default", self._generate)
        self.register_grant(_CodeGrant, [CodeChallenge(required=True)])
        for grant in (_RefreshGrant, _DeviceGrant, _ExchangeGrant, ClientCredentialsGrant):
            self.register_grant(grant)
        for endpoint in (_Revocation, _Registration, _DeviceEndpoint):
            self.register_endpoint(endpoint(self))

    def _generate(self, grant_type: str, client: Client, **settings: Any) -> dict[str, Any]:
        state, scope = self.state, settings.get("scope") or ""
        token: dict[str, Any] = {
            "token_type": "Bearer",
            "access_token": f"access-{generate_token(24)}",
            "expires_in": state.lifetime_s,
            "scope": scope,
        }
        if settings.get("include_refresh_token"):
            token["refresh_token"] = f"refresh-{generate_token(24)}"
        if "openid" in scope.split():
            now = now_ms() // 1000
            claims = {"iss": state.issuer, "sub": "1", "email": PERSON, "aud": client.client_id, "iat": now}
            token["id_token"] = jwt.encode({"alg": "ES256", "kid": "k1"}, claims | {"exp": now + 60}, state.key)
        return token

    def query_client(self, client_id: str) -> Client | None:
        return self.state.clients.get(client_id)

    def save_token(self, token: dict[str, Any], request: OAuth2Request) -> None:
        former, code = request.refresh_token, request.authorization_code or request.credential
        issued = Issued(
            former.family if former else generate_token(8),
            token["access_token"],
            token.get("refresh_token"),
            request.client.client_id,
            token["scope"],
            request.user or "",
            former.resource if former else code.resource if code else request.payload.data.get("resource", ""),
        )
        self.state.tokens.append(issued)

    def send_signal(self, name: str, *args: Any, **kwargs: Any) -> None:
        pass

    def create_oauth2_request(self, request: OAuth2Request) -> OAuth2Request:
        return request

    def create_json_request(self, request: JsonRequest) -> JsonRequest:
        return request

    def handle_response(self, status: int, body: Any, headers: Any) -> Response:
        if isinstance(body, dict):
            return JSONResponse(body, status, dict(headers))
        return Response(body or "", status, dict(headers))

    def check_resource(self, resource: str) -> str:
        if self.state.resource and resource != self.state.resource:
            raise InvalidRequestError(f"the resource {resource!r} is unknown")
        return resource


class _CodeGrant(AuthorizationCodeGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]

    def save_authorization_code(self, code: str, request: OAuth2Request) -> None:
        data = request.payload.data
        self.server.state.codes[code] = Code(
            code,
            request.client.client_id,
            data["redirect_uri"],
            data.get("scope", ""),
            request.user,
            data["code_challenge"],
            data["code_challenge_method"],
            self.server.check_resource(data.get("resource", "")),
        )

    def query_authorization_code(self, code: str, client: Client) -> Code | None:
        found = self.server.state.codes.get(code)
        if found is None or found.client_id != client.client_id:
            return None
        if self.request.payload.data.get("resource", "") != found.resource:
            raise InvalidRequestError("another resource")
        return found

    def delete_authorization_code(self, code: Code) -> None:
        del self.server.state.codes[code.code]

    def authenticate_user(self, code: Code) -> str:
        return code.user


class _RefreshGrant(RefreshTokenGrant):
    TOKEN_ENDPOINT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]
    INCLUDE_NEW_REFRESH_TOKEN = True

    def authenticate_refresh_token(self, refresh_token: str) -> Issued | None:
        state: AuthlibServer = self.server.state
        found = next((t for t in state.tokens if t.refresh == refresh_token), None)
        if found is None or found.is_revoked:
            return None
        if found.is_spent:
            later = state.tokens[state.tokens.index(found) + 1 :]
            used = any(t.is_spent or t.access in state.seen for t in later if t.family == found.family)
            if state.forgives_reuse and not used:
                return found
            # Reuse: the family is revoked (RFC 9700 §4.14.2).
            state.reuses += 1
            for token in state.tokens:
                token.is_revoked |= token.family == found.family
            raise InvalidGrantError("this refresh token was used before")
        return found

    def authenticate_user(self, refresh_token: Issued) -> str:
        return refresh_token.user

    def revoke_old_credential(self, refresh_token: Issued) -> None:
        refresh_token.is_spent = True


class _DeviceGrant(DeviceCodeGrant):
    def query_device_credential(self, device_code: str) -> Device | None:
        return self.server.state.devices.get(device_code)

    def query_user_grant(self, user_code: str) -> tuple[str, bool] | None:
        allowed = self.server.state.approved.get(user_code)
        return None if allowed is None else (PERSON, allowed)

    def should_slow_down(self, credential: Device) -> bool:
        return False


class _ExchangeGrant(BaseGrant, TokenEndpointMixin):
    """RFC 8693: a live access token for one with another audience."""

    GRANT_TYPE = TOKEN_EXCHANGE
    TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]

    def validate_token_request(self) -> None:
        self.request.client = self.authenticate_token_endpoint_client()
        subject = self.server.state.find_live(self.request.payload.data.get("subject_token", ""))
        if subject is None:
            raise InvalidGrantError("the subject token is not live")
        self.request.user = subject.user

    def create_token_response(self) -> tuple[int, dict[str, Any], Any]:
        token = self.generate_token(
            user=self.request.user, scope=self.request.payload.scope, include_refresh_token=False
        )
        self.save_token(token)
        kind = "urn:ietf:params:oauth:token-type:access_token"
        return 200, {**token, "issued_token_type": kind}, self.TOKEN_RESPONSE_HEADER


class _Revocation(RevocationEndpoint):
    CLIENT_AUTH_METHODS = ["none", "client_secret_basic", "client_secret_post"]

    def query_token(self, token_string: str, token_type_hint: str) -> Issued | None:
        return next((t for t in self.server.state.tokens if token_string in {t.access, t.refresh}), None)

    def revoke_token(self, token: Issued, request: OAuth2Request) -> None:
        for other in self.server.state.tokens:
            other.is_revoked |= other.family == token.family


class _Registration(ClientRegistrationEndpoint):
    def authenticate_token(self, request: JsonRequest) -> str:
        return "open"

    def get_server_metadata(self) -> dict[str, Any]:
        return self.server.state.metadata()

    def generate_client_id(self, request: JsonRequest) -> str:
        return f"client-{generate_token(8)}"

    def save_client(self, client_info: dict[str, Any], client_metadata: dict[str, Any], request: JsonRequest) -> Client:
        client = Client(client_info["client_id"], client_info["client_secret"], client_metadata)
        self.server.state.clients[client.client_id] = client
        return client


class _DeviceEndpoint(DeviceAuthorizationEndpoint):
    EXPIRES_IN = 60

    @property
    def INTERVAL(self) -> int:  # type: ignore[override] # noqa: N802
        return self.server.state.device_interval_s

    def get_verification_uri(self) -> str:
        return f"{self.server.state.issuer}/approve"

    def save_device_credential(self, client_id: str, scope: str, data: dict[str, Any]) -> None:
        state: AuthlibServer = self.server.state
        device = Device(client_id, scope or "", data["device_code"], data["user_code"], state.resource)
        state.devices[device.device_code] = device
