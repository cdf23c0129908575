"""Our own standard streams as a link: a client started us, and speaks through them.

The streams are taken away from the rest of the process while the link is open: whatever prints goes
to standard error, and whatever reads finds nothing. No thread is needed unless standard input is
something that the event loop cannot watch, such as a regular file. From a client that does not read
its answers no more questions are read.
"""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from indusagi.core.process.pipes import PipeReader, PipeWriter
from indusagi.interop.protocol_bridge.contract import FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.codec import encode_frame
from indusagi.interop.protocol_bridge.rpc.connection import TransportEnd

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from indusagi.core.json import JsonObject, JsonValue

_PIECE_BYTES = 64 * 1024
_LINES = 128
"""So many are taken in one turn of the loop."""
_UNREAD_BYTES = 1024 * 1024
"""So much may wait to be read by a client before it is not listened to."""
_LOOK_S = 1.0
"""How often a client that is not listened to is looked after."""
_FLUSH_S = 1.0
"""How long the last words may take to be read."""


class LineSplitter:
    """Cuts bytes into lines in linear time; one that is too long is dropped as a whole."""

    def __init__(self, on_line: Callable[[bytes], None], limit: int) -> None:
        self.dropped = 0
        self._on_line = on_line
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        start = 0
        while (newline := data.find(b"\n", start)) >= 0:
            self._take(data[start:newline])
            self._complete()
            start = newline + 1
        if start < len(data):
            self._take(data[start:])

    def _take(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            self._parts.clear()
        else:
            self._parts.append(part)

    def _complete(self) -> None:
        line = b"".join(self._parts)
        too_long = self._size > self._limit
        self._parts.clear()
        self._size = 0
        if too_long:
            self.dropped += 1
            # What cannot be read is answered as such, and nothing else is lost.
            self._on_line(b"")
        elif line and not line.isspace():
            self._on_line(line)


class _Room(asyncio.Event):
    """Set while more can be written; somebody is told each time it is."""

    def __init__(self, on_set: Callable[[], None]) -> None:
        super().__init__()
        self._on_set = on_set

    def set(self) -> None:
        """Let those who wait go on."""
        super().set()
        self._on_set()


class StdioHostTransport:
    """A link over two descriptors, which it closes."""

    def __init__(self, source: int, sink: int, frame_bytes: int) -> None:
        self._source, self._sink = source, sink
        self._cutter = LineSplitter(self._line, frame_bytes)
        self._early: list[bytes] = []
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._rest = b""
        """What was read and not yet taken."""
        self._next_turn: asyncio.Handle | None = None
        self._leaving = False
        self._on_frame: Callable[[bytes | JsonValue], None] | None = None
        self._on_end: Callable[[TransportEnd], None] | None = None
        self._end: TransportEnd | None = None
        self._reader: PipeReader | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._written = asyncio.Event()
        self.writable = _Room(self._go_on)
        self.writable.set()
        self.trouble: OSError | None = None
        """Why nothing more can be written."""
        self.input_ended = asyncio.Event()
        """The client has said its last word; it may still listen."""

    # -- for the dispatcher ---------------------------------------------------------------

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Deliver what comes, also what came before; `on_end` is called once."""
        self._on_frame, self._on_end = on_frame, on_end
        early, self._early = self._early, []
        for line in early:
            on_frame(line)
        if self._end is not None:
            on_end(self._end)

    @property
    def accepts_notifications(self) -> bool:
        """Whether somebody reads."""
        return self._end is None

    def send(self, frame: JsonObject) -> None:
        """Write one line, together with the others of this turn of the loop."""
        if self._end is not None:
            return
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._flush)
        line = encode_frame(frame)
        self._outgoing.append(line)
        self._outgoing_bytes += len(line)
        if self._outgoing_bytes >= _PIECE_BYTES:
            self._flush()  # or nobody would know that there is no room

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
            _write_all(self._sink, data)
        except OSError as exc:  # a full disk
            self.trouble = self.trouble or exc
            self.finish(f"nothing more can be written: {exc.strerror or exc}")

    # -- opening and closing ----------------------------------------------------------------

    async def open(self) -> None:
        """Start reading."""
        loop = asyncio.get_running_loop()
        if _can_be_watched(self._sink):
            writer = PipeWriter(self.writable, self._nobody_reads)
            pipe = open(self._sink, "wb", buffering=0, closefd=False)  # noqa: SIM115, ASYNC230 — wraps a descriptor, opens nothing
            self._writer, _ = await loop.connect_write_pipe(lambda: writer, pipe)
        if _can_be_watched(self._source):
            reader = PipeReader(self._fed, self._input_over)
            pipe = open(self._source, "rb", buffering=0, closefd=False)  # noqa: SIM115, ASYNC230 — as above
            await loop.connect_read_pipe(lambda: reader, pipe)
            self._reader = reader

    async def read_file(self) -> None:
        """Read what the event loop cannot watch, such as a regular file."""
        if self._reader is None:
            while data := await asyncio.to_thread(os.read, self._source, _PIECE_BYTES):
                self._fed(data)
                while self._rest or self._unread:
                    await (self.writable.wait() if self._unread else asyncio.sleep(0))
            self._input_over()

    async def close(self) -> None:
        """Write what is left, as far as somebody reads it, and let the streams go."""
        self.finish("the host has ended")
        if self._next_turn is not None:
            self._next_turn.cancel()
        if self._reader is not None:
            self._reader.close()
        if self._writer is not None:
            self._writer.close()  # after what is in its buffer
            try:
                await asyncio.wait_for(self._written.wait(), _FLUSH_S)
            except TimeoutError:
                self._writer.abort()
                await self._written.wait()
        await asyncio.sleep(0)  # the transports let their descriptors go in the next turn

    # -- what is read -----------------------------------------------------------------------

    @property
    def _unread(self) -> bool:
        """Whether the client has much to read before it is listened to."""
        if self._writer is None or self.writable.is_set() or self._leaving:
            return False
        return self._writer.get_write_buffer_size() > _UNREAD_BYTES

    def _fed(self, data: bytes) -> None:
        self._rest += data
        self._go_on()

    def _go_on(self) -> None:
        """Take some lines; the others in the turns after, or when the client has read."""
        if self._next_turn is not None:
            self._next_turn.cancel()
            self._next_turn = None
        if self._rest and not self._unread:
            end = _some_lines(self._rest)
            some, self._rest = self._rest[:end], self._rest[end:]
            self._cutter.feed(some)
        loop = asyncio.get_running_loop()
        if self._unread:
            self._next_turn = loop.call_later(_LOOK_S, self._look)
        elif self._rest:
            self._next_turn = loop.call_soon(self._go_on)
        if self._reader is not None:
            if self._next_turn is None:
                self._reader.resume()
            else:
                self._reader.pause()

    def _look(self) -> None:
        """See whether a client that does not read has gone: nobody else would notice."""
        watched = select.poll()
        watched.register(self._source, 0)
        self._leaving = bool(watched.poll(0))
        self._go_on()

    # -- what happens -----------------------------------------------------------------------

    def _line(self, line: bytes) -> None:
        if self._on_frame is None:
            self._early.append(line)
        elif self._end is None:
            self._on_frame(line)

    def _input_over(self) -> None:
        if not self.input_ended.is_set():
            self._cutter.feed(b"\n")  # a last line may come without its end
            self.input_ended.set()

    def _nobody_reads(self) -> None:
        self.writable.set()
        self._written.set()
        self.finish("the client stopped reading")

    def finish(self, message: str) -> None:
        """Declare the end; what was said before it is still written."""
        if self._end is None:
            self._flush()
            self._end = TransportEnd(message, FaultDetail(reason="closed"))
            self.input_ended.set()
            if self._on_end is not None:
                self._on_end(self._end)


@asynccontextmanager
async def standard_streams(frame_bytes: int) -> AsyncGenerator[StdioHostTransport]:
    """Take standard input and output for a link, and give them back at the end.

    Raises:
        ProtocolFault: They cannot be used.
    """
    source, sink = _taken()
    try:
        link = StdioHostTransport(source, sink, frame_bytes)
        await link.open()
        try:
            yield link
        finally:
            await link.close()
    finally:
        _given_back(source, sink)


def _taken() -> tuple[int, int]:
    """Put our ends out of reach, and something harmless in their place."""
    # Python says so when they were closed from the start; their numbers may be anybody's by now.
    if sys.__stdin__ is None or sys.__stdout__ is None:
        raise ProtocolFault("transport", "standard input and output are not open")
    sys.__stdout__.flush()
    source, sink = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(nothing if sys.__stderr__ is None else 2, 1)
    os.close(nothing)
    return source, sink


def _can_be_watched(descriptor: int) -> bool:
    """Tell what has to be waited for from what can be read and written at any time."""
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


def _some_lines(data: bytes) -> int:
    """Say where the first lines end, as many as are taken at once."""
    if data.count(b"\n") <= _LINES:
        return len(data)
    end = 0
    for _ in range(_LINES):
        end = data.find(b"\n", end) + 1
    return end


def _given_back(source: int, sink: int) -> None:
    if sys.__stdout__ is not None:
        sys.__stdout__.flush()
    for descriptor, place in ((source, 0), (sink, 1)):
        # The event loop made them non-blocking, for everybody who shares them.
        os.set_blocking(descriptor, True)
        os.dup2(descriptor, place)
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]
