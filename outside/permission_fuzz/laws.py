"""The two laws: allowed commands stay within their rules, and denied ones do not pass."""

from __future__ import annotations

from indusagi.capabilities.ports import SandboxState
from induscode.permissions.call_facts import CallFacts, CallKind
from induscode.permissions.policy import ApprovalMode, PolicyContext, decide_call
from induscode.permissions.rules import Effect, Rule
from induscode.permissions.shell.parse import parse_command
from outside.permission_fuzz.generate import CANARY, READERS, WRITERS, generate_commands, generate_spellings
from outside.permission_fuzz.run import Outcome, Playground

_ALLOWED = [Rule(effect=Effect.ALLOW, tool="bash", specifier=f"{name} *") for name in (*READERS, *WRITERS)]
_DENIED = [Rule(effect=Effect.DENY, tool="bash", specifier=f"{CANARY} *")]


def decide(command: str, rules: list[Rule], approval: ApprovalMode = ApprovalMode.ASK) -> Effect:
    """Apply the policy to a sandboxed command."""
    facts = CallFacts(
        tool="bash",
        kind=CallKind.COMMAND,
        arguments={"command": command},
        workspace="/w",
        cwd="/w",
        script=parse_command(command),
        sandbox=SandboxState(kind="bubblewrap"),
    )
    return decide_call(facts, rules, PolicyContext(approval=approval)).effect


def find_overruns(playground: Playground, seed: int, count: int) -> tuple[int, list[Outcome]]:
    """Run what rules allow; give what ran another program, and readers that wrote a file."""
    commands = dict.fromkeys(generate_commands(seed, count))
    allowed = [command for command in commands if ">" not in command and decide(command, _ALLOWED) is Effect.ALLOW]
    found = playground.run(allowed)
    return len(allowed), [one for one in found if one.ran_canary or (one.wrote and _reads(one))]


def _reads(outcome: Outcome) -> bool:
    return not any(f"{name} " in outcome.command for name in WRITERS)


def find_hidden(playground: Playground, seed: int, count: int) -> tuple[int, list[str]]:
    """Run spellings; give those that ran the denied program and would pass under `all`."""
    commands = list(dict.fromkeys(generate_spellings(seed, count)))
    ran = [one.command for one in playground.run(commands) if one.ran_canary]
    passed = [one for one in ran if decide(one, _DENIED, ApprovalMode.ALL) is Effect.ALLOW]
    return len(ran), passed
