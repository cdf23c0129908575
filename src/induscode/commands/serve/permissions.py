"""What stands between the clients of a gateway and the cards.

Native cards are behind the gate of a run without a person: whatever would be asked about is refused
unless a flag or a rule allows it. The servers are there because their user configured them and
consented to them, and a client of the gateway has its own way to ask before it calls: their tools
are called unless a rule of the user or of the project objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from indusagi.core.notes import Note
    from induscode.deck.contract import Capability
    from induscode.launch.invocation import Invocation

    Wrap = Callable[[Capability], Capability]


@record
class ServingGate:
    """What is put around the cards of either kind."""

    native: Wrap
    remote: Wrap
    notes: Sequence[Note] = ()


def serving_gate(invocation: Invocation, native: bool) -> ServingGate:
    """Make the gate of a gateway from its flags and from the rules of its user.

    Raises:
        InvalidRuleError: A rule on the command line is none.
    """
    from induscode.session.permissions.store import has_rules  # noqa: PLC0415 — as below

    if not native and not invocation.allow and not has_rules(invocation.cwd):
        return ServingGate(_as_it_is, _as_it_is)  # the gate takes a while to load, and has no say
    from induscode.session.permissions import load_permissions  # noqa: PLC0415 — for a gateway that runs

    guarding = load_permissions(invocation)
    assert guarding.wrap is not None
    return ServingGate(guarding.wrap, _objecting(invocation), guarding.notes)


def _objecting(invocation: Invocation) -> Wrap:
    """Let every call through that no rule denies or wants to be asked about."""
    from induscode.session.permissions.check import Permissions, require_permission  # noqa: PLC0415 — as above
    from induscode.session.permissions.policy import ApprovalMode  # noqa: PLC0415 — as above
    from induscode.session.permissions.rules import Effect, Rule, RuleOrigin  # noqa: PLC0415 — as above
    from induscode.session.permissions.store import RuleStore, load_startup_rules  # noqa: PLC0415 — as above

    store = RuleStore()
    rules, _ = load_startup_rules(store, invocation.cwd)
    if all(rule.effect is Effect.ALLOW for rule in rules):
        return _as_it_is  # nobody objects to anything: no call needs to be looked at
    everything = Rule(effect=Effect.ALLOW, tool="*", origin=RuleOrigin.SESSION)
    gate = Permissions([*rules, everything], approval=ApprovalMode(invocation.approval), store=store)
    return lambda card: require_permission(card, gate)


def _as_it_is(card: Capability) -> Capability:
    return card
