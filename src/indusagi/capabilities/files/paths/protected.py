"""Places that a tool does not write to, though they may lie in the workspace.

What is written there is obeyed later: by git, by the shell at the next login, by ourselves; or it
is the user's proof of who they are. A place counts also before it exists, under every spelling that
a file system may take for it, and wherever a link has moved it.
"""

from __future__ import annotations

import functools
import os
import stat
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from indusagi.capabilities.files.paths.openat import real_path
from indusagi.core.app_dirs import state_dir
from indusagi.core.paths import is_within, parts_below
from indusagi.core.text import clean_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_GIT = "git's own records, which may hold commands"
_OURS = "settings or records of this program"
_SHELL = "a file that the shell or the desktop obeys at the next start"
_SECRET = "credentials of the user"
_PROTECTED_NAMES = {".git": _GIT, ".indusvx": _OURS, ".indus": _OURS}
_IN_HOME = {
    _GIT: ".gitconfig .git-credentials",
    _SHELL: (
        ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases .profile .zshrc .zshenv"
        " .zprofile .zlogin .zlogout .kshrc .cshrc .tcshrc .login .inputrc .xprofile .xinitrc"
        " .xsession .xsessionrc .pam_environment .local/share/systemd Library/LaunchAgents"
    ),
    _SECRET: (
        ".ssh .aws .gnupg .azure .kube .docker .oci .netrc .pgpass .npmrc .pypirc .boto .s3cfg"
        " .vault-token .password-store .terraform.d .terraformrc .cargo/credentials"
        " .cargo/credentials.toml .gem/credentials .local/share/keyrings Library/Keychains"
    ),
    _OURS: ".indus .indusvx",
}
_IN_CONFIG = {
    _GIT: "git",
    _SHELL: "fish autostart systemd environment.d",
    _SECRET: "gcloud gh hub op rclone doctl containers",
    _OURS: "indus indusvx",
}
_IN_STATE = "serve-token conversations ledger.db ledger.db-wal ledger.db-shm ledger.db-journal"
"""Of our own records, those that may hold credentials: what opens a gateway, what was said to a
model, and what servers have answered. The others may be read, answers that were cut most of all."""
_LONGEST_POINTER = 4096
"""Bytes of a `.git` file that are read: it holds one path."""


def _no_rows() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class ProtectedPaths:
    """What is protected, and why, in words that end a sentence."""

    names: Mapping[str, str] = field(default_factory=_no_rows)
    """Names of files and directories that are protected wherever they stand."""
    places: Mapping[str, str] = field(default_factory=_no_rows)
    """Absolute paths, with all that is in them."""

    def why(self, resolved: str, base: str) -> str | None:
        """Say why a resolved path within `base` is not to be written to; None if it may be."""
        below = [_folded(part) for part in parts_below(resolved, base)]
        for name, reason in self.names.items():
            if name in below:
                return reason
        whole = _folded(resolved)
        for place, reason in self._all_places(base):
            if is_within(whole, _folded(place)):
                return reason
        return _GIT if ".git" in self.names and _is_git_s(resolved, base) else None

    def hidden_below(self, base: str) -> Sequence[str]:
        """List the places of credentials within a directory: these are not to be read either.

        Nothing is looked at unless the directory is a home, or holds one.
        """
        called = [place for place, reason in self.places.items() if reason == _SECRET and is_within(place, base)]
        if not called:
            return ()
        rows = dict.fromkeys(called, _SECRET)
        return [place for place, _ in _under_all_names(rows.items())]

    def _all_places(self, base: str) -> Iterator[tuple[str, str]]:
        named = ((os.path.join(base, name), reason) for name, reason in self.names.items())
        return _under_all_names((*self.places.items(), *named))


def _under_all_names(rows: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Give places under each name they have: as they are called, and where links lead."""
    real = functools.cache(real_path)  # most of them share a directory
    for place, reason in rows:
        yield place, reason
        folder, name = os.path.split(place)
        really = os.path.join(real(folder), name)
        yield really, reason
        if os.path.islink(really):
            yield real(really), reason


def default_protected_paths() -> ProtectedPaths:
    """Give what is protected for this user; nothing is looked at but the environment."""
    places: dict[str, str] = {}
    home = os.path.expanduser("~")
    if os.path.isabs(home):
        config = os.environ.get("XDG_CONFIG_HOME", "")
        for folder, rows in ((home, _IN_HOME), (os.path.join(home, ".config"), _IN_CONFIG), (config, _IN_CONFIG)):
            if os.path.isabs(folder):
                places |= {
                    os.path.join(folder, name): reason for reason, names in rows.items() for name in names.split()
                }
    for state in _states(home):
        places[state] = _OURS
        places |= {os.path.join(state, name): _SECRET for name in _IN_STATE.split()}
    return ProtectedPaths(names=_PROTECTED_NAMES, places=places)


def _states(home: str) -> Iterator[str]:
    """Name where our records are: of this process, and of those who were not sent elsewhere."""
    if os.path.isabs(home):
        yield os.path.join(home, ".local", "state", "indus")
    try:
        yield state_dir()
    except OSError:
        return  # without a home there is no state to protect


def _folded(text: str) -> str:
    """Give one spelling to all that some file system takes for the same name."""
    return clean_text(text)[0].casefold()


def _is_git_s(resolved: str, base: str) -> bool:
    """Tell whether a path lies in the records of a repository that are not called `.git`.

    They are known by what is in them, as git knows them, or from the file that points to them.
    """
    folder = resolved
    while folder != base and is_within(folder, base):
        if _looks_like_records(folder):
            return True
        folder = os.path.dirname(folder)
        records = _pointed_to(os.path.join(folder, ".git"))
        # One that points to the directory it stands in, or above, would close the whole workspace.
        if records and is_within(resolved, records) and not is_within(folder, records):
            return True
    return False


def _looks_like_records(folder: str) -> bool:
    def has(name: str) -> bool:
        return os.path.lexists(os.path.join(folder, name))

    return has("HEAD") and (has("commondir") or (has("objects") and has("refs")))


def _pointed_to(path: str) -> str | None:
    """Read where a `.git` file, as worktrees and submodules have it, says the records are."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return None
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            text = os.fsdecode(os.read(handle, _LONGEST_POINTER))
        finally:
            os.close(handle)
    except OSError:
        return None
    label, _, target = text.partition(":")
    if label != "gitdir" or "\0" in target:
        return None
    return real_path(os.path.join(os.path.dirname(path), target.strip()))
