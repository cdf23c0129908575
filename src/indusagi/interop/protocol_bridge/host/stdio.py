"""A host's stdio transport: this process's standard streams, one JSON-RPC message per line.

https://modelcontextprotocol.io/specification/2025-06-18/basic/transports#stdio: standard output carries only messages.
So while the transport is open, all other code in the process sees standard error on file descriptor 1 and an empty
file on descriptor 0. The event loop reads the streams; a thread reads only files that it can't watch, such as regular
ones. While a client doesn't read its responses, we don't read its requests.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from indusagi.core.json import JsonObject
from indusagi.core.process.child import PipeReader, PipeWriter
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.transport import CLOSED, BaseTransport, TransportEnd, encode_frame

_CHUNK_BYTES = 64 * 1024
_LINES_PER_TURN = 128
"""Lines to handle in one turn of the event loop."""
_UNREAD_BYTES = 1024 * 1024
"""Pause reading at this much unread output."""
_HANGUP_CHECK_S = 1.0
"""How often to check for a hang-up while we don't read."""
_FLUSH_S = 1.0
"""How long the client may take to read the last output."""


class LineSplitter:
    """Splits bytes into lines in linear time, dropping lines longer than `limit`."""

    def __init__(self, on_line: Callable[[bytes], None], limit: int) -> None:
        self.dropped = 0
        self._on_line = on_line
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        start = 0
        while (newline := data.find(b"\n", start)) >= 0:
            self._add(data[start:newline])
            line = b"".join(self._parts)
            is_too_long = self._size > self._limit
            self._parts.clear()
            self._size = 0
            if is_too_long:
                self.dropped += 1
                # An empty line is answered as invalid JSON, so the client gets an error.
                self._on_line(b"")
            elif line and not line.isspace():
                self._on_line(line)
            start = newline + 1
        if start < len(data):
            self._add(data[start:])

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts.clear()
        else:
            self._parts.append(part)


class _NotifyingEvent(asyncio.Event):
    """An event that calls a function whenever it's set."""

    def __init__(self, on_set: Callable[[], None]) -> None:
        super().__init__()
        self._on_set = on_set

    def set(self) -> None:
        """Set the event and call the function."""
        super().set()
        self._on_set()


class StdioHostTransport(BaseTransport):
    """A `ServerTransport` over two file descriptors."""

    def __init__(self, source: int, sink: int, frame_bytes: int) -> None:
        super().__init__(_NotifyingEvent(self._handle_input))
        self._source, self._sink = source, sink
        self._splitter = LineSplitter(self.deliver, frame_bytes)
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._unhandled = b""
        """Input read but not handled."""
        self._next_turn: asyncio.Handle | None = None
        self._is_hung_up = False
        self._has_turned = asyncio.Event()
        """Set when input was handled, or could have been."""
        self._has_room: Callable[[], bool] = lambda: True
        self._reader: PipeReader | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._output_closed = asyncio.Event()
        self.write_error: OSError | None = None
        """Why writing is no longer possible."""
        self.input_ended = asyncio.Event()
        """Set at the end of the client's input; it may still read."""
        self.writable.set()

    def limit_input(self, has_room: Callable[[], bool]) -> Callable[[], None]:
        """Read only while there's room; call the returned function when there's room again."""
        self._has_room = has_room
        return self._handle_input

    def send(self, frame: JsonObject) -> None:
        """Write a line, batched with others from this turn of the event loop."""
        if self._end is not None:
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        line = encode_frame(frame)
        self._outgoing.append(line)
        self._outgoing_bytes += len(line)
        if self._outgoing_bytes >= _CHUNK_BYTES:
            self._flush()  # clears `writable` in time

    def _flush(self) -> None:
        if not self._outgoing:
            return
        self._outgoing.append(b"")
        data = b"\n".join(self._outgoing)
        self._outgoing.clear()
        self._outgoing_bytes = 0
        if self._writer is not None:
            self._writer.write(data)
            return
        try:
            while data:
                data = data[os.write(self._sink, data) :]
        except OSError as exc:  # such as a full disk
            self.write_error = self.write_error or exc
            self.finish(f"nothing more can be written: {exc.strerror or exc}")

    # -- opening and closing --------------------------------------------------------------------

    async def open(self) -> None:
        """Start reading."""
        loop = asyncio.get_running_loop()
        if _is_pollable(self._sink):
            writer = PipeWriter(self.writable, self._handle_output_closed)
            pipe = open(self._sink, "wb", buffering=0, closefd=False)  # noqa: SIM115, ASYNC230 — wraps a descriptor
            self._writer, _ = await loop.connect_write_pipe(lambda: writer, pipe)
        if _is_pollable(self._source):
            reader = PipeReader(self._receive_data, self._handle_input_end)
            pipe = open(self._source, "rb", buffering=0, closefd=False)  # noqa: SIM115, ASYNC230 — wraps a descriptor
            await loop.connect_read_pipe(lambda: reader, pipe)
            self._reader = reader

    async def read_file(self) -> None:
        """Read input that the event loop can't watch, such as a regular file, in a thread."""
        if self._reader is None:
            while data := await asyncio.to_thread(os.read, self._source, _CHUNK_BYTES):
                self._receive_data(data)
                while self._unhandled or self._must_pause:
                    self._has_turned.clear()
                    await self._has_turned.wait()
            self._handle_input_end()

    async def close(self) -> None:
        """Write pending output as long as the client reads it, and release the descriptors."""
        self.finish("the host has ended")
        if self._next_turn is not None:
            self._next_turn.cancel()
        if self._reader is not None:
            self._reader.close()
        if self._writer is not None:
            self._writer.close()  # writes its buffer first
            try:
                await asyncio.wait_for(self._output_closed.wait(), _FLUSH_S)
            except TimeoutError:
                self._writer.abort()
                await self._output_closed.wait()
        await asyncio.sleep(0)  # transports release their descriptors in the next turn of the loop

    def finish(self, message: str, detail: FaultDetail = CLOSED) -> TransportEnd:
        """Report the end; earlier output is still written."""
        if self._end is None:
            self._flush()
            self._end = TransportEnd(message, detail)
            self.input_ended.set()
            if self._on_end is not None:
                self._on_end(self._end)
        return self._end

    # -- input ----------------------------------------------------------------------------------

    @property
    def _must_pause(self) -> bool:
        """Whether to wait until the client has read output, or requests are answered, before handling more input."""
        if not self._has_room():
            return True  # even after a hang-up: a client that has sent everything may still read
        if self._writer is None or self.writable.is_set() or self._is_hung_up:
            return False
        return self._writer.get_write_buffer_size() > _UNREAD_BYTES

    def _receive_data(self, data: bytes) -> None:
        self._unhandled += data
        self._handle_input()

    def _handle_input(self) -> None:
        """Handle some lines now, and the rest in later turns of the loop or once the client has read."""
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if self._unhandled and not self._must_pause:
            end = len(self._unhandled)
            if self._unhandled.count(b"\n") > _LINES_PER_TURN:
                end = 0
                for _ in range(_LINES_PER_TURN):
                    end = self._unhandled.find(b"\n", end) + 1
            data, self._unhandled = self._unhandled[:end], self._unhandled[end:]
            self._splitter.feed(data)
        self._has_turned.set()
        loop = asyncio.get_running_loop()
        if self._must_pause:
            self._next_turn = loop.call_later(_HANGUP_CHECK_S, self._check_hangup)
        elif self._unhandled:
            self._next_turn = loop.call_soon(self._handle_input)
        if self._reader is not None:
            if self._next_turn is None:
                self._reader.resume()
            else:
                self._reader.pause()

    def _check_hangup(self) -> None:
        """Check whether a client that doesn't read has disconnected: a paused reader wouldn't notice."""
        poll = select.poll()
        poll.register(self._source, 0)
        self._is_hung_up = bool(poll.poll(0))
        self._handle_input()

    def _handle_input_end(self) -> None:
        if not self.input_ended.is_set():
            self._splitter.feed(b"\n")  # the last line may be unterminated
            self.input_ended.set()

    def _handle_output_closed(self) -> None:
        self.writable.set()
        self._output_closed.set()
        self.finish("the client stopped reading")


@asynccontextmanager
async def standard_streams(frame_bytes: int) -> AsyncGenerator[StdioHostTransport]:
    """Take over standard input and output for a transport, and restore them at the end.

    Duplicates descriptors 0 and 1, and replaces them with an empty file and standard error.
    """
    # Python sets these to None if the descriptors were closed at startup; other files may have the numbers now.
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise ProtocolFault("transport", "standard input and output are not open")
    sys.__stdout__.flush()
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null if sys.__stderr__ is None else 2, 1)
    os.close(null)
    try:
        transport = StdioHostTransport(source, sink, frame_bytes)
        await transport.open()
        try:
            yield transport
        finally:
            await transport.close()
    finally:
        sys.__stdout__.flush()
        for descriptor, number in ((source, 0), (sink, 1)):
            # The event loop made them non-blocking, for every process that shares them.
            os.set_blocking(descriptor, True)
            os.dup2(descriptor, number)
            os.close(descriptor)


def _is_pollable(descriptor: int) -> bool:
    """Return whether a descriptor can be waited for; a regular file is always ready."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)
