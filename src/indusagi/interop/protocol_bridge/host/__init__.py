"""The provider host: a tool box as an MCP server.

`connect` serves one client over a transport and returns as soon as it is served; the connection lives until either
side ends it, also when the program keeps no reference. `serve_stdio` serves the client that started this process,
`serve_http` every client that knows the address and its token.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import field

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.catalog import BoxSource, Catalog, Ready
from indusagi.interop.protocol_bridge.host.client_requests import SuspendedCalls
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits
from indusagi.interop.protocol_bridge.host.http import open_http
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
from indusagi.interop.protocol_bridge.host.identity import ANONYMOUS, ClientIdentity
from indusagi.interop.protocol_bridge.host.server import RunningProviderHost as RunningProviderHost
from indusagi.interop.protocol_bridge.host.server import ServingHost
from indusagi.interop.protocol_bridge.host.session import HostSession
from indusagi.interop.protocol_bridge.rpc.transport import decode_frame


@record
class ProviderHostInfo:
    """Name, version and instructions that a client receives."""

    name: str = "indus-provider-host"
    version: str = "0.1.0"
    title: str | None = field(default=None, kw_only=True)
    instructions: str | None = field(default=None, kw_only=True)
    """Text about the tools as a whole, which a client may give its model."""

    def as_json(self) -> JsonObject:
        """Return the `Implementation` object of the protocol."""
        info: JsonObject = {"name": self.name, "version": self.version}
        if self.title is not None:
            info["title"] = self.title
        return info


class ProviderHost(ServingHost):
    """Serves a tool box to MCP clients; `create_provider_host` creates it."""

    def __init__(self, box: BoxSource, info: ProviderHostInfo, limits: HostLimits, ready: Ready | None = None) -> None:
        super().__init__(limits)
        self.info = info
        self.catalog = Catalog(box, info.as_json(), ready)

    def refresh_tools(self) -> bool:
        """Read the tools again, and notify every client if they differ from before; return whether they do."""
        return self.catalog.refresh()

    def new_session(self, suspended: SuspendedCalls | None = None, identity: ClientIdentity = ANONYMOUS) -> HostSession:
        """Create the session of one client; `suspended` outlives it where calls span several sessions."""
        return HostSession(self.catalog, self.limits, self.info.instructions, suspended, identity)

    @asynccontextmanager
    async def serve_http(self, settings: HttpSettings | None = None) -> AsyncGenerator[HttpHost]:
        """Serve clients over HTTP until the block is left; running calls may then finish within `stop_s`.

        Raises:
            ProtocolFault: It cannot be started (kind `transport`); the message says why.
        """
        # Over HTTP a session of revision 2026-07-28 is one request long; a suspended call takes several.
        suspended = SuspendedCalls()
        try:
            async with open_http(
                lambda identity: self.new_session(suspended, identity),
                lambda name: self.catalog.listing().schemas.get(name),
                settings,
                read=decode_frame,
                find_server=self.catalog.find_server,
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
    """Create a host over a tool box, or over a function that returns the present one.

    After a change of the tools call `ProviderHost.refresh_tools`. Handshakes are answered at once; requests for tools
    wait until `ready` is set.
    """
    return ProviderHost(box, info or ProviderHostInfo(), limits or HostLimits(), ready)
