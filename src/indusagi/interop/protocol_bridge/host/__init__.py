"""The provider host: a tool box as an MCP server.

`connect` serves one client over a transport and returns as soon as serving has started; the connection lives until
either side ends it, even if the program keeps no reference. `serve_stdio` serves the client that started this process,
`serve_http` every client that knows the address and its token.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import field
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

import anyio

from indusagi.core.cancel import CancelToken
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.host.catalog import BoxSource, Catalog, Ready, ServedView, TaskSource
from indusagi.interop.protocol_bridge.host.client_requests import SuspendedCalls
from indusagi.interop.protocol_bridge.host.content import ContentSource
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits, ServerSession
from indusagi.interop.protocol_bridge.host.http import open_http
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
from indusagi.interop.protocol_bridge.host.identity import ANONYMOUS, ClientIdentity
from indusagi.interop.protocol_bridge.host.outgoing import ResponseChannel
from indusagi.interop.protocol_bridge.host.session import HostSession
from indusagi.interop.protocol_bridge.host.stdio import StdioHostTransport, standard_streams
from indusagi.interop.protocol_bridge.rpc.transport import MemoryTransport, TransportEnd, decode_frame
from indusagi.runtime.calls import CallingClient


class ServerTransport(ResponseChannel, Protocol):
    """Carries frames between a host and one client; also the channel of all responses."""

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Deliver received frames to `on_frame`, and call `on_end` once."""
        ...


# Any: the stream types belong to the SDK, and we don't load it just for their names.
HostTransport: TypeAlias = ServerTransport | tuple[Any, Any]
"""A transport, or a `(read, write)` pair of the SDK's streams."""

_running: set[RunningProviderHost] = set()
"""Keeps connections alive: the event loop holds only weak references to tasks,
https://docs.python.org/3/library/asyncio-task.html#asyncio.create_task."""


class RunningProviderHost:
    """A client being served."""

    def __init__(self, client: ServerSession, limits: HostLimits) -> None:
        self.client = client
        self._limits = limits
        self._task = BackgroundTask("provider host")
        self._ended = asyncio.Event()
        self._failure: Exception | None = None

    async def waiting(self) -> None:
        """Wait until the client disconnects or the host is stopped."""
        await self._task.wait()

    async def cancel(self) -> None:
        """End the connection now and cancel running calls. Safe to call twice."""
        self._ended.set()
        await self._task.join()

    async def stop(self) -> None:
        """Let running calls finish within `stop_s`, cancel the rest, and end the connection."""
        self.client.dispatcher.release("the host was stopped")
        await self.client.dispatcher.wait_idle(self._limits.stop_s)
        await self.cancel()

    async def start(self, transport: HostTransport) -> None:
        """Start serving; return once requests are received, or raise `ProtocolFault` if the transport fails."""
        started = asyncio.Event()
        _running.add(self)
        self._task.start(self._run(transport, started))
        await started.wait()
        if self._failure is not None:
            message = f"the host cannot serve: {describe_error(self._failure)}"
            raise ProtocolFault("transport", message, self._failure)

    async def _run(self, transport: HostTransport, started: asyncio.Event) -> None:
        try:
            async with _open_transport(transport) as opened:
                await self._serve(opened, started)
        except Exception as exc:  # noqa: BLE001 — boundary: the embedding program's transport; raised by `start`
            self._failure = exc
        finally:
            started.set()
            _running.discard(self)

    async def _serve(self, transport: ServerTransport, started: asyncio.Event) -> None:
        def receive(data: bytes | JsonValue) -> None:
            # A request received after the end would have no owner and run forever.
            if not self._ended.is_set():
                self.client.dispatcher.receive(data, transport)

        dispatcher = self.client.dispatcher
        self.client.notification_channel = transport
        if isinstance(transport, StdioHostTransport):
            dispatcher.watch_room(transport.limit_input(lambda: dispatcher.has_room))
        transport.attach(receive, lambda _: self._ended.set())
        started.set()
        try:
            await self._ended.wait()
        finally:
            self.client.notification_channel = None
            with anyio.CancelScope(shield=True):
                await self.client.close("the client went away")


class ServingHost(ABC):
    """Serves clients over transports. Subclasses create the sessions that answer them."""

    def __init__(self, limits: HostLimits) -> None:
        self.limits = limits

    @abstractmethod
    def new_session(self) -> ServerSession:
        """Create a session for one client."""

    async def connect(self, transport: HostTransport) -> RunningProviderHost:
        """Serve one client over a transport; return as soon as serving has started, or raise `ProtocolFault`."""
        if isinstance(transport, tuple):
            pair = [*cast("tuple[object, ...]", transport)]
            is_usable = len(pair) in {2, 3} and hasattr(pair[0], "receive") and hasattr(pair[1], "send")
        else:
            is_usable = hasattr(transport, "attach") and hasattr(transport, "send")
        if not is_usable:
            name = type(cast("object", transport)).__name__
            message = f"a host cannot serve over {name}: it needs a pair of streams (read, write) or a transport"
            raise ProtocolFault("transport", message, detail=FaultDetail(reason="malformed"))
        running = RunningProviderHost(self.new_session(), self.limits)
        await running.start(transport)
        return running

    async def serve_stdio(self, stop: CancelToken | None = None) -> None:
        """Serve the client that started this process, until it disconnects or `stop` is cancelled.

        Raises `ProtocolFault` (kind `transport`) if standard input or output can't be used, or stops working.
        """
        async with standard_streams(self.limits.frame_bytes) as streams:
            running = await self.connect(streams)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(streams.read_file)
                    tasks.start_soon(self._end_after_input, streams, running)
                    if stop is not None:
                        tasks.start_soon(_stop_on_cancel, stop, running)
                    await running.waiting()
                    tasks.cancel_scope.cancel()
            finally:
                await running.cancel()
        if streams.write_error is not None:
            message = f"standard output: {streams.write_error.strerror or streams.write_error}"
            raise ProtocolFault("transport", message, streams.write_error)

    async def _end_after_input(self, streams: StdioHostTransport, running: RunningProviderHost) -> None:
        """Let calls finish after the client's input ends, until none finishes for `linger_s`."""
        await streams.input_ended.wait()
        dispatcher, answered = running.client.dispatcher, -1
        while dispatcher.answered != answered:
            answered = dispatcher.answered
            if await dispatcher.wait_idle(self.limits.linger_s):
                break
        await running.cancel()


async def _stop_on_cancel(stop: CancelToken, running: RunningProviderHost) -> None:
    await stop.wait()
    await running.stop()


@asynccontextmanager
async def _open_transport(transport: HostTransport) -> AsyncGenerator[ServerTransport]:
    if not isinstance(transport, tuple):
        try:
            yield transport
        finally:
            if isinstance(transport, MemoryTransport):
                transport.finish("was stopped")  # the client at the other end would wait forever
        return
    from indusagi.interop.protocol_bridge.client.connect import load_sdk  # noqa: PLC0415 — only such streams need it

    sdk = await load_sdk()
    async with sdk.stream_transport((transport[0], transport[1]), owned=True) as opened:
        yield opened


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
        self, catalog: Catalog, info: ProviderHostInfo, limits: HostLimits, choose_view: ChooseView | None = None
    ) -> None:
        super().__init__(limits)
        self.info = info
        self.catalog = catalog
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

        Raises `ProtocolFault` (kind `transport`) with the reason if it can't start.
        """
        # Over HTTP a session of revision 2026-07-28 lasts one request, but a suspended call takes several.
        router = None if settings is None else settings.router
        suspended = SuspendedCalls(seal=None if router is None else router.seal)
        if settings is not None and (named := settings.named) is not None:
            named.on_ended.add(lambda: suspended.cancel(named.find_end, "the access of its client has ended"))
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
    info = info or ProviderHostInfo()
    catalog = Catalog(box, info.as_json(), ready, content, opened, tasks)
    return ProviderHost(catalog, info, limits or HostLimits(), choose_view)
