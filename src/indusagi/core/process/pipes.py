"""Our ends of the pipes of a child process, or of our standard streams, in the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import cast

_PIECE_BYTES = 64 * 1024
_REST_BYTES = 1024 * 1024
"""How much to read from a pipe at the end: the largest pipe of an unprivileged user (pipe(7))."""


class PipeReader(asyncio.Protocol):
    """Our reading end of a pipe."""

    def __init__(self, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        self.transport: asyncio.ReadTransport | None = None
        self.data_received = on_data  # pyright: ignore[reportAttributeAccessIssue] — its parameter may have any name
        self._on_end = on_end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.ReadTransport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the pipe."""
        self._on_end()

    def pause(self) -> None:
        """Leave the data in the pipe."""
        if self.transport is not None:
            self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self.transport is not None:
            self.transport.resume_reading()

    def close(self) -> None:
        """Close the pipe."""
        if self.transport is not None:
            self.transport.close()

    def read_rest(self) -> None:
        """Read the rest of the pipe, at most `_REST_BYTES`, since a process may be filling it."""
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
            self.data_received(data)


class PipeWriter(asyncio.BaseProtocol):
    """Our writing end of a pipe."""

    def __init__(self, writable: asyncio.Event, on_end: Callable[[], None]) -> None:
        self.pause_writing = writable.clear
        self.resume_writing = writable.set
        self._on_end = on_end

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the pipe."""
        self._on_end()
