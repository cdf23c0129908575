"""Gateways in memory: a tool behind the approver of each, and a table that they share like the nodes of a cluster."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

import anyio
from anyio import to_thread

from indusagi.capabilities.local import make_local_context
from indusagi.core.tasks import Listeners
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import ToolDescriptor, ToolResult, project_content
from induscode.deck.mcp.capability import BridgeCapability
from induscode.gateway.approvals.approver import GatewayApprover
from induscode.gateway.approvals.queue import ApprovalOptions, ApprovalQueue
from induscode.gateway.approvals.store import Approval, ApprovalStore
from induscode.gateway.sharing import ApprovalSharing
from induscode.permissions.check import CheckedCard, Permissions
from induscode.permissions.rules import Effect, Rule, RuleOrigin

if TYPE_CHECKING:
    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject, JsonValue

TOOL = "effects__write"
_LIMIT_S = 120.0


class Site(Protocol):
    """A gateway under attack."""

    store: ApprovalStore
    """What its user's commands read and answer."""

    async def call(self, text: str) -> str:
        """Call the tool, and return what the client reads."""
        ...

    async def list_effects(self) -> Sequence[str]:
        """List the texts that the tool of all sites has written."""
        ...


async def find_request(site: Site, text: str, earlier: Sequence[Approval] = ()) -> Approval:
    """Wait until a site's user can see the request about a text."""
    known = {approval.id for approval in earlier}
    with anyio.fail_after(_LIMIT_S):
        while True:
            for approval in await to_thread.run_sync(site.store.list_all):
                if approval.id not in known and any(f'"{text}"' in line for line in approval.lines):
                    return approval
            await anyio.sleep(0.01)


class MemoryTable:
    """What nodes share."""

    def __init__(self) -> None:
        self.entries: dict[str, JsonObject] = {}
        self.on_change: Listeners[[]] = Listeners()

    def list(self, kind: str) -> Mapping[str, JsonObject]:
        """List the entries of a kind."""
        return {key: value for key, value in self.entries.items() if key.startswith(f"{kind}.")}

    def build_key(self, kind: str, *names: str) -> str:
        """Build a key."""
        return f"{kind}.{'/'.join(names)}"

    async def put(self, key: str, value: JsonObject | None) -> None:
        """Write an entry, and tell every node."""
        await anyio.lowlevel.checkpoint()
        if value is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = value
        self.on_change()


class MemorySite:
    """A gateway in memory."""

    def __init__(self, folder: Path, node: str, wait_s: float, effects: list[str]) -> None:
        self.store = ApprovalStore(str(folder / f"{node}.db"))
        self.queue = ApprovalQueue(ApprovalOptions(mode="ask", wait_s=wait_s, node=node), self.store)
        self.definition = 0
        self._effects = effects
        self._context = make_local_context(folder)

        async def run(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
            effects.append(cast("dict[str, str]", arguments)["text"])
            return ToolResult.text("written")

        async def look(_: object) -> object:
            return self.definition

        rule = Rule(effect=Effect.ASK, tool=TOOL, origin=RuleOrigin.USER)
        permissions = Permissions([rule], approver=GatewayApprover(self.queue, look))
        schema: JsonObject = {"type": "object", "properties": {"text": {"type": "string"}}}
        ref, raw = RemoteToolRef("effects", "write"), {"name": "write"}
        tool = BridgeCapability.from_definition(ToolDescriptor(TOOL, "", schema), ref, cast("Any", raw), run)
        self._card = CheckedCard(tool, permissions)

    async def call(self, text: str) -> str:
        """Call the tool."""
        result = await self._card.run({"text": text}, self._context)
        return str(project_content(result.content))

    async def list_effects(self) -> Sequence[str]:
        """List the texts that were written."""
        return self._effects


@asynccontextmanager
async def open_sites(folder: Path, count: int, wait_s: float) -> AsyncGenerator[Sequence[MemorySite]]:
    """Open gateways; several share a table."""
    effects: list[str] = []
    table = MemoryTable()
    sites = [MemorySite(folder, name, wait_s, effects) for name in itertools.islice("abc", count)]
    async with anyio.create_task_group() as tasks:
        for site in sites:
            tasks.start_soon(site.queue.run)
            if count > 1:
                node = SimpleNamespace(info=SimpleNamespace(node=site.queue.options.node))
                state = SimpleNamespace(node=node, table=table, on_approvals=table.on_change)
                tasks.start_soon(ApprovalSharing(site.queue, cast("Any", state)).run)
        yield sites
        tasks.cancel_scope.cancel()
    for site in sites:
        site.store.close()
