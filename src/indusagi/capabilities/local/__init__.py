"""The context of a session on this machine."""

from __future__ import annotations

import os

from indusagi.capabilities.budget import standard_budget
from indusagi.capabilities.context import Framework, ToolContext
from indusagi.capabilities.files.paths.policy import workspace_policy
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.ports import Fs, Shell
from indusagi.capabilities.read_state import ReadState
from indusagi.core.cancel import CancelToken


def make_local_context(
    cwd: str | os.PathLike[str], fs: Fs | None = None, shell: Shell | None = None, framework: Framework | None = None
) -> ToolContext:
    """Make a context that works in `cwd` with this machine's files and commands.

    Its files are those of `cwd`: what is outside is refused, but for the answers of sessions that
    were too long to show. A host that wants it otherwise hands in a `LocalFs` with a policy of its
    own, or with none. Nothing is opened or made here. Use `dataclasses.replace` for another budget
    or session directory. Without a framework of the caller's there is one that remembers what was
    read.
    """
    # Only a relative path needs a look at the system, which is not for the event loop.
    root = os.path.normpath(cwd) if os.path.isabs(cwd) else os.path.abspath(cwd)
    return ToolContext(
        cwd=root,
        fs=fs or LocalFs(root, workspace_policy(root)),
        shell=shell or LocalShell(root),
        cancel=CancelToken(),
        budget=standard_budget(),
        framework=framework or Framework(read_state=ReadState()),
    )
