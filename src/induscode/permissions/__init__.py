"""Permissions: the checks between a model's calls and the cards of the deck.

A headless session denies calls that need a question. The user typed `indus call`, so it asks (on a terminal) only if
a rule requires it. The clients of `indus serve` ask their own users. Deny rules apply everywhere.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Protocol

from indusagi.core.faults import CoreError, Note
from indusagi.core.records import record
from induscode.launch.settings import APPROVAL_HARMLESS, FLOW_MODE

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from induscode.cli.dialog import Dialog
    from induscode.deck.contract import Capability
    from induscode.deck.mcp.boot import BootedBridge
    from induscode.launch.invocation import Approval, Invocation
    from induscode.permissions.check import Permissions
    from induscode.permissions.confirm import Approver
    from induscode.permissions.confirm import PermissionAnswer as PermissionAnswer
    from induscode.permissions.confirm import PermissionRequest as PermissionRequest
    from induscode.permissions.flow import FlowGuard
    from induscode.permissions.plan_mode import PlanMode
    from induscode.permissions.rules import Rule

    Wrap = Callable[[Capability], Capability]


class IsDenied(Protocol):
    """Tells whether a rule denies a caller a card."""

    def __call__(self, card: Capability, arguments: JsonObject | None = None, /) -> bool:
        """Return whether every call is denied, or the one with all these arguments."""
        ...


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


class UnansweredError(CoreError):
    """Nobody answered a question: the message has the cause."""


@record(kw_only=True)
class PermissionSetup:
    """Permissions of a run, ready for its deck."""

    wrap: Wrap | None = None
    """Adds the checks to a card, or `None` if the caller checks calls itself."""
    posture: str = ""
    """Describes what runs without asking, for the system prompt."""
    notes: Sequence[Note] = ()
    permissions: Permissions | None = None
    """The checks, or `None` if the caller checks calls itself."""

    def follow(self, mcp: BootedBridge) -> None:
        """Guard the flow between the servers of a bridge."""
        if self.permissions is not None and self.permissions.flow is not None:
            self.permissions.flow.connect(mcp)


def parse_flag_rules(invocation: Invocation, entry: str = "") -> Sequence[Rule]:
    """Parse the rules of `--allow`, or of the argument of the function `entry`. Raises `InvalidRuleError`."""
    from induscode.permissions.rules import Effect, RuleOrigin, parse_rules  # noqa: PLC0415 — needed with rules only

    rules, problems = parse_rules(invocation.allow, Effect.ALLOW, RuleOrigin.FLAG)
    if problems:
        raise InvalidRuleError(f"{'allow=' if entry else '--allow'}: {problems[0]}")
    return rules


def load_permissions(
    invocation: Invocation, mode: PlanMode | None = None, approver: Approver | None = None, entry: str = ""
) -> PermissionSetup:
    """Load the permissions of a run from its flags and the user's and project's rules.

    Blocks: call it in a thread. With `mode`, the cards of plan mode take effect. Without an `approver`, calls that need
    a question fail. Remedies suggest flags, or arguments of the function `entry`. Raises `InvalidRuleError`.
    """
    from induscode.permissions.check import Permissions, require_permission  # noqa: PLC0415 — loads the table of programs
    from induscode.permissions.policy import ApprovalMode  # noqa: PLC0415 — loads the table of programs
    from induscode.permissions.rules import RuleStore, load_startup_rules  # noqa: PLC0415 — needed with rules only

    flag_rules = parse_flag_rules(invocation, entry)
    store = RuleStore()
    startup_rules, notes = load_startup_rules(store, invocation.cwd)
    permissions = Permissions(
        [*flag_rules, *startup_rules],
        approver=approver,
        approval=ApprovalMode(invocation.approval),
        plan=mode,
        store=store,
        entry=entry,
        harmless=mode is not None and invocation.settings.get(APPROVAL_HARMLESS),
        flow=open_guard(invocation),
    )
    if mode is not None:
        mode.on_accept_edits.add(permissions.accept_edits)

    def wrap(card: Capability) -> Capability:
        return require_permission(card if mode is None else mode.wrap(card), permissions)

    posture = (_HEADLESS_POSTURES if approver is None else _INTERACTIVE_POSTURES)[invocation.approval]
    if invocation.allow:
        posture += f" Allowed: {', '.join(invocation.allow)}."
    return PermissionSetup(wrap=wrap, posture=posture, notes=notes, permissions=permissions)


def open_guard(invocation: Invocation, *, is_gateway: bool = False) -> FlowGuard | None:
    """Open the flow guard of a run, or return `None` if it's off."""
    from induscode.permissions.flow import FlowGuard  # noqa: PLC0415 — for a run with calls

    mode = invocation.settings.get(FLOW_MODE)
    return None if mode == "off" else FlowGuard(mode, is_gateway=is_gateway)


# -- `indus call` and `indus serve` -------------------------------------------------------------


@record
class CardChecks:
    """Functions that add permission checks to native cards and remote tools."""

    native: Wrap
    remote: Wrap
    notes: Sequence[Note] = ()
    checks_remote: bool = True
    """Whether `remote` does anything."""
    is_denied: IsDenied = lambda card, arguments=None: False
    """Returns whether a rule denies the current caller every call of a checked card, or that with all `arguments`."""
    posture: str = ""
    """Describes what runs without asking, for the system prompt of sub-agents."""
    open_approver: Callable[[], Approver] | None = None
    """Returns what asks about calls, if anybody does."""
    flow: FlowGuard | None = None


def build_call_checks(cwd: str, dialog: Dialog | None = None) -> CardChecks:
    """Build the checks for a typed call. Deny rules apply; typing the call counts as permission.

    With a `dialog`, ask rules ask the user.
    """
    from induscode.permissions.check import CheckedCard, Permissions  # noqa: PLC0415 — for a call that runs
    from induscode.permissions.confirm import TypedCall  # noqa: PLC0415 — for a call that runs
    from induscode.permissions.rules import RuleStore, load_startup_rules  # noqa: PLC0415 — for a call that runs

    store = RuleStore()
    rules, notes = load_startup_rules(store, cwd)
    permissions = Permissions(rules, approver=TypedCall(dialog), store=store)

    def wrap(card: Capability) -> Capability:
        return CheckedCard(card, permissions)

    return CardChecks(wrap, wrap, notes)


def build_gateway_checks(
    invocation: Invocation, native: bool, open_approver: Callable[[], Approver] | None = None
) -> CardChecks:
    """Build the checks for a gateway from its flags and the user's rules.

    Native cards work as in a headless run: a call that needs a question fails unless a flag or rule allows it. The user
    configured the servers, and gateway clients ask their own users, so remote tools run unless a rule denies the call
    or requires a question. The approver asks, if it can. Raises `InvalidRuleError`.
    """
    from induscode.permissions.rules import Effect, Rule, RuleOrigin, RuleStore, has_rules, load_startup_rules  # noqa: PLC0415 — while servers start

    flow = open_guard(invocation, is_gateway=True)

    @cache
    def load_remote() -> Permissions:
        from induscode.permissions.check import Permissions  # noqa: PLC0415 — for a gateway with rules, or a question
        from induscode.permissions.policy import ApprovalMode  # noqa: PLC0415 — for a gateway with rules, or a question

        store = RuleStore()
        rules, _ = load_startup_rules(store, invocation.cwd)
        everything = Rule(effect=Effect.ALLOW, tool="*", origin=RuleOrigin.SESSION, file="indus serve")
        approver = None if open_approver is None else open_approver()
        approval = ApprovalMode(invocation.approval)
        return Permissions([*rules, everything], approver=approver, approval=approval, store=store, flow=flow)

    def guard(card: Capability) -> Capability:
        if flow is None:
            return card
        from induscode.permissions.flow import FlowCard  # noqa: PLC0415 — loaded with the guard

        return FlowCard(card, flow, load_remote)

    if not native and not invocation.allow and not has_rules(invocation.cwd):
        # Without rules, skip loading the checks.
        return CardChecks(lambda card: card, guard, checks_remote=False, open_approver=open_approver, flow=flow)
    from induscode.permissions.check import is_denied, require_permission  # noqa: PLC0415 — for a gateway with rules

    loaded = load_permissions(invocation)
    assert loaded.wrap is not None
    assert loaded.permissions is not None
    permissions = load_remote()
    loaded.permissions.approver, loaded.permissions.flow = permissions.approver, flow
    checks_remote = any(rule.effect is not Effect.ALLOW for rule in permissions.rules)
    return CardChecks(
        loaded.wrap,
        (lambda card: require_permission(card, permissions)) if checks_remote else guard,
        loaded.notes,
        checks_remote,
        partial(is_denied, workspace=os.path.realpath(invocation.cwd)),
        loaded.posture,
        open_approver,
        flow,
    )
