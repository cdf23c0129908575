"""A workspace, cards and people for tests of the gate."""

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
from induscode.session.permissions.check import Permissions
from induscode.session.permissions.confirm import ApprovalScope, PermissionAnswer
from induscode.session.permissions.rules import Effect, Rule, RuleOrigin, parse_rule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.contract import Capability
    from induscode.session.permissions.check import CheckResult
    from induscode.session.permissions.confirm import PermissionRequest

HELD = SandboxState(kind="bubblewrap")


class ToldShell(LocalShell):
    """A shell that says of its sandbox what a test wants."""

    def __init__(self, cwd: str, state: SandboxState) -> None:
        super().__init__(cwd)
        self.state = state

    async def sandbox_state(self) -> SandboxState:
        return self.state


def context(folder: Path, state: SandboxState = HELD) -> ToolContext:
    """Make a context whose commands are, as it says, held in."""
    return make_local_context(folder, shell=ToldShell(str(folder), state))


def card(name: str, folder: Path) -> Capability:
    """Build a native card."""
    return build_builtin(name, DeckContext(str(folder)))


def remote(name: str = "github__create_issue", *, server: str = "github", text: str = "") -> BridgeCapability:
    """Make a tool of a server that says it only reads."""

    async def run(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        return ToolResult.text("done")

    descriptor = ToolDescriptor(name, text, {"type": "object"}, annotations={"readOnlyHint": True})
    raw: JsonObject = {"name": name, "description": text, "annotations": {"readOnlyHint": True}}
    ref = RemoteToolRef(server, name.removeprefix(f"{server}__"))
    return BridgeCapability.from_definition(descriptor, ref, raw, run)


def rule(text: str, effect: Effect, **where: str | None) -> Rule:
    """Read a rule that is right."""
    found = parse_rule(text, effect, RuleOrigin.USER)
    assert isinstance(found, Rule), found
    return replace(found, **where)


def rules(*, allow: str = "", ask: str = "", deny: str = "") -> list[Rule]:
    """Read rules, separated by semicolons."""
    return [
        rule(text.strip(), effect)
        for effect, texts in ((Effect.ALLOW, allow), (Effect.ASK, ask), (Effect.DENY, deny))
        for text in texts.split(";")
        if text.strip()
    ]


@dataclass
class Person:
    """Somebody who answers, and remembers what they were asked."""

    says: list[ApprovalScope | None] = field(default_factory=list[ApprovalScope | None])
    questions: list[PermissionRequest] = field(default_factory=list["PermissionRequest"])
    before: Callable[[], None] | None = None
    """What happens while they think."""

    async def ask(self, question: PermissionRequest) -> PermissionAnswer:
        self.questions.append(question)
        if self.before is not None:
            await to_thread.run_sync(self.before)
        return PermissionAnswer(self.says.pop(0) if self.says else None)


async def verdict(gate: Permissions, name: str, folder: Path, **arguments: JsonValue) -> CheckResult:
    """Have a gate decide about a call of a native card."""
    return await gate.check(card(name, folder), dict(arguments), context(folder))


async def effect_of(folder: Path, command: str, given: list[Rule]) -> Effect:
    """Tell what rules make of a command: allowed, denied, or to be asked about."""
    person = Person()
    found = await verdict(Permissions(given, approver=person), "bash", folder, command=command)
    if found.allowed:
        return Effect.ALLOW
    return Effect.ASK if person.questions else Effect.DENY


def stub(folder: Path, name: str, log: Path) -> None:
    """Put a program into a folder that writes down how it was called, and does nothing else."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n', encoding="utf-8")
    os.chmod(path, 0o755)
