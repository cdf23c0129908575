"""Our host met by our own bridge, and beside a server of the SDK that has the same tools."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import mcp_types as types
import pytest
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from tests.support.host_clients import CHILD, TOKEN, client_of, host_of, memory
from tests.support.host_tools import Bench
from tests.support.scripts import ROOT

from indusagi.interop import (
    BridgeConfig,
    HttpSettings,
    ProtocolFault,
    StdioServerConfig,
    StreamableHttpServerConfig,
    create_server_endpoint,
    mount_protocol_bridge,
)
from indusagi.interop.protocol_bridge.contract import to_block
from indusagi.interop.protocol_bridge.host.catalog import build_tool_row
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.interop.protocol_bridge.rpc.mcp_headers import SERVER_INFO
from indusagi.runtime.calls import CallingClient, current_client, current_requests, current_trace
from indusagi.runtime.contract import ToolCall

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from mcp.server.context import ServerRequestContext

    from indusagi.interop import ServerEndpointImpl

CALLS: Mapping[str, dict[str, Any]] = {
    "echo": {"text": "grüß dich\u2028"},
    "media": {},
    "count": {},
    "rows": {},
    "fail": {},
    "boom": {},
    "steps": {},
}
WAYS = ["memory", "stdio", "http"]


@asynccontextmanager
async def bridged(bench: Bench, way: str) -> AsyncGenerator[ServerEndpointImpl]:
    """Connect our own bridge to our own host."""
    host = host_of(bench)
    async with AsyncExitStack() as stack:
        child = StdioServerConfig("own", sys.executable, [str(CHILD)], {"PYTHONPATH": str(ROOT)})
        if way in {"memory", "stdio"}:
            factory = None if way == "stdio" else lambda: memory(host)
            endpoint = create_server_endpoint(child, session_factory=factory)
        else:
            settings = HttpSettings(tokens=[TOKEN])
            serving = await stack.enter_async_context(host.serve_http(settings))
            headers = {"authorization": f"Bearer {TOKEN}"}
            endpoint = create_server_endpoint(StreamableHttpServerConfig("own", serving.url, headers))
        await endpoint.open()
        try:
            yield endpoint
        finally:
            await endpoint.close()


@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
async def test_the_bridge_lists_and_calls_the_tools_of_a_host(way: str) -> None:
    bench = Bench()
    box = bench.box()
    async with bridged(bench, way) as endpoint:
        assert endpoint.facts is not None
        assert endpoint.facts.era == "modern"
        listed = {tool.ref.name: tool.raw for tool in await endpoint.list_tools()}
        for descriptor in box.descriptors():
            row = build_tool_row(descriptor)
            assert json.dumps(listed[descriptor.name]) == json.dumps(row)
        for name, arguments in CALLS.items():
            here = await box.runner.run(ToolCall("1", name, arguments))
            there = await endpoint.invoke(name, arguments)
            assert json.dumps([*there.content]) == json.dumps([to_block(block) for block in here.content])
            assert there.is_error == here.is_error
            assert there.structured == here.structured
            meta = {key: val for key, val in (there.meta or {}).items() if key != SERVER_INFO}
            assert meta == (here.details.get("_meta") or {})
        with pytest.raises(ProtocolFault) as caught:
            await endpoint.invoke("nope", {})
        assert caught.value.kind == "tool_error"


@pytest.mark.process
async def test_a_host_that_is_mounted_gives_the_same_tools_again() -> None:
    box = Bench().box()
    child = StdioServerConfig("own", sys.executable, [str(CHILD)], {"PYTHONPATH": str(ROOT)})
    mounted = await mount_protocol_bridge(BridgeConfig([child]))
    try:
        again = {d.name.removeprefix("own__"): d for d in mounted.box.descriptors()}
        for one in box.descriptors():
            other = again[one.name]
            assert (one.description, one.title) == (other.description, other.title)
            assert one.output_schema == other.output_schema
            # What a server says about itself does not make its tool read-only here.
            assert other.annotations == {**(one.annotations or {}), "readOnlyHint": False}
        outcome = await mounted.box.runner.run(ToolCall("1", "own__media", {}))
        here = await box.runner.run(ToolCall("1", "media", {}))
        assert outcome.content == here.content
    finally:
        await mounted.fleet.tear_down()


# -- beside the SDK -------------------------------------------------------------------------


def sdk_server(bench: Bench) -> Server[Any]:
    """Serve the same tools by a server of the SDK."""
    box = bench.box()

    async def listed(ctx: ServerRequestContext[Any, Any], params: Any) -> types.ListToolsResult:
        # With a tool whose result is no object, the SDK would show older clients no list at all.
        named = [one for one in box.descriptors() if one.name != "rows"]
        return types.ListToolsResult(tools=[types.Tool.model_validate(build_tool_row(one)) for one in named])

    async def called(ctx: ServerRequestContext[Any, Any], params: Any) -> types.CallToolResult:
        if params.name not in box.tools:
            raise MCPError(-32602, "no such tool")
        outcome = await box.runner.run(ToolCall("1", params.name, params.arguments))
        return types.CallToolResult.model_validate(
            {
                "content": [to_block(block) for block in outcome.content],
                "isError": outcome.is_error,
                "structuredContent": outcome.structured,
                "_meta": outcome.details.get("_meta"),
            }
        )

    return Server("indus-provider-host", version="0.1.0", on_list_tools=listed, on_call_tool=called)


async def seen(client: Client) -> Any:
    """Write down all that a client sees."""
    calls = {name: args for name, args in CALLS.items() if name != "rows"}
    found: dict[str, Any] = {name: _plain(await client.call_tool(name, args)) for name, args in calls.items()}
    listed = _plain(await client.list_tools())
    found["tools"] = [row for row in listed["tools"] if row["name"] != "rows"]
    for name, arguments in (("nope", {}), ("echo", {"text": 1})):
        try:
            found[f"bad {name}"] = _plain(await client.call_tool(name, arguments))
        except MCPError as exc:
            found[f"bad {name}"] = exc.code
    return found


def _plain(model: Any) -> Any:
    return model.model_dump(by_alias=True, mode="json", exclude_none=True)


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_client_sees_the_same_as_of_a_server_of_the_sdk(era: str) -> None:
    mode = "auto" if era == "modern" else "legacy"
    async with Client(sdk_server(Bench()), mode=mode) as client:
        theirs = await seen(client)
    async with client_of(host_of(Bench()), f"memory-{era}") as client:
        ours = await seen(client)
    assert ours == theirs


# -- the trace of a call ------------------------------------------------------------------------


class SeenRequests:
    """Observes requests to servers, and gives each a trace of its own."""

    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []

    def start_request(self, method: str, target: str, version: str) -> SeenRequests:
        self.seen.append((method, target, bool(version)))
        current_trace.set({"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"})
        return self

    def finish(self, error: BaseException | None, result: dict[str, Any]) -> None:
        self.seen.append((type(error).__name__, result.get("isError")))


@pytest.mark.parametrize("way", ["memory", "http"])
async def test_a_request_carries_the_trace_of_its_task_and_is_observed(way: str) -> None:
    bench, arrived, seen = Bench(), list[Any](), SeenRequests()

    async def look(*_: object) -> str:
        arrived.append(current_trace.get())
        return "seen"

    bench.add("look", look)
    async with bridged(bench, way) as endpoint:
        await endpoint.invoke("look", {})
        before = current_trace.set({"traceparent": f"00-{'a' * 32}-{'b' * 16}-00", "tracestate": "v=1"})
        await endpoint.invoke("look", {})
        requests = current_requests.set(seen)
        await endpoint.invoke("look", {})
        await endpoint.invoke("fail", {})
        with pytest.raises(ProtocolFault):
            await endpoint.invoke("absent", {})
        current_requests.reset(requests)
        current_trace.reset(before)
    assert arrived == [
        None,
        {"traceparent": f"00-{'a' * 32}-{'b' * 16}-00", "tracestate": "v=1"},
        {"traceparent": f"00-{'c' * 32}-{'d' * 16}-01"},
    ]
    assert seen.seen == [
        ("tools/call", "look", True),
        ("NoneType", False),
        ("tools/call", "fail", True),
        ("NoneType", True),
        ("tools/call", "absent", True),
        ("RpcError", None),
    ]


async def test_the_principal_of_a_client_reaches_the_call() -> None:
    bench, seen = Bench(), list[Any]()

    async def look(*_: object) -> str:
        seen.append(current_client.get())
        return "seen"

    bench.add("look", look)
    session = host_of(bench).new_session(identity=ClientIdentity(principal="ada"))
    assert session.principal == "ada"
    channel = RecordingChannel()
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    session.dispatcher.request(1, "tools/call", {"name": "look", "_meta": meta}, channel)
    await session.dispatcher.wait_idle(10)
    await session.close("the test is over")
    assert seen == [CallingClient("", "", "ada")]


class RecordingChannel:
    """A response channel that keeps what is sent."""

    def __init__(self) -> None:
        self.writable = self.room = asyncio.Event()
        self.writable.set()
        self.accepts_notifications = True
        self.sent: list[Any] = []

    def send(self, frame: Any) -> None:
        self.sent.append(frame)
