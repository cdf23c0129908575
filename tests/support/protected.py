"""A server behind OAuth on one origin: a behaviour that is its own issuer and protects another behaviour.

Tokens are texts with a number; the test decides which are accepted, and sees every request.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from indusagi.core.time import now_ms
from indusagi.interop.auth.contract import (
    ClientRegistration,
    CredentialKey,
    IssuerEndpoints,
    ServerAuth,
    StoredCredentials,
    TokenSet,
)
from indusagi.interop.auth.storage import MemoryCredentialStore

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, Sequence

    from tests.support.http_peer import Behaviour, Exchange, Request

    from indusagi.interop.auth.contract import AuthSettings, DeviceCode

REDIRECT = "http://127.0.0.1:4711/callback"


class Protected:
    """Answers requests with an accepted token by `inner`, and all others by a challenge."""

    def __init__(self, inner: Behaviour) -> None:
        self.inner = inner
        self.accepted: set[str] = set()
        self.scopes = "read"
        """The scopes of the challenge."""
        self.token_answer: dict[str, Any] = {"refresh_token": "refresh"}
        self.token_status = 200
        self.may_issue = asyncio.Event()
        """The token endpoint answers once it is set."""
        self.may_issue.set()
        self.is_asked = asyncio.Event()
        """A token was requested."""
        self.forms: list[dict[str, str]] = []
        self.refused: list[Request] = []

    async def __call__(self, exchange: Exchange) -> None:
        request = exchange.request
        origin = f"http://{request.headers['host']}"
        path = urlsplit(request.path).path
        if path.startswith("/.well-known/oauth-protected-resource"):
            await exchange.reply_json({"resource": f"{origin}/mcp", "authorization_servers": [origin]})
        elif path.startswith("/.well-known/"):
            await exchange.reply_json(self.describe(origin))
        elif path == "/register":
            await exchange.reply_json({"client_id": "client"}, 201)
        elif path == "/token":
            await self._issue(exchange)
        elif await self.check(exchange, origin):
            await self.inner(exchange)

    def describe(self, origin: str) -> dict[str, Any]:
        names = ("authorization", "token", "registration", "revocation")
        paths = ("authorize", "token", "register", "revoke")
        ends = {f"{name}_endpoint": f"{origin}/{path}" for name, path in zip(names, paths, strict=True)}
        return {"issuer": origin, "code_challenge_methods_supported": ["S256"], **ends}

    async def check(self, exchange: Exchange, origin: str) -> bool:
        """Refuse a request without an accepted token."""
        request = exchange.request
        if request.headers.get("authorization", "").partition(" ")[2] in self.accepted:
            return True
        self.refused.append(request)
        where = f"{origin}/.well-known/oauth-protected-resource/mcp"
        challenge = f'Bearer resource_metadata="{where}", scope="{self.scopes}"'
        await exchange.reply(401, b"", {"WWW-Authenticate": challenge})
        return False

    async def _issue(self, exchange: Exchange) -> None:
        self.forms.append(dict(parse_qsl(exchange.request.body.decode())))
        token = f"access-{len(self.forms)}"
        self.is_asked.set()
        await self.may_issue.wait()
        if self.token_status != 200:
            await exchange.reply_json(self.token_answer, self.token_status)
            return
        self.accepted = {token}
        answer = {"access_token": token, "token_type": "Bearer", "expires_in": 3600, **self.token_answer}
        await exchange.reply_json(answer)


class AgreeablePrompt:
    """A person who agrees at once, without a browser."""

    def __init__(self) -> None:
        self.asked: list[dict[str, str]] = []
        """The queries of the authorization requests."""

    @property
    def redirect_uri(self) -> str:
        return REDIRECT

    @asynccontextmanager
    async def open_redirect(self, settings: AuthSettings, registered: Sequence[str]) -> AsyncGenerator[AgreeablePrompt]:
        yield self

    async def authorize(self, url: str) -> Mapping[str, str]:
        query = dict(parse_qsl(urlsplit(url).query))
        self.asked.append(query)
        return {"code": "code", "state": query["state"]}

    async def show_device_code(self, code: DeviceCode) -> None:
        raise AssertionError("no test here has a device")


def stored_sign_in(
    url: str, access: str = "access-0", *, life_s: int = 3600, refresh: str | None = "refresh", **more: Any
) -> StoredCredentials:
    """Make a sign-in to a `Protected` server."""
    origin, now = url.rpartition("/")[0], now_ms()
    tokens = TokenSet(access_token=access, refresh_token=refresh, obtained_at_ms=now, expires_at_ms=now + life_s * 1000)
    return StoredCredentials(
        key=CredentialKey(origin, url),
        registration=ClientRegistration(client_id="client", source="dynamic", redirect_uris=(REDIRECT,)),
        endpoints=IssuerEndpoints(token_endpoint=f"{origin}/token", indicator=url),
        tokens=tokens,
        requested_scopes=("read",),
        **more,
    )


async def make_auth(*stored: StoredCredentials, **fields: Any) -> ServerAuth:
    """Make what a client signs in with, from a store in memory."""
    store = MemoryCredentialStore()
    for row in stored:
        await store.save(row)
    return ServerAuth(store=store, **fields)
