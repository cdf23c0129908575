"""Permission requests to the user, the dialog that asks them, and the rules that a lasting answer creates.

The rule for a command has its name and the words that define what it does: `git commit -m x` becomes
`bash(git commit *)`, not `bash(git *)`. A command that runs other commands or code never gets a rule; a destructive
one gets a rule for that exact command.
"""

from __future__ import annotations

import json
import re
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.core.text import escape_invisible
from indusagi.runtime.calls import current_agent, waiting_for_user
from induscode.cli.dialog import Choice, Dialog, Question
from induscode.cli.terminal import escape_unprintable
from induscode.permissions.call_facts import CallFacts, CallKind
from induscode.permissions.patterns import parse_host
from induscode.permissions.plan_mode import PlanAnswer, PlanDecision
from induscode.permissions.policy import ApprovalMode, Decision, Need
from induscode.permissions.rules import Effect, Rule, RuleOrigin, parse_rule
from induscode.permissions.shell.arguments import count_saved_words, find_problem, is_never_saved

if TYPE_CHECKING:
    from indusagi.runtime.contract import ProgressSink
    from induscode.permissions.shell.parse import Command

_SAFE_WORD = re.compile(r"[A-Za-z0-9_./+@%:=,-]+")


class ApprovalScope(StrEnum):
    """Scope of the user's yes."""

    ONCE = "once"
    SESSION = "session"
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
    reasons: tuple[str, ...]
    """Why the call needs permission."""
    arguments: JsonObject = field(default_factory=dict[str, JsonValue])
    saves: tuple[str, ...]
    """Rules that a lasting yes creates."""
    scopes: tuple[ApprovalScope, ...]
    """Possible answers other than no, which is the default."""
    asked_by_rule: bool = False
    """Whether a rule requires the question."""
    facts: CallFacts | None = field(default=None, compare=False, repr=False)
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


def build_request(facts: CallFacts, decision: Decision, report: ProgressSink | None = None) -> PermissionRequest:
    """Build the request for a call that needs the user's permission."""
    rules = () if decision.firm else build_rules(facts, decision)
    scopes = [ApprovalScope.ONCE]
    if decision.flow:  # no rule covers it; the answer for the session is about this tool
        scopes += [ApprovalScope.SESSION] if len(rules) == len(decision.needs) and not decision.firm else []
    elif rules:
        scopes += [ApprovalScope.SESSION, ApprovalScope.ALWAYS_TOOL]
    if facts.server is not None and not decision.firm and not decision.flow:
        scopes.append(ApprovalScope.ALWAYS_SERVER)
    lines = [f"tool: {escape_text(facts.tool)}"]
    if facts.server is not None:
        lines.append(f"server: {escape_text(facts.server)}")
    if facts.script is not None:
        lines += [f"command: {escape_text(line)}" for line in facts.script.text.split("\n")]
        lines.append(f"sandbox: {escape_text(str(facts.sandbox))}")
    if facts.method is not None:
        lines.append(f"request: {facts.method} {escape_text(facts.url or '')}")
        lines.append(f"host: {escape_text(parse_host(facts.url or '') or '')}")
    for path in facts.paths:
        action = "writes to" if path.writing else "reads"
        refusal = f" ({path.refusal})" if path.refusal is not None else ""
        link = "" if path.resolved == path.spelled else f", given as {escape_text(path.given)}"
        lines.append(f"{action}: {escape_text(path.resolved)}{refusal}{link}")
    for name, value in facts.arguments.items():
        if facts.script is None or value != facts.script.text:
            lines.append(format_argument(name, value))
    return PermissionRequest(
        tool=facts.tool,
        server=facts.server,
        title=_format_title(facts),
        lines=tuple(lines),
        reasons=tuple(escape_invisible(reason)[0] for reason in decision.reasons),
        arguments=facts.arguments,
        saves=(*map(str, rules), *([f"{facts.tool} sending data out"] if decision.flow else [])),
        scopes=tuple(scopes),
        asked_by_rule=decision.asked_by_rule,
        facts=facts,
        report=report,
    )


def format_argument(name: str, value: JsonValue) -> str:
    """Format an argument in full, as ASCII JSON: `"5"` isn't `5`."""
    return f"argument {escape_text(name)}: {json.dumps(value, separators=(',', ':'))}"


def _format_title(facts: CallFacts) -> str:
    """Describe a call in one sentence."""
    if facts.remote is not None:
        title = f"server {facts.remote.server} wants to run {facts.remote.name}"
    elif facts.script is not None:
        first, *others = facts.script.text.strip().splitlines() or [""]
        more = f" … and {len(others)} more lines" if others else ""
        title = f"{facts.tool} wants to run: {first}{more}"
    elif facts.paths:
        path = facts.paths[0]
        title = f"{'Edit' if facts.tool == 'edit' else 'Write' if path.writing else 'Read'} {path.resolved}"
    elif facts.method is not None:
        title = f"{facts.slug} wants to send {facts.method} to {parse_host(facts.url or '')}"
    elif facts.url is not None:
        title = f"{facts.tool} wants to fetch {facts.url}"
    else:
        title = f"{facts.tool} {facts.kind.value}"
    return escape_unprintable(title)


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
# A question describes the call in one sentence, lists every fact, gives the reason for asking, and shows the exact rule
# that a lasting answer creates. Enter, Ctrl-C and Ctrl-D mean no.

_SCOPE_KEYS = {
    "y": ApprovalScope.ONCE,
    "s": ApprovalScope.SESSION,
    "a": ApprovalScope.ALWAYS_TOOL,
    "v": ApprovalScope.ALWAYS_SERVER,
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
        lines = [escape_unprintable(line.expandtabs(4)) for line in plan.splitlines()]
        if stored:
            lines += ["", escape_unprintable(stored)]
        choices = tuple(choice for _, choice in _PLAN_CHOICES.values())
        title = "Plan ready. Start work?"
        reply = await self._dialog.ask(Question(title=title, lines=tuple(lines), choices=choices, default="n"))
        if reply.cancelled or reply.key not in _PLAN_CHOICES:
            return PlanDecision(PlanAnswer.REFUSE)
        return PlanDecision(_PLAN_CHOICES[reply.key][0], reply.text.strip())


def build_permission_question(request: PermissionRequest) -> Question:
    """Build the question for a permission request."""
    rules = " and ".join(request.saves)
    labels = {
        ApprovalScope.ONCE: "Yes",
        ApprovalScope.SESSION: f"Yes, and don't ask again this session for {rules}",
        ApprovalScope.ALWAYS_TOOL: f"Always allow {rules} in this project",
        ApprovalScope.ALWAYS_SERVER: f"Always allow every {request.server} tool in this project",
    }
    agent = current_agent.get()  # a background task asks while the user does something else
    lines = [f"for the agent: {agent}"] if agent else []
    lines += [*request.lines, f"asks because: {'; '.join(request.reasons)}"]
    if rules:
        lines.append(f"rule: allow {rules}")
    choices = [
        Choice(key=key, label=escape_unprintable(labels[scope]), lasts=scope is not ApprovalScope.ONCE)
        for key, scope in _SCOPE_KEYS.items()
        if scope in request.scopes
    ]
    return Question(
        title=escape_unprintable(request.title),
        lines=tuple(map(escape_unprintable, lines)),
        choices=(*choices, _NO),
        default=_NO.key,
    )
