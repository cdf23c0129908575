"""Who stands between the calls of a model and the cards, when nobody is there to be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from indusagi.core.faults import CoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.notes import Note
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
    """A rule on the command line that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionSetup:
    """What stands between the model's calls and the cards."""

    wrap: Callable[[Capability], Capability] | None = None
    """Put around every card; None only where whoever calls has seen to it otherwise."""
    posture: str = ""
    """What the model is told about it."""
    notes: Sequence[Note] = ()


def load_permissions(invocation: Invocation, mode: PlanMode | None = None) -> PermissionSetup:
    """Make the gate of a run without a person: its flags, and the rules of its user and project.

    It blocks: for a thread. A `mode` is changed by the cards of plan mode, and heeded by the gate.

    Raises:
        InvalidRuleError: A rule on the command line is none.
    """
    from induscode.session.permissions.check import Permissions, require_permission  # noqa: PLC0415 — loads the table of programs
    from induscode.session.permissions.policy import Approval as ApprovalMode  # noqa: PLC0415 — imports `check`'s dependencies
    from induscode.session.permissions.rules import Effect, RuleOrigin, parse_rules  # noqa: PLC0415 — needed where rules are read
    from induscode.session.permissions.store import RuleStore, load_startup_rules  # noqa: PLC0415 — needed where rules are read

    given, wrong = parse_rules(invocation.allow, Effect.ALLOW, RuleOrigin.FLAG)
    if wrong:
        raise InvalidRuleError(f"--allow: {wrong[0]}")
    store = RuleStore()
    kept, notes = load_startup_rules(store, invocation.cwd)
    in_plan_mode = (lambda: False) if mode is None else mode.is_active
    stance = ApprovalMode(invocation.approval)
    gate = Permissions([*given, *kept], approval=stance, plan=in_plan_mode, store=store)

    def wrap(card: Capability) -> Capability:
        return require_permission(card if mode is None else mode.wrap(card), gate)

    posture = _POSTURES[invocation.approval]
    if invocation.allow:
        posture += f" Allowed: {', '.join(invocation.allow)}."
    return PermissionSetup(wrap=wrap, posture=posture, notes=notes)
