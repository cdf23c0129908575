"""What is to be done with a call, from what is known of it and from all the rules.

Denied before anything else; then plan mode; then what somebody wants to be asked about; and only
what nobody objects to can be allowed. Every rule is looked at: none ends the search.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from indusagi.core.paths import is_within
from induscode.session.permissions.call_facts import CallKind
from induscode.session.permissions.patterns import (
    PatternMatch,
    allow_problem,
    has_signs,
    host_of,
    is_absolute,
    is_host,
    is_path,
    match_command,
    may_be_command,
    may_be_host,
    may_be_path,
    may_be_program,
    may_lie_below,
    may_name,
    names_exactly,
)
from induscode.session.permissions.rules import Effect, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from induscode.session.permissions.call_facts import CallFacts, PathFact
    from induscode.session.permissions.shell.arguments import Problem
    from induscode.session.permissions.shell.parse import Command, Script
    from induscode.session.permissions.shell.syntax import Word

_DOMAIN = "domain:"
_HARMLESS = frozenset({CallKind.LOOK, CallKind.OWN, CallKind.DELEGATE})
_IN_PLAN_MODE = frozenset({CallKind.LOOK, CallKind.OWN, CallKind.EGRESS})


class Approval(StrEnum):
    """What becomes of a call that a person would be asked about."""

    ASK = "ask"
    """It is asked about; where nobody can be asked, it is denied."""
    AUTO_EDIT = "auto-edit"
    """Files of the workspace are written unasked; the rest as with ASK."""
    ALL = "all"
    """Everything runs that is not denied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyContext:
    """How the session stands at the moment."""

    approval: Approval = Approval.ASK
    plan: bool = False
    plans_dir: str | None = None
    """Where plan mode may write; absolute and resolved."""
    unsandboxed: bool = False
    """Whether rules allow commands although nothing holds them in."""


@dataclass(frozen=True, slots=True)
class Need:
    """Something about a call that wants leave."""

    reason: str
    path: PathFact | None = None
    command: Command | None = None
    problem: Problem | None = None
    """Why a rule that names the command does not allow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What is to be done, and why."""

    effect: Effect
    reasons: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    """What no rule allows, each of which a rule could."""
    firm: tuple[str, ...] = field(default=())
    """What no rule can allow: a person may."""
    undecided: tuple[str, ...] = ()
    """Why a rule that denies could apply to a command: asked about in every mode."""


def decide_call(facts: CallFacts, rules: Iterable[Rule], stance: PolicyContext) -> Decision:
    """Judge a call. This looks at the file system, for what links make of the paths in rules."""
    given = [rule for rule in rules if _concerns(rule, facts)]
    objections = [(rule, _objection(rule, facts)) for rule in given]
    denied = _denials(facts, objections)
    if denied:
        return Decision(effect=Effect.DENY, reasons=tuple(denied))
    if stance.plan and not _fits_plan(facts, stance):
        why = "plan mode: only what looks is allowed until a plan is approved"
        return Decision(effect=Effect.DENY, reasons=(why,))
    firm = [
        f"rule {rule.told}" + ("" if match is PatternMatch.YES else " may be meant")
        for rule, match in objections
        if match is not PatternMatch.NO
    ]
    firm += _doubts(facts, stance)
    undecided = _undecided(facts, objections)
    allowing = [rule for rule in given if rule.effect is Effect.ALLOW]
    needs = [_with_problem(need, facts, allowing) for need in _needs(facts) if not _met(need, facts, allowing, stance)]
    reasons = tuple(dict.fromkeys([*firm, *(need.reason for need in needs)]))
    if not reasons:
        return Decision(effect=Effect.ALLOW)
    unasked = stance.approval is Approval.ALL and not undecided
    return Decision(
        effect=Effect.ALLOW if unasked else Effect.ASK,
        reasons=(*undecided, *(reason for reason in reasons if reason not in undecided)),
        needs=tuple(needs),
        firm=tuple(firm),
        undecided=tuple(undecided),
    )


def _undecided(facts: CallFacts, objections: Sequence[tuple[Rule, PatternMatch]]) -> list[str]:
    """List the rules that deny and could apply to a command, and what hides whether they do.

    Files that a file tool comes to while it runs are compared then: `find_denying_rule`.
    """
    if facts.script is None:
        return []
    why = [*facts.script.opaque]
    if any(word.text is None for word in _redirected(facts)):
        why.append("only the shell knows which file it is connected to")
    said = f": {'; '.join(why)}" if why else ""
    return [
        f"rule {rule.told} could apply{said}"
        for rule, match in objections
        if rule.effect is Effect.DENY and match is PatternMatch.MAYBE
    ]


def _redirected(facts: CallFacts) -> list[Word]:
    return [one.target for one in facts.script.redirects] if facts.script is not None else []


def _concerns(rule: Rule, facts: CallFacts) -> bool:
    """Tell whether a rule holds here and speaks of this tool, or of a path it touches."""
    if rule.workspace not in {None, facts.workspace}:
        return False
    if rule.server is not None and rule.server != facts.server:
        return False
    if rule.effect is Effect.ALLOW and rule.pin not in {None, facts.pin}:
        return False
    touched = any(rule.names(_file_tool(path)) for path in _connected(facts)) or any(
        rule.names("write" if one.writes else "read")
        for one in (facts.script.redirects if facts.script is not None else ())
        if one.target.text is None
    )
    return touched or _names(rule, facts)


def _names(rule: Rule, facts: CallFacts) -> bool:
    """Tell whether a rule names the tool of a call; a server's tool by its identity."""
    if facts.remote is None:
        return any(map(rule.names, facts.names))
    if rule.effect is Effect.ALLOW:
        return names_exactly(rule.tool, facts.remote, facts.tool, shared=facts.shares_name)
    return may_name(rule.tool, facts.remote, facts.tool)


def _connected(facts: CallFacts) -> Sequence[PathFact]:
    """Give the files that a command is connected to: they count as read or written."""
    return facts.paths if facts.kind is CallKind.COMMAND else ()


def _file_tool(path: PathFact) -> str:
    return "write" if path.writing else "read"


# -- what is denied, or to be asked about -----------------------------------------------------


def _denials(facts: CallFacts, objections: Sequence[tuple[Rule, PatternMatch]]) -> list[str]:
    denied = [
        f"rule {rule.told}" for rule, match in objections if rule.effect is Effect.DENY and match is PatternMatch.YES
    ]
    denied += [
        f"{path.resolved} is part of the system itself: no tool is let in there"
        for path in facts.paths
        if path.refusal == "special"
    ]
    if facts.script is not None and not facts.script.whole:
        strict = [rule for rule, _ in objections if rule.effect is Effect.DENY]
        denied += [f"it is too long to be compared with rule {rule.told}" for rule in strict]
    return denied


def _objection(rule: Rule, facts: CallFacts) -> PatternMatch:
    """Tell whether a rule that denies or asks is meant."""
    if rule.effect is Effect.ALLOW:
        return PatternMatch.NO
    if rule.specifier is None:
        return PatternMatch.YES
    by_path = _path_objection(rule, facts)
    if facts.kind is CallKind.FILE or by_path is PatternMatch.YES:
        return by_path
    if not _names(rule, facts):
        return by_path
    return max(by_path, _other_objection(rule, rule.specifier, facts))


def _other_objection(rule: Rule, specifier: str, facts: CallFacts) -> PatternMatch:
    if facts.script is not None:
        return _command_objection(specifier, facts.script)
    if facts.url is not None and specifier.startswith(_DOMAIN):
        host = host_of(facts.url)
        return PatternMatch.YES if may_be_host(specifier.removeprefix(_DOMAIN), host) else PatternMatch.NO
    return PatternMatch.YES  # nobody knows what it means here: then it is meant


def _command_objection(specifier: str, script: Script) -> PatternMatch:
    """Compare a pattern with all that runs, and with all that may."""
    runs = (*script.commands, *script.suspects)
    found = max((may_be_command(specifier, one) for one in runs), default=PatternMatch.NO)
    if found is not PatternMatch.NO:
        return found
    hidden = (
        script.opaque
        or any(may_be_program(specifier, word) for word in script.copied)
        or any(may_be_command(specifier, one) is not PatternMatch.NO for one in script.possible)
    )
    return PatternMatch.MAYBE if hidden else PatternMatch.NO


def _path_objection(rule: Rule, facts: CallFacts) -> PatternMatch:
    pattern = rule.specifier or ""
    found = PatternMatch.NO
    for path in facts.paths:
        connected = facts.kind is CallKind.COMMAND
        if connected and not rule.names(_file_tool(path)):
            continue
        ways = (path.resolved, path.spelled)
        if any(may_be_path(pattern, way, facts.workspace) for way in ways):
            return PatternMatch.YES
        if path.tree and may_lie_below(pattern, path.resolved, facts.workspace):
            found = PatternMatch.MAYBE
    for redirect in facts.script.redirects if facts.script is not None else ():
        if redirect.target.text is None and rule.names("write" if redirect.writes else "read"):
            found = PatternMatch.MAYBE
    return found


def find_denying_rule(rules: Iterable[Rule], facts: CallFacts, resolved: str) -> Rule | None:
    """Find a rule that keeps a file tool from a path which it comes to while it runs."""
    for rule in rules:
        if rule.effect is Effect.DENY and _concerns(rule, facts) and rule.specifier is not None:
            if may_be_path(rule.specifier, resolved, facts.workspace):
                return rule
    return None


def _doubts(facts: CallFacts, stance: PolicyContext) -> list[str]:
    """List what no rule can allow."""
    said = [f"{path.given}: {path.problem}" for path in facts.paths if path.problem]
    if facts.script is None:
        return said
    said += facts.script.flaws
    if not facts.script.commands:
        said.append("it holds no command that a rule could name")
    state = facts.sandbox
    held = state is not None and state.kind != "none"
    if not held and not stance.unsandboxed:
        detail = state.detail if state is not None else "nobody knows what holds commands in"
        said.append(f"there is no sandbox for commands here ({detail})")
    return said


# -- what wants leave, and who gives it -------------------------------------------------------


def _needs(facts: CallFacts) -> list[Need]:
    if facts.kind in _HARMLESS:
        return []
    if facts.kind in {CallKind.FILE, CallKind.COMMAND}:
        commands = facts.script.commands if facts.script is not None else ()
        return [
            *(Need(_path_reason(path), path=path) for path in facts.paths if _wants_leave(path)),
            *(Need(f"runs: {one.shown}", command=one) for one in dict.fromkeys(commands)),
        ]
    whose = f" of server {facts.server!r}" if facts.server is not None else ""
    return [Need(f"{facts.tool}{whose} {facts.kind.value}")]


def _wants_leave(path: PathFact) -> bool:
    return path.writing or path.refusal is not None


def _path_reason(path: PathFact) -> str:
    act = "writes to" if path.writing else "reads"
    where = f", which is {path.refusal}" if path.refusal else ""
    return f"{act} {path.resolved}{where}"


def _met(need: Need, facts: CallFacts, allowing: Sequence[Rule], stance: PolicyContext) -> bool:
    if need.path is not None:
        unasked = stance.approval is Approval.AUTO_EDIT and need.path.refusal is None
        in_plan = stance.plan and _in_plans(need.path, stance)
        return (unasked or in_plan) or any(_opens(rule, need.path, facts) for rule in allowing)
    named = [rule for rule in allowing if _names(rule, facts)]
    if need.command is not None:
        return any(allow_problem(rule.specifier, need.command) is None for rule in _about(need.command, named))
    return any(_allows_call(rule, facts) for rule in named)


def _about(command: Command, rules: Iterable[Rule]) -> list[Rule]:
    """Give the rules that name a command, whatever its arguments."""
    return [rule for rule in rules if rule.specifier is None or match_command(rule.specifier, command) is not None]


def _with_problem(need: Need, facts: CallFacts, allowing: Sequence[Rule]) -> Need:
    """Add why a rule that names a command does not allow it as it is."""
    if need.command is None:
        return need
    named = [rule for rule in allowing if _names(rule, facts)]
    for rule in _about(need.command, named):
        problem = allow_problem(rule.specifier, need.command)
        if problem is not None:
            why = f"{need.reason} (rule {rule} does not cover it: {problem.reason})"
            return replace(need, reason=why, problem=problem)
    return need


def _opens(rule: Rule, path: PathFact, facts: CallFacts) -> bool:
    """Tell whether a rule lets a path be used; the farther away, the plainer it must say so."""
    tools = [_file_tool(path)] if facts.kind is CallKind.COMMAND else [facts.tool]
    if not any(map(rule.names, tools)):
        return False
    if rule.specifier is None:
        return path.refusal is None
    if path.refusal == "protected" and has_signs(rule.specifier):
        return False
    if path.refusal == "outside" and not is_absolute(rule.specifier):
        return False
    return is_path(rule.specifier, path.resolved, facts.workspace)


def _allows_call(rule: Rule, facts: CallFacts) -> bool:
    if rule.specifier is None:
        return True
    if facts.url is None or not rule.specifier.startswith(_DOMAIN):
        return False
    host = host_of(facts.url)
    return host is not None and is_host(rule.specifier.removeprefix(_DOMAIN), host)


def _fits_plan(facts: CallFacts, stance: PolicyContext) -> bool:
    if facts.kind in _IN_PLAN_MODE:
        return True
    if facts.kind is not CallKind.FILE:
        return False
    return all(not path.writing or _in_plans(path, stance) for path in facts.paths)


def _in_plans(path: PathFact, stance: PolicyContext) -> bool:
    folder = stance.plans_dir
    return folder is not None and is_within(path.resolved, os.path.normpath(folder))
