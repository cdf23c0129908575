"""The provider host: a box of tools as an MCP server.

`connect` serves one client over a transport and returns as soon as it is served; the connection
lives until one of the two ends it, whether anybody holds on to what `connect` returned or not.
`serve_stdio` serves the client that started this process, `serve_http` all who know an address and
its token.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import anyio

from indusagi.core.owner import Owner
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.host_client import HostClient
from indusagi.interop.protocol_bridge.host_listing import Catalog
from indusagi.interop.protocol_bridge.host_parking import Parking
from indusagi.interop.protocol_bridge.host_session import HostLimits
from indusagi.interop.protocol_bridge.host_stdio import standard_streams

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host_listing import BoxSource
    from indusagi.interop.protocol_bridge.host_session import Served
    from indusagi.interop.protocol_bridge.host_settings import HttpHost, HttpSettings
    from indusagi.interop.protocol_bridge.host_stdio import StandardStreams
    from indusagi.interop.protocol_bridge.wire import LinkEnd

_STOPPED = "the host was stopped"


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


class HostLink(Protocol):
    """Carries frames between a host and one client."""

    @property
    def room(self) -> asyncio.Event:
        """Set while it can take more."""
        ...

    @property
    def hears(self) -> bool:
        """Whether there is anybody at the other end."""
        ...

    def attach(
        self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[LinkEnd], None]
    ) -> None:
        """Deliver what comes; `on_end` is called once."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Put a frame on its way."""
        ...


# Any: the streams belong to a package that is not loaded for their names.
HostTransport: TypeAlias = "HostLink | tuple[Any, Any]"
"""A link of ours, or a `(read, write)` pair of the SDK's streams."""

_live: set[RunningProviderHost] = set()
"""Connections live until they end, held or not; a task that nobody refers to may be collected."""


class RunningProviderHost:
    """One client that is being served."""

    def __init__(self, client: Served, limits: HostLimits) -> None:
        self.client = client
        self._limits = limits
        self._owner = Owner("provider host")
        self._over = asyncio.Event()
        self._failure: Exception | None = None

    async def waiting(self) -> None:
        """Wait until the client is gone, or the host was stopped."""
        await self._owner.watched()

    async def cancel(self) -> None:
        """End the connection now; what runs is cancelled. Safe to call twice."""
        self._over.set()
        await self._owner.ended()

    async def stop(self) -> None:
        """Let what runs finish within the limit, cancel the rest, and end the connection."""
        self.client.conversation.release(_STOPPED)
        await self.client.conversation.drained(self._limits.stop_s)
        await self.cancel()

    async def start(self, transport: HostTransport) -> None:
        """Begin to serve; returns once it does.

        Raises:
            ProtocolFault: It cannot (kind `transport`).
        """
        started = asyncio.Event()
        _live.add(self)
        self._owner.start(self._run(transport, started))
        await started.wait()
        if self._failure is not None:
            message = f"the host cannot serve: {self._failure}"
            raise ProtocolFault("transport", message, self._failure)

    async def _run(self, transport: HostTransport, started: asyncio.Event) -> None:
        try:
            async with _linked(transport) as link:
                await self._serve(link, started)
        except Exception as exc:  # noqa: BLE001 — boundary: a transport of somebody's; told to whoever starts
            self._failure = exc
        finally:
            started.set()
            _live.discard(self)

    async def _serve(self, link: HostLink, started: asyncio.Event) -> None:
        def ended(end: LinkEnd) -> None:
            self._over.set()

        self.client.outlet = link
        link.attach(lambda data: self.client.conversation.receive(data, link), ended)
        started.set()
        try:
            await self._over.wait()
        finally:
            self.client.outlet = None
            with anyio.CancelScope(shield=True):
                await self.client.close("the client went away")


class ProviderHost:
    """A box of tools that MCP clients can list and call. Make it with `create_provider_host`."""

    def __init__(self, box: BoxSource, info: ProviderHostInfo, limits: HostLimits) -> None:
        self.info = info
        self.limits = limits
        self.catalog = Catalog(box, info.as_json())

    def changed(self) -> bool:
        """Look at the box again, and tell every client if its tools are others than before."""
        return self.catalog.changed()

    def new_client(self, parking: Parking | None = None) -> HostClient:
        """Make what answers one client; its calls may wait for it elsewhere than with it."""
        return HostClient(self.catalog, self.limits, self.info.instructions, parking)

    async def connect(self, transport: HostTransport) -> RunningProviderHost:
        """Serve one client over a transport; returns when it is being served.

        Raises:
            ProtocolFault: It is no transport (kind `transport`).
        """
        _check(transport)
        running = RunningProviderHost(self.new_client(), self.limits)
        await running.start(transport)
        return running

    async def serve_stdio(self, stop: CancelToken | None = None) -> None:
        """Serve the client that started this process, until it is gone or `stop` is cancelled.

        Raises:
            ProtocolFault: Standard input and output cannot be used (kind `transport`).
        """
        async with standard_streams(self.limits.frame_bytes) as link:
            running = await self.connect(link)
            try:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(link.read_file)
                    tasks.start_soon(self._last_words, link, running)
                    if stop is not None:
                        tasks.start_soon(_stopped_by, stop, running)
                    await running.waiting()
                    tasks.cancel_scope.cancel()
            finally:
                await running.cancel()

    async def _last_words(self, link: StandardStreams, running: RunningProviderHost) -> None:
        """Let calls finish for a moment when a client has nothing more to say."""
        await link.input_ended.wait()
        await running.client.conversation.drained(self.limits.linger_s)
        await running.cancel()

    @asynccontextmanager
    async def serve_http(self, settings: HttpSettings | None = None) -> AsyncGenerator[HttpHost]:
        """Serve clients over HTTP until the block is left; what runs then may finish.

        Raises:
            ProtocolFault: It cannot be started (kind `transport`); the message says why.
        """
        from indusagi.interop.protocol_bridge.host_http import open_http  # noqa: PLC0415 — few serve over HTTP

        schemas = self.catalog
        # Over HTTP a client of the newer protocol is one request long; a call may take several.
        parking = Parking()
        try:
            async with open_http(
                lambda: self.new_client(parking),
                lambda name: schemas.listing().schemas.get(name),
                settings,
            ) as serving:
                yield serving
        finally:
            await parking.close()


def create_provider_host(
    box: BoxSource, info: ProviderHostInfo | None = None, *, limits: HostLimits | None = None
) -> ProviderHost:
    """Make a host over a box, or over a function that gives the present one.

    Whoever changes the tools says so with `ProviderHost.changed`.
    """
    return ProviderHost(box, info or ProviderHostInfo(), limits or HostLimits())


async def _stopped_by(stop: CancelToken, running: RunningProviderHost) -> None:
    await stop.wait()
    await running.stop()


def _is_pair(transport: object) -> bool:
    if not isinstance(transport, tuple):
        return False
    pair = [*cast("tuple[object, ...]", transport)]
    return len(pair) in {2, 3} and hasattr(pair[0], "receive") and hasattr(pair[1], "send")


def _check(transport: object) -> None:
    if _is_pair(transport) or (hasattr(transport, "attach") and hasattr(transport, "send")):
        return
    message = (
        f"a host cannot serve over {type(transport).__name__}: "
        "it needs a pair of streams (read, write) or a link"
    )
    raise ProtocolFault("transport", message, detail=FaultDetail(reason="malformed"))


@asynccontextmanager
async def _linked(transport: HostTransport) -> AsyncGenerator[HostLink]:
    if not isinstance(transport, tuple):
        yield transport
        return
    streams = await asyncio.to_thread(_loaded_streams)
    async with streams.host_streams((transport[0], transport[1])) as link:
        yield link


def _loaded_streams():
    # Whoever has such streams has loaded the SDK already; others never pay for it.
    from indusagi.interop.protocol_bridge import _host_streams  # noqa: PLC0415

    return _host_streams
