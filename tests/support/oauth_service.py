"""A service behind an OpenAPI document that accepts the tokens of the Authlib authorization server."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route
from tests.support.authlib_server import AuthlibServer, Client
from tests.support.sdk_hosts import served

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from starlette.requests import Request

    from indusagi.core.json import JsonObject, JsonValue

SECRET = "s3cret-of-the-client"


@dataclass
class OAuthService:
    """The service: what its document says, and what it was sent."""

    issuer: AuthlibServer
    base_url: str = ""
    elsewhere: str = ""
    """Another origin, to which one operation redirects."""
    challenges: bool = False
    """Whether a refusal names the scope that is missing, as RFC 6750 asks for and many services do not."""
    sent: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Method and path of each request, and its `Authorization`."""
    strayed: list[str] = field(default_factory=list[str])
    """`Authorization` of requests to the other origin."""

    def register(self, client_id: str, *redirect_uris: str, secret: str = "") -> None:
        """Register a client at the issuer."""
        method = "client_secret_basic" if secret else "none"
        grants = ["authorization_code", "refresh_token", "client_credentials"]
        metadata = {
            "redirect_uris": [*redirect_uris],
            "token_endpoint_auth_method": method,
            "grant_types": grants,
            "scope": " ".join(self.issuer.scopes),
        }
        self.issuer.clients[client_id] = Client(client_id, secret, metadata)

    def build_document(self, **schemes: JsonValue) -> JsonObject:
        """Build the document of the service, with the scheme `login` unless there are others."""
        flow: JsonObject = {
            "tokenUrl": f"{self.issuer.issuer}/token",
            "scopes": {"read": "Read notes", "write": "Write notes", "offline_access": "Stay signed in"},
        }
        login: JsonObject = {
            "type": "oauth2",
            "flows": {
                "authorizationCode": {**flow, "authorizationUrl": f"{self.issuer.issuer}/authorize"},
                "clientCredentials": flow,
            },
        }
        return {
            "openapi": "3.1.0",
            "info": {"title": "Notes", "version": "1"},
            "security": [{name: ["read"]} for name in schemes or ("login",)],
            "paths": {
                "/notes": {
                    "get": {"operationId": "listNotes", "summary": "List the notes"},
                    "post": {
                        "operationId": "addNote",
                        "summary": "Add a note",
                        "security": [{name: ["write"]} for name in schemes or ("login",)],
                    },
                },
                "/status": {"get": {"operationId": "getStatus", "summary": "Get the status", "security": []}},
                "/away": {"get": {"operationId": "goAway", "summary": "Go to another origin"}},
            },
            "components": {"securitySchemes": schemes or {"login": login}},
        }

    def build_routes(self) -> list[Route]:
        """Build the routes of the service."""

        def refuse(status: int, needed: str) -> Response:
            error = "invalid_token" if status == 401 else "insufficient_scope"
            named = {"www-authenticate": f'Bearer error="{error}", scope="{needed}"'} if self.challenges else {}
            return JSONResponse({"problem": "refused"}, status, named)

        async def answer(request: Request) -> Response:
            header = request.headers.get("authorization", "")
            self.sent.append((f"{request.method} {request.url.path}", header))
            if request.url.path.endswith("/status"):
                return JSONResponse({"status": "up", "signedIn": bool(header)})
            token = self.issuer.find_live(header.removeprefix("Bearer "))
            needed = "write" if request.method == "POST" else "read"
            if token is None:
                return refuse(401, needed)
            if needed not in token.scope.split():
                return refuse(403, needed)
            if request.url.path.endswith("/away"):
                return RedirectResponse(f"{self.elsewhere}/caught", 307)
            return JSONResponse({"did": f"{request.method} {request.url.path}", "echo": header})

        return [Route(f"/v1/{name}", answer, methods=["GET", "POST"]) for name in ("notes", "status", "away")]


@asynccontextmanager
async def oauth_service(issuer: AuthlibServer | None = None) -> AsyncGenerator[OAuthService]:
    """Serve the issuer, the service and another origin, at ports of their own."""
    issuer = issuer or AuthlibServer()
    service = OAuthService(issuer)

    async def catch(request: Request) -> Response:
        service.strayed.append(request.headers.get("authorization", ""))
        return JSONResponse({})

    other = Starlette(routes=[Route("/caught", catch)])
    async with (
        served(issuer.build_app()) as address,
        served(Starlette(routes=service.build_routes())) as place,
        served(other) as elsewhere,
    ):
        issuer.issuer, service.base_url, service.elsewhere = address, f"{place}/v1", elsewhere
        yield service
