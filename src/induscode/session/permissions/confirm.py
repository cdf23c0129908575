"""Decisions: about this call, with these arguments, leading there, and only once.

A yes is bound to everything that was looked at. If anything of it is different when the call runs,
it is another call, and nobody has said yes to it.

Which rule stands for a command when somebody says "always": its name with what belongs to it.

`git commit -m x` becomes `bash(git commit *)`, not `bash(git *)`. What runs other commands, or
text as code, is never allowed for always; what destroys is allowed as it was written only.

What a person is shown before a call, and which rules would make the question unnecessary.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from indusagi.core.json import compact_json
from indusagi.core.text import escape_invisible
from induscode.session.permissions.call_facts import CallKind
from induscode.session.permissions.patterns import host_of
from induscode.session.permissions.policy import Approval
from induscode.session.permissions.rules import Effect, Rule, RuleOrigin, parse_rule
from induscode.session.permissions.shell.arguments import find_problem
from induscode.session.permissions.shell.launchers import base_name, names, runs_anything

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.session.permissions.call_facts import CallFacts, PathFact
    from induscode.session.permissions.policy import Decision, Need
    from induscode.session.permissions.shell.parse import Command


class ApprovalScope(StrEnum):
    """For how long somebody says yes."""

    ONCE = "once"
    SESSION = "session"
    ALWAYS_TOOL = "always for this"
    ALWAYS_SERVER = "always for this server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Everything a decision is about."""

    tool: str
    server: str | None
    arguments: str
    """A digest of the arguments in one canonical form."""
    paths: tuple[tuple[str, bool, str | None], ...]
    """Where every path leads, whether it is written to, and why the door would not open."""
    cwd: str
    workspace: str
    pin: str | None
    sandbox: str


def bind_call(facts: CallFacts) -> Binding:
    """Give what a decision about a call is bound to."""
    return Binding(
        tool=facts.tool,
        server=facts.server,
        arguments=arguments_digest(facts.arguments),
        paths=tuple((path.resolved, path.writing, path.refusal) for path in facts.paths),
        cwd=facts.cwd,
        workspace=facts.workspace,
        pin=facts.pin,
        sandbox=str(facts.sandbox),
    )


def arguments_digest(arguments: JsonObject) -> str:
    """Digest arguments; the order of their keys makes no difference."""
    text = compact_json(arguments, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class PermissionRequest:
    """What a person is asked, in full: what is shown is what runs."""

    tool: str
    server: str | None
    lines: tuple[str, ...]
    """Every fact, whole, with nothing in it that a terminal would obey."""
    reasons: tuple[str, ...]
    """Why somebody is asked."""
    saves: tuple[str, ...]
    """The rules that `session` and `always` would keep; empty if there are none."""
    scopes: tuple[ApprovalScope, ...]
    """The answers that there are besides no, which is the default."""


@dataclass(frozen=True, slots=True)
class PermissionAnswer:
    """What a person said; without a scope it is no."""

    scope: ApprovalScope | None = None
    comment: str = ""
    """What the model is told with a no."""


class Approver(Protocol):
    """Somebody who can ask a person."""

    async def ask(self, question: PermissionRequest) -> PermissionAnswer:
        """Ask, and wait for the answer."""
        ...


_NEVER = names(
    "sh bash dash ash zsh ksh mksh fish csh tcsh eval exec sudo doas su xargs env ssh source ."
    " command builtin nohup nice time timeout parallel watch find awk sed perl npx uvx bunx pnpx"
)
"""Whatever they start would be allowed with them."""
_AS_WRITTEN = names(
    "rm rmdir unlink shred dd mkfs mount umount chmod chown chgrp kill pkill killall mv cp ln"
    " install truncate curl wget nc scp rsync ftp telnet reboot shutdown systemctl service iptables"
    " crontab passwd useradd usermod python python3 node ruby php lua deno bun tee"
)
"""One of them is not like the other: the whole command is the rule."""
_DEPTHS = {
    **dict.fromkeys(
        names(
            "git hg svn npm pnpm yarn cargo go docker podman kubectl helm pip pip3 uv poetry pdm"
            " brew apt apt-get dnf gh glab terraform ansible make cmake gradle mvn rustup conda"
            " just task bazel dotnet composer bundle rake mix flutter swift stack cabal nix aws az"
            " gcloud hatch tox nox ruff rails"
        ),
        2,
    ),
    "npm run": 3,
    "npm exec": 3,
    "pnpm run": 3,
    "yarn run": 3,
    "bun run": 3,
    "uv run": 3,
    "uv pip": 3,
    "poetry run": 3,
    "docker compose": 3,
    "docker container": 3,
    "docker image": 3,
    "git remote": 3,
    "git stash": 3,
    "git worktree": 3,
    "git submodule": 3,
    "git config": 3,
    "gh pr": 3,
    "gh issue": 3,
    "gh repo": 3,
    "gh run": 3,
    "gh api": 3,
    "aws s3": 3,
    "bundle exec": 3,
    "cargo run": 2,
    "dotnet tool": 3,
    "nix flake": 3,
}
"""How many words of a command say what it does."""
_SAFE_WORD = re.compile(r"[A-Za-z0-9_./+@%:=,-]+")


def saved_pattern(command: Command) -> str | None:
    """Give the specifier that stands for a command; None if it is never allowed for always."""
    texts = [word.text for word in command.words]
    name = texts[0]
    problem = find_problem(command.words, fed=command.fed)
    if name is None or base_name(name) in _NEVER or runs_anything(command.words) is not None:
        return None
    if problem is not None and problem.acts:
        return None
    depth = _depth(texts)
    restore_arguments = base_name(name) in _AS_WRITTEN or "/" in name or depth > len(texts)
    if restore_arguments or any(_is_option(text) for text in texts[:depth]):
        return _pattern(texts, more=False)
    if find_problem(command.words, frozenset(range(depth)), fed=command.fed) is not None:
        return _pattern(texts, more=False)
    return _pattern(texts[:depth], more=True)


def _depth(texts: list[str | None]) -> int:
    two = " ".join(text or "" for text in texts[:2])
    return _DEPTHS.get(two) or _DEPTHS.get(texts[0] or "", 1)


def _is_option(text: str | None) -> bool:
    return text is None or text.startswith("-")


def _pattern(texts: list[str | None], *, more: bool) -> str | None:
    if not all(text is not None and _SAFE_WORD.fullmatch(text) for text in texts):
        return None
    return " ".join([*(text for text in texts if text is not None), *(["*"] if more else [])])


def build_request(facts: CallFacts, judgement: Decision) -> PermissionRequest:
    """Put together what a person must see before they say yes."""
    rules = () if judgement.firm else build_rules(facts, judgement)
    scopes = [ApprovalScope.ONCE]
    if rules:
        scopes += [ApprovalScope.SESSION, ApprovalScope.ALWAYS_TOOL]
    if facts.server is not None and not judgement.firm:
        scopes.append(ApprovalScope.ALWAYS_SERVER)
    return PermissionRequest(
        tool=facts.tool,
        server=facts.server,
        lines=tuple(_lines(facts)),
        reasons=tuple(escape_invisible(reason)[0] for reason in judgement.reasons),
        saves=tuple(map(str, rules)),
        scopes=tuple(scopes),
    )


def _lines(facts: CallFacts) -> list[str]:
    lines = [f"tool: {escape_text(facts.tool)}"]
    if facts.server is not None:
        lines.append(f"server: {escape_text(facts.server)}")
    if facts.script is not None:
        lines += [f"command: {escape_text(line)}" for line in facts.script.text.split("\n")]
        lines.append(f"sandbox: {escape_text(str(facts.sandbox))}")
    lines += [f"{_act(path)}: {_way(path)}" for path in facts.paths]
    lines += [
        f"argument {escape_text(name)}: {_shown(value)}"
        for name, value in facts.arguments.items()
        if not (facts.script is not None and value == facts.script.text)
    ]
    return lines


def _shown(value: JsonValue) -> str:
    return escape_text(value if isinstance(value, str) else compact_json(value))


def _act(path: PathFact) -> str:
    return "writes to" if path.writing else "reads"


def _way(path: PathFact) -> str:
    """Say where a path leads; also what it was called, if that is something else."""
    where = f" ({path.refusal})" if path.refusal is not None else ""
    led = "" if path.resolved == path.spelled else f", given as {escape_text(path.given)}"
    return f"{escape_text(path.resolved)}{where}{led}"


def escape_text(text: str) -> str:
    """Write a text so that every character can be seen, and the whole of it."""
    return json.dumps(text, ensure_ascii=True)


def build_rules(facts: CallFacts, judgement: Decision) -> tuple[Rule, ...]:
    """Give the rules that would allow a call; none if not all of it can be allowed by rules."""
    rules: list[Rule] = []
    for need in judgement.needs:
        text = _rule_text(need, facts)
        rule = None if text is None else parse_rule(text, Effect.ALLOW, RuleOrigin.SESSION)
        if not isinstance(rule, Rule):
            return ()
        rules.append(replace(rule, server=facts.server, pin=facts.pin))
    return tuple(dict.fromkeys(rules))


def server_rule(facts: CallFacts) -> Rule:
    """Give the rule that allows all tools of the server of a call."""
    return Rule(effect=Effect.ALLOW, tool="*", origin=RuleOrigin.SESSION, server=facts.server)


def _rule_text(need: Need, facts: CallFacts) -> str | None:
    if need.command is not None:
        pattern = saved_pattern(need.command)
        return None if pattern is None else f"bash({pattern})"
    if need.path is not None:
        return _path_rule(need.path, facts)
    if facts.url is not None and facts.tool == "webfetch":
        host = host_of(facts.url)
        return None if host is None else f"webfetch(domain:{host})"
    return facts.tool


def _path_rule(path: PathFact, facts: CallFacts) -> str | None:
    name = path.resolved
    if any(sign in name for sign in "*?") or not name.isprintable():
        return None
    act = "write" if path.writing else "read"
    tool = act if facts.kind is CallKind.COMMAND else facts.tool
    name = name.removeprefix(facts.workspace.rstrip("/") + "/") or name
    return f"{tool}({name})"


def remedy(facts: CallFacts, judgement: Decision) -> str:
    """Say what to start the session with so that such a call runs unasked."""
    ways: list[str] = []
    rules = () if judgement.firm else build_rules(facts, judgement)
    if rules:
        ways.append(" ".join(f"--allow {_quoted(str(rule))}" for rule in rules))
    inside = [path.writing and path.refusal is None for path in facts.paths]
    if facts.kind is CallKind.FILE and inside and all(inside) and not judgement.firm:
        ways.append(f"--approval {Approval.AUTO_EDIT.value}")
    ways.append(f"--approval {Approval.ALL.value}")
    return " or ".join(ways)


def _quoted(text: str) -> str:
    import shlex  # noqa: PLC0415 — for a call that is denied only

    return shlex.quote(text)
