"""The provider host: a box of tools as an MCP server.

`connect` serves one client over a transport and returns as soon as it is served; the connection
lives until one of the two ends it, whether anybody holds on to what `connect` returned or not.
`serve_stdio` serves the client that started this process, `serve_http` all who know an address and
its token.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from indusagi.core.json import JsonObject
from indusagi.interop.protocol_bridge.host.catalog import BoxSource, Catalog, Ready
from indusagi.interop.protocol_bridge.host.client_requests import SuspendedCalls
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
from indusagi.interop.protocol_bridge.host.server import RunningProviderHost as RunningProviderHost
from indusagi.interop.protocol_bridge.host.server import ServingHost
from indusagi.interop.protocol_bridge.host.session import HostSession
from indusagi.interop.protocol_bridge.rpc.codec import decode_frame


@dataclass(frozen=True, slots=True)
class ProviderHostInfo:
    """Who the host says it is."""

    name: str = "indus-provider-host"
    version: str = "0.1.0"
    title: str | None = field(default=None, kw_only=True)
    instructions: str | None = field(default=None, kw_only=True)
    """What a client may tell its model about these tools as a whole."""

    def as_json(self) -> JsonObject:
        """Say it in the words of the protocol."""
        said: JsonObject = {"name": self.name, "version": self.version}
        if self.title is not None:
            said["title"] = self.title
        return said


class ProviderHost(ServingHost):
    """A box of tools that MCP clients can list and call. Make it with `create_provider_host`."""

    def __init__(self, box: BoxSource, info: ProviderHostInfo, limits: HostLimits, ready: Ready | None = None) -> None:
        super().__init__(limits)
        self.info = info
        self.catalog = Catalog(box, info.as_json(), ready)

    def refresh_tools(self) -> bool:
        """Look at the box again, and tell every client if its tools are others than before."""
        return self.catalog.refresh()

    def new_session(self, suspended: SuspendedCalls | None = None, owner: bytes = b"") -> HostSession:
        """Make what answers one client; its calls may wait for it elsewhere than with it."""
        return HostSession(self.catalog, self.limits, self.info.instructions, suspended, owner)

    @asynccontextmanager
    async def serve_http(self, settings: HttpSettings | None = None) -> AsyncGenerator[HttpHost]:
        """Serve clients over HTTP until the block is left; what runs then may finish.

        Raises:
            ProtocolFault: It cannot be started (kind `transport`); the message says why.
        """
        from indusagi.interop.protocol_bridge.host.http import open_http  # noqa: PLC0415 — few serve over HTTP

        schemas = self.catalog
        # Over HTTP a client of the newer protocol is one request long; a call may take several.
        suspended = SuspendedCalls()
        try:
            async with open_http(
                lambda owner: self.new_session(suspended, owner),
                lambda name: schemas.listing().schemas.get(name),
                settings,
                read=decode_frame,
            ) as serving:
                yield serving
        finally:
            await suspended.close()


def create_provider_host(
    box: BoxSource,
    info: ProviderHostInfo | None = None,
    *,
    limits: HostLimits | None = None,
    ready: Ready | None = None,
) -> ProviderHost:
    """Make a host over a box, or over a function that gives the present one.

    Whoever changes the tools says so with `ProviderHost.refresh_tools`. Clients are met at once; those
    who ask for tools wait until `ready` is set.
    """
    return ProviderHost(box, info or ProviderHostInfo(), limits or HostLimits(), ready)
