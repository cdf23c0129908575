"""The same behaviour over every transport but stdio: streams, servers and sessions of the SDK, HTTP, SSE."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import mcp_types as types
import pytest
from mcp.client import Client, ClientSession
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.subscriptions import ToolsListChanged
from tests.support.http_behaviours import Legacy, Modern, OldSse, silence, sometimes, status
from tests.support.http_peer import http_server
from tests.support.sdk_hosts import only_legacy, served, sse_app
from tests.support.servers import remote, remote_sse
from tests.support.waiting import until

from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.contract import (
    EndpointPhase,
    ProtocolFault,
    ServerLimits,
    SseServerConfig,
    StdioServerConfig,
    StreamableHttpServerConfig,
)
from indusagi.interop.protocol_bridge.endpoint import create_server_endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp.server.context import ServerRequestContext
    from starlette.types import ASGIApp

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
    from indusagi.runtime.contract import ToolProgress

    Context: TypeAlias = ServerRequestContext[Any, Any]

LIMITS = ServerLimits(probe_s=5.0, close_s=1.0, relist_gap_s=0.05)
PNG = "iVBORw0KGgo="
MEDIA: dict[str, Any] = {
    "content": [
        {"text": "words", "type": "text", "_meta": {"vendor/key": [1, None]}},
        {"mimeType": "image/png", "type": "image", "data": PNG},
        {"type": "audio", "data": PNG, "mimeType": "audio/wav"},
        {"type": "resource", "resource": {"uri": "test://a", "text": "inner"}},
    ],
    "structuredContent": {"b": 2, "a": None},
    "isError": False,
}
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
QUESTION = {"type": "object", "properties": {"name": {"type": "string"}}}


def _tool(name: str, **more: Any) -> dict[str, Any]:
    return {"x-vendor": {"z": 1, "a": None}, "name": name, "inputSchema": EMPTY, **more}


class Honest:
    """A low-level server of the SDK, and what it has seen."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()
        self.released: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        """By the name that a call of `slow` gives itself: set, it is answered."""
        self.tools = [_tool(name) for name in ("echo", "media", "fail", "slow", "ask", "mutate")]
        self.headers: list[dict[str, str]] = []
        self._bus = InMemorySubscriptionBus()
        self.listener = ListenHandler(self._bus)
        self.server: Server[Any] = Server(
            "honest",
            version="1.0",
            on_list_tools=self._never,
            on_call_tool=self._never,
            on_subscriptions_listen=self.listener,
        )
        # What a middleware answers is sent as it is.
        self.server.middleware.append(self._answer)

    async def _never(self, ctx: Context, params: object) -> Any:
        raise AssertionError

    async def _answer(self, ctx: Context, call_next: Any) -> Any:
        if ctx.method == "tools/list":
            listed: dict[str, Any] = {"tools": self.tools}
            return listed | self._modern(ctx)
        if ctx.method != "tools/call":
            return await call_next(ctx)
        if ctx.request is not None:
            self.headers.append(dict(ctx.request.headers))
        params = dict(ctx.params or {})
        result = await getattr(self, "_" + str(params["name"]))(ctx, params)
        return {**result, **({} if "resultType" in result else self._modern(ctx, cached=False))}

    @staticmethod
    def _modern(ctx: Context, *, cached: bool = True) -> dict[str, Any]:
        if ctx.protocol_version != "2026-07-28":
            return {}
        hints = {"ttlMs": 0, "cacheScope": "private"} if cached else {}
        return {"resultType": "complete", **hints}

    async def _echo(self, ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        said = json.dumps(params.get("arguments"))
        return {"content": [{"type": "text", "text": said}]}

    async def _media(self, ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        return dict(MEDIA)

    async def _fail(self, ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "it did not work"}], "isError": True}

    async def _refuse(self, ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        raise MCPError(-32602, "refused on purpose", {"why": None})

    async def _slow(self, ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        self.seen["slow"] += 1
        try:
            for step in range(3):
                await ctx.session.report_progress(step + 1, 3, f"step {step + 1}")
            await self.released[params["arguments"]["which"]].wait()
        except anyio.get_cancelled_exc_class():
            self.seen["cancelled"] += 1
            raise
        return {"content": [{"type": "text", "text": "done"}]}

    async def _mutate(self, ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        self.tools.append(_tool("extra"))
        await self._bus.publish(ToolsListChanged())
        if not self._modern(ctx):
            await ctx.session.send_tool_list_changed()
        return {"content": []}

    async def _ask(self, ctx: Context, params: dict[str, Any]) -> dict[str, Any]:
        if self._modern(ctx):
            given = params.get("inputResponses")
            if given is None:
                asked = {"message": "Who?", "mode": "form", "requestedSchema": QUESTION}
                question = {"method": "elicitation/create", "params": asked}
                return {"resultType": "input_required", "inputRequests": {"q": question}}
            answer = given["q"]
        else:
            answer = (await ctx.session.elicit_form("Who?", QUESTION, ctx.request_id)).model_dump()
        return {"content": [{"type": "text", "text": str(answer["content"]["name"])}]}


# -- ways to reach it -----------------------------------------------------------------------------


@asynccontextmanager
async def _pair(server: Server[Any]) -> AsyncGenerator[Any]:
    async with create_client_server_memory_streams() as (ours, (read, write)), anyio.create_task_group() as tasks:
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        tasks.start_soon(server.run, read, write, options)
        yield (*ours, "something more")
        tasks.cancel_scope.cancel()


@asynccontextmanager
async def _session(server: Server[Any], *, modern: bool) -> AsyncGenerator[ClientSession]:
    async with _pair(server) as (read, write, _), ClientSession(read, write) as session:
        await (session.discover() if modern else session.initialize())
        yield session


@asynccontextmanager
async def _given(thing: object) -> AsyncGenerator[object]:
    yield thing


WAYS = ("pair", "server", "session", "old session", "http", "old http", "http json", "sse")
SIGHTED = [way for way in WAYS if way != "old session"]
"""A session of the older protocol keeps notices and questions to those it was made with."""
STDIO = StdioServerConfig("it", "never-started", limits=LIMITS)


@asynccontextmanager
async def opened(
    way: str, honest: Honest, handlers: Handlers | None = None, limits: ServerLimits = LIMITS
) -> AsyncGenerator[ServerEndpointImpl]:
    """Connect to a server in one of the ways, and disconnect after the block."""
    server = honest.server
    factory: Any = None
    config: ServerConfig = replace(STDIO, limits=limits)
    async with AsyncExitStack() as stack:
        if "http" in way:
            app: ASGIApp = server.streamable_http_app(json_response="json" in way)
            app = only_legacy(app) if "old" in way else app
            url = await stack.enter_async_context(served(app))
            config = StreamableHttpServerConfig("it", f"{url}/mcp", limits=limits)
        elif way == "sse":
            url = await stack.enter_async_context(served(sse_app(server)))
            config = SseServerConfig("it", f"{url}/sse", limits=limits)
        elif way == "pair":
            factory = lambda: _pair(server)  # noqa: E731
        elif way == "server":
            factory = lambda: _given(server)  # noqa: E731
        else:
            factory = lambda: _session(server, modern=way == "session")  # noqa: E731
        endpoint = create_server_endpoint(config, factory, handlers=handlers)
        await endpoint.open()
        try:
            yield endpoint
        finally:
            await endpoint.close()
            assert endpoint.phase is EndpointPhase.CLOSED


@pytest.mark.parametrize("way", WAYS)
async def test_tools_are_listed_and_called_and_close_leaves_nothing(way: str) -> None:
    honest = Honest()
    async with opened(way, honest) as endpoint:
        facts = endpoint.facts
        assert facts is not None
        assert facts.era == ("legacy" if way in {"old session", "old http", "sse"} else "modern")
        tools = await endpoint.list_tools()
        assert [tool.ref.name for tool in tools] == [row["name"] for row in honest.tools]
        assert json.dumps(tools[0].raw) == json.dumps(honest.tools[0])
        given: JsonObject = {"z": [1, None, 1.0], "a": {"é": "\u2028"}}
        result = await endpoint.invoke("echo", given)
        text = result.content[0]
        assert isinstance(text, dict)
        assert text["text"] == json.dumps(given)
    with pytest.raises(ProtocolFault, match="closed"):
        await endpoint.invoke("echo", {})


@pytest.mark.parametrize("way", WAYS)
async def test_content_blocks_arrive_verbatim(way: str) -> None:
    async with opened(way, Honest()) as endpoint:
        result = await endpoint.invoke("media", {})
    assert json.dumps(result.content) == json.dumps(MEDIA["content"])
    assert result.structured == MEDIA["structuredContent"]
    assert not result.is_error


@pytest.mark.parametrize("way", WAYS)
async def test_failed_and_refused_calls_leave_the_server_usable(way: str) -> None:
    async with opened(way, Honest()) as endpoint:
        assert (await endpoint.invoke("fail", {})).is_error
        with pytest.raises(ProtocolFault, match="refused on purpose") as caught:
            await endpoint.invoke("refuse", {})
        assert (caught.value.kind, caught.value.detail.rpc_code) == ("tool_error", -32602)
        assert not (await endpoint.invoke("echo", {})).is_error


@pytest.mark.parametrize("way", [way for way in WAYS if way != "http json"])
async def test_progress_arrives_before_the_result(way: str) -> None:
    heard: list[ToolProgress] = []
    honest = Honest()
    async with opened(way, honest) as endpoint, asyncio.TaskGroup() as tasks:
        tasks.create_task(endpoint.invoke("slow", {"which": "it"}, on_progress=heard.append))
        await until(lambda: len(heard) >= 3)
        honest.released["it"].set()
    assert sorted((note.done, note.total, note.message) for note in heard) == [
        (1, 3, "step 1"),
        (2, 3, "step 2"),
        (3, 3, "step 3"),
    ]


# A host that responds with JSON does not detect that its client has gone.
@pytest.mark.parametrize("way", [way for way in WAYS if way != "http json"])
async def test_cancellation_reaches_the_server_and_no_other_call(way: str) -> None:
    honest = Honest()
    async with opened(way, honest) as endpoint:
        token = CancelToken()
        async with asyncio.TaskGroup() as tasks:
            sibling = tasks.create_task(endpoint.invoke("slow", {"which": "sibling"}))
            call = tasks.create_task(_fails(endpoint, token))
            await until(lambda: honest.seen["slow"] == 2)
            token.cancel("enough")
            fault = await call
            await until(lambda: honest.seen["cancelled"] == 1)
            honest.released["sibling"].set()
        assert fault.detail.reason == "cancelled"
        assert sibling.result().content
        assert honest.seen["cancelled"] == 1
        assert (await endpoint.invoke("echo", {})).content


async def _fails(endpoint: ServerEndpointImpl, token: CancelToken) -> ProtocolFault:
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.invoke("slow", {"which": "cancelled"}, cancel=token)
    return caught.value


@pytest.mark.parametrize("way", SIGHTED)
async def test_tool_changes_are_detected(way: str) -> None:
    async with opened(way, Honest()) as endpoint:
        before = await endpoint.list_tools()

        # The subscription of the newer protocol, and the stream of the older one, open by and by.
        async def changed() -> bool:
            await endpoint.invoke("mutate", {})
            return len(await endpoint.list_tools()) > len(before)

        await until(changed)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_sdk_client_reports_changes_and_keeps_its_own_handler(mode: Any) -> None:
    own: list[Any] = []
    heard: list[str] = []

    async def handler(message: Any) -> None:
        own.append(message)

    honest = Honest()
    honest.released["it"].set()
    client = Client(honest.server, mode=mode, message_handler=handler)
    endpoint = create_server_endpoint(
        STDIO, lambda: client, handlers=Handlers(on_notification=lambda method, _: heard.append(method))
    )
    await endpoint.open()
    before = await endpoint.list_tools()
    progress: list[ToolProgress] = []

    async def changed() -> bool:
        await endpoint.invoke("mutate", {})
        return len(await endpoint.list_tools()) > len(before)

    await until(changed)
    assert "not noticed" not in str(endpoint.status().notes)
    assert "notifications/tools/list_changed" in heard
    assert any(isinstance(message, types.ToolListChangedNotification) for message in own)
    await endpoint.invoke("slow", {"which": "it"}, on_progress=progress.append)
    await until(lambda: len(progress) == 3)
    assert "notifications/progress" not in heard
    await endpoint.close()
    assert client.message_handler is handler


async def test_sdk_session_notes_that_changes_are_not_detected() -> None:
    async with opened("old session", Honest()) as endpoint:
        await endpoint.list_tools()
        assert "changes of its tools are not noticed" in str(endpoint.status().notes)


# A session says by itself what it can be asked.
@pytest.mark.parametrize("way", [way for way in SIGHTED if way != "session"])
async def test_server_requests_are_answered_in_both_eras(way: str) -> None:
    async def elicit(params: JsonObject) -> JsonObject:
        assert params["message"] == "Who?"
        return {"action": "accept", "content": {"name": "Ada"}}

    async with opened(way, Honest(), Handlers(elicit=elicit)) as endpoint:
        result = await endpoint.invoke("ask", {})
    assert result.content == ({"type": "text", "text": "Ada"},)


@pytest.mark.parametrize("way", ["http", "old http", "sse"])
async def test_result_of_three_mib_passes(way: str) -> None:
    async with opened(way, Honest()) as endpoint:
        # The host takes 4 MiB at most.
        result = await endpoint.invoke("echo", {"text": "x" * 3 * 1024 * 1024})
    assert len(str(result.content)) > 3 * 1024 * 1024


@pytest.mark.parametrize("way", ["http", "old http", "sse", "pair"])
async def test_our_client_and_the_sdk_get_the_same_results(way: str) -> None:
    honest = Honest()
    async with opened(way, honest) as endpoint:
        ours = [tool.raw for tool in await endpoint.list_tools()]
        called = [await endpoint.invoke(name, {"a": 1}) for name in ("echo", "media", "fail")]
    mode: Any = "legacy" if way in {"old http", "sse"} else "auto"
    async with Client(honest.server, mode=mode) as client:
        theirs = (await client.list_tools()).tools
        answered = [await client.call_tool(name, {"a": 1}) for name in ("echo", "media", "fail")]
    kept = [{key: row[key] for key in ("name", "inputSchema")} for row in ours]
    assert kept == [{"name": tool.name, "inputSchema": tool.input_schema} for tool in theirs]
    for mine, other in zip(called, answered, strict=True):
        dumped = other.model_dump(by_alias=True, mode="json", exclude_unset=True)
        assert [*mine.content] == dumped["content"]
        assert mine.is_error == bool(dumped.get("isError"))
        assert mine.structured == dumped.get("structuredContent")


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_cancelled_call_ends_its_http_request_with_a_json_response(era: str) -> None:
    honest = Modern() if era == "modern" else Legacy()
    async with http_server(sometimes(silence, on="tools/call", then=honest)) as server:
        endpoint = create_server_endpoint(remote(server, limits=replace(LIMITS, close_s=0.01)))
        await endpoint.open()
        token = CancelToken()
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(_fails(endpoint, token))
            await until(lambda: len(server.heard("tools/call")) == 1)
            token.cancel("enough")
            await call
        await until(lambda: [gone.rpc["method"] for gone in server.hangups] == ["tools/call"])
        # Only the older protocol has a notice for it.
        await until(lambda: len(server.heard("notifications/cancelled")) == (era == "legacy"))
        await endpoint.close()


# -- what a caller may bring along ----------------------------------------------------------------


async def test_sdk_client_can_be_injected() -> None:
    honest = Honest()
    endpoint = create_server_endpoint(STDIO, lambda: Client(honest.server))
    await endpoint.open()
    assert len(await endpoint.list_tools()) == len(honest.tools)
    await endpoint.close()


async def test_uninitialized_sdk_session_is_initialized() -> None:
    @asynccontextmanager
    async def raw() -> AsyncGenerator[ClientSession]:
        async with _pair(Honest().server) as (read, write, _), ClientSession(read, write) as given:
            yield given

    endpoint = create_server_endpoint(STDIO, raw)
    await endpoint.open()
    assert await endpoint.list_tools()
    await endpoint.close()


async def test_unusable_factory_value_is_refused() -> None:
    endpoint = create_server_endpoint(STDIO, lambda: _given({"not": "streams"}))
    with pytest.raises(ProtocolFault, match="yields dict; it must yield") as caught:
        await endpoint.open()
    assert caught.value.kind == "protocol"


async def test_failure_of_an_in_process_server_faults_its_endpoint() -> None:
    @asynccontextmanager
    async def broken(server: Server[Any]) -> AsyncGenerator[None]:
        raise OSError("no database")
        yield

    server: Server[Any] = Server("broken", lifespan=broken)
    endpoint = create_server_endpoint(STDIO, lambda: _given(server))
    with pytest.raises(ProtocolFault, match=r"closed the connection|stopped listening"):
        await endpoint.open()


async def test_sdk_session_without_server_faults_its_endpoint_at_the_next_call() -> None:
    gone = anyio.Event()

    @asynccontextmanager
    async def short() -> AsyncGenerator[ClientSession]:
        async with (
            create_client_server_memory_streams() as (ours, (read, write)),
            anyio.create_task_group() as tasks,
            ClientSession(*ours) as session,
        ):

            async def live() -> None:
                async with anyio.create_task_group() as inner, read, write:
                    server = Honest().server
                    inner.start_soon(server.run, read, write, server.create_initialization_options())
                    await gone.wait()
                    inner.cancel_scope.cancel()

            tasks.start_soon(live)
            await session.initialize()
            yield session
            tasks.cancel_scope.cancel()

    endpoint = create_server_endpoint(STDIO, short)
    await endpoint.open()
    gone.set()
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.invoke("echo", {})
    assert caught.value.kind == "transport"
    await until(lambda: endpoint.phase is EndpointPhase.FAULTED)
    await endpoint.close()


# -- headers of the modern protocol ---------------------------------------------------------------


async def test_marked_arguments_become_headers_and_invalid_marks_drop_the_tool() -> None:
    honest = Honest()
    marked = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    wrong = {"type": "object", "properties": {"n": {"type": "number", "x-mcp-header": "N"}}}
    honest.tools = [_tool("echo") | {"inputSchema": marked}, _tool("bad") | {"inputSchema": wrong}]
    async with opened("http", honest) as endpoint:
        assert [tool.ref.name for tool in await endpoint.list_tools()] == ["echo"]
        assert "'bad' was left out" in str(endpoint.status().notes)
        await endpoint.invoke("echo", {"region": "Åland"})
    sent = honest.headers[-1]
    assert sent["mcp-protocol-version"] == "2026-07-28"
    assert (sent["mcp-method"], sent["mcp-name"]) == ("tools/call", "echo")
    assert sent["mcp-param-region"].startswith("=?base64?")


async def test_sse_only_server_is_detected_and_noted() -> None:
    behaviour = OldSse()

    async def old(exchange: Any) -> None:
        refused = exchange.request.method == "POST" and exchange.request.path == "/mcp"
        await (status(405) if refused else behaviour)(exchange)

    async with http_server(old) as server:
        endpoint = create_server_endpoint(remote(server))
        await endpoint.open()
        assert (await endpoint.invoke("echo", {"text": "hi"})).content
        await endpoint.list_tools()
        assert "only the old HTTP transport" in str(endpoint.status().notes)
        await endpoint.close()


@pytest.mark.parametrize("transport", ["old", "present"])
async def test_unencodable_request_fails_alone(transport: str) -> None:
    async with http_server(OldSse() if transport == "old" else Modern()) as server:
        endpoint = create_server_endpoint((remote_sse if transport == "old" else remote)(server))
        await endpoint.open()
        with pytest.raises(ProtocolFault, match="cannot be sent"):
            await endpoint.invoke("echo", {"n": float("nan")})
        endpoint.notify("notifications/vendor", {"n": float("nan")})
        # Half of a pair has a form in JSON.
        assert (await endpoint.invoke("echo", {"text": "\ud800"})).content
        await endpoint.close()


async def test_notification_reaches_the_server_through_an_sdk_session() -> None:
    honest = Honest()
    heard = anyio.Event()

    async def told(ctx: Context, params: object) -> None:
        heard.set()

    honest.server.add_notification_handler("notifications/roots/list_changed", types.NotificationParams, told)
    async with opened("old session", honest) as endpoint:
        endpoint.notify("notifications/roots/list_changed")
        with anyio.fail_after(60):
            await heard.wait()


async def test_result_that_an_sdk_session_rejects_is_a_protocol_fault() -> None:
    honest = Honest()
    honest.tools = [{"name": 5}]
    async with opened("old session", honest) as endpoint:
        with pytest.raises(ProtocolFault, match="could not read the answer") as caught:
            await endpoint.list_tools()
        assert (caught.value.kind, caught.value.detail.reason) == ("protocol", "malformed")


async def test_more_calls_than_the_queue_holds_are_all_answered() -> None:
    limits = replace(LIMITS, in_flight=300)
    async with opened("server", Honest(), limits=limits) as endpoint:
        async with asyncio.TaskGroup() as tasks:
            calls = [tasks.create_task(endpoint.invoke("echo", {"n": n})) for n in range(300)]
    assert len({str(call.result().content) for call in calls}) == 300


async def test_ended_subscription_leaves_the_session_usable() -> None:
    honest = Honest()
    async with opened("session", honest) as endpoint:
        await until(lambda: bool(honest.listener._streams))
        honest.listener.close()
        await until(lambda: not honest.listener._streams)
        assert (await endpoint.invoke("echo", {})).content
