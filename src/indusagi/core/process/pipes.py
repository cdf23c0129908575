"""Our ends of the pipes of a child process, in the event loop."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

_PIECE_BYTES = 64 * 1024
_REST_BYTES = 1024 * 1024
"""The most that is taken out of a pipe at the end: as much as a user may have a pipe hold."""


class PipeReader(asyncio.Protocol):
    """The end of a pipe that we read."""

    def __init__(self, received: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self.transport: asyncio.ReadTransport | None = None
        self._received = received
        self._lost = lost

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, which can be told to wait."""
        self.transport = cast("asyncio.ReadTransport", transport)

    def data_received(self, data: bytes) -> None:
        """Hand on what was read."""
        self._received(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that nothing more will come."""
        self._lost()

    def pause(self) -> None:
        """Leave in the pipe what is in it."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None:
            self.transport.resume_reading()

    def close(self) -> None:
        """Read no more."""
        if self.transport is not None:
            self.transport.close()

    def take_the_rest(self) -> None:
        """Read what is in the pipe, and little more however fast somebody may be filling it."""
        if self.transport is None or self.transport.is_closing():
            return
        descriptor: int = self.transport.get_extra_info("pipe").fileno()
        for _ in range(_REST_BYTES // _PIECE_BYTES):
            try:
                data = os.read(descriptor, _PIECE_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            self._received(data)


class PipeWriter(asyncio.BaseProtocol):
    """The end of a pipe that we write to."""

    def __init__(self, writable: asyncio.Event, lost: Callable[[], None]) -> None:
        self.pause_writing = writable.clear
        self.resume_writing = writable.set
        self._lost = lost

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell that nobody reads any more."""
        self._lost()


def abort_pipe(pipe: asyncio.WriteTransport) -> None:
    """Close a pipe without writing what is left."""
    # One that is being closed and has nothing left to write would tell of its end twice.
    if not pipe.is_closing() or pipe.get_write_buffer_size():
        pipe.abort()
