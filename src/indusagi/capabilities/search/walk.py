"""Walk a directory tree through directory handles, so that symbolic links can't lead elsewhere.

We open each directory relative to its parent with `O_NOFOLLOW`
(https://man7.org/linux/man-pages/man2/openat.2.html), and so never enter a directory that turns into a link mid-walk.
"""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncGenerator, Collection, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from threading import Event, Lock
from typing import BinaryIO, NamedTuple

from anyio import to_thread

from indusagi.capabilities.files.ignore import REPOSITORY, IgnoreRules
from indusagi.capabilities.files.lines import format_path, join_path
from indusagi.capabilities.files.policy import default_protected_paths
from indusagi.capabilities.ports import FileKind, Fs, PathRefused
from indusagi.core.app_dirs import is_within, parts_below
from indusagi.core.records import record

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_DEPTH = 200
"""Each level keeps a handle open, and handles are limited."""


class DirHandle:
    """A duplicated directory handle for a worker thread that the caller may abandon; the last user closes it.

    The caller calls `abandon` when it stops waiting. A thread that's already running closes the handle when done; one
    that isn't never starts its work.
    """

    def __init__(self, handle: int) -> None:
        self.abandoned = Event()
        self._handle = os.dup(handle)
        self._lock = Lock()
        self._in_use = False

    def abandon(self) -> None:
        """Tell the thread to finish soon."""
        with self._lock:
            self.abandoned.set()
            if not self._in_use:
                self._in_use = True
                os.close(self._handle)

    @contextmanager
    def use(self) -> Generator[int | None]:
        """Use the handle in the thread; yields None if it was abandoned before."""
        with self._lock:
            is_first, self._in_use = not self._in_use, True
        try:
            yield self._handle if is_first else None
        finally:
            if is_first:
                os.close(self._handle)


class DirListing(NamedTuple):
    """A directory in the tree and its entries."""

    above: str
    """Its path, with a trailing slash."""
    entries: list[os.DirEntry[str]]
    rules: IgnoreRules | None
    """Its ignore rules; None to ignore nothing."""
    handle: int
    """Open until the walk continues."""

    def ignores(self, entry: os.DirEntry[str]) -> bool:
        """Return whether the ignore rules exclude an entry."""
        return self.rules is not None and self.rules.ignores(entry.name, is_dir=is_dir(entry))


class Walk:
    """The directories of a tree, excluding `.git`.

    Descends into directories that are neither ignored nor in `secrets`, and never follows links.
    """

    def __init__(
        self, handle: int, rules: IgnoreRules | None, *, hidden: bool = True, secrets: Collection[str] = ()
    ) -> None:
        self.unreadable: list[str] = []
        self.ignored = 0
        """Number of directories not entered because of the ignore rules."""
        self._handle = handle
        self._rules = rules
        self._hidden = hidden
        self._secrets = secrets

    def listings(self) -> Iterator[DirListing]:
        """Yield each directory; its handle stays open until you request the next one."""
        stack: list[tuple[DirListing, Iterator[os.DirEntry[str]]]] = []
        entered: DirListing | None = self._list("", os.dup(self._handle), self._rules)
        try:
            while entered is not None or stack:
                if entered is not None:
                    stack.append((entered, iter([entry for entry in entered.entries if is_dir(entry)])))
                    yield entered
                listing, folders = stack[-1]
                entry, entered = next(folders, None), None
                if entry is None:
                    os.close(stack.pop()[0].handle)
                else:
                    entered = self._enter(len(stack), listing, entry)
        finally:
            for listing, _ in stack:
                os.close(listing.handle)

    def _enter(self, depth: int, listing: DirListing, entry: os.DirEntry[str]) -> DirListing | None:
        path = listing.above + entry.name
        if path in self._secrets:
            return None
        if listing.ignores(entry):
            self.ignored += 1
            return None
        try:
            if depth < _MAX_DEPTH:
                handle = os.open(entry.name, _DIRECTORY, dir_fd=listing.handle)
                return self._list(f"{path}/", handle, listing.rules, entry.name)
        except OSError:  # removed in the meantime, or unreadable
            pass
        self.unreadable.append(path)
        return None

    def _list(self, above: str, handle: int, rules: IgnoreRules | None, name: str = "") -> DirListing:
        """List a directory; closes the handle on failure."""
        try:
            with os.scandir(handle) as entries:
                listed = list(entries)
        except OSError:
            os.close(handle)
            raise
        if rules is not None and name:
            rules = rules.below(name, handle, {entry.name for entry in listed})
        shown = [
            entry for entry in listed if entry.name != REPOSITORY and (self._hidden or not entry.name.startswith("."))
        ]
        return DirListing(above, shown, rules, handle)


def is_dir(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is itself a directory, not a link to one."""
    try:
        return entry.is_dir(follow_symlinks=False)
    except OSError:  # removed in the meantime, on a system without d_type
        return False


# -- target -----------------------------------------------------------------------------------


@record
class SearchTarget:
    """A file or directory to search, and how the search program reaches it."""

    shown: str
    """Absolute path, with links resolved."""
    handle: int
    cwd: str
    path: str
    """The path to pass to the program."""
    is_file: bool


@asynccontextmanager
async def open_target(fs: Fs, path: str) -> AsyncGenerator[SearchTarget]:
    """Open the target of a search, so that the program searches exactly what `fs` admitted.

    If `/proc` exists, the program reaches the target through our handle. Otherwise it uses the path, and may end up
    elsewhere if someone replaces a directory along the way. Raises `OSError` if the target doesn't exist, isn't
    allowed, or is neither a directory nor a regular file.
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
    """A duplicated file handle. Once closed, it can't be acquired any more."""

    def __init__(self) -> None:
        self.handle = -1
        self._lock = Lock()
        self._is_closed = False

    def take(self, file: BinaryIO) -> None:
        """Duplicate the handle of `file`, in the thread that opened it."""
        with self._lock:
            if not self._is_closed:
                self.handle = os.dup(file.fileno())

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            if self.handle >= 0:
                os.close(self.handle)


async def find_secrets_below(fs: Fs, folder: str, root: str) -> tuple[str, ...]:
    """List the protected paths in a directory, relative to it, except the ones the user allowed.

    `folder` and the working directory `root` are absolute, with links resolved.
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
    """Yield a notice listing the protected paths, relative to the user's directory."""
    if secrets:
        names = ", ".join(join_path(base, format_path(path)) for path in secrets)
        kept = "credentials, or what indus keeps for itself"
        yield f"[Not looked into, for there are {kept}: {names}.]"
