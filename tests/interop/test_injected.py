"""A host and an endpoint in one process, joined by a pair of links; and the facade over both."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from mcp.shared.memory import create_client_server_memory_streams
from tests.support.servers import honest

from indusagi.capabilities import ToolSpec, define_tool, make_local_context
from indusagi.interop import (
    HttpSettings,
    InjectedTransport,
    ProtocolFault,
    RunningProviderHost,
    StdioServerConfig,
    StreamableHttpServerConfig,
    create_server_endpoint,
    linked_pair,
)
from indusagi.interop.protocol_bridge import client as client_package
from indusagi.mcp import MCPClient, MCPServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from indusagi.capabilities import DefinedTool, ToolContext
    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio

CONFIG = StdioServerConfig("mem", "never-started")


def greet_tool() -> DefinedTool:
    async def greet(arguments: JsonObject, ctx: ToolContext) -> str:
        return f"hello {arguments['name']}"

    parameters: JsonObject = {"type": "object", "properties": {"name": {"type": "string"}}}
    return define_tool(ToolSpec("greet", "Greets.", parameters, greet))


@asynccontextmanager
async def transports(way: str) -> AsyncGenerator[tuple[RunningProviderHost, InjectedTransport]]:
    """Serve one tool, and give the way to it that an endpoint can be given."""
    host = MCPServer([greet_tool()]).host
    if way.startswith("streams"):
        async with create_client_server_memory_streams() as (ours, theirs):
            running = await host.connect(theirs)
            yield running, ours if way == "streams" else lambda: _held(ours)
            await running.cancel()
    else:
        ours, theirs = linked_pair()
        running = await host.connect(theirs)
        yield running, ours if way == "link" else lambda: _held(ours)
        await running.cancel()


@asynccontextmanager
async def _held(value: object) -> AsyncGenerator[object]:
    yield value


@pytest.mark.parametrize("way", ["link", "link by a factory", "streams", "streams by a factory"])
async def test_finding_1a12_an_endpoint_reaches_a_host_in_the_same_process(way: str) -> None:
    async with transports(way) as (running, transport):
        endpoint = create_server_endpoint(CONFIG, transport)
        await endpoint.open()
        try:
            (tool,) = await endpoint.list_tools()
            assert (tool.descriptor.name, tool.ref.name) == ("mem__greet", "greet")
            answer = await endpoint.invoke("greet", {"name": "Ada"})
            assert answer.content == ({"type": "text", "text": "hello Ada"},)
        finally:
            await endpoint.close()
        if way.startswith("link"):
            # The end of the one is the end of the other.
            await running.waiting()


async def test_end_of_the_host_faults_the_endpoint() -> None:
    ours, theirs = linked_pair()
    running = await MCPServer([greet_tool()]).connect(theirs)
    endpoint = create_server_endpoint(CONFIG, ours)
    await endpoint.open()
    await running.cancel()
    with pytest.raises(ProtocolFault, match="was stopped"):
        await endpoint.invoke("greet", {})
    await endpoint.close()


async def test_value_that_is_not_a_transport_is_refused() -> None:
    endpoint = create_server_endpoint(CONFIG, lambda: _held("text"))
    with pytest.raises(ProtocolFault, match=r"yields str; it must yield .*transport"):
        await endpoint.open()


@pytest.fixture(params=["missing", "older"])
def without_sdk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the SDK, or leave one whose names are different."""
    monkeypatch.delattr(client_package, "sdk", raising=False)
    monkeypatch.delitem(sys.modules, f"{client_package.__name__}.sdk", raising=False)
    other: Any = None if request.param == "missing" else ModuleType("mcp.client")
    monkeypatch.setitem(sys.modules, "mcp.client", other)


@pytest.mark.usefixtures("without_sdk")
async def test_streams_without_the_sdk_name_the_extra_and_pairs_need_none() -> None:
    async with create_client_server_memory_streams() as (ours, theirs):
        endpoint = create_server_endpoint(CONFIG, ours)
        with pytest.raises(ProtocolFault, match=r"version 2: pip install 'indus-deck\[mcp\]'"):
            await endpoint.open()
        with pytest.raises(ProtocolFault, match=r"pip install 'indus-deck\[mcp\]'"):
            await MCPServer([greet_tool()]).connect(theirs)
    async with transports("link by a factory") as (_, transport), MCPClient(CONFIG, transport) as client:
        assert len(await client.list_tools()) == 1


async def test_finding_1a6_the_facade_serves_and_calls_over_a_pair() -> None:
    ours, theirs = linked_pair()
    server = MCPServer([greet_tool()], name="greeter", version="2.0")
    running = await server.connect(theirs)
    async with MCPClient(CONFIG, ours) as client:
        assert client.connected
        assert client.endpoint.facts is not None
        assert "greeter" in str(client.endpoint.facts.result)
        assert [tool.ref.name for tool in await client.list_tools()] == ["greet"]
        answer = await client.call_tool("greet", {"name": "Bob"})
        assert answer.content == ({"type": "text", "text": "hello Bob"},)
        assert not answer.is_error
        assert client.status().phase == "ready"
        assert server.notify_changed() is False
    assert not client.connected
    await running.cancel()


async def test_tools_of_a_server_run_in_the_context_that_it_was_given(tmp_path: Path) -> None:
    async def locate(arguments: JsonObject, ctx: ToolContext) -> str:
        return ctx.cwd

    tool = define_tool(ToolSpec("locate", "Says where it runs.", {"type": "object"}, locate))
    ours, theirs = linked_pair()
    running = await MCPServer([tool], context=make_local_context(str(tmp_path))).connect(theirs)
    async with MCPClient(CONFIG, ours) as client:
        assert (await client.call_tool("locate")).content == ({"type": "text", "text": str(tmp_path)},)
    await running.cancel()


@pytest.mark.process
async def test_finding_1a6_a_client_of_a_process_can_connect_again() -> None:
    client = MCPClient(honest(id="h"))
    for text in ("one", "two"):
        async with client:
            answer = await client.call_tool("echo", {"text": text})
            assert text in str(answer.content)
            (resource, *_) = await client.list_items("resource")
            assert (await client.read_resource(resource.ref.name))["contents"]
            assert (await client.get_prompt("greet", {"who": text}))["messages"]
    with pytest.raises(ProtocolFault, match="closed"):
        await client.list_tools()


@pytest.mark.parametrize("by_function", [True, False])
async def test_finding_1a6_a_server_takes_a_box_or_a_function_that_gives_one(by_function: bool) -> None:
    box = MCPServer([greet_tool()]).host.catalog.box()
    ours, theirs = linked_pair()
    running = await MCPServer((lambda: box) if by_function else box).connect(theirs)
    async with MCPClient(CONFIG, ours) as client:
        assert len(await client.list_tools()) == 1
    await running.cancel()


async def test_finding_1a6_a_server_can_be_reached_over_http() -> None:
    server = MCPServer([greet_tool()])
    async with server.serve_http(HttpSettings(tokens=["t" * 64])) as serving:
        headers = {"authorization": f"Bearer {'t' * 64}"}
        async with MCPClient(StreamableHttpServerConfig("h", serving.url, headers)) as client:
            assert [tool.ref.name for tool in await client.list_tools()] == ["greet"]
