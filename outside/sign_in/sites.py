"""Servers that want a sign-in, each with another authorization server."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import httpx2
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from starlette.applications import Starlette
from tests.support.protected_server import ProtectedServer, protected_site, sdk_site
from tests.support.sdk_hosts import served

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from outside.install import Node

_SCRIPT = Path(__file__).with_name("issuer.mjs")


@asynccontextmanager
async def authlib_server() -> AsyncGenerator[str]:
    """Serve the one on Authlib, and give the URL of its MCP server."""
    async with protected_site() as site:
        yield site.server.url


@asynccontextmanager
async def sdk_server() -> AsyncGenerator[str]:
    """Serve the SDK's, and give the URL of its MCP server."""
    async with sdk_site() as (_, server):
        yield server.url


@asynccontextmanager
async def oidc_provider(node: Node, packages: Path, resource: str, scopes: str = "read") -> AsyncGenerator[str]:
    """Start oidc-provider for the tokens of one resource, and give its address."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    environment = {**os.environ, "NODE_PACKAGES": str(packages.parent)}
    command = [str(node.path), str(_SCRIPT), str(port), resource, scopes]
    async with await anyio.open_process(command, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            with anyio.fail_after(60):
                while b"ready" not in await process.stdout.receive():
                    pass
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@asynccontextmanager
async def oidc_provider_site(node: Node, packages: Path) -> AsyncGenerator[ProtectedServer]:
    """Start oidc-provider, and serve the MCP server whose tokens it signs."""
    keys: list[KeySet] = []

    def find_person(token: str) -> str | None:
        try:
            claims = jwt.decode(token, keys[0], algorithms=["ES256"]).claims
        except (JoseError, ValueError):
            return None
        return str(claims["sub"]) if claims.get("aud") == server.url else None

    server = ProtectedServer(find_person)
    async with served(Starlette(routes=server.build_routes())) as place:
        server.url = f"{place}/mcp"
        async with oidc_provider(node, packages, server.url) as server.issuer, httpx2.AsyncClient() as client:
            keys.append(KeySet.import_key_set((await client.get(f"{server.issuer}/jwks")).json()))
            yield server


@asynccontextmanager
async def oidc_provider_server(node: Node, packages: Path) -> AsyncGenerator[str]:
    """Start oidc-provider, and give the URL of the MCP server whose tokens it signs."""
    async with oidc_provider_site(node, packages) as server:
        yield server.url
