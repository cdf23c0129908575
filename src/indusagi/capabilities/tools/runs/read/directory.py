"""Answers of `read` without a file: a directory listing, or names similar to a missing path."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.files.text.lines import format_path
from indusagi.capabilities.ports import FileKind
from indusagi.capabilities.tools.paths import path_trouble
from indusagi.core.text import format_count
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import DirEntry
    from indusagi.core.json import JsonValue

MAX_ENTRIES = 200
MAX_SUGGESTIONS = 3
_COMPARED_NAMES = 2_000
_SUFFIXES = {FileKind.DIRECTORY: "/", FileKind.SYMLINK: "@", FileKind.OTHER: "|"}
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


async def list_directory(path: str, ctx: ToolContext) -> ToolResult:
    """List the first entries of a directory."""
    entries = await ctx.fs.readdir(path)
    names = [format_path(entry.name) + _SUFFIXES.get(entry.kind, "") for entry in entries[:MAX_ENTRIES]]
    more = len(entries) - MAX_ENTRIES
    lines = [
        f"[{format_path(path)} is a directory; {format_count(len(entries), 'entry', 'entries')}]",
        *names,
        *([f"[{more:,} more; use ls or find]"] if more > 0 else []),
    ]
    resolved = await ctx.fs.resolve(path)
    return ToolResult.text("\n".join(lines), kind="directory", path=resolved, entries=len(entries))


async def report_missing_path(exc: OSError, path: str, ctx: ToolContext) -> ToolResult:
    """Report a path we can't stat, suggesting similar names if it's missing."""
    if exc.errno not in _MISSING:
        return path_trouble(exc, path)
    name = format_path(path)
    folder, last = os.path.split(path.rstrip("/"))
    try:
        entries = await ctx.fs.readdir(folder or ".")
    except OSError as folder_exc:
        if folder_exc.errno in _MISSING:
            message = f"{name} does not exist, and neither does a directory for it"
            return ToolResult.error(message, code="not_found")
        entries = ()  # not allowed to read the directory
    if any(entry.name == last for entry in entries):
        return ToolResult.error(f"{name} is a link whose target does not exist", code="not_found")
    similar = await to_thread.run_sync(find_similar_names, last, entries)
    paths: list[JsonValue] = [format_path(os.path.join(folder, other)) for other in similar]
    if name in paths:
        message = f"{name}: the name of this file is not valid UTF-8; rename it with bash"
        return ToolResult.error(message, code="encoding", near=paths)
    suggestion = f"; did you mean {' or '.join(str(other) for other in paths)}?" if paths else ""
    return ToolResult.error(f"{name} does not exist{suggestion}", code="not_found", near=paths)


def find_similar_names(name: str, entries: Sequence[DirEntry]) -> Sequence[str]:
    """Find up to three similar names, most similar first. Blocks."""
    from difflib import get_close_matches  # noqa: PLC0415 — for a missing path only

    names = [entry.name for entry in entries][:_COMPARED_NAMES]
    folded = name.casefold()
    stem = os.path.splitext(folded)[0]
    similar = [
        *(other for other in names if other.casefold() == folded),
        *(other for other in names if os.path.splitext(other.casefold())[0] == stem),
        *get_close_matches(name, names, n=MAX_SUGGESTIONS),
        *(other for other in names if len(stem) > 2 and stem in other.casefold()),
    ]
    return tuple(dict.fromkeys(similar))[:MAX_SUGGESTIONS]
