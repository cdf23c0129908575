"""A host that asks its client back: where the question travels, and what becomes of it."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from tests.support.asking import FORM, AskingClient, asking_http
from tests.support.scripts import ROOT
from tests.support.transports import settled
from tests.support.waiting import LIMIT_S, until

from indusagi.interop import HostLimits, HttpSettings, linked_pair
from indusagi.interop.protocol_bridge.host import RunningProviderHost
from indusagi.interop.protocol_bridge.rpc.connection import (
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.core.json import JsonObject

CHILD = ROOT / "tests" / "support" / "asking.py"
BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 7,
    "method": "tools/call",
    "params": {"name": "ask", "arguments": {"method": "elicitation/create"}},
}


# -- clients of the SDK ---------------------------------------------------------------------


async def _elicited(_: object, params: types.ElicitRequestParams) -> types.ElicitResult:
    assert params.message == FORM["message"]
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def _sampled(_: object, __: object) -> types.CreateMessageResult:
    said = types.TextContent(type="text", text="something")
    return types.CreateMessageResult(role="assistant", content=said, model="m")


async def _rooted(_: object) -> types.ListRootsResult:
    root = types.Root.model_validate({"uri": "file:///here", "name": "here"})
    return types.ListRootsResult(roots=[root])


@asynccontextmanager
async def sdk_client(way: str) -> AsyncGenerator[Client]:
    async with AsyncExitStack() as stack:
        if way == "memory":
            streams = await stack.enter_async_context(create_client_server_memory_streams())
            running = RunningProviderHost(AskingClient(), HostLimits())
            await running.start(streams[1])
            stack.push_async_callback(running.cancel)
            transport: Any = _given(streams[0])
        elif way == "stdio":
            parameters = StdioServerParameters(command=sys.executable, args=[str(CHILD)], env={"PYTHONPATH": str(ROOT)})
            quiet = stack.enter_context(open("/dev/null", "w", encoding="utf-8"))  # noqa: ASYNC230, SIM115
            transport = stdio_client(parameters, errlog=quiet)
        else:
            settings = HttpSettings(without_token=True)
            serving = await stack.enter_async_context(asking_http(settings, []))
            transport = streamable_http_client(serving.url)
        yield await stack.enter_async_context(
            Client(
                transport,
                mode="legacy",
                elicitation_callback=cast("Any", _elicited),
                sampling_callback=cast("Any", _sampled),
                list_roots_callback=cast("Any", _rooted),
            )
        )


@asynccontextmanager
async def _given(streams: Any) -> AsyncGenerator[Any]:
    yield streams


@pytest.mark.process
@pytest.mark.parametrize("way", ["memory", "stdio", "http"])
async def test_an_sdk_client_answers_requests_of_the_host(way: str) -> None:
    with anyio.fail_after(LIMIT_S):
        async with sdk_client(way) as client:
            for method, key, answer in [
                ("elicitation/create", "content", {"name": "Ada"}),
                ("sampling/createMessage", "model", "m"),
                ("roots/list", "roots", [{"uri": "file:///here", "name": "here"}]),
            ]:
                given = await client.call_tool("ask", {"method": method})
                assert given.structured_content[key] == answer
            assert (await client.call_tool("ask", {"method": "ping"})).structured_content == {}


@pytest.mark.parametrize("way", ["memory", "http"])
async def test_questions_of_several_calls_at_once_find_their_own_answers(way: str) -> None:
    async with sdk_client(way) as client:
        answers: list[Any] = []

        async def call() -> None:
            answers.append((await client.call_tool("ask", {"method": "roots/list"})).is_error)

        async with anyio.create_task_group() as tasks:
            for _ in range(20):
                tasks.start_soon(call)
        assert answers == [False] * 20


async def test_an_error_of_the_client_is_raised_where_the_host_asked() -> None:
    async with create_client_server_memory_streams() as (ours, theirs):
        asking = AskingClient()
        running = RunningProviderHost(asking, HostLimits())
        await running.start(theirs)
        async with Client(_given(ours), mode="legacy") as client:
            with pytest.raises(MCPError):
                await client.call_tool("ask", {"method": "roots/list"})
        await running.cancel()
        [failure] = asking.failures
        assert isinstance(failure, RpcError)


# -- frame by frame -------------------------------------------------------------------------


class Raw:
    """A client in memory that says what the test says."""

    def __init__(self, limits: HostLimits | None = None) -> None:
        self.link, self.theirs = linked_pair()
        self.received: list[Any] = []
        self.asking = AskingClient(limits)
        self.running = RunningProviderHost(self.asking, HostLimits(linger_s=0.1))
        self.link.attach(self.received.append, lambda end: None)

    def say(self, **frame: Any) -> None:
        self.link.send({"jsonrpc": "2.0", **frame})

    async def question(self, number: int = 1) -> Any:
        await until(lambda: len(self._questions()) >= number)
        return self._questions()[number - 1]

    def _questions(self) -> list[Any]:
        return [frame for frame in self.received if "method" in frame and "id" in frame]

    async def answer(self) -> Any:
        await until(lambda: any(frame.get("id") == 7 for frame in self.received))
        return next(frame for frame in self.received if frame.get("id") == 7)


@asynccontextmanager
async def raw(limits: HostLimits | None = None) -> AsyncGenerator[Raw]:
    client = Raw(limits)
    await client.running.start(client.theirs)
    try:
        yield client
    finally:
        client.link.finish()
        await client.running.waiting()


async def test_a_request_to_a_client_has_a_random_id() -> None:
    async with raw() as client:
        client.link.send(CALL)
        asked = await client.question()
        assert {**asked, "id": None} == {"jsonrpc": "2.0", "id": None, "method": "elicitation/create", "params": FORM}
        assert len(asked["id"]) > 20
        client.say(id=asked["id"], result={"action": "decline"})
        assert (await client.answer())["result"]["structuredContent"] == {"action": "decline"}


@pytest.mark.parametrize(
    "stray",
    [
        {"id": 1, "result": {}},
        {"id": None, "result": {}},
        {"id": ["x"], "error": {"code": 1, "message": "m"}},
        {"id": "nobody", "error": {"code": 1, "message": "m"}},
        {"result": {}},
    ],
)
async def test_a_response_with_an_unknown_id_is_ignored(stray: JsonObject) -> None:
    async with raw() as client:
        client.link.send(CALL)
        asked = await client.question()
        client.say(**stray)
        client.say(id=asked["id"], result={"action": "cancel"})
        client.say(id=asked["id"], result={"action": "accept"})
        assert (await client.answer())["result"]["structuredContent"] == {"action": "cancel"}


@pytest.mark.parametrize(
    ("answer", "kind", "code"),
    [
        ({"error": {"code": -1, "message": "no", "data": [1]}}, RpcError, -1),
        ({"error": {"code": "x"}}, RpcError, -32603),
        ({"error": "no"}, InvalidResponseError, -32603),
        ({"result": []}, InvalidResponseError, -32603),
    ],
)
async def test_a_response_without_result_and_error_is_reported(answer: JsonObject, kind: type, code: int) -> None:
    async with raw() as client:
        client.link.send(CALL)
        client.say(id=(await client.question())["id"], **answer)
        error = (await client.answer())["error"]
        assert error["code"] == code
        assert isinstance(client.asking.failures[0], kind)
        assert error.get("data") == ([1] if code == -1 else None)


async def test_a_request_to_a_client_is_cancelled_after_its_deadline() -> None:
    async with raw() as client:
        client.asking.within_s = 0.02
        client.link.send(CALL)
        asked = await client.question()
        await client.answer()
        assert isinstance(client.asking.failures[0], RequestTimeoutError)
        [notice] = [f for f in client.received if f.get("method") == "notifications/cancelled"]
        assert notice["params"]["requestId"] == asked["id"]
        client.say(id=asked["id"], result={})


async def test_a_call_that_is_cancelled_takes_its_question_back() -> None:
    async with raw() as client:
        client.link.send(CALL)
        asked = await client.question()
        client.say(method="notifications/cancelled", params={"requestId": 7})
        await until(lambda: bool(client.asking.failures))
        assert isinstance(client.asking.failures[0], ConnectionClosedError)
        await settled()
        assert client.received[-1]["params"]["requestId"] == asked["id"]
        assert not any(frame.get("id") == 7 for frame in client.received)


async def test_requests_to_a_disconnected_client_fail() -> None:
    async with raw() as client:
        client.link.send(CALL)
        await client.question()
    await until(lambda: bool(client.asking.failures))
    assert isinstance(client.asking.failures[0], ConnectionClosedError)


async def test_request_that_belongs_to_no_call_fails_with_its_client() -> None:
    async with raw() as client:

        async def ask() -> None:
            with pytest.raises(ConnectionClosedError):
                await client.asking.dispatcher.send_request("ping", None, client.theirs, within_s=LIMIT_S)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await client.question()
            with anyio.fail_after(LIMIT_S / 2):
                client.link.finish()
                await client.running.waiting()


async def test_requests_to_a_client_are_limited() -> None:
    async with raw(HostLimits(asks=2)) as client:
        for number in (1, 2, 7):
            client.link.send({**CALL, "id": number})
        refused = await client.answer()
        assert refused["error"]["message"] == "the client has too many questions to answer"


async def test_a_disconnected_client_gets_no_request() -> None:
    async with raw() as client:
        client.link.finish()
        with pytest.raises(ConnectionClosedError):
            await client.asking.dispatcher.send_request("ping", None, client.theirs, within_s=5)


# -- over HTTP ------------------------------------------------------------------------------


class Session:
    """A session over HTTP, of a client that reads events by itself."""

    def __init__(self, client: httpx2.AsyncClient, identity: str) -> None:
        self.client = client
        self.headers = {**BOTH, "mcp-session-id": identity}

    async def post(self, frame: Any, **headers: str) -> httpx2.Response:
        sent = {**self.headers, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return await self.client.post("/mcp", content=json.dumps(frame), headers=sent)


@asynccontextmanager
async def sessions(count: int, clients: list[AskingClient]) -> AsyncGenerator[list[Session]]:
    async with AsyncExitStack() as stack:
        settings = HttpSettings(without_token=True)
        serving = await stack.enter_async_context(asking_http(settings, clients))
        base = f"http://127.0.0.1:{serving.port}"
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=base, timeout=60))
        opened: list[Session] = []
        for _ in range(count):
            frame: Any = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
            answer = await http.post("/mcp", content=json.dumps(frame), headers=BOTH)
            opened.append(Session(http, answer.headers["mcp-session-id"]))
        yield opened


async def events(response: httpx2.Response) -> AsyncGenerator[Any]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


async def test_over_http_the_question_travels_on_the_stream_of_its_call() -> None:
    async with sessions(1, []) as [session]:
        posting = session.client.stream("POST", "/mcp", content=json.dumps(CALL), headers=session.headers)
        async with posting as response:
            response = events(response)
            asked = await anext(response)
            taken = await session.post({"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "accept"}})
            assert (taken.status_code, taken.content) == (202, b"")
            answer = await anext(response)
            assert answer["result"]["structuredContent"] == {"action": "accept"}


async def test_over_http_a_session_cannot_answer_for_another() -> None:
    clients: list[AskingClient] = []
    async with sessions(2, clients) as [session, other]:
        posting = session.client.stream("POST", "/mcp", content=json.dumps(CALL), headers=session.headers)
        async with posting as response:
            response = events(response)
            asked = await anext(response)
            frame: Any = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "x"}}
            assert (await other.post(frame)).status_code == 202
            mine: Any = {"jsonrpc": "2.0", "id": asked["id"], "result": {"action": "mine"}}
            await session.post(mine)
            assert (await anext(response))["result"]["structuredContent"] == {"action": "mine"}


async def test_over_http_messages_outside_of_calls_use_the_get_stream() -> None:
    async with sessions(1, []) as [session]:
        arguments = {"method": "roots/list", "unasked": True}
        call = {**CALL, "params": {"name": "ask", "arguments": arguments}}
        async with session.client.stream("GET", "/mcp", headers=session.headers) as standing:
            response = events(standing)
            answers: list[Any] = []
            async with anyio.create_task_group() as tasks:

                async def ask() -> None:
                    answers.append((await session.post(call)).json())

                tasks.start_soon(ask)
                asked = await anext(response)
                assert asked["method"] == "roots/list"
                assert "params" not in asked
                await session.post({"jsonrpc": "2.0", "id": asked["id"], "result": {"roots": []}})
            assert answers[0]["result"]["structuredContent"] == {"roots": []}


async def test_over_http_a_client_that_accepts_json_only_gets_no_request() -> None:
    clients: list[AskingClient] = []
    async with sessions(1, clients) as [session]:
        answer = await session.post(CALL, accept="application/json")
        assert answer.json()["error"]["code"] == -32603
        assert isinstance(clients[0].failures[0], ConnectionClosedError)


async def test_over_http_a_client_that_cancels_its_call_gets_no_more_requests() -> None:
    clients: list[AskingClient] = []
    async with sessions(1, clients) as [session]:
        posting = session.client.stream("POST", "/mcp", content=json.dumps(CALL), headers=session.headers)
        async with posting as response:
            await anext(events(response))
        await until(lambda: bool(clients[0].failures))
        assert isinstance(clients[0].failures[0], ConnectionClosedError)
