"""Path policy of one call: exactly the paths that were checked, and nothing else.

A symbolic link may change between the check and the call. The call therefore runs with a file system whose policy
knows what was allowed: it opens that outside the workspace, writes to nothing else, and refuses what a rule denies
wherever a link leads.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from indusagi.capabilities.files.paths.policy import PathPolicy
from indusagi.capabilities.ports import PathRefused
from indusagi.core.paths import is_within
from indusagi.core.records import record
from indusagi.core.text import clean_text
from induscode.permissions.call_facts import CallKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.files.paths.policy import PathRequest
    from indusagi.capabilities.ports import Fs
    from induscode.permissions.call_facts import CallFacts

FindDenial: TypeAlias = "Callable[[str], str | None]"
"""Names the rule that denies a resolved path; None if there is none."""


@runtime_checkable
class PolicedFs(Protocol):
    """A file system with a replaceable path policy."""

    def under(self, change: Callable[[PathPolicy], PathPolicy]) -> Fs:
        """Give the same file system with the policy that `change` derives from its own."""
        ...


class PathGrant:
    """Paths outside the workspace that one call may open, until it ends."""

    def __init__(self, facts: CallFacts) -> None:
        self._paths = facts.paths
        self._open = True

    def permits(self, request: PathRequest) -> bool:
        """Tell whether the path was checked and the call is still running."""
        if not self._open:
            return False
        for path in self._paths:
            if path.refusal is None or (request.writing and not path.writing):
                continue
            if request.resolved == path.resolved or (path.tree and is_within(request.resolved, path.resolved)):
                return True
            # A new file needs its directory.
            if request.writing and request.resolved == os.path.dirname(path.resolved):
                return True
        return False

    def end(self) -> None:
        """Permit nothing any more."""
        self._open = False


@record(kw_only=True)
class CallPolicy(PathPolicy):
    """A path policy, narrowed to one call."""

    writes: frozenset[str]
    """Paths that may be written: those that were checked, and their directories."""
    find_denial: FindDenial

    def find_base(self, given: str, resolved: str, *, writing: bool) -> str:
        """Give the directory from which a resolved path is opened.

        Raises:
            PathRefused: The call may not open the path.
        """
        shown = clean_text(resolved)[0]
        if writing and resolved not in self.writes:
            reason = f"leads to {shown} by now, which is not what was allowed. Try again"
            raise PathRefused(given, resolved, "protected", reason)
        rule = self.find_denial(resolved)
        if rule is not None:
            raise PathRefused(given, resolved, "protected", f"leads to {shown}: rule {rule}")
        # `slots=True` creates a new class, which `super()` without arguments does not find.
        return PathPolicy.find_base(self, given, resolved, writing=writing)


def restrict_context(ctx: ToolContext, facts: CallFacts, grant: PathGrant, find_denial: FindDenial) -> ToolContext:
    """Give the context of one call, with a file system of its own if the call is about files."""
    if not isinstance(ctx.fs, PolicedFs):
        return ctx
    is_file = facts.kind is CallKind.FILE
    if not is_file and not any(path.refusal for path in facts.paths):
        return ctx
    targets = [path.resolved for path in facts.paths if path.writing]
    writes = frozenset((*targets, *map(os.path.dirname, targets)))

    def narrow(policy: PathPolicy) -> PathPolicy:
        if not is_file:
            return replace(policy, permits=grant.permits)
        return CallPolicy(
            roots=policy.roots,
            read_roots=policy.read_roots,
            protected=policy.protected,
            permits=grant.permits,
            writes=writes,
            find_denial=find_denial,
        )

    return replace(ctx, fs=ctx.fs.under(narrow))
