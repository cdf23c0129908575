"""A host that is a protected resource, and a client that sends it what a test says."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import httpx2
from tests.support.host_tools import Bench
from tests.support.issuer import Issuer, running_issuer
from tests.support.waiting import until

from indusagi.core.faults import Note
from indusagi.interop import HttpSettings, create_provider_host
from indusagi.interop.protocol_bridge.host.auth.resource import ResourceSettings
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.runtime.calls import current_client

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.registry import RegistryToolBox
    from indusagi.capabilities.tool import ToolAnswer
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolDescriptor, ToolRunner

STAMP: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class ServersBox:
    """A tool box in which `echo` belongs to the server `alpha`, and `media` to `beta`."""

    def __init__(self, box: RegistryToolBox) -> None:
        self._box = box

    @property
    def runner(self) -> ToolRunner:
        return self._box.runner

    def descriptors(self) -> Sequence[ToolDescriptor]:
        return self._box.descriptors()

    def find_server(self, name: str) -> str | None:
        return {"echo": "alpha", "media": "beta"}.get(name)


class Resource:
    """A running host, its issuer, and a client."""

    def __init__(self, url: str, issuer: Issuer, bench: Bench, client: httpx2.AsyncClient) -> None:
        self.url, self.issuer, self.bench, self.client = url, issuer, bench, client
        self.identities: list[ClientIdentity] = []
        self.notes: list[Note] = []

    def mint(self, **changes: Any) -> str:
        """Issue a token for this host."""
        return self.issuer.mint(changes.pop("audience", self.url), **changes)

    async def send(
        self,
        method: str = "tools/list",
        token: str | None = None,
        headers: Sequence[tuple[str, str]] = (),
        url: str | None = None,
        **params: Any,
    ) -> httpx2.Response:
        """Send a self-contained request, with a bearer token if one is given."""
        body = {"jsonrpc": "2.0", "id": 5, "method": method, "params": {**params, "_meta": STAMP}}
        sent = [
            ("accept", "application/json, text/event-stream"),
            ("content-type", "application/json"),
            ("mcp-protocol-version", "2026-07-28"),
            ("mcp-method", method),
            *([("mcp-name", params["name"])] if "name" in params else []),
            *([("authorization", f"Bearer {token}")] if token is not None else []),
            *headers,
        ]
        raw = [(name.encode(), value.encode("utf-8")) for name, value in sent]
        return await self.client.post(url or self.url, content=json.dumps(body), headers=raw)

    async def call(self, name: str, token: str, **arguments: Any) -> httpx2.Response:
        """Call a tool."""
        return await self.send("tools/call", token, name=name, arguments=arguments)


def challenges(response: httpx2.Response) -> str:
    """Give the challenges of a refusal."""
    return " | ".join(response.headers.get_list("www-authenticate"))


@asynccontextmanager
async def protected(issuer: Issuer | None = None, **settings: Any) -> AsyncGenerator[Resource]:
    """Run a host, and an issuer if none is given; the keys are there when the block begins."""
    known = {one.name for one in fields(HttpSettings)}
    http = {name: settings.pop(name) for name in [*settings] if name in known}
    async with running_issuer() as own:
        chosen, bench = issuer or own, Bench()

        async def who(_: JsonObject, __: ToolContext) -> ToolAnswer:
            client = current_client.get()
            return "?" if client is None else client.principal

        bench.add("who", who)
        identities: list[ClientIdentity] = []
        notes: list[Note] = []
        auth = ResourceSettings(issuer=chosen.url, on_identity=identities.append, on_note=notes.append, **settings)
        host = create_provider_host(lambda: ServersBox(bench.box()))
        async with (
            host.serve_http(HttpSettings(auth=auth, **http)) as serving,
            httpx2.AsyncClient(timeout=60, verify=False) as client,
        ):
            resource = Resource(serving.url, chosen, bench, client)
            resource.identities, resource.notes = identities, notes
            path = "/keys" if auth.introspection is None else "/.well-known/oauth-authorization-server"
            await until(lambda: chosen.asked[path] > 0)
            chosen.asked.clear()
            bench.asked = 0
            yield resource
