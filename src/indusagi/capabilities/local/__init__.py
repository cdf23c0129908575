"""Context of a local session."""

from __future__ import annotations

import os

from indusagi.capabilities.budget import standard_budget
from indusagi.capabilities.context import Framework, ReadState, ToolContext
from indusagi.capabilities.files.policy import workspace_policy
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.ports import Fs, Shell
from indusagi.core.cancel import CancelToken


def make_local_context(
    cwd: str | os.PathLike[str], fs: Fs | None = None, shell: Shell | None = None, framework: Framework | None = None
) -> ToolContext:
    """Create a context that works in `cwd` with local files and commands.

    Refuses paths outside `cwd`, except files of results past the budget; for a different policy, pass your own
    `LocalFs`. Doesn't open or create anything. Use `dataclasses.replace` to change the budget or session directory.
    Without a `framework`, the context tracks which files were read. Closing the context closes its shell; a context
    derived from it with another `closing`, such as a sub-agent's, leaves the shell open.
    """
    # Avoid a system call unless the path is relative.
    root = os.path.normpath(cwd) if os.path.isabs(cwd) else os.path.abspath(cwd)
    shell = shell or LocalShell(root)
    context = ToolContext(
        cwd=root,
        fs=fs or LocalFs(root, workspace_policy(root)),
        shell=shell,
        cancel=CancelToken(),
        budget=standard_budget(),
        framework=framework or Framework(read_state=ReadState()),
    )
    if isinstance(shell, LocalShell):
        context.closing.add(shell.aclose)
    return context
