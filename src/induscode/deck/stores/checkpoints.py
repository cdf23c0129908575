"""The checkpoint store: records files before the deck or a command changes them, and restores them.

Each content is stored once, under its SHA-256. A log records the state of each path before each node of the session:
a file with content and mode, a symbolic link, a directory, or nothing. A crash at any point leaves every file in its
old or new state, and every acknowledged row in the log.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from anyio import to_thread

from indusagi.capabilities.files.diff import compare_lines
from indusagi.capabilities.ports import FileKind, Fs
from indusagi.core.app_dirs import make_private_dir, read_small_file, replace_file
from indusagi.core.ids import new_ulid
from indusagi.core.records import record
from indusagi.core.time import iso_utc, now_ms
from induscode.deck.stores.line_log import LineLog, read_lines
from induscode.deck.stores.tree import FileImage, TreeEntry, put_image, put_mode, read_image, store_content

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.stores.worktree import Snapshot, TreeChange, WorktreeSnapshots

_INDEX = "index.log"
_MAX_HASHED_BYTES = 20 * 1024 * 1024
Action: TypeAlias = Literal["write", "delete", "none"]


@record
class RestoreStep:
    """The effect of a restore on one file."""

    path: str
    action: Action
    conflict: bool
    """Whether another program has changed the file since. If so, it's skipped unless the caller insists."""


@record
class RestoreResult:
    """The result of a restore. `safety` is the node that undoes it."""

    safety: str
    done: tuple[str, ...]
    left: tuple[tuple[str, str], ...]
    """Skipped files, with the reason."""


class PathState(NamedTuple):
    """The kind of a path and the digest of its content."""

    kind: FileKind
    digest: str
    mode: int | None = None
    """`None`: unknown, and equal to every mode."""


@dataclass(slots=True)
class _Change:
    """The states of a path before a node and after the deck's changes. `None`: absent."""

    before: PathState | None
    after: PathState | None = None
    is_settled: bool = False
    """Whether `after` is known."""


@dataclass(slots=True, eq=False)
class RunningCommand:
    """A command that may have changed files since its last snapshot."""

    since: Snapshot
    is_running: Callable[[], bool] | None = None
    """Polls a background job; blocks. `None`: the command runs until `end_command`."""


class FileCheckpoints:
    """A store in one private directory. Sync methods block: call them in a thread. I/O errors raise `OSError`.

    With a `workspace`, it also records the changes commands make there (`begin_command`, `end_command`). Changes made
    before the next node begins belong to the old node, the rest to the new one.
    """

    def __init__(self, directory: str | os.PathLike[str], workspace: str | os.PathLike[str] | None = None) -> None:
        self._directory = os.fspath(directory)
        self._workspace = None if workspace is None else os.fspath(workspace)
        self._snapshots: WorktreeSnapshots | None = None
        self._running: list[RunningCommand] = []
        self._running_lock = threading.RLock()
        """Held while comparing snapshots. Acquire before `_lock`."""
        self._lock = threading.Lock()
        self._log: LineLog | None = None
        self._seen: set[tuple[str, str]] = set()
        self.node = "start"
        """The current node, under which changes are recorded."""

    # -- recording --------------------------------------------------------------------------

    def begin(self, node: str) -> None:
        """Begin a new node of the session."""
        with self._running_lock:
            self._record_running()
            with self._lock:
                self._open_log().append({"op": "node", "node": node, "at": iso_utc(now_ms())})
                self.node = node
            for command in self._running:
                command.since = replace(command.since, node=node)

    def record(self, path: str, previous: bytes | FileImage | None) -> None:
        """Store the state of an absolute path before it changes.

        Only the first state of a path at each point of the conversation is kept.

        For bytes, reads the mode from the file. For a missing file, also records its missing parent directories.
        """
        with self._lock:
            log = self._open_log()
            if (self.node, path) in self._seen:
                return
            image = _complete_image(path, previous)
            if image is not None and image.kind is not FileKind.DIRECTORY:
                blob = self._blob(_digest(image.content))
                if not os.path.exists(blob):
                    replace_file(blob, image.content)
            absent = [] if image is not None else _list_absent_parents(path)
            states: list[tuple[str, PathState | None]] = [(folder, None) for folder in absent]
            self._append_before(log, [*states, (path, _to_state(image))], self.node)

    def settle(self, path: str, content: bytes | FileImage | None) -> None:
        """Record the state the deck left a path in, to detect later changes by others."""
        row = _build_row("after", path, _to_state(_complete_image(path, content)))
        with self._lock:
            self._open_log().append(row)

    def _append_before(self, log: LineLog, states: Iterable[tuple[str, PathState | None]], node: str) -> None:
        unseen = {path: state for path, state in states if (node, path) not in self._seen}
        log.extend([{**_build_row("before", path, state), "node": node} for path, state in unseen.items()])
        self._seen |= {(node, path) for path in unseen}

    # -- commands -----------------------------------------------------------------------------

    def begin_command(self) -> RunningCommand | None:
        """Take a snapshot of the work tree before a command, or return `None` without a workspace."""
        if self._workspace is None:
            return None
        with self._lock:
            if self._snapshots is None:
                from induscode.deck.stores.worktree import WorktreeSnapshots  # noqa: PLC0415 — for the first command

                self._snapshots = WorktreeSnapshots(os.path.join(self._directory, "worktree"), self._workspace)
            self._open_log().append({"op": "command", "node": self.node})
        with self._running_lock:
            command = RunningCommand(self._snapshots.take(self.node))
            self._running.append(command)
        return command

    def end_command(self, command: RunningCommand) -> tuple[list[str], list[str]]:
        """Record the changes since the snapshot and return the changed paths, and notes on anything not covered."""
        return self._advance(command, is_over=True)

    def follow_command(self, command: RunningCommand, is_running: Callable[[], bool]) -> tuple[list[str], list[str]]:
        """Record the changes so far of a command that continues as a job; the next node or restore records the rest."""
        command.is_running = is_running
        return self._advance(command, is_over=False)

    def _record_running(self) -> None:
        """Record the changes of running commands so far."""
        with self._running_lock:
            for command in (*self._running,):
                # Poll before the snapshot, which then holds all changes of a finished job.
                is_over = command.is_running is not None and not command.is_running()
                self._advance(command, is_over=is_over)

    def _advance(self, command: RunningCommand, *, is_over: bool) -> tuple[list[str], list[str]]:
        """Record the changes since a command's last snapshot, under that snapshot's node."""
        assert self._snapshots is not None
        with self._running_lock:
            if is_over:
                self._running.remove(command)
            before = command.since
            after = self._snapshots.take(before.node)
            changed, notes = self._snapshots.changes(before, after)
            lost = self._record_changes(changed, before.node)
            notes += [f"{path} was changed and cannot be restored: its former content is gone" for path in lost]
            command.since = after
            if is_over:
                with self._lock:
                    self._open_log().append({"op": "ended", "node": before.node})
        for note in dict.fromkeys((*notes, *after.notes)):
            self.add_note(note)
        return [change.path for change in changed], notes

    def add_note(self, text: str) -> None:
        """Record something a restore doesn't cover, once per node."""
        with self._lock:
            row: JsonObject = {"op": "note", "node": self.node, "text": text}
            if row not in self._open_log().rows:
                self._open_log().append(row)

    def notes_since(self, node: str) -> list[str]:
        """List the notes on anything a restore to a node doesn't cover."""
        rows = self._rows_since(node)
        notes = [str(row["text"]) for row in rows if row["op"] == "note"]
        begun, ended = (sum(row["op"] == op for row in rows) for op in ("command", "ended"))
        if begun - ended > len(self._running):
            notes.append("a command was interrupted together with the program: what it changed is not covered")
        return list(dict.fromkeys(notes))

    def changed_paths(self, node: str) -> list[str]:
        """List the paths that differ after a node."""
        return [*self._find_changes().get(node, ())]

    def list_changed_paths(self) -> Mapping[str, Sequence[str]]:
        """List the paths that differ after each node."""
        return {node: [*paths] for node, paths in self._find_changes().items()}

    def count_lines(self, node: str) -> tuple[int, int]:
        """Count the lines that a node added and removed, of files whose versions are known."""
        added = removed = 0
        for path, digests in self._find_changes().get(node, {}).items():
            with suppress(OSError):
                old, new = (b"" if not digest else self._find_version(path, digest) for digest in digests)
                if b"\0" not in old + new:
                    diff = compare_lines(old, new)
                    added, removed = added + diff.added, removed + diff.removed
        return added, removed

    def _find_version(self, path: str, digest: str) -> bytes:
        try:
            return self.content(digest)
        except FileNotFoundError:  # the newest version is only in the work tree
            present = read_small_file(path, _MAX_HASHED_BYTES)
            if _digest(present) != digest:
                raise
            return present

    def _find_changes(self) -> Mapping[str, Mapping[str, tuple[str | None, str | None]]]:
        with self._lock:
            rows = [*self._open_log().rows]
        return _find_changes(rows)

    def _record_changes(self, changes: Sequence[TreeChange], node: str) -> list[str]:
        """Record changes in two log writes and return the paths whose former content is gone."""
        assert self._snapshots is not None
        blobs = os.path.join(self._directory, "blobs")
        states: dict[TreeEntry, PathState] = {}
        for entry, image in self._snapshots.images(change.before for change in changes if change.before is not None):
            digest = "" if image.kind is FileKind.DIRECTORY else store_content(blobs, image.content)
            states[entry] = PathState(entry.kind, digest, entry.mode)
        for entry, image in self._snapshots.images({change.after for change in changes if change.after} - set(states)):
            state = _to_state(image)
            assert state is not None
            states[entry] = state
        lost = [change.path for change in changes if change.before is not None and change.before not in states]
        kept = [change for change in changes if change.path not in lost]
        settled = [change for change in kept if change.is_known and (change.after is None or change.after in states)]
        with self._lock:
            log = self._open_log()
            self._append_before(
                log, [(change.path, None if change.before is None else states[change.before]) for change in kept], node
            )
            log.extend(
                [
                    _build_row("after", change.path, None if change.after is None else states[change.after])
                    for change in settled
                ]
            )
        return lost

    def close(self) -> None:
        """Record the changes of jobs and close the log. The next call reopens it."""
        with suppress(OSError):  # the disk is full: the log names the command as interrupted
            self._record_running()
        with self._lock:
            if self._log is not None:
                self._log.close()
                self._log = None

    def nodes(self) -> Sequence[str]:
        """List the nodes in order."""
        with self._lock:
            rows = self._open_log().rows
        return tuple(dict.fromkeys(str(row["node"]) for row in rows if "node" in row))

    def _open_log(self) -> LineLog:
        if self._log is None:
            make_private_dir(os.path.join(self._directory, "blobs"))
            self._log = LineLog(os.path.join(self._directory, _INDEX))
            for row in self._log.rows:
                if row["op"] == "before":
                    self._seen.add((str(row["node"]), str(row["path"])))
                elif row["op"] == "node":
                    self.node = str(row["node"])
        return self._log

    def _blob(self, digest: str) -> str:
        return os.path.join(self._directory, "blobs", digest)

    def content(self, digest: str) -> bytes:
        """Read stored content; raises `OSError` if it's missing or damaged."""
        with open(self._blob(digest), "rb") as file:
            data = file.read()
        if _digest(data) != digest:
            raise OSError(f"the kept content {digest[:12]} is damaged")
        return data

    # -- restoring ------------------------------------------------------------------------

    async def preview(self, node: str, fs: Fs) -> Sequence[RestoreStep]:
        """List the steps that restore every file to its state before a node.

        Raises `OSError` if the log can't be read, or the node is unknown.
        """
        await to_thread.run_sync(self._record_running)
        changes = await to_thread.run_sync(self._changes_since, node)
        steps = [await _plan_step(path, change, fs) for path, change in changes.items()]
        # Remove created paths first, deepest first; create directories before their contents.
        folders = {path for path, change in changes.items() if change.before and not change.before.digest}
        steps.sort(key=lambda step: (step.path not in folders, step.path.count("/")))
        removals = [step for step in reversed(steps) if step.action == "delete"]
        return (*removals, *(step for step in steps if step.action != "delete"))

    async def restore(self, node: str, fs: Fs, *, insist: Collection[str] = ()) -> RestoreResult:
        """Restore every file to its state before a node, after recording its current content.

        Skips files that another program has changed, unless they're in `insist`. Writes go through the session's `fs`,
        which refuses paths outside its policy. Raises `OSError` if the current content couldn't be recorded; no file
        was changed.
        """
        steps = await self.preview(node, fs)
        changes = await to_thread.run_sync(self._changes_since, node)
        safety = f"safety-{new_ulid()}"
        await to_thread.run_sync(self.begin, safety)
        changing = [step for step in steps if step.action != "none"]
        done: list[str] = []
        left: list[tuple[str, str]] = []
        kept: list[RestoreStep] = []
        for step in changing:
            try:
                present = await read_image(step.path, fs)
            except OSError as exc:
                left.append((step.path, f"what it holds now can't be kept: {exc}. Move it away first"))
                continue
            await to_thread.run_sync(self.record, step.path, present)
            kept.append(step)
        for step in kept:
            if step.conflict and step.path not in insist:
                left.append((step.path, "another program has changed it since"))
                continue
            try:
                await self._restore_path(step.path, changes[step.path], fs)
            except OSError as exc:
                left.append((step.path, str(exc)))
            else:
                done.append(step.path)
        for path in reversed(done):  # last, since a directory may become read-only
            before = changes[path].before
            with suppress(OSError):
                await put_mode(path, None if before is None else before.mode, fs)
        return RestoreResult(safety, tuple(done), tuple(left))

    async def _restore_path(self, path: str, change: _Change, fs: Fs) -> None:
        image = None
        if change.before is not None:
            kind, digest, mode = change.before
            content = await to_thread.run_sync(self.content, digest) if digest else b""
            image = FileImage(kind, content, mode)
        try:
            await put_image(path, image, fs)
        except OSError as exc:
            if image is not None or exc.errno != errno.ENOTEMPTY:
                raise
            return  # a directory with other files stays
        await to_thread.run_sync(self.settle, path, image)

    def _rows_since(self, node: str) -> Sequence[JsonObject]:
        with self._lock:
            rows = list(self._open_log().rows)
        first = next((index for index, row in enumerate(rows) if row.get("node") == node), None)
        if first is None:
            raise FileNotFoundError("nothing was recorded at this point, so files can't return to it; --talk still can")
        return rows[first:]

    def _changes_since(self, node: str) -> dict[str, _Change]:
        """Collect the state of every path before the node and after the deck's changes."""
        changes: dict[str, _Change] = {}
        for row in self._rows_since(node):
            if row["op"] not in {"before", "after"}:
                continue
            path, digest, mode = str(row["path"]), row["digest"], row.get("mode")
            state = None
            if isinstance(digest, str):
                kind = FileKind(str(row.get("kind", FileKind.FILE)))
                state = PathState(kind, digest, mode if isinstance(mode, int) else None)
            if row["op"] == "before":
                changes.setdefault(path, _Change(state))
            elif path in changes:
                changes[path].after, changes[path].is_settled = state, True
        return changes


def read_changed_paths(directory: str) -> Mapping[str, Sequence[str]]:
    """Read the changed paths of every node without opening the store. Blocks."""
    changes = _find_changes(read_lines(os.path.join(directory, _INDEX)))
    return {node: [*paths] for node, paths in changes.items()}


def _find_changes(rows: Sequence[JsonObject]) -> dict[str, dict[str, tuple[str | None, str | None]]]:
    """Find the paths that differ after each node, with both digests. Hashes files without a later row."""
    last: dict[str, str | None] = {}
    ends: dict[str, dict[str, tuple[str | None, str | None]]] = {}
    for row in reversed(rows):
        path, digest = str(row.get("path")), row.get("digest")
        state = digest if isinstance(digest, str) else None
        if row.get("op") == "after":
            last[path] = state
        elif row.get("op") == "before":
            after = last[path] if path in last else _hash_present(path)
            if after != state:
                ends.setdefault(str(row.get("node")), {})[path] = state, after
            last[path] = state
    return {node: dict(reversed(paths.items())) for node, paths in ends.items()}


def _hash_present(path: str) -> str | None:
    try:
        if stat.S_ISDIR((status := os.lstat(path)).st_mode):
            return ""
        is_link = stat.S_ISLNK(status.st_mode)
        return _digest(os.fsencode(os.readlink(path)) if is_link else read_small_file(path, _MAX_HASHED_BYTES))
    except OSError:
        return None


async def _plan_step(path: str, change: _Change, fs: Fs) -> RestoreStep:
    action: Action = "delete" if change.before is None else "write"
    try:
        now = _to_state(await read_image(path, fs))
    except OSError:
        return RestoreStep(path, action, conflict=True)
    if _is_same(now, change.before):
        return RestoreStep(path, "none", conflict=False)
    return RestoreStep(path, action, change.is_settled and not _is_same(now, change.after))


def _is_same(one: PathState | None, other: PathState | None) -> bool:
    """Tell whether two states are equal. An unknown mode matches any."""
    if one is None or other is None:
        return one is other
    return one[:2] == other[:2] and (None in {one.mode, other.mode} or one.mode == other.mode)


def _complete_image(path: str, content: bytes | FileImage | None) -> FileImage | None:
    """Add the current mode to a file's bytes."""
    if not isinstance(content, bytes):
        return content
    try:
        status = os.lstat(path)
    except OSError:
        return FileImage(FileKind.FILE, content)
    return FileImage(FileKind.FILE, content, stat.S_IMODE(status.st_mode) if stat.S_ISREG(status.st_mode) else None)


def _to_state(image: FileImage | None) -> PathState | None:
    if image is None:
        return None
    return PathState(image.kind, "" if image.kind is FileKind.DIRECTORY else _digest(image.content), image.mode)


def _build_row(op: str, path: str, state: PathState | None) -> dict[str, JsonValue]:
    if state is None:
        return {"op": op, "path": path, "digest": None}
    return {"op": op, "path": path, "digest": state.digest, "kind": str(state.kind), "mode": state.mode}


def _list_absent_parents(path: str) -> list[str]:
    """List the missing directories above a path, outermost first."""
    absent: list[str] = []
    folder = os.path.dirname(path)
    while folder != os.path.dirname(folder) and not os.path.lexists(folder):
        absent.insert(0, folder)
        folder = os.path.dirname(folder)
    return absent


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
