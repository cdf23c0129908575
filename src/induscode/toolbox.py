"""The deck for programs: native tools and MCP server tools in one toolbox.

It works like a session: pins guard definitions, project servers need consent, the ledger and call records are written,
and the user's permission rules check every call. Where the rules leave a call open, the gate decides.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Literal, TypeAlias, cast, get_args

from anyio import to_thread

from indusagi.adapters.blocking import make_blocking
from indusagi.adapters.calls import Gate, GateRequest, ask_gate, format_arguments
from indusagi.core.json import JsonLike, JsonObject
from induscode.boot.session import SessionToolBox, open_session
from induscode.calls.record import CallOrigin
from induscode.deck.contract import Capability, Profile
from induscode.launch.invocation import Approval, Invocation, SandboxMode, build_invocation
from induscode.launch.settings import load_settings
from induscode.permissions import load_permissions
from induscode.permissions.confirm import ApprovalScope, PermissionAnswer, PermissionRequest

ProfileName: TypeAlias = Literal["read-only", "coding", "all", "none"]
_PROFILES: tuple[str, ...] = get_args(ProfileName)
_log = logging.getLogger(__name__)


@asynccontextmanager
async def open_deck(
    *config: str | os.PathLike[str],
    gate: Gate | None = None,
    servers: Mapping[str, Mapping[str, JsonLike]] | None = None,
    cards: Iterable[Capability] = (),
    profile: ProfileName = "coding",
    tools: Iterable[str] = (),
    allow: Iterable[str] = (),
    approval: Approval | None = None,
    sandbox: SandboxMode | None = None,
    cwd: str | os.PathLike[str] = ".",
) -> AsyncGenerator[SessionToolBox]:
    """Open the deck inside the block; enter and leave it in one task.

    Everything left out is logged as a warning, and listed in the toolbox's `notes`.

    Args:
        config: Configuration files or project directories with servers. Without any (and without `servers`), the deck
            uses the user's servers and those of the project in `cwd`.
        gate: Decides about calls that the rules leave open. Without a gate, they're denied with a message that names
            the rule to allow them.
        servers: Additional servers by name, as configuration rows.
        cards: Your own tools, from `define_tool`.
        profile: The set of native tools.
        tools: Names of native tools; by default all of the profile.
        allow: Rules for calls that need no approval, such as `bash(git status *)` or `github__*`.
        approval: `ask` (the default), `auto-edit` to write files in `cwd` without asking, or `all` to allow everything
            that no rule denies.
        sandbox: Whether to sandbox commands: `auto`, `required` or `off`; by default from the settings.
        cwd: The directory that native tools work in and can't leave.

    Raises:
        ConfigPathError: A path doesn't exist, or has no usable server.
        UnknownCapability: A name in `tools` is unknown.
        InvalidRuleError: A rule in `allow` is invalid.
        ValueError: The user's settings are invalid, or `profile` is unknown.
    """
    if profile not in _PROFILES:
        raise ValueError(f"profile is one of {', '.join(_PROFILES)}, not {profile!r}")
    invocation = await to_thread.run_sync(_build_invocation, os.fspath(cwd), approval, sandbox)
    invocation = replace(
        invocation,
        mcp=tuple(os.fspath(path) for path in config) or None,
        tools=tuple(tools) or None,
        allow=tuple(allow),
        given_servers=cast("Mapping[str, JsonObject]", servers or {}),
        given_by="open_deck",
        no_config=servers is not None and not config,
    )
    permissions = await to_thread.run_sync(
        load_permissions, invocation, None, GateApprover(gate) if gate else None, "open_deck"
    )
    async with AsyncExitStack() as stack:
        opening = open_session(
            invocation,
            profile=None if profile == "none" else Profile(profile),
            wrap=permissions.wrap,
            origin=CallOrigin(via="library"),
            on_note=lambda note: _log.warning("%s", note),
        )
        session = await stack.enter_async_context(opening)
        permissions.follow(session.mcp)
        session = replace(session, native=session.native.graft(cards))
        for note in (*permissions.notes, *session.notes):
            _log.warning("%s", note)
        yield SessionToolBox(session, stack)


open_deck_sync = make_blocking(open_deck)
"""`open_deck` for code without an event loop.

The servers run in a separate thread. The toolbox has `run_sync`, and adapters work with and without `await`.
"""


def _build_invocation(cwd: str, approval: Approval | None, sandbox: SandboxMode | None) -> Invocation:
    """Build the invocation that these flags would give. Blocks, to read the settings files."""
    cwd = os.path.realpath(cwd)
    values = {"approval": approval, "sandbox": sandbox}
    given = {key for key, value in values.items() if value is not None}
    return build_invocation(values, cwd, load_settings(cwd, os.environ), given)


class GateApprover:
    """Lets a program's gate answer permission requests; a yes holds for one call."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Ask the gate."""
        title = f"{request.title} {format_arguments(request.arguments)}"
        question = GateRequest(tool=request.tool, arguments=request.arguments, title=title, reasons=request.reasons)
        refusal = await ask_gate(self._gate, question)
        return PermissionAnswer(ApprovalScope.ONCE) if refusal is None else PermissionAnswer(None, refusal)
