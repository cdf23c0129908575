"""The deck for programs: native tools and the tools of MCP servers in one toolbox.

It is the toolbox of a session: definitions are compared with their pins, servers of a project need consent, the ledger
and the records of calls are written, and the user's permission rules check every call. What the rules leave open is
asked of the gate.
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

    What was left out is logged as a warning, and stays in the `notes` of the toolbox.

    Args:
        config: Configuration files, or directories of projects, whose servers are used. Without any, and without
            `servers`, these are the user's and those of the project in `cwd`.
        gate: Decides about the calls that the rules leave open. Without one these calls are denied, and the message
            names the rule that would allow them.
        servers: Further servers, by name, as rows of a configuration file.
        cards: Tools of your own, as `define_tool` makes them.
        profile: The native tools.
        tools: Names of native tools; those of the profile if there are none.
        allow: Rules for calls that run unasked, such as `bash(git status *)` or `github__*`.
        approval: `ask`, as in the settings of the user unless they say otherwise; `auto-edit` writes files of `cwd`
            unasked; `all` allows everything that no rule denies.
        sandbox: Whether commands run in a sandbox: `auto`, `required` or `off`; by default as the settings say.
        cwd: The directory that the native tools work in, and do not leave.

    Raises:
        ConfigPathError: A path does not exist, or has no usable server.
        UnknownCapability: There is no tool of a name in `tools`.
        InvalidRuleError: A rule in `allow` is invalid.
        ValueError: The settings of the user are invalid, or `profile` is unknown.
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
    origin = CallOrigin(via="library")
    async with AsyncExitStack() as stack:
        opening = open_session(
            invocation, profile=None if profile == "none" else Profile(profile), wrap=permissions.wrap, origin=origin
        )
        session = await stack.enter_async_context(opening)
        session = replace(session, native=session.native.graft(cards))
        for note in (*permissions.notes, *session.notes):
            _log.warning("%s", note)
        session.calls.report_to(lambda note: _log.warning("%s", note))
        yield SessionToolBox(session, stack)


open_deck_sync = make_blocking(open_deck)
"""Open the deck for code without an event loop, with the arguments of `open_deck`.

Its servers run in a thread of their own. The toolbox has `run_sync`, and adapters use it with and without `await`.
"""


def _build_invocation(cwd: str, approval: Approval | None, sandbox: SandboxMode | None) -> Invocation:
    """Build the invocation of a command line with these flags. It blocks: settings are read from files."""
    cwd = os.path.realpath(cwd)
    values = {"approval": approval, "sandbox": sandbox}
    given = {key for key, value in values.items() if value is not None}
    return build_invocation(values, cwd, load_settings(cwd, os.environ), given)


class GateApprover:
    """The gate of a program as the approver of its permissions; a yes holds for one call."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        """Ask the gate."""
        title = f"{request.title} {format_arguments(request.arguments)}"
        question = GateRequest(tool=request.tool, arguments=request.arguments, title=title, reasons=request.reasons)
        refusal = await ask_gate(self._gate, question)
        return PermissionAnswer(ApprovalScope.ONCE) if refusal is None else PermissionAnswer(None, refusal)
