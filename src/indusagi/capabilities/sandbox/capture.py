"""Capture a command's output in a file, written from a worker thread.

We don't read the pipe while writing a piece, so memory only holds one piece. The file is bounded: for a very long
output, it contains the first and last 32 MiB.
"""

from __future__ import annotations

import os
from asyncio import Event, get_running_loop
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import create_private_file

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Iterator

    from indusagi.core.process.child import PipeReader

KEPT_HEAD_BYTES = 32 * 1024 * 1024
KEPT_TAIL_BYTES = 32 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024


def open_capture(path: str | None) -> int:
    """Open the output file: a new private file at `path`, or an unnamed temporary file."""
    if path is not None:
        return create_private_file(path)
    from tempfile import TemporaryFile  # noqa: PLC0415 — only commands without a file pay

    with TemporaryFile() as file:
        return os.dup(file.fileno())


class Capture:
    """The output of a command so far, with an optional sink: a file with its first part, then a ring of its last part.

    Includes stderr unless there's a second capture for `errors`.
    """

    reader: PipeReader
    """Our end of the pipe, to pause while a piece is written."""

    def __init__(self, descriptor: int, path: str | None = None, *, errors: Capture | None = None) -> None:
        self.size = 0
        """Total size of the output, including dropped bytes."""
        self.errors = errors
        self._descriptor = descriptor
        self._path = path
        self._loop: AbstractEventLoop = get_running_loop()
        self._waiting: list[bytes] = []
        self._idle = Event()
        self._idle.set()
        self._failure: OSError | None = None
        self._cap: int | None = None
        self._on_full: Callable[[], None] | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._sent = 0
        self._closed = False

    def stdout_received(self, data: bytes) -> None:
        """Write to the file, dropping data past the limit."""
        if self._closed or self._is_full():
            return
        self._waiting.append(data)
        if self._idle.is_set():
            self._write()

    def stderr_received(self, data: bytes) -> None:
        """Write to the stderr capture."""
        if self.errors is not None:
            self.errors.stdout_received(data)

    def state_changed(self) -> None:
        """Do nothing: waiters watch the child."""

    def _write(self) -> None:
        piece = b"".join(self._waiting)
        self._waiting.clear()
        self._idle.clear()
        self.reader.pause()
        sink, start = self._sink, self._sent
        self._sent = start if sink is None else self.size + len(piece)
        # Use a plain future: no task awaits it, so cancellation can't stop it.
        future = self._loop.run_in_executor(None, self._write_piece, piece, sink, start)
        future.add_done_callback(self._finish_write)

    def _write_piece(self, piece: bytes, sink: Callable[[bytes], None] | None, start: int) -> None:
        """Append a piece, and call `sink` with everything from offset `start`. Runs in a thread."""
        try:
            if self._failure is None:
                if sink is not None:
                    for earlier in self._read_pieces(start, self.size):
                        sink(earlier)
                self.append(piece)
        finally:
            if sink is not None and piece:
                sink(piece)

    def append(self, data: bytes) -> None:
        """Write a piece, overwriting the oldest data in the ring if necessary."""
        left = memoryview(data)
        while left:
            position, room = _position(self.size)
            done = os.pwrite(self._descriptor, left[:room], position)
            self.size += done
            left = left[done:]

    def _finish_write(self, future: Future[None]) -> None:
        try:
            future.result()
        except OSError as exc:
            self._failure = exc
        if self._is_full():
            self._waiting.clear()
        if self._waiting or self._is_behind():
            self._write()
            return
        self._idle.set()
        self.reader.resume()
        if self._closed:
            os.close(self._descriptor)
        elif self._is_full() and self._on_full is not None:
            self._on_full()

    def _is_behind(self) -> bool:
        return self._sink is not None and self._sent < self.size and self._failure is None

    def _is_full(self) -> bool:
        # The sink keeps receiving data even if we can't write the file.
        failed = self._failure is not None and self._sink is None
        return failed or (self._cap is not None and self.size > self._cap)

    def limit(self, size: int, on_full: Callable[[], None]) -> None:
        """Drop data after `size` bytes; call `on_full` at that point, or after a failed write."""
        self._cap, self._on_full = size, on_full
        if self._is_full():
            on_full()

    def follow(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` in a thread with all output, including earlier pieces."""
        self._sink = sink
        if self._idle.is_set() and self._is_behind() and not self._closed:
            self._write()

    async def flush(self) -> None:
        """Wait until the file contains everything read from the pipe."""
        await self._idle.wait()

    def read(self, offset: int, limit: int | None) -> bytes:
        """Read from an offset of the output, or from the next stored byte.

        Raises `OSError` if some of it couldn't be written.
        """
        if self._failure is not None:
            raise self._failure
        return b"".join(self._read_pieces(offset, self.size if limit is None else min(self.size, offset + limit)))

    def _read_pieces(self, offset: int, end: int) -> Iterator[bytes]:
        """Yield the stored bytes between two offsets."""
        while offset < end:
            if KEPT_HEAD_BYTES <= offset < self.size - KEPT_TAIL_BYTES:
                offset = self.size - KEPT_TAIL_BYTES
                continue
            position, room = _position(offset)
            data = os.pread(self._descriptor, min(room, end - offset, _PIECE_BYTES), position)
            if not data:
                return
            offset += len(data)
            yield data

    def settle(self) -> None:
        """Rewrite a named file in reading order. Blocks.

        After an `OSError` the file stays as is, with the last part of a very long output in two halves.
        """
        if self._path is None or self.size <= KEPT_HEAD_BYTES + KEPT_TAIL_BYTES:
            return
        ordered = f"{self._path}.ordered"
        with os.fdopen(create_private_file(ordered), "wb") as target:
            try:
                target.writelines(self._read_pieces(0, KEPT_HEAD_BYTES))
                left_out = self.size - KEPT_HEAD_BYTES - KEPT_TAIL_BYTES
                target.write(b"\n[%d bytes left out]\n" % left_out)
                target.writelines(self._read_pieces(KEPT_HEAD_BYTES, self.size))
                target.flush()
                os.replace(ordered, self._path)
            except OSError:
                os.unlink(ordered)
                raise

    def close(self) -> None:
        """Close the file once the last piece is written."""
        if not self._closed:
            self._closed = True
            if self._idle.is_set():
                os.close(self._descriptor)


def _position(offset: int) -> tuple[int, int]:
    """Return the file position of an output byte, and the number of contiguous bytes from there."""
    if offset < KEPT_HEAD_BYTES:
        return offset, KEPT_HEAD_BYTES - offset
    in_ring = (offset - KEPT_HEAD_BYTES) % KEPT_TAIL_BYTES
    return KEPT_HEAD_BYTES + in_ring, KEPT_TAIL_BYTES - in_ring
