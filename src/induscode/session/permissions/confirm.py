"""What a person is shown before a call, and which rules would make the question unnecessary."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json
from indusagi.core.text import escape_invisible
from induscode.session.permissions.call_facts import Kind
from induscode.session.permissions.decision import Question, Scope
from induscode.session.permissions.policy import Approval
from induscode.session.permissions.rules import Effect, Origin, Rule, parse_rule
from induscode.session.permissions.shell.patterns import host_of
from induscode.session.permissions.shell.prefixes import saved_pattern

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from induscode.session.permissions.call_facts import Facts, PathFact
    from induscode.session.permissions.policy import Judgement, Need


def question_of(facts: Facts, judgement: Judgement) -> Question:
    """Put together what a person must see before they say yes."""
    rules = () if judgement.firm else saved_rules(facts, judgement)
    scopes = [Scope.ONCE]
    if rules:
        scopes += [Scope.SESSION, Scope.ALWAYS_TOOL]
    if facts.server is not None and not judgement.firm:
        scopes.append(Scope.ALWAYS_SERVER)
    return Question(
        tool=facts.tool,
        server=facts.server,
        lines=tuple(_lines(facts)),
        reasons=tuple(escape_invisible(reason)[0] for reason in judgement.reasons),
        saves=tuple(map(str, rules)),
        scopes=tuple(scopes),
    )


def _lines(facts: Facts) -> list[str]:
    lines = [f"tool: {escaped(facts.tool)}"]
    if facts.server is not None:
        lines.append(f"server: {escaped(facts.server)}")
    if facts.script is not None:
        lines += [f"command: {escaped(line)}" for line in facts.script.text.split("\n")]
        lines.append(f"sandbox: {escaped(str(facts.sandbox))}")
    lines += [f"{_act(path)}: {_way(path)}" for path in facts.paths]
    lines += [
        f"argument {escaped(name)}: {_shown(value)}"
        for name, value in facts.arguments.items()
        if not (facts.script is not None and value == facts.script.text)
    ]
    return lines


def _shown(value: JsonValue) -> str:
    return escaped(value if isinstance(value, str) else compact_json(value))


def _act(path: PathFact) -> str:
    return "writes to" if path.writing else "reads"


def _way(path: PathFact) -> str:
    """Say where a path leads; also what it was called, if that is something else."""
    where = f" ({path.refusal})" if path.refusal is not None else ""
    led = "" if path.resolved == path.spelled else f", given as {escaped(path.given)}"
    return f"{escaped(path.resolved)}{where}{led}"


def escaped(text: str) -> str:
    """Write a text so that every character can be seen, and the whole of it."""
    return json.dumps(text, ensure_ascii=True)


def saved_rules(facts: Facts, judgement: Judgement) -> tuple[Rule, ...]:
    """Give the rules that would allow a call; none if not all of it can be allowed by rules."""
    rules: list[Rule] = []
    for need in judgement.needs:
        text = _rule_text(need, facts)
        rule = None if text is None else parse_rule(text, Effect.ALLOW, Origin.SESSION)
        if not isinstance(rule, Rule):
            return ()
        rules.append(replace(rule, server=facts.server, pin=facts.pin))
    return tuple(dict.fromkeys(rules))


def server_rule(facts: Facts) -> Rule:
    """Give the rule that allows all tools of the server of a call."""
    return Rule(effect=Effect.ALLOW, tool="*", origin=Origin.SESSION, server=facts.server)


def _rule_text(need: Need, facts: Facts) -> str | None:
    if need.command is not None:
        pattern = saved_pattern(need.command)
        return None if pattern is None else f"bash({pattern})"
    if need.path is not None:
        return _path_rule(need.path, facts)
    if facts.url is not None and facts.tool == "webfetch":
        host = host_of(facts.url)
        return None if host is None else f"webfetch(domain:{host})"
    return facts.tool


def _path_rule(path: PathFact, facts: Facts) -> str | None:
    name = path.resolved
    if any(sign in name for sign in "*?") or not name.isprintable():
        return None
    act = "write" if path.writing else "read"
    tool = act if facts.kind is Kind.COMMAND else facts.tool
    name = name.removeprefix(facts.workspace.rstrip("/") + "/") or name
    return f"{tool}({name})"


def remedy(facts: Facts, judgement: Judgement) -> str:
    """Say what to start the session with so that such a call runs unasked."""
    ways: list[str] = []
    rules = () if judgement.firm else saved_rules(facts, judgement)
    if rules:
        ways.append(" ".join(f"--allow {_quoted(str(rule))}" for rule in rules))
    inside = [path.writing and path.refusal is None for path in facts.paths]
    if facts.kind is Kind.FILE and inside and all(inside) and not judgement.firm:
        ways.append(f"--approval {Approval.AUTO_EDIT.value}")
    ways.append(f"--approval {Approval.ALL.value}")
    return " or ".join(ways)


def _quoted(text: str) -> str:
    import shlex  # noqa: PLC0415 — for a call that is denied only

    return shlex.quote(text)
