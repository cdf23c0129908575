"""The provider host: a tool box as an MCP server.

`connect` serves one client over a transport and returns as soon as serving has started; the connection lives until
either side ends it, even if the program keeps no reference. `serve_stdio` serves the client that started this process,
`serve_http` every client that knows the address and its token.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial
from typing import TypeAlias

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.catalog import BoxSource, Catalog, Ready, ServedView, TaskSource
from indusagi.interop.protocol_bridge.host.client_requests import SuspendedCalls
from indusagi.interop.protocol_bridge.host.content import ContentSource
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits
from indusagi.interop.protocol_bridge.host.http import open_http
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
from indusagi.interop.protocol_bridge.host.identity import ANONYMOUS, ClientIdentity
from indusagi.interop.protocol_bridge.host.server import RunningProviderHost as RunningProviderHost
from indusagi.interop.protocol_bridge.host.server import ServingHost
from indusagi.interop.protocol_bridge.host.session import HostSession
from indusagi.interop.protocol_bridge.rpc.transport import decode_frame
from indusagi.runtime.calls import CallingClient

ChooseView: TypeAlias = Callable[[ClientIdentity, CallingClient], ServedView | None]
"""Chooses a client's view by its identity and self-reported name; None: everything the host serves."""


@record
class ProviderHostInfo:
    """Name, version and instructions that a client receives."""

    name: str = "indus-provider-host"
    version: str = "0.1.0"
    title: str | None = field(default=None, kw_only=True)
    instructions: str | None = field(default=None, kw_only=True)
    """Text about the tools as a whole, which a client may pass to its model."""

    def as_json(self) -> JsonObject:
        """Return the protocol's `Implementation` object."""
        info: JsonObject = {"name": self.name, "version": self.version}
        if self.title is not None:
            info["title"] = self.title
        return info


class ProviderHost(ServingHost):
    """Serves a tool box to MCP clients; see `create_provider_host`."""

    def __init__(
        self,
        box: BoxSource,
        info: ProviderHostInfo,
        limits: HostLimits,
        ready: Ready | None = None,
        choose_view: ChooseView | None = None,
        content: ContentSource | None = None,
        opened: Ready | None = None,
        tasks: TaskSource | None = None,
    ) -> None:
        super().__init__(limits)
        self.info = info
        self.catalog = Catalog(box, info.as_json(), ready, content, opened, tasks)
        self._choose_view = choose_view
        self._catalogs: dict[ServedView, Catalog] = {}
        """Catalogs by view."""

    def refresh_tools(self) -> bool:
        """Read the tools again, notify every client if they changed, and return whether they did."""
        changes = [catalog.refresh() for catalog in (self.catalog, *self._catalogs.values())]
        return any(changes)

    def settle_tools(self) -> None:
        """Record the current tools as the ones clients know, once `ready` is set: only later changes are announced.

        Otherwise the first refresh announces a change even if there's none, since it has nothing to compare with.
        """
        for catalog in (self.catalog, *self._catalogs.values()):
            catalog.listing()

    def find_catalog(self, identity: ClientIdentity, client: CallingClient) -> Catalog:
        """Find a client's catalog: its view's, or the host's."""
        view = None if self._choose_view is None else self._choose_view(identity, client)
        if view is None:
            return self.catalog
        if view not in self._catalogs:
            host = self.catalog
            catalog = self._catalogs[view] = Catalog(
                view.box, host.server_info, host.ready, view.content, host.opened, host.tasks
            )
            if catalog.is_ready:
                catalog.listing()  # as `settle_tools` does
        return self._catalogs[view]

    def find_target(self, method: str, params: JsonObject) -> tuple[str, str | None]:
        """Find a request's target in any catalog; no server if it's unknown or ambiguous."""
        catalogs, name = [self.catalog, *self._catalogs.values()], params.get("name")
        if method == "tools/call":
            catalogs = [one for one in catalogs if isinstance(name, str) and one.may_call(name)]
        targets = {catalog.find_target(method, params) for catalog in catalogs}
        if method != "tools/call":
            targets.discard((method, None))  # one view may show what another hides
        return targets.pop() if len(targets) == 1 else (method, None)

    def find_schema(self, name: str) -> JsonObject | None:
        """Find the argument schema of a tool by its name in any catalog."""
        listings = (catalog.listing() for catalog in (self.catalog, *self._catalogs.values()))
        return next((listing.schemas[name] for listing in listings if name in listing.schemas), None)

    def refresh_content(self) -> None:
        """Read everything except tools again, and notify every client of the lists that changed."""
        for catalog in (self.catalog, *self._catalogs.values()):
            catalog.refresh_content()

    def new_session(self, suspended: SuspendedCalls | None = None, identity: ClientIdentity = ANONYMOUS) -> HostSession:
        """Create a session for one client; `suspended` outlives it if calls span several sessions."""
        find_catalog = None if self._choose_view is None else partial(self.find_catalog, identity)
        return HostSession(self.catalog, self.limits, self.info.instructions, suspended, identity, find_catalog)

    @asynccontextmanager
    async def serve_http(self, settings: HttpSettings | None = None) -> AsyncGenerator[HttpHost]:
        """Serve clients over HTTP until the block ends; running calls may then finish within `stop_s`.

        Raises:
            ProtocolFault: It can't start (kind `transport`); the message says why.
        """
        # Over HTTP a session of revision 2026-07-28 lasts one request, but a suspended call takes several.
        router = None if settings is None else settings.router
        suspended = SuspendedCalls(seal=None if router is None else router.seal)
        try:
            async with open_http(
                lambda identity: self.new_session(suspended, identity),
                self.find_schema,
                settings,
                read=decode_frame,
                find_target=self.catalog.find_target if self._choose_view is None else self.find_target,
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
    choose_view: ChooseView | None = None,
    content: ContentSource | None = None,
    opened: Ready | None = None,
    tasks: TaskSource | None = None,
) -> ProviderHost:
    """Create a host for a tool box, or for a function that returns the current one.

    After a change of the tools call `ProviderHost.refresh_tools`. Handshakes are answered at once; requests for tools
    wait until `ready` is set. Resources and prompts come from `content`; the handshake waits a moment until `opened` is
    set, since it carries the instructions. `choose_view` gives some clients their own tool box and content. With
    `tasks`, clients that support tasks get handles for calls that a server finishes later.
    """
    return ProviderHost(
        box, info or ProviderHostInfo(), limits or HostLimits(), ready, choose_view, content, opened, tasks
    )
