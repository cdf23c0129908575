"""The policy: a function from the facts about a call and all rules to a decision.

Deny rules come first, then plan mode, then ask rules and doubts, then allow rules. The order of rules doesn't matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from indusagi.core.json import JsonValue, is_json_object
from indusagi.core.records import record
from induscode.permissions.argument_patterns import find_unknown_argument, parse_argument_patterns
from induscode.permissions.call_facts import CallFacts, CallKind, PathFact
from induscode.permissions.patterns import (
    PatternMatch,
    find_allow_problem,
    has_wildcards,
    is_absolute,
    is_host,
    is_path,
    match_action,
    match_command,
    may_be_command,
    may_be_host,
    may_be_path,
    may_be_program,
    may_lie_below,
    may_name,
    names_exactly,
    parse_host,
)
from induscode.permissions.rules import Effect, Rule, match_glob
from induscode.permissions.shell.arguments import Problem
from induscode.permissions.shell.parse import Command, Script

_DOMAIN = "domain:"
_HARMLESS = frozenset({CallKind.LOOK, CallKind.OWN, CallKind.DELEGATE, CallKind.SCRIPT})
_IN_PLAN_MODE = frozenset({CallKind.LOOK, CallKind.OWN, CallKind.EGRESS, CallKind.SCRIPT})


class ApprovalMode(StrEnum):
    """The policy for calls that need a question."""

    ASK = "ask"
    """Ask the user, or deny if that's impossible."""
    AUTO_EDIT = "auto-edit"
    """Like `ASK`, but write files in the workspace without asking."""
    ALL = "all"
    """Run everything that no rule denies."""


@record(kw_only=True)
class PolicyContext:
    """Session state that the policy depends on."""

    approval: ApprovalMode = ApprovalMode.ASK
    plan: bool = False
    """Whether plan mode is on."""
    harmless: bool = False
    """Whether commands that only read run without asking, in a sandbox without writes and network."""
    limits: bool = False
    """Whether these permissions only restrict others, which check the sandbox."""


@record
class Need:
    """A part of a call that needs permission."""

    reason: str
    path: PathFact | None = None
    command: Command | None = None
    problem: Problem | None = None
    """The reason a matching rule doesn't allow the command."""


@record(kw_only=True)
class Decision:
    """Allow, ask or deny, with the reasons."""

    effect: Effect
    reasons: tuple[str, ...] = ()
    needs: tuple[Need, ...] = ()
    """Parts that no rule allows, though one could."""
    rules: tuple[Rule, ...] = ()
    """The rules that allow the other parts."""
    firm: tuple[str, ...] = ()
    """Reasons that only the user can overrule, not a rule."""
    asked_by_rule: bool = False
    """Whether a rule requires the question."""
    undecided: tuple[str, ...] = ()
    """Reasons why a deny rule could apply to a command, which need an answer in every mode."""
    flow: str = ""
    """Why the flow guard wants an answer; one of the reasons."""
    confined: bool = False
    """Whether it's allowed as a harmless command, and must run without writes and network."""
    noted: str = ""
    """What the flow guard only records."""


def decide_call(facts: CallFacts, rules: Iterable[Rule], context: PolicyContext) -> Decision:
    """Decide on a call. For a call with paths, this resolves symbolic links in the paths of rules."""
    all_rules = (*rules,)
    relevant = [rule for rule in all_rules if _is_relevant(rule, facts)]
    objections = [(rule, _match_objection(rule, facts)) for rule in relevant if rule.effect is not Effect.ALLOW]
    denials = [
        explain_rule(rule, facts)
        for rule, match in objections
        if rule.effect is Effect.DENY and match is PatternMatch.YES
    ]
    denials += [
        f"{path.resolved} is part of the system itself, which is off limits to tools"
        for path in facts.paths
        if path.refusal == "special"
    ]
    if facts.script is not None and not facts.script.whole:
        denials += [
            f"it is too long to check against rule {rule.reason}"
            for rule, _ in objections
            if rule.effect is Effect.DENY
        ]
    if denials:
        return Decision(effect=Effect.DENY, reasons=tuple(denials))
    fits_plan_mode = facts.kind in _IN_PLAN_MODE or (
        facts.kind is CallKind.FILE and all(not path.writing for path in facts.paths)
    )
    if context.plan and not fits_plan_mode:
        reason = "plan mode: only read-only calls are allowed until a plan is approved"
        return Decision(effect=Effect.DENY, reasons=(reason,))
    firm = [
        explain_rule(rule, facts) + ("" if match is PatternMatch.YES else " may be meant")
        for rule, match in objections
        if match is not PatternMatch.NO
    ]
    asked_by_rule = bool(firm)
    firm += [f"{path.given}: {path.problem}" for path in facts.paths if path.problem]
    undecided: list[str] = []
    if facts.script is not None:
        firm += _list_doubts(facts, facts.script, context)
        undecided = _list_undecided(facts.script, objections)
    allowing = [rule for rule in relevant if rule.effect is Effect.ALLOW]
    needs, rules = _list_needs(facts, allowing, context)
    reasons = tuple(dict.fromkeys([*firm, *(need.reason for need in needs)]))
    asks_for_commands = not firm and not undecided and all(need.command is not None for need in needs)
    if reasons and asks_for_commands and context.harmless and context.approval is not ApprovalMode.ALL:
        if _is_harmless(facts, all_rules):
            return Decision(effect=Effect.ALLOW, confined=True)
    if not reasons:
        return Decision(effect=Effect.ALLOW, rules=tuple(dict.fromkeys(rules)))
    is_unasked = context.approval is ApprovalMode.ALL and not undecided
    return Decision(
        effect=Effect.ALLOW if is_unasked else Effect.ASK,
        reasons=(*undecided, *(reason for reason in reasons if reason not in undecided)),
        needs=tuple(needs),
        firm=tuple(firm),
        asked_by_rule=asked_by_rule,
        undecided=tuple(undecided),
    )


def _is_harmless(facts: CallFacts, rules: Sequence[Rule]) -> bool:
    """Return whether a command only reads files that the tools for reading may read without a question."""
    if facts.reads is None or any(path.refusal or path.problem for path in facts.reads):
        return False
    for tool in ("read", "ls", "grep", "find"):
        reading = replace(facts, tool=tool, kind=CallKind.FILE, script=None, paths=facts.reads)
        for rule in rules:
            is_objection = rule.effect is not Effect.ALLOW and _is_relevant(rule, reading)
            if is_objection and _match_objection(rule, reading) is not PatternMatch.NO:
                return False
    return True


def find_total_denial(facts: CallFacts, rules: Iterable[Rule], *, is_whole: bool = False) -> Rule | None:
    """Find a rule that denies every call of a tool. The facts need only describe the tool.

    If they're `is_whole`, they have the only possible arguments.
    """
    for rule in rules:
        if rule.effect is Effect.DENY and _is_relevant(rule, facts):
            # For a server's tool, a specifier that isn't about arguments means nothing, and so applies to every call.
            is_total = rule.specifier is None or (
                facts.remote is not None and parse_argument_patterns(rule.specifier) is None
            )
            if is_total or (is_whole and _match_objection(rule, facts) is PatternMatch.YES):
                return rule
    return None


def find_total_permission(facts: CallFacts, rules: Iterable[Rule]) -> Rule | None:
    """Find the rule that allows every call of a server's tool, whoever makes it, if no other rule could name it."""
    found: Rule | None = None
    for rule in rules:
        if rule == Rule(effect=Effect.ALLOW, tool="*", origin=rule.origin, file=rule.file):
            found = rule
        elif facts.remote is None or may_name(rule.tool, facts.remote, facts.tool):
            return None
    return found


def _is_relevant(rule: Rule, facts: CallFacts) -> bool:
    """Return whether a rule is in force here and names the tool, or a redirection of the command."""
    if rule.workspace not in {None, facts.workspace}:
        return False
    if rule.server is not None and rule.server != facts.server:
        return False
    if rule.effect is Effect.ALLOW and rule.pin not in {None, facts.pin}:
        return False
    if rule.principal is not None and not (facts.principal and match_glob(rule.principal, facts.principal)):
        return False
    if _names_tool(rule, facts):
        return True
    # The redirections of a command count as reading and writing.
    if facts.kind is CallKind.COMMAND and any(rule.names(_file_tool(path.writing)) for path in facts.paths):
        return True
    return facts.script is not None and any(
        rule.names(_file_tool(redirect.writes)) for redirect in facts.script.redirects if redirect.target.text is None
    )


def _names_tool(rule: Rule, facts: CallFacts) -> bool:
    """Return whether a rule names the tool of a call. A remote tool matches by server and name."""
    if facts.remote is None:
        if any(map(rule.names, facts.names)):
            return True
        # Deny and ask rules about a domain for `webfetch` apply to the requests of actions too.
        is_domain = rule.specifier is not None and rule.specifier.startswith(_DOMAIN)
        is_egress = facts.method is not None and is_domain and rule.effect is not Effect.ALLOW
        return is_egress and rule.names("webfetch")
    if rule.effect is Effect.ALLOW:
        return names_exactly(rule.tool, facts.remote, facts.tool, shared=facts.shares_name)
    return may_name(rule.tool, facts.remote, facts.tool)


def _file_tool(writes: bool) -> str:
    return "write" if writes else "read"


# -- objections: deny and ask rules -------------------------------------------------------------


def _match_objection(rule: Rule, facts: CallFacts) -> PatternMatch:
    """Return whether a deny or ask rule applies."""
    if rule.specifier is None:
        return PatternMatch.YES
    by_path = _match_paths(rule, rule.specifier, facts)
    if facts.kind is CallKind.FILE or by_path is PatternMatch.YES or not _names_tool(rule, facts):
        return by_path
    if facts.script is not None:
        return max(by_path, _match_script(rule.specifier, facts.script))
    if facts.is_discovery:
        return PatternMatch.NO
    if facts.method is not None and facts.slug is not None and facts.url is not None:
        match = match_action(rule.specifier, facts.method, parse_host(facts.url), facts.slug)
        meets = _find_unknown(rule, facts) is not None or _match_arguments(rule.specifier, facts, loosely=True)
        return PatternMatch.YES if match is not PatternMatch.NO and meets else PatternMatch.NO
    if facts.url is not None and rule.specifier.startswith(_DOMAIN):
        host = parse_host(facts.url)
        applies = may_be_host(rule.specifier.removeprefix(_DOMAIN), host)
        return max(by_path, PatternMatch.YES if applies else PatternMatch.NO)
    if parse_argument_patterns(rule.specifier) is not None:
        applies = _find_unknown(rule, facts) is not None or _match_arguments(rule.specifier, facts, loosely=True)
        return PatternMatch.YES if applies else PatternMatch.NO
    return PatternMatch.YES  # a specifier that means nothing for this tool applies to every call


def _match_arguments(specifier: str, facts: CallFacts, *, loosely: bool) -> bool:
    """Return whether a call meets all conditions of a specifier on arguments."""
    arguments: JsonValue = facts.arguments
    if facts.slug is not None:
        specifier, arguments = specifier.partition(",")[2], facts.arguments.get("arguments")
    patterns = (parse_argument_patterns(specifier) or ()) if specifier else ()
    return all(pattern.matches(arguments, loosely=loosely) for pattern in patterns)


def _find_unknown(rule: Rule, facts: CallFacts) -> str | None:
    specifier = rule.specifier or ""
    return find_unknown_argument(specifier if facts.slug is None else specifier.partition(",")[2], facts.schema)


def explain_rule(rule: Rule, facts: CallFacts) -> str:
    """Describe a rule in a reason, with the argument it names in vain."""
    if (name := _find_unknown(rule, facts)) is None:
        return f"rule {rule.reason}"
    properties = (facts.schema or {}).get("properties")
    known = ", ".join(properties if is_json_object(properties) else ()) or "none"
    owner = facts.slug or facts.tool
    return f"rule {rule.reason} names the argument {name!r}, which {owner} doesn't have (it has {known})"


def _match_paths(rule: Rule, specifier: str, facts: CallFacts) -> PatternMatch:
    result = PatternMatch.NO
    for path in facts.paths:
        if facts.kind is CallKind.COMMAND and not rule.names(_file_tool(path.writing)):
            continue
        if any(may_be_path(specifier, name, facts.workspace) for name in (path.resolved, path.spelled)):
            return PatternMatch.YES
        if path.tree and may_lie_below(specifier, path.resolved, facts.workspace):
            result = PatternMatch.MAYBE
    for redirect in facts.script.redirects if facts.script is not None else ():
        if redirect.target.text is None and rule.names(_file_tool(redirect.writes)):
            result = PatternMatch.MAYBE
    return result


def _match_script(specifier: str, script: Script) -> PatternMatch:
    """Match a specifier against every command that runs or may run."""
    commands = (*script.commands, *script.suspects)
    result = max((may_be_command(specifier, command) for command in commands), default=PatternMatch.NO)
    if result is not PatternMatch.NO:
        return result
    may_hide = (
        script.opaque
        or any(may_be_program(specifier, word) for word in script.copied)
        or any(may_be_command(specifier, command) is not PatternMatch.NO for command in script.possible)
    )
    return PatternMatch.MAYBE if may_hide else PatternMatch.NO


def find_denying_rule(rules: Iterable[Rule], facts: CallFacts, resolved: str) -> Rule | None:
    """Find a rule that denies a path reached by a running file tool."""
    for rule in rules:
        if rule.effect is Effect.DENY and rule.specifier is not None and _is_relevant(rule, facts):
            if may_be_path(rule.specifier, resolved, facts.workspace):
                return rule
    return None


def _list_doubts(facts: CallFacts, script: Script, context: PolicyContext) -> list[str]:
    """List the reasons why no rule can allow a command."""
    doubts = [*script.flaws]
    if not script.commands:
        doubts.append("it has no command that a rule could name")
    is_sandboxed = facts.sandbox is not None and facts.sandbox.kind != "none"
    if not is_sandboxed and not context.limits:
        detail = facts.sandbox.detail if facts.sandbox is not None else "the shell does not report one"
        doubts.append(f"there is no sandbox for commands here ({detail})")
    return doubts


def _list_undecided(script: Script, objections: Sequence[tuple[Rule, PatternMatch]]) -> list[str]:
    """List the deny rules that could apply to a command, and the causes of the doubt."""
    causes = [*script.opaque]
    if any(redirect.target.text is None for redirect in script.redirects):
        causes.append("only the shell knows which file it redirects to or from")
    suffix = f": {'; '.join(causes)}" if causes else ""
    return [
        f"rule {rule.reason} could apply{suffix}"
        for rule, match in objections
        if rule.effect is Effect.DENY and match is PatternMatch.MAYBE
    ]


# -- needs: allow rules -------------------------------------------------------------------------


def _list_needs(facts: CallFacts, allowing: Sequence[Rule], context: PolicyContext) -> tuple[list[Need], list[Rule]]:
    """List the parts of a call that no rule allows, and the rules that allow the others."""
    if facts.kind in _HARMLESS:
        return [], []
    naming = [rule for rule in allowing if _names_tool(rule, facts)]
    if facts.kind not in {CallKind.FILE, CallKind.COMMAND}:
        if (rule := next((rule for rule in naming if _allows_whole_call(rule, facts)), None)) is not None:
            return [], [rule]
        mistaken = (rule for rule in naming if _find_unknown(rule, facts))
        return [Need("; ".join([_describe_call(facts), *(explain_rule(rule, facts) for rule in mistaken)]))], []
    needs: list[Need] = []
    rules: list[Rule] = []
    for path in facts.paths:
        is_edit = context.approval is ApprovalMode.AUTO_EDIT and path.refusal is None
        needs_rule = (path.writing or path.refusal is not None) and not is_edit
        rule = next((rule for rule in allowing if _allows_path(rule, path, facts)), None) if needs_rule else None
        if rule is not None:
            rules.append(rule)
        elif needs_rule:
            where = f", which is {path.refusal}" if path.refusal else ""
            action = "writes to" if path.writing else "reads"
            needs.append(Need(f"{action} {path.resolved}{where}", path=path))
    for command in dict.fromkeys(facts.script.commands if facts.script is not None else ()):
        problems = [
            (rule, find_allow_problem(rule.specifier, command))
            for rule in naming
            if rule.specifier is None or match_command(rule.specifier, command) is not None
        ]
        if (allowed := next((rule for rule, problem in problems if problem is None), None)) is not None:
            rules.append(allowed)
            continue
        reason, (rule, problem) = f"runs: {command.shown}", problems[0] if problems else (None, None)
        if problem is not None:
            reason += f" (rule {rule} does not cover it: {problem.reason})"
        needs.append(Need(reason, command=command, problem=problem))
    return needs, rules


def _describe_call(facts: CallFacts) -> str:
    """Describe what a call without paths and commands does."""
    if facts.method is not None:
        return f"{facts.slug} sends {facts.method} to {parse_host(facts.url or '')}"
    owner = f" of server {facts.server!r}" if facts.server is not None else ""
    return f"{facts.tool}{owner} {facts.kind.value}"


def _allows_whole_call(rule: Rule, facts: CallFacts) -> bool:
    """Return whether a rule for the tool allows a call without paths and commands."""
    if rule.specifier is None:
        return True
    host = None if facts.url is None else parse_host(facts.url)
    if facts.method is not None and facts.slug is not None:
        is_action = match_action(rule.specifier, facts.method, host, facts.slug) is PatternMatch.YES
        return is_action and _match_arguments(rule.specifier, facts, loosely=False)
    if facts.url is None and parse_argument_patterns(rule.specifier) is not None:
        return _match_arguments(rule.specifier, facts, loosely=False)
    domain = rule.specifier.removeprefix(_DOMAIN)
    return host is not None and domain != rule.specifier and is_host(domain, host)


def _allows_path(rule: Rule, path: PathFact, facts: CallFacts) -> bool:
    """Return whether a rule allows a path. Outside the workspace, its specifier must be more explicit."""
    tool = _file_tool(path.writing) if facts.kind is CallKind.COMMAND else facts.tool
    if not rule.names(tool):
        return False
    if rule.specifier is None:
        return path.refusal is None
    if path.refusal == "protected" and has_wildcards(rule.specifier):
        return False
    if path.refusal == "outside" and not is_absolute(rule.specifier):
        return False
    return is_path(rule.specifier, path.resolved, facts.workspace)
