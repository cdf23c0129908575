"""A pair of the SDK's streams as the link of a host."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio

from indusagi.interop.protocol_bridge._sdk_streams import StreamLink
from indusagi.interop.protocol_bridge.contract import FaultDetail

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import AsyncResource

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge._sdk_streams import Streams

_FLUSH_S = 1.0
"""How long the last words may take to be read."""


class HostStreamLink(StreamLink):
    """A link that can tell when all was said."""

    def __init__(self, streams: Streams) -> None:
        super().__init__(streams)
        self._said = asyncio.Event()
        self._said.set()

    @property
    def hears(self) -> bool:
        """Whether there is anybody at the other end."""
        return self._end is None

    def send(self, frame: JsonObject) -> None:
        """Put a frame in line."""
        self._said.clear()
        super().send(frame)

    async def following(self) -> JsonObject:
        """Take the next frame; by then the one before has been taken."""
        if not self._line:
            self._said.set()
        return await super().following()

    async def flushed(self) -> None:
        """Wait until all was said, or there is nobody to hear it."""
        if self._end is None:
            with anyio.move_on_after(_FLUSH_S):
                await self._said.wait()


@asynccontextmanager
async def host_streams(streams: Streams) -> AsyncGenerator[HostStreamLink]:
    """Carry what goes over a stream pair, and close it at the end, as a server of the SDK does."""
    link = HostStreamLink(streams)

    async def read() -> None:
        try:
            await link.read()
        except anyio.ClosedResourceError:
            link.finish("closed the connection", FaultDetail(reason="closed"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(link.write)
        try:
            yield link
        finally:
            with anyio.CancelScope(shield=True):
                await link.flushed()
                tasks.cancel_scope.cancel()
                for stream in streams:
                    await cast("AsyncResource", stream).aclose()
