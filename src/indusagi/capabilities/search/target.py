"""Where a search looks, held open: what the door has admitted is what is searched."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

from anyio import to_thread

from indusagi.capabilities.ports import FileKind

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.capabilities.ports import Fs


@dataclass(frozen=True, slots=True)
class Target:
    """A directory or a file, and how a program reaches it."""

    shown: str
    """Its path, absolute and with links followed."""
    handle: int
    cwd: str
    """Where the program is run."""
    path: str
    """What the program is given."""
    is_file: bool


@asynccontextmanager
async def opened_target(fs: Fs, path: str) -> AsyncGenerator[Target]:
    """Open what is to be searched.

    Where there is `/proc`, a program gets there by the handle. Elsewhere by the path, and whoever
    changes the directories on the way meanwhile decides where it leads.

    Raises:
        OSError: It is not there, is not admitted, or is neither a directory nor a regular file.
    """
    found = await fs.stat(path)
    if found.kind is FileKind.DIRECTORY:
        with await fs.folder(path) as folder:
            cwd = await _way(f"/proc/self/fd/{folder.handle}", folder.path)
            yield Target(folder.path, folder.handle, cwd, "./", is_file=False)
        return
    if found.kind is not FileKind.FILE:
        raise OSError(errno.ENOTSUP, "neither a directory nor a regular file", path)
    shown = await fs.resolve(path)
    held = _Held()
    try:
        await fs.reading(path, held.take)
        reached = await _way(f"/proc/{os.getpid()}/fd/{held.handle}", shown)
        yield Target(shown, held.handle, "/", reached, is_file=True)
    finally:
        held.close()


async def _way(by_handle: str, by_path: str) -> str:
    """Give the way by the handle, if it leads anywhere."""
    return by_handle if await to_thread.run_sync(os.path.exists, by_handle) else by_path


class _Held:
    """A handle that outlives the opening; whoever gives it up first does so for good."""

    def __init__(self) -> None:
        self.handle = -1
        self._lock = Lock()
        self._closed = False

    def take(self, file: BinaryIO) -> None:
        """Hold the file, in the thread that has opened it, unless nobody waits for it any more."""
        with self._lock:
            if not self._closed:
                self.handle = os.dup(file.fileno())

    def close(self) -> None:
        """Let go of it."""
        with self._lock:
            self._closed = True
            if self.handle >= 0:
                os.close(self.handle)
