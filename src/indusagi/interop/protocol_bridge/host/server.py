"""How a host serves one client over a transport, or over our own standard streams.

`connect` serves one client and returns as soon as it is served; the connection lives until one of
the two ends it, whether anybody holds on to what `connect` returned or not.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Protocol, TypeAlias, cast

import anyio

from indusagi.core.cancel import CancelToken
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.memory import MemoryTransport
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits, ServerSession
from indusagi.interop.protocol_bridge.host.stdio import StdioHostTransport, standard_streams
from indusagi.interop.protocol_bridge.rpc.connection import TransportEnd

_STOPPED = "the host was stopped"


class ServerTransport(Protocol):
    """Carries frames between a host and one client."""

    @property
    def writable(self) -> asyncio.Event:
        """Set while it can take more."""
        ...

    @property
    def accepts_notifications(self) -> bool:
        """Whether there is anybody at the other end."""
        ...

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Deliver what comes; `on_end` is called once."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Put a frame on its way."""
        ...


# Any: the streams belong to a package that is not loaded for their names.
HostTransport: TypeAlias = ServerTransport | tuple[Any, Any]
"""A link of ours, or a `(read, write)` pair of the SDK's streams."""

_live: set[RunningProviderHost] = set()
"""ConnectionTracker live until they end, held or not; a task that nobody refers to may be collected."""


class RunningProviderHost:
    """One client that is being served."""

    def __init__(self, client: ServerSession, limits: HostLimits) -> None:
        self.client = client
        self._limits = limits
        self._owner = BackgroundTask("provider host")
        self._over = asyncio.Event()
        self._failure: Exception | None = None

    async def waiting(self) -> None:
        """Wait until the client is gone, or the host was stopped."""
        await self._owner.wait()

    async def cancel(self) -> None:
        """End the connection now; what runs is cancelled. Safe to call twice."""
        self._over.set()
        await self._owner.join()

    async def stop(self) -> None:
        """Let what runs finish within the limit, cancel the rest, and end the connection."""
        self.client.dispatcher.release(_STOPPED)
        await self.client.dispatcher.wait_idle(self._limits.stop_s)
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
            message = f"the host cannot serve: {describe_error(self._failure)}"
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

    async def _serve(self, link: ServerTransport, started: asyncio.Event) -> None:
        def ended(end: TransportEnd) -> None:
            self._over.set()

        self.client.notification_channel = link

        def arrived(data: bytes | JsonValue) -> None:
            # What comes after the end has no owner any more: it would be worked on for ever.
            if not self._over.is_set():
                self.client.dispatcher.receive(data, link)

        link.attach(arrived, ended)
        started.set()
        try:
            await self._over.wait()
        finally:
            self.client.notification_channel = None
            with anyio.CancelScope(shield=True):
                await self.client.close("the client went away")


class ServingHost(ABC):
    """Serves clients over what carries frames; what it answers is for those who derive from it."""

    def __init__(self, limits: HostLimits) -> None:
        self.limits = limits

    @abstractmethod
    def new_session(self) -> ServerSession:
        """Make what answers one client."""

    async def connect(self, transport: HostTransport) -> RunningProviderHost:
        """Serve one client over a transport; returns when it is being served.

        Raises:
            ProtocolFault: It is no transport (kind `transport`).
        """
        _check(transport)
        running = RunningProviderHost(self.new_session(), self.limits)
        await running.start(transport)
        return running

    async def serve_stdio(self, stop: CancelToken | None = None) -> None:
        """Serve the client that started this process, until it is gone or `stop` is cancelled.

        Raises:
            ProtocolFault: Standard input or output cannot be used, or not any more (`transport`).
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
        if link.trouble is not None:
            said = f"standard output: {link.trouble.strerror or link.trouble}"
            raise ProtocolFault("transport", said, link.trouble)

    async def _last_words(self, link: StdioHostTransport, running: RunningProviderHost) -> None:
        """Let calls finish for a moment when a client has nothing more to say."""
        await link.input_ended.wait()
        await running.client.dispatcher.wait_idle(self.limits.linger_s)
        await running.cancel()


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
    message = f"a host cannot serve over {type(transport).__name__}: it needs a pair of streams (read, write) or a link"
    raise ProtocolFault("transport", message, detail=FaultDetail(reason="malformed"))


@asynccontextmanager
async def _linked(transport: HostTransport) -> AsyncGenerator[ServerTransport]:
    if not isinstance(transport, tuple):
        try:
            yield transport
        finally:
            if isinstance(transport, MemoryTransport):
                transport.finish("was stopped")  # else the client at its other end would wait for ever
        return
    streams = await asyncio.to_thread(_loaded_streams)
    async with streams.host_streams((transport[0], transport[1])) as link:
        yield link


def _loaded_streams():
    # Whoever has such streams has loaded the SDK already; others never pay for it.
    from indusagi.interop.protocol_bridge.client.sdk import streams as _host_streams  # noqa: PLC0415

    return _host_streams
