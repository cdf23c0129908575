"""A token that's cancelled before a call: the tool doesn't run, whatever the tool and the way to it.

The specification's W-7: pre-flight cancellation. Every card of the catalog, a card of another author and a server's
tool, through every entry point. Afterwards a call with a fresh token runs.
"""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.support.adapters import Shelf

from indusagi.adapters.anthropic import to_anthropic
from indusagi.adapters.blocking import open_blocking
from indusagi.adapters.calls import AdapterCalls, allow_all
from indusagi.adapters.openai import to_openai
from indusagi.capabilities import ToolRegistry, ToolSpec, define_tool
from indusagi.capabilities.tool import DefinedTool
from indusagi.core.cancel import CancelToken
from indusagi.interop import ProtocolFault, StdioServerConfig, create_server_endpoint, linked_pair
from indusagi.interop.protocol_bridge.bridge import mount_protocol_bridge
from indusagi.interop.protocol_bridge.contract import BridgeConfig, RemoteTool, RemoteToolRef
from indusagi.interop.protocol_bridge.fleet import MountedTool
from indusagi.mcp import MCPClient, MCPServer
from indusagi.runtime import ToolCall, ToolDescriptor, ToolOutcome, ToolResult
from induscode.addons import Addon, InterceptedCall, Interceptor
from induscode.addons.chain import InterceptorChain, LoadedAddon
from induscode.deck.catalog import capability_cards
from induscode.deck.contract import DeckContext, build_card, iter_layers
from induscode.deck.mcp.capability import BridgeCapability
from induscode.deck.provision import DeckRunner, DeckToolBox, base_context, build_selected
from induscode.permissions.check import Permissions, require_permission
from induscode.permissions.confirm import PermissionAnswer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from pathlib import Path

    from indusagi.adapters.calls import GateRequest
    from indusagi.capabilities import ToolContext
    from indusagi.core.json import JsonObject, JsonValue
    from induscode.deck.contract import Capability
    from induscode.permissions.confirm import PermissionRequest

pytestmark = pytest.mark.anyio

SAMPLES: dict[str, JsonObject] = {
    "read": {"path": "a"},
    "ls": {},
    "grep": {"pattern": "a"},
    "find": {"pattern": "a"},
    "websearch": {"query": "a"},
    "webfetch": {"url": "https://example.org"},
    "todo_read": {},
    "write": {"path": "a", "content": "a"},
    "edit": {"path": "a", "edits": [{"oldText": "", "newText": "b"}]},
    "bash": {"command": "true"},
    "process": {"action": "list"},
    "todo_set": {"items": []},
    "todo": {"action": "read"},
    "bg-process": {"action": "list"},
    "task": {"objective": "a"},
    "saas-action": {"action": "discover", "query": "a"},
    "memory": {"action": "append", "content": "a"},
    "enter_plan_mode": {},
    "exit_plan_mode": {"plan": "a"},
}
"""Arguments that each card accepts."""


@dataclass
class Ran:
    """What ran, and who was asked."""

    events: list[str] = field(default_factory=list[str])

    async def run(self, arguments: JsonValue, ctx: ToolContext) -> str:
        self.events.append("ran")
        return "done"

    def allow(self, request: GateRequest) -> bool:
        self.events.append("asked")
        return True

    async def ask(self, request: PermissionRequest, /) -> PermissionAnswer:
        self.events.append("asked")
        return PermissionAnswer(request.scopes[0])


class Before(Interceptor):
    async def before(self, call: InterceptedCall, /) -> None:
        return None


class ForeignCard:
    """A card of another author, which knows nothing about tokens."""

    name = label = "foreign"
    description = "A card."
    read_only = False

    def __init__(self, ran: Ran) -> None:
        self.parameters: JsonObject = {"type": "object", "properties": {}}
        self._ran = ran

    async def run(self, arguments: JsonValue, ctx: ToolContext, /) -> ToolResult:
        return ToolResult.text(await self._ran.run(arguments, ctx))


def build(name: str, ran: Ran, cwd: Path) -> tuple[Capability, ToolContext]:
    """Build a card whose own function only notes that it ran."""
    context = DeckContext(str(cwd))
    ctx = base_context(context)
    if name == "foreign":
        return ForeignCard(ran), ctx
    if name == "remote":
        schema: JsonObject = {"type": "object", "properties": {}}

        async def call_server(arguments: JsonValue, ctx: ToolContext) -> ToolResult:
            return ToolResult.text(await ran.run(arguments, ctx))

        return BridgeCapability("s__remote", "", schema, call_server, ref=RemoteToolRef("s", "remote")), ctx
    (card,) = build_selected([row for row in capability_cards() if row.id == name], context)
    for layer in iter_layers(card):
        for tool in (layer, *vars(layer).values()):
            if isinstance(tool, DefinedTool):
                tool.spec = replace(tool.spec, run=ran.run)
    return card, ctx


CARDS = [*(str(row.id) for row in capability_cards()), "foreign", "remote"]


def box_of(card: Capability, ctx: ToolContext) -> DeckToolBox:
    return DeckToolBox(DeckRunner({card.name: card}, ctx))


def call_of(card: Capability) -> ToolCall:
    return ToolCall("c1", card.name, dict(SAMPLES.get(card.name, {})))


async def by_card(card: Capability, ctx: ToolContext, ran: Ran, token: CancelToken) -> ToolResult:
    return await card.run(call_of(card).input, ctx.with_cancel(token))


async def by_runner(card: Capability, ctx: ToolContext, ran: Ran, token: CancelToken) -> ToolResult:
    return (await box_of(card, ctx).runner.run(call_of(card), token)).result


async def by_context(card: Capability, ctx: ToolContext, ran: Ran, token: CancelToken) -> ToolResult:
    return (await box_of(card, ctx.with_cancel(token)).runner.run(call_of(card))).result


async def by_child(card: Capability, ctx: ToolContext, ran: Ran, token: CancelToken) -> ToolResult:
    return (await box_of(card, ctx).runner.run(call_of(card), token.child(), on_progress=lambda _: None)).result


async def by_permissions(card: Capability, ctx: ToolContext, ran: Ran, token: CancelToken) -> ToolResult:
    checked = require_permission(card, Permissions(approver=ran))
    return (await box_of(checked, ctx).runner.run(call_of(card), token)).result


async def by_addons(card: Capability, ctx: ToolContext, ran: Ran, token: CancelToken) -> ToolResult:
    loaded = LoadedAddon("x", "a test", Addon(interceptors=[Before()]), required=False)
    wrapped = InterceptorChain([loaded], ctx.context_id).wrap(card)
    return await wrapped.run(call_of(card).input, ctx.with_cancel(token))


async def by_adapter(card: Capability, ctx: ToolContext, ran: Ran, token: CancelToken) -> ToolResult:
    return (await AdapterCalls(box_of(card, ctx), ran.allow, token).run(call_of(card))).result


async def by_response(card: Capability, ctx: ToolContext, ran: Ran, token: CancelToken) -> ToolResult:
    (content,) = await AdapterCalls(box_of(card, ctx), ran.allow, token).run_all([call_of(card)])
    return ToolResult.error(content.text, code="cancelled") if "was stopped" in content.text else ToolResult.text("")


ENTRIES: list[Callable[[Capability, ToolContext, Ran, CancelToken], Awaitable[ToolResult]]] = [
    by_card,
    by_runner,
    by_context,
    by_child,
    by_permissions,
    by_addons,
    by_adapter,
    by_response,
]


def test_every_card_of_the_catalog_has_arguments() -> None:
    assert list(SAMPLES) == [str(row.id) for row in capability_cards()]
    assert all(build_card(row, DeckContext("/")) for row in capability_cards())


@pytest.mark.parametrize(
    ("name", "entry"),
    # What a card of another author does when it's called directly is up to that author.
    [(name, entry) for name in CARDS for entry in ENTRIES if (name, entry) != ("foreign", by_card)],
    ids=lambda one: one if isinstance(one, str) else one.__name__,
)
async def test_finding_sb_tool_does_not_run_with_a_cancelled_token(name: str, entry: Any, tmp_path: Path) -> None:
    ran, token = Ran(), CancelToken()
    card, ctx = build(name, ran, tmp_path)
    token.cancel("the user left")
    async with ctx:
        result = await entry(card, ctx, ran, token)
        assert result.is_error
        assert result.details["code"] == "cancelled"
        assert "was stopped: the user left" in str(ToolOutcome("", result).output)
        assert ran.events == [], "neither ran nor asked"
        await entry(card, ctx, ran, CancelToken())
        assert ran.events[-1] == "ran"


class DeafRunner:
    """A runner of an embedding program, which ignores tokens."""

    def __init__(self, ran: Ran) -> None:
        self._ran = ran

    async def run(
        self, call: ToolCall, cancel: CancelToken | None = None, *, on_progress: object = None
    ) -> ToolOutcome:
        self._ran.events.append("ran")
        return ToolOutcome.from_output(call.id, "done")


@dataclass
class DeafBox:
    runner: DeafRunner

    def descriptors(self) -> list[Any]:
        return [*Shelf().open_box().descriptors()]


async def test_finding_sb_adapters_stop_runners_that_ignore_tokens() -> None:
    ran, token = Ran(), CancelToken()
    calls = AdapterCalls(cast("Any", DeafBox(DeafRunner(ran))), allow_all, token)
    token.cancel("enough")
    outcome = await calls.run(ToolCall("1", "echo", {"text": "a"}))
    assert (outcome.details["code"], ran.events) == ("cancelled", [])


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_finding_sb_next_response_after_a_cancelled_one_runs_nothing(dialect: str) -> None:
    shelf, token = Shelf(), CancelToken()
    token.cancel("enough")
    if dialect == "openai":
        call = {"type": "function_call", "call_id": "1", "name": "echo", "arguments": json.dumps({"text": "a"})}
        answers: Any = await to_openai(shelf.open_box(), gate=allow_all, cancel=token).run({"output": [call]})
    else:
        use = {"type": "tool_use", "id": "1", "name": "echo", "input": {"text": "a"}}
        answers = await to_anthropic(shelf.open_box(), gate=allow_all, cancel=token).run({"content": [use]})
    assert "echo was stopped: enough" in json.dumps(answers)
    assert shelf.events == []


async def test_finding_sb_gate_that_waits_ends_with_the_token() -> None:
    shelf, token = Shelf(), CancelToken()

    async def wait_for_ever(_: GateRequest) -> bool:
        token.cancel("enough")
        await CancelToken()
        return True

    outcome = await AdapterCalls(shelf.open_box(), wait_for_ever, token).run(ToolCall("1", "echo", {"text": "a"}))
    assert (outcome.details["code"], shelf.events) == ("cancelled", [])


@pytest.mark.parametrize("way", ["run", "invoke", "execute"])
async def test_finding_sb_defined_tool_checks_the_token_itself(way: str, tmp_path: Path) -> None:
    ran, token = Ran(), CancelToken()
    token.cancel("enough")
    tool = define_tool(ToolSpec("t", "", {"type": "object", "properties": {}}, ran.run))
    ctx = base_context(DeckContext(str(tmp_path))).with_cancel(token)
    if way == "invoke":
        result = (await tool.invoke(ToolCall("1", "t", {}), ctx)).result
    else:
        result = await getattr(tool, way)({}, ctx)
    assert (result.details["code"], ran.events) == ("cancelled", [])


async def test_finding_sb_token_that_is_cancelled_while_arguments_are_prepared_stops_the_tool(tmp_path: Path) -> None:
    ran, token = Ran(), CancelToken()

    def cancel(arguments: JsonValue) -> JsonValue:
        token.cancel("enough")
        return arguments

    tool = define_tool(ToolSpec("t", "", {"type": "object", "properties": {}}, ran.run, prepare=cancel))
    result = await tool.run({}, base_context(DeckContext(str(tmp_path))).with_cancel(token))
    assert (result.details["code"], ran.events) == ("cancelled", [])


def test_finding_sb_blocking_box_stops_a_call_before_it_runs(tmp_path: Path) -> None:
    shelf, token = Shelf(), CancelToken()
    token.cancel("enough")

    @asynccontextmanager
    async def opening() -> AsyncGenerator[Any]:
        yield shelf.open_box()

    with open_blocking(opening()) as box:
        assert box.run_sync(ToolCall("1", "echo", {"text": "a"}), token).details["code"] == "cancelled"
        outcome = AdapterCalls(box, allow_all, token).run_sync(ToolCall("1", "echo", {"text": "a"}))
        assert outcome.details["code"] == "cancelled"
        assert shelf.events == []
        assert box.run_sync(ToolCall("1", "echo", {"text": "a"}), CancelToken()).output == "a"


# -- servers ----------------------------------------------------------------------------------


@asynccontextmanager
async def serve(ran: Ran) -> AsyncGenerator[Any]:
    """Serve one tool in this process, and yield the transport to it."""
    tool = define_tool(ToolSpec("echo", "Echoes.", {"type": "object", "properties": {}}, ran.run))
    ours, theirs = linked_pair()
    running = await MCPServer([tool]).host.connect(theirs)
    yield ours
    await running.cancel()


async def test_finding_sb_endpoint_sends_nothing_with_a_cancelled_token() -> None:
    ran, token = Ran(), CancelToken()
    token.cancel("enough")
    async with serve(ran) as transport:
        endpoint = create_server_endpoint(StdioServerConfig("mem", "never-started"), transport)
        await endpoint.open()
        with pytest.raises(ProtocolFault, match="the call of 'echo' was cancelled: enough") as caught:
            await endpoint.invoke("echo", {}, cancel=token)
        assert caught.value.detail.reason == "cancelled"
        assert ran.events == []
        await endpoint.invoke("echo", {}, cancel=CancelToken())
        assert ran.events == ["ran"]
        await endpoint.close()


async def test_finding_sb_client_sends_nothing_with_a_cancelled_token() -> None:
    ran, token = Ran(), CancelToken()
    token.cancel("enough")
    async with serve(ran) as transport, MCPClient(StdioServerConfig("mem", "never-started"), transport) as client:
        with pytest.raises(ProtocolFault, match="was cancelled: enough"):
            await client.call_tool("echo", {}, cancel=token)
        assert ran.events == []
        await client.call_tool("echo", {}, cancel=CancelToken())
        assert ran.events == ["ran"]


async def test_finding_sb_mounted_tool_starts_no_server_with_a_cancelled_token(tmp_path: Path) -> None:
    token = CancelToken()
    token.cancel("enough")
    mounted = await mount_protocol_bridge(BridgeConfig(()))
    remote = RemoteTool(RemoteToolRef("s", "echo"), ToolDescriptor("s__echo", "", {"type": "object", "properties": {}}))
    tool = MountedTool(mounted.fleet, remote)
    ctx = base_context(DeckContext(str(tmp_path)))
    assert (await tool.run({}, ctx.with_cancel(token))).details["code"] == "cancelled"
    assert (await tool.tool.run({}, ctx.with_cancel(token))).details["code"] == "cancelled"
    assert (await tool.run({}, ctx)).details["code"] == "not_connected"
    registry = ToolRegistry()
    registry.register(tool.tool)
    outcome = await registry.to_tool_box(ctx).runner.run(ToolCall("1", "s__echo", {}), token)
    assert outcome.details["code"] == "cancelled"
    await mounted.fleet.tear_down()
