"""The file door of one call: it leads where somebody looked, and nowhere else.

A path may be made to lead elsewhere between the question and the call. So the door of the call
itself knows what was allowed: it opens outside of the workspace for exactly that, it writes to
nothing else, and what a rule denies stays shut wherever a link leads.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

from indusagi.capabilities.files.paths.policy import PathPolicy
from indusagi.capabilities.ports import PathRefused
from indusagi.core.paths import is_within
from indusagi.core.text import clean_text
from induscode.session.permissions.call_facts import CallKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.files.paths.policy import PathRequest
    from indusagi.capabilities.ports import Fs
    from induscode.session.permissions.call_facts import CallFacts

Denies: TypeAlias = "Callable[[str], str | None]"
"""Names the rule that denies a resolved path; None if there is none."""


@runtime_checkable
class PolicedFs(Protocol):
    """A file door that can be had under another policy."""

    def under(self, change: Callable[[PathPolicy], PathPolicy]) -> Fs:
        """Give the same door under the policy that `change` makes of its own."""
        ...


class PathGrant:
    """What one call may open besides the workspace; over when the call is."""

    def __init__(self, facts: CallFacts) -> None:
        self._paths = facts.paths
        self._open = True

    def permits(self, request: PathRequest) -> bool:
        """Say yes to what was looked at, while the call runs."""
        return self._open and any(
            (path.writing or not request.writing) and _covers(path.resolved, request, path.tree)
            for path in self._paths
            if path.refusal is not None
        )

    def end(self) -> None:
        """Say yes to nothing any more."""
        self._open = False


def _covers(resolved: str, request: PathRequest, tree: bool) -> bool:
    if request.resolved == resolved or (tree and is_within(request.resolved, resolved)):
        return True
    # A file that is made needs its directory.
    return request.writing and request.resolved == os.path.dirname(resolved)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallPolicy(PathPolicy):
    """The policy of a door, narrowed to one call."""

    writes: frozenset[str]
    """What may be written to: what was looked at, and the directories it stands in."""
    denies: Denies

    def base_of(self, given: str, resolved: str, *, writing: bool) -> str:
        """Give the directory from which a resolved path is to be opened.

        Raises:
            PathRefused: The door does not lead there.
        """
        shown = clean_text(resolved)[0]
        if writing and resolved not in self.writes:
            why = f"leads to {shown} by now, which is not what was allowed. Try again"
            raise PathRefused(given, resolved, "protected", why)
        rule = self.denies(resolved)
        if rule is not None:
            raise PathRefused(given, resolved, "protected", f"leads to {shown}: rule {rule}")
        # Slots make a new class of this one, which super() without arguments does not find.
        return PathPolicy.base_of(self, given, resolved, writing=writing)


def restrict_context(ctx: ToolContext, facts: CallFacts, leave: PathGrant, denies: Denies) -> ToolContext:
    """Give the context of one call, with a door of its own where the call is about files."""
    if not isinstance(ctx.fs, PolicedFs):
        return ctx
    is_file = facts.kind is CallKind.FILE
    if not is_file and not any(path.refusal for path in facts.paths):
        return ctx
    written = [path.resolved for path in facts.paths if path.writing]
    writes = frozenset((*written, *map(os.path.dirname, written)))

    def narrowed(policy: PathPolicy) -> PathPolicy:
        if not is_file:
            return replace(policy, permits=leave.permits)
        return CallPolicy(
            roots=policy.roots,
            read_roots=policy.read_roots,
            protected=policy.protected,
            permits=leave.permits,
            writes=writes,
            denies=denies,
        )

    return replace(ctx, fs=ctx.fs.under(narrowed))
