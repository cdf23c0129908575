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
from induscode.session.permissions.call_facts import Kind
from induscode.session.permissions.rules import Effect, Rule
from induscode.session.permissions.shell.patterns import (
    Match,
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
)
from induscode.session.permissions.shell.remote import may_name, names_exactly

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from induscode.session.permissions.call_facts import Facts, PathFact
    from induscode.session.permissions.shell.arguments import Problem
    from induscode.session.permissions.shell.script import Command, Script
    from induscode.session.permissions.shell.words import Word

_DOMAIN = "domain:"
_HARMLESS = frozenset({Kind.LOOK, Kind.OWN, Kind.DELEGATE})
_IN_PLAN_MODE = frozenset({Kind.LOOK, Kind.OWN, Kind.EGRESS})


class Approval(StrEnum):
    """What becomes of a call that a person would be asked about."""

    ASK = "ask"
    """It is asked about; where nobody can be asked, it is denied."""
    AUTO_EDIT = "auto-edit"
    """Files of the workspace are written unasked; the rest as with ASK."""
    ALL = "all"
    """Everything runs that is not denied."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stance:
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
class Judgement:
    """What is to be done, and why."""

    effect: Effect
    reasons: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    """What no rule allows, each of which a rule could."""
    firm: tuple[str, ...] = field(default=())
    """What no rule can allow: a person may."""
    undecided: tuple[str, ...] = ()
    """Why a rule that denies could apply to a command: asked about in every mode."""


def judge(facts: Facts, rules: Iterable[Rule], stance: Stance) -> Judgement:
    """Judge a call. This looks at the file system, for what links make of the paths in rules."""
    given = [rule for rule in rules if _concerns(rule, facts)]
    objections = [(rule, _objection(rule, facts)) for rule in given]
    denied = _denials(facts, objections)
    if denied:
        return Judgement(effect=Effect.DENY, reasons=tuple(denied))
    if stance.plan and not _fits_plan(facts, stance):
        why = "plan mode: only what looks is allowed until a plan is approved"
        return Judgement(effect=Effect.DENY, reasons=(why,))
    firm = [
        f"rule {rule.told}" + ("" if match is Match.YES else " may be meant")
        for rule, match in objections
        if match is not Match.NO
    ]
    firm += _doubts(facts, stance)
    undecided = _undecided(facts, objections)
    allowing = [rule for rule in given if rule.effect is Effect.ALLOW]
    needs = [_with_problem(need, facts, allowing) for need in _needs(facts) if not _met(need, facts, allowing, stance)]
    reasons = tuple(dict.fromkeys([*firm, *(need.reason for need in needs)]))
    if not reasons:
        return Judgement(effect=Effect.ALLOW)
    unasked = stance.approval is Approval.ALL and not undecided
    return Judgement(
        effect=Effect.ALLOW if unasked else Effect.ASK,
        reasons=(*undecided, *(reason for reason in reasons if reason not in undecided)),
        needs=tuple(needs),
        firm=tuple(firm),
        undecided=tuple(undecided),
    )


def _undecided(facts: Facts, objections: Sequence[tuple[Rule, Match]]) -> list[str]:
    """List the rules that deny and could apply to a command, and what hides whether they do.

    Files that a file tool comes to while it runs are compared then: `denied_path`.
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
        if rule.effect is Effect.DENY and match is Match.MAYBE
    ]


def _redirected(facts: Facts) -> list[Word]:
    return [one.target for one in facts.script.redirects] if facts.script is not None else []


def _concerns(rule: Rule, facts: Facts) -> bool:
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


def _names(rule: Rule, facts: Facts) -> bool:
    """Tell whether a rule names the tool of a call; a server's tool by its identity."""
    if facts.remote is None:
        return any(map(rule.names, facts.names))
    if rule.effect is Effect.ALLOW:
        return names_exactly(rule.tool, facts.remote, facts.tool, shared=facts.shares_name)
    return may_name(rule.tool, facts.remote, facts.tool)


def _connected(facts: Facts) -> Sequence[PathFact]:
    """Give the files that a command is connected to: they count as read or written."""
    return facts.paths if facts.kind is Kind.COMMAND else ()


def _file_tool(path: PathFact) -> str:
    return "write" if path.writing else "read"


# -- what is denied, or to be asked about -----------------------------------------------------


def _denials(facts: Facts, objections: Sequence[tuple[Rule, Match]]) -> list[str]:
    denied = [f"rule {rule.told}" for rule, match in objections if rule.effect is Effect.DENY and match is Match.YES]
    denied += [
        f"{path.resolved} is part of the system itself: no tool is let in there"
        for path in facts.paths
        if path.refusal == "special"
    ]
    if facts.script is not None and not facts.script.whole:
        strict = [rule for rule, _ in objections if rule.effect is Effect.DENY]
        denied += [f"it is too long to be compared with rule {rule.told}" for rule in strict]
    return denied


def _objection(rule: Rule, facts: Facts) -> Match:
    """Tell whether a rule that denies or asks is meant."""
    if rule.effect is Effect.ALLOW:
        return Match.NO
    if rule.specifier is None:
        return Match.YES
    by_path = _path_objection(rule, facts)
    if facts.kind is Kind.FILE or by_path is Match.YES:
        return by_path
    if not _names(rule, facts):
        return by_path
    return max(by_path, _other_objection(rule, rule.specifier, facts))


def _other_objection(rule: Rule, specifier: str, facts: Facts) -> Match:
    if facts.script is not None:
        return _command_objection(specifier, facts.script)
    if facts.url is not None and specifier.startswith(_DOMAIN):
        host = host_of(facts.url)
        return Match.YES if may_be_host(specifier.removeprefix(_DOMAIN), host) else Match.NO
    return Match.YES  # nobody knows what it means here: then it is meant


def _command_objection(specifier: str, script: Script) -> Match:
    """Compare a pattern with all that runs, and with all that may."""
    runs = (*script.commands, *script.suspects)
    found = max((may_be_command(specifier, one) for one in runs), default=Match.NO)
    if found is not Match.NO:
        return found
    hidden = (
        script.opaque
        or any(may_be_program(specifier, word) for word in script.copied)
        or any(may_be_command(specifier, one) is not Match.NO for one in script.possible)
    )
    return Match.MAYBE if hidden else Match.NO


def _path_objection(rule: Rule, facts: Facts) -> Match:
    pattern = rule.specifier or ""
    found = Match.NO
    for path in facts.paths:
        connected = facts.kind is Kind.COMMAND
        if connected and not rule.names(_file_tool(path)):
            continue
        ways = (path.resolved, path.spelled)
        if any(may_be_path(pattern, way, facts.workspace) for way in ways):
            return Match.YES
        if path.tree and may_lie_below(pattern, path.resolved, facts.workspace):
            found = Match.MAYBE
    for redirect in facts.script.redirects if facts.script is not None else ():
        if redirect.target.text is None and rule.names("write" if redirect.writes else "read"):
            found = Match.MAYBE
    return found


def denied_path(rules: Iterable[Rule], facts: Facts, resolved: str) -> Rule | None:
    """Find a rule that keeps a file tool from a path which it comes to while it runs."""
    for rule in rules:
        if rule.effect is Effect.DENY and _concerns(rule, facts) and rule.specifier is not None:
            if may_be_path(rule.specifier, resolved, facts.workspace):
                return rule
    return None


def _doubts(facts: Facts, stance: Stance) -> list[str]:
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


def _needs(facts: Facts) -> list[Need]:
    if facts.kind in _HARMLESS:
        return []
    if facts.kind in {Kind.FILE, Kind.COMMAND}:
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


def _met(need: Need, facts: Facts, allowing: Sequence[Rule], stance: Stance) -> bool:
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


def _with_problem(need: Need, facts: Facts, allowing: Sequence[Rule]) -> Need:
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


def _opens(rule: Rule, path: PathFact, facts: Facts) -> bool:
    """Tell whether a rule lets a path be used; the farther away, the plainer it must say so."""
    tools = [_file_tool(path)] if facts.kind is Kind.COMMAND else [facts.tool]
    if not any(map(rule.names, tools)):
        return False
    if rule.specifier is None:
        return path.refusal is None
    if path.refusal == "protected" and has_signs(rule.specifier):
        return False
    if path.refusal == "outside" and not is_absolute(rule.specifier):
        return False
    return is_path(rule.specifier, path.resolved, facts.workspace)


def _allows_call(rule: Rule, facts: Facts) -> bool:
    if rule.specifier is None:
        return True
    if facts.url is None or not rule.specifier.startswith(_DOMAIN):
        return False
    host = host_of(facts.url)
    return host is not None and is_host(rule.specifier.removeprefix(_DOMAIN), host)


def _fits_plan(facts: Facts, stance: Stance) -> bool:
    if facts.kind in _IN_PLAN_MODE:
        return True
    if facts.kind is not Kind.FILE:
        return False
    return all(not path.writing or _in_plans(path, stance) for path in facts.paths)


def _in_plans(path: PathFact, stance: Stance) -> bool:
    folder = stance.plans_dir
    return folder is not None and is_within(path.resolved, os.path.normpath(folder))
