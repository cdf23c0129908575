"""Entries of a directory tree: files, symbolic links and directories, with what restores them.

An image holds everything that a path is: its kind, its permission bits and its bytes, or the text of its link. Images
are read and put back through the `Fs` port, so that a path outside of its policy is refused.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from anyio import to_thread

from indusagi.capabilities.ports import FileKind, PathRefused
from indusagi.core.app_dirs import create_private_file
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.capabilities.ports import FileStat, Fs

LARGEST_FILE = 20 * 1024 * 1024
"""Bytes of the largest file whose content is copied."""
CONTENT_BUDGET = 64 * 1024 * 1024
"""Bytes that one snapshot copies."""
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
_ANY_WRITE = 0o222
Signature: TypeAlias = tuple[int, int, int, int, int]
"""Size, modification and change time, inode and mode: equal for a file that was not written meanwhile."""


class TreeEntry(NamedTuple):
    """One path of a snapshot; a tuple, because tens of thousands of them are compared after every command."""

    kind: FileKind
    mode: int
    """The permission bits; 0 for a link, which has none."""
    key: str
    """The name of the content in the store of the snapshot; empty for a directory."""


@record
class LeftOut:
    """A file whose content a snapshot does not hold."""

    reason: str
    signature: Signature


@record(kw_only=True)
class TreeScan:
    """The state of a tree at one time. Paths are relative to it."""

    entries: Mapping[str, TreeEntry]
    left_out: Mapping[str, LeftOut]
    notes: tuple[str, ...] = ()
    """What is not covered, for people."""
    id: str = ""
    """The name of the git tree; empty without git."""


@record
class FileImage:
    """What a path is: kind, content and permission bits. The content of a link is its text."""

    kind: FileKind
    content: bytes = b""
    mode: int | None = None
    """None: unknown, so that a restore leaves it as it is."""


def read_signature(status: os.stat_result) -> Signature:
    """Return the signature of a file."""
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)


def scan_folder(root: str, relative: str) -> Iterable[tuple[str, os.DirEntry[str]]]:
    """List the relative paths in one directory; an unreadable or absent one is empty."""
    try:
        with os.scandir(os.path.join(root, relative)) as found:
            listed = list(found)
    except OSError:
        return ()
    return [(f"{relative}/{entry.name}" if relative else entry.name, entry) for entry in listed]


def store_content(folder: str, content: bytes) -> str:
    """Store a content under its SHA-256 in a private directory, and return that.

    The file is renamed into place and not synced: after a power failure a content may be damaged, which its digest
    shows.

    Raises:
        OSError: It cannot be written.
    """
    digest = hashlib.sha256(content).hexdigest()
    path = os.path.join(folder, digest)
    if os.path.exists(path):
        return digest
    temporary = f"{path}.{os.urandom(8).hex()}.tmp"
    try:
        with os.fdopen(create_private_file(temporary), "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    return digest


# -- images through the `Fs` port -----------------------------------------------------------------


async def read_image(path: str, fs: Fs) -> FileImage | None:
    """Read what an absolute path is; None if it is absent.

    Raises:
        OSError: It is unreadable, too large, or a pipe, a socket or a device.
    """
    status = await _stat(path, fs)
    if status is None:
        return None
    if status.kind is FileKind.SYMLINK:
        name = os.path.basename(path)
        with await fs.folder(os.path.dirname(path)) as folder:
            target = await to_thread.run_sync(partial(os.readlink, name, dir_fd=folder.handle))
        return FileImage(FileKind.SYMLINK, os.fsencode(target), 0)
    if status.kind is FileKind.DIRECTORY:
        return FileImage(FileKind.DIRECTORY, b"", status.mode)
    # For a pipe or a device the port says what it is.
    return FileImage(FileKind.FILE, await fs.read_bytes(path), status.mode)


async def put_image(path: str, image: FileImage | None, fs: Fs) -> None:
    """Make an absolute path what an image says; None removes it. A directory is removed only if it is empty.

    Raises:
        OSError: The policy refuses the path, or it cannot be written.
    """
    present = await _stat(path, fs)
    if image is None:
        if present is not None:
            await fs.rm(path)
        return
    if present is not None and (present.kind is not image.kind or image.kind is FileKind.SYMLINK):
        await fs.rm(path)
    elif present is not None and image.kind is FileKind.FILE and not present.mode & _ANY_WRITE:
        await fs.rm(path)  # the port refuses to replace a file that is read-only
    if not await _is_direct(path, fs):
        raise OSError(errno.ELOOP, "a link stands in place of a directory above it", path)
    await fs.mkdir(path if image.kind is FileKind.DIRECTORY else os.path.dirname(path))
    if image.kind is FileKind.FILE:
        await fs.write_file(path, image.content)
        await put_mode(path, image.mode, fs)
    elif image.kind is FileKind.SYMLINK:
        await fs.resolve(path, writing=True)  # the policy, for a path that is absent now
        with await fs.folder(os.path.dirname(path)) as folder:
            target, name = os.fsdecode(image.content), os.path.basename(path)
            await to_thread.run_sync(partial(os.symlink, target, name, dir_fd=folder.handle))


async def put_mode(path: str, mode: int | None, fs: Fs) -> None:
    """Set the permission bits of a file or directory, unless they are unknown or right already.

    Raises:
        OSError: They cannot be set.
    """
    status = await _stat(path, fs)
    if mode is None or status is None or status.mode == mode or status.kind is FileKind.SYMLINK:
        return
    with await fs.folder(os.path.dirname(path)) as folder:
        await to_thread.run_sync(_change_mode, folder.handle, os.path.basename(path), mode)


def _change_mode(folder: int, name: str, mode: int) -> None:
    # By a descriptor, so that a link which appears meanwhile is not followed.
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


async def _stat(path: str, fs: Fs) -> FileStat | None:
    """Read the status of a path itself; None if it is absent, also because a link stands in place of a directory."""
    try:
        if not await _is_direct(path, fs):
            return None
        return await fs.stat(path, follow=False)
    except OSError as exc:
        if exc.errno in _ABSENT:
            return None
        raise


async def _is_direct(path: str, fs: Fs) -> bool:
    """Tell whether the directories of a path are directories, and no links to others."""
    parent = os.path.dirname(path)
    try:
        return await fs.resolve(parent) == parent
    except PathRefused as exc:
        if exc.resolved == parent:
            raise
        return False  # a link that leads out of the workspace


def list_parents(path: str) -> Iterable[str]:
    """List the directories above a relative path, the nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def build_entry(status: os.stat_result, key: str) -> TreeEntry | None:
    """Build the entry of a file, a link or a directory; None for anything else."""
    if stat.S_ISREG(status.st_mode):
        return TreeEntry(FileKind.FILE, stat.S_IMODE(status.st_mode), key)
    if stat.S_ISLNK(status.st_mode):
        return TreeEntry(FileKind.SYMLINK, 0, key)
    if stat.S_ISDIR(status.st_mode):
        return TreeEntry(FileKind.DIRECTORY, stat.S_IMODE(status.st_mode), "")
    return None
