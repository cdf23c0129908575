"""Path policy: which paths the native tools may read and write, why not others, and how to open them.

A policy only sees resolved paths. It never asks the user: a caller that did passes the answer in as `permits`.

Some paths in the workspace are protected because git, the next login shell or this program will act on them later, or
because they hold credentials. Protection applies before a path exists, to every spelling a file system may accept for
it, and wherever a symbolic link has moved it.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import sys
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from types import MappingProxyType
from typing import TypeAlias

from indusagi.capabilities.files.lines import format_path
from indusagi.capabilities.ports import PathRefused, Refusal
from indusagi.core.app_dirs import is_within, parts_below, read_git_pointer, state_dir
from indusagi.core.records import record
from indusagi.core.secrets import find_credential_places
from indusagi.core.text import clean_text

SPECIAL_DIRECTORIES = ("/proc", "/sys", "/dev")
"""The kernel's own file systems: reading may have side effects, or never end."""
_GIT = "git's own records, which may hold commands"
_OURS = "settings or records of this program"
_SHELL = "a file that the shell or the desktop obeys at the next start"
_SECRET = "credentials of the user"
_PROTECTED_NAMES = {".git": _GIT, ".indusvx": _OURS, ".indus": _OURS}
_IN_HOME = {
    _GIT: ".gitconfig",
    _SHELL: (
        ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv"
        " .zprofile .zlogin .zlogout .kshrc .cshrc .tcshrc .login .inputrc .xprofile .xinitrc"
        " .xsession .xsessionrc .pam_environment .local/share/systemd Library/LaunchAgents"
    ),
    _OURS: ".indus .indusvx",
}
_IN_CONFIG = {_GIT: "git", _SHELL: "fish autostart systemd environment.d", _OURS: "indus indusvx"}
_DATABASES = ("ledger.db", "calls.db", "tasks.db", "tokens.db")
_IN_STATE = (
    *("cluster.key", "serve-token", "conversations", "credentials", "secrets", "addons"),
    *(name + suffix for name in _DATABASES for suffix in ("", "-wal", "-shm", "-journal")),
)
"""Our files that may hold credentials: the gateway's token, sign-ins, conversations, server answers. Tools may read
our other files, above all results that were too long."""


def _no_reasons() -> Mapping[str, str]:
    return MappingProxyType({})


@record(kw_only=True)
class ProtectedPaths:
    """Protected names and paths, each with a reason that completes a sentence."""

    names: Mapping[str, str] = field(default_factory=_no_reasons)
    """Names of files and directories to protect everywhere."""
    places: Mapping[str, str] = field(default_factory=_no_reasons)
    """Absolute paths, including everything below them."""

    def find_reason(self, resolved: str, base: str) -> str | None:
        """Return the reason a resolved path within `base` isn't writable, or None if it is."""
        below = [_fold(part) for part in parts_below(resolved, base)]
        for name, reason in self.names.items():
            if name in below:
                return reason
        folded = _fold(resolved)
        named = ((os.path.join(base, name), reason) for name, reason in self.names.items())
        for place, reason in _iter_locations([*self.places.items(), *named]):
            if is_within(folded, _fold(place)):
                return reason
        return _GIT if ".git" in self.names and _is_git_directory(resolved, base) else None

    def hidden_below(self, base: str) -> Iterator[str]:
        """Yield the credentials within a directory, which aren't readable either.

        Only touches the file system if the directory is or contains a home.
        """
        secrets = [(path, _SECRET) for path, reason in self.places.items() if reason == _SECRET]
        return (place for place, _ in _iter_locations([row for row in secrets if is_within(row[0], base)]))


def _iter_locations(rows: Sequence[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield each path as written, then where symbolic links lead, which takes a look at the file system."""
    yield from rows

    @functools.cache
    def list_names(folder: str) -> frozenset[str]:
        try:
            return frozenset(os.listdir(folder))
        except OSError:
            return frozenset()

    @functools.cache
    def resolve(path: str) -> str:
        parent, name = os.path.split(path)
        if parent == path:
            return path
        real = os.path.join(resolve(parent), name)
        is_there = name in list_names(os.path.dirname(real)) or not os.access(os.path.dirname(real), os.R_OK)
        return real_path(real) if is_there and os.path.islink(real) else real

    for place, reason in rows:
        folder, name = os.path.split(place)
        for real in dict.fromkeys((os.path.join(resolve(folder), name), resolve(place))):
            if real != place:
                yield real, reason


def default_protected_paths() -> ProtectedPaths:
    """Build the protected paths of this user from the environment."""
    places: dict[str, str] = {}
    home = os.path.expanduser("~")
    states: list[str] = []
    if os.path.isabs(home):
        config = os.environ.get("XDG_CONFIG_HOME", "")
        for folder, rows in ((home, _IN_HOME), (os.path.join(home, ".config"), _IN_CONFIG), (config, _IN_CONFIG)):
            if os.path.isabs(folder):
                places |= {
                    os.path.join(folder, name): reason for reason, names in rows.items() for name in names.split()
                }
        # State of other runs, which may have used a different XDG_STATE_HOME.
        states.append(os.path.join(home, ".local", "state", "indus"))
    try:
        states.append(state_dir())
    except OSError:
        pass  # no home, so no state to protect
    for state in states:
        places[state] = _OURS
        places |= {os.path.join(state, name): _SECRET for name in _IN_STATE}
    places |= dict.fromkeys(find_credential_places(os.environ, home), _SECRET)
    return ProtectedPaths(names=_PROTECTED_NAMES, places=places)


@functools.lru_cache(maxsize=1024)
def _fold(text: str) -> str:
    """Normalize all spellings that some file system treats as the same name."""
    return clean_text(text)[0].casefold()


def _is_git_directory(resolved: str, base: str) -> bool:
    """Return whether a path is in a git directory with a name other than `.git`.

    Like git, we recognize one by its files (https://git-scm.com/docs/gitrepository-layout), or by the `.git` file of a
    worktree or submodule that points to it.
    """
    folder = resolved
    while folder != base and is_within(folder, base):
        names = {
            name for name in ("HEAD", "commondir", "objects", "refs") if os.path.lexists(os.path.join(folder, name))
        }
        if "HEAD" in names and ("commondir" in names or names >= {"objects", "refs"}):
            return True
        folder = os.path.dirname(folder)
        records = read_git_pointer(os.path.join(folder, ".git"), "gitdir:", folder)
        # A file pointing to its own directory or above would protect the whole workspace.
        if records is not None and is_within(resolved, records) and not is_within(folder, records):
            return True
    return False


@record(kw_only=True)
class PathRequest:
    """A path the policy is about to refuse."""

    given: str
    resolved: str
    writing: bool
    refusal: Refusal


Permits: TypeAlias = Callable[[PathRequest], bool]


@record(kw_only=True)
class PathPolicy:
    """The directories tools work in; all paths are absolute."""

    roots: tuple[str, ...]
    """Readable and writable; the workspace comes first."""
    read_roots: tuple[str, ...] = ()
    """Readable."""
    protected: ProtectedPaths = field(default_factory=ProtectedPaths)
    """Not writable; credentials aren't readable either."""
    permits: Permits = lambda _request: False
    """Allows a path we'd refuse as outside or protected. Called in a thread for every operation; must not block, so
    decide from existing knowledge."""

    def find_base(self, given: str, resolved: str, *, writing: bool) -> str:
        """Find the directory to open a resolved path from.

        Raises `PathRefused` if the policy doesn't allow the path.
        """

        def is_permitted(refusal: Refusal) -> bool:
            return self.permits(PathRequest(given=given, resolved=resolved, writing=writing, refusal=refusal))

        target = "" if given == resolved else f"leads to {format_path(resolved)}, which "
        base = next((root for root in self.roots if is_within(resolved, root)), None)
        for place in SPECIAL_DIRECTORIES:
            # A workspace may be on a memory disk below /dev.
            if is_within(resolved, place) and not (base and is_within(base, place)):
                message = (
                    f"{target}is in {place}, where there is not a regular file"
                    f" but the system itself. Use a command to ask the system"
                )
                raise PathRefused(given, resolved, "special", message)
        if base is None and not writing:
            base = next((real for root in self.read_roots if is_within(resolved, real := real_path(root))), None)
        if base is None:
            if not is_permitted("outside"):
                message = (
                    f"{target}is outside the workspace {format_path(self.roots[0])} and may not be"
                    f" {'written' if writing else 'read'}. Use a path inside the workspace, or ask the user"
                )
                raise PathRefused(given, resolved, "outside", message)
            base = os.sep
        if writing:
            reason = self.protected.find_reason(resolved, base)
        else:
            folded = _fold(resolved)
            is_hidden = any(is_within(folded, _fold(place)) for place in self.protected.hidden_below(base))
            reason = _SECRET if is_hidden else None
        if reason is not None and not is_permitted("protected"):
            act, remedy = ("write", "make this change") if writing else ("read", "show it")
            message = f"{target}is protected ({reason}): tools do not {act} there. Ask the user to {remedy}"
            raise PathRefused(given, resolved, "protected", message)
        return base


def workspace_policy(root: str) -> PathPolicy:
    """Build the policy of a session in a workspace from the environment.

    Tools may also read results that were too long, which live outside the workspace.
    """
    try:
        read_roots = (os.path.join(state_dir(), "sessions"),)
    except OSError:
        read_roots = ()
    return PathPolicy(roots=(root,), read_roots=read_roots, protected=default_protected_paths())


# -- opening ----------------------------------------------------------------------------------
#
# The caller resolves a path including its links, then opens it from its base. If another process slips in a link in
# between, we raise `SymlinkError`; the link never leads out of the base. We open each component on its own, by
# openat(2) with `O_NOFOLLOW` (https://man7.org/linux/man-pages/man2/openat.2.html).


# Enough to reach the names in a directory; on Linux this doesn't require permission to list it.
_DIRECTORY = (os.O_PATH if sys.platform == "linux" else os.O_RDONLY) | (os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)


class SymlinkError(OSError):
    """A symbolic link appeared after we resolved the path, or links form a loop."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, os.strerror(errno.ELOOP), path)


def real_path(path: str) -> str:
    """Resolve a path as far as it exists.

    Raises `SymlinkError` if a link changed in the meantime, or the chain of links doesn't end.
    """
    try:
        return os.path.realpath(path)
    except (OSError, RecursionError) as exc:
        raise SymlinkError(path) from exc


@record
class DirFdPath:
    """A name in an open directory, or `.` for the directory itself."""

    folder: int
    name: str
    path: str
    """Full path, for messages."""

    def lstat(self) -> os.stat_result:
        """Stat the name without following a link."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def stat(self) -> os.stat_result:
        """Stat the name. Raises `SymlinkError` if it's a link."""
        status = os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)
        if stat.S_ISLNK(status.st_mode):
            raise SymlinkError(self.path)
        return status

    def open(self, flags: int) -> int:
        """Open the name. Raises `SymlinkError` if it's a link."""
        flags |= os.O_NOFOLLOW | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(self.name, flags, dir_fd=self.folder)
        except OSError as exc:
            if exc.errno == errno.ELOOP:
                raise SymlinkError(self.path) from exc
            raise

    def open_folder(self) -> int:
        """Open the directory for listing. Raises `SymlinkError` if it's a link."""
        try:
            return self.open(os.O_RDONLY | os.O_DIRECTORY)
        except NotADirectoryError:
            self.require_file()
            raise

    def require_file(self) -> None:
        """Check that the name, which failed to open as a directory, is still a file.

        Raises `SymlinkError` if it was a link: it still is one, or it's now a directory.
        """
        if stat.S_ISDIR(self.stat().st_mode):
            raise SymlinkError(self.path)


@contextmanager
def open_at(base: str, parts: Sequence[str], path: str) -> Generator[DirFdPath]:
    """Open the directory that contains the last of `parts`.

    Raises `SymlinkError` if a directory along the way is a link.
    """
    folder = open_directory(base, parts[:-1])
    try:
        yield DirFdPath(folder, parts[-1] if parts else os.curdir, path)
    finally:
        os.close(folder)


def open_directory(base: str, parts: Sequence[str], *, create: bool = False) -> int:
    """Open a directory below `base`; `create` creates it along with its parents.

    Raises `SymlinkError` if a directory along the way is a link, or `..`.
    """
    folder = os.open(base, _DIRECTORY)
    try:
        for part in parts:
            parent, folder = folder, _enter(folder, part, create=create)
            os.close(parent)
        opened, folder = folder, -1
        return opened
    finally:
        if folder >= 0:
            os.close(folder)


def _enter(folder: int, name: str, *, create: bool) -> int:
    if name == os.pardir:  # it would lead out of the base
        raise SymlinkError(name)
    try:
        return os.open(name, _DIRECTORY, dir_fd=folder)
    except FileNotFoundError:
        if not create:
            raise
        try:
            os.mkdir(name, dir_fd=folder)
        except FileExistsError:
            pass  # another process was faster
        return _enter(folder, name, create=False)
    except OSError as exc:
        if exc.errno in {errno.ELOOP, errno.ENOTDIR}:
            DirFdPath(folder, name, name).require_file()
        raise
