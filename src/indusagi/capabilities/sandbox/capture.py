"""The file that takes what a command writes, written in a thread, one piece after the other.

While a piece is written the pipe is not read, so memory holds no more than that piece. The file
does not grow without end either: of a very long output it keeps the first part and the last one.
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
    """Open the file that takes the output: a named one, or one that has no name at all."""
    if path is not None:
        return create_private_file(path)
    from tempfile import TemporaryFile  # noqa: PLC0415 — for those who run commands

    with TemporaryFile() as file:
        return os.dup(file.fileno())


class Capture:
    """What a command wrote so far, and who else is to see it.

    Its standard error is part of that, unless there is a second capture for `errors`.
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
        self._when_over: Callable[[], None] | None = None
        self._sink: Callable[[bytes], None] | None = None
        self._told = 0
        self._closed = False

    # -- for the child ------------------------------------------------------------------------

    def stdout_received(self, data: bytes) -> None:
        """Put it in the file; past the end of what is kept it is read and dropped."""
        if self._closed or self._is_over():
            return
        self._waiting.append(data)
        if self._idle.is_set():
            self._write()

    def stderr_received(self, data: bytes) -> None:
        """Put it in the file for errors; where there is none, one pipe carries both streams."""
        if self.errors is not None:
            self.errors.stdout_received(data)

    def state_changed(self) -> None:
        """Care about nothing: whoever waits looks at the child."""

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
        owed, self._told = self._told, self.size + len(piece) if sink is not None else self._told
        file = self._file if self._failure is None else None
        # Nobody awaits this one, so nobody can cancel it.
        future = self._loop.run_in_executor(None, _take, file, piece, sink, owed)
        future.add_done_callback(self._written)

    def _written(self, future: Future[int]) -> None:
        try:
            self.size += future.result()
        except OSError as exc:
            self._failure = exc
        if self._is_over():
            self._waiting.clear()
        if self._waiting or self._owes():
            self._write()
            return
        self._idle.set()
        if self._of_errors:
            self.child.resume_errors()
        else:
            self.child.resume_output()
        if self._closed:
            self._file.close()
        elif self._is_over() and self._when_over is not None:
            self._when_over()

    def _owes(self) -> bool:
        return self._sink is not None and self._told < self.size and self._failure is None

    def _is_over(self) -> bool:
        # Who follows hears on also when the file can take no more.
        failed = self._failure is not None and self._sink is None
        return failed or (self._cap is not None and self.size > self._cap)

    def limit(self, size: int, when_over: Callable[[], None]) -> None:
        """Keep nothing after `size` bytes; `when_over` hears of that, and of a failure to write."""
        self._cap, self._when_over = size, when_over
        if self._is_over():
            when_over()

    def follow(self, sink: Callable[[bytes], None]) -> None:
        """Have `sink` called in a thread with every piece, also with those that came before."""
        self._sink = sink
        if self._idle.is_set() and self._owes() and not self._closed:
            self._write()

    async def written(self) -> None:
        """Wait until what was read of the pipe is in the file."""
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
        """Have a named file read in order; not for the event loop.

        Raises:
            OSError: It stays as it is, the last part of a very long output in two halves.
        """
        self._file.put_in_order()

    def close(self) -> None:
        """Give the file up, once the last piece is written."""
        if self._closed:
            return
        self._closed = True
        if self._idle.is_set():
            self._file.close()


def _take(file: CaptureFile | None, piece: bytes, sink: Callable[[bytes], None] | None, owed: int) -> int:
    """Keep a piece, if there is still a file, and tell `sink` of all it has not heard of yet."""
    try:
        if file is not None and sink is not None:
            for former in file.pieces(owed, file.size):
                sink(former)
        if file is not None:
            file.append(piece)
    finally:
        if sink is not None and piece:
            sink(piece)
    return 0 if file is None else len(piece)


class CaptureFile:
    """A file with the first part of an output, and behind it a ring with the last part."""

    def __init__(self, descriptor: int, path: str | None = None) -> None:
        self.size = 0
        """Bytes that were written, kept or not."""
        self._descriptor = descriptor
        self._path = path

    def append(self, data: bytes) -> None:
        """Write a piece, over the oldest of the last part if need be."""
        left = memoryview(data)
        while left:
            place, room = _place(self.size)
            done = os.pwrite(self._descriptor, left[:room], place)
            self.size += done
            left = left[done:]

    def read(self, offset: int, limit: int | None, size: int) -> bytes:
        """Read from `offset` of the output, or from the first byte after it that is kept."""
        end = size if limit is None else min(size, offset + limit)
        return b"".join(self.pieces(offset, end))

    def pieces(self, offset: int, end: int) -> Iterator[bytes]:
        """Go through what is kept between two offsets."""
        while offset < end:
            if KEPT_HEAD_BYTES <= offset < self.size - KEPT_TAIL_BYTES:
                offset = self.size - KEPT_TAIL_BYTES
                continue
            place, room = _place(offset)
            data = os.pread(self._descriptor, min(room, end - offset, _PIECE_BYTES), place)
            if not data:
                return
            offset += len(data)
            yield data

    def put_in_order(self) -> None:
        """Have a named file read from its beginning to its end, once the command is over.

        Raises:
            OSError: There is no room for that; the file stays as it is.
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
        """Give the file up."""
        os.close(self._descriptor)


def _place(offset: int) -> tuple[int, int]:
    """Tell where in the file a byte of the output stands, and how many follow it there."""
    if offset < KEPT_HEAD_BYTES:
        return offset, KEPT_HEAD_BYTES - offset
    turn = (offset - KEPT_HEAD_BYTES) % KEPT_TAIL_BYTES
    return KEPT_HEAD_BYTES + turn, KEPT_TAIL_BYTES - turn
