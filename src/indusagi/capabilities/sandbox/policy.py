"""Sandbox policy: the settings, and the paths they mean in a given workspace."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.app_dirs import is_within, state_dir
from indusagi.core.records import record
from indusagi.core.secrets.places import (
    find_credential_places,
    find_named_sockets,
    find_socket_places,
    find_sockets_of_user,
)
from indusagi.core.time import SystemClock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

Mechanism: TypeAlias = Literal["bubblewrap", "landlock"]

PROTECTED = (".git/hooks", ".git/config", ".indusvx", ".indus")
"""Parts of a workspace from which programs are run later, outside of any sandbox."""

UNPROTECTED = "guard of protected paths in the workspace"
"""Lacking in Landlock: a part of a writable tree cannot be excluded."""
LOCAL_SOCKETS = "guard of local sockets"
"""Lacking in Landlock, which can't keep a command from a socket that has a path."""
ABSTRACT_SOCKETS = "guard of abstract sockets"
"""Lacking in bubblewrap where commands share the network and the kernel has no Landlock scopes."""


@record(kw_only=True)
class Sandbox:
    """What commands may do: read everything, write to the workspace.

    `required` runs nothing without a sandbox, `auto` uses what the machine has and reports it, `off` uses none.
    """

    mode: Literal["required", "auto", "off"] = "auto"
    network: bool = True
    """Whether commands reach the network. Without, each command has a loopback of its own: a server started by one
    command cannot be reached by the next."""
    read_only: bool = False
    """Whether only temporary files can be written."""
    writable: tuple[str, ...] = ()
    """Further writable paths."""
    hidden: tuple[str, ...] | None = None
    """Paths that cannot be read; `None`: the credentials and sockets of `core.secrets`. Our own state is always
    hidden."""
    protected: tuple[str, ...] = PROTECTED
    """Paths of the workspace that cannot be written, whether they exist or not."""
    mechanisms: tuple[Mechanism, ...] = ("bubblewrap", "landlock")
    """The mechanisms to try, in this order."""


@record
class SandboxLayout:
    """The paths of a sandbox on this machine now; every path is resolved."""

    workspace: str
    read_only: bool
    network: bool
    writable: tuple[str, ...]
    hidden: tuple[str, ...]
    """Only existing ones."""
    protected: tuple[str, ...]
    """Those that would be writable otherwise, whether they exist or not."""
    held: tuple[str, ...]
    """Directories with protected paths: moving one away would replace what it holds."""
    unwelcome: tuple[str, ...]
    """Absent files that must be absent afterwards."""
    links: tuple[str, ...]
    """Protected paths that are links: they cannot be mount points, so they can be replaced."""


def resolve_layout(sandbox: Sandbox, workspace: str, allowed: Collection[str] = ()) -> SandboxLayout:
    """Resolve the paths of a sandbox; blocks. Sockets that the `allowed` variables name stay visible."""
    workspace = os.path.realpath(workspace)
    writable = tuple(path for path in _resolve_all(sandbox.writable, workspace) if os.path.exists(path))
    roots = (*writable, *(() if sandbox.read_only else (workspace,)))
    protected = tuple(
        path
        for path in _list_protected(sandbox, workspace)
        if is_within(path, *roots) and (os.path.lexists(path) or os.access(f"{os.path.dirname(path)}/.", os.W_OK))
    )
    # A workspace in a hidden directory must be readable, and a path in a hidden directory can't be a mount point.
    hidden: list[str] = []
    for path in sorted(_find_hidden(sandbox, workspace, roots, allowed)):
        if not is_within(workspace, path) and not is_within(path, *hidden):
            hidden.append(path)
    # The directories between a protected path and its root.
    held: set[str] = set()
    for path in protected:
        folder = os.path.dirname(path)
        while is_within(folder, *roots) and folder not in roots:
            held.add(folder)
            folder = os.path.dirname(folder)
    return SandboxLayout(
        workspace=workspace,
        read_only=sandbox.read_only,
        network=sandbox.network,
        writable=writable,
        hidden=tuple(hidden),
        protected=protected,
        held=tuple(sorted(held)),
        # Files that would make git take its hooks and settings from elsewhere. An absent one cannot be covered: git
        # would read the cover.
        unwelcome=tuple(
            path
            for path in _further_files(workspace)
            if is_within(path, *roots)
            and not os.path.lexists(path)
            and any(is_within(kept, os.path.dirname(path)) for kept in protected)
        ),
        links=tuple(filter(os.path.islink, (os.path.join(workspace, ".git"), *protected))),
    )


def _find_hidden(sandbox: Sandbox, workspace: str, roots: tuple[str, ...], allowed: Collection[str]) -> Iterator[str]:
    """Yield the existing paths that commands don't see, resolved."""
    with suppress(OSError):  # no home, and so no state
        yield from filter(os.path.exists, (os.path.realpath(state_dir()),))
    if sandbox.hidden is not None:
        yield from filter(os.path.exists, _resolve_all(sandbox.hidden, workspace))
        return
    ours = {name: value for name, value in os.environ.items() if name not in allowed}
    kept = {os.path.realpath(path) for name in allowed for path in find_named_sockets(os.environ.get(name, ""))}
    home = os.path.expanduser("~")
    for place in find_credential_places(ours, home):
        if os.path.exists(place):
            yield os.path.realpath(place)
    for place in (*find_socket_places(ours), *find_sockets_of_user(SystemClock().now_ms() / 1000)):
        path = os.path.realpath(place)
        # Commands may serve and use sockets where they may write.
        if (
            os.path.exists(path)
            and not is_within(path, *roots)
            and not any(is_within(one, path) for one in (home, *kept))
        ):
            yield path


def _resolve_all(paths: tuple[str, ...], workspace: str) -> Iterator[str]:
    for path in paths:
        yield os.path.realpath(os.path.join(workspace, os.path.expanduser(path)))


def _list_protected(sandbox: Sandbox, workspace: str) -> Iterator[str]:
    entry = os.path.join(workspace, ".git")
    if any(path.startswith(".git/") for path in sandbox.protected):
        # The file that locates a repository decides which hooks run (gitrepository-layout(5)).
        yield from (entry,) if _is_file(entry) else ()
        yield from filter(_is_file, _further_files(workspace))
    for path in sandbox.protected:
        first, _, rest = path.partition("/")
        if first == ".git" and rest:
            yield from (os.path.join(folder, rest) for folder in find_git_directories(workspace))
        else:
            yield os.path.join(workspace, path)


def _further_files(workspace: str) -> Iterator[str]:
    """List the files that locate the settings, and those read beside them."""
    for folder in find_git_directories(workspace):
        yield from (os.path.join(folder, name) for name in ("commondir", "config.worktree"))


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def find_git_directories(workspace: str) -> list[str]:
    """List the directories with the settings and hooks of the workspace's repository.

    In a linked worktree `.git` is a file that names the worktree's directory, whose `commondir` names the shared one
    (https://git-scm.com/docs/gitrepository-layout).
    """
    entry = os.path.join(workspace, ".git")
    if os.path.isdir(entry):
        return [os.path.realpath(entry)]
    own = _read_pointer(entry, "gitdir:", workspace)
    if own is None:
        return []
    shared = _read_pointer(os.path.join(own, "commondir"), "", own)
    return [own] if shared is None else [own, shared]


def _read_pointer(file: str, prefix: str, base: str) -> str | None:
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            content = opened.read(4096)
    except OSError:
        return None
    if not content.startswith(prefix) or "\0" in content:
        return None
    return os.path.realpath(os.path.join(base, content.removeprefix(prefix).strip()))
