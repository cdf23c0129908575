"""Permissions: the checks between a model's calls and the cards of the deck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.faults import CoreError
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.faults import Note
    from induscode.deck.contract import Capability
    from induscode.launch.invocation import Approval, Invocation
    from induscode.permissions.check import Permissions
    from induscode.permissions.confirm import Approver
    from induscode.permissions.plan_mode import PlanMode

_EDITS = "Files of the working directory may be changed. "
_ALL = "Every call is allowed, except what a rule denies."
_HEADLESS_POSTURES: dict[Approval, str] = {
    "ask": (
        "This run cannot ask the user: what changes something, runs commands, calls servers or "
        "reaches the network is refused unless a rule allows it."
    ),
    "auto-edit": (
        f"{_EDITS}This run cannot ask the user: commands, "
        "calls of servers and the network are refused unless a rule allows them."
    ),
    "all": _ALL,
}
_INTERACTIVE_POSTURES: dict[Approval, str] = {
    "ask": (
        "The user is asked about each call that changes something, runs commands, calls servers or reaches the "
        "network, unless a rule allows it. A refusal may give the reason: follow it."
    ),
    "auto-edit": (
        f"{_EDITS}The user is asked about commands, calls of servers and the network, unless a rule allows them. "
        "A refusal may give the reason: follow it."
    ),
    "all": _ALL,
}


class InvalidRuleError(CoreError):
    """A rule on the command line is invalid."""


@record(kw_only=True)
class PermissionSetup:
    """Permissions of a run, ready for its deck."""

    wrap: Callable[[Capability], Capability] | None = None
    """Adds the checks to a card, or `None` if the caller checks calls itself."""
    posture: str = ""
    """Describes what runs without asking, for the system prompt."""
    notes: Sequence[Note] = ()
    permissions: Permissions | None = None
    """The checks, or `None` if the caller checks calls itself."""


def load_permissions(
    invocation: Invocation, mode: PlanMode | None = None, approver: Approver | None = None, entry: str = ""
) -> PermissionSetup:
    """Load the permissions of a run from its flags and the user's and project's rules.

    Blocks: call it in a thread. With `mode`, the cards of plan mode take effect. Without an `approver`, calls that need
    a question fail. Remedies suggest flags, or arguments of the function `entry`.

    Raises:
        InvalidRuleError: A rule on the command line is invalid.
    """
    from induscode.permissions.check import Permissions, require_permission  # noqa: PLC0415 — loads the table of programs
    from induscode.permissions.policy import ApprovalMode  # noqa: PLC0415 — loads the table of programs
    from induscode.permissions.rules import Effect, RuleOrigin, parse_rules  # noqa: PLC0415 — needed with rules only
    from induscode.permissions.store import RuleStore, load_startup_rules  # noqa: PLC0415 — needed with rules only

    flag_rules, problems = parse_rules(invocation.allow, Effect.ALLOW, RuleOrigin.FLAG)
    if problems:
        raise InvalidRuleError(f"{'allow=' if entry else '--allow'}: {problems[0]}")
    store = RuleStore()
    startup_rules, notes = load_startup_rules(store, invocation.cwd)
    permissions = Permissions(
        [*flag_rules, *startup_rules],
        approver=approver,
        approval=ApprovalMode(invocation.approval),
        plan=mode,
        store=store,
        entry=entry,
    )
    if mode is not None:
        mode.on_accept_edits.add(permissions.accept_edits)

    def wrap(card: Capability) -> Capability:
        return require_permission(card if mode is None else mode.wrap(card), permissions)

    posture = (_HEADLESS_POSTURES if approver is None else _INTERACTIVE_POSTURES)[invocation.approval]
    if invocation.allow:
        posture += f" Allowed: {', '.join(invocation.allow)}."
    return PermissionSetup(wrap=wrap, posture=posture, notes=notes, permissions=permissions)
