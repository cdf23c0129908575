"""The SDK's own client beside ours on one HTTP server, over a real socket: both see the same."""

from __future__ import annotations

import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.sse import sse_client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from tests.support.opened import opened
from tests.support.scripts import ROOT
from tests.support.sdk_hosts import only_legacy, served, sse_app
from tests.support.servers import fault, honest

from indusagi.interop import StdioServerConfig
from indusagi.interop.protocol_bridge.contract import (
    ProtocolFault,
    ServerLimits,
    SseServerConfig,
    StreamableHttpServerConfig,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

    from mcp.server.context import ServerRequestContext
    from pydantic import BaseModel

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl

    Context: TypeAlias = ServerRequestContext[Any, Any]
    Paged: TypeAlias = types.PaginatedRequestParams | None
    Asked: TypeAlias = Callable[[Client], Awaitable[BaseModel]]

PNG = "iVBORw0KGgo="
PAGE = 3
LIMITS = ServerLimits(close_s=1.0)
WAYS = {
    "modern": "2026-07-28",
    "modern json": "2026-07-28",
    "legacy": "2025-11-25",
    "legacy json": "2025-11-25",
    "sse": "2025-11-25",
}
"""Transports, and the version that both clients must have come to speak there."""

REPLIES = {
    "text": types.CallToolResult(content=[types.TextContent(text="héllo \U0001f642 \u2028")]),
    "empty": types.CallToolResult(content=[]),
    "image": types.CallToolResult(
        content=[
            types.TextContent(text="look"),
            types.ImageContent(data=PNG, mime_type="image/png"),
            types.AudioContent(data=PNG, mime_type="audio/wav"),
        ]
    ),
    "structured": types.CallToolResult(
        content=[types.TextContent(text='{"sum": 5}')], structured_content={"sum": 5, "of": [2, 3]}
    ),
    "link": types.CallToolResult(
        content=[
            types.ResourceLink(name="notes", uri="test://notes", mime_type="text/plain", size=5),
            types.EmbeddedResource(resource=types.TextResourceContents(uri="test://notes", text="inner")),
            types.EmbeddedResource(
                resource=types.BlobResourceContents(uri="test://blob", blob=PNG),
                annotations=types.Annotations(audience=["user"], priority=0.5),
            ),
        ]
    ),
    "fail": types.CallToolResult(content=[types.TextContent(text="it did not work")], is_error=True),
    "meta": types.CallToolResult(
        content=[types.TextContent(text="marked", _meta={"vendor/key": [1, {"deep": "value"}]})],
        _meta={"vendor/result": 1},
    ),
    "large": types.CallToolResult(content=[types.TextContent(text="é" * 250_000)]),
}
TOOLS = [
    types.Tool(
        name=name,
        title=name.title(),
        description=f"Answer with {name}.",
        input_schema={
            "type": "object",
            "properties": {"n": {"type": ["integer", "null"], "minimum": 0}},
            "additionalProperties": False,
        },
        output_schema={"type": "object"} if name == "structured" else None,
        annotations=types.ToolAnnotations(read_only_hint=True),
        _meta={"vendor/tool": True},
    )
    for name in REPLIES
]
RESOURCES = [types.Resource(name=f"r{n}", uri=f"test://r{n}", mime_type="text/plain", size=n) for n in range(5)]
TEMPLATES = [types.ResourceTemplate(name="any", uri_template="test://{name}")]
PROMPTS = [
    types.Prompt(name="greet", arguments=[types.PromptArgument(name="who", required=True)]),
    types.Prompt(name="plain", description="Without arguments."),
]


# -- the server -----------------------------------------------------------------------------------


def _page(rows: Sequence[Any], params: Paged) -> tuple[list[Any], str | None]:
    start = int((params.cursor if params is not None else None) or 0)
    following = start + PAGE
    return list(rows[start:following]), str(following) if following < len(rows) else None


async def _tools(ctx: Context, params: Paged) -> types.ListToolsResult:
    rows, cursor = _page(TOOLS, params)
    return types.ListToolsResult(tools=rows, next_cursor=cursor)


async def _call(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    if params.name == "echo":
        return types.CallToolResult(content=[types.TextContent(text=repr(params.arguments))])
    if params.name == "broken":
        raise RuntimeError("a defect of the server")
    if params.name not in REPLIES:
        raise MCPError(types.INVALID_PARAMS, f"unknown tool: {params.name}", {"tool": params.name})
    return REPLIES[params.name]


async def _resources(ctx: Context, params: Paged) -> types.ListResourcesResult:
    rows, cursor = _page(RESOURCES, params)
    return types.ListResourcesResult(resources=rows, next_cursor=cursor)


async def _templates(ctx: Context, params: Paged) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(resource_templates=TEMPLATES)


async def _read(ctx: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    if str(params.uri) == "test://none":
        raise MCPError(types.INVALID_PARAMS, "no such resource", {"uri": str(params.uri)})
    text = types.TextResourceContents(uri=params.uri, text="line\n", mime_type="text/plain")
    return types.ReadResourceResult(contents=[text, types.BlobResourceContents(uri=params.uri, blob=PNG)])


async def _prompts(ctx: Context, params: Paged) -> types.ListPromptsResult:
    return types.ListPromptsResult(prompts=PROMPTS)


async def _prompt(ctx: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    if params.name != "greet":
        raise MCPError(types.INVALID_PARAMS, f"unknown prompt: {params.name}")
    said = f"Hello {(params.arguments or {}).get('who')}"
    message = types.PromptMessage(role="user", content=types.TextContent(text=said))
    return types.GetPromptResult(description="A greeting.", messages=[message])


async def _complete(ctx: Context, params: types.CompleteRequestParams) -> types.CompleteResult:
    values = [params.argument.value + more for more in ("a", "b")]
    return types.CompleteResult(completion=types.Completion(values=values, total=2, has_more=False))


def _server() -> Server[Any]:
    return Server(
        "rich",
        version="1.0",
        instructions="Ask for anything.",
        on_list_tools=_tools,
        on_call_tool=_call,
        on_list_resources=_resources,
        on_list_resource_templates=_templates,
        on_read_resource=_read,
        on_list_prompts=_prompts,
        on_get_prompt=_prompt,
        on_completion=_complete,
    )


# -- two clients ----------------------------------------------------------------------------------


@asynccontextmanager
async def beside(way: str) -> AsyncGenerator[tuple[ServerEndpointImpl, Client]]:
    """Connect both clients to one server, at the same time."""
    server = _server()
    mode = "auto" if "modern" in way else "legacy"
    if way == "sse":
        async with served(sse_app(server)) as url:
            theirs = Client(sse_client(f"{url}/sse"), mode=mode)
            async with opened(SseServerConfig("it", f"{url}/sse", limits=LIMITS)) as ours, theirs:
                yield ours, theirs
        return
    app = server.streamable_http_app(json_response="json" in way)
    async with served(app if "modern" in way else only_legacy(app)) as url:
        config = StreamableHttpServerConfig("it", f"{url}/mcp", limits=LIMITS)
        async with opened(config) as ours, Client(f"{url}/mcp", mode=mode) as theirs:
            yield ours, theirs


def plain(model: BaseModel) -> Any:
    return model.model_dump(by_alias=True, exclude_none=True, mode="json")


async def every(fetch: Callable[[str | None], Awaitable[Any]], key: str) -> list[Any]:
    """Read all pages of a list with the SDK's client."""
    rows: list[Any] = []
    cursor: str | None = None
    while True:
        page = await fetch(cursor)
        rows.extend(plain(row) for row in getattr(page, key))
        cursor = page.next_cursor
        if not cursor:
            return rows


@pytest.mark.parametrize("way", list(WAYS))
async def test_both_clients_negotiate_the_same_version_and_server_info(way: str) -> None:
    async with beside(way) as (ours, theirs):
        facts = ours.facts
        assert facts is not None
        assert facts.version == theirs.protocol_version == WAYS[way]
        assert facts.capabilities == plain(theirs.server_capabilities)
        assert facts.result["instructions"] == theirs.instructions == "Ask for anything."


@pytest.mark.parametrize("way", list(WAYS))
async def test_both_clients_see_the_same_lists_over_http(way: str) -> None:
    async with beside(way) as (ours, theirs):
        tools = [tool.raw for tool in await ours.list_tools()]
        assert tools == await every(lambda cursor: theirs.list_tools(cursor=cursor), "tools")
        assert [row["name"] for row in tools] == list(REPLIES)
        resources = await ours.list_all("resources/list", "resources")
        assert resources == await every(lambda cursor: theirs.list_resources(cursor=cursor), "resources")
        assert len(resources) == len(RESOURCES)
        templates = await ours.list_all("resources/templates/list", "resourceTemplates")
        assert templates == await every(
            lambda cursor: theirs.list_resource_templates(cursor=cursor), "resource_templates"
        )
        prompts = await ours.list_all("prompts/list", "prompts")
        assert prompts == await every(lambda cursor: theirs.list_prompts(cursor=cursor), "prompts")
        assert len(prompts) == len(PROMPTS)


@pytest.mark.parametrize("way", list(WAYS))
async def test_both_clients_get_the_same_answers_over_http(way: str) -> None:
    async with beside(way) as (ours, theirs):
        # The SDK's client checks structured answers only of tools that it has listed.
        await every(lambda cursor: theirs.list_tools(cursor=cursor), "tools")
        for name in (*REPLIES, "echo"):
            arguments: JsonObject = {"n": 1, "s": "\x7f é", "deep": [{"a": None, "b": 1.5}]}
            mine = await ours.invoke(name, arguments)
            other = plain(await theirs.call_tool(name, dict(arguments)))
            assert [*mine.content] == other["content"], name
            assert mine.is_error == other.get("isError", False)
            assert mine.structured == other.get("structuredContent")
            assert _vendor(mine.meta) == _vendor(other.get("_meta"))


def _vendor(meta: JsonObject | None) -> JsonObject:
    """Leave out what the protocol itself has stamped."""
    return {key: value for key, value in (meta or {}).items() if key.startswith("vendor/")}


ASKED: list[tuple[str, JsonObject, Asked, str]] = [
    ("resources/read", {"uri": "test://r1"}, lambda client: client.read_resource("test://r1"), "contents"),
    (
        "prompts/get",
        {"name": "greet", "arguments": {"who": "Ada"}},
        lambda client: client.get_prompt("greet", {"who": "Ada"}),
        "messages",
    ),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "A"}},
        lambda client: client.complete(types.PromptReference(name="greet"), {"name": "who", "value": "A"}),
        "completion",
    ),
]


@pytest.mark.parametrize("way", list(WAYS))
async def test_both_clients_get_the_same_resources_prompts_and_completions(way: str) -> None:
    async with beside(way) as (ours, theirs):
        for method, params, ask, key in ASKED:
            mine = await ours.request(method, params)
            other = plain(await ask(theirs))
            assert mine[key] == other[key], method
            assert mine.get("description") == other.get("description")


REFUSED: list[tuple[str, JsonObject, Asked]] = [
    ("tools/call", {"name": "nobody"}, lambda client: client.call_tool("nobody", {})),
    ("tools/call", {"name": "broken"}, lambda client: client.call_tool("broken", {})),
    ("resources/read", {"uri": "test://none"}, lambda client: client.read_resource("test://none")),
    ("prompts/get", {"name": "nobody"}, lambda client: client.get_prompt("nobody")),
]


@pytest.mark.parametrize("way", list(WAYS))
async def test_both_clients_get_the_same_errors(way: str) -> None:
    async with beside(way) as (ours, theirs):
        for method, params, ask in REFUSED:
            called = method == "tools/call"
            name = str(params.get("name"))
            asking = ours.invoke(name, {}) if called else ours.request(method, params)
            with pytest.raises(ProtocolFault) as mine:
                await asking
            with pytest.raises(MCPError) as other:
                await ask(theirs)
            assert mine.value.kind == "tool_error"
            assert mine.value.detail.rpc_code == other.value.code, (method, name)
            assert other.value.message in str(mine.value)
            # One refusal, and both go on.
            assert (await ours.invoke("text", {})).content
            assert (await theirs.call_tool("text", {})).content


@pytest.mark.parametrize("way", list(WAYS))
async def test_both_clients_get_the_same_error_for_an_unknown_method(way: str) -> None:
    async with beside(way) as (ours, theirs):
        with pytest.raises(ProtocolFault) as mine:
            await ours.request("vendor/unknown", {})
        asked = types.Request[Any, Any](method="vendor/unknown", params={})
        with pytest.raises(MCPError) as other:
            await theirs.session.send_request(asked, types.EmptyResult)
        assert mine.value.detail.rpc_code == other.value.code == types.METHOD_NOT_FOUND


# -- stdio ------------------------------------------------------------------------------------


SERVERS = {
    "legacy": honest("--era", "legacy"),
    "modern": honest("--era", "modern"),
    "both": honest("--era", "both"),
    "old": honest("--version", "2024-11-05"),
    "paged": honest("--pages", 3, "--tools", 20),
    "drip": fault("drip"),
    "notes": StdioServerConfig("notes", sys.executable, (str(ROOT / "examples/notes_server.py"),)),
}
CALLS: list[tuple[str, JsonObject]] = [
    ("echo", {"text": "héllo \U0001f642"}),
    ("add", {"a": 2, "b": 3}),
    ("fail", {}),
    ("big", {"bytes": 50_000}),
]


def client(config: StdioServerConfig) -> Client:
    return Client(StdioServerParameters(command=config.command, args=[*config.args], env={**config.env}))


async def listed_by_sdk(theirs: Client) -> list[Any]:
    rows: list[Any] = []
    cursor: str | None = None
    while True:
        page = await theirs.list_tools(cursor=cursor)
        rows.extend(plain(tool) for tool in page.tools)
        cursor = page.next_cursor
        if not cursor:
            return rows


@pytest.mark.process
@pytest.mark.parametrize("name", list(SERVERS))
async def test_both_clients_see_the_same_tools(name: str) -> None:
    async with opened(SERVERS[name]) as ours, client(SERVERS[name]) as theirs:
        assert [tool.raw for tool in await ours.list_tools()] == await listed_by_sdk(theirs)


@pytest.mark.process
@pytest.mark.parametrize("name", ["legacy", "modern", "both", "old"])
async def test_both_clients_get_the_same_results(name: str) -> None:
    async with opened(SERVERS[name]) as ours, client(SERVERS[name]) as theirs:
        for tool, arguments in CALLS:
            mine = await ours.invoke(tool, arguments)
            other = plain(await theirs.call_tool(tool, arguments))
            assert [*mine.content] == other["content"]
            assert mine.is_error == other.get("isError", False)
            assert mine.structured == other.get("structuredContent")
