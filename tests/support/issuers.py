"""An authorization server in memory: it answers the steps of the state machine, without any I/O.

`play(steps, issuer)` is the driver of a test. The issuer checks what it is sent as a strict one would, and keeps it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from indusagi.interop.auth.steps import (
    AuthorizeStep,
    DeviceStep,
    HttpReply,
    HttpStep,
    LoadStep,
    RedirectStep,
    SaveStep,
    WaitStep,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.interop.auth.contract import CredentialKey, DeviceCode, StoredCredentials
    from indusagi.interop.auth.steps import Reply, Step, Steps

T = TypeVar("T")
SERVER = "https://mcp.example/mcp"
ISSUER = "https://as.example"
REDIRECT = "http://127.0.0.1:4711/callback"


def reply_json(document: object, status: int = 200, **headers: str) -> HttpReply:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpReply(status, {"content-type": "application/json", **named}, json.dumps(document).encode())


@dataclass
class MemoryIssuer:
    """One issuer and the metadata of one server."""

    issuer: str = ISSUER
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    """Added to the metadata document; None removes a field."""
    resource: dict[str, Any] = field(default_factory=dict[str, Any])
    """Added to the metadata of the server."""
    answers: dict[str, Callable[[HttpStep], HttpReply]] = field(
        default_factory=dict[str, "Callable[[HttpStep], HttpReply]"]
    )
    """By URL, instead of the usual ones."""
    redirect: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    """Added to the parameters of a redirect; None removes one."""
    token: dict[str, Any] = field(default_factory=dict[str, Any])
    """Added to the response of the token endpoint."""
    requests: list[HttpStep] = field(default_factory=list[HttpStep])
    authorized: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """The queries of authorization requests."""
    forms: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """The forms of token requests."""
    registered: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    shown: list[DeviceCode] = field(default_factory=list["DeviceCode"])
    waits: list[float] = field(default_factory=list[float])
    rows: dict[CredentialKey, StoredCredentials] = field(default_factory=dict["CredentialKey", "StoredCredentials"])

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

    def respond(self, step: Step) -> Reply:
        match step:
            case HttpStep():
                self.requests.append(step)
                return self._respond(step)
            case RedirectStep():
                return REDIRECT
            case AuthorizeStep():
                return self._authorize(step.url)
            case DeviceStep():
                self.shown.append(step.code)
                return None
            case WaitStep():
                self.waits.append(step.seconds)
                return None
            case LoadStep():
                return self.rows.get(step.key)
            case SaveStep():
                self.rows[step.credentials.key] = step.credentials
                return None

    def _respond(self, step: HttpStep) -> HttpReply:
        if step.url in self.answers:
            return self.answers[step.url](step)
        path = urlsplit(step.url).path
        if step.url == "https://mcp.example/.well-known/oauth-protected-resource/mcp":
            return reply_json({"resource": SERVER, "authorization_servers": [self.issuer], **self.resource})
        if step.url == f"{self.issuer}/.well-known/oauth-authorization-server":
            return reply_json(self.document())
        if step.method != "POST":
            return HttpReply(404)
        if path == "/register":
            self.registered.append(json.loads(step.body or b"{}"))
            return reply_json({"client_id": f"client-{len(self.registered)}"}, 201)
        if path == "/revoke":
            return HttpReply(200)
        return self._issue(step)

    def _issue(self, step: HttpStep) -> HttpReply:
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

    def _authorize(self, url: str) -> Mapping[str, str]:
        query = dict(parse_qsl(urlsplit(url).query))
        self.authorized.append(query)
        answer = {"code": "the-code", "state": query["state"], **self.redirect}
        return {name: value for name, value in answer.items() if value is not None}


def read_form(step: HttpStep) -> dict[str, str]:
    return dict(parse_qsl((step.body or b"").decode()))


def play(steps: Steps[T], issuer: MemoryIssuer) -> T:
    """Run a procedure to its result."""
    reply: Reply = None
    while True:
        try:
            step = steps.send(reply)
        except StopIteration as end:
            return end.value
        reply = issuer.respond(step)
