"""The host over HTTP and misbehaving clients: when they are refused or dropped."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from tests.support.host_clients import TOKEN, host_of
from tests.support.host_tools import Bench
from tests.support.transports import LoopTime
from tests.support.waiting import until

from indusagi.interop import HttpSettings
from indusagi.interop.protocol_bridge.host.http import server as http_server
from indusagi.runtime.contract import JsonContentBlock, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject

BOTH = "application/json, text/event-stream"
STAMP: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Http:
    """A client that sends what the test says."""

    def __init__(self, port: int, bench: Bench, client: httpx2.AsyncClient) -> None:
        self.port, self.bench, self.client = port, bench, client

    async def post(self, frame: Any, **headers: str) -> httpx2.Response:
        sent = {"accept": BOTH, "content-type": "application/json"}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.client.post("/mcp", content=json.dumps(frame), headers=sent)

    async def session(self, version: str = "2025-06-18") -> str:
        opened = await self.post(initialize(version))
        assert opened.status_code == 200
        return opened.headers["mcp-session-id"]

    async def raw(self, data: bytes) -> bytes:
        """Send bytes without a token, and read until the host closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            with anyio.fail_after(60):
                return await reader.read()
        finally:
            writer.transport.abort()

    async def health(self) -> dict[str, Any]:
        return (await self.client.get("/health")).json()


def initialize(version: str = "2025-06-18") -> dict[str, Any]:
    params: dict[str, Any] = {"protocolVersion": version, "capabilities": {}}
    return {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}


def call(name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}


@asynccontextmanager
async def serving(**settings: Any) -> AsyncGenerator[Http]:
    bench = Bench()
    async with host_of(bench).serve_http(HttpSettings(tokens=[TOKEN], **settings)) as host:
        known = {"authorization": f"Bearer {TOKEN}"}
        base = f"http://127.0.0.1:{host.port}"
        async with httpx2.AsyncClient(base_url=base, timeout=60, headers=known) as client:
            yield Http(host.port, bench, client)


# -- garbage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16garbage\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\nTransfer-Encoding: what\r\n\r\n",
        b"POST /mcp HTTP/1.1\r\nHost: a\r\nnot a header\r\n\r\n",
    ],
)
async def test_garbage_is_counted_and_nothing_is_written_about_it(
    garbage: bytes, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving() as http:
        for _ in range(3):
            await http.raw(garbage)
        assert (await http.health())["dropped"] == {"garbled": 3}
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert capfd.readouterr().err == ""


async def test_bytes_behind_a_refused_request_are_not_parsed_as_a_request(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A body that was not waited for may hold anything, also what looks like a request."""
    async with serving() as http:
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(b"POST /mcp HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
        with anyio.fail_after(60):
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 421 " in head
            assert b"connection: close" in head
            await reader.readuntil(b"}}")
            writer.write(b"not a length\r\nGET /health HTTP/1.1\r\nHost: a\r\n\r\n")
            assert await reader.read() == b""
        assert (await http.health())["dropped"] == {}
        writer.transport.abort()
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert capfd.readouterr().err == ""


# -- slowness -------------------------------------------------------------------------------

HALF = b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "
REFUSED = b"POST /mcp HTTP/1.1\r\nHost: a\r\nContent-Length: 9999\r\n\r\n"


@pytest.mark.parametrize(("begun", "answer"), [(b"", b""), (HALF, b"HTTP/1.1 408 ")], ids=["nothing", "half"])
async def test_a_client_whose_headers_do_not_arrive_is_dropped(
    begun: bytes, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once something was asked there is an answer to it."""
    async with serving(head_s=10.0) as http:
        time = LoopTime(monkeypatch)
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(begun)
        assert (await http.health())["dropped"] == {}
        await time.passes(10)
        assert (await reader.read())[:13] == answer
        assert (await http.health())["dropped"] == {"late": 1}
        writer.transport.abort()


@pytest.mark.parametrize(
    ("begun", "status", "dropped"),
    [(HALF, b" 408 ", {"late": 1}), (REFUSED, b" 421 ", {})],
    ids=["headers", "the body of what was refused already"],
)
async def test_a_client_that_sends_byte_by_byte_is_refused(
    begun: bytes, status: bytes, dropped: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each drop comes in time; the request as a whole does not."""
    async with serving(head_s=10.0) as http, asyncio.TaskGroup() as tasks:
        time = LoopTime(monkeypatch)
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(begun)
        reading = tasks.create_task(reader.read())
        for _ in range(4):
            if not reading.done():
                writer.write(b"x")
            await http.health()
            await time.passes(3)
        assert status in await reading
        assert (await http.health())["dropped"] == dropped
        writer.transport.abort()


async def test_the_head_deadline_applies_to_each_request_of_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(head_s=10.0) as http:
        time = LoopTime(monkeypatch)
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        head = f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{http.port}\r\n"
        writer.write(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        await reader.readuntil(b"}}")
        await time.passes(12)  # between two requests there is more time
        writer.write(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode())
        await reader.readuntil(b"}}")
        writer.write(head.encode())
        assert (await http.health())["dropped"] == {}
        await time.passes(10)
        assert b" 408 " in await reader.read()
        assert (await http.health())["dropped"] == {"late": 1}
        writer.transport.abort()


async def test_a_call_that_takes_long_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(head_s=10.0, ping_s=0.01) as http, anyio.create_task_group() as tasks:
        time = LoopTime(monkeypatch)

        async def later() -> None:
            await http.bench.began.wait()
            await time.passes(12)
            http.bench.let_go.set()

        tasks.start_soon(later)
        got = await http.post(call("hang"), mcp_session_id=await http.session())
        assert "let go" in got.text


async def test_unauthenticated_connections_do_not_block_other_clients() -> None:
    async with serving(unauthenticated=3, ping_s=0.01) as http:
        session = await http.session()
        unauthenticated: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        answers: list[str] = []

        async def ask() -> None:
            answers.append((await http.post(call("hang"), mcp_session_id=session)).text)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await http.bench.began.wait()
            for _ in range(6):
                reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
                writer.write(HALF)
                unauthenticated.append((reader, writer))
            with anyio.fail_after(60):
                for reader, _ in unauthenticated[:3]:
                    refused = await reader.read()
                    assert refused.startswith(b"HTTP/1.1 503 ")
                    assert b"retry-after: 1" in refused
            # The connection of this request counts as unauthenticated at first.
            assert (await http.health())["dropped"] == {"crowded": 4}
            http.bench.let_go.set()
        assert "let go" in answers[0]
        assert not any(reader.at_eof() for reader, _ in unauthenticated[4:])
        for _, writer in unauthenticated:
            writer.transport.abort()


# -- deafness -------------------------------------------------------------------------------


LARGE = 3_000_000


async def large(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
    """Answer with a picture: texts are kept short."""
    await asyncio.sleep(0.05)
    return ToolResult([JsonContentBlock({"type": "image", "data": "x" * LARGE, "mimeType": "image/png"})])


def stalled_client(http: Http, frame: Any, session: str, room: int = 4096) -> socket.socket:
    """Connect a client that sends a request and does not read, with a small receive buffer."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    client.connect(("127.0.0.1", http.port))
    body = json.dumps(frame).encode()
    lines = {"Host": f"127.0.0.1:{http.port}", "Authorization": f"Bearer {TOKEN}"}
    lines |= {"Content-Type": "application/json", "Accept": BOTH, "Mcp-Session-Id": session}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    size = f"Content-Length: {len(body)}\r\n\r\n"
    client.sendall(f"POST /mcp HTTP/1.1\r\n{head}{size}".encode() + body)
    return client


@pytest.mark.parametrize("ping_s", [15.0, 0.01], ids=["in one piece", "as events"])
async def test_a_client_that_does_not_read_its_response_is_dropped(
    ping_s: float, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(unread_s=20.0, ping_s=ping_s) as http:
        time = LoopTime(monkeypatch)
        http.bench.add("large", large)
        session = await http.session()
        stalled = [stalled_client(http, {**call("large"), "id": i}, session) for i in range(3)]

        async def given_up() -> bool:
            health = await http.health()
            return health["dropped"] == {"unread": 3} and health["requests"] == 0

        for _ in range(100):
            await time.passes(5)
            if await given_up():
                break
        assert await given_up()
        for client in stalled:
            client.close()
        got = await http.post(call("large"), mcp_session_id=session)
        assert "x" * LARGE in got.text
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert capfd.readouterr().err == ""


async def test_an_unread_response_counts_against_the_quota() -> None:
    answered = asyncio.Event()

    async def answer(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        result = await large(arguments, ctx)
        answered.set()
        return result

    async with serving(requests_each=1, place_s=0) as http:
        http.bench.add("large", answer)
        session = await http.session()
        stalled = stalled_client(http, call("large"), session)

        async def refused() -> bool:
            ping = {"jsonrpc": "2.0", "id": 6, "method": "ping"}
            return (await http.post(ping, mcp_session_id=session)).status_code == 429

        await until(refused)
        await answered.wait()
        for _ in range(10):
            assert await refused()
        stalled.close()

        async def over() -> bool:
            return not await refused()

        await until(over)


async def test_a_slow_reader_gets_all_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes longer than `unread_s`, but reads something each time."""
    async with serving(unread_s=20.0) as http:
        http.bench.add("large", large)
        slow = stalled_client(http, call("large"), await http.session(), room=65_536)
        slow.setblocking(False)
        time = LoopTime(monkeypatch)
        taken, looked = b"", 0
        loop = asyncio.get_running_loop()
        while not taken.endswith(b"}}"):
            part = await loop.sock_recv(slow, 20_000)
            assert part
            taken += part
            if len(taken) > looked + 250_000:
                looked = len(taken)
                await time.passes(5)
        assert taken.count(b"x") >= LARGE
        slow.close()
        assert (await http.health())["dropped"] == {}


async def test_a_stopped_host_does_not_wait_for_clients_that_read_nothing(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_server, "_CLOSE_S", 0.05)
    with anyio.fail_after(60):
        async with serving(stop_s=0.05) as http:
            http.bench.add("large", large)
            stalled = stalled_client(http, call("large"), await http.session())
            stalled.settimeout(60)
            # It has begun to answer.
            assert await asyncio.to_thread(stalled.recv, 8) == b"HTTP/1.1"
    stalled.close()
    assert [record for record in caplog.records if record.levelno > logging.DEBUG] == []
    assert capfd.readouterr().err == ""


# -- places ---------------------------------------------------------------------------------


async def test_an_initialize_notification_opens_no_session() -> None:
    async with serving(sessions=1) as http:
        notice = {k: v for k, v in initialize().items() if k != "id"}
        for _ in range(3):
            refused = await http.post(notice)
            assert refused.status_code == 400
            assert "mcp-session-id" not in refused.headers
        assert (await http.health())["sessions"] == 0
        session = await http.session()
        assert (await http.post(notice, mcp_session_id=session)).status_code == 202
        assert (await http.health())["sessions"] == 1


# -- what a client can read -----------------------------------------------------------------


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_a_client_that_accepts_json_only_waits_for_it_however_long_it_takes(era: str) -> None:
    async with serving(ping_s=0.01) as http, anyio.create_task_group() as tasks:
        frame = call("hang")
        if era == "modern":
            frame["params"]["_meta"] = STAMP
            headers = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call"}
            headers["mcp_name"] = "hang"
        else:
            headers = {"mcp_session_id": await http.session()}

        async def later() -> None:
            await http.bench.began.wait()
            await asyncio.sleep(0.03)  # several times `ping_s`
            http.bench.let_go.set()

        tasks.start_soon(later)
        got = await http.post(frame, accept="application/json", **headers)
        assert got.headers["content-type"] == "application/json"
        assert got.json()["result"]["content"][0]["text"] == "let go"


# -- batches --------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["2025-03-26", "2025-06-18"])
@pytest.mark.parametrize("count", [0, 1, 2])
async def test_a_batch_is_refused(version: str, count: int) -> None:
    """Only revision 2025-03-26 had batches; no client is known that sent them over HTTP."""
    async with serving() as http:
        session = await http.session(version)
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        refused = await http.post([ping] * count, mcp_session_id=session)
        assert refused.status_code == 400
        assert "one JSON-RPC message" in refused.json()["error"]["message"]
