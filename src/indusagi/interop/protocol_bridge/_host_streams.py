"""A pair of the SDK's streams as the link of a host."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import anyio

from indusagi.interop.protocol_bridge._sdk_streams import StreamLink
from indusagi.interop.protocol_bridge.contract import FaultDetail

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import AsyncResource

    from indusagi.interop.protocol_bridge._sdk_streams import Streams


@asynccontextmanager
async def host_streams(streams: Streams) -> AsyncGenerator[StreamLink]:
    """Carry what goes over a stream pair, and close it at the end, as a server of the SDK does."""
    link = StreamLink(streams)

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
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                for stream in streams:
                    await cast("AsyncResource", stream).aclose()
