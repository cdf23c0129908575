"""Where a command is to start, and what is answered when it could not."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from indusagi.capabilities.backends import FileKind, SandboxMissing
from indusagi.capabilities.jobs.table import TableFull
from indusagi.runtime.contract import ToolResult

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext


async def start_folder(path: str, ctx: ToolContext) -> str:
    """Find the directory in which a command is to start.

    Raises:
        OSError: There is no such directory, or it is not for commands.
    """
    folder = await ctx.fs.resolve(path)
    if (await ctx.fs.stat(folder)).kind is not FileKind.DIRECTORY:
        raise NotADirectoryError(errno.ENOTDIR, "is not a directory")
    return folder


def not_started(exc: OSError) -> ToolResult:
    """Answer for a command that could not be started: why, and under which code."""
    if isinstance(exc, TableFull):
        return ToolResult.error(str(exc), code="failed")
    code = "denied" if isinstance(exc, SandboxMissing) else "spawn"
    return ToolResult.error(f"the command was not run: {exc.strerror or exc}", code=code)
