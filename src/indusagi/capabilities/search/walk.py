"""Walk a directory tree through directory handles, so that symbolic links can't lead elsewhere.

We open each directory relative to its parent with `O_NOFOLLOW`
(https://man7.org/linux/man-pages/man2/openat.2.html), and so never enter a directory that turns into a link mid-walk.
"""

from __future__ import annotations

import errno
import os
from contextlib import asynccontextmanager, contextmanager
from threading import Event, Lock
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

from anyio import to_thread

from indusagi.capabilities.files.paths.ignore import REPOSITORY
from indusagi.capabilities.files.paths.policy import default_protected_paths
from indusagi.capabilities.files.text.lines import format_path, join_path
from indusagi.capabilities.ports import FileKind, PathRefused
from indusagi.core.app_dirs import is_within, parts_below
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Sequence

    from indusagi.capabilities.files.paths.ignore import IgnoreRules
    from indusagi.capabilities.ports import Fs

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


class WalkEntry(NamedTuple):
    """One entry of a directory in the tree."""

    entry: os.DirEntry[str]
    above: str
    """Path of the parent directory, with a trailing slash."""
    is_dir: bool
    rules: IgnoreRules | None
    """Ignore rules of the parent directory; None to ignore nothing."""
    handle: int
    """Handle of the parent directory, open until the walk continues."""

    @property
    def path(self) -> str:
        """Path relative to the root of the walk."""
        return self.above + self.entry.name

    def is_file(self) -> bool:
        """Return whether it's a regular file."""
        try:
            return self.entry.is_file(follow_symlinks=False)
        except OSError:  # removed in the meantime, on a system without d_type
            return False

    def is_ignored(self) -> bool:
        """Return whether the ignore rules exclude it."""
        return self.rules is not None and self.rules.ignores(self.entry.name, is_dir=self.is_dir)


class DirListing:
    """A directory in the tree and its entries."""

    __slots__ = ("_is_resolved", "_name", "_rules", "above", "entries", "handle")

    def __init__(
        self, above: str, rules: IgnoreRules | None, handle: int, entries: Sequence[os.DirEntry[str]], name: str | None
    ) -> None:
        self.above = above
        """Its path, with a trailing slash."""
        self.handle = handle
        self.entries = entries
        self._rules = rules
        self._is_resolved = name is None or rules is None
        self._name = name or ""

    @property
    def names(self) -> list[str]:
        """The names of its entries."""
        return [entry.name for entry in self.entries]

    @property
    def rules(self) -> IgnoreRules | None:
        """The rules for this directory, loaded lazily because most directories don't need them."""
        if not self._is_resolved and self._rules is not None:
            self._rules = self._rules.below(self._name, self.handle, self.names)
            self._is_resolved = True
        return self._rules

    def to_walk_entry(self, entry: os.DirEntry[str]) -> WalkEntry:
        """Return one of its entries with its path and rules."""
        return WalkEntry(entry, self.above, is_dir(entry), self.rules, self.handle)

    def hide(self, is_hidden: Callable[[str], bool]) -> None:
        """Remove entries by name. Removed rule files still apply."""
        _ = self.rules
        self.entries = [entry for entry in self.entries if not is_hidden(entry.name)]


class Walk:
    """The entries of a directory tree, excluding `.git`.

    `enters` decides which directories to descend into; by default, the ones that aren't ignored. We never follow links
    to directories. `listings` yields whole directories and is faster; iteration yields single entries, sorted by name.
    """

    def __init__(
        self,
        handle: int,
        rules: IgnoreRules | None,
        *,
        hidden: bool = True,
        enters: Callable[[WalkEntry], bool] | None = None,
    ) -> None:
        self.unreadable: list[str] = []
        self.skipped = 0
        """Number of directories not entered."""
        self._handle = handle
        self._rules = rules
        self._hidden = hidden
        self._enters = enters

    def listings(self) -> Iterator[DirListing]:
        """Yield each directory; its handle stays open until you request the next one."""
        stack: list[tuple[DirListing, Iterator[os.DirEntry[str]]]] = []
        try:
            listing = self._list("", self._rules, os.dup(self._handle))
            stack.append((listing, _directories_of(listing)))
            yield listing
            while stack:
                listing, rest = stack[-1]
                entry = next(rest, None)
                if entry is None:
                    os.close(stack.pop()[0].handle)
                    continue
                entered = self._enter(len(stack), listing, entry)
                if entered is not None:
                    stack.append((entered, _directories_of(entered)))
                    yield entered
        finally:
            for listing, _ in stack:
                os.close(listing.handle)

    def __iter__(self) -> Iterator[WalkEntry]:
        stack: list[tuple[DirListing, Iterator[os.DirEntry[str]]]] = []
        try:
            listing = self._list("", self._rules, os.dup(self._handle))
            stack.append((listing, _sort_entries(listing)))
            while stack:
                listing, rest = stack[-1]
                entry = next(rest, None)
                if entry is None:
                    os.close(stack.pop()[0].handle)
                    continue
                walk_entry = listing.to_walk_entry(entry)
                yield walk_entry
                entered = self._enter(len(stack), listing, entry) if walk_entry.is_dir else None
                if entered is not None:
                    stack.append((entered, _sort_entries(entered)))
        finally:
            for listing, _ in stack:
                os.close(listing.handle)

    def _enter(self, depth: int, listing: DirListing, entry: os.DirEntry[str]) -> DirListing | None:
        name, rules = entry.name, listing.rules
        if self._enters is None:
            enters = rules is None or not rules.ignores(name, is_dir=True)
        else:
            enters = self._enters(listing.to_walk_entry(entry))
        if not enters:
            self.skipped += 1
            return None
        try:
            if depth < _MAX_DEPTH:
                handle = os.open(name, _DIRECTORY, dir_fd=listing.handle)
                return self._list(f"{listing.above}{name}/", rules, handle, name)
        except OSError:  # removed in the meantime, or unreadable
            pass
        self.unreadable.append(f"{listing.above}{name}")
        return None

    def _list(self, above: str, rules: IgnoreRules | None, handle: int, name: str | None = None) -> DirListing:
        """List a directory; closes the handle on failure."""
        try:
            with os.scandir(handle) as entries:
                listing = DirListing(above, rules, handle, list(entries), name)
        except OSError:
            os.close(handle)
            raise
        if not self._hidden or any(entry.name == REPOSITORY for entry in listing.entries):
            listing.hide(lambda name: name == REPOSITORY or (not self._hidden and name.startswith(".")))
        return listing


def _sort_entries(listing: DirListing) -> Iterator[os.DirEntry[str]]:
    return iter(sorted(listing.entries, key=lambda entry: os.fsencode(entry.name)))


def _directories_of(listing: DirListing) -> Iterator[os.DirEntry[str]]:
    return iter([entry for entry in listing.entries if is_dir(entry)])


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
    elsewhere if someone replaces a directory along the way.

    Raises:
        OSError: The target doesn't exist, isn't allowed, or is neither a directory nor a regular file.
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

    Args:
        fs: The file system, which decides about each path.
        folder: The directory to search, absolute, with links resolved.
        root: The working directory, also absolute and resolved.
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
