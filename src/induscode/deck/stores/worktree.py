"""Snapshots of the work tree before and after commands, so their changes can be undone.

In a git repository, a snapshot is a tree in a private object store; elsewhere, it's a bounded copy of the files. Both
hold files byte for byte with permission bits, symbolic links and directories. Notes list anything not covered.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Literal, TypeAlias

from indusagi.capabilities.ports import FileKind
from indusagi.capabilities.sandbox.policy import PROTECTED
from indusagi.core.app_dirs import make_private_dir, read_small_file
from indusagi.core.faults import describe_error
from indusagi.core.records import record
from indusagi.core.time import now_ms
from induscode.deck.stores.git_tree import GitTimeoutError, GitTree, find_git, find_repository
from induscode.deck.stores.tree import (
    CONTENT_BUDGET,
    LARGEST_FILE,
    FileImage,
    LeftOut,
    Signature,
    TreeEntry,
    TreeScan,
    build_entry,
    read_signature,
    scan_folder,
    store_content,
)

SnapshotMethod: TypeAlias = Literal["git", "files", "none"]
IGNORED_NOTE = "ignored files and git history are not restored"


@record(kw_only=True)
class Snapshot(TreeScan):
    """The state of the work tree at a point in time."""

    node: str
    method: SnapshotMethod
    """`none`: nothing is covered; see the notes."""


@record
class TreeChange:
    """One path that differs between two snapshots. `None`: absent."""

    path: str
    """Absolute."""
    before: TreeEntry | None
    after: TreeEntry | None
    is_known: bool = True
    """False: a file exists afterwards, but the snapshot lacks its content."""


class WorktreeSnapshots:
    """Snapshots of a workspace, with contents in a private directory. Methods block."""

    def __init__(self, directory: str | os.PathLike[str], workspace: str | os.PathLike[str]) -> None:
        self._directory = os.path.abspath(directory)
        self._workspace = os.path.realpath(workspace)
        self._lock = threading.Lock()
        self._store: GitTree | FileTree | None = None
        self._method: SnapshotMethod = "none"
        self._notes: tuple[str, ...] = ()
        self._given_up = ""
        """Why snapshots stopped, or empty."""

    def take(self, node: str) -> Snapshot:
        """Take a snapshot. On failure, it covers nothing and a note has the reason."""
        with self._lock:
            try:
                return self._take(node)
            except Exception as exc:  # noqa: BLE001 — boundary: a snapshot never prevents a command
                note = f"what commands change is not covered: {describe_error(exc)}"
                if isinstance(exc, (GitTimeoutError, TreeLimitError)):
                    self._given_up = note  # don't make the next command wait as long
                return _build_empty(node, note)

    def changes(self, before: Snapshot, after: Snapshot) -> tuple[list[TreeChange], list[str]]:
        """List the paths that differ between two snapshots, and notes on uncovered changes."""
        if "none" in {before.method, after.method}:
            return [], list(dict.fromkeys((*before.notes, *after.notes)))
        changed: list[TreeChange] = []
        for path in sorted({**before.entries, **after.entries, **after.left_out}):
            old, new = before.entries.get(path), after.entries.get(path)
            is_known = path not in after.left_out
            # An empty directory that the sandbox of a running command has created.
            is_cover = path in PROTECTED and all(one is None or one.kind is FileKind.DIRECTORY for one in (old, new))
            if path in before.left_out or (old == new and is_known) or is_cover:
                continue
            full = os.path.join(self._workspace, path)
            if new is None and old is not None and old.kind is FileKind.DIRECTORY and os.path.isdir(full):
                continue  # it holds files git ignores
            changed.append(TreeChange(full, old, new, is_known))
        notes: list[str] = []
        for path, left in before.left_out.items():
            later = after.left_out.get(path)
            if later is None or later.signature != left.signature:
                notes.append(f"{path} was changed and cannot be restored: {left.reason}")
        return changed, notes

    def images(self, entries: Iterable[TreeEntry]) -> Iterator[tuple[TreeEntry, FileImage]]:
        """Read the images of snapshot entries, each once and in any order, skipping missing contents.

        Raises `OSError` if contents can't be read.
        """
        by_key: dict[str, set[TreeEntry]] = {}
        for entry in entries:
            if entry.kind is FileKind.DIRECTORY:
                yield entry, FileImage(entry.kind, b"", entry.mode)
            else:
                by_key.setdefault(entry.key, set()).add(entry)
        if self._store is None:
            return
        for key, content in self._store.read_contents(by_key):
            for entry in by_key[key]:
                yield entry, FileImage(entry.kind, content, entry.mode)

    def _take(self, node: str) -> Snapshot:
        if not self._given_up and self._store is None:
            self._store = self._choose_store()
        if self._store is None or self._given_up:
            return _build_empty(node, self._given_up)
        scan = self._store.scan()
        notes = (*self._notes, *scan.notes)
        return Snapshot(
            node=node, method=self._method, entries=scan.entries, left_out=scan.left_out, notes=notes, id=scan.id
        )

    def _choose_store(self) -> GitTree | FileTree | None:
        if self._workspace in {os.sep, os.path.realpath(os.path.expanduser("~"))}:
            self._given_up = f"what commands change in {self._workspace} is not covered: it is not a project"
            return None
        make_private_dir(self._directory)
        repository = find_repository(self._workspace)
        program = find_git(self._workspace) if repository is not None else None
        if repository is not None and program is not None:
            git = GitTree(make_private_dir(os.path.join(self._directory, "git")), self._workspace, repository, program)
            if not git.is_ignored():
                self._method, self._notes = "git", (IGNORED_NOTE,)
                return git
        elif repository is not None:
            self._notes = ("git was not found: files are copied instead, within limits",)
        self._method = "files"
        return FileTree(os.path.join(self._directory, "files"), self._workspace)


def _build_empty(node: str, note: str) -> Snapshot:
    return Snapshot(node=node, method="none", entries={}, left_out={}, notes=(note,))


# -- file tree --------------------------------------------------------------------------------
#
# Files with the size, times and inode of the last scan aren't reread. The file count and time limits abort a scan; the
# byte budget only leaves out files, with a note.

FILE_LIMIT = 20_000
LIMIT_S = 2.0
SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", "venv", ".tox"})
"""Tool directories: rebuildable, or internal records."""
_OURS = ".indusvx-bg"
"""The output of background commands."""
_NAMED = 5
_SETTLED_NS = 50_000_000
"""Minimum age for file times to reveal a later change: file systems tick every few milliseconds."""


class TreeLimitError(OSError):
    """A directory is too large or too slow for a snapshot."""


class FileTree:
    """Copies of a workspace's files. Methods block."""

    def __init__(self, directory: str, workspace: str) -> None:
        self._directory, self._workspace = directory, workspace
        self._known: dict[str, tuple[Signature, str]] = {}
        self._left_out: dict[str, LeftOut] = {}

    def scan(self) -> TreeScan:
        """List the tree and copy all changes since the last scan.

        Raises `TreeLimitError` if there are too many files, or reading them takes too long, and `OSError` if a copy
        can't be written.
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
                continue  # removed in the meantime
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
        """Yield files, links and directories, adding the names of skipped directories to `skipped`."""
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
        if path in self._left_out:  # once left out, always: its former content is unknown
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
        """Read copies; raises `OSError` if one is missing."""
        for key in dict.fromkeys(keys):
            with open(os.path.join(self._directory, key), "rb") as file:
                yield key, file.read()
