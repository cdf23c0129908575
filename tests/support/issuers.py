"""An authorization server, a user and a store in memory: the `AuthIO` of a test, without any I/O.

`play(procedure)` runs a procedure. The issuer checks what it is sent as a strict one would, and keeps it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from indusagi.interop.auth.requests import AuthIO, HttpReply
from indusagi.interop.auth.storage import MemoryCredentialStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Coroutine

    from indusagi.interop.auth.contract import AuthSettings, CredentialKey, DeviceCode, StoredCredentials

T = TypeVar("T")
SERVER = "https://mcp.example/mcp"
ISSUER = "https://as.example"
REDIRECT = "http://127.0.0.1:4711/callback"


def reply_json(document: object, status: int = 200, **headers: str) -> HttpReply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpReply(status, {"content-type": "application/json", **named}, json.dumps(document).encode())


@dataclass
class Sent:
    """A request to an issuer."""

    url: str
    headers: Mapping[str, str]
    body: bytes | None


@dataclass
class MemoryIssuer(AuthIO):
    """One issuer and the metadata of one server."""

    issuer: str = ISSUER
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Added to the metadata document; None removes a field."""
    resource: dict[str, Any] = field(default_factory=dict[str, Any])
    """Added to the metadata of the server."""
    answers: dict[str, Callable[[Sent], HttpReply]] = field(default_factory=dict[str, "Callable[[Sent], HttpReply]"])
    """By URL, instead of the usual ones."""
    redirect: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Added to the parameters of a redirect; None removes one."""
    token: dict[str, Any] = field(default_factory=dict[str, Any])
    """Added to the response of the token endpoint."""
    requests: list[Sent] = field(default_factory=list[Sent])
    authorized: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """The queries of authorization requests."""
    forms: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """The forms of token requests."""
    registered: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    shown: list[DeviceCode] = field(default_factory=list["DeviceCode"])
    waits: list[float] = field(default_factory=list[float])
    memory: MemoryCredentialStore = field(default_factory=MemoryCredentialStore)

    def document(self) -> dict[str, Any]:
        base: dict[str, Any] = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "registration_endpoint": f"{self.issuer}/register",
            "revocation_endpoint": f"{self.issuer}/revoke",
            "code_challenge_methods_supported": ["S256"],
            **self.metadata,
        }
        return {name: value for name, value in base.items() if value is not None}

    @property
    def store(self) -> MemoryCredentialStore:
        return self.memory

    @property
    def rows(self) -> dict[CredentialKey, StoredCredentials]:
        return self.memory._rows

    def require_prompt(self) -> MemoryIssuer:
        return self

    async def pause(self, seconds: float) -> None:
        self.waits.append(seconds)

    async def send(self, url: str, headers: Mapping[str, str], body: bytes | None = None) -> HttpReply:
        self.requests.append(Sent(url, headers, body))
        return self._respond(self.requests[-1])

    @asynccontextmanager
    async def open_redirect(self, settings: AuthSettings, registered: Sequence[str]) -> AsyncGenerator[MemoryIssuer]:
        yield self

    @property
    def redirect_uri(self) -> str:
        return REDIRECT

    async def authorize(self, url: str) -> Mapping[str, str]:
        query = dict(parse_qsl(urlsplit(url).query))
        self.authorized.append(query)
        answer = {"code": "the-code", "state": query["state"], **self.redirect}
        return {name: value for name, value in answer.items() if value is not None}

    async def show_device_code(self, code: DeviceCode) -> None:
        self.shown.append(code)

    def _respond(self, step: Sent) -> HttpReply:
        if step.url in self.answers:
            return self.answers[step.url](step)
        path = urlsplit(step.url).path
        if step.url == "https://mcp.example/.well-known/oauth-protected-resource/mcp":
            return reply_json({"resource": SERVER, "authorization_servers": [self.issuer], **self.resource})
        if step.url == f"{self.issuer}/.well-known/oauth-authorization-server":
            return reply_json(self.document())
        if step.body is None:
            return HttpReply(404)
        if path == "/register":
            self.registered.append(json.loads(step.body or b"{}"))
            return reply_json({"client_id": f"client-{len(self.registered)}"}, 201)
        if path == "/revoke":
            return HttpReply(200)
        return self._issue(step)

    def _issue(self, step: Sent) -> HttpReply:
        form = read_form(step)
        self.forms.append(form)
        if form["grant_type"] == "authorization_code":
            asked = self.authorized[-1]
            digest = hashlib.sha256(form["code_verifier"].encode()).digest()
            challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
            if (form["code"], challenge) != ("the-code", asked["code_challenge"]):
                return reply_json({"error": "invalid_grant"}, 400)
        number = len(self.forms)
        return reply_json({"access_token": f"access-{number}", "token_type": "Bearer", "expires_in": 60, **self.token})


def read_form(step: Sent) -> dict[str, str]:
    return dict(parse_qsl((step.body or b"").decode()))


def play(procedure: Coroutine[Any, Any, T]) -> T:
    """Run a procedure to its result; it never waits."""
    try:
        procedure.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")
