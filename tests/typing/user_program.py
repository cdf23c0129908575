"""A user's program: type checkers accept it in strict mode, and see these types.

It is checked, never run (`test_typing.py`). Names come from the documented packages only.
"""

from collections.abc import Mapping, Sequence
from typing import Any, assert_type

from indusagi.adapters.anthropic import AnthropicTools, to_anthropic
from indusagi.adapters.blocking import BlockingToolBox
from indusagi.adapters.calls import GateRequest, allow_all
from indusagi.adapters.openai import OpenAITools, to_openai
from indusagi.capabilities import (
    DefinedTool,
    LocalFs,
    OutputBudget,
    ToolContext,
    ToolRegistry,
    ToolSpec,
    define_tool,
    make_local_context,
    native_tools,
)
from indusagi.core import CancelToken, JsonObject, JsonValue, Note, compact_json
from indusagi.interop import (
    BridgeConfig,
    EndpointPhase,
    EndpointStatus,
    FaultDetail,
    FaultKind,
    FleetStatus,
    Handlers,
    MountedProtocolBridge,
    MountedTool,
    ProtocolFault,
    ProviderHost,
    RemoteCallResult,
    RemoteTool,
    ServerConfig,
    ServerEndpointImpl,
    ServerFleetImpl,
    ServerLimits,
    StdioServerConfig,
    StreamableHttpServerConfig,
    create_provider_host,
    create_server_endpoint,
    is_protocol_fault,
    linked_pair,
    mount_protocol_bridge,
)
from indusagi.mcp import MCPClient, MCPServer
from indusagi.runtime import (
    ToolBox,
    ToolCall,
    ToolContentBlock,
    ToolDescriptor,
    ToolOutcome,
    ToolProgress,
    ToolResult,
    ToolRunner,
)
from induscode import open_deck, open_deck_sync
from induscode.deck import Capability, CapabilityId, DeckContext, Profile, capability_id
from induscode.deck.mcp import AttachResult, attach_bridge_capabilities
from induscode.deck.mcp.ledger import BridgeLedger
from induscode.deck.provision import ToolDeck, provision_deck


async def count(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Count the lines of a file."""
    path = arguments["path"]
    assert isinstance(path, str)
    assert_type(await ctx.fs.read_text(path), str)
    assert_type(await ctx.fs.read_bytes(path), bytes)
    ctx.report(ToolProgress(1, 2, "reading"))
    return ToolResult.text("3 lines", lines=3)


async def answer_with_json(arguments: JsonObject, ctx: ToolContext) -> JsonValue:
    """Return a JSON value instead of a result."""
    return {"lines": 3, "path": arguments["path"]}


async def run_tools() -> None:
    """Define tools, box them, call one."""
    schema: JsonObject = {"type": "object", "properties": {"path": {"type": "string"}}}
    tool = define_tool(ToolSpec("count", "Count lines.", schema, count, read_only=True))
    assert_type(tool, DefinedTool)
    registry = ToolRegistry()
    registry.register(tool)
    registry.register(define_tool(ToolSpec("json", "Answer.", schema, answer_with_json)))
    registry.register_all(native_tools())
    async with make_local_context("project") as context:
        assert_type(context, ToolContext)
        box: ToolBox = registry.to_tool_box(context)
        runner: ToolRunner = box.runner
        token = CancelToken()
        outcome = await runner.run(ToolCall("1", "count", {"path": "a.txt"}), token)
        assert_type(outcome, ToolOutcome)
        assert_type(outcome.is_error, bool)
        assert_type(outcome.output, JsonValue)
        blocks: Sequence[ToolContentBlock] = outcome.content
        descriptors: Sequence[ToolDescriptor] = box.descriptors()
        assert_type(descriptors[0].name, str)
        assert_type(
            (len(blocks), compact_json({"a": 1}), LocalFs("."), context.budget), tuple[int, str, LocalFs, OutputBudget]
        )


async def use_servers() -> None:
    """Mount servers, read their status, meet a fault."""
    servers: tuple[ServerConfig, ...] = (
        StdioServerConfig(id="notes", command="notes", args=("--quiet",), limits=ServerLimits()),
        StreamableHttpServerConfig(id="web", url="https://example.org/mcp"),
    )
    bridge = await mount_protocol_bridge(BridgeConfig(servers))
    assert_type(bridge, MountedProtocolBridge)
    assert_type(bridge.fleet, ServerFleetImpl)
    tools: Sequence[MountedTool] = bridge.tools
    notes: Sequence[Note] = bridge.notes
    status: FleetStatus = bridge.fleet.status()
    one: Mapping[str, EndpointStatus] = status
    assert_type(one["notes"].phase, EndpointPhase)
    await bridge.fleet.tear_down()
    assert_type((len(tools), len(notes)), tuple[int, int])


async def use_one_server(config: StdioServerConfig) -> None:
    """Use a client and an endpoint."""
    async with MCPClient(config, handlers=Handlers()) as client:
        assert_type(client, MCPClient)
        tools: Sequence[RemoteTool] = await client.list_tools()
        result = await client.call_tool("add", {"text": "x"})
        assert_type(result, RemoteCallResult)
        assert_type(result.is_error, bool)
        assert_type(tools[0].raw["name"], JsonValue)
    endpoint = create_server_endpoint(config)
    assert_type(endpoint, ServerEndpointImpl)
    try:
        await endpoint.open()
    except ProtocolFault as fault:
        assert_type(fault.kind, FaultKind)
        assert_type(fault.detail, FaultDetail)
    problem: object = endpoint.status().fault
    if is_protocol_fault(problem):
        assert_type(problem, ProtocolFault)


async def serve() -> None:
    """Serve tools in memory and over stdio."""
    server = MCPServer(native_tools(), name="mine", version="1.0")
    assert_type(server.host, ProviderHost)
    near, far = linked_pair()
    await server.connect(far)
    client = MCPClient(StdioServerConfig("mine", "unused"), near)
    await client.connect()
    await server.serve_stdio(CancelToken())
    assert_type(create_provider_host(provision_deck("all", DeckContext(".")).into_tool_box()), ProviderHost)


async def use_a_deck(servers: Sequence[ServerConfig]) -> None:
    """Build a deck and enrol servers."""
    deck = provision_deck(Profile.ALL, DeckContext("."))
    assert_type(deck, ToolDeck)
    attached = await attach_bridge_capabilities(BridgeLedger.empty(), BridgeConfig(tuple(servers)))
    assert_type(attached, AttachResult)
    assert_type(attached.ledger, BridgeLedger)
    deck = deck.graft(attached.ledger.live_capabilities()).retain(lambda card: card.read_only)
    cards: list[Capability] = deck.tools()
    identity: CapabilityId = capability_id("read")
    assert_type((len(cards), len(identity)), tuple[int, int])


def deny_shell(request: GateRequest) -> bool | str:
    """Decide about a call."""
    return request.tool != "bash" or f"no commands: {request.title}"


async def use_adapters(box: ToolBox, response: JsonObject) -> None:
    """Give a toolbox to models of two APIs, with a gate."""
    tools = to_openai(box, gate=deny_shell, api="chat")
    assert_type(tools, OpenAITools)
    assert_type(tools.definitions, list[dict[str, Any]])
    assert_type(await tools.run(response), list[dict[str, Any]])
    assert_type(to_anthropic(box, gate=allow_all, cancel=CancelToken()), AnthropicTools)


async def use_the_deck_of_the_product() -> None:
    """Open native and remote tools for a program, with and without an event loop."""
    async with open_deck("servers.json", gate=deny_shell, profile="read-only", servers={"a": {"args": ["b"]}}) as box:
        to_openai(box)
        assert_type(box.descriptors(), Sequence[ToolDescriptor])
    with open_deck_sync("servers.json", gate=deny_shell, cwd=".") as blocking:
        assert_type(blocking, BlockingToolBox)
        assert_type(blocking.run_sync(ToolCall("1", "read", {})), ToolOutcome)
