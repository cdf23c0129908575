"""What files held before the deck changed them, on disk, and the way back.

Contents are kept once each, under their digest; a log says which file held what before which step
of the session. A crash at any moment leaves every file either as it was or as it was to be, and the
log with every row that was acknowledged.
"""

from __future__ import annotations

import hashlib
import os
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from anyio import to_thread

from indusagi.core.app_dirs import make_private_dir, replace_private_file
from indusagi.core.clock import iso_utc, now_ms
from indusagi.core.ids import new_ulid
from induscode.deck.stores.line_log import LineLog

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from indusagi.capabilities.ports import Fs
    from indusagi.core.json import JsonObject

Action: TypeAlias = Literal["write", "delete", "none"]


@dataclass(frozen=True, slots=True)
class Step:
    """What a restore does to one file."""

    path: str
    action: Action
    conflict: bool
    """Somebody else changed the file since: it is left alone unless the caller insists."""


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What came of it, file by file; `safety` is the node that leads back again."""

    safety: str
    done: tuple[str, ...]
    left: tuple[tuple[str, str], ...]
    """Files that were not touched, with the reason."""


@dataclass(slots=True)
class _Change:
    """What is known of one file from a node on."""

    before: str | None
    """The digest of the content to go back to; None: there was no file."""
    after: str | None
    """The digest of what the deck wrote last; None: it never said."""


class FileCheckpoints:
    """A store in one private directory. The methods block: call them in a thread."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._directory = os.fspath(directory)
        self._lock = threading.Lock()
        self._log: LineLog | None = None
        self._seen: set[tuple[str, str]] = set()
        self.node = "start"
        """Under which changes are recorded at present."""

    # -- recording --------------------------------------------------------------------------

    def begin(self, node: str) -> None:
        """Record from now on under a new node of the session.

        Raises:
            OSError: It cannot be kept.
        """
        with self._lock:
            self._opened().append({"op": "node", "node": node, "at": iso_utc(now_ms())})
            self.node = node

    def record(self, path: str, previous: bytes | None) -> None:
        """Keep what stood at an absolute path; of several records under a node the first counts.

        Raises:
            OSError: It cannot be kept.
        """
        with self._lock:
            log = self._opened()
            if (self.node, path) in self._seen:
                return
            digest = None if previous is None else self._keep(previous)
            log.append({"op": "before", "node": self.node, "path": path, "digest": digest})
            self._seen.add((self.node, path))

    def settle(self, path: str, content: bytes | None) -> None:
        """Remember what the deck has made of a file, to tell later who changed it since.

        Raises:
            OSError: It cannot be kept.
        """
        digest = None if content is None else _digest(content)
        with self._lock:
            self._opened().append({"op": "after", "path": path, "digest": digest})

    def close(self) -> None:
        """Give the log up; the next call opens it again."""
        with self._lock:
            if self._log is not None:
                self._log.close()
                self._log = None

    def nodes(self) -> Sequence[str]:
        """List the nodes there are, the first one first.

        Raises:
            OSError: The log cannot be read.
        """
        with self._lock:
            rows = self._opened().rows
        found = [str(row["node"]) for row in rows if "node" in row]
        return tuple(dict.fromkeys(found))

    def _opened(self) -> LineLog:
        if self._log is None:
            make_private_dir(os.path.join(self._directory, "blobs"))
            self._log = LineLog(os.path.join(self._directory, "index.log"))
            for row in self._log.rows:
                if row["op"] == "before":
                    self._seen.add((str(row["node"]), str(row["path"])))
                elif row["op"] == "node":
                    self.node = str(row["node"])
        return self._log

    def _keep(self, content: bytes) -> str:
        """Keep a content under its digest, in one step; what is there is there."""
        digest = _digest(content)
        path = self._blob(digest)
        if not os.path.exists(path):
            replace_private_file(path, content)
        return digest

    def _blob(self, digest: str) -> str:
        return os.path.join(self._directory, "blobs", digest)

    def content(self, digest: str) -> bytes:
        """Give a content back.

        Raises:
            OSError: It is gone, or it is not what was kept.
        """
        with open(self._blob(digest), "rb") as file:
            data = file.read()
        if _digest(data) != digest:
            raise OSError(f"the kept content {digest[:12]} is damaged")
        return data

    # -- going back -------------------------------------------------------------------------

    async def preview(self, node: str, fs: Fs) -> Sequence[Step]:
        """Tell what it takes to have every file as it was before a node.

        Raises:
            OSError: The log cannot be read.
        """
        changes = await to_thread.run_sync(self._changes_since, node)
        return tuple([await _step(path, change, fs) for path, change in changes.items()])

    async def restore(self, node: str, fs: Fs, *, insist: Collection[str] = ()) -> RestoreResult:
        """Put every file back as it was before a node, after keeping what is there now.

        Files that somebody else has changed are left alone, unless they are among `insist`. The
        files are reached through the door of the session: one that leads out of it is refused.

        Raises:
            OSError: What is there now could not be kept; nothing was touched then.
        """
        changes = await to_thread.run_sync(self._changes_since, node)
        steps = [await _step(path, change, fs) for path, change in changes.items()]
        safety = f"safety-{new_ulid()}"
        await self._keep_present(safety, [step for step in steps if step.action != "none"], fs)
        done: list[str] = []
        left: list[tuple[str, str]] = []
        for step in steps:
            if step.action == "none":
                continue
            if step.conflict and step.path not in insist:
                left.append((step.path, "somebody else changed it since"))
                continue
            try:
                await self._put_back(step.path, changes[step.path], fs)
            except OSError as exc:
                left.append((step.path, str(exc)))
            else:
                done.append(step.path)
        return RestoreResult(safety, tuple(done), tuple(left))

    async def _keep_present(self, safety: str, steps: Sequence[Step], fs: Fs) -> None:
        await to_thread.run_sync(self.begin, safety)
        for step in steps:
            try:
                present = await _present(step.path, fs)
            except OSError:
                continue  # it cannot be read, so it will not be written either: the report says so
            await to_thread.run_sync(self.record, step.path, present)

    async def _put_back(self, path: str, change: _Change, fs: Fs) -> None:
        if change.before is None:
            await fs.rm(path)
            content = None
        else:
            content = await to_thread.run_sync(self.content, change.before)
            await fs.mkdir(os.path.dirname(path))
            await fs.write_file(path, content)
        await to_thread.run_sync(self.settle, path, content)

    def _changes_since(self, node: str) -> dict[str, _Change]:
        """Collect, for every file, what it held before the node and what the deck wrote last."""
        with self._lock:
            rows = list(self._opened().rows)
        changes: dict[str, _Change] = {}
        reached = False
        for row in rows:
            reached = reached or row.get("node") == node
            if not reached:
                continue
            self._fold(changes, row)
        return changes

    @staticmethod
    def _fold(changes: dict[str, _Change], row: JsonObject) -> None:
        if row["op"] == "node":
            return
        path, digest = str(row["path"]), row["digest"]
        value = digest if isinstance(digest, str) else None
        if row["op"] == "before":
            changes.setdefault(path, _Change(value, None))
        elif path in changes:
            changes[path].after = value


async def _step(path: str, change: _Change, fs: Fs) -> Step:
    try:
        present = await _present(path, fs)
    except OSError:
        return Step(path, "write" if change.before else "delete", conflict=True)
    now = None if present is None else _digest(present)
    if now == change.before:
        return Step(path, "none", conflict=False)
    conflict = change.after is not None and now != change.after
    return Step(path, "delete" if change.before is None else "write", conflict)


async def _present(path: str, fs: Fs) -> bytes | None:
    return await fs.read_bytes(path) if await fs.exists(path) else None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
