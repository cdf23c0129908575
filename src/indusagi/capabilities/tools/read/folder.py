"""What `read` answers where there is no file: a listing, or the names that may have been meant."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.files.text.display import format_path
from indusagi.capabilities.ports import FileKind
from indusagi.capabilities.tools.paths import path_trouble
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import DirEntry
    from indusagi.core.json import JsonValue

MOST_ENTRIES = 200
MOST_NAMES = 3
_NAMES_COMPARED = 2_000
_MARKS = {FileKind.DIRECTORY: "/", FileKind.SYMLINK: "@", FileKind.OTHER: "|"}
_NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


async def folder_listing(path: str, ctx: ToolContext) -> ToolResult:
    """List a directory, the first of its entries if there are many."""
    entries = await ctx.fs.readdir(path)
    name = format_path(path)
    listed = entries[:MOST_ENTRIES]
    shown = [format_path(entry.name) + _MARKS.get(entry.kind, "") for entry in listed]
    more = len(entries) - MOST_ENTRIES
    lines = [
        f"[{name} is a directory; {_entries(len(entries))}]",
        *shown,
        *([f"[{more:,} more; use ls or find]"] if more > 0 else []),
    ]
    resolved = await ctx.fs.resolve(path)
    return ToolResult.text("\n".join(lines), kind="directory", path=resolved, entries=len(entries))


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count:,} entries"


async def report_missing_path(exc: OSError, path: str, ctx: ToolContext) -> ToolResult:
    """Answer for a path that cannot be looked at; for a missing one, with names like it."""
    if exc.errno not in _NOT_THERE:
        return path_trouble(exc, path)
    name = format_path(path)
    folder, last = os.path.split(path.rstrip("/"))
    entries = await _entries_of(folder or ".", ctx)
    if entries is None:
        why = f"{name} does not exist, and neither does a directory for it"
        return ToolResult.error(why, code="not_found")
    if any(entry.name == last for entry in entries):
        return ToolResult.error(f"{name} is a link that leads nowhere", code="not_found")
    near = await to_thread.run_sync(near_names, last, entries)
    paths: list[JsonValue] = [format_path(os.path.join(folder, other)) for other in near]
    if name in paths:
        why = f"{name}: the file that is shown so has a name that is no text; rename it with bash"
        return ToolResult.error(why, code="encoding", near=paths)
    hint = f"; did you mean {' or '.join(str(other) for other in paths)}?" if paths else ""
    return ToolResult.error(f"{name} does not exist{hint}", code="not_found", near=paths)


async def _entries_of(folder: str, ctx: ToolContext) -> Sequence[DirEntry] | None:
    """List a directory: nothing of one that is closed to us, None if there is none."""
    try:
        return await ctx.fs.readdir(folder)
    except OSError as exc:
        return None if exc.errno in _NOT_THERE else ()


def near_names(name: str, entries: Sequence[DirEntry]) -> Sequence[str]:
    """Find up to three names like this one, the likeliest first; for a thread."""
    from difflib import get_close_matches  # noqa: PLC0415 — for a name that does not exist

    names = [entry.name for entry in entries][:_NAMES_COMPARED]
    folded = name.casefold()
    stem = os.path.splitext(folded)[0]
    alike = [
        *(other for other in names if other.casefold() == folded),
        *(other for other in names if os.path.splitext(other.casefold())[0] == stem),
        *get_close_matches(name, names, n=MOST_NAMES),
        *(other for other in names if len(stem) > 2 and stem in other.casefold()),
    ]
    return tuple(dict.fromkeys(alike))[:MOST_NAMES]
