"""Serves one client over a transport, or over this process's standard streams."""

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
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits, ServerSession
from indusagi.interop.protocol_bridge.host.stdio import StdioHostTransport, standard_streams
from indusagi.interop.protocol_bridge.rpc.transport import MemoryTransport, TransportEnd


class ServerTransport(Protocol):
    """Carries frames between a host and one client; also the `ResponseChannel` of all responses."""

    @property
    def writable(self) -> asyncio.Event:
        """Set while more can be sent without waiting."""
        ...

    @property
    def room(self) -> asyncio.Event:
        """The same: the client has one connection."""
        ...

    @property
    def accepts_notifications(self) -> bool:
        """Whether the client is still connected."""
        ...

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Deliver received frames to `on_frame`, and call `on_end` once."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Send a frame."""
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
        """Start serving; return once requests are received.

        Raises:
            ProtocolFault: The transport fails at the start (kind `transport`).
        """
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
        """Serve one client over a transport; return as soon as serving has started.

        Raises:
            ProtocolFault: `transport` isn't a transport, or fails at the start (kind `transport`).
        """
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

        Raises:
            ProtocolFault: Standard input or output can't be used, or stopped working (kind `transport`).
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
