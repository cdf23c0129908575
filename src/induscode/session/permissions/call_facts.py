"""What a call would do: the paths it leads to, the commands it runs, whom it talks to.

Everything is looked up as the card itself will: the arguments in the form the card gives them, the
paths through the same door.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast, runtime_checkable

from anyio import to_thread

from indusagi.capabilities.arguments import ArgumentChecker
from indusagi.capabilities.files.paths.protected import default_protected_paths
from indusagi.capabilities.ports import PathRefused, SandboxState
from indusagi.capabilities.tool import DefinedTool, prepare_call
from indusagi.capabilities.tools.paths import path_given
from induscode.deck.builtin import builtin_ids
from induscode.deck.contract import is_foreign, iter_layers
from induscode.session.permissions.shell.parse import parse_command

if TYPE_CHECKING:
    from collections.abc import Iterable

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.ports import Refusal
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from indusagi.runtime.contract import ToolResult
    from induscode.deck.contract import Capability
    from induscode.session.permissions.shell.parse import Script

_PATHS = {"read": False, "ls": False, "grep": False, "find": False, "write": True, "edit": True}
"""Tools that are about one path, and whether they write to it."""
_TREES = frozenset({"ls", "grep", "find"})
_STREAMS = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr"})
_OWN = frozenset({"todo_set", "todo"})
_JOBS = frozenset({"process", "bg-process"})


class CallKind(StrEnum):
    """What kind of thing a call does."""

    LOOK = "looks at something of the session"
    OWN = "changes nothing but the session's own lists and jobs"
    DELEGATE = "has a sub-session work, whose calls pass the gate"
    FILE = "reads or writes a path"
    COMMAND = "runs a command"
    EGRESS = "sends something to the network"
    REMOTE = "calls a tool of a server"
    CHANGE = "changes something"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFact:
    """A path of a call."""

    given: str
    spelled: str
    """Absolute, links not followed."""
    resolved: str
    """Where it leads."""
    writing: bool
    refusal: Refusal | None = None
    """Why the door would not open: outside, protected or special."""
    problem: str | None = None
    """Why it cannot be told where it leads."""
    tree: bool = False
    """Whether all that is below is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFacts:
    """What is known about a call before it runs."""

    tool: str
    kind: CallKind
    arguments: JsonObject
    workspace: str
    cwd: str
    paths: tuple[PathFact, ...] = ()
    script: Script | None = None
    url: str | None = None
    remote: RemoteToolRef | None = None
    """Which tool of which server is called; None for a tool of this machine."""
    shares_name: bool = False
    """Whether the name of a remote tool can be read as one of another server, with a longer id."""
    pin: str | None = None
    sandbox: SandboxState | None = None
    """What would hold a command in; None where there is no command, or nobody knows."""

    @property
    def server(self) -> str | None:
        """The server whose tool is called; None for a tool of this machine."""
        return None if self.remote is None else self.remote.server

    @property
    def names(self) -> tuple[str, ...]:
        """Under which names rules speak of it: every way to run a command is one to bash."""
        is_shell = self.kind is CallKind.COMMAND and self.tool != "bash"
        return (self.tool, "bash") if is_shell else (self.tool,)


@runtime_checkable
class SandboxedShell(Protocol):
    """A shell that can tell what it holds commands in by."""

    async def sandbox_state(self) -> SandboxState:
        """Tell what holds a command in."""
        ...


@runtime_checkable
class _RemoteCard(Protocol):
    @property
    def ref(self) -> RemoteToolRef: ...

    @property
    def pin(self) -> str: ...


async def prepare_arguments(card: Capability, arguments: JsonValue) -> JsonObject | ToolResult:
    """Return a checked copy of the arguments that the card will run with, or an error result.

    Arguments for a server are checked by the server.
    """
    foreign = is_foreign(card)
    tool = None if foreign else _tool_of(card)
    if tool is not None:
        return await tool.prepare_call(arguments)
    return await prepare_call(card.name, arguments, ArgumentChecker(None if foreign else card.parameters))


def _tool_of(card: Capability) -> DefinedTool | None:
    inner = [*iter_layers(card)][-1]
    if isinstance(inner, DefinedTool):
        return inner
    return _native(inner.name) if inner.name in builtin_ids() else None


@cache
def _native(name: str) -> DefinedTool:
    from indusagi.capabilities.tools import native_tool  # noqa: PLC0415 — a list needs no tools

    return native_tool(name)


async def gather_facts(
    card: Capability, arguments: JsonObject, ctx: ToolContext, shell_folders: Iterable[str] = ()
) -> CallFacts:
    """Find out what a call would do; `shell_folders` is where bash may stand besides the root."""
    workspace = (await _looked_up(ctx, ".", writing=False)).resolved
    kind = _kind(card, arguments)
    facts = CallFacts(tool=card.name, kind=kind, arguments=arguments, workspace=workspace, cwd=ctx.cwd)
    if kind is CallKind.REMOTE:
        return _of_server(card, facts)
    if kind is CallKind.FILE:
        name = card.name
        fact = await _looked_up(ctx, path_given(arguments), writing=_PATHS[name])
        return replace(facts, paths=(replace(fact, tree=name in _TREES),))
    if kind is CallKind.COMMAND:
        return await _of_command(facts, ctx, tuple(shell_folders))
    url = arguments.get("url")
    return replace(facts, url=url if isinstance(url, str) else None)


def _kind(card: Capability, arguments: JsonObject) -> CallKind:
    if is_foreign(card):
        return CallKind.REMOTE
    name, action = card.name, arguments.get("action")
    if name in _PATHS:
        return CallKind.FILE
    if name in _JOBS and action in {"list", "poll", "stop"}:
        return CallKind.OWN
    if name == "bash" or name in _JOBS:
        return CallKind.COMMAND
    if name in {"webfetch", "websearch"} or (name == "saas-action" and action == "discover"):
        return CallKind.EGRESS
    if name == "task":
        return CallKind.DELEGATE
    if name in _OWN:
        return CallKind.OWN
    looks = card.read_only or (name == "memory" and action == "read")
    return CallKind.LOOK if looks else CallKind.CHANGE


def _of_server(card: Capability, facts: CallFacts) -> CallFacts:
    for one in iter_layers(card):
        if isinstance(one, _RemoteCard):
            shares = bool(getattr(one, "shares_name", False))
            return replace(facts, remote=one.ref, shares_name=shares, pin=one.pin)
    return facts


async def _of_command(facts: CallFacts, ctx: ToolContext, shell_folders: tuple[str, ...]) -> CallFacts:
    text = facts.arguments.get("input" if facts.arguments.get("action") == "write" else "command")
    script = await to_thread.run_sync(parse_command, text if isinstance(text, str) else "")
    if facts.arguments.get("action") == "write":
        script = replace(script, flaws=("it is typed into a process that runs", *script.flaws))
    given = facts.arguments.get("cwd")
    folders: tuple[str, ...] = (facts.workspace, *shell_folders)
    paths: list[PathFact] = []
    if isinstance(given, str):
        folder = given if facts.tool in _JOBS else path_given(facts.arguments, "cwd")
        paths.append(await _looked_up(ctx, folder, writing=False))
        folders = (paths[0].resolved,)
    for redirect in script.redirects:
        target = redirect.target.text
        if target is None or target in _STREAMS:
            continue
        for folder in dict.fromkeys(folders):
            full = _joined(folder, target)
            paths.append(await _looked_up(ctx, full, writing=redirect.writes))
    shell = ctx.shell
    state = await shell.sandbox_state() if isinstance(shell, SandboxedShell) else None
    return replace(facts, script=script, paths=tuple(dict.fromkeys(paths)), sandbox=state)


async def _looked_up(ctx: ToolContext, given: str, *, writing: bool) -> PathFact:
    """Find out where a path leads, and whether the door would open there."""
    spelled = _joined(ctx.cwd, given)
    fact = PathFact(given=given, spelled=spelled, resolved=spelled, writing=writing)
    try:
        return replace(fact, resolved=await ctx.fs.resolve(given, writing=writing))
    except PathRefused as exc:
        refusal = exc.refusal
        if refusal == "outside" and writing:
            # The door says the first reason only; the second is the one that counts.
            why = await to_thread.run_sync(default_protected_paths().why, exc.resolved, os.sep)
            refusal = cast("Refusal", "protected") if why else refusal
        return replace(fact, resolved=exc.resolved, refusal=refusal)
    except OSError as exc:
        return replace(fact, problem=str(exc.strerror or exc))


def _joined(folder: str, path: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))
