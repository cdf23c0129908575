"""Entries of a directory tree: files, symbolic links and directories, and their images.

An image holds everything needed to restore a path: kind, permission bits, and bytes or link target. Images are read
and restored through the `Fs` port, which refuses paths outside its policy.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

from anyio import to_thread

from indusagi.capabilities.ports import FileKind, FileStat, Fs, PathRefused
from indusagi.core.app_dirs import replace_file
from indusagi.core.records import record

LARGEST_FILE = 20 * 1024 * 1024
"""Maximum size of a file to copy, in bytes."""
CONTENT_BUDGET = 64 * 1024 * 1024
"""Maximum bytes copied per snapshot."""
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP})
_ANY_WRITE = 0o222
Signature: TypeAlias = tuple[int, int, int, int, int]
"""Size, modification and change time, inode and mode. Equal if the file wasn't written in between."""


class TreeEntry(NamedTuple):
    """One path of a snapshot. A tuple, since every command compares tens of thousands of them."""

    kind: FileKind
    mode: int
    """The permission bits; 0 for a link."""
    key: str
    """The key of the content in the snapshot's store; empty for a directory."""


@record
class LeftOut:
    """A file whose content isn't in a snapshot."""

    reason: str
    signature: Signature


@record(kw_only=True)
class TreeScan:
    """The state of a tree at a point in time, with relative paths."""

    entries: Mapping[str, TreeEntry]
    left_out: Mapping[str, LeftOut]
    notes: tuple[str, ...] = ()
    """User-facing notes on anything not covered."""
    id: str = ""
    """The git tree's id, or empty without git."""


@record
class FileImage:
    """Kind, content and permission bits of a path. A link's content is its target."""

    kind: FileKind
    content: bytes = b""
    mode: int | None = None
    """`None`: unknown, so a restore leaves it alone."""


def read_signature(status: os.stat_result) -> Signature:
    """Return the signature of a file."""
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)


def scan_folder(root: str, relative: str) -> Iterable[tuple[str, os.DirEntry[str]]]:
    """List the relative paths in one directory, treating an unreadable or missing one as empty."""
    try:
        with os.scandir(os.path.join(root, relative)) as found:
            listed = list(found)
    except OSError:
        return ()
    return [(f"{relative}/{entry.name}" if relative else entry.name, entry) for entry in listed]


def store_content(folder: str, content: bytes) -> str:
    """Store content under its SHA-256 in a private directory and return the digest.

    The file is renamed into place but not synced: power loss may damage it, which the digest reveals. Raises `OSError`
    if it can't be written.
    """
    digest = hashlib.sha256(content).hexdigest()
    path = os.path.join(folder, digest)
    if not os.path.exists(path):
        replace_file(path, content, sync=False)
    return digest


# -- images through the `Fs` port -------------------------------------------------------------


async def read_image(path: str, fs: Fs) -> FileImage | None:
    """Read the image of an absolute path, or return `None` if it doesn't exist.

    Raises `OSError` if it's unreadable, too large, or a pipe, socket or device.
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
    # For a pipe or device, the port raises a descriptive error.
    return FileImage(FileKind.FILE, await fs.read_bytes(path), status.mode)


async def put_image(path: str, image: FileImage | None, fs: Fs) -> None:
    """Restore an absolute path to an image, or remove it (`None`). Only removes empty directories.

    Raises `OSError` if the policy refuses the path, or it can't be written.
    """
    present = await _stat(path, fs)
    if image is None:
        if present is not None:
            await fs.rm(path)
        return
    if present is not None and (present.kind is not image.kind or image.kind is FileKind.SYMLINK):
        await fs.rm(path)
    elif present is not None and image.kind is FileKind.FILE and not present.mode & _ANY_WRITE:
        await fs.rm(path)  # the port won't replace a read-only file
    if not await _is_direct(path, fs):
        raise OSError(errno.ELOOP, "a link stands in place of a directory above it", path)
    await fs.mkdir(path if image.kind is FileKind.DIRECTORY else os.path.dirname(path))
    if image.kind is FileKind.FILE:
        await fs.write_file(path, image.content)
        await put_mode(path, image.mode, fs)
    elif image.kind is FileKind.SYMLINK:
        await fs.resolve(path, writing=True)  # check the policy for the now missing path
        with await fs.folder(os.path.dirname(path)) as folder:
            target, name = os.fsdecode(image.content), os.path.basename(path)
            await to_thread.run_sync(partial(os.symlink, target, name, dir_fd=folder.handle))


async def put_mode(path: str, mode: int | None, fs: Fs) -> None:
    """Set the permission bits of a file or directory, unless they're unknown or already right.

    Raises `OSError` if they can't be set.
    """
    status = await _stat(path, fs)
    if mode is None or status is None or status.mode == mode or status.kind is FileKind.SYMLINK:
        return
    with await fs.folder(os.path.dirname(path)) as folder:
        await to_thread.run_sync(_change_mode, folder.handle, os.path.basename(path), mode)


def _change_mode(folder: int, name: str, mode: int) -> None:
    # Through a descriptor, so as not to follow a link that just appeared.
    handle = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    try:
        os.fchmod(handle, mode)
    finally:
        os.close(handle)


async def _stat(path: str, fs: Fs) -> FileStat | None:
    """Stat a path itself, or return `None` if it's missing or behind a linked directory."""
    try:
        if not await _is_direct(path, fs):
            return None
        return await fs.stat(path, follow=False)
    except OSError as exc:
        if exc.errno in _ABSENT:
            return None
        raise


async def _is_direct(path: str, fs: Fs) -> bool:
    """Tell whether all parents of a path are real directories, not links."""
    parent = os.path.dirname(path)
    try:
        return await fs.resolve(parent) == parent
    except PathRefused as exc:
        if exc.resolved == parent:
            raise
        return False  # a link out of the workspace


def list_parents(path: str) -> Iterable[str]:
    """List the directories above a relative path, nearest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def build_entry(status: os.stat_result, key: str) -> TreeEntry | None:
    """Build the entry of a file, link or directory, or return `None` for anything else."""
    if stat.S_ISREG(status.st_mode):
        return TreeEntry(FileKind.FILE, stat.S_IMODE(status.st_mode), key)
    if stat.S_ISLNK(status.st_mode):
        return TreeEntry(FileKind.SYMLINK, 0, key)
    if stat.S_ISDIR(status.st_mode):
        return TreeEntry(FileKind.DIRECTORY, stat.S_IMODE(status.st_mode), "")
    return None
