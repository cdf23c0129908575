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


class BadRule(CoreError):
    """A rule on the command line that is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Guarding:
    """What stands between the model's calls and the cards."""

    wrap: Callable[[Capability], Capability] | None = None
    """Put around every card; None only where whoever calls has seen to it otherwise."""
    posture: str = ""
    """What the model is told about it."""
    notes: Sequence[Note] = ()


def guarding_for(invocation: Invocation, mode: PlanMode | None = None) -> Guarding:
    """Make the gate of a run without a person: its flags, and the rules of its user and project.

    It blocks: for a thread. A `mode` is changed by the cards of plan mode, and heeded by the gate.

    Raises:
        BadRule: A rule on the command line is none.
    """
    from induscode.session.permissions.gate import Gate, gated  # noqa: PLC0415 — brings a parser
    from induscode.session.permissions.policy import Approval as Stance  # noqa: PLC0415 — with it
    from induscode.session.permissions.rules import Effect, Origin, parse_rules  # noqa: PLC0415 — with it
    from induscode.session.permissions.startup_rules import standing_rules  # noqa: PLC0415 — with it
    from induscode.session.permissions.store import RuleStore  # noqa: PLC0415 — with it

    given, wrong = parse_rules(invocation.allow, Effect.ALLOW, Origin.FLAG)
    if wrong:
        raise BadRule(f"--allow: {wrong[0]}")
    store = RuleStore()
    kept, notes = standing_rules(store, invocation.cwd)
    in_plan_mode = (lambda: False) if mode is None else mode.is_active
    stance = Stance(invocation.approval)
    gate = Gate([*given, *kept], approval=stance, plan=in_plan_mode, store=store)

    def wrap(card: Capability) -> Capability:
        return gated(card if mode is None else mode.around(card), gate)

    posture = _POSTURES[invocation.approval]
    if invocation.allow:
        posture += f" Allowed: {', '.join(invocation.allow)}."
    return Guarding(wrap=wrap, posture=posture, notes=notes)
