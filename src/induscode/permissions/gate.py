"""Permission checks for `indus call` and `indus serve`.

A headless session denies calls that need a question. The user typed `indus call`, so it asks (on a terminal) only if
a rule requires it. The clients of `indus serve` ask their own users. Deny rules apply everywhere.
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

    Wrap = Callable[[Capability], Capability]


@record
class CardChecks:
    """Functions that add permission checks to native cards and remote tools."""

    native: Wrap
    remote: Wrap
    notes: Sequence[Note] = ()
    checks_remote: bool = True
    """Whether `remote` does anything."""
    is_denied: Callable[[Capability], bool] = lambda card: False
    """Returns whether a rule denies the current caller every call of a checked card."""
    posture: str = ""
    """Describes what runs without asking, for the system prompt of sub-agents."""


def build_call_checks(cwd: str, dialog: Dialog | None = None) -> CardChecks:
    """Build the checks for a typed call. Deny rules apply; typing the call counts as permission.

    With a `dialog`, ask rules ask the user.
    """
    from induscode.permissions.check import CheckedCard, Permissions  # noqa: PLC0415 — for a call that runs
    from induscode.permissions.confirm import TypedCall  # noqa: PLC0415 — for a call that runs
    from induscode.permissions.store import RuleStore, load_startup_rules  # noqa: PLC0415 — for a call that runs

    store = RuleStore()
    rules, notes = load_startup_rules(store, cwd)
    person = None
    if dialog is not None:
        from induscode.permissions.approver import PersonApprover  # noqa: PLC0415 — for a terminal

        person = PersonApprover(dialog)
    permissions = Permissions(rules, approver=TypedCall(person), store=store)

    def wrap(card: Capability) -> Capability:
        return CheckedCard(card, permissions)

    return CardChecks(wrap, wrap, notes)


def build_gateway_checks(invocation: Invocation, native: bool) -> CardChecks:
    """Build the checks for a gateway from its flags and the user's rules.

    Native cards work as in a headless run: a call that needs a question fails unless a flag or rule allows it. The user
    configured the servers, and gateway clients ask their own users, so remote tools run unless a rule denies the call
    or requires a question.

    Raises:
        InvalidRuleError: A rule on the command line is invalid.
    """
    from induscode.permissions.store import RuleStore, has_rules, load_startup_rules  # noqa: PLC0415 — while servers start

    if not native and not invocation.allow and not has_rules(invocation.cwd):
        return CardChecks(_pass, _pass, checks_remote=False)  # without rules, skip loading the checks
    from induscode.permissions import load_permissions  # noqa: PLC0415 — for a gateway with rules
    from induscode.permissions.check import Permissions, is_denied, require_permission  # noqa: PLC0415 — for a gateway with rules
    from induscode.permissions.policy import ApprovalMode  # noqa: PLC0415 — for a gateway with rules
    from induscode.permissions.rules import Effect, Rule, RuleOrigin  # noqa: PLC0415 — for a gateway with rules

    loaded = load_permissions(invocation)
    assert loaded.wrap is not None
    store = RuleStore()
    rules, _ = load_startup_rules(store, invocation.cwd)
    checks_remote = any(rule.effect is not Effect.ALLOW for rule in rules)
    everything = Rule(effect=Effect.ALLOW, tool="*", origin=RuleOrigin.SESSION, file="indus serve")
    permissions = Permissions([*rules, everything], approval=ApprovalMode(invocation.approval), store=store)
    return CardChecks(
        loaded.wrap,
        (lambda card: require_permission(card, permissions)) if checks_remote else _pass,
        loaded.notes,
        checks_remote,
        partial(is_denied, workspace=os.path.realpath(invocation.cwd)),
        loaded.posture,
    )


def _pass(card: Capability) -> Capability:
    return card
