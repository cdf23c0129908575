"""A session's private directory, and the long answers that are kept there in full.

A result past its budget is cut for the model, never for the user: the whole text goes to a file of
mode 0600, and the cut result says where it is and how to page through it. When the file cannot be
written the result says that instead. Files are kept for a week.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from indusagi.capabilities.budget import Clipping, clip, encode_pieces
from indusagi.core.app_dirs import create_private_file, make_private_dir, state_dir
from indusagi.core.clock import now_ms
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.json import compact_json
from indusagi.runtime.content import JsonContentBlock, TextContentBlock
from indusagi.runtime.contract import Keep

if TYPE_CHECKING:
    from indusagi.capabilities.budget import OutputBudget
    from indusagi.runtime.content import ToolContentBlock
    from indusagi.runtime.contract import ToolResult

SPILL_LIMIT_BYTES = 64 * 1024 * 1024
"""The most that is kept of one answer."""
RETENTION_DAYS = 7
_RETENTION_MS = RETENTION_DAYS * 24 * 3_600_000
_MEDIA = frozenset({"image", "audio"})


class SessionDir:
    """A directory for one session's files, made when the first one is written.

    Long answers are saved by several threads at once; they get one directory all the same.
    """

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()

    def make(self) -> str:
        """Make the directory if need be, sweep out sessions long gone, and return its path.

        Raises:
            OSError: It cannot be made.
        """
        with self._lock:
            if self._path is None:
                sessions = os.path.join(make_private_dir(state_dir()), "sessions")
                make_private_dir(sessions)
                _sweep(sessions)
                self._path = os.path.join(sessions, new_ulid())
            # Absolute from now on: a session does not move with the working directory.
            self._path = make_private_dir(self._path)
            return self._path

    def save(self, stem: str, text: str) -> str:
        """Keep `text` in a new file and return its path; what is past the limit is cut off.

        Raises:
            OSError: The file cannot be written; nothing of it is left behind.
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
    """Remove the directories of sessions that wrote nothing for the time of retention.

    Only what bears the name of a session is ours to remove. What cannot be looked at or removed
    stays: another session may be sweeping, and the next one tries again.
    """
    from shutil import rmtree  # noqa: PLC0415 — only the first long answer of a session pays

    oldest_ns = (now_ms() - _RETENTION_MS) * 1_000_000
    try:
        names = os.listdir(sessions)
    except OSError:
        return
    for path in (os.path.join(sessions, name) for name in names if is_ulid(name)):
        if _is_left(path, oldest_ns):
            rmtree(path, ignore_errors=True)


def _is_left(folder: str, oldest_ns: int) -> bool:
    """Tell whether this is a directory in which nothing, itself included, is that young."""
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
    except OSError:  # gone meanwhile, not a directory, or closed to us
        return False
    return True


async def fit_result(result: ToolResult, budget: OutputBudget, session: SessionDir, stem: str) -> ToolResult:
    """Give back `result` itself when it fits the budget, else a cut one and the way to the rest.

    Pictures and sound are not counted and not cut: half of one is of no use to anybody.
    """
    text = "\n".join([_as_text(block) for block in result.content if not _is_media(block)])
    if budget.admits(text):
        return result
    from anyio import to_thread  # noqa: PLC0415 — loaded wherever a tool runs, dear elsewhere

    clipping = await to_thread.run_sync(clip, text, budget, result.keep)
    where = await to_thread.run_sync(_saved, session, stem, text)
    shown = TextContentBlock(clipping.render(lambda cut: _notice(cut, where, result.keep)))
    media = [block for block in result.content if _is_media(block)]
    details = {**result.details, "truncated": True, "spill": where.path, "bytes": clipping.size}
    return replace(result, content=(shown, *media), details=details)


@dataclass(frozen=True, slots=True)
class _Saved:
    path: str | None
    trouble: str = ""


def _saved(session: SessionDir, stem: str, text: str) -> _Saved:
    try:
        return _Saved(session.save(stem, text))
    except OSError as exc:
        return _Saved(None, str(exc))


def _notice(cut: Clipping, where: _Saved, keep: Keep) -> str:
    shown = {Keep.HEAD: "the beginning is shown", Keep.TAIL: "the end is shown", Keep.ENDS: "both ends are shown"}[keep]
    size = f"{cut.lines:,} lines, {cut.size:,} bytes: {shown}"
    if where.path is None:
        return f"[Cut here. {size}; the whole could not be kept: {where.trouble}.]"
    page = f"read it with an offset (the cut starts in line {cut.next_line:,}) and a limit"
    kept = "" if cut.size <= SPILL_LIMIT_BYTES else f" (its first {SPILL_LIMIT_BYTES:,} bytes)"
    return f"[Cut here. {size}. The whole{kept} is in {where.path}: {page}.]"


def _is_media(block: ToolContentBlock) -> bool:
    if not isinstance(block, JsonContentBlock) or not isinstance(block.value, dict):
        return False
    kind, resource = block.value.get("type"), block.value.get("resource")
    is_blob = isinstance(resource, dict) and "blob" in resource
    return (isinstance(kind, str) and kind in _MEDIA) or is_blob


def _as_text(block: ToolContentBlock) -> str:
    return block.text if isinstance(block, TextContentBlock) else compact_json(block.value)
