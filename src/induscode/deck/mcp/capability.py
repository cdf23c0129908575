"""A remote tool as a card of the deck."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, cast

from indusagi.capabilities.context import ToolContext
from indusagi.core.json import JsonObject, JsonValue, compact_json
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import JsonSchema, ToolBox, ToolCall, ToolDescriptor, ToolResult
from induscode.deck.mcp.keys import server_of_qualified, unqualified_tool

RunRemote: TypeAlias = Callable[[JsonValue, ToolContext], Awaitable[ToolResult]]


@dataclass(frozen=True, slots=True)
class BridgeCapability:
    """A tool of an MCP server. Two are equal when they are the same tool, whoever runs them."""

    descriptor: ToolDescriptor
    ref: RemoteToolRef
    """Which tool of which server it is: carried from the listing, never read off the name."""
    raw: JsonObject = field(default_factory=dict[str, "JsonValue"], repr=False)
    """The definition as the server gave it."""
    runner: RunRemote | None = field(default=None, compare=False, repr=False)
    """None for one that was read from the store and whose server is not there yet."""

    @property
    def name(self) -> str:
        """The name a model calls it by."""
        return self.descriptor.name

    @property
    def label(self) -> str:
        """The same name: what people see is what the model calls."""
        return self.descriptor.name

    @property
    def description(self) -> str:
        """What a model is told about it."""
        return self.descriptor.description

    @property
    def parameters(self) -> JsonSchema:
        """The schema of its arguments, as a model is shown it."""
        return self.descriptor.parameters

    @property
    def read_only(self) -> bool:
        """Never: what a server says of its tools gives them no rights."""
        return False

    @property
    def foreign(self) -> bool:
        """Always: a stranger wrote what it answers."""
        return True

    @property
    def pin(self) -> str:
        """The digest of everything the server says about the tool."""
        return definition_pin(self.raw)

    def with_runner(self, runner: RunRemote | None) -> BridgeCapability:
        """Give the same tool, run by somebody else."""
        return replace(self, runner=runner)

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        """Call the tool on its server."""
        if self.runner is None:
            message = f"server {self.ref.server!r} is not connected, so {self.name} cannot run"
            return ToolResult.error(message, code="not_connected", server=self.ref.server)
        return await self.runner(arguments, ctx)


def definition_pin(raw: JsonObject) -> str:
    """Digest a whole definition; the order of its keys makes no difference."""
    text = compact_json(raw, sort_keys=True)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def bridge_box_to_capabilities(box: ToolBox) -> Sequence[BridgeCapability]:
    """Make a card of every tool in a box of which nothing else is known.

    Only here is the server read off the name, since a bare box says nothing else of it.
    """
    return tuple(_boxed(box, descriptor) for descriptor in box.descriptors())


def _boxed(box: ToolBox, descriptor: ToolDescriptor) -> BridgeCapability:
    name = descriptor.name

    async def run(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
        call = ToolCall(f"bridge_{name}", name, arguments)
        outcome = await box.runner.run(call, ctx.cancel, on_progress=ctx.on_progress)
        return outcome.result

    ref = RemoteToolRef(server_of_qualified(name), unqualified_tool(name))
    schema = cast("JsonObject", dict(descriptor.parameters))
    raw: JsonObject = {
        "name": ref.name,
        "description": descriptor.description,
        "inputSchema": schema,
    }
    return BridgeCapability(descriptor, ref, raw, run)
