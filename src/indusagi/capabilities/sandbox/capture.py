"""Capture of a command's output: a file, written in a worker thread.

While a piece is written the pipe is not read, so memory holds one piece. The file is bounded: of a very long output it
keeps the first and the last 32 MiB.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from indusagi.core.app_dirs import create_private_file

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future
    from collections.abc import Callable, Iterator

    from indusagi.core.process.child import ChildProcess

KEPT_HEAD_BYTES = 32 * 1024 * 1024
KEPT_TAIL_BYTES = 32 * 1024 * 1024
_PIECE_BYTES = 1024 * 1024


def open_capture(path: str | None) -> int:
    """Open the file of an output: a new private file at `path`, or an unnamed temporary file."""
    if path is not None:
        return create_private_file(path)
    from tempfile import TemporaryFile  # noqa: PLC0415 — only commands without a file pay

    with TemporaryFile() as file:
        return os.dup(file.fileno())


class Capture:
    """The output of a command so far, and an optional sink that receives it.

    Standard error is part of the output, unless a second capture takes the `errors`.
    """

    child: ChildProcess

    def __init__(
        self, descriptor: int, path: str | None = None, *, errors: Capture | None = None, of_errors: bool = False
    ) -> None:
        from asyncio import Event, get_running_loop  # noqa: PLC0415 — loaded wherever a loop runs

        self.size = 0
        self.errors = errors
        self._of_errors = of_errors
        self._file = CaptureFile(descriptor, path)
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

    # -- for the child ------------------------------------------------------------------------

    def stdout_received(self, data: bytes) -> None:
        """Write to the file; data past the limit is dropped."""
        if self._closed or self._is_full():
            return
        self._waiting.append(data)
        if self._idle.is_set():
            self._write()

    def stderr_received(self, data: bytes) -> None:
        """Write to the capture of errors."""
        if self.errors is not None:
            self.errors.stdout_received(data)

    def state_changed(self) -> None:
        """Ignore it: waiters look at the child."""

    # -- the file -----------------------------------------------------------------------------

    def _write(self) -> None:
        piece = b"".join(self._waiting)
        self._waiting.clear()
        self._idle.clear()
        if self._of_errors:
            self.child.pause_errors()
        else:
            self.child.pause_output()
        sink = self._sink
        start, self._sent = self._sent, self.size + len(piece) if sink is not None else self._sent
        file = self._file if self._failure is None else None
        # A plain future: no task awaits it, so cancellation cannot stop it.
        future = self._loop.run_in_executor(None, _write_piece, file, piece, sink, start)
        future.add_done_callback(self._finish_write)

    def _finish_write(self, future: Future[int]) -> None:
        try:
            self.size += future.result()
        except OSError as exc:
            self._failure = exc
        if self._is_full():
            self._waiting.clear()
        if self._waiting or self._is_behind():
            self._write()
            return
        self._idle.set()
        if self._of_errors:
            self.child.resume_errors()
        else:
            self.child.resume_output()
        if self._closed:
            self._file.close()
        elif self._is_full() and self._on_full is not None:
            self._on_full()

    def _is_behind(self) -> bool:
        return self._sink is not None and self._sent < self.size and self._failure is None

    def _is_full(self) -> bool:
        # A sink receives more although the file cannot be written.
        failed = self._failure is not None and self._sink is None
        return failed or (self._cap is not None and self.size > self._cap)

    def limit(self, size: int, on_full: Callable[[], None]) -> None:
        """Keep nothing after `size` bytes; call `on_full` then, and after a failed write."""
        self._cap, self._on_full = size, on_full
        if self._is_full():
            on_full()

    def follow(self, sink: Callable[[bytes], None]) -> None:
        """Call `sink` in a thread with all output, earlier pieces included."""
        self._sink = sink
        if self._idle.is_set() and self._is_behind() and not self._closed:
            self._write()

    async def flush(self) -> None:
        """Wait until everything read from the pipe is in the file."""
        await self._idle.wait()

    def read(self, offset: int, limit: int | None) -> bytes:
        """Read a part of the output.

        Raises:
            OSError: Something of it could not be written.
        """
        if self._failure is not None:
            raise self._failure
        return self._file.read(offset, limit, self.size)

    def settle(self) -> None:
        """Bring a named file into reading order; blocks.

        Raises:
            OSError: The file stays as it is, the last part of a very long output in two halves.
        """
        self._file.reorder()

    def close(self) -> None:
        """Close the file after the last piece."""
        if self._closed:
            return
        self._closed = True
        if self._idle.is_set():
            self._file.close()


def _write_piece(file: CaptureFile | None, piece: bytes, sink: Callable[[bytes], None] | None, start: int) -> int:
    """Append a piece to `file`, and call `sink` with everything from offset `start` on."""
    try:
        if file is not None and sink is not None:
            for earlier in file.pieces(start, file.size):
                sink(earlier)
        if file is not None:
            file.append(piece)
    finally:
        if sink is not None and piece:
            sink(piece)
    return 0 if file is None else len(piece)


class CaptureFile:
    """A file with the first part of an output, followed by a ring buffer with the last part."""

    def __init__(self, descriptor: int, path: str | None = None) -> None:
        self.size = 0
        """Bytes of the output, kept or not."""
        self._descriptor = descriptor
        self._path = path

    def append(self, data: bytes) -> None:
        """Write a piece, overwriting the oldest of the last part if necessary."""
        left = memoryview(data)
        while left:
            position, room = _position(self.size)
            done = os.pwrite(self._descriptor, left[:room], position)
            self.size += done
            left = left[done:]

    def read(self, offset: int, limit: int | None, size: int) -> bytes:
        """Read from `offset` of the output, or from the first kept byte after it."""
        end = size if limit is None else min(size, offset + limit)
        return b"".join(self.pieces(offset, end))

    def pieces(self, offset: int, end: int) -> Iterator[bytes]:
        """Yield what is kept between two offsets."""
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

    def reorder(self) -> None:
        """Rewrite a named file so that it reads from beginning to end.

        Raises:
            OSError: The disk is full; the file stays as it is.
        """
        if self._path is None or self.size <= KEPT_HEAD_BYTES + KEPT_TAIL_BYTES:
            return
        ordered = f"{self._path}.ordered"
        with os.fdopen(create_private_file(ordered), "wb") as target:
            try:
                target.writelines(self.pieces(0, KEPT_HEAD_BYTES))
                left_out = self.size - KEPT_HEAD_BYTES - KEPT_TAIL_BYTES
                target.write(b"\n[%d bytes left out]\n" % left_out)
                target.writelines(self.pieces(KEPT_HEAD_BYTES, self.size))
                target.flush()
                os.replace(ordered, self._path)
            except OSError:
                os.unlink(ordered)
                raise

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def _position(offset: int) -> tuple[int, int]:
    """Return the position of an output byte in the file, and how many bytes follow it contiguously."""
    if offset < KEPT_HEAD_BYTES:
        return offset, KEPT_HEAD_BYTES - offset
    in_ring = (offset - KEPT_HEAD_BYTES) % KEPT_TAIL_BYTES
    return KEPT_HEAD_BYTES + in_ring, KEPT_TAIL_BYTES - in_ring
