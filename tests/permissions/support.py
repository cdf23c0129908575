"""Workspaces, cards and approvers for tests of the permissions."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from anyio import to_thread

from indusagi.capabilities.local import make_local_context
from indusagi.capabilities.local.shell import LocalShell
from indusagi.capabilities.ports import SandboxState
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import ToolDescriptor, ToolResult
from induscode.deck.builtin import build_builtin
from induscode.deck.contract import DeckContext
from induscode.deck.mcp.capability import BridgeCapability
from induscode.permissions.check import Permissions
from induscode.permissions.confirm import ApprovalScope, PermissionAnswer
from induscode.permissions.rules import Effect, Rule, RuleOrigin, parse_rule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.contract import Capability
    from induscode.permissions.check import CheckResult
    from induscode.permissions.confirm import PermissionRequest

SANDBOXED = SandboxState(kind="bubblewrap")


class StubShell(LocalShell):
    """A shell with a given sandbox state."""

    def __init__(self, cwd: str, state: SandboxState) -> None:
        super().__init__(cwd)
        self.state = state

    async def sandbox_state(self) -> SandboxState:
        return self.state


def context(folder: Path, state: SandboxState = SANDBOXED) -> ToolContext:
    """Build a context whose shell reports a sandbox."""
    return make_local_context(folder, shell=StubShell(str(folder), state))


def card(name: str, folder: Path) -> Capability:
    """Build a native card."""
    return build_builtin(name, DeckContext(str(folder)))


def remote(name: str = "github__create_issue", *, server: str = "github", text: str = "") -> BridgeCapability:
    """Build a remote tool with `readOnlyHint`."""

    async def run(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        return ToolResult.text("done")

    descriptor = ToolDescriptor(name, text, {"type": "object"}, annotations={"readOnlyHint": True})
    raw: JsonObject = {"name": name, "description": text, "annotations": {"readOnlyHint": True}}
    ref = RemoteToolRef(server, name.removeprefix(f"{server}__"))
    return BridgeCapability.from_definition(descriptor, ref, raw, run)


def rule(text: str, effect: Effect, **where: str | None) -> Rule:
    """Parse a valid rule."""
    found = parse_rule(text, effect, RuleOrigin.USER)
    assert isinstance(found, Rule), found
    return replace(found, **where)


def rules(*, allow: str = "", ask: str = "", deny: str = "") -> list[Rule]:
    """Parse rules, separated by semicolons."""
    return [
        rule(text.strip(), effect)
        for effect, texts in ((Effect.ALLOW, allow), (Effect.ASK, ask), (Effect.DENY, deny))
        for text in texts.split(";")
        if text.strip()
    ]


@dataclass
class Person:
    """An approver that gives scripted answers and records the requests."""

    says: list[ApprovalScope | None] = field(default_factory=list[ApprovalScope | None])
    questions: list[PermissionRequest] = field(default_factory=list["PermissionRequest"])
    before: Callable[[], None] | None = None
    """Called before the answer."""

    async def ask(self, question: PermissionRequest) -> PermissionAnswer:
        self.questions.append(question)
        if self.before is not None:
            await to_thread.run_sync(self.before)
        return PermissionAnswer(self.says.pop(0) if self.says else None)


async def check_call(permissions: Permissions, name: str, folder: Path, **arguments: JsonValue) -> CheckResult:
    """Have a permissions decide about a call of a native card."""
    return await permissions.check(card(name, folder), dict(arguments), context(folder))


async def get_effect(folder: Path, command: str, given: list[Rule]) -> Effect:
    """Apply rules to a command: allow, deny or ask."""
    person = Person()
    found = await check_call(Permissions(given, approver=person), "bash", folder, command=command)
    if found.allowed:
        return Effect.ALLOW
    return Effect.ASK if person.questions else Effect.DENY


def stub(folder: Path, name: str, log: Path, logged: str = "$*") -> None:
    """Create a program that logs its name and arguments and does nothing else."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} {logged}" >> {log}\n', encoding="utf-8")
    os.chmod(path, 0o755)
