"""Permission requests to the user, the dialog that asks them, and the rules that a lasting answer creates.

The rule for a command has its name and the words that define what it does: `git commit -m x` becomes
`bash(git commit *)`, not `bash(git *)`. A command that runs other commands or code never gets a rule; a destructive
one gets a rule for that exact command.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import field, replace
from enum import StrEnum
from typing import Protocol

from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.core.text import escape_invisible, format_count
from indusagi.runtime.calls import current_agent, waiting_for_user
from indusagi.runtime.contract import ProgressSink
from induscode.cli.call_title import describe_call
from induscode.cli.dialog import Choice, Dialog, FileChange, Question
from induscode.cli.terminal import escape_unprintable
from induscode.permissions.call_facts import CallFacts, CallKind
from induscode.permissions.patterns import parse_host
from induscode.permissions.plan_mode import PlanAnswer, PlanDecision
from induscode.permissions.policy import ApprovalMode, Decision, Need
from induscode.permissions.rules import Effect, Rule, RuleOrigin, parse_rule
from induscode.permissions.shell.arguments import count_saved_words, find_problem, is_never_saved
from induscode.permissions.shell.parse import Command, Script

_BRIEF_LINES, _BRIEF_CHARS = 12, 300
_SAFE_WORD = re.compile(r"[A-Za-z0-9_./+@%:=,-]+")


class ApprovalScope(StrEnum):
    """Scope of the user's yes."""

    ONCE = "once"
    SESSION = "session"
    EDITS = "all edits in this session"
    ALWAYS_TOOL = "always for this"
    ALWAYS_SERVER = "always for this server"


@record(kw_only=True)
class PermissionRequest:
    """A request for the user's permission, which shows exactly what will run."""

    tool: str
    server: str | None
    title: str
    """The effect of the call, in one sentence without control characters."""
    lines: tuple[str, ...]
    """All facts, unabridged, with control characters escaped."""
    brief: tuple[str, ...] = ()
    """The facts that the title leaves out, with control characters escaped."""
    reasons: tuple[str, ...]
    """Why the call needs permission."""
    arguments: JsonObject = field(default_factory=dict[str, JsonValue])
    saves: tuple[str, ...]
    """Rules that a lasting yes creates."""
    scopes: tuple[ApprovalScope, ...]
    """Possible answers other than no, which is the default."""
    asked_by_rule: bool = False
    """Whether a rule requires the question."""
    restorable: bool = False
    """Whether a rewind takes the call back."""
    facts: CallFacts | None = field(default=None, compare=False, repr=False)
    place: Callable[[], str] = field(default=lambda: "", compare=False, repr=False)
    """Returns its place among several that wait: `1 of 3`."""
    report: ProgressSink | None = field(default=None, compare=False, repr=False)
    """Reports progress to the caller, which may otherwise give up."""


@record
class PermissionAnswer:
    """The user's answer. No scope means no."""

    scope: ApprovalScope | None = None
    comment: str = ""
    """Explains a no to the model."""
    by: str = "the user"


class Approver(Protocol):
    """Asks the user."""

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Ask, and wait for the answer. Raises `UnansweredError` if there's none."""
        ...


class InstantApprover:
    """An approver that decides by itself, so that its time isn't the user's."""


class ParallelApprover(InstantApprover):
    """An approver that asks several questions at once, of different people, and counts the time by itself."""


class TypedCall(InstantApprover):
    """Approves a call once, because the user typed it. Asks at the dialog only if a rule requires it."""

    def __init__(self, dialog: Dialog | None) -> None:
        self._dialog = dialog

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Approve once, or ask."""
        if request.asked_by_rule and self._dialog is not None:
            with waiting_for_user():
                return await PersonApprover(self._dialog).ask(request)
        return PermissionAnswer(ApprovalScope.ONCE)


def build_request(
    facts: CallFacts,
    decision: Decision,
    report: ProgressSink | None = None,
    *,
    mode: ApprovalMode = ApprovalMode.AUTO_EDIT,
    place: Callable[[], str] = lambda: "",
) -> PermissionRequest:
    """Build the request for a call that needs the user's permission."""
    rules = () if decision.firm else build_rules(facts, decision)
    scopes = [ApprovalScope.ONCE]
    is_edit = [path.writing and path.refusal is None for path in facts.paths]
    is_plain_edit = facts.kind is CallKind.FILE and all(is_edit) and not decision.firm and not decision.flow
    if is_plain_edit and mode is ApprovalMode.ASK:
        scopes.append(ApprovalScope.EDITS)
    if decision.flow:  # no rule covers it; the answer for the session is about this tool
        scopes += [ApprovalScope.SESSION] if len(rules) == len(decision.needs) and not decision.firm else []
    elif rules:
        scopes += [ApprovalScope.SESSION, ApprovalScope.ALWAYS_TOOL]
    if facts.server is not None and not decision.firm and not decision.flow:
        scopes.append(ApprovalScope.ALWAYS_SERVER)
    return PermissionRequest(
        tool=facts.tool,
        server=facts.server,
        title=_format_title(facts),
        lines=tuple(_list_facts(facts)),
        brief=tuple(map(escape_unprintable, _list_brief(facts, decision))),
        reasons=tuple(escape_invisible(reason)[0] for reason in decision.reasons),
        arguments=facts.arguments,
        saves=(*map(str, rules), *([f"{facts.tool} sending data out"] if decision.flow else [])),
        scopes=tuple(scopes),
        asked_by_rule=decision.asked_by_rule,
        restorable=is_plain_edit and facts.change is not None,
        facts=facts,
        place=place,
        report=report,
    )


def _list_facts(facts: CallFacts) -> Iterator[str]:
    """Yield everything known about a call, one line each."""
    yield f"tool: {escape_text(facts.tool)}"
    if facts.server is not None:
        yield f"server: {escape_text(facts.server)}"
    if facts.script is not None:
        yield from (f"command: {escape_text(line)}" for line in facts.script.text.split("\n"))
        yield f"sandbox: {escape_text(str(facts.sandbox))}"
    if facts.method is not None:
        yield f"request: {facts.method} {escape_text(facts.url or '')}"
        yield f"host: {escape_text(parse_host(facts.url or '') or '')}"
    for path in facts.paths:
        action = "writes to" if path.writing else "reads"
        refusal = f" ({path.refusal})" if path.refusal is not None else ""
        link = "" if path.resolved == path.spelled else f", given as {escape_text(path.given)}"
        yield f"{action}: {escape_text(path.resolved)}{refusal}{link}"
    for name, value in facts.arguments.items():
        if facts.script is None or value != facts.script.text:
            yield format_argument(name, value)


def format_argument(name: str, value: JsonValue) -> str:
    """Format an argument in full, as ASCII JSON: `"5"` isn't `5`."""
    return f"argument {escape_text(name)}: {json.dumps(value, separators=(',', ':'))}"


def _format_title(facts: CallFacts) -> str:
    """Describe a call with the words of its line on a terminal."""
    if facts.remote is not None:
        return describe_call("", {}, server=facts.remote.server, tool=facts.remote.name).verb
    if facts.method is not None:
        return escape_unprintable(f"{facts.slug}: {facts.method} {parse_host(facts.url or '')}")
    if facts.script is not None:
        first, *others = facts.script.text.strip().splitlines() or [""]
        more = f" … and {format_count(len(others), 'more line')}" if others else ""
        return escape_unprintable(f"Run {first}{more}")
    arguments = facts.arguments
    if facts.kind is CallKind.FILE:
        arguments = {**arguments, "path": facts.paths[0].resolved}
    title = str(describe_call(facts.tool, arguments, cwd=facts.workspace))
    is_new = facts.change is not None and facts.change.before is None
    return f"Create {title.partition(' ')[2]}" if is_new else title


def _list_brief(facts: CallFacts, decision: Decision) -> Iterator[str]:
    """Yield the facts that a user needs in addition to the title, one line each."""
    if facts.script is not None:
        yield from _list_command(facts.script, decision)
    if facts.remote is not None or facts.method is not None:
        for name, value in facts.arguments.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            yield f"{name}  {text[:_BRIEF_CHARS]}{'… d shows all' if len(text) > _BRIEF_CHARS else ''}"
    for path in facts.paths:
        if path.resolved != path.spelled:
            yield f"{path.given} leads to {path.resolved}"
        if path.refusal is not None or path.problem is not None:
            yield f"{path.resolved} is {path.refusal or path.problem}"
        elif facts.script is not None and path.writing:
            yield f"writes to {path.resolved}"
    plain = {need.reason for need in decision.needs if need.problem is None}
    yield from (f"asks because: {reason}" for reason in decision.reasons if reason not in plain)
    if facts.sandbox is not None:
        is_on = facts.sandbox.kind in {"bubblewrap", "landlock"}
        yield f"sandboxed, network {'on' if facts.sandbox.network else 'off'}" if is_on else "runs without a sandbox"


def _list_command(script: Script, decision: Decision) -> Iterator[str]:
    """Yield the lines of a command that the title doesn't show, and the parts that need permission."""
    lines = script.text.strip().splitlines()
    if len(lines) > 1:
        yield from lines[:_BRIEF_LINES]
    if len(lines) > _BRIEF_LINES:
        yield f"… {format_count(len(lines) - _BRIEF_LINES, 'more line')}, d shows all"
    parts = [need.command.shown for need in decision.needs if need.command is not None]
    if parts and len(script.commands) > 1:
        yield f"asks because of: {', '.join(parts)}"


def escape_text(text: str) -> str:
    """Write a text as an ASCII JSON string, so that every character is visible."""
    return json.dumps(text, ensure_ascii=True)


def suggest_remedy(facts: CallFacts, decision: Decision, entry: str = "") -> str:
    """Suggest flags, or arguments of the function `entry`, that let such a call run without asking."""
    if decision.flow:
        look = "" if facts.server is None else f"indus mcp labels {facts.server}"
        owner = f"correct its labels ({look}), or " if look else ""
        return f"{owner}{'set flow.mode to note' if entry else 'start with --flow note'}"
    rules = () if decision.firm else build_rules(facts, decision)
    is_edit = [path.writing and path.refusal is None for path in facts.paths]
    modes = [ApprovalMode.ALL.value]
    if facts.kind is CallKind.FILE and is_edit and all(is_edit) and not decision.firm:
        modes.insert(0, ApprovalMode.AUTO_EDIT.value)
    if entry:
        given = [f"allow={[str(rule) for rule in rules]!r}"] if rules else []
        return f"pass {' or '.join([*given, *(f'approval={mode!r}' for mode in modes)])} to {entry}"
    import shlex  # noqa: PLC0415 — for a denied call only

    flags = [" ".join(f"--allow {shlex.quote(str(rule))}" for rule in rules)] if rules else []
    return f"start with {' or '.join([*flags, *(f'--approval {mode}' for mode in modes)])}"


# -- rules for an answer ------------------------------------------------------------------------


def build_rules(facts: CallFacts, decision: Decision) -> tuple[Rule, ...]:
    """Build the rules that would allow a call. Returns none if rules can't allow all of it."""
    rules: list[Rule] = []
    for need in decision.needs:
        text = _format_rule(need, facts)
        rule = None if text is None else parse_rule(text, Effect.ALLOW, RuleOrigin.SESSION)
        if not isinstance(rule, Rule):
            return ()
        rules.append(replace(rule, server=facts.server, pin=facts.pin))
    return tuple(dict.fromkeys(rules))


def build_server_rule(facts: CallFacts) -> Rule:
    """Build the rule that allows all tools of the call's server."""
    return Rule(effect=Effect.ALLOW, tool="*", origin=RuleOrigin.SESSION, server=facts.server)


def _format_rule(need: Need, facts: CallFacts) -> str | None:
    if need.command is not None:
        pattern = build_command_pattern(need.command)
        return None if pattern is None else f"bash({pattern})"
    if need.path is not None:
        name = need.path.resolved
        if any(char in name for char in "*?") or not name.isprintable():
            return None
        tool = ("write" if need.path.writing else "read") if facts.kind is CallKind.COMMAND else facts.tool
        name = name.removeprefix(facts.workspace.rstrip("/") + "/") or name
        return f"{tool}({name})"
    if facts.url is not None and facts.tool == "webfetch":
        host = parse_host(facts.url)
        return None if host is None else f"webfetch(domain:{host})"
    if facts.slug is not None:
        return f"{facts.tool}(slug:{facts.slug})"
    return facts.tool


def build_command_pattern(command: Command) -> str | None:
    """Build the specifier of a command's rule, or return `None` if it must not have one."""
    texts = [word.text for word in command.words]
    problem = find_problem(command.words, fed=command.fed)
    if texts[0] is None or is_never_saved(command.words) or (problem is not None and problem.acts):
        return None
    count = count_saved_words(texts) or len(texts) + 1
    is_exact = (
        count > len(texts)
        or any(text is None or text.startswith("-") for text in texts[:count])
        or find_problem(command.words, frozenset(range(count)), fed=command.fed) is not None
    )
    words = texts if is_exact else texts[:count]
    if not all(text is not None and _SAFE_WORD.fullmatch(text) for text in words):
        return None
    return " ".join([*(text for text in words if text is not None), *([] if is_exact else ["*"])])


# -- the dialog ---------------------------------------------------------------------------------
#
# A question names the call, shows its change and what else matters, and has every fact, the reason for asking and the
# exact rule of a lasting answer as details. Ctrl-C and Ctrl-D mean no, and so does Enter unless a rewind takes the call
# back.

_SCOPE_KEYS = {
    "y": ApprovalScope.ONCE,
    "e": ApprovalScope.EDITS,
    "s": ApprovalScope.SESSION,
    "a": ApprovalScope.ALWAYS_TOOL,
    "v": ApprovalScope.ALWAYS_SERVER,
}
_PROMPTS = {
    "Edit": "Make this edit?",
    "Create": "Create this file?",
    "Write": "Write this file?",
    "Read": "Read this?",
    "Run": "Run this command?",
    "Fetch": "Allow this request?",
}
_NO = Choice(key="n", label="No, and say what to do instead", takes_text=True, refuses=True)
_ACCEPT_EDITS = "Yes, and accept edits automatically"
_REVISE = "Change the plan: say what's missing"
_PLAN_CHOICES = {
    "y": (PlanAnswer.APPROVE, Choice(key="y", label="Yes")),
    "e": (PlanAnswer.ACCEPT_EDITS, Choice(key="e", label=_ACCEPT_EDITS, lasts=True)),
    "r": (PlanAnswer.REVISE, Choice(key="r", label=_REVISE, takes_text=True, refuses=True)),
    "n": (PlanAnswer.REFUSE, Choice(key="n", label="No", takes_text=True, refuses=True)),
}


class PersonApprover:
    """Asks the user at a dialog about calls and plans."""

    def __init__(self, dialog: Dialog) -> None:
        self._dialog = dialog

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Ask about a call, offering the scopes of the request."""
        reply = await self._dialog.ask(build_permission_question(request))
        if reply.cancelled:
            return PermissionAnswer()
        scope = _SCOPE_KEYS.get(reply.key)
        if scope in request.scopes:
            return PermissionAnswer(scope)
        return PermissionAnswer(None, reply.text.strip())

    async def approve_plan(self, plan: str, stored: str, /) -> PlanDecision:
        """Show a complete plan and ask about it."""
        choices = tuple(choice for _, choice in _PLAN_CHOICES.values())
        lines = (escape_unprintable(stored),) if stored else ()
        title = "Plan ready. Start work?"
        question = Question(title=title, lines=lines, brief=(), markdown=plan, choices=choices, default="y")
        reply = await self._dialog.ask(question)
        if reply.cancelled or reply.key not in _PLAN_CHOICES:
            return PlanDecision(PlanAnswer.REFUSE)
        return PlanDecision(_PLAN_CHOICES[reply.key][0], reply.text.strip())


def build_permission_question(request: PermissionRequest) -> Question:
    """Build the question for a permission request."""
    rules, what = " and ".join(request.saves), _name_saved(request)
    labels = {
        ApprovalScope.ONCE: "Yes",
        ApprovalScope.EDITS: "Yes, and allow all edits in this project for this session (shift+tab)",
        ApprovalScope.SESSION: f"Yes, and allow {what} for this session",
        ApprovalScope.ALWAYS_TOOL: f"Always allow {what} in this project",
        ApprovalScope.ALWAYS_SERVER: f"Always allow every tool of {request.server} in this project",
    }
    agent = current_agent.get()  # a background task asks while the user does something else
    origin = [f"for the agent: {agent}"] if agent else []
    lines = [*origin, *request.lines, f"asks because: {'; '.join(request.reasons)}"]
    if rules:
        lines.append(f"rule: allow {rules}")
    hidden = {ApprovalScope.SESSION} if ApprovalScope.EDITS in request.scopes else set[ApprovalScope]()
    choices = [
        Choice(key=key, label=escape_unprintable(labels[scope]), lasts=scope is not ApprovalScope.ONCE)
        for key, scope in _SCOPE_KEYS.items()
        if scope in request.scopes and scope not in hidden
    ]
    return Question(
        title=escape_unprintable(request.title),
        lines=tuple(map(escape_unprintable, lines)),
        brief=tuple(map(escape_unprintable, (*origin, *request.brief))),
        prompt=_PROMPTS.get(request.title.partition(" ")[0], "Allow this call?"),
        change=None if request.facts is None else _build_change(request.facts),
        place=request.place,
        choices=(*choices, _NO),
        default="y" if request.restorable else _NO.key,
    )


def _name_saved(request: PermissionRequest) -> str:
    """Name the calls that a lasting yes allows."""
    facts = request.facts
    if facts is not None and facts.remote is not None and not facts.change:
        return "this tool"
    words = [text.removesuffix(")").partition("(")[2] or text for text in request.saves]
    words = [word.removeprefix("domain:").removeprefix("slug:") for word in words]
    is_edit = facts is not None and facts.kind is CallKind.FILE and facts.paths[0].writing
    return ("edits to " if is_edit else "") + " and ".join(words)


def _build_change(facts: CallFacts) -> FileChange | None:
    if (change := facts.change) is None:
        return None
    details = change.result.details
    diff = str(details.get("diff", ""))
    if details.get("diffCut") is True:
        diff += " … the rest is too long to show: d shows the arguments\n"
    return FileChange(
        path=facts.paths[0].resolved,
        before=None if change.before is None else change.before.decode("utf-8", "replace"),
        after=change.after.decode("utf-8", "replace"),
        diff=diff,
        counts=f"+{details.get('added')} −{details.get('removed')}",  # noqa: RUF001 — a minus
    )
