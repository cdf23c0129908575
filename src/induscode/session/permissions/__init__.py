"""Permissions: the checks between the calls of a model and the cards of the deck."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.faults import CoreError
from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.faults import Note
    from induscode.deck.contract import Capability
    from induscode.launch.invocation import Approval, Invocation
    from induscode.session.plan_mode import PlanMode

_POSTURES: dict[Approval, str] = {
    "ask": (
        "Nobody is there to be asked: what changes something, runs commands, calls servers or "
        "reaches the network is refused unless a rule allows it."
    ),
    "auto-edit": (
        "Files of the working directory may be changed. Nobody is there to be asked: commands, "
        "calls of servers and the network are refused unless a rule allows them."
    ),
    "all": "Every call is allowed, except what a rule denies.",
}


class InvalidRuleError(CoreError):
    """A rule on the command line is invalid."""


@record(kw_only=True)
class PermissionSetup:
    """Permissions of a run, ready for its deck."""

    wrap: Callable[[Capability], Capability] | None = None
    """Puts the checks in front of a card; None if the caller checks calls itself."""
    posture: str = ""
    """Sentence for the system prompt: what runs without asking."""
    notes: Sequence[Note] = ()


def load_permissions(invocation: Invocation, mode: PlanMode | None = None) -> PermissionSetup:
    """Load the permissions of a run that cannot ask a person: its flags, and the rules of user and project.

    It blocks: call it in a thread. With `mode`, the cards of plan mode take effect.

    Raises:
        InvalidRuleError: A rule on the command line is invalid.
    """
    from induscode.session.permissions.check import Permissions, require_permission  # noqa: PLC0415 — loads the table of programs
    from induscode.session.permissions.policy import ApprovalMode  # noqa: PLC0415 — loads the table of programs
    from induscode.session.permissions.rules import Effect, RuleOrigin, parse_rules  # noqa: PLC0415 — needed with rules only
    from induscode.session.permissions.store import RuleStore, load_startup_rules  # noqa: PLC0415 — needed with rules only

    flag_rules, problems = parse_rules(invocation.allow, Effect.ALLOW, RuleOrigin.FLAG)
    if problems:
        raise InvalidRuleError(f"--allow: {problems[0]}")
    store = RuleStore()
    startup_rules, notes = load_startup_rules(store, invocation.cwd)
    permissions = Permissions(
        [*flag_rules, *startup_rules], approval=ApprovalMode(invocation.approval), plan=mode, store=store
    )

    def wrap(card: Capability) -> Capability:
        return require_permission(card if mode is None else mode.wrap(card), permissions)

    posture = _POSTURES[invocation.approval]
    if invocation.allow:
        posture += f" Allowed: {', '.join(invocation.allow)}."
    return PermissionSetup(wrap=wrap, posture=posture, notes=notes)
