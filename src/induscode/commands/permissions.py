"""`indus permissions`: says whether a call would run, and which rule decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from indusagi.core.json import is_json_object
from indusagi.runtime.calls import CallingClient, current_client
from indusagi.runtime.contract import ToolOutcome, ToolResult
from induscode.boot.plans import load_plan, usage_errors
from induscode.cli.output import as_json, print_notes, write_json
from induscode.cli.signals import run_with_signals
from induscode.cli.terminal import print_line
from induscode.commands.call import CallRun
from induscode.commands.call_data import ArgumentError, read_object
from induscode.commands.groups import CommandGroup, LazyCommand, complete_tool
from induscode.deck.catalog import has_capability
from induscode.deck.contract import Capability, is_foreign
from induscode.deck.mcp.store.events import filter_texts
from induscode.launch.options import define_command, read_invocation
from induscode.launch.settings import APPROVALS_MODE
from induscode.permissions import build_gateway_checks, load_permissions
from induscode.permissions.check import preview_card
from induscode.permissions.flow import FlowGuard
from induscode.permissions.rules import Effect

if TYPE_CHECKING:
    from indusagi.core.cancel import CancelToken
    from induscode.boot.session import Session

_NOT_ALLOWED = 1
_STRICTEST = (Effect.DENY, Effect.ASK, Effect.ALLOW)
_ANSWERS = {Effect.ALLOW: "runs", Effect.ASK: "asks you", Effect.DENY: "is denied"}


@click.command(
    cls=CommandGroup, commands={"test": LazyCommand("say whether a call would run, and which rule decides", ":test")}
)
def command() -> None:
    """Say which rule decides about a call."""


@define_command("test", "--allow", "--approval", "--flow", "--tools", "--mcp", "--no-mcp", "--no-addons", "--cwd")
@click.argument("tool", shell_complete=complete_tool)
@click.argument("arguments", nargs=-1, metavar="[KEY=VALUE]…")
@click.option("--arguments", "document", metavar="OBJECT|@FILE|-", help="All arguments as one JSON object.")
@click.option("--gateway", is_flag=True, help="Decide as indus serve does.")
@click.option("--as", "principal", metavar="PRINCIPAL", default="", help="Decide for this user of a gateway.")
@as_json
def test(
    context: click.Context,
    tool: str,
    arguments: tuple[str, ...],
    *,
    document: str | None,
    gateway: bool,
    principal: str,
    as_json: bool,
) -> int:
    """Say whether TOOL would run with these arguments, and which rule decides. Nothing runs.

    Exit codes: 0 it would run, 1 it would ask or is denied, 2 invalid usage, 3 its server failed or is missing, or the
    tool is disabled.
    """
    invocation = read_invocation(context)
    trial = _Trial(context, invocation, tool, arguments, "json" if as_json else "text", None)
    try:
        trial.object = {} if document is None else read_object(document)
    except ArgumentError as exc:
        raise click.UsageError(str(exc)) from exc
    trial.plan = None if has_capability(tool) else load_plan(invocation)
    trial.gateway = gateway
    if gateway:
        checks = build_gateway_checks(invocation, native=True)
        trial.wrap = lambda card: (checks.remote if is_foreign(card) else checks.native)(card)
        print_notes(checks.notes)
    else:
        setup = load_permissions(invocation)
        trial.wrap = setup.wrap
        print_notes(setup.notes)

    async def execute(token: CancelToken) -> int:
        current_client.set(CallingClient(principal=principal) if principal else None)
        with usage_errors():
            return await trial.execute(token)

    return run_with_signals(execute)


@dataclass(slots=True)
class _Trial(CallRun):
    """A call that's decided about instead of run."""

    gateway: bool = False

    async def run(self, session: Session, card: Capability, token: CancelToken) -> ToolOutcome:
        """Decide about the call; the strictest of several permissions counts."""
        arguments = await self.read_arguments(card)
        ctx = session.deck().context
        decisions = await preview_card(card, arguments, ctx)
        if isinstance(decisions, ToolResult):
            return ToolOutcome("", decisions)
        effect = min((decision.effect for decision in decisions), key=_STRICTEST.index, default=Effect.ALLOW)
        if self.gateway and effect is Effect.ASK:
            # As `ApprovalOptions.may_ask`: whether somebody can answer shows once it runs.
            mode = self.invocation.settings.get(APPROVALS_MODE)
            by_rule = all(one.asked_by_rule for one in decisions if one.effect is Effect.ASK)
            effect = Effect.ASK if mode == "ask" or (mode is None and by_rule) else Effect.DENY
        guard = FlowGuard()
        guard.connect(session.mcp)
        found = guard.describe(card).labels
        source = "confirmed" if found.is_confirmed else "proposed"
        return ToolOutcome(
            "",
            ToolResult.json(
                {
                    "tool": card.name,
                    "effect": effect.value,
                    "rules": [*dict.fromkeys(rule.reason for decision in decisions for rule in decision.rules)],
                    "reasons": [*dict.fromkeys(reason for decision in decisions for reason in decision.reasons)],
                    **({"labels": [f"{label} ({source})" for label in found.labels]} if found.labels else {}),
                }
            ),
        )

    def print_outcome(self, outcome: ToolOutcome, card: Capability | None = None) -> int:
        """Print the decision and return the exit code."""
        facts = outcome.output
        if outcome.is_error or not is_json_object(facts):
            return CallRun.print_outcome(self, outcome, card)
        effect = Effect(str(facts["effect"]))
        if self.output == "json":
            write_json(facts)
        else:
            is_waiting = self.gateway and effect is Effect.ASK
            answer = "waits for approval, or is denied if nobody can give it" if is_waiting else _ANSWERS[effect]
            print_line(f"{facts['tool']}: {answer}")
            because = filter_texts(facts["rules" if effect is Effect.ALLOW else "reasons"])
            if effect is Effect.ALLOW and facts["reasons"]:
                because = [f"--approval {self.invocation.approval}"]
            for reason in because or ["it needs no rule"]:
                print_line(f"  {reason}")
            if labels := filter_texts(facts.get("labels")):
                print_line(f"  labels for the flow guard: {', '.join(labels)}")
        return 0 if effect is Effect.ALLOW else _NOT_ALLOWED
