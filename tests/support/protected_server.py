"""An MCP server that accepts the live tokens of an authorization server, and a person who signs in by HTTP."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urljoin

import anyio.lowlevel
import httpx2
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from tests.support.authlib_server import AuthlibServer
from tests.support.sdk_auth_server import SdkAuthServer
from tests.support.sdk_hosts import served

from indusagi.interop.auth.driver import AuthDriver

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator
    from contextlib import AbstractAsyncContextManager, AbstractContextManager

    import pytest
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

T = TypeVar("T")
TOOL: dict[str, Any] = {
    "name": "whoami",
    "description": "Say who is signed in.",
    "inputSchema": {"type": "object", "properties": {}},
}


@dataclass
class ProtectedServer:
    """The resource server."""

    find_person: Callable[[str], str | None]
    """Returns who an access token belongs to; None: it is not live."""
    issuer: str = ""
    url: str = ""
    scopes: str = "read"
    open_methods: set[str] = field(default_factory=set[str])
    """Answered without a token."""
    refused: int = 0
    calls: list[str] = field(default_factory=list[str])
    """The methods of accepted requests."""

    def build_routes(self) -> list[Route]:
        """Build the routes of the server and of its metadata (RFC 9728)."""

        async def describe(_: Request) -> Response:
            return JSONResponse({"resource": self.url, "authorization_servers": [self.issuer], "resource_name": "Demo"})

        async def answer(request: Request) -> Response:
            scheme, _, token = request.headers.get("authorization", "").partition(" ")
            person = self.find_person(token) if scheme == "Bearer" else None
            method = (await request.json())["method"] if request.method == "POST" else ""
            if person is None and method not in self.open_methods:
                self.refused += 1
                where = urljoin(self.url, "/.well-known/oauth-protected-resource/mcp")
                error = ', error="invalid_token"' if token else ""
                challenge = f'Bearer resource_metadata="{where}", scope="{self.scopes}"{error}'
                return Response("sign in", 401, {"WWW-Authenticate": challenge})
            if request.method != "POST":
                return Response(status_code=204 if request.method == "DELETE" else 405)
            message: dict[str, Any] = await request.json()
            self.calls.append(message["method"])
            if "id" not in message:
                return Response(status_code=202)
            results: dict[str, Any] = {
                "initialize": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "protected", "version": "1"},
                },
                "tools/list": {"tools": [TOOL]},
                "tools/call": {"content": [{"type": "text", "text": person or ""}]},
                "ping": {},
            }
            reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
            if message["method"] in results:
                return JSONResponse({**reply, "result": results[message["method"]]})
            return JSONResponse({**reply, "error": {"code": -32601, "message": "unknown method"}})

        return [
            Route("/.well-known/oauth-protected-resource/mcp", describe),
            Route("/mcp", answer, methods=["GET", "POST", "DELETE"]),
        ]


@dataclass
class Site:
    """An authorization server and a server that it protects."""

    issuer: AuthlibServer
    server: ProtectedServer


@asynccontextmanager
async def protected_site(issuer: AuthlibServer | None = None) -> AsyncGenerator[Site]:
    """Serve both, at ports of their own."""
    issuer = issuer or AuthlibServer()

    def find_person(token: str) -> str | None:
        live = issuer.find_live(token)
        return None if live is None or live.resource != server.url else live.user

    server = ProtectedServer(find_person)
    async with served(issuer.build_app()) as address, served(Starlette(routes=server.build_routes())) as place:
        issuer.issuer = server.issuer = address
        server.url = issuer.resource = f"{place}/mcp"
        yield Site(issuer, server)


def skip_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for the tokens of a device without a pause."""

    async def pause(driver: AuthDriver, seconds: float) -> None:
        await anyio.lowlevel.checkpoint()

    monkeypatch.setattr(AuthDriver, "pause", pause)


@contextmanager
def opened_in_thread(opening: AbstractAsyncContextManager[T]) -> Generator[T]:
    """Open servers in a thread of their own, for tests whose program has the event loop or none."""
    opened: list[T] = []
    loops: list[asyncio.AbstractEventLoop] = []
    ready, done = threading.Event(), asyncio.Event()

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with opening as servers:
            opened.append(servers)
            ready.set()
            await done.wait()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), name="site")
    thread.start()
    ready.wait(30)
    try:
        yield opened[0]
    finally:
        loops[0].call_soon_threadsafe(done.set)
        thread.join()


def site_in_thread() -> AbstractContextManager[Site]:
    """Serve an authorization server and a server that it protects in a thread of its own."""
    return opened_in_thread(protected_site())


@asynccontextmanager
async def sdk_site() -> AsyncGenerator[tuple[SdkAuthServer, ProtectedServer]]:
    """Serve the SDK's authorization server and a server that it protects."""
    issuer, apps = SdkAuthServer(), list["ASGIApp"]()

    def find_person(token: str) -> str | None:
        live = issuer.access_tokens.get(token)
        return None if live is None or live.resource != server.url else live.subject

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await apps[0](scope, receive, send)

    server = ProtectedServer(find_person)
    async with served(answer) as address, served(Starlette(routes=server.build_routes())) as place:
        apps.append(issuer.build_app(address))
        # The SDK's type of a URL adds the slash.
        server.issuer, server.url = f"{address}/", f"{place}/mcp"
        yield issuer, server


async def sign_in_by_http(url: str, *, allow: bool = True, person: str = "") -> str:
    """Sign in as a person with a browser would, and return the address that the browser ends at."""
    async with httpx2.AsyncClient() as browser:
        page = await browser.get(url)
        if page.status_code == 302:  # a server that signs in every visitor
            return page.headers["location"]
        page.raise_for_status()
        answer = await browser.post(url, data={"allow": "yes" if allow else "no", "person": person})
        assert answer.status_code == 302, answer.text
        return answer.headers["location"]


async def follow_redirect(location: str) -> str:
    """Load the address that the browser ends at, and return the page."""
    async with httpx2.AsyncClient() as browser:
        return (await browser.get(location)).text
