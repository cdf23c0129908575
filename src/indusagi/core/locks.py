"""Processes that take turns at a folder of ours: each waits for the others, but not for ever."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator

_LONGEST_WAIT_S = 10.0
_PAUSE_S = 0.02


@contextmanager
def locked_directory(folder: str) -> Generator[None]:
    """Have a folder to oneself among those that take turns; not for the event loop.

    The folder itself is the lock: no file is left beside those that are written.

    Raises:
        OSError: It cannot be opened, or another process holds it for too long.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _wait(handle, folder)
        yield
    finally:
        os.close(handle)


def _wait(handle: int, folder: str) -> None:
    deadline = time.monotonic() + _LONGEST_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                said = "it is held by another process: try again"
                raise TimeoutError(errno.ETIMEDOUT, said, folder) from None
        time.sleep(_PAUSE_S)
