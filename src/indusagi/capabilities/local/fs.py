"""Local files: the default implementation of the `Fs` port.

We resolve a path including its links, and the policy picks the base directory it may be opened from. From there we open
it component by component without following links (openat(2)). If a link
appears in between, we start over; it never leads out of the workspace. Without a policy, the workspace is the whole
machine.

We only open regular files: a pipe or device could block a tool or feed it forever.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import BinaryIO, TypeVar

from anyio import to_thread

from indusagi.capabilities.files.atomic_write import require_regular_file, write_atomically
from indusagi.capabilities.files.policy import DirFdPath, PathPolicy, SymlinkError, open_at, open_directory, real_path
from indusagi.capabilities.ports import DirEntry, FileKind, FileStat, Folder, PathRefused, WorkT
from indusagi.core.app_dirs import parts_below, sort_in_chunks
from indusagi.core.tasks import run_shielded

LARGEST_READ = 128 * 1024 * 1024
"""Maximum size of one read; for a larger file, read a part or scan it with `reading`."""
_CHUNK_BYTES = 1024 * 1024
_LARGEST_OFFSET = 2**63 - 1
_ATTEMPTS = 10
"""How often to resolve a path again because a link appeared before we opened it."""
_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
"""`stat` errors for a missing path."""
T = TypeVar("T")


class ResolvedPath(str):
    """A path that `LocalFs.resolve` has already checked for writing, so later operations don't have to.

    If a link appears along the way, opening the path detects it and treats it as an ordinary path again.
    """

    __slots__ = ("base", "policy")
    base: str
    policy: PathPolicy | None


class LocalFs:
    """Local files. Relative paths start at `cwd`, and `policy` restricts access."""

    def __init__(self, cwd: str, policy: PathPolicy | None = None) -> None:
        self._cwd = cwd
        self._policy = policy
        self._rooted: PathPolicy | None = None

    def under(self, change: Callable[[PathPolicy], PathPolicy]) -> LocalFs:
        """Return the same files with a modified policy, or `self` if there's no policy.

        The resolved workspace stays the same.
        """
        if self._policy is None:
            return self
        changed = LocalFs(self._cwd, change(self._rooted or self._policy))
        if self._rooted is not None:
            changed._rooted = changed._policy
        return changed

    async def stat(self, path: str, *, follow: bool = True) -> FileStat:
        """Stat a path. A dangling link counts as missing unless `follow` is off."""
        read = DirFdPath.stat if follow else DirFdPath.lstat
        status = await to_thread.run_sync(partial(self._at, path, read, follow=follow))
        mode = stat.S_IMODE(status.st_mode)
        return FileStat(kind=_kind(status.st_mode), size=status.st_size, mode=mode, mtime_ns=status.st_mtime_ns)

    async def exists(self, path: str) -> bool:
        """Return whether `stat` finds the path; raise if a directory isn't searchable."""
        try:
            await self.stat(path)
        except OSError as exc:
            if exc.errno in _NOWHERE:
                return False
            raise
        return True

    async def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> bytes:
        """Read up to `limit` bytes of a regular file from `offset`, and at most `LARGEST_READ`."""
        if not 0 <= offset <= _LARGEST_OFFSET or (limit is not None and limit < 0):
            raise OSError(errno.EINVAL, f"no such part: offset {offset}, limit {limit}", path)
        return await to_thread.run_sync(self._read, path, offset, limit)

    async def resolve(self, path: str, *, writing: bool = False) -> str:
        """Return the absolute path with links resolved as far as it exists, if the policy allows it."""
        base, resolved = await to_thread.run_sync(
            lambda: self._locate(path, lambda base, resolved: (base, resolved), writing=writing)
        )
        if not writing:
            return resolved
        checked = ResolvedPath(resolved)
        checked.base, checked.policy = base, self._rooted
        return checked

    async def reading(self, path: str, work: Callable[[BinaryIO], WorkT]) -> WorkT:
        """Open a regular file and run `work` on it in a thread, so that all reads see the same version.

        If cancelled, returns immediately; the thread closes the file after `work`.
        """

        def open_and_work() -> WorkT:
            with os.fdopen(self._at(path, partial(_open, given=path)), "rb") as file:
                return work(file)

        return await to_thread.run_sync(open_and_work, abandon_on_cancel=True)

    async def folder(self, path: str) -> Folder:
        """Open a directory; the caller closes it."""
        opening = to_thread.run_sync(lambda: self._at(path, lambda target: Folder(target.path, target.open_folder())))
        return await run_shielded(opening, "open a folder", _close)

    async def read_text(self, path: str) -> str:
        """Read a whole file as strict UTF-8."""
        data = await self.read_bytes(path)
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as exc:
            raise OSError(errno.EILSEQ, f"not UTF-8 at byte {exc.start}", path) from exc

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Create or replace a file atomically: readers see the old content or the new.

        Preserves the owner, group, mode and extended attributes if the system permits, and otherwise narrows the mode
        so that no other user gains access. Other hard links keep the old content. If we can't create files in the
        directory, we write in place: readers may then see partial content, and a failure may leave it behind. In that
        case we refuse to write to a file with several hard links.
        """
        try:
            content = data.encode("utf-8") if isinstance(data, str) else data
        except UnicodeEncodeError as exc:
            message = f"half a surrogate pair at character {exc.start} is not text"
            raise OSError(errno.EILSEQ, message, path) from exc
        put = partial(write_atomically, data=content, given=path)
        await _run_to_end(partial(self._at, path, put, writing=True))

    async def mkdir(self, path: str) -> None:
        """Create a directory and any missing parents; it may already exist."""
        await _run_to_end(partial(self._make, path))

    async def readdir(self, path: str) -> Sequence[DirEntry]:
        """List a directory, sorted by name."""
        return await to_thread.run_sync(partial(self._at, path, _list), abandon_on_cancel=True)

    async def rm(self, path: str) -> None:
        """Remove a file, a link or an empty directory."""
        await _run_to_end(partial(self._at, path, _remove, writing=True, follow=False))

    def _resolve(self, path: str, *, writing: bool = False, follow: bool = True) -> tuple[str, str]:
        """Return the base directory the policy opens a path from, and the resolved path."""
        if isinstance(path, ResolvedPath) and path.policy is self._rooted and follow:
            return path.base, path
        # The system calls would raise ValueError, but the port promises OSError.
        try:
            is_valid = b"\0" not in os.fsencode(path)
        except UnicodeEncodeError:
            is_valid = False
        if not is_valid:
            raise OSError(errno.EINVAL, "a path cannot hold such characters", path)
        joined = os.path.join(self._cwd, path)
        folder, name = os.path.split(joined.rstrip(os.sep))
        if follow or name in {"", os.curdir, os.pardir}:
            resolved = real_path(joined)
        else:
            resolved = os.path.join(real_path(folder), name)
        if self._policy is None:
            return os.sep, resolved
        if self._rooted is None:
            # Resolve once: changing a link later doesn't move the workspace.
            self._rooted = replace(self._policy, roots=tuple(real_path(root) for root in self._policy.roots))
        return self._rooted.find_base(path, resolved, writing=writing), resolved

    def _locate(self, path: str, work: Callable[[str, str], T], **how: bool) -> T:
        """Run `work` with the base and resolved path, retrying while links appear along the way.

        Errors report the resolved path rather than a temporary file or part of the path.
        """
        for attempt in range(_ATTEMPTS, 0, -1):
            resolved = ""
            try:
                base, resolved = self._resolve(path, **how)
                return work(base, resolved)
            except SymlinkError as exc:
                path = str(path)
                if attempt == 1:
                    raise SymlinkError(resolved or str(exc.filename)) from exc
            except PathRefused:
                raise
            except OSError as exc:
                raise OSError(exc.errno, exc.strerror, resolved or exc.filename) from exc
        raise AssertionError("the last attempt returns or raises")

    def _at(self, path: str, work: Callable[[DirFdPath], T], **how: bool) -> T:
        """Run `work` on a path while holding its directory open."""

        def open_parent(base: str, resolved: str) -> T:
            with open_at(base, parts_below(resolved, base), resolved) as target:
                return work(target)

        return self._locate(path, open_parent, **how)

    def _read(self, path: str, offset: int, limit: int | None) -> bytes:
        handle = self._at(path, partial(_open, given=path))
        try:
            wanted = os.fstat(handle).st_size - offset
            if (wanted if limit is None else min(wanted, limit)) > LARGEST_READ:
                raise _too_large(path, wanted)
            # We can't rely on the size: files may grow, and files in /proc have size 0.
            left = LARGEST_READ + 1 if limit is None else min(limit, LARGEST_READ + 1)
            chunks: list[bytes] = []
            while left > 0 and (chunk := os.pread(handle, min(left, _CHUNK_BYTES), offset)):
                chunks.append(chunk)
                offset += len(chunk)
                left -= len(chunk)
            if left <= 0 and (limit is None or limit > LARGEST_READ):
                raise _too_large(path, LARGEST_READ + 1)
            return b"".join(chunks)
        finally:
            os.close(handle)

    def _make(self, path: str) -> None:
        def make(base: str, resolved: str) -> None:
            parts = parts_below(resolved, base)
            try:
                os.close(open_directory(base, parts))
            except FileNotFoundError:
                os.close(open_directory(base, parts, create=True))

        self._locate(path, make, writing=True)


async def _run_to_end(change: Callable[[], None]) -> None:
    # Returning early would release the lock of the file while we're still writing it.
    await run_shielded(to_thread.run_sync(change), "change a file")


def _open(target: DirFdPath, given: str) -> int:
    """Open a regular file for reading."""
    # Check before opening, because opening and closing a pipe breaks it for a waiting writer (SIGPIPE), and after,
    # because the file may have been replaced.
    require_regular_file(target.stat(), given, target.path)
    handle = target.open(os.O_RDONLY)
    try:
        require_regular_file(os.fstat(handle), given, target.path)
    except OSError:
        os.close(handle)
        raise
    return handle


async def _close(folder: Folder) -> None:
    with folder:
        pass


def _too_large(path: str, size: int) -> OSError:
    message = f"{size:,} bytes are too many to be read at once: read a part of them"
    return OSError(errno.EFBIG, message, path)


def _kind(mode: int) -> FileKind:
    if stat.S_ISREG(mode):
        return FileKind.FILE
    if stat.S_ISDIR(mode):
        return FileKind.DIRECTORY
    return FileKind.SYMLINK if stat.S_ISLNK(mode) else FileKind.OTHER


def _list(target: DirFdPath) -> tuple[DirEntry, ...]:
    handle = target.open_folder()
    try:
        listed: list[DirEntry] = []
        with os.scandir(handle) as entries:
            for entry in entries:
                size = link = None
                try:
                    status = entry.stat(follow_symlinks=False)
                    kind = _kind(status.st_mode)
                    size = status.st_size if kind is FileKind.FILE else None
                    link = os.readlink(entry.name, dir_fd=handle) if entry.is_symlink() else None
                except OSError:  # removed in the meantime, or not searchable: we still have the name
                    is_dir, is_file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
                    mode = stat.S_IFDIR if is_dir else stat.S_IFREG if is_file else 0
                    kind = _kind(stat.S_IFLNK if entry.is_symlink() else mode)
                listed.append(DirEntry(entry.name, kind, size, link))
    finally:
        os.close(handle)
    return tuple(sort_in_chunks(listed, attrgetter("name")))


def _remove(target: DirFdPath) -> None:
    if stat.S_ISDIR(target.lstat().st_mode):
        os.rmdir(target.name, dir_fd=target.folder)
    else:
        os.unlink(target.name, dir_fd=target.folder)
