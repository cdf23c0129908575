"""Context of a session on this machine."""

from __future__ import annotations

import os

from indusagi.capabilities.budget import standard_budget
from indusagi.capabilities.context import Framework, ReadState, ToolContext
from indusagi.capabilities.files.paths.policy import workspace_policy
from indusagi.capabilities.local.fs import LocalFs
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.ports import Fs, Shell
from indusagi.core.cancel import CancelToken


def make_local_context(
    cwd: str | os.PathLike[str], fs: Fs | None = None, shell: Shell | None = None, framework: Framework | None = None
) -> ToolContext:
    """Make a context that works in `cwd` with the files and commands of this machine.

    Paths outside of `cwd` are refused, except the files of results past the budget; a host that wants another policy
    passes a `LocalFs` of its own. Nothing is opened or created here. `dataclasses.replace` sets another budget or
    session directory. Without a `framework` the context remembers which files were read. Closing the context closes
    its shell; one that is made of it with another `closing`, as that of a sub-agent, leaves the shell open.
    """
    # Only a relative path needs a system call.
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
