"""The Streamable HTTP transport in front of a network in memory: headers, sessions, answers, resumed streams."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest.mock import AsyncMock

import anyio
import httpx2
import pytest
from tests.support.networks import make_network
from tests.support.transports import settled
from tests.support.waiting import until

from indusagi.core.tasks import Backoff
from indusagi.interop.protocol_bridge.client.http import streamable
from indusagi.interop.protocol_bridge.client.http.client import HttpClient
from indusagi.interop.protocol_bridge.client.http.streamable import StreamableHttpTransport
from indusagi.interop.protocol_bridge.contract import ServerLimits
from indusagi.net.address import parse_url

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd

pytestmark = pytest.mark.anyio
URL = "http://host/mcp"
MODERN = "2026-07-28"
STAMP: Any = {"_meta": {"io.modelcontextprotocol/protocolVersion": MODERN}}
EVENTS = {"content-type": "text/event-stream"}
HELLO: JsonObject = {"id": 1, "method": "initialize", "params": {}}
READY: JsonObject = {"method": "notifications/initialized"}
CALL: JsonObject = {"id": 2, "method": "tools/call", "params": {"name": "t"}}
LIMITS = ServerLimits(close_s=0.01)


class Body(httpx2.AsyncByteStream):
    """A body that ends, or stays open."""

    def __init__(self, content: bytes = b"", *, forever: bool = False) -> None:
        self.content, self.forever, self.is_closed = content, forever, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.content
        if self.forever:
            await anyio.sleep_forever()

    async def aclose(self) -> None:
        self.is_closed = True


class Server(httpx2.AsyncBaseTransport):
    """Answers by HTTP method and JSON-RPC method; keeps the requests."""

    def __init__(self, respond: Callable[[httpx2.Request, Any], httpx2.Response]) -> None:
        self.respond = respond
        self.asked: list[tuple[str, str | None, httpx2.Headers]] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        frame: Any = json.loads(body) if body else {}
        self.asked.append((request.method, frame.get("method"), request.headers))
        return self.respond(request, frame)

    def heard(self, method: str) -> list[httpx2.Headers]:
        """Return the headers of the requests with an HTTP or a JSON-RPC method."""
        return [headers for http, rpc, headers in self.asked if method in {http, rpc}]


class Line:
    """A transport, and what it delivers."""

    def __init__(self, transport: StreamableHttpTransport) -> None:
        self.transport = transport
        self.frames: list[Any] = []
        self.failures: dict[Any, str | None] = {}
        self.ends: list[TransportEnd] = []
        transport.attach(self._receive, self.ends.append)

    def _receive(self, frame: Any) -> None:
        self.frames.append(frame)
        if "error" in frame and (detail := self.transport.detail(frame["id"])) is not None:
            self.failures[frame["id"]] = detail.reason

    async def ask(self, frame: JsonObject) -> Any:
        """Send a request and wait for its response."""
        count = len(self.frames)
        self.transport.send({"jsonrpc": "2.0", **frame})
        await until(lambda: len(self.frames) > count or bool(self.ends))
        return self.frames[-1] if self.frames else None


@asynccontextmanager
async def connected(server: Server, *, verbatim: bool = False, limits: ServerLimits = LIMITS) -> AsyncGenerator[Line]:
    """Run a transport; end its session after the block."""
    http = HttpClient(make_network(server), parse_url(URL), limits, {})
    transport = StreamableHttpTransport(http, limits, verbatim=verbatim)
    line = Line(transport)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(transport.write, tasks)
        yield line
        tasks.cancel_scope.cancel()
    await transport.end_session()


def status(code: int) -> httpx2.Response:
    """A response without a body."""
    return httpx2.Response(code, stream=Body())


def answer(frame: Any, headers: Any = None, **result: Any) -> httpx2.Response:
    """A JSON response with a result."""
    body = Body(json.dumps({"jsonrpc": "2.0", "id": frame["id"], "result": result}).encode())
    return httpx2.Response(200, headers={"content-type": "application/json", **(headers or {})}, stream=body)


def legacy(request: httpx2.Request, frame: Any) -> httpx2.Response:
    """An honest server with sessions, without a standing stream."""
    if frame.get("method") == "initialize":
        return answer(frame, {"mcp-session-id": "s1"}, protocolVersion="2025-06-18")
    if request.method == "GET":
        return status(405)
    return answer(frame) if "id" in frame else status(202)


def stream(*events: str) -> httpx2.Response:
    """An event stream that ends."""
    return httpx2.Response(200, headers=EVENTS, stream=Body("".join(f"{event}\n\n" for event in events).encode()))


# -- headers ----------------------------------------------------------------------------------


async def test_session_and_version_are_sent_after_the_handshake() -> None:
    server = Server(legacy)
    async with connected(server) as line:
        await line.ask(HELLO)
        line.transport.send(READY)
        await line.ask(CALL)
        await until(lambda: bool(server.heard("GET")))
    (hello,) = server.heard("initialize")
    assert "mcp-session-id" not in hello
    assert "mcp-protocol-version" not in hello
    assert hello["accept"] == "application/json, text/event-stream"
    for method in ("notifications/initialized", "tools/call", "GET", "DELETE"):
        (headers,) = server.heard(method)
        assert (headers["mcp-session-id"], headers["mcp-protocol-version"]) == ("s1", "2025-06-18"), method
    assert [asked[1] for asked in server.asked[:2]] == ["initialize", "notifications/initialized"]


async def test_a_modern_request_has_its_own_version_and_no_session() -> None:
    server = Server(legacy)
    async with connected(server) as line:
        await line.ask(HELLO)
        await line.ask({"id": 2, "method": "tools/call", "params": {"name": " é", **STAMP}})
        await line.ask({**CALL, "id": 3})
    modern, old = server.heard("tools/call")
    assert (modern["mcp-protocol-version"], modern["mcp-method"]) == (MODERN, "tools/call")
    assert modern["mcp-name"] == "=?base64?IMOp?="
    assert "mcp-session-id" not in modern
    assert old["mcp-session-id"] == "s1"


@pytest.mark.parametrize("verbatim", [False, True])
async def test_marked_arguments_are_repeated_and_a_relay_keeps_every_tool(verbatim: bool) -> None:
    marks = {"a": {"type": "string", "x-mcp-header": "A"}, "n": {"type": "integer", "x-mcp-header": "N"}}
    inner = {"type": "object", "properties": {"b": {"type": "boolean", "x-mcp-header": "B"}}}
    tools: list[Any] = [
        {"name": "t", "inputSchema": {"type": "object", "properties": {**marks, "o": inner}}},
        {"name": "bad", "inputSchema": {"x-mcp-header": "X"}},
        {"name": "odd", "inputSchema": []},
        "nothing",
    ]
    notes: list[str] = []

    class Session:
        note = notes.append

    server = Server(lambda _, frame: answer(frame, tools=tools))
    async with connected(server, verbatim=verbatim) as line:
        session: Any = Session()
        line.transport.session = session
        listed = await line.ask({"id": 1, "method": "tools/list", "params": {**STAMP}})
        kept = tools if verbatim else [row for row in tools if row != tools[1]]
        assert (listed["result"]["tools"], bool(notes)) == (kept, not verbatim)
        arguments: Any = {"a": "x y", "n": 7, "o": {"b": True}, "other": 1}
        await line.ask({"id": 2, "method": "tools/call", "params": {"name": "t", "arguments": arguments, **STAMP}})
        await line.ask(
            {"id": 3, "method": "tools/call", "params": {"name": "t", "arguments": {"a": None, "o": []}, **STAMP}}
        )
    first, second = server.heard("tools/call")
    sent = {name: value for name, value in first.items() if name.startswith("mcp-param-")}
    assert sent == {"mcp-param-a": "x y", "mcp-param-n": "7", "mcp-param-b": "true"}
    assert not any(name.startswith("mcp-param-") for name in second)


async def test_a_name_that_no_header_can_hold_fails_its_request() -> None:
    async with connected(Server(legacy)) as line:
        refused = await line.ask({"id": 1, "method": "tools/call", "params": {"name": "\ud800", **STAMP}})
        assert "cannot be sent" in refused["error"]["message"]
        assert (await line.ask(HELLO))["id"] == 1


# -- sessions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "code", "is_lost"),
    [
        ("tools/call", 404, True),
        ("notifications/roots/list_changed", 404, True),
        ("tools/call", 400, False),
        ("GET", 404, False),
    ],
)
async def test_a_session_is_lost_where_a_post_finds_it_unknown(method: str, code: int, *, is_lost: bool) -> None:
    def respond(request: httpx2.Request, frame: Any) -> httpx2.Response:
        refused = method in {request.method, frame.get("method")}
        return status(code) if refused else legacy(request, frame)

    server = Server(respond)
    async with connected(server) as line:
        await line.ask(HELLO)
        line.transport.send(READY)
        line.transport.send({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
        await line.ask(CALL)
        await until(lambda: bool(server.heard(method)))
        await until(lambda: bool(line.ends) is is_lost)
    assert len(server.heard("DELETE")) == (not is_lost)
    if is_lost:
        assert (line.ends[0].detail.reason, line.ends[0].detail.http_status) == ("closed", 404)


async def test_a_not_found_without_a_session_is_a_failure_of_its_request() -> None:
    async with connected(Server(lambda _, frame: status(404))) as line:
        await line.ask(CALL)
        assert line.failures == {2: "not_found"}
    assert line.ends == []


@pytest.mark.parametrize("error", [httpx2.ReadError("x"), None])
async def test_a_session_ends_whatever_the_server_says(error: Exception | None) -> None:
    def respond(request: httpx2.Request, frame: Any) -> httpx2.Response:
        if request.method != "DELETE":
            return legacy(request, frame)
        if error is not None:
            raise error
        return status(500)

    server = Server(respond)
    async with connected(server) as line:
        await line.ask(HELLO)
    assert len(server.heard("DELETE")) == 1


# -- answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "message"),
    [
        (b'{"id":9,"result":{}}', -32700, "it answered a request that was not asked (id 9)"),
        (b'{"method":"x"}', -32700, "it answered with a message that is not an answer"),
        (b"[]", -32700, "it answered with a message that is not an answer"),
        (b"{oops", -32700, "it sent a message that cannot be read: "),
        (b'{"error":{"code":5,"message":"no"}}', 5, "no"),
    ],
)
async def test_a_body_that_does_not_answer_is_an_error_of_the_request(body: bytes, code: int, message: str) -> None:
    response = httpx2.Response(200, headers={"content-type": "application/json"}, stream=Body(body))
    async with connected(Server(lambda _, frame: response)) as line:
        found = await line.ask(CALL)
        assert (found["id"], found["error"]["code"]) == (2, code)
        assert found["error"]["message"].startswith(message)
        assert line.failures.get(2) == ("malformed" if code == -32700 else None)


@pytest.mark.parametrize("identity", [2, 2.0, "2"])
async def test_the_rest_of_a_stream_is_not_waited_for(identity: Any) -> None:
    body = Body(
        b'data: {"id":%b,"result":{}}\n\ndata: {"method":"m"}\n\n' % json.dumps(identity).encode(), forever=True
    )
    async with connected(Server(lambda _, frame: httpx2.Response(200, headers=EVENTS, stream=body))) as line:
        line.transport.send(CALL)
        await until(lambda: len(line.frames) == 2)
        assert [frame.get("id", frame.get("method")) for frame in line.frames] == [2, "m"]
        await until(lambda: body.is_closed)


@pytest.mark.parametrize("modern", [False, True])
async def test_a_cancelled_request_is_closed_and_only_the_older_protocol_is_told(modern: bool) -> None:
    body = Body(b": alive\n\n", forever=True)

    def respond(request: httpx2.Request, frame: Any) -> httpx2.Response:
        if frame.get("method") == "tools/call":
            return httpx2.Response(200, headers=EVENTS, stream=body)
        return legacy(request, frame)

    server = Server(respond)
    async with connected(server) as line:
        await line.ask(HELLO)
        line.transport.send({**CALL, "params": {"name": "t", **(STAMP if modern else {})}})
        cancelled: JsonObject = {"method": "notifications/cancelled", "params": {"requestId": 2}}
        line.transport.send(cancelled)
        await until(lambda: body.is_closed)
        await until(lambda: len(server.heard("notifications/cancelled")) == (not modern))
        assert line.failures == {}


@pytest.mark.parametrize("modern", [False, True])
async def test_a_late_cancellation_is_dropped_in_the_newer_protocol_alone(modern: bool) -> None:
    server = Server(legacy)
    async with connected(server) as line:
        await line.ask(HELLO)
        await line.ask({**CALL, "params": {"name": "t", **(STAMP if modern else {})}})
        line.transport.send({"method": "notifications/cancelled", "params": {"requestId": 2}})
        await line.ask({**CALL, "id": 3})
        await until(lambda: len(server.heard("notifications/cancelled")) == (not modern))


async def test_only_the_first_answer_counts() -> None:
    twice = stream('data: {"id":2,"result":{"n":1}}', 'data: {"id":2,"result":{"n":2}}', 'data: {"method":"m"}')
    async with connected(Server(lambda _, frame: twice)) as line:
        line.transport.send(CALL)
        await until(lambda: {"method": "m"} in line.frames)
        assert line.frames == [{"id": 2, "result": {"n": 1}}, {"method": "m"}]


# -- streams that break off -------------------------------------------------------------------


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable, "_FIRST_PAUSE_S", 0.0)


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize(
    ("event_id", "code", "tries"),
    [("e7", 503, streamable._MAX_FAILED_RESUMES), ("e7", 405, 1), ("e7", 404, 1), ("e7", 200, 1), ("é", 200, 0)],
)
async def test_a_stream_that_cannot_be_resumed_leaves_the_outcome_open(event_id: str, code: int, tries: int) -> None:
    def respond(request: httpx2.Request, frame: Any) -> httpx2.Response:
        return status(code) if request.method == "GET" else stream(f"id: {event_id}\ndata:")

    server = Server(respond)
    async with connected(server) as line:
        found = await line.ask(CALL)
        assert found["error"]["message"] == "it ended its answer before it was complete"
        assert line.failures == {2: "closed"}
    assert [headers["last-event-id"] for headers in server.heard("GET")] == ["e7"] * tries
    assert line.ends == []


@pytest.mark.usefixtures("_hasty")
async def test_an_event_that_is_too_large_is_not_asked_for_again() -> None:
    def respond(request: httpx2.Request, frame: Any) -> httpx2.Response:
        return stream("data: " + "x" * 200) if request.method == "GET" else stream("id: a\ndata:")

    server = Server(respond)
    async with connected(server, limits=replace(LIMITS, frame_bytes=100)) as line:
        await line.ask(CALL)
        assert line.failures == {2: "frame_too_large"}
    assert len(server.heard("GET")) == 1


@pytest.mark.usefixtures("_hasty")
async def test_a_stream_is_resumed_where_it_broke_off() -> None:
    left = [stream("id: b\ndata:"), status(503), stream('data: {"id":2,"result":{"ok":1}}')]

    def respond(request: httpx2.Request, frame: Any) -> httpx2.Response:
        return left.pop(0) if request.method == "GET" else stream('id: a\nretry: 1\ndata: {"method":"m"}')

    server = Server(respond)
    async with connected(server) as line:
        line.transport.send(CALL)
        await until(lambda: len(line.frames) == 2)
        assert line.frames == [{"method": "m"}, {"id": 2, "result": {"ok": 1}}]
    assert [headers["last-event-id"] for headers in server.heard("GET")] == ["a", "b", "b"]


@pytest.mark.usefixtures("_hasty")
async def test_a_stream_is_resumed_when_the_server_says(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float | None] = []
    monkeypatch.setattr(Backoff, "pause", AsyncMock(side_effect=pauses.append))
    left = [
        httpx2.Response(503, headers={"retry-after": "7"}),
        stream("id: b\ndata:"),
        stream('data: {"id":2,"result":{"ok":1}}'),
    ]

    def respond(request: httpx2.Request, frame: Any) -> httpx2.Response:
        return left.pop(0) if request.method == "GET" else stream("id: a\nretry: 1000\ndata:")

    async with connected(Server(respond)) as line:
        await line.ask(CALL)
    assert pauses == [1.0, 7.0, 1.0]


@pytest.mark.usefixtures("_hasty")
async def test_the_standing_stream_passes_answers_and_continues_after_its_last_event() -> None:
    left = [stream('id: 5\ndata: {"id":9,"result":{}}'), stream("data: []", 'data: {"method":"m"}')]

    def respond(request: httpx2.Request, frame: Any) -> httpx2.Response:
        if request.method != "GET":
            return legacy(request, frame)
        return left.pop(0) if left else status(405)

    server, notes, gaps = Server(respond), list[str](), list[int]()

    class Session:
        note = notes.append

        def on_gap(self) -> None:
            gaps.append(1)

    async with connected(server) as line:
        session: Any = Session()
        line.transport.session = session
        await line.ask(HELLO)
        line.transport.send(READY)
        await until(lambda: len(server.heard("GET")) == 3)
        await settled()
    assert line.frames[1:] == [{"id": 9, "result": {}}, {"method": "m"}]
    assert [headers.get("last-event-id") for headers in server.heard("GET")] == [None, "5", "5"]
    assert (len(gaps), notes) == (1, ["it answered with a message that is not an answer, which was ignored"])
