"""Permission checks of `indus call` and `indus serve`.

A session without a person refuses what it would ask about; `indus call` was typed by a person, who is asked on a
terminal if a rule asks or no rule can allow the call, and `indus serve` has clients that ask their own users. What a
rule denies is denied everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from indusagi.core.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.faults import Note
    from induscode.cli.dialog import Dialog
    from induscode.deck.contract import Capability
    from induscode.launch.invocation import Invocation
    from induscode.permissions.confirm import PermissionAnswer, PermissionRequest

    Wrap = Callable[[Capability], Capability]


@record
class CardChecks:
    """Functions that put a permission check in front of native cards and of servers' tools."""

    native: Wrap
    remote: Wrap
    notes: Sequence[Note] = ()
    checks_remote: bool = True
    """Whether `remote` does anything."""
    is_denied: Callable[[Capability], bool] = lambda card: False
    """Tells whether a rule denies every call of a checked card to the caller of this task."""
    posture: str = ""
    """Sentence for the system prompt of sub-agents: what runs without asking."""


def build_call_checks(cwd: str, dialog: Dialog | None = None) -> CardChecks:
    """Build the checks of a typed call: what a rule denies is refused, and typing the call answers questions with yes.

    With a `dialog` the person is asked if a rule says so.
    """
    from induscode.permissions.check import CheckedCard, Permissions  # noqa: PLC0415 — for a call that runs
    from induscode.permissions.store import RuleStore, load_startup_rules  # noqa: PLC0415 — for a call that runs

    store = RuleStore()
    rules, notes = load_startup_rules(store, cwd)
    permissions = Permissions(rules, approver=_TypedCall(dialog), store=store)

    def wrap(card: Capability) -> Capability:
        return CheckedCard(card, permissions)

    return CardChecks(wrap, wrap, notes)


class _TypedCall:
    """Approves a call once, because typing it was the approval; what a rule asks about is put to the person."""

    def __init__(self, dialog: Dialog | None) -> None:
        self._dialog = dialog

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Approve once, or ask."""
        if request.asked_by_rule and self._dialog is not None:
            from induscode.permissions.approver import PersonApprover  # noqa: PLC0415 — for a call that is asked about

            return await PersonApprover(self._dialog).ask(request)
        from induscode.permissions.confirm import ApprovalScope, PermissionAnswer  # noqa: PLC0415 — for a call that runs

        return PermissionAnswer(ApprovalScope.ONCE)


def build_gateway_checks(invocation: Invocation, native: bool) -> CardChecks:
    """Build the checks of a gateway from its flags and the user's rules.

    Native cards are checked as in a run without a person: a call that would be asked about is refused unless a flag or
    a rule allows it. The servers were configured by the user, and a client of the gateway has its own way to ask: their
    tools are called unless a rule denies it or asks for it.

    Raises:
        InvalidRuleError: A rule on the command line is invalid.
    """
    from induscode.permissions.store import RuleStore, has_rules, load_startup_rules  # noqa: PLC0415 — while servers start

    if not native and not invocation.allow and not has_rules(invocation.cwd):
        return CardChecks(_pass, _pass, checks_remote=False)  # without rules the checks need not be loaded
    from induscode.permissions import load_permissions  # noqa: PLC0415 — for a gateway with rules
    from induscode.permissions.check import Permissions, is_denied, require_permission  # noqa: PLC0415 — for a gateway with rules
    from induscode.permissions.policy import ApprovalMode  # noqa: PLC0415 — for a gateway with rules
    from induscode.permissions.rules import Effect, Rule, RuleOrigin  # noqa: PLC0415 — for a gateway with rules

    loaded = load_permissions(invocation)
    assert loaded.wrap is not None
    find_denial = partial(is_denied, workspace=os.path.realpath(invocation.cwd))
    store = RuleStore()
    rules, _ = load_startup_rules(store, invocation.cwd)
    if all(rule.effect is Effect.ALLOW for rule in rules):
        return CardChecks(
            loaded.wrap, _pass, loaded.notes, checks_remote=False, is_denied=find_denial, posture=loaded.posture
        )
    everything = Rule(effect=Effect.ALLOW, tool="*", origin=RuleOrigin.SESSION)
    permissions = Permissions([*rules, everything], approval=ApprovalMode(invocation.approval), store=store)
    return CardChecks(
        loaded.wrap,
        lambda card: require_permission(card, permissions),
        loaded.notes,
        is_denied=find_denial,
        posture=loaded.posture,
    )


def _pass(card: Capability) -> Capability:
    return card
