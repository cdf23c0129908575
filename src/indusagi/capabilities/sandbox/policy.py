"""What a command may touch: the setting, and what it comes to in a given workspace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.app_dirs import state_dir
from indusagi.core.paths import is_within

if TYPE_CHECKING:
    from collections.abc import Iterator

Mechanism: TypeAlias = Literal["bubblewrap", "landlock"]

HIDDEN = (
    "~/.ssh",
    "~/.aws",
    "~/.azure",
    "~/.gnupg",
    "~/.kube",
    "~/.docker",
    "~/.config/gcloud",
    "~/.config/gh",
    "~/.netrc",
    "~/.git-credentials",
    "~/.pypirc",
    "/run/user",
    "/run/dbus/system_bus_socket",
    "/run/systemd/private",
    "/run/docker.sock",
    "/run/containerd/containerd.sock",
    "/run/podman/podman.sock",
)
"""Where people keep keys, and the sockets of those who run programs for others, outside of any
sandbox. Our own state directory is hidden with them."""
PROTECTED = (".git/hooks", ".git/config", ".indusvx", ".indus")
"""Parts of a workspace from which something is run later, outside of any sandbox."""

UNPROTECTED = "guard of protected paths in the workspace"
"""What Landlock has not: of a tree that may be written it can keep nothing back."""
LOCAL_SOCKETS = "guard of local sockets"
"""What no mechanism has: a socket that can be seen can be talked to, but for those hidden above."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How commands are to be held in: everything can be read, the workspace can be written.

    `required` runs nothing without a sandbox, `auto` takes what the machine has and says what that
    is, `off` wants none.
    """

    mode: Literal["required", "auto", "off"] = "auto"
    network: bool = True
    """Whether commands reach the network. A network of its own has a loopback of its own, so that
    a server started by one command cannot be reached by the next."""
    read_only: bool = False
    """Whether not even the workspace can be written: only temporary files."""
    writable: tuple[str, ...] = ()
    """Paths that can be written besides the workspace."""
    hidden: tuple[str, ...] = HIDDEN
    """Paths that cannot be read."""
    protected: tuple[str, ...] = PROTECTED
    """Paths of the workspace that cannot be written, be they there or not."""
    mechanisms: tuple[Mechanism, ...] = ("bubblewrap", "landlock")
    """What to try, in this order."""


@dataclass(frozen=True, slots=True)
class SandboxLayout:
    """What a sandbox comes to on this machine at this moment; every path is resolved."""

    workspace: str
    read_only: bool
    network: bool
    writable: tuple[str, ...]
    hidden: tuple[str, ...]
    """Only those that are there."""
    protected: tuple[str, ...]
    """Those that could be written otherwise, be they there or not."""
    held: tuple[str, ...]
    """Folders that hold something protected: to move one away would be to replace what it holds."""
    unwelcome: tuple[str, ...]
    """Files that are not there and must not be there afterwards."""
    links: tuple[str, ...]
    """What is protected and a link. Nothing can be mounted on one: it can be replaced."""


def resolve_layout(sandbox: Sandbox, workspace: str) -> SandboxLayout:
    """Look at the machine; not for the event loop."""
    workspace = os.path.realpath(workspace)
    writable = tuple(path for path in _resolved(sandbox.writable, workspace) if os.path.exists(path))
    roots = (*writable, *(() if sandbox.read_only else (workspace,)))
    protected = tuple(
        path
        for path in _protected(sandbox, workspace)
        if is_within(path, *roots) and (os.path.lexists(path) or _could_appear(path))
    )
    return SandboxLayout(
        workspace=workspace,
        read_only=sandbox.read_only,
        network=sandbox.network,
        writable=writable,
        hidden=tuple(path for path in _hidden(sandbox, workspace) if os.path.exists(path)),
        protected=protected,
        held=tuple(sorted({folder for path in protected for folder in _above(path, roots)})),
        unwelcome=tuple(
            path for path in _ways_around(protected, workspace) if is_within(path, *roots) and not os.path.lexists(path)
        ),
        links=tuple(filter(os.path.islink, (os.path.join(workspace, ".git"), *protected))),
    )


def _resolved(paths: tuple[str, ...], workspace: str) -> Iterator[str]:
    for path in paths:
        yield os.path.realpath(os.path.join(workspace, os.path.expanduser(path)))


def _hidden(sandbox: Sandbox, workspace: str) -> Iterator[str]:
    for path in _resolved(sandbox.hidden, workspace):
        # Whoever works in such a place has to see it.
        if not is_within(workspace, path):
            yield path
    try:
        yield os.path.realpath(state_dir())
    except OSError:  # no home, and so no state
        return


def _protected(sandbox: Sandbox, workspace: str) -> Iterator[str]:
    entry = os.path.join(workspace, ".git")
    if any(path.startswith(".git/") for path in sandbox.protected):
        # What says where a repository is decides which hooks are run.
        yield from (entry,) if _is_file(entry) else ()
        yield from filter(_is_file, _further_files(workspace))
    for path in sandbox.protected:
        first, _, rest = path.partition("/")
        if first == ".git" and rest:
            yield from (os.path.join(folder, rest) for folder in find_git_directories(workspace))
        else:
            yield os.path.join(workspace, path)


def _above(path: str, roots: tuple[str, ...]) -> Iterator[str]:
    """Name the folders between a path and the root that it lies in."""
    folder = os.path.dirname(path)
    while is_within(folder, *roots) and folder not in roots:
        yield folder
        folder = os.path.dirname(folder)


def _ways_around(protected: tuple[str, ...], workspace: str) -> Iterator[str]:
    """Name the files that would have git take its hooks and settings from somewhere else.

    One that is missing cannot be covered: git reads it wherever there is one.
    """
    for path in _further_files(workspace):
        if any(is_within(kept, os.path.dirname(path)) for kept in protected):
            yield path


def _further_files(workspace: str) -> Iterator[str]:
    """Name what says where the settings are, and what is read beside them."""
    for folder in find_git_directories(workspace):
        yield from (os.path.join(folder, name) for name in ("commondir", "config.worktree"))


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def find_git_directories(workspace: str) -> list[str]:
    """Name the folders that hold the settings and hooks of a workspace's repository.

    A linked worktree has a file in the place of `.git`, which names its own folder; that one names
    the folder it shares with the others.
    """
    entry = os.path.join(workspace, ".git")
    if os.path.isdir(entry):
        return [os.path.realpath(entry)]
    own = _named_in(entry, "gitdir:", workspace)
    if own is None:
        return []
    shared = _named_in(os.path.join(own, "commondir"), "", own)
    return [own] if shared is None else [own, shared]


def _named_in(file: str, prefix: str, base: str) -> str | None:
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            said = opened.read(4096)
    except OSError:
        return None
    if not said.startswith(prefix) or "\0" in said:
        return None
    return os.path.realpath(os.path.join(base, said.removeprefix(prefix).strip()))


def _could_appear(path: str) -> bool:
    parent = os.path.dirname(path)
    return os.path.isdir(parent) and os.access(parent, os.W_OK)
