"""Snapshots of a directory outside of git: a bounded scan, and copies of the files.

A file whose size, times and inode are those of the last scan is not read again. The scan ends at its limits of files
and time; the budget of bytes leaves out files, and names them.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from indusagi.capabilities.ports import FileKind
from indusagi.core.app_dirs import make_private_dir, read_small_file
from indusagi.core.time import now_ms
from induscode.deck.stores.tree import (
    CONTENT_BUDGET,
    LARGEST_FILE,
    LeftOut,
    TreeEntry,
    TreeScan,
    build_entry,
    read_signature,
    scan_folder,
    store_content,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from induscode.deck.stores.tree import Signature

FILE_LIMIT = 20_000
LIMIT_S = 2.0
SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox"})
"""Directories of tools, which they build again or keep records in."""
_OURS = ".indusvx-bg"
"""The output of background commands."""
_NAMED = 5
_SETTLED_NS = 50_000_000
"""Age at which the times of a file distinguish a later change: file systems count in ticks of a few milliseconds."""


class TreeLimitError(OSError):
    """A directory is too large, or too slow, for a snapshot."""


class FileTree:
    """Copies of the files of one workspace. The methods block."""

    def __init__(self, directory: str, workspace: str) -> None:
        self._directory, self._workspace = directory, workspace
        self._known: dict[str, tuple[Signature, str]] = {}
        self._left_out: dict[str, LeftOut] = {}

    def scan(self) -> TreeScan:
        """List the tree, and copy what has changed since the last scan.

        Raises:
            TreeLimitError: There are too many files, or reading them takes too long.
            OSError: A copy cannot be written.
        """
        make_private_dir(self._directory)
        entries: dict[str, TreeEntry] = {}
        known: dict[str, tuple[Signature, str]] = {}
        left_out: dict[str, LeftOut] = {}
        skipped: set[str] = set()
        room, settled_ns = CONTENT_BUDGET, now_ms() * 1_000_000 - _SETTLED_NS
        for path, status, entry in self._walk(skipped):
            if entry.kind is FileKind.DIRECTORY:
                entries[path] = entry
                continue
            signature, key = read_signature(status), ""
            reason = self._find_reason(path, status.st_size, room)
            try:
                key = "" if reason else self._copy(path, entry.kind, signature)
            except PermissionError:
                reason = "it cannot be read"
            except FileNotFoundError:
                continue  # removed meanwhile
            if reason:
                left_out[path] = LeftOut(reason, signature)
                continue
            room -= status.st_size
            entries[path] = entry._replace(key=key)
            if max(status.st_mtime_ns, status.st_ctime_ns) < settled_ns:
                known[path] = (signature, key)
        self._known, self._left_out = known, left_out
        notes = [f"directories named {', '.join(sorted(skipped))} are not covered"] if skipped else []
        for path, left in [*left_out.items()][:_NAMED]:
            notes.append(f"{path} is not covered: {left.reason}")
        if len(left_out) > _NAMED:
            notes.append(f"{len(left_out) - _NAMED:,} more files are not covered")
        return TreeScan(entries=entries, left_out=left_out, notes=tuple(notes))

    def _walk(self, skipped: set[str]) -> Iterator[tuple[str, os.stat_result, TreeEntry]]:
        """Yield files, links and directories; `skipped` takes the names of the directories that are passed over."""
        deadline, count = time.monotonic() + LIMIT_S, 0
        folders = [""]
        while folders:
            for path, found in sorted(scan_folder(self._workspace, folders.pop()), key=lambda row: row[0]):
                count += 1
                if count > FILE_LIMIT:
                    raise TreeLimitError(f"{self._workspace} holds more than {FILE_LIMIT:,} files")
                if time.monotonic() > deadline:
                    raise TreeLimitError(f"reading {self._workspace} takes longer than {LIMIT_S:.0f} s")
                if found.name in {*SKIPPED, _OURS} and found.is_dir(follow_symlinks=False):
                    skipped |= {found.name} - {_OURS}
                    continue
                try:
                    status = found.stat(follow_symlinks=False)
                except OSError:
                    continue
                entry = build_entry(status, "")
                if entry is not None:
                    folders += [path] if entry.kind is FileKind.DIRECTORY else []
                    yield path, status, entry

    def _find_reason(self, path: str, size: int, room: int) -> str:
        if path in self._left_out:  # what was left out once stays so: its former content is unknown
            return self._left_out[path].reason
        if size > LARGEST_FILE:
            return f"it has {size:,} bytes, and at most {LARGEST_FILE:,} are kept"
        return f"{CONTENT_BUDGET:,} bytes are kept in all" if size > room else ""

    def _copy(self, path: str, kind: FileKind, signature: Signature) -> str:
        former, key = self._known.get(path, (None, ""))
        if former == signature:
            return key
        full = os.path.join(self._workspace, path)
        link = kind is FileKind.SYMLINK
        content = os.fsencode(os.readlink(full)) if link else read_small_file(full, LARGEST_FILE, follow=False)
        return store_content(self._directory, content)

    def read_contents(self, keys: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        """Read copies.

        Raises:
            OSError: One is absent.
        """
        for key in dict.fromkeys(keys):
            with open(os.path.join(self._directory, key), "rb") as file:
                yield key, file.read()
