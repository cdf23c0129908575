"""A request of a server during a call reaches the client that made the call, or no client."""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from mcp.client import Client
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp_types import CallToolResult, CreateMessageResult, ElicitResult, TextContent
from tests.support.host_clients import client_of, memory
from tests.support.host_tools import Bench
from tests.support.opened import attempt
from tests.support.servers import diary, honest
from tests.support.transports import LoopTime, outcome_of, settled
from tests.support.waiting import until

from indusagi.interop import (
    BridgeConfig,
    HttpSettings,
    ProtocolFault,
    ServerLimits,
    StdioServerConfig,
    create_provider_host,
    create_server_endpoint,
    mount_protocol_bridge,
)
from indusagi.interop.protocol_bridge.client.handlers import (
    HOPS,
    PendingCall,
    PendingCalls,
    current_caller,
    forwarding_handlers,
)
from indusagi.interop.protocol_bridge.host.client_requests import MAX_HOPS, SuspendedCall, SuspendedCalls
from indusagi.interop.protocol_bridge.rpc.connection import RpcError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Coroutine
    from pathlib import Path

    from indusagi.core.json import JsonObject
    from indusagi.interop import MountedProtocolBridge

ASK: Any = {"method": "elicitation/create"}
FRONTS = ["memory-modern", "memory-legacy", "http-modern", "http-legacy"]


@asynccontextmanager
async def mounted(era: str) -> AsyncGenerator[MountedProtocolBridge]:
    config = BridgeConfig((honest("--era", era),))
    bridge = await mount_protocol_bridge(config, handlers=forwarding_handlers())
    try:
        yield bridge
    finally:
        await bridge.fleet.tear_down()


def named(name: str) -> Any:
    async def elicit(context: object, params: Any) -> ElicitResult:
        assert params.message.startswith(("Server 'honest' asks: ", "Server 's' asks: ")), params.message
        return ElicitResult(action="accept", content={"name": name})

    return elicit


async def sample(context: object, params: object) -> CreateMessageResult:
    said = TextContent(type="text", text="something")
    return CreateMessageResult(role="assistant", content=said, model="none")


@pytest.mark.process
@pytest.mark.parametrize("upstream", ["legacy", "modern"])
@pytest.mark.parametrize("front", FRONTS)
async def test_a_question_reaches_the_client_whatever_the_eras(front: str, upstream: str) -> None:
    async with mounted(upstream) as bridge:
        host = create_provider_host(bridge.box)
        async with client_of(host, front, elicitation_callback=named("Ada"), sampling_callback=sample) as client:
            response = await client.call_tool("honest__ask", ASK)
            assert response.structured_content == {"action": "accept", "content": {"name": "Ada"}}
            twice = {"method": "sampling/createMessage", "rounds": 2}
            response = await client.call_tool("honest__ask", twice)
            assert response.structured_content is not None
            assert response.structured_content["content"] == {"type": "text", "text": "something"}


@pytest.mark.process
@pytest.mark.parametrize("upstream", ["legacy", "modern"])
@pytest.mark.parametrize("front", ["memory-modern", "memory-legacy"])
async def test_a_client_without_the_capability_gets_no_request(front: str, upstream: str) -> None:
    async with mounted(upstream) as bridge:
        async with client_of(create_provider_host(bridge.box), front) as client:
            response = await client.call_tool("honest__ask", ASK)
    assert "Ada" not in str(response)
    refused = "the client cannot be asked" in str(response) or "this needs" in str(response)
    assert response.is_error or refused


async def test_a_question_that_may_belong_to_two_clients_reaches_neither() -> None:
    asked: list[str] = []

    def hearing(name: str) -> Any:
        async def elicit(context: object, params: object) -> ElicitResult:
            asked.append(name)
            return ElicitResult(action="accept", content={"name": name})

        return elicit

    async with mounted("legacy") as bridge:
        host = create_provider_host(bridge.box)
        async with (
            client_of(host, "memory-legacy", elicitation_callback=hearing("one")) as one,
            client_of(host, "memory-legacy", elicitation_callback=hearing("two")) as two,
            anyio.create_task_group() as tasks,
        ):
            began = asyncio.Event()

            async def progressed(progress: float, total: float | None, message: str | None) -> None:
                began.set()

            async def slow() -> None:
                arguments = {"seconds": 25, "progress": 500}
                await one.call_tool("honest__slow", arguments, progress_callback=progressed)

            tasks.start_soon(slow)
            await began.wait()
            response = await two.call_tool("honest__ask", ASK)
            assert "cannot be told which client" in str(response.structured_content)
            tasks.cancel_scope.cancel()
    assert asked == []


STUBBORN = """
import json, sys
from pathlib import Path

diary, held, asking = Path(sys.argv[1]), None, None


def say(frame):
    print(json.dumps({"jsonrpc": "2.0", **frame}), flush=True)


def note(line):
    with diary.open("a") as file:
        file.write(line + "\\n")


def called(identity, name):
    global held, asking
    if name == "hold":
        held = identity
        note("held")
    elif name == "step":
        say({"method": "notifications/progress", "params": {"progressToken": held, "progress": 1}})
        say({"id": identity, "result": {"content": []}})
    elif name == "finish":
        say({"id": held, "result": {"content": []}})
        say({"id": identity, "result": {"content": []}})
    else:
        asking = identity
        say({"id": "question", "method": "elicitation/create", "params": {
            "message": "which?", "requestedSchema": {"type": "object", "properties": {}}}})


tools = [{"name": n, "inputSchema": {"type": "object"}} for n in ("hold", "ask", "step", "finish")]
met = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "s"}}
for line in sys.stdin:
    frame = json.loads(line)
    method, identity = frame.get("method"), frame.get("id")
    if method == "initialize":
        say({"id": identity, "result": met})
    elif method == "tools/list":
        say({"id": identity, "result": {"tools": tools}})
    elif method == "tools/call":
        called(identity, frame["params"]["name"])
    elif method == "notifications/cancelled":
        note("cancelled")
    elif identity == "question":
        response = json.dumps(frame.get("result", frame.get("error")))
        say({"id": asking, "result": {"content": [{"type": "text", "text": response}]}})
    elif identity is not None:
        say({"id": identity, "error": {"code": -32601, "message": "no"}})
"""
"""A server of the older protocol that goes on with what was cancelled."""


@asynccontextmanager
async def stubborn(place: Path, **limits: float) -> AsyncGenerator[MountedProtocolBridge]:
    script = place / "stubborn.py"
    await anyio.Path(script).write_text(STUBBORN)
    arguments = (str(script), str(place / "diary"))
    config = StdioServerConfig("s", sys.executable, arguments, limits=replace(ServerLimits(), probe_s=0.2, **limits))
    bridge = await mount_protocol_bridge(BridgeConfig((config,)), handlers=forwarding_handlers())
    try:
        yield bridge
    finally:
        await bridge.fleet.tear_down()


async def abandoned(client: Client, place: Path) -> None:
    """Have a call cancelled that its server goes on with."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.call_tool, "s__hold")
        await until(lambda: "held" in diary(place / "diary"))
        tasks.cancel_scope.cancel()
    await until(lambda: "cancelled" in diary(place / "diary"))


@pytest.mark.process
@pytest.mark.parametrize("front", FRONTS)
@pytest.mark.parametrize("other", ["memory-modern", "memory-legacy"])
async def test_a_server_request_after_a_cancelled_call_reaches_no_other_client(
    front: str, other: str, tmp_path: Path
) -> None:
    async with stubborn(tmp_path) as bridge:
        host = create_provider_host(bridge.box)
        async with (
            client_of(host, front, elicitation_callback=named("one")) as one,
            client_of(host, other, elicitation_callback=named("two")) as two,
        ):
            await abandoned(one, tmp_path)
            response = await two.call_tool("s__ask")
            assert "cannot be told which client" in str(response.content)
            # A sign that the server goes on, and an answer that comes late: then all is clear.
            await two.call_tool("s__step")
            response = await two.call_tool("s__ask")
            assert "cannot be told which client" in str(response.content)
            await two.call_tool("s__finish")
            response = await two.call_tool("s__ask")
            assert '"two"' in str(response.content)


async def test_a_server_request_after_a_timed_out_call_reaches_no_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = LoopTime(monkeypatch)
    async with stubborn(tmp_path, call_idle_s=20.0) as bridge:
        host = create_provider_host(bridge.box)
        # By no client of the host: the library may call as well.
        (endpoint,) = bridge.fleet.endpoints()
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(attempt(endpoint, "hold", {}))
            await until(lambda: "held" in diary(tmp_path / "diary"))
            await time.passes(20)
        assert "within 20 s" in str(call.result())
        async with client_of(host, "memory-legacy", elicitation_callback=named("Ada")) as client:
            response = await client.call_tool("s__ask")
            assert "cannot be told which client" in str(response.content)


async def test_an_older_client_can_be_asked_after_it_cancelled_a_call(tmp_path: Path) -> None:
    async with stubborn(tmp_path) as bridge:
        host = create_provider_host(bridge.box)
        async with client_of(host, "memory-legacy", elicitation_callback=named("Ada")) as client:
            await abandoned(client, tmp_path)
            assert '"Ada"' in str((await client.call_tool("s__ask")).content)


async def test_an_abandoned_call_is_forgotten_after_its_time() -> None:
    calls, call = PendingCalls(abandoned_s=0.0), PendingCall(parked(), 2)
    calls.abandon(PendingCall(None, 1))
    calls.add(call)
    assert calls.find_caller() is call.caller


async def test_too_many_abandoned_calls_make_every_caller_ambiguous() -> None:
    calls = PendingCalls()
    for identity in range(1_001):
        calls.abandon(PendingCall(None, identity))
    for identity in range(1_001):
        calls.on_unmatched(identity, "response")
    calls.on_unmatched(None, "response")
    calls.add(PendingCall(parked(), "new"))
    assert calls.find_caller() is None


async def test_calls_of_one_older_client_have_the_same_caller() -> None:
    async with mounted("legacy") as bridge:
        host = create_provider_host(bridge.box)
        async with client_of(host, "memory-legacy", elicitation_callback=named("Ada")) as client:
            answers: list[Any] = []

            async def ask() -> None:
                answers.append((await client.call_tool("honest__ask", ASK)).structured_content)

            async with anyio.create_task_group() as tasks:
                for _ in range(5):
                    tasks.start_soon(ask)
    assert answers == [{"action": "accept", "content": {"name": "Ada"}}] * 5


async def test_an_error_of_the_client_reaches_the_server() -> None:
    async def elicit(context: object, params: object) -> ElicitResult:
        raise MCPError(-1, "not today")

    async with mounted("legacy") as bridge:
        host = create_provider_host(bridge.box)
        async with client_of(host, "memory-legacy", elicitation_callback=elicit) as client:
            response = await client.call_tool("honest__ask", ASK)
    assert response.structured_content is not None
    assert response.structured_content["code"] == -1


# -- parked calls ---------------------------------------------------------------------------

STAMP: JsonObject = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


class Raw:
    """A client that says exactly what a test wants, over streams."""

    def __init__(self, streams: Any) -> None:
        self._read, self._write = streams
        self._ids = 0

    async def call(self, name: str, arguments: JsonObject, **more: Any) -> Any:
        from mcp.shared.message import SessionMessage  # noqa: PLC0415 — with the SDK
        from mcp_types import jsonrpc_message_adapter  # noqa: PLC0415 — with the SDK

        self._ids += 1
        params = {"name": name, "arguments": arguments, "_meta": STAMP, **more}
        frame = {"jsonrpc": "2.0", "id": self._ids, "method": "tools/call", "params": params}
        await self._write.send(SessionMessage(jsonrpc_message_adapter.validate_python(frame)))
        response = (await self._read.receive()).message.model_dump(by_alias=True, exclude_none=True)
        return response.get("result", response.get("error"))


@asynccontextmanager
async def raw_client(bridge: MountedProtocolBridge) -> AsyncGenerator[Raw]:
    async with memory(create_provider_host(bridge.box)) as streams:
        yield Raw(streams)


async def test_a_suspended_call_is_resumed_with_its_answers_once() -> None:
    async with mounted("legacy") as bridge, raw_client(bridge) as client:
        first = await client.call("honest__ask", ASK)
        assert first["resultType"] == "input_required"
        assert first["_meta"]
        ((key, question),) = first["inputRequests"].items()
        assert question["method"] == "elicitation/create"
        answers = {key: {"action": "decline"}}
        state = first["requestState"]
        other = await client.call("honest__echo", {}, requestState=state, inputResponses=answers)
        assert other["code"] == -32602
        nothing = await client.call("honest__ask", ASK, requestState=state)
        assert nothing["inputRequests"] == first["inputRequests"]
        state = nothing["requestState"]
        last = await client.call("honest__ask", ASK, requestState=state, inputResponses=answers)
        assert last["structuredContent"] == {"action": "decline"}
        again = await client.call("honest__ask", ASK, requestState=state, inputResponses=answers)
        assert again["code"] == -32602


async def test_an_answer_that_is_none_is_refused_to_the_server() -> None:
    async with mounted("legacy") as bridge, raw_client(bridge) as client:
        first = await client.call("honest__ask", ASK)
        answers = dict.fromkeys(first["inputRequests"], "what?")
        state = first["requestState"]
        last = await client.call("honest__ask", ASK, requestState=state, inputResponses=answers)
    assert "no object" in last["structuredContent"]["message"]


def request_like() -> Any:
    from indusagi.core.cancel import CancelToken  # noqa: PLC0415 — for this helper

    class Request:
        def __init__(self) -> None:
            self.cancel = CancelToken()
            self.params: JsonObject = {}
            self.meta: JsonObject = {}

    return Request()


def parked(name: str = "a") -> SuspendedCall:
    return SuspendedCall(name, {"elicitation": {}}, 0)


async def asking(call: SuspendedCall) -> JsonObject:
    with call.cancel.guard():
        return await call.ask("elicitation/create", {})
    return {"cancelled": call.cancel.reason}


async def test_a_client_that_never_answers_has_its_call_cancelled() -> None:
    suspended, call = SuspendedCalls(round_s=0.01), parked()
    response = await suspended.begin(request_like(), call, asking)
    assert response["resultType"] == "input_required"
    await until(lambda: call.cancel.cancelled)
    request = request_like()
    request.params = {"requestState": response["requestState"]}
    with pytest.raises(RpcError, match="waited for too long"):
        await suspended.resume(request, "a")


async def test_suspended_calls_are_limited() -> None:
    suspended = SuspendedCalls(calls=1)
    await suspended.begin(request_like(), parked(), asking)
    with pytest.raises(RpcError, match="1 calls wait for answers"):
        await suspended.begin(request_like(), parked(), asking)
    await suspended.close()


async def test_finding_f11_only_calls_that_wait_for_answers_are_limited() -> None:
    suspended, go_on = SuspendedCalls(calls=2), asyncio.Event()

    async def run(call: SuspendedCall) -> JsonObject:
        await go_on.wait()
        return {"name": call.name}

    async with asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(suspended.begin(request_like(), parked(), run)) for _ in range(300)]
        await settled()
        go_on.set()
    assert all(task.result() == {"name": "a"} for task in begun)


async def test_finding_f11_a_call_that_asks_when_too_many_wait_is_ended() -> None:
    suspended, asks, calls = SuspendedCalls(calls=2), asyncio.Event(), [parked() for _ in range(3)]

    async def run(call: SuspendedCall) -> JsonObject:
        await asks.wait()
        return await asking(call)

    async with asyncio.TaskGroup() as tasks:
        begun = [tasks.create_task(outcome_of(suspended.begin(request_like(), call, run))) for call in calls]
        await settled()
        asks.set()
    results = [task.result() for task in begun]
    assert [isinstance(result, RpcError) for result in results] == [False, False, True]
    assert calls[2].cancel.cancelled
    await suspended.close()


async def test_each_owner_has_its_own_limit_of_suspended_calls() -> None:
    suspended = SuspendedCalls(calls=1)
    mine = SuspendedCall("a", {"elicitation": {}}, 0, b"me")
    await suspended.begin(request_like(), parked(), asking)
    response = await suspended.begin(request_like(), mine, asking)
    assert response["resultType"] == "input_required"
    await suspended.close()


async def test_finding_f4_a_call_that_is_ended_before_it_begins_has_a_result() -> None:
    suspended, call = SuspendedCalls(calls=1), parked()
    with anyio.fail_after(60):
        async with asyncio.TaskGroup() as tasks:
            beginning = tasks.create_task(attempt_of(suspended.begin(request_like(), call, asking)))
            tasks.create_task(suspended.close())
        assert beginning.result() == "the call was stopped"
        # It holds no place.
        response = await suspended.begin(request_like(), parked(), asking)
    assert response["resultType"] == "input_required"
    await suspended.close()


async def attempt_of(begun: Coroutine[object, object, object]) -> str:
    with pytest.raises(RpcError) as caught:
        await begun
    return caught.value.message


class Bearer:
    """A client with one token, in revision 2026-07-28 over HTTP."""

    def __init__(self, client: httpx2.AsyncClient, url: str, token: str) -> None:
        self._client, self._url, self._token = client, url, token

    async def call(self, name: str, arguments: JsonObject, **more: Any) -> Any:
        params = {"name": name, "arguments": arguments, "_meta": STAMP, **more}
        headers = {
            "authorization": f"Bearer {self._token}",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": "2026-07-28",
            "mcp-method": "tools/call",
            "mcp-name": name,
        }
        frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        response = (await self._client.post(self._url, json=frame, headers=headers)).json()
        return response.get("result", response.get("error"))


async def test_a_request_state_is_valid_for_its_own_token_only() -> None:
    bench = Bench()

    async def ask(arguments: JsonObject, ctx: object) -> str:
        caller = current_caller.get()
        assert caller is not None
        return f"answered {await caller.ask('elicitation/create', {})}"

    bench.add("ask", ask)
    settings = HttpSettings(tokens=["a" * 64, "b" * 64])
    async with create_provider_host(bench.box).serve_http(settings) as serving, httpx2.AsyncClient() as client:
        one, two = Bearer(client, serving.url, "a" * 64), Bearer(client, serving.url, "b" * 64)
        first = await one.call("ask", {})
        answers = {key: {"action": "accept"} for key in first["inputRequests"]}
        given = {"requestState": first["requestState"], "inputResponses": answers}
        stolen = await two.call("ask", {}, **given)
        assert stolen["code"] == -32602
        last = await one.call("ask", {}, **given)
        assert "accept" in last["content"][0]["text"]
        for _ in range(64):
            assert "requestState" in await one.call("ask", {})
        assert "wait for answers" in (await one.call("ask", {}))["message"]
        assert "requestState" in await two.call("ask", {})


async def test_closing_a_host_ends_its_suspended_calls() -> None:
    suspended, ended = SuspendedCalls(), asyncio.Event()

    async def running(call: SuspendedCall) -> JsonObject:
        try:
            return await asking(call)
        finally:
            ended.set()

    await suspended.begin(request_like(), parked(), running)
    await suspended.close()
    assert ended.is_set()


async def test_a_request_that_is_cancelled_cancels_its_call() -> None:
    suspended, call, request = SuspendedCalls(), parked(), request_like()
    began = asyncio.Event()

    async def running(call: SuspendedCall) -> JsonObject:
        began.set()
        return {"reason": await call.cancel.wait()}

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(suspended.begin, request, call, running)
        await began.wait()
        request.cancel.cancel("enough")
    assert call.cancel.reason == "enough"


async def test_a_failing_suspended_call_raises_in_the_waiting_request() -> None:
    async def running(call: SuspendedCall) -> JsonObject:
        raise RpcError(-7, "broken")

    with pytest.raises(RpcError, match="broken"):
        await SuspendedCalls().begin(request_like(), parked(), running)


# -- numbers that JSON does not have --------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan")])
async def test_a_number_that_json_does_not_have_is_refused_before_it_is_sent(number: float) -> None:
    async with mounted("legacy") as bridge:
        (endpoint,) = bridge.fleet.endpoints()
        with pytest.raises(ProtocolFault, match="cannot be sent: it holds a number"):
            await endpoint.invoke("echo", {"text": "x", "more": [number]})
        assert (await endpoint.invoke("echo", {"text": "x"})).content


async def test_a_question_with_a_number_that_json_does_not_have_is_refused() -> None:
    elicit = forwarding_handlers().elicit
    assert elicit is not None
    current_caller.set(parked())
    with pytest.raises(RpcError, match="cannot be passed on: it holds a number"):
        await elicit({"message": "?", "default": float("inf")})


# -- hops -----------------------------------------------------------------------------------


async def test_a_call_that_goes_in_circles_is_refused() -> None:
    async with mounted("legacy") as bridge, raw_client(bridge) as client:
        meta = {**STAMP, HOPS: MAX_HOPS + 1}
        response = await client.call("honest__echo", {"text": "x"}, _meta=meta)
        assert "serves itself" in response["message"]
        response = await client.call("honest__echo", {"text": "x"}, _meta={**STAMP, HOPS: "many"})
        assert response["content"][0]["text"] == "x"


@pytest.mark.parametrize("mode", ["legacy", "modern"])
async def test_every_gateway_counts_itself(mode: str) -> None:
    heard: list[Any] = []

    async def call(context: Any, params: Any) -> CallToolResult:
        heard.append(dict(params.meta or {}))
        return CallToolResult(content=[])

    server = Server("ear", on_call_tool=call)

    @asynccontextmanager
    async def session() -> AsyncGenerator[Any]:
        async with Client(server, mode="legacy" if mode == "legacy" else "auto") as client:
            yield client.session

    endpoint = create_server_endpoint(honest(), session, handlers=forwarding_handlers())
    await endpoint.open()
    try:
        current_caller.set(SuspendedCall("a", {"elicitation": {}, "roots": {}}, 2))
        await endpoint.invoke("x", {})
        current_caller.set(None)
        await endpoint.invoke("x", {})
    finally:
        await endpoint.close()
    assert [meta.get(HOPS) for meta in heard] == [3, None]


async def test_a_client_that_declared_nothing_is_refused_at_once_also_to_a_tool() -> None:
    with pytest.raises(RpcError, match="cannot be asked"):
        await parked().ask("elicitation/create", {})
