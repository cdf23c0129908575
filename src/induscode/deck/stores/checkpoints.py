"""The checkpoint store: contents of files before the deck changed them, on disk, and their restoration.

Each content is stored once, under its SHA-256; a log records which file had which content before which node of the
session. A crash at any moment leaves every file in its old or new state, and the log with every acknowledged row.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from anyio import to_thread

from indusagi.core.app_dirs import make_private_dir, replace_private_file
from indusagi.core.ids import new_ulid
from indusagi.core.records import record
from indusagi.core.time import iso_utc, now_ms
from induscode.deck.stores.line_log import LineLog

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from indusagi.capabilities.ports import Fs

Action: TypeAlias = Literal["write", "delete", "none"]


@record
class RestoreStep:
    """What a restore does to one file."""

    path: str
    action: Action
    conflict: bool
    """Whether another program has changed the file since: it stays as it is unless the caller insists."""


@record
class RestoreResult:
    """The result of a restore; `safety` is the node that undoes it."""

    safety: str
    done: tuple[str, ...]
    left: tuple[tuple[str, str], ...]
    """Files that stayed as they are, with the reason."""


@dataclass(slots=True)
class _Change:
    """The contents of one file before and after a node."""

    before: str | None
    """The digest of the content to restore; None: there was no file."""
    after: str | None
    """The digest of what the deck wrote last; None: unknown."""


class FileCheckpoints:
    """A store in one private directory. The methods block: call them in a thread."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = os.fspath(directory)
        self._lock = threading.Lock()
        self._log: LineLog | None = None
        self._seen: set[tuple[str, str]] = set()
        self.node = "start"
        """The node under which changes are recorded."""

    # -- recording --------------------------------------------------------------------------

    def begin(self, node: str) -> None:
        """Begin a new node of the session.

        Raises:
            OSError: The log cannot be written.
        """
        with self._lock:
            self._open_log().append({"op": "node", "node": node, "at": iso_utc(now_ms())})
            self.node = node

    def record(self, path: str, previous: bytes | None) -> None:
        """Store the content of an absolute path; of several records under a node the first applies.

        Raises:
            OSError: It cannot be stored.
        """
        with self._lock:
            log = self._open_log()
            if (self.node, path) in self._seen:
                return
            digest = None
            if previous is not None:
                digest = _digest(previous)
                if not os.path.exists(self._blob(digest)):
                    replace_private_file(self._blob(digest), previous)
            log.append({"op": "before", "node": self.node, "path": path, "digest": digest})
            self._seen.add((self.node, path))

    def settle(self, path: str, content: bytes | None) -> None:
        """Record the content that the deck has written, to detect later changes by others.

        Raises:
            OSError: The log cannot be written.
        """
        digest = None if content is None else _digest(content)
        with self._lock:
            self._open_log().append({"op": "after", "path": path, "digest": digest})

    def close(self) -> None:
        """Close the log; the next call opens it again."""
        with self._lock:
            if self._log is not None:
                self._log.close()
                self._log = None

    def nodes(self) -> Sequence[str]:
        """List the nodes in order.

        Raises:
            OSError: The log cannot be read.
        """
        with self._lock:
            rows = self._open_log().rows
        return tuple(dict.fromkeys(str(row["node"]) for row in rows if "node" in row))

    def _open_log(self) -> LineLog:
        if self._log is None:
            make_private_dir(os.path.join(self._directory, "blobs"))
            self._log = LineLog(os.path.join(self._directory, "index.log"))
            for row in self._log.rows:
                if row["op"] == "before":
                    self._seen.add((str(row["node"]), str(row["path"])))
                elif row["op"] == "node":
                    self.node = str(row["node"])
        return self._log

    def _blob(self, digest: str) -> str:
        return os.path.join(self._directory, "blobs", digest)

    def content(self, digest: str) -> bytes:
        """Read a stored content.

        Raises:
            OSError: It is absent or damaged.
        """
        with open(self._blob(digest), "rb") as file:
            data = file.read()
        if _digest(data) != digest:
            raise OSError(f"the kept content {digest[:12]} is damaged")
        return data

    # -- restoring ------------------------------------------------------------------------

    async def preview(self, node: str, fs: Fs) -> Sequence[RestoreStep]:
        """List the steps that restore every file to its state before a node.

        Raises:
            OSError: The log cannot be read.
        """
        changes = await to_thread.run_sync(self._changes_since, node)
        return tuple([await _plan_step(path, change, fs) for path, change in changes.items()])

    async def restore(self, node: str, fs: Fs, *, insist: Collection[str] = ()) -> RestoreResult:
        """Restore every file to its state before a node, after recording its present content.

        Files that another program has changed stay as they are, unless they are in `insist`. Files are written through
        the session's `fs`: a path outside its policy is refused.

        Raises:
            OSError: The present content could not be recorded; no file was changed.
        """
        changes = await to_thread.run_sync(self._changes_since, node)
        steps = [await _plan_step(path, change, fs) for path, change in changes.items()]
        safety = f"safety-{new_ulid()}"
        await to_thread.run_sync(self.begin, safety)
        changing = [step for step in steps if step.action != "none"]
        for step in changing:
            try:
                present = await _read_present(step.path, fs)
            except OSError:
                continue  # unreadable, so it will not be written either: the result reports it
            await to_thread.run_sync(self.record, step.path, present)
        done: list[str] = []
        left: list[tuple[str, str]] = []
        for step in changing:
            if step.conflict and step.path not in insist:
                left.append((step.path, "another program has changed it since"))
                continue
            try:
                before = changes[step.path].before
                content = None if before is None else await to_thread.run_sync(self.content, before)
                if content is None:
                    await fs.rm(step.path)
                else:
                    await fs.mkdir(os.path.dirname(step.path))
                    await fs.write_file(step.path, content)
                await to_thread.run_sync(self.settle, step.path, content)
            except OSError as exc:
                left.append((step.path, str(exc)))
            else:
                done.append(step.path)
        return RestoreResult(safety, tuple(done), tuple(left))

    def _changes_since(self, node: str) -> dict[str, _Change]:
        """Collect, for every file, its content before the node and what the deck wrote last."""
        with self._lock:
            rows = list(self._open_log().rows)
        changes: dict[str, _Change] = {}
        reached = False
        for row in rows:
            reached = reached or row.get("node") == node
            if not reached or row["op"] == "node":
                continue
            path, digest = str(row["path"]), row["digest"]
            value = digest if isinstance(digest, str) else None
            if row["op"] == "before":
                changes.setdefault(path, _Change(value, None))
            elif path in changes:
                changes[path].after = value
        return changes


async def _plan_step(path: str, change: _Change, fs: Fs) -> RestoreStep:
    try:
        present = await _read_present(path, fs)
    except OSError:
        return RestoreStep(path, "write" if change.before else "delete", conflict=True)
    now = None if present is None else _digest(present)
    if now == change.before:
        return RestoreStep(path, "none", conflict=False)
    conflict = change.after is not None and now != change.after
    return RestoreStep(path, "delete" if change.before is None else "write", conflict)


async def _read_present(path: str, fs: Fs) -> bytes | None:
    return await fs.read_bytes(path) if await fs.exists(path) else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
