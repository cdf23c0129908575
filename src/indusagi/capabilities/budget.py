"""Output budget: how many bytes and lines of a result the model gets, and where the rest goes.

We cut at line ends if possible, and never inside a character. The notice about the cut doesn't count. Long texts are
encoded in pieces, because encoding holds the GIL.

The full text of a cut result goes to a file with mode 0600 in the session's private directory; the result tells the
model the path and how to page through it. If we can't write the file, the result says so. Files stay for a week.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace

from indusagi.core.app_dirs import create_private_file, make_private_dir, state_dir
from indusagi.core.ids import is_ulid, new_ulid
from indusagi.core.json import compact_json
from indusagi.core.records import record
from indusagi.core.time import find_safe_now, now_ms
from indusagi.runtime.contract import JsonContentBlock, Keep, TextContentBlock, ToolContentBlock, ToolResult

STANDARD_BYTES = 50 * 1024
STANDARD_LINES = 2_000
DEFAULT_PAGES = 10
"""Default number of PDF pages per call."""
MAX_PAGES = 20
"""Maximum number of PDF pages per call."""
MOST_ENTRIES = 1_000
"""Maximum number of entries in an `ls` listing."""
_HEAD_SHARE = 5
"""Keeping both ends, the head gets one part in this many: the end of an output is more informative."""
_PIECE = 1024 * 1024
_MAX_CHARACTER_BYTES = 6
"""We escape a lone surrogate as `\\ud800`."""


@record
class OutputBudget:
    """Maximum number of bytes and lines of a result."""

    max_bytes: int
    max_lines: int

    def admits(self, text: str) -> bool:
        """Return whether `text` fits without a cut."""
        if len(text) > self.max_bytes or count_lines(text) > self.max_lines:
            return False
        return _MAX_CHARACTER_BYTES * len(text) <= self.max_bytes or (len(_encode(text)) <= self.max_bytes)


UNLIMITED = OutputBudget(sys.maxsize, sys.maxsize)
"""For a toolbox that passes results on to a client with its own budget."""


def standard_budget() -> OutputBudget:
    """Return the budget of a result within a session: 50 KiB and 2,000 lines."""
    return OutputBudget(STANDARD_BYTES, STANDARD_LINES)


@record
class Clipping:
    """The remaining parts of a text; one of them is empty unless we keep both ends."""

    head: str
    tail: str
    lines: int
    """Line count of the full text."""
    size: int
    """Size of the full text in bytes."""

    @property
    def next_line(self) -> int:
        """1-based number of the first incomplete line."""
        return self.head.count("\n") + 1

    def render(self, notice: Callable[[Clipping], str]) -> str:
        """Join the parts, with a notice at the cut."""
        parts = (self.head.removesuffix("\n"), notice(self), self.tail)
        return "\n".join(part for part in parts if part)


def clip(text: str, budget: OutputBudget, keep: Keep) -> Clipping:
    """Cut `text` down to the budget."""
    part, whole = {Keep.HEAD: (1, 1), Keep.TAIL: (0, 1), Keep.ENDS: (1, _HEAD_SHARE)}[keep]
    head = OutputBudget(budget.max_bytes * part // whole, budget.max_lines * part // whole)
    tail = OutputBudget(budget.max_bytes - head.max_bytes, budget.max_lines - head.max_lines)
    size = sum(len(piece) for piece in encode_pieces(text))
    # Each character takes at least one byte; one extra character tells whether the text ends there.
    front = _encode(text[: head.max_bytes + 1])
    front = front[: _head_end(front, head)]
    back = _encode(text[max(0, len(text) - tail.max_bytes - 1) :])
    back = back[_tail_start(back, tail, floor=max(0, len(front) - size + len(back))) :]
    return Clipping(front.decode("utf-8"), back.decode("utf-8"), count_lines(text), size)


def encode_pieces(text: str) -> Iterator[bytes]:
    """Encode a text in pieces, escaping lone surrogates."""
    for start in range(0, len(text), _PIECE):
        yield _encode(text[start : start + _PIECE])


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")


def count_lines(text: str) -> int:
    """Count lines like an editor: a last line without a newline counts."""
    return text.count("\n") + (text[-1:] not in {"", "\n"})


def _head_end(data: bytes, budget: OutputBudget) -> int:
    """Find the end of the head: after a complete line, or inside the first one if it's too long."""
    end = min(len(data), budget.max_bytes)
    if end < len(data):
        newline = data.rfind(b"\n", 0, end)
        end = newline + 1 if newline >= 0 else _skip_continuation(data, end, -1)
    line_end = 0
    for _ in range(min(budget.max_lines, end)):
        newline = data.find(b"\n", line_end, end)
        if newline < 0:
            return end
        line_end = newline + 1
    return min(line_end, end)


def _tail_start(data: bytes, budget: OutputBudget, *, floor: int) -> int:
    """Find the start of the tail, not before `floor`."""
    start = max(floor, len(data) - budget.max_bytes)
    if start > floor:
        newline = data.find(b"\n", start - 1, len(data) - 1)
        start = newline + 1 if newline >= 0 else _skip_continuation(data, start, 1)
    line_start = len(data)
    for _ in range(budget.max_lines):
        if line_start <= start:
            return start
        newline = data.rfind(b"\n", start, line_start - 1)
        line_start = newline + 1 if newline >= 0 else start
    return max(line_start, start)


def _skip_continuation(data: bytes, index: int, step: int) -> int:
    """Move an index off the continuation bytes of a UTF-8 character (RFC 3629 §3)."""
    while 0 < index < len(data) and data[index] & 0xC0 == 0x80:
        index += step
    return index


# -- overflow -----------------------------------------------------------------------------------

SPILL_LIMIT_BYTES = 64 * 1024 * 1024
RETENTION_DAYS = 7
_RETENTION_MS = RETENTION_DAYS * 24 * 3_600_000
_MEDIA = frozenset({"image", "audio"})


class SessionDir:
    """A session's directory, created along with its first file. Thread-safe."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()

    def make(self) -> str:
        """Create the directory if necessary, sweep old sessions, and return its path.

        Raises `OSError` if it can't be created.
        """
        with self._lock:
            if self._path is None:
                sessions = os.path.join(make_private_dir(state_dir()), "sessions")
                make_private_dir(sessions)
                _sweep(sessions)
                self._path = os.path.join(sessions, new_ulid())
            # Absolute, so that it survives a change of the working directory.
            self._path = make_private_dir(self._path)
            return self._path

    def save(self, stem: str, text: str) -> str:
        """Write `text` to a new file, up to `SPILL_LIMIT_BYTES`, and return its path.

        Raises `OSError` if the file can't be written; no partial file remains.
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
    """Remove directories of sessions that haven't written anything for `RETENTION_DAYS`.

    Only touches names that look like sessions. Skips unreadable ones, as another session may be sweeping too. A clock
    that jumps ahead doesn't cause removals.
    """
    from shutil import rmtree  # noqa: PLC0415 — only the first long result of a session pays

    now, made_ns = now_ms(), dict[str, int]()
    with suppress(OSError):
        for name in filter(is_ulid, os.listdir(sessions)):
            path = os.path.join(sessions, name)
            with suppress(OSError):  # removed by another session
                made_ns[path] = os.lstat(path).st_mtime_ns
    safe_ms = find_safe_now(now, [now, *(at_ns // 1_000_000 for at_ns in made_ns.values())])
    for path in made_ns:
        if _is_expired(path, (safe_ms - _RETENTION_MS) * 1_000_000):
            rmtree(path, ignore_errors=True)


def _is_expired(folder: str, oldest_ns: int) -> bool:
    """Return whether a directory and everything in it is older than `oldest_ns`."""
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
    except OSError:  # removed in the meantime, not a directory, or not searchable
        return False
    return True


async def fit_result(result: ToolResult, budget: OutputBudget, session: SessionDir, stem: str) -> ToolResult:
    """Return `result` unchanged if it fits the budget, otherwise a cut one that points to the file with the full text.

    Ignores images and audio.
    """
    if budget is UNLIMITED:
        return result
    text = "\n".join(
        [
            block.text if isinstance(block, TextContentBlock) else compact_json(block.value)
            for block in result.content
            if isinstance(block, TextContentBlock) or not _is_media(block)
        ]
    )
    if budget.admits(text):
        return result
    from anyio import to_thread  # noqa: PLC0415 — loaded wherever a tool runs, slow elsewhere

    clipping = await to_thread.run_sync(clip, text, budget, result.keep)
    path, failure = None, ""
    try:
        path = await to_thread.run_sync(session.save, stem, text)
    except OSError as exc:
        failure = str(exc)
    parts = {Keep.HEAD: "the beginning is shown", Keep.TAIL: "the end is shown", Keep.ENDS: "both ends are shown"}
    size = f"{clipping.lines:,} lines, {clipping.size:,} bytes: {parts[result.keep]}"
    if path is None:
        notice = f"[Cut here. {size}; the whole could not be kept: {failure}.]"
    else:
        page = f"read it with an offset (the cut starts in line {clipping.next_line:,}) and a limit"
        kept = "" if clipping.size <= SPILL_LIMIT_BYTES else f" (its first {SPILL_LIMIT_BYTES:,} bytes)"
        notice = f"[Cut here. {size}. The whole{kept} is in {path}: {page}.]"
    shown = TextContentBlock(clipping.render(lambda _: notice))
    media = [block for block in result.content if _is_media(block)]
    details = {**result.details, "truncated": True, "spill": path, "bytes": clipping.size}
    return replace(result, content=(shown, *media), details=details)


def _is_media(block: ToolContentBlock) -> bool:
    if not isinstance(block, JsonContentBlock) or not isinstance(block.value, dict):
        return False
    kind, resource = block.value.get("type"), block.value.get("resource")
    is_blob = isinstance(resource, dict) and "blob" in resource
    return (isinstance(kind, str) and kind in _MEDIA) or is_blob
