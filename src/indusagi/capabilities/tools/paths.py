"""Path arguments of tools, and error results for paths."""

from __future__ import annotations

import errno
import os
from urllib.parse import unquote

from indusagi.capabilities.files.text.lines import format_path
from indusagi.capabilities.ports import PathRefused
from indusagi.core.json import JsonObject
from indusagi.runtime.contract import ToolResult

PATH_ALIASES = {"file_path": "path", "filePath": "path", "filepath": "path", "file": "path"}
"""Names used by other agents."""
_FILE_URL = "file://"
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
