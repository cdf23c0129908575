"""Path arguments of tools, and error results for paths."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from urllib.parse import unquote

from anyio import to_thread

from indusagi.capabilities.context import ToolContext
from indusagi.capabilities.files.lines import format_path
from indusagi.capabilities.ports import DirEntry, PathRefused
from indusagi.core.json import JsonObject, JsonValue
from indusagi.runtime.contract import ToolResult

PATH_ALIASES = {"file_path": "path", "filePath": "path", "filepath": "path", "file": "path"}
"""Names used by other agents."""
_FILE_URL = "file://"
_MAX_SUGGESTIONS = 3
_COMPARED_NAMES = 2_000
_MISSING = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_CODES = {
    errno.ENOENT: "not_found",
    errno.ENOTDIR: "not_found",
    errno.ELOOP: "not_found",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    errno.EISDIR: "is_directory",
    errno.EILSEQ: "encoding",
    errno.ENOSPC: "no_space",
    errno.EFBIG: "too_large",
    errno.ENOTSUP: "unsupported",
    errno.ETIMEDOUT: "timeout",
}


def path_given(arguments: JsonObject, name: str = "path", default: str = ".") -> str:
    """Read a path from the arguments: relative, absolute, with a `~`, or as a `file://` URL."""
    given = arguments.get(name)
    text = given if isinstance(given, str) and given else default
    if text.startswith(_FILE_URL):
        # RFC 8089. A host other than localhost starts a relative path; `#` and `?` are part of the name.
        rest = text.removeprefix(_FILE_URL)
        host, slash, path = rest.partition("/")
        named = slash + path if slash and host in {"", "localhost"} else rest
        return unquote(named, errors="surrogateescape") or default
    return os.path.expanduser(text) if text.startswith("~") else text


def path_trouble(exc: OSError, path: str) -> ToolResult:
    """Build the error result for a path: name, reason, code."""
    shown = format_path(path)
    if isinstance(exc, PathRefused):
        return ToolResult.error(f"{shown}: {exc.strerror}", code="denied", refusal=exc.refusal)
    code = _CODES.get(exc.errno or 0, "failed")
    return ToolResult.error(f"{shown}: {exc.strerror or exc}", code=code)


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
    similar = await to_thread.run_sync(_find_similar_names, last, entries)
    paths: list[JsonValue] = [format_path(os.path.join(folder, other)) for other in similar]
    if name in paths:
        message = f"{name}: the name of this file is not valid UTF-8; rename it with bash"
        return ToolResult.error(message, code="encoding", near=paths)
    suggestion = f"; did you mean {' or '.join(str(other) for other in paths)}?" if paths else ""
    return ToolResult.error(f"{name} does not exist{suggestion}", code="not_found", near=paths)


def _find_similar_names(name: str, entries: Sequence[DirEntry]) -> Sequence[str]:
    """Find up to three similar names, most similar first. Blocks."""
    from difflib import get_close_matches  # noqa: PLC0415 — for a missing path only

    names = [entry.name for entry in entries][:_COMPARED_NAMES]
    folded = name.casefold()
    stem = os.path.splitext(folded)[0]
    similar = [
        *(other for other in names if other.casefold() == folded),
        *(other for other in names if os.path.splitext(other.casefold())[0] == stem),
        *get_close_matches(name, names, n=_MAX_SUGGESTIONS),
        *(other for other in names if len(stem) > 2 and stem in other.casefold()),
    ]
    return tuple(dict.fromkeys(similar))[:_MAX_SUGGESTIONS]
