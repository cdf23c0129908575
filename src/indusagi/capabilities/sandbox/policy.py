"""Sandbox policy: the settings, and the paths they resolve to in a workspace."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.app_dirs import is_within, read_git_pointer, state_dir
from indusagi.core.records import record
from indusagi.core.secrets import find_credential_places, find_named_sockets, find_socket_places, find_sockets_of_user
from indusagi.core.time import SystemClock

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

Mechanism: TypeAlias = Literal["bubblewrap", "landlock"]

PROTECTED = (".git/hooks", ".git/config", ".indusvx", ".indus")
"""Parts of a workspace that later run programs outside any sandbox."""

UNPROTECTED = "guard of protected paths in the workspace"
"""Missing in Landlock, which can't exclude parts of a writable tree."""
LOCAL_SOCKETS = "guard of local sockets"
"""Missing in Landlock, which can't stop a command from connecting to a socket that has a path."""
ABSTRACT_SOCKETS = "guard of abstract sockets"
"""Missing in bubblewrap if commands share the network and the kernel lacks Landlock scopes."""


@record(kw_only=True)
class Sandbox:
    """Restrictions on commands. By default they can read everything and write to the workspace.

    `required` runs nothing without a sandbox, `auto` uses and reports the best available, `off` uses none.
    """

    mode: Literal["required", "auto", "off"] = "auto"
    network: bool = True
    """Whether commands can reach the network. Otherwise each command gets a separate loopback, so it can't reach a
    server started by an earlier one."""
    read_only: bool = False
    """Whether commands can only write temporary files."""
    writable: tuple[str, ...] = ()
    hidden: tuple[str, ...] | None = None
    """Unreadable paths; `None` means the credentials and sockets of `core.secrets`. Our own state is always hidden."""
    protected: tuple[str, ...] = PROTECTED
    """Read-only paths of the workspace, whether they exist or not."""
    mechanisms: tuple[Mechanism, ...] = ("bubblewrap", "landlock")


@record
class SandboxLayout:
    """The current paths of a sandbox on this machine, all resolved."""

    workspace: str
    read_only: bool
    network: bool
    writable: tuple[str, ...]
    hidden: tuple[str, ...]
    """Existing paths only."""
    protected: tuple[str, ...]
    """Paths that would otherwise be writable, whether they exist or not."""
    held: tuple[str, ...]
    """Directories with protected or hidden paths: moving one away would replace or uncover its contents."""
    unwelcome: tuple[str, ...]
    """Missing files that must not exist afterwards."""
    links: tuple[str, ...]
    """Protected paths that are links: they can't be mount points, so commands can replace them."""


def resolve_layout(sandbox: Sandbox, workspace: str, allowed: Collection[str] = ()) -> SandboxLayout:
    """Resolve the paths of a sandbox. Blocks. Sockets in the `allowed` variables stay visible."""
    workspace = os.path.realpath(workspace)
    writable = tuple(path for path in _resolve_all(sandbox.writable, workspace) if os.path.exists(path))
    roots = (*writable, *(() if sandbox.read_only else (workspace,)))
    protected = tuple(
        path
        for path in _list_protected(sandbox, workspace, writable)
        if is_within(path, *roots) and (os.path.lexists(path) or os.access(f"{os.path.dirname(path)}/.", os.W_OK))
    )
    # A workspace in a hidden directory must stay readable, and paths in a hidden directory can't be mount points.
    hidden: list[str] = []
    for path in sorted(_find_hidden(sandbox, workspace, roots, allowed)):
        if not is_within(workspace, path) and not is_within(path, *hidden):
            hidden.append(path)
    return SandboxLayout(
        workspace=workspace,
        read_only=sandbox.read_only,
        network=sandbox.network,
        writable=writable,
        hidden=tuple(hidden),
        protected=protected,
        held=tuple(sorted(list_folders((*protected, *hidden), roots))),
        # These files would redirect git to other hooks and settings. We can't cover a missing one, since git would
        # read the cover.
        unwelcome=tuple(
            path
            for root in (workspace, *writable)
            for path in _further_files(root)
            if is_within(path, *roots)
            and not os.path.lexists(path)
            and any(is_within(kept, os.path.dirname(path)) for kept in protected)
        ),
        links=tuple(filter(os.path.islink, (os.path.join(workspace, ".git"), *protected))),
    )


def list_folders(paths: Iterable[str], roots: Collection[str]) -> set[str]:
    """List the directories between paths and the roots they lie in."""
    folders: set[str] = set()
    for path in paths:
        folder = os.path.dirname(path)
        while is_within(folder, *roots) and folder not in roots:
            folders.add(folder)
            folder = os.path.dirname(folder)
    return folders


def _find_hidden(sandbox: Sandbox, workspace: str, roots: tuple[str, ...], allowed: Collection[str]) -> Iterator[str]:
    """Yield the existing paths to hide from commands, resolved."""
    with suppress(OSError):  # no home, so no state
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
        # Commands may serve and use sockets wherever they can write.
        if (
            os.path.exists(path)
            and not is_within(path, *roots)
            and not any(is_within(one, path) for one in (home, *kept))
        ):
            yield path


def _resolve_all(paths: tuple[str, ...], workspace: str) -> Iterator[str]:
    for path in paths:
        yield os.path.realpath(os.path.join(workspace, os.path.expanduser(path)))


def _list_protected(sandbox: Sandbox, workspace: str, writable: tuple[str, ...]) -> Iterator[str]:
    for root in (workspace, *writable):
        entry = os.path.join(root, ".git")
        if any(path.startswith(".git/") for path in sandbox.protected):
            # The file that points to a repository determines which hooks run (gitrepository-layout(5)).
            yield from (entry,) if _is_file(entry) else ()
            yield from filter(_is_file, _further_files(root))
        for path in sandbox.protected:
            first, _, rest = path.partition("/")
            if first == ".git" and rest:
                yield from (os.path.join(folder, rest) for folder in find_git_directories(root))
            elif root == workspace or os.path.lexists(os.path.join(root, path)):
                yield os.path.join(root, path)


def _further_files(workspace: str) -> Iterator[str]:
    """Yield the files that point to git's settings, and the ones it reads along with them."""
    for folder in find_git_directories(workspace):
        yield from (os.path.join(folder, name) for name in ("commondir", "config.worktree"))


def _is_file(path: str) -> bool:
    return os.path.isfile(path) and not os.path.islink(path)


def find_git_directories(workspace: str) -> list[str]:
    """List the directories with the settings and hooks of the workspace's repository.

    In a linked worktree, `.git` is a file pointing to the worktree's directory, whose `commondir` points to the shared
    one (https://git-scm.com/docs/gitrepository-layout).
    """
    entry = os.path.join(workspace, ".git")
    if os.path.isdir(entry):
        return [os.path.realpath(entry)]
    own = read_git_pointer(entry, "gitdir:", workspace)
    if own is None:
        return []
    shared = read_git_pointer(os.path.join(own, "commondir"), "", own)
    return [own] if shared is None else [own, shared]
