"""Overflow of results: a private session directory that keeps results past the output budget.

Such a result is cut for the model; the complete text goes to a file of mode 0600, and the cut result names the file and
how to page through it. If the file cannot be written, the result says that instead. Files are kept for a week.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.capabilities.budget import clip, encode_pieces
from indusagi.core.app_dirs import create_private_file, make_private_dir, state_dir
from indusagi.core.clock import now_ms
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.json import compact_json
from indusagi.core.records import record
from indusagi.runtime.content import JsonContentBlock, TextContentBlock
from indusagi.runtime.contract import Keep

if TYPE_CHECKING:
    from indusagi.capabilities.budget import OutputBudget
    from indusagi.runtime.content import ToolContentBlock
    from indusagi.runtime.contract import ToolResult

SPILL_LIMIT_BYTES = 64 * 1024 * 1024
"""The most bytes that are kept of one result."""
RETENTION_DAYS = 7
_RETENTION_MS = RETENTION_DAYS * 24 * 3_600_000
_MEDIA = frozenset({"image", "audio"})


class SessionDir:
    """The directory of one session's files, made with the first file; safe to use from several threads."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()

    def make(self) -> str:
        """Make the directory if necessary, remove directories of old sessions, and return its path.

        Raises:
            OSError: It cannot be made.
        """
        with self._lock:
            if self._path is None:
                sessions = os.path.join(make_private_dir(state_dir()), "sessions")
                make_private_dir(sessions)
                _sweep(sessions)
                self._path = os.path.join(sessions, new_ulid())
            # Absolute, so that it stays when the working directory changes.
            self._path = make_private_dir(self._path)
            return self._path

    def save(self, stem: str, text: str) -> str:
        """Write `text` to a new file, up to `SPILL_LIMIT_BYTES`, and return its path.

        Raises:
            OSError: The file cannot be written; a partial one is removed.
        """
        folder = make_private_dir(os.path.join(self.make(), "tool-output"))
        path = os.path.join(folder, f"{stem}-{new_ulid()}.txt")
        with os.fdopen(create_private_file(path), "wb") as file:
            try:
                left = SPILL_LIMIT_BYTES
                for piece in encode_pieces(text):
                    left -= file.write(piece[:left])
                file.flush()
            except OSError:
                os.unlink(path)
                raise
        return path


def _sweep(sessions: str) -> None:
    """Remove directories of sessions that wrote nothing for `RETENTION_DAYS`.

    Only names of sessions are removed. Unreadable ones stay: another session may be sweeping too.
    """
    from shutil import rmtree  # noqa: PLC0415 — only the first long result of a session pays

    oldest_ns = (now_ms() - _RETENTION_MS) * 1_000_000
    try:
        names = os.listdir(sessions)
    except OSError:
        return
    for path in (os.path.join(sessions, name) for name in names if is_ulid(name)):
        if _is_expired(path, oldest_ns):
            rmtree(path, ignore_errors=True)


def _is_expired(folder: str, oldest_ns: int) -> bool:
    """Tell whether a directory and everything in it is older than `oldest_ns`."""
    waiting = [folder]
    try:
        if os.path.islink(folder) or os.lstat(folder).st_mtime_ns >= oldest_ns:
            return False
        while waiting:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.stat(follow_symlinks=False).st_mtime_ns >= oldest_ns:
                        return False
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    except OSError:  # removed meanwhile, not a directory, or not searchable
        return False
    return True


async def fit_result(result: ToolResult, budget: OutputBudget, session: SessionDir, stem: str) -> ToolResult:
    """Return `result` itself if it fits the budget, else a cut one that names the file with the whole.

    Images and audio are neither counted nor cut.
    """
    text = "\n".join(
        [
            block.text if isinstance(block, TextContentBlock) else compact_json(block.value)
            for block in result.content
            if not _is_media(block)
        ]
    )
    if budget.admits(text):
        return result
    from anyio import to_thread  # noqa: PLC0415 — loaded wherever a tool runs, slow elsewhere

    clipping = await to_thread.run_sync(clip, text, budget, result.keep)
    where = await to_thread.run_sync(_save, session, stem, text)
    parts = {Keep.HEAD: "the beginning is shown", Keep.TAIL: "the end is shown", Keep.ENDS: "both ends are shown"}
    size = f"{clipping.lines:,} lines, {clipping.size:,} bytes: {parts[result.keep]}"
    if where.path is None:
        notice = f"[Cut here. {size}; the whole could not be kept: {where.error}.]"
    else:
        page = f"read it with an offset (the cut starts in line {clipping.next_line:,}) and a limit"
        kept = "" if clipping.size <= SPILL_LIMIT_BYTES else f" (its first {SPILL_LIMIT_BYTES:,} bytes)"
        notice = f"[Cut here. {size}. The whole{kept} is in {where.path}: {page}.]"
    shown = TextContentBlock(clipping.render(lambda _: notice))
    media = [block for block in result.content if _is_media(block)]
    details = {**result.details, "truncated": True, "spill": where.path, "bytes": clipping.size}
    return replace(result, content=(shown, *media), details=details)


@record
class _SpillFile:
    path: str | None
    error: str = ""


def _save(session: SessionDir, stem: str, text: str) -> _SpillFile:
    try:
        return _SpillFile(session.save(stem, text))
    except OSError as exc:
        return _SpillFile(None, str(exc))


def _is_media(block: ToolContentBlock) -> bool:
    if not isinstance(block, JsonContentBlock) or not isinstance(block.value, dict):
        return False
    kind, resource = block.value.get("type"), block.value.get("resource")
    is_blob = isinstance(resource, dict) and "blob" in resource
    return (isinstance(kind, str) and kind in _MEDIA) or is_blob
