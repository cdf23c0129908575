"""A path as a model gives it, and what is answered when nothing can be done with it."""

from __future__ import annotations

import errno
import os
from urllib.parse import unquote

from indusagi.capabilities.files.text.display import format_path
from indusagi.capabilities.ports import PathRefused
from indusagi.core.json import JsonObject
from indusagi.runtime.contract import ToolResult

PATH_ALIASES = {"file_path": "path", "filePath": "path", "filepath": "path", "file": "path"}
"""What other agents call the same argument."""
_ADDRESS = "file://"
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
    """Read a path from the arguments: relative, absolute, with a `~`, or as a `file://` address."""
    given = arguments.get(name)
    text = given if isinstance(given, str) and given else default
    if text.startswith(_ADDRESS):
        return _addressed(text.removeprefix(_ADDRESS)) or default
    return os.path.expanduser(text) if text.startswith("~") else text


def _addressed(rest: str) -> str:
    """Read what follows `file://`: a path, behind the name of this machine if there is one.

    Any other name is the start of a relative path. A `#` or a `?` is a part of the name: to cut
    there would be to open another file.
    """
    host, slash, path = rest.partition("/")
    named = slash + path if slash and host in {"", "localhost"} else rest
    return unquote(named, errors="surrogateescape")


def path_trouble(exc: OSError, path: str) -> ToolResult:
    """Answer for a path at which nothing could be done: what, why, and under which code."""
    shown = format_path(path)
    if isinstance(exc, PathRefused):
        return ToolResult.error(f"{shown}: {exc.strerror}", code="denied", refusal=exc.refusal)
    code = _CODES.get(exc.errno or 0, "failed")
    return ToolResult.error(f"{shown}: {exc.strerror or exc}", code=code)
