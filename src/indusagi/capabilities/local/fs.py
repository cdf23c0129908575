"""The files of this machine as a door for tools.

Every path goes one way: it is resolved, links followed; the policy says from which directory it may
be opened; and from there it is walked to without following any link. A link that somebody puts in
between sends the path back to its start, and never out of the workspace. Without a policy the whole
machine is the workspace.

Only regular files are opened, so a pipe or a device can neither hang a tool nor feed it without
end, nor lose what somebody waits to write into it.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import BinaryIO, TypeVar

from anyio import to_thread

from indusagi.capabilities.files.paths.atomic_write import errors_naming, require_regular_file, write_atomically
from indusagi.capabilities.files.paths.openat import (
    DirFdPath,
    SymlinkError,
    make_directories,
    open_at,
    open_directory,
    real_path,
)
from indusagi.capabilities.files.paths.policy import PathPolicy
from indusagi.capabilities.ports import DirEntry, FileKind, FileStat, Folder, WorkT
from indusagi.core.paths import parts_below
from indusagi.core.sorting import sort_in_chunks

LARGEST_READ = 128 * 1024 * 1024
"""Bytes that are read at once; of a larger file a part is read, or `reading` goes through it."""
_CHUNK_BYTES = 1024 * 1024
_LARGEST_OFFSET = 2**63 - 1
_ATTEMPTS = 10
"""How often a path is resolved anew because it changed before it was opened."""
_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
"""What `stat` says of a path at which nothing is, or can be."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Place:
    """A path that was resolved, and the directory from which the door opens it."""

    base: str
    path: str

    @property
    def parts(self) -> list[str]:
        return parts_below(self.path, self.base)


class LocalFs:
    """Files of this machine; a relative path starts at `cwd`, and a policy may bound them."""

    def __init__(self, cwd: str, policy: PathPolicy | None = None) -> None:
        self._cwd = cwd
        self._policy = policy
        self._rooted: PathPolicy | None = None

    def under(self, change: Callable[[PathPolicy], PathPolicy]) -> LocalFs:
        """Give the same door under the policy that `change` makes of its own; without one, itself.

        The workspace stays where it was found to be.
        """
        if self._policy is None:
            return self
        door = LocalFs(self._cwd, change(self._rooted or self._policy))
        if self._rooted is not None:
            door._rooted = door._policy
        return door

    async def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Look at a path; a dangling link is not found unless `follow` is off."""
        look = DirFdPath.stat if follow else DirFdPath.lstat
        found = await to_thread.run_sync(partial(self._at, path, look, follow=follow))
        return FileStat(
            kind=_kind(found.st_mode), size=found.st_size, mode=stat.S_IMODE(found.st_mode), mtime_ns=found.st_mtime_ns
        )

    async def exists(self, path: str) -> bool:
        """Tell whether `stat` would find something; where one may not look, that is an error."""
        try:
            await self.stat(path)
        except OSError as exc:
            if exc.errno in _NOWHERE:
                return False
            raise
        return True

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read a regular file from `offset`, `limit` bytes at most; nothing else is ever opened.

        More than `LARGEST_READ` bytes are not read at once.
        """
        if not 0 <= offset <= _LARGEST_OFFSET or (limit is not None and limit < 0):
            raise OSError(errno.EINVAL, f"no such part: offset {offset}, limit {limit}", path)
        return await to_thread.run_sync(self._read, path, offset, limit)

    async def resolve(self, path: str, *, writing: bool = False) -> str:
        """Give the absolute path that this one leads to, links followed, if the door opens there.

        What does not exist is resolved as far as it does.
        """
        found = partial(self._anew, path, lambda place: place.path, writing=writing)
        return await to_thread.run_sync(found)

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        """Open a regular file and do `work` on it in a thread: one opening, one version.

        A caller that is cancelled leaves at once; the thread closes the file after its work.
        """
        return await to_thread.run_sync(self._work_on, path, work, abandon_on_cancel=True)

    async def folder(self, path: str) -> Folder:
        """Open a directory; the caller closes it."""
        from indusagi.core.tasks import run_shielded  # noqa: PLC0415 — loaded wherever a loop runs

        opening = to_thread.run_sync(self._open_folder, path)
        return await run_shielded(opening, "open a folder", _close)

    async def read_text(self, path: str) -> str:
        """Read a whole file as strict UTF-8."""
        data = await self.read_bytes(path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise OSError(errno.EILSEQ, f"not UTF-8 at byte {exc.start}", path) from exc

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Replace or create a file in one step: a reader sees the old content or the new.

        Owner, group, mode and extended attributes stay where the system permits it; where the
        owner or the group cannot stay, the mode is narrowed so that nobody gains by it. Of a file
        with several names (hard links) the others keep the old content. In a directory that takes
        no new file it is written in place instead: a reader may then see a part of it, and a
        failure may leave a part behind; a file with other names is refused there.
        """
        try:
            content = data.encode("utf-8") if isinstance(data, str) else data
        except UnicodeEncodeError as exc:
            message = f"half a surrogate pair at character {exc.start} is not text"
            raise OSError(errno.EILSEQ, message, path) from exc
        put = partial(write_atomically, data=content, given=path)
        await _to_the_end(partial(self._at, path, put, writing=True))

    async def mkdir(self, path: str) -> None:
        """Make a directory and those above it; one that is there is fine."""
        await _to_the_end(partial(self._make, path))

    async def readdir(self, path: str) -> Sequence[DirEntry]:
        """List a directory, sorted by name."""
        return await to_thread.run_sync(partial(self._at, path, _list), abandon_on_cancel=True)

    async def rm(self, path: str) -> None:
        """Remove a file, a link or an empty directory."""
        await _to_the_end(partial(self._at, path, _remove, writing=True, follow=False))

    def _place(self, path: str, *, writing: bool = False, follow: bool = True) -> _Place:
        """Resolve a path and have the policy look at where it leads; the only way to anything."""
        joined = _joined(self._cwd, path)
        folder, name = os.path.split(joined.rstrip(os.sep))
        if follow or name in {"", os.curdir, os.pardir}:
            resolved = real_path(joined)
        else:
            resolved = os.path.join(real_path(folder), name)
        if self._policy is None:
            return _Place(os.sep, resolved)
        if self._rooted is None:
            # Once: a workspace does not move with a link that is changed later.
            roots = tuple(real_path(root) for root in self._policy.roots)
            self._rooted = replace(self._policy, roots=roots)
        return _Place(self._rooted.base_of(path, resolved, writing=writing), resolved)

    def _anew(self, path: str, work: Callable[[_Place], T], **how: bool) -> T:
        """Do `work` at the place a path leads to, once more when the place changed meanwhile."""
        for _ in range(_ATTEMPTS - 1):
            try:
                return self._once(path, work, **how)
            except SymlinkError:
                continue
        return self._once(path, work, **how)

    def _once(self, path: str, work: Callable[[_Place], T], **how: bool) -> T:
        place = self._place(path, **how)
        with errors_naming(place.path):
            return work(place)

    def _at(self, path: str, work: Callable[[DirFdPath], T], **how: bool) -> T:
        def there(place: _Place) -> T:
            with open_at(place.base, place.parts, place.path) as spot:
                return work(spot)

        return self._anew(path, there, **how)

    def _open(self, path: str) -> int:
        """Open a regular file to read in."""

        def opened(spot: DirFdPath) -> int:
            # Opening a pipe, even for a moment, would break it for a writer who waits at the
            # other end. Should there be one by now all the same: nobody waits for its writer.
            require_regular_file(spot.stat(), path, spot.path)
            handle = spot.open(os.O_RDONLY)
            try:
                require_regular_file(os.fstat(handle), path, spot.path)
            except OSError:
                os.close(handle)
                raise
            return handle

        return self._at(path, opened)

    def _read(self, path: str, offset: int, limit: int | None) -> bytes:
        handle = self._open(path)
        try:
            wanted = os.fstat(handle).st_size - offset
            if (wanted if limit is None else min(wanted, limit)) > LARGEST_READ:
                raise _too_large(path, wanted)
            return _contents(handle, path, offset, limit)
        finally:
            os.close(handle)

    def _work_on(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        with os.fdopen(self._open(path), "rb") as file:
            return work(file)

    def _open_folder(self, path: str) -> Folder:
        return self._at(path, lambda spot: Folder(spot.path, spot.open_folder()))

    def _make(self, path: str) -> None:
        def made(place: _Place) -> None:
            try:
                os.close(open_directory(place.base, place.parts))
            except FileNotFoundError:
                make_directories(place.base, place.parts)

        self._anew(path, made, writing=True)


def _joined(cwd: str, path: str) -> str:
    # The system calls would answer with a ValueError: a door answers with an OSError.
    try:
        usable = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        usable = False
    if not usable:
        raise OSError(errno.EINVAL, "a path cannot hold such characters", path)
    return os.path.join(cwd, path)


async def _to_the_end(change: Callable[[], None]) -> None:
    # A caller that left before the end would let go of the file's lock while it is written.
    from indusagi.core.tasks import run_shielded  # noqa: PLC0415 — loaded wherever a loop runs

    await run_shielded(to_thread.run_sync(change), "change a file")


async def _close(folder: Folder) -> None:
    with folder:
        pass


def _too_large(path: str, size: int) -> OSError:
    message = f"{size:,} bytes are too many to be read at once: read a part of them"
    return OSError(errno.EFBIG, message, path)


def _contents(handle: int, path: str, offset: int, limit: int | None) -> bytes:
    # The size does not bound what is read: a file may grow meanwhile, and some have none.
    left = LARGEST_READ + 1 if limit is None else min(limit, LARGEST_READ + 1)
    chunks: list[bytes] = []
    while left > 0:
        chunk = os.pread(handle, min(left, _CHUNK_BYTES), offset)
        if not chunk:
            return b"".join(chunks)
        chunks.append(chunk)
        offset += len(chunk)
        left -= len(chunk)
    if limit is None or limit > LARGEST_READ:
        raise _too_large(path, LARGEST_READ + 1)
    return b"".join(chunks)


def _kind(mode: int) -> FileKind:
    if stat.S_ISREG(mode):
        return FileKind.FILE
    if stat.S_ISDIR(mode):
        return FileKind.DIRECTORY
    return FileKind.SYMLINK if stat.S_ISLNK(mode) else FileKind.OTHER


def _list(spot: DirFdPath) -> tuple[DirEntry, ...]:
    handle = spot.open_folder()
    try:
        with os.scandir(handle) as entries:
            found = [_entry(entry, handle) for entry in entries]
    finally:
        os.close(handle)
    return tuple(sort_in_chunks(found, attrgetter("name")))


def _entry(entry: os.DirEntry[str], folder: int) -> DirEntry:
    try:
        seen = entry.stat(follow_symlinks=False)
        target = os.readlink(entry.name, dir_fd=folder) if entry.is_symlink() else None
    except OSError:  # gone meanwhile, or closed to us: the name is known all the same
        return DirEntry(entry.name, _entry_kind(entry))
    kind = _kind(seen.st_mode)
    size = seen.st_size if kind is FileKind.FILE else None
    return DirEntry(entry.name, kind, size, target)


def _entry_kind(entry: os.DirEntry[str]) -> FileKind:
    if entry.is_symlink():
        return FileKind.SYMLINK
    if entry.is_dir(follow_symlinks=False):
        return FileKind.DIRECTORY
    return FileKind.FILE if entry.is_file(follow_symlinks=False) else FileKind.OTHER


def _remove(spot: DirFdPath) -> None:
    if stat.S_ISDIR(spot.lstat().st_mode):
        os.rmdir(spot.name, dir_fd=spot.folder)
    else:
        os.unlink(spot.name, dir_fd=spot.folder)
