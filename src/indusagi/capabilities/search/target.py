"""The file or directory a search looks into, held open, and the protected paths in it that are skipped."""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO

from anyio import to_thread

from indusagi.capabilities.files.paths.policy import default_protected_paths
from indusagi.capabilities.files.text.display import format_path, join_path
from indusagi.capabilities.ports import FileKind, PathRefused
from indusagi.core.paths import is_within, parts_below
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator, Sequence

    from indusagi.capabilities.ports import Fs


@record
class SearchTarget:
    """A directory or a file, and how a program reaches it."""

    shown: str
    """Its absolute path, with links resolved."""
    handle: int
    cwd: str
    """The working directory of the program."""
    path: str
    """The path the program is given."""
    is_file: bool


@asynccontextmanager
async def open_target(fs: Fs, path: str) -> AsyncGenerator[SearchTarget]:
    """Open the target of a search: what `fs` has admitted is what the program searches.

    Where `/proc` exists the program reaches the target by its handle. Elsewhere it uses the path, and a directory that
    is replaced meanwhile changes where it leads.

    Raises:
        OSError: The target is missing, is refused, or is neither a directory nor a regular file.
    """
    stat = await fs.stat(path)
    if stat.kind is FileKind.DIRECTORY:
        with await fs.folder(path) as folder:
            cwd = await _choose_path(f"/proc/self/fd/{folder.handle}", folder.path)
            yield SearchTarget(folder.path, folder.handle, cwd, "./", is_file=False)
        return
    if stat.kind is not FileKind.FILE:
        raise OSError(errno.ENOTSUP, "neither a directory nor a regular file", path)
    shown = await fs.resolve(path)
    file_handle = _FileHandle()
    try:
        await fs.reading(path, file_handle.take)
        reached = await _choose_path(f"/proc/{os.getpid()}/fd/{file_handle.handle}", shown)
        yield SearchTarget(shown, file_handle.handle, "/", reached, is_file=True)
    finally:
        file_handle.close()


async def _choose_path(by_handle: str, by_path: str) -> str:
    return by_handle if await to_thread.run_sync(os.path.exists, by_handle) else by_path


class _FileHandle:
    """A duplicated file handle; closing it before it is taken keeps it from being taken."""

    def __init__(self) -> None:
        self.handle = -1
        self._lock = Lock()
        self._is_closed = False

    def take(self, file: BinaryIO) -> None:
        """Duplicate the handle of `file`, in the thread that has opened it."""
        with self._lock:
            if not self._is_closed:
                self.handle = os.dup(file.fileno())

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self.handle >= 0:
                os.close(self.handle)


async def find_secrets_below(fs: Fs, folder: str, root: str) -> tuple[str, ...]:
    """List the protected paths in a directory, relative to it; paths the user has permitted are not among them.

    Args:
        fs: The file system, which is asked about each path.
        folder: The directory that is searched, absolute, with links resolved.
        root: The working directory, likewise.
    """
    protection = default_protected_paths()
    if not any(is_within(place, base) for place in protection.places for base in (folder, root)):
        return ()
    refused: list[str] = []
    for path in await to_thread.run_sync(_list_protected, folder, root):
        try:
            await fs.resolve(path)
        except PathRefused:
            refused.append("/".join(parts_below(path, folder)))
    return tuple(refused)


def _list_protected(folder: str, root: str) -> Sequence[str]:
    protection = default_protected_paths()
    paths = {*protection.hidden_below(folder), *protection.hidden_below(root)}
    return sorted(path for path in paths if path != folder and is_within(path, folder) and os.path.lexists(path))


def describe_secrets(secrets: Sequence[str], base: str) -> Iterator[str]:
    """Yield a notice that names the protected paths, relative to the user's directory."""
    if secrets:
        names = ", ".join(join_path(base, format_path(path)) for path in secrets)
        kept = "credentials, or what indus keeps for itself"
        yield f"[Not looked into, for there are {kept}: {names}.]"
