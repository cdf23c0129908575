"""Standard error of a program that serves: nobody may read it, and it goes on all the same.

A pipe that nobody reads is full after a while, and whoever writes to it then waits for ever. So one
thread writes, and the others leave their lines with it. As long as that goes quickly they wait for
their line to be out: what was said before an answer is there before the answer.
"""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

_MOST_CHARACTERS = 256 * 1024
"""Of lines that wait to be written. What comes beyond is counted and dropped."""
_QUICK_S = 0.02
_LAST_S = 0.5
"""How long the end waits for the last lines to be read."""


class NonBlockingStderr(io.TextIOBase):
    """A stream of lines that another thread writes to a descriptor."""

    def __init__(self, descriptor: int, encoding: str) -> None:
        self._descriptor = descriptor
        self._encoding = encoding
        self._changed = threading.Condition()
        self._lines: list[str] = []
        self._characters = 0
        self._dropped = 0
        self._part = ""
        self._writing = False
        self._is_quick = True
        self._is_over = False
        self._thread = threading.Thread(target=self._write_all, daemon=True, name="standard error")
        self._thread.start()

    def writable(self) -> bool:
        """Say so."""
        return True

    def fileno(self) -> int:
        """Give the descriptor."""
        return self._descriptor

    def isatty(self) -> bool:
        """Tell whether a person may be reading it."""
        return os.isatty(self._descriptor)

    def write(self, text: str) -> int:
        """Leave text to be written, whole lines of it; never waits for a reader."""
        with self._changed:
            *lines, self._part = (self._part + text).split("\n")
            for line in lines:
                self._take(f"{line}\n")
            if len(self._part) > _MOST_CHARACTERS:
                self._part = ""
                self._dropped += 1
            if lines:
                self._changed.notify_all()
                # A reader who was slow once is not waited for again until all is read.
                self._is_quick = self._is_quick and self._is_out_within(_QUICK_S)
        return len(text)

    def out_within(self, seconds: float) -> bool:
        """Wait until everything is written; False if nobody reads it."""
        with self._changed:
            return self._is_out_within(seconds)

    def end(self) -> None:
        """Let the thread go, once everything is written."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def _is_out_within(self, seconds: float) -> bool:
        return self._changed.wait_for(lambda: not self._lines and not self._writing, seconds)

    def _take(self, line: str) -> None:
        if self._characters + len(line) > _MOST_CHARACTERS:
            self._dropped += 1
            return
        self._lines.append(line)
        self._characters += len(line)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_over)
                if not self._lines:
                    return
                text, self._characters = "".join(self._lines), 0
                dropped, self._dropped = self._dropped, 0
                self._lines.clear()
                self._writing = True
            if dropped:
                text += f"indus: {dropped:,} lines were dropped: nobody read standard error\n"
            self._put(text.encode(self._encoding, "backslashreplace"))
            with self._changed:
                self._writing = False
                self._is_quick = True
                self._changed.notify_all()

    def _put(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # somebody who shares it wants it so
                select.select([], [self._descriptor], [])
            except OSError:
                return  # the reader has left: what would be said is said to nobody


@contextmanager
def non_blocking_stderr() -> Generator[None]:
    """Let nothing that is written to standard error wait for its reader, inside of the block.

    It stays so afterwards if there is something that nobody has read.
    """
    usual = sys.stderr
    if not isinstance(usual, io.TextIOWrapper):
        yield  # closed from the start, or a test that collects it
        return
    usual.flush()
    aside = NonBlockingStderr(usual.fileno(), usual.encoding)
    sys.stderr = aside
    try:
        yield
    finally:
        if aside.out_within(_LAST_S):
            sys.stderr = usual
            aside.end()


def flush_stderr(seconds: float) -> None:
    """Wait a moment for what was said to be out."""
    if isinstance(sys.stderr, NonBlockingStderr):
        sys.stderr.out_within(seconds)
