"""Facts about a call before it runs: its kind, paths, commands, server and request.

To describe the call exactly, it reads arguments as the card does and resolves paths with the card's file system.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from anyio import to_thread

from indusagi.capabilities.arguments import ArgumentChecker
from indusagi.capabilities.files.policy import PathPolicy, PathRequest, default_protected_paths
from indusagi.capabilities.ports import Fs, PathRefused, Refusal, SandboxState, Shell
from indusagi.capabilities.registry import PreparingTool
from indusagi.capabilities.tool import ChangePreview, PreviewCall, prepare_call
from indusagi.capabilities.tools.paths import path_given
from indusagi.core.app_dirs import is_within
from indusagi.core.json import is_json_object
from indusagi.core.protocols import offers
from indusagi.core.records import record
from indusagi.core.text import clean_text
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.calls import current_client
from induscode.code_mode.contract import RUN_CODE
from induscode.deck.contract import Capability, TargetedCard, is_foreign, iter_layers
from induscode.permissions.rules import ACTION_TOOL
from induscode.permissions.shell.harmless import find_reads, is_trusted
from induscode.permissions.shell.parse import Script, parse_command

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.runtime.contract import ToolResult

_PATH_TOOLS = {"read": False, "ls": False, "grep": False, "find": False, "write": True, "edit": True}
"""Tools with one path, and whether they write to it."""
_TREE_TOOLS = frozenset({"ls", "grep", "find"})
_STREAMS = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr"})
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_JOB_TOOLS = frozenset({"process", "bg-process"})


class CallKind(StrEnum):
    """Kind of a call. The value completes a sentence about the tool."""

    LOOK = "looks at something of the session"
    OWN = "changes nothing but the session's own lists and jobs"
    DELEGATE = "runs a sub-session, whose calls are checked in turn"
    SCRIPT = "runs a script, whose calls are checked in turn"
    FILE = "reads or writes a path"
    COMMAND = "runs a command"
    EGRESS = "contacts the network"
    REMOTE = "is a server tool"
    CHANGE = "changes something"


_KINDS = {
    **dict.fromkeys(_PATH_TOOLS, CallKind.FILE),
    **dict.fromkeys(("bash", *_JOB_TOOLS), CallKind.COMMAND),
    **dict.fromkeys(("webfetch", "websearch"), CallKind.EGRESS),
    **dict.fromkeys(("todo_set", "todo"), CallKind.OWN),
    "task": CallKind.DELEGATE,
    RUN_CODE: CallKind.SCRIPT,
}


@record(kw_only=True)
class PathFact:
    """A path of a call."""

    given: str
    spelled: str
    """Absolute, with symbolic links."""
    resolved: str
    """Absolute, without symbolic links."""
    writing: bool
    refusal: Refusal | None = None
    """Why the path policy refuses the path: outside, protected or special."""
    problem: str | None = None
    """Why the path can't be resolved."""
    tree: bool = False
    """Whether the call covers everything below the path."""


@record(kw_only=True)
class CallFacts:
    """Facts about a call."""

    tool: str
    kind: CallKind
    arguments: JsonObject
    workspace: str
    cwd: str
    paths: tuple[PathFact, ...] = ()
    script: Script | None = None
    url: str | None = None
    method: str | None = None
    """The HTTP method of a connector's action."""
    slug: str | None = None
    """The action's name."""
    parameters: tuple[str, ...] = ()
    """The names of the action's arguments."""
    remote: RemoteToolRef | None = None
    """The server's tool; `None` for a local tool."""
    shares_name: bool = False
    """Whether the remote tool's name can also mean a tool of a server with a longer id."""
    pin: str | None = None
    card: Capability | None = field(default=None, compare=False, repr=False)
    """The card of a server's tool."""
    reads: tuple[PathFact, ...] | None = None
    """The paths that a harmless command may read; `None` if it may do more than that."""
    sandbox: SandboxState | None = None
    """The sandbox of a command; `None` without a command or if the shell doesn't report one."""
    principal: str = ""
    """The caller's identity at a gateway with access tokens; empty elsewhere."""
    change: ChangePreview | None = field(default=None, compare=False, repr=False)
    """The change that a call would make to a file, once the user is asked about it."""

    @property
    def is_discovery(self) -> bool:
        """Whether it searches for actions, and so lacks a method, host and slug for rules to match."""
        return self.tool == ACTION_TOOL and self.arguments.get("action") == "discover"

    @property
    def schema(self) -> JsonObject | None:
        """The arguments in the definition of a server's tool or an action; `None` if it names none."""
        if self.parameters:
            return {"type": "object", "properties": {name: {} for name in self.parameters}}
        schema: object = None if self.card is None else self.card.parameters
        return schema if is_json_object(schema) and schema.get("properties") else None

    @property
    def server(self) -> str | None:
        """The tool's server; `None` for a local tool."""
        return None if self.remote is None else self.remote.server

    @property
    def names(self) -> tuple[str, ...]:
        """Tool names for rules to match. Rules for `bash` apply to every tool that runs a command."""
        is_shell = self.kind is CallKind.COMMAND and self.tool != "bash"
        return (self.tool, "bash") if is_shell else (self.tool,)


class SandboxedShell(Protocol):
    """A shell that knows its sandbox."""

    async def sandbox_state(self) -> SandboxState:
        """Return the sandbox that the next command will run in."""
        ...


class ConfinableShell(Protocol):
    """A shell that can keep commands from writing and from the network."""

    def confine(self) -> Shell:
        """Return the shell for such commands."""
        ...


class PreviewingTool(Protocol):
    """A tool that may know the change a call would make."""

    @property
    def preview(self) -> PreviewCall | None:
        """A dry run, or `None` if it has none."""
        ...


async def prepare_arguments(card: Capability, arguments: JsonValue) -> JsonObject | ToolResult:
    """Return a validated copy of the arguments for the card to run with, or an error result.

    Servers validate the arguments of remote tools.
    """
    if is_foreign(card):
        return await prepare_call(card.name, arguments)
    inner = [*iter_layers(card)][-1]
    if offers(inner, PreparingTool):
        return await inner.prepare_call(arguments)
    return await prepare_call(card.name, arguments, ArgumentChecker(card.parameters))


async def gather_facts(
    card: Capability,
    arguments: JsonObject,
    ctx: ToolContext,
    *,
    workspace: str | None = None,
    find_shell_folder: Callable[[], str | None] = lambda: None,
) -> CallFacts:
    """Gather the facts about a call with prepared arguments.

    `workspace` is the resolved working directory, if known. `find_shell_folder` returns the shell's directory if it
    isn't the workspace.
    """
    if workspace is None:
        workspace = (await _resolve_path(ctx, ".", writing=False)).resolved
    facts = identify_card(card, workspace, arguments, ctx.cwd)
    kind, name = facts.kind, facts.tool
    if kind is CallKind.REMOTE:
        return facts
    if kind is CallKind.FILE:
        fact = await _resolve_path(ctx, path_given(arguments), writing=_PATH_TOOLS[name])
        return replace(facts, paths=(replace(fact, tree=name in _TREE_TOOLS),))
    if kind is CallKind.COMMAND:
        return await _add_command(facts, ctx, find_shell_folder())
    for layer in iter_layers(card):
        if offers(layer, TargetedCard):
            return await _add_target(facts, layer)
    url = arguments.get("url")
    return replace(facts, url=url if isinstance(url, str) else None)


def identify_card(
    card: Capability, workspace: str, arguments: JsonObject | None = None, cwd: str | None = None
) -> CallFacts:
    """Gather the facts that don't depend on paths, commands or requests: the tool, its server and the caller."""
    client = current_client.get()
    facts = CallFacts(
        tool=card.name,
        kind=_find_kind(card, arguments or {}),
        arguments=arguments or {},
        workspace=workspace,
        cwd=cwd or workspace,
        principal="" if client is None else client.principal,
    )
    if facts.kind is CallKind.REMOTE:
        for layer in iter_layers(card):
            ref = getattr(layer, "ref", None)
            if isinstance(ref, RemoteToolRef):
                shares_name = bool(getattr(layer, "shares_name", False))
                pin = getattr(layer, "pin", None)
                return replace(facts, remote=ref, shares_name=shares_name, pin=pin, card=card)
    return facts


def identify_listed_tool(name: str, remote: RemoteToolRef | None, workspace: str) -> CallFacts:
    """Gather the facts about a listed tool without a card, from its name and server."""
    is_shell = _KINDS.get(name) is CallKind.COMMAND
    kind = CallKind.REMOTE if remote is not None else CallKind.COMMAND if is_shell else CallKind.CHANGE
    return CallFacts(tool=name, kind=kind, arguments={}, workspace=workspace, cwd=workspace, remote=remote)


async def preview_change(card: Capability, facts: CallFacts, ctx: ToolContext) -> ChangePreview | None:
    """Find the change that a call would make to a file, or return `None` if its tool can't tell."""
    tool = [*iter_layers(card)][-1]
    if facts.kind is not CallKind.FILE or not offers(tool, PreviewingTool) or tool.preview is None:
        return None
    return await tool.preview(facts.arguments, ctx)


async def _add_target(facts: CallFacts, card: TargetedCard) -> CallFacts:
    """Add an action's request. With a read-only method, it counts as egress."""
    target = await card.find_target(facts.arguments)
    if target is None:  # connector documents are local, so searching for actions sends nothing
        return replace(facts, kind=CallKind.LOOK) if facts.is_discovery else facts
    kind = CallKind.EGRESS if target.method in _READING_METHODS else facts.kind
    slug = facts.arguments.get("slug")
    return replace(
        facts,
        kind=kind,
        url=target.url,
        method=target.method,
        slug=slug if isinstance(slug, str) else None,
        parameters=target.parameters,
        pin=target.pin,
    )


def _find_kind(card: Capability, arguments: JsonObject) -> CallKind:
    if is_foreign(card):
        return CallKind.REMOTE
    name, action = card.name, arguments.get("action")
    if name in _JOB_TOOLS and action in {"list", "poll", "stop"}:
        return CallKind.OWN
    if name == ACTION_TOOL and action == "discover":
        return CallKind.EGRESS
    looks = card.read_only or (name == "memory" and action == "read")
    return _KINDS.get(name, CallKind.LOOK if looks else CallKind.CHANGE)


async def _add_command(facts: CallFacts, ctx: ToolContext, shell_folder: str | None) -> CallFacts:
    """Add the parsed command, its redirection targets and the sandbox."""
    is_input = facts.arguments.get("action") == "write"
    text = facts.arguments.get("input" if is_input else "command")
    script = await to_thread.run_sync(parse_command, text if isinstance(text, str) else "")
    if is_input:
        script = replace(script, flaws=("it is typed into a process that runs", *script.flaws))
    cwd = facts.arguments.get("cwd")
    folders = [facts.workspace] if shell_folder is None else [facts.workspace, shell_folder]
    paths: list[PathFact] = []
    if isinstance(cwd, str):
        folder = cwd if facts.tool in _JOB_TOOLS else path_given(facts.arguments, "cwd")
        paths.append(await _resolve_path(ctx, folder, writing=False))
        folders = [paths[0].resolved]
    for redirect in script.redirects:
        target = redirect.target.text
        if target is None or target in _STREAMS:
            continue
        for folder in dict.fromkeys(folders):
            full = _join_path(folder, target)
            paths.append(await _resolve_path(ctx, full, writing=redirect.writes))
    shell = ctx.shell
    state = await shell.sandbox_state() if offers(shell, SandboxedShell) else None
    facts = replace(facts, script=script, paths=tuple(dict.fromkeys(paths)), sandbox=state)
    if facts.tool != "bash" or facts.arguments.get("background") or state is None or state.kind != "bubblewrap":
        return facts
    return replace(facts, reads=await _list_reads(facts, script, ctx, folders[-1]))


async def _list_reads(facts: CallFacts, script: Script, ctx: ToolContext, start: str) -> tuple[PathFact, ...] | None:
    """List the paths that a harmless command may read, or return `None` if it isn't harmless."""
    reads = find_reads(script)
    if reads is None:
        return None
    folders = [start] if reads.folder is None else [start, _join_path(start, reads.folder)]
    if not await to_thread.run_sync(is_trusted, script, reads, facts.workspace, folders):
        return None
    paths = [".", *reads.paths] if reads.folder is None else [".", reads.folder, *reads.paths]
    found = [
        replace(await _resolve_path(ctx, _join_path(folder, path), writing=False), tree=True)
        for path in paths
        for folder in folders
    ]
    return tuple(dict.fromkeys(found))


async def _resolve_path(ctx: ToolContext, given: str, *, writing: bool) -> PathFact:
    """Resolve a path, and check whether the path policy refuses it."""
    spelled = _join_path(ctx.cwd, given)
    fact = PathFact(given=given, spelled=spelled, resolved=spelled, writing=writing)
    try:
        return replace(fact, resolved=await ctx.fs.resolve(given, writing=writing))
    except PathRefused as exc:
        refusal = exc.refusal
        if refusal == "outside" and writing:
            # The policy reports its first reason only, and `protected` is stricter than `outside`.
            reason = await to_thread.run_sync(default_protected_paths().find_reason, exc.resolved, os.sep)
            refusal = cast("Refusal", "protected") if reason else refusal
        return replace(fact, resolved=exc.resolved, refusal=refusal)
    except OSError as exc:
        return replace(fact, problem=str(exc.strerror or exc))


def _join_path(folder: str, path: str) -> str:
    return os.path.normpath(os.path.join(folder, os.path.expanduser(path)))


# -- path grants --------------------------------------------------------------------------------
#
# A symbolic link may change between the check and the call. The call therefore runs with a file system whose policy
# knows the checked paths: outside the workspace it opens only those, it writes only to those, and it refuses paths that
# a rule denies, wherever a link leads.

FindDenial: TypeAlias = "Callable[[str], str | None]"
"""Returns the rule that denies a resolved path, if any."""


class PolicedFs(Protocol):
    """A file system with a replaceable path policy."""

    def under(self, change: Callable[[PathPolicy], PathPolicy]) -> Fs:
        """Return the same file system with its policy changed by `change`."""
        ...


class PathGrant:
    """Paths outside the workspace that one call may open, until it ends."""

    def __init__(self, facts: CallFacts) -> None:
        self._paths = facts.paths
        self._open = True

    def permits(self, request: PathRequest) -> bool:
        """Return whether the path passed the check and the call is still running."""
        if not self._open:
            return False
        for path in self._paths:
            if path.refusal is None or (request.writing and not path.writing):
                continue
            if request.resolved == path.resolved or (path.tree and is_within(request.resolved, path.resolved)):
                return True
            # A new file needs its directory.
            if request.writing and request.resolved == os.path.dirname(path.resolved):
                return True
        return False

    def end(self) -> None:
        """Revoke the grant."""
        self._open = False


@record(kw_only=True)
class CallPolicy(PathPolicy):
    """A path policy narrowed to one call."""

    writes: frozenset[str]
    """Writable paths: the checked ones and their directories."""
    find_denial: FindDenial

    def find_base(self, given: str, resolved: str, *, writing: bool) -> str:
        """Return the directory to open a resolved path from, or raise `PathRefused`."""
        shown = clean_text(resolved)[0]
        if writing and resolved not in self.writes:
            reason = f"leads to {shown} by now, which is not what was allowed. Try again"
            raise PathRefused(given, resolved, "protected", reason)
        rule = self.find_denial(resolved)
        if rule is not None:
            raise PathRefused(given, resolved, "protected", f"leads to {shown}: rule {rule}")
        # `slots=True` creates a new class, which breaks `super()` without arguments.
        return PathPolicy.find_base(self, given, resolved, writing=writing)


def restrict_context(ctx: ToolContext, facts: CallFacts, grant: PathGrant, find_denial: FindDenial) -> ToolContext:
    """Return a context for one call, with a restricted file system if the call opens files."""
    if not offers(ctx.fs, PolicedFs):
        return ctx
    is_file = facts.kind is CallKind.FILE
    if not is_file and not any(path.refusal for path in facts.paths):
        return ctx
    targets = [path.resolved for path in facts.paths if path.writing]
    writes = frozenset((*targets, *map(os.path.dirname, targets)))

    def narrow(policy: PathPolicy) -> PathPolicy:
        if not is_file:
            return replace(policy, permits=grant.permits)
        return CallPolicy(
            roots=policy.roots,
            read_roots=policy.read_roots,
            protected=policy.protected,
            permits=grant.permits,
            writes=writes,
            find_denial=find_denial,
        )

    return replace(ctx, fs=ctx.fs.under(narrow))
