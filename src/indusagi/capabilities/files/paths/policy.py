"""Where the file door leads: what may be read, what may be written, and why not the rest.

A policy looks at resolved paths only, links followed. It refuses; it asks nobody. Whoever has asked
the user hands the answer in through `permits`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from indusagi.capabilities.files.paths.openat import real_path
from indusagi.capabilities.files.paths.protected import ProtectedPaths, default_protected_paths
from indusagi.capabilities.files.text.display import format_path
from indusagi.capabilities.ports import PathRefused, Refusal
from indusagi.core.app_dirs import state_dir
from indusagi.core.paths import is_within

SPECIAL_PLACES = ("/proc", "/sys", "/dev")
"""The system itself, made to look like files: to look can be to act, and to read may never end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PathRequest:
    """A path that is about to be refused."""

    given: str
    resolved: str
    writing: bool
    refusal: Refusal


Permits: TypeAlias = Callable[[PathRequest], bool]


def _nobody_permits(_request: PathRequest) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PathPolicy:
    """The places a door leads to, all absolute."""

    roots: tuple[str, ...]
    """What may be read and written; the workspace comes first."""
    read_roots: tuple[str, ...] = ()
    """What may be read besides."""
    protected: ProtectedPaths = field(default_factory=ProtectedPaths)
    """What in the roots is not to be written to; credentials are not to be read either."""
    permits: Permits = _nobody_permits
    """Says yes to a path that would be refused as outside or protected. It is called in a thread,
    for every single operation, and decides from what is known: it must not wait for anybody."""

    def base_of(self, given: str, resolved: str, *, writing: bool) -> str:
        """Give the directory from which a resolved path is to be opened.

        Raises:
            PathRefused: The door does not lead there.
        """
        root = next((root for root in self.roots if is_within(resolved, root)), None)
        self._refuse_special(given, resolved, root)
        base = root if root is not None else self._base_outside(given, resolved, writing=writing)
        why = self.protected.why(resolved, base) if writing else self._hidden(resolved, base)
        if why is not None and not self._permitted(given, resolved, "protected", writing=writing):
            act = "write" if writing else "read"
            raise PathRefused(given, resolved, "protected", _protected(given, resolved, why, act))
        return base

    def _hidden(self, resolved: str, base: str) -> str | None:
        hidden = any(is_within(resolved, place) for place in self.protected.hidden_below(base))
        return "credentials of the user" if hidden else None

    def _refuse_special(self, given: str, resolved: str, root: str | None) -> None:
        for place in SPECIAL_PLACES:
            # A workspace may stand on a memory disk below /dev.
            if is_within(resolved, place) and not (root and is_within(root, place)):
                why = (
                    f"{_where(given, resolved)}is in {place}, where there is not a regular file"
                    f" but the system itself. Use a command to ask the system"
                )
                raise PathRefused(given, resolved, "special", why)

    def _base_outside(self, given: str, resolved: str, *, writing: bool) -> str:
        if not writing:
            for root in self.read_roots:
                real = real_path(root)
                if is_within(resolved, real):
                    return real
        if self._permitted(given, resolved, "outside", writing=writing):
            return os.sep
        raise PathRefused(given, resolved, "outside", self._outside(given, resolved, writing))

    def _permitted(self, given: str, resolved: str, refusal: Refusal, *, writing: bool) -> bool:
        return self.permits(PathRequest(given=given, resolved=resolved, writing=writing, refusal=refusal))

    def _outside(self, given: str, resolved: str, writing: bool) -> str:
        act = "written" if writing else "read"
        return (
            f"{_where(given, resolved)}is outside the workspace {format_path(self.roots[0])} and may"
            f" not be {act}. Use a path inside the workspace, or ask the user"
        )


def _protected(given: str, resolved: str, why: str, act: str) -> str:
    remedy = "make this change" if act == "write" else "show it"
    return f"{_where(given, resolved)}is protected ({why}): tools do not {act} there. Ask the user to {remedy}"


def _where(given: str, resolved: str) -> str:
    """Begin the sentence: where the path leads, unless that is what was given."""
    return "" if given == resolved else f"leads to {format_path(resolved)}, which "


def workspace_policy(root: str) -> PathPolicy:
    """Make the policy of a session in a workspace; nothing is looked at but the environment.

    Long answers that were cut are kept outside, and may be read there, also those of a session
    that is being resumed.
    """
    try:
        read_roots = (os.path.join(state_dir(), "sessions"),)
    except OSError:
        read_roots = ()
    return PathPolicy(roots=(root,), read_roots=read_roots, protected=default_protected_paths())
