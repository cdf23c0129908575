"""The host over HTTP: access, limits, sessions and the end."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import os
import socket
import stat
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from tests.support.host_clients import TOKEN, host_of
from tests.support.host_tools import Bench
from tests.support.transports import LoopTime
from tests.support.waiting import until

from indusagi.core.app_dirs import state_dir
from indusagi.interop import HttpSettings, ProtocolFault
from indusagi.interop.protocol_bridge.host.http.settings import TOKEN_FILE, build_access_policy, is_loopback, load_token
from indusagi.runtime.contract import ToolProgress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject

BOTH = {"accept": "application/json, text/event-stream", "content-type": "application/json"}
KNOWN = {"authorization": f"Bearer {TOKEN}"}
OTHER = "o" * 64
INITIALIZE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}},
}
STAMP: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Http:
    """A client that sends what the test says."""

    def __init__(self, port: int, bench: Bench, client: httpx2.AsyncClient) -> None:
        self.port, self.bench, self.client = port, bench, client

    async def post(self, frame: Any, path: str = "/mcp", **headers: str) -> httpx2.Response:
        body = frame if isinstance(frame, bytes) else json.dumps(frame).encode()
        sent = {**BOTH, **KNOWN, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return await self.client.post(path, content=body, headers=sent)

    async def modern(self, method: str, **params: Any) -> httpx2.Response:
        frame: dict[str, Any] = {"jsonrpc": "2.0", "id": 5, "method": method}
        named = {"mcp_name": params["name"]} if "name" in params else {}
        return await self.post(
            {**frame, "params": {**params, "_meta": STAMP}},
            mcp_protocol_version="2026-07-28",
            mcp_method=method,
            **named,
        )

    async def session(self, **headers: str) -> str:
        opened = await self.post(INITIALIZE, **headers)
        assert opened.status_code == 200
        return opened.headers["mcp-session-id"]

    def request(self, frame: Any, headers: dict[str, str]) -> bytes:
        """Write a request as bytes, for a client that will not stay."""
        body = json.dumps(frame).encode()
        lines = {**BOTH, **KNOWN, "host": f"127.0.0.1:{self.port}", **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"POST /mcp HTTP/1.1\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body


@asynccontextmanager
async def serving(**settings: Any) -> AsyncGenerator[Http]:
    bench = Bench()
    given: dict[str, Any] = {"tokens": [TOKEN, OTHER], **settings}
    chosen = HttpSettings(**given)
    async with host_of(bench).serve_http(chosen) as host:
        base = f"http://127.0.0.1:{host.port}"
        async with httpx2.AsyncClient(base_url=base, timeout=60) as client:
            yield Http(host.port, bench, client)


def test_a_host_serves_under_plain_asyncio_without_anyio_around_it() -> None:
    """The callbacks of a connection run outside of any task, where anyio cannot tell the event loop."""

    async def open_session() -> None:
        async with serving() as http:
            assert await http.session()

    with asyncio.Runner() as runner:
        runner.get_loop().run_until_complete(asyncio.wait_for(open_session(), 20))


# -- R51, C2: the policy ---------------------------------------------------------------------


@pytest.mark.parametrize("bind", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"authorization": ""}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": f"Basic {TOKEN}"}, 401),
        ({"authorization": f"Bearer {TOKEN}x"}, 401),
        ({"authorization": "Bearer grüße"}, 401),
        ({"host": "evil.com"}, 421),
        ({"host": "evil.com:80"}, 421),
        ({"host": "127.0.0.1.evil.com"}, 421),
        ({"host": "0.0.0.0"}, 421),
        ({"origin": "http://evil.com"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": "http://localhost.evil.com"}, 403),
    ],
    ids=str,
)
async def test_r51_c2_an_unauthorized_request_does_not_reach_a_handler(
    bind: str, headers: dict[str, str], status: int
) -> None:
    async with serving(host=bind) as http:
        sent = {k: v.encode() for k, v in {**BOTH, **KNOWN, **headers}.items()}
        for method, path in (("POST", "/mcp"), ("GET", "/health"), ("OPTIONS", "/mcp")):
            raw = [(name.encode(), value) for name, value in sent.items()]
            got = await http.client.request(method, path, json=INITIALIZE, headers=raw)
            assert got.status_code == status
            assert "access-control-allow-origin" not in got.headers
        assert http.bench.asked == 0


@pytest.mark.parametrize("known", [{}, {"authorization": "Bearer wrong"}, KNOWN])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/register"),
        ("GET", "/.well-known/oauth-protected-resource"),
        ("GET", "/.well-known/oauth-protected-resource/mcp"),
        ("GET", "/.well-known/oauth-authorization-server"),
        ("GET", "/.well-known/openid-configuration"),
        ("GET", "/authorize"),
        ("GET", "/"),
        ("GET", "/mcp/"),
        ("GET", "/MCP"),
        ("GET", "/sse"),
        ("POST", "/messages"),
    ],
)
async def test_an_unserved_path_is_not_found_with_or_without_a_token(
    known: dict[str, str], method: str, path: str
) -> None:
    async with serving() as http:
        got = await http.client.request(method, path, headers=known)
        assert got.status_code == 404
        assert "www-authenticate" not in got.headers
        evil = await http.client.request(method, path, headers={**known, "host": "evil.com"})
        assert evil.status_code == 421
        page = {**known, "origin": "http://evil.com"}
        assert (await http.client.request(method, path, headers=page)).status_code == 403


async def test_a_token_is_required_at_every_served_path() -> None:
    async with serving(path="/tools") as http:
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            for path in ("/tools", "/health"):
                got = await http.client.request(method, path)
                assert (got.status_code, got.headers["www-authenticate"]) == (401, "Bearer")
        assert (await http.client.get("/mcp")).status_code == 404
        assert http.bench.asked == 0


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "LOCALHOST"])
async def test_the_names_of_this_machine_are_let_in(name: str) -> None:
    async with serving() as http:
        host = f"{name}:{http.port}"
        headers = {"host": host, "origin": f"http://{host}"}
        assert (await http.post(INITIALIZE, **headers)).status_code == 200


def test_the_access_policy_allows_its_own_and_the_configured_names_only() -> None:
    settings = HttpSettings(host="0.0.0.0", allowed_hosts=["Tools.example"], allowed_origins=["https://app.example"])
    policy = build_access_policy(settings, ["t"], 80)
    assert policy.hosts == {
        "127.0.0.1", "localhost", "[::1]", "127.0.0.1:80", "localhost:80", "[::1]:80",
        "tools.example",
    }  # fmt: skip
    assert "https://app.example" in policy.origins
    assert "fe80::1" not in build_access_policy(HttpSettings(host="::"), [], 1).hosts
    assert "[fe80::1]:1" in build_access_policy(HttpSettings(host="fe80::1"), [], 1).hosts
    assert "box:1" in build_access_policy(HttpSettings(host="Box"), [], 1).hosts


@pytest.mark.parametrize(
    ("host", "alone"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_loopback_addresses_are_recognized(host: str, alone: bool) -> None:
    assert is_loopback(host) == alone


# -- the token ------------------------------------------------------------------------------


async def test_the_token_is_made_once_and_only_its_user_can_read_it() -> None:
    async with host_of(Bench()).serve_http() as first:
        assert first.token is not None
        assert first.token_path is not None
        assert first.token_path == os.path.join(state_dir(), TOKEN_FILE)
        assert first.token_is_new
        assert len(bytes.fromhex(first.token)) == 32
        assert stat.S_IMODE((await anyio.Path(first.token_path).stat()).st_mode) == 0o600
        assert first.token not in repr(first)
        async with httpx2.AsyncClient() as client:
            headers = {**BOTH, "authorization": f"bearer {first.token}"}
            got = await client.post(first.url, json=INITIALIZE, headers=headers)
            assert got.status_code == 200
    async with host_of(Bench()).serve_http() as second:
        assert (second.token, second.token_is_new) == (first.token, False)


def test_a_token_that_others_can_read_or_that_is_none_is_not_used() -> None:
    kept = load_token()
    os.chmod(kept.path, 0o644)
    with pytest.raises(PermissionError, match="other users may read"):
        load_token()
    os.chmod(kept.path, 0o600)
    with open(kept.path, "w", encoding="ascii") as file:
        file.write("short")
    with pytest.raises(ValueError, match="no token"):
        load_token()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"tokens": None, "without_token": True, "host": "0.0.0.0"}, "loopback address"),
        ({"tokens": []}, "32 characters"),
        ({"tokens": ["short"]}, "32 characters"),
        ({"host": "203.0.113.7"}, "can't listen"),
    ],
)
async def test_a_host_that_cannot_start_is_a_transport_fault(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ProtocolFault, match=why) as caught:
        async with serving(**settings):
            raise AssertionError
    assert caught.value.kind == "transport"


async def test_a_port_in_use_is_a_transport_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(ProtocolFault, match="can't listen"):
            async with serving(port=taken.getsockname()[1]):
                raise AssertionError


async def test_the_token_can_be_switched_off_on_this_machine() -> None:
    async with serving(tokens=None, without_token=True) as http:
        got = await http.client.post("/mcp", json=INITIALIZE, headers=BOTH)
        assert got.status_code == 200
        evil = await http.client.post("/mcp", json=INITIALIZE, headers={**BOTH, "host": "evil.com"})
        assert evil.status_code == 421


async def test_c27_the_token_of_a_client_goes_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    async with serving() as http:
        got = await http.modern("tools/call", name="env", arguments={})
        assert got.status_code == 200
        assert TOKEN not in got.text
    assert TOKEN not in caplog.text


# -- sessions -------------------------------------------------------------------------------


async def test_a_session_belongs_to_its_token() -> None:
    async with serving() as http:
        session = await http.session()
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await http.post(ping, mcp_session_id=session)).json()["result"] == {}
        stolen = await http.post(ping, mcp_session_id=session, authorization=f"Bearer {OTHER}")
        assert stolen.status_code == 404
        gone = {**KNOWN, "mcp-session-id": session}
        assert (await http.client.delete("/mcp", headers=gone)).status_code == 200
        assert (await http.post(ping, mcp_session_id=session)).status_code == 404
        assert (await http.post(ping)).status_code == 400


async def test_a_call_that_is_cut_off_by_the_end_of_its_session_gets_no_response() -> None:
    """Clients of the Python SDK 1 fail if a response arrives between their DELETE and its answer."""
    responses: list[httpx2.Response] = []
    async with serving() as http:
        session = await http.session()

        async def call() -> None:
            frame: dict[str, Any] = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "hang"}}
            responses.append(await http.post(frame, mcp_session_id=session))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await until(lambda: http.bench.seen["hang"] == 1)
            ended = await http.client.delete("/mcp", headers={**KNOWN, "mcp-session-id": session})
            assert ended.status_code == 200
    (response,) = responses
    assert (response.status_code, response.text) == (200, "")
    assert response.headers["content-type"] == "text/event-stream"


async def test_r52_sessions_are_limited_and_a_failed_handshake_counts_not() -> None:
    async with serving(spare_s=60.0) as http:
        bad: dict[str, Any] = {**INITIALIZE, "params": {}}
        assert (await http.post(bad)).json()["error"]["code"] == -32602
        statuses: list[int] = []

        async def open_one() -> None:
            statuses.append((await http.post(INITIALIZE)).status_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(100):
                tasks.start_soon(open_one)
        assert sorted(statuses) == [200] * 16 + [503] * 84
        assert (await http.post(INITIALIZE)).headers["retry-after"] == "60"
        health = await http.client.get("/health", headers=KNOWN)
        counts: dict[str, Any] = {"sessions": 16, "requests": 0, "waiting": 0, "dropped": {}}
        assert health.json() == {"status": "ok", **counts}
        assert (await http.modern("server/discover")).status_code == 200


async def test_an_idle_session_makes_place_for_a_new_one() -> None:
    async with serving(sessions=2, spare_s=0.0) as http:
        sessions = [await http.session() for _ in range(3)]
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        found = [(await http.post(ping, mcp_session_id=one)).status_code for one in sessions]
        assert found == [404, 200, 200]


async def test_a_session_that_is_idle_for_too_long_ends() -> None:
    async with serving(idle_s=0.05) as http:
        await http.session()

        async def ended() -> bool:
            health = await http.client.get("/health", headers=KNOWN)
            return health.json()["sessions"] == 0

        await until(ended)


async def test_a_session_has_one_stream() -> None:
    async with serving(ping_s=0.02) as http:
        session = await http.session()
        headers = {**KNOWN, "accept": "text/event-stream", "mcp-session-id": session}
        async with http.client.stream("GET", "/mcp", headers=headers) as stream:
            assert stream.status_code == 200
            lines = stream.aiter_lines()
            assert (await anext(lines)).strip() == ":"  # a sign of life
            second = await http.client.get("/mcp", headers=headers)
            assert second.status_code == 409
        json_only = {**headers, "accept": "application/json"}
        assert (await http.client.get("/mcp", headers=json_only)).status_code == 406


# -- R52, C22: what a client may send -------------------------------------------------------


@contextmanager
def no_collection() -> Generator[None]:
    """Keep what others have left from being cleared away where the stack has no room for that."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@pytest.mark.parametrize("version", [None, "2026-07-28"])
@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"x" * 5_000_000, 413),
        (b'{"a":' * 200_000, 400),
        (b"[" * 200_000, 400),
        (b"{", 400),
        (b"\xff", 400),
        (b"[]", 400),
        (b"null", 400),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', 400),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', 400),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', 400),
        (b'{"jsonrpc":"2.0","id":1,"method":7}', 400),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_r52_c22_an_invalid_body_is_refused_and_the_host_goes_on(
    version: str | None, body: bytes, status: int
) -> None:
    async with serving() as http:
        session = await http.session()
        named = {} if version is None else {"mcp_protocol_version": version}
        with no_collection() if len(body) > 100_000 else nullcontext():
            got = await http.post(body, mcp_session_id=session, **named)
        assert got.status_code == status
        assert got.json()["error"]["message"]
        ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        assert (await http.post(ping, mcp_session_id=session)).status_code == 200


async def test_r52_a_body_without_a_length_is_counted() -> None:
    async def endless() -> AsyncGenerator[bytes]:
        for _ in range(80):
            yield b"x" * 65_536

    async with serving() as http:
        headers = {**BOTH, **KNOWN}
        got = await http.client.post("/mcp", content=endless(), headers=headers)
        assert got.status_code == 413


async def test_a_body_that_does_not_come_is_not_waited_for() -> None:
    async with serving(body_s=0.05) as http:
        whole = http.request(INITIALIZE, {})
        reader, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(whole[:-5])
        assert b" 408 " in await reader.readline()
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_type": "text/plain"}, 415),
        ({"accept": "text/html"}, 406),
        ({"accept": "text/html", "mcp_protocol_version": "2026-07-28"}, 406),
    ],
)
async def test_invalid_messages_are_refused(headers: dict[str, str], status: int) -> None:
    async with serving() as http:
        assert (await http.post(INITIALIZE, **headers)).status_code == status


@pytest.mark.parametrize(
    "body",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"fail"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","id":2}',
        rb'{"jsonrpc":"2.0","id":"\ud800","method":"ping"}',
    ],
)
@pytest.mark.parametrize("version", [None, "2026-07-28"])
async def test_finding_w2_r11_a_body_that_two_readers_read_differently_is_refused(
    body: bytes, version: str | None
) -> None:
    async with serving() as http:
        named = {} if version is None else {"mcp_protocol_version": version}
        got = await http.post(body, mcp_session_id=await http.session(), **named)
        assert (got.status_code, got.json()["id"], got.json()["error"]["code"]) == (400, None, -32700)
        assert http.bench.seen.total() == 0


@pytest.mark.parametrize(
    "frame",
    [
        {"jsonrpc": "2.0", "id": 1, "Method": "tools/call", "params": {"name": "echo"}},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "Params": {"name": "echo"}},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"Name": "echo"}},
        {"jsonrpc": "2.0", "id": 1, "method": "Tools/Call", "params": {"name": "echo"}},
        {"JSONRPC": "2.0", "id": 1, "method": "tools/call", "params": {"name": "echo"}},
    ],
)
async def test_a_field_in_other_letters_is_another_field(frame: dict[str, Any]) -> None:
    async with serving() as http:
        await http.post(frame, mcp_session_id=await http.session())
        assert http.bench.seen["echo"] == 0
        good = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo"}}
        await http.post(good, mcp_session_id=await http.session())
        assert http.bench.seen["echo"] == 1


@pytest.mark.parametrize(
    ("method", "path", "version", "status"),
    [
        ("PUT", "/mcp", None, 405),
        ("GET", "/mcp", "2026-07-28", 405),
        ("GET", "/nothing", None, 404),
        ("POST", "/health", None, 405),
        ("GET", "/sse", None, 404),
        ("POST", "/messages", None, 404),
    ],
)
async def test_unknown_methods_and_tools_are_reported(method: str, path: str, version: str | None, status: int) -> None:
    async with serving() as http:
        headers = KNOWN if version is None else {**KNOWN, "mcp-protocol-version": version}
        assert (await http.client.request(method, path, headers=headers)).status_code == status


async def test_headers_must_agree_with_the_body() -> None:
    async with serving() as http:
        frame: dict[str, Any] = {"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": {"_meta": STAMP}}
        for headers, code in (
            ({"mcp_method": "tools/call"}, -32020),
            ({"mcp_method": "tools/list", "mcp_protocol_version": "2031-01-01"}, -32020),
        ):
            sent = {"mcp_protocol_version": "2026-07-28", **headers}
            got = await http.post(frame, **sent)
            assert (got.status_code, got.json()["error"]["code"]) == (400, code)
        called = await http.modern("tools/call", name="headed", arguments={"region": "north"})
        assert (called.status_code, called.json()["error"]["code"]) == (400, -32020)
        unknown = await http.modern("prompts/list")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, -32601)
        shake = await http.modern("initialize")
        assert (shake.status_code, shake.json()["error"]["code"]) == (404, -32601)
        assert http.bench.seen["echo"] == 0


async def test_headers_that_come_twice_are_refused() -> None:
    async with serving() as http:
        frame: dict[str, Any] = {"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": {"_meta": STAMP}}
        for name in ("mcp-method", "mcp-param-region"):
            headers = [*BOTH.items(), *KNOWN.items(), ("mcp-protocol-version", "2026-07-28")]
            headers += [(name, "tools/list"), (name, "tools/list")]
            got = await http.client.post("/mcp", json=frame, headers=headers)
            assert (got.status_code, got.json()["error"]["code"]) == (400, -32020)


async def test_notifications_get_no_response() -> None:
    async with serving() as http:
        notice = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        session = await http.session()
        assert (await http.post(notice, mcp_session_id=session)).status_code == 202
        modern = await http.post(notice, mcp_protocol_version="2026-07-28")
        assert modern.status_code == 202
        unknown = await http.post(notice, mcp_protocol_version="2031-01-01")
        assert (unknown.status_code, unknown.json()["error"]["code"]) == (400, -32022)


async def test_a_client_that_accepts_json_only_gets_the_response_alone() -> None:
    async with serving() as http:
        frame: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": 5,
            "method": "tools/call",
            "params": {"name": "steps", "_meta": {**STAMP, "progressToken": 1}},
        }
        named = {"mcp_protocol_version": "2026-07-28", "mcp_method": "tools/call"}
        got = await http.post(frame, accept="application/json", mcp_name="steps", **named)
        assert got.json()["result"]["content"][0]["text"] == "walked"
        listen = {"jsonrpc": "2.0", "id": 5, "method": "subscriptions/listen"}
        sent: dict[str, Any] = {**listen, "params": {"_meta": STAMP, "notifications": {}}}
        named = {"mcp_protocol_version": "2026-07-28", "mcp_method": "subscriptions/listen"}
        assert (await http.post(sent, accept="application/json", **named)).status_code == 406


async def test_a_silent_call_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(ping_s=5.0) as http, anyio.create_task_group() as tasks:
        time = LoopTime(monkeypatch)

        async def later() -> None:
            await http.bench.began.wait()
            await time.passes(5)
            await time.passes(5)
            http.bench.let_go.set()

        tasks.start_soon(later)
        got = await http.modern("tools/call", name="hang", arguments={})
        assert got.headers["content-type"] == "text/event-stream"
        assert got.text.startswith(": ")
        data = [line for line in got.text.splitlines() if line.startswith("data: ")]
        assert json.loads(data[0][6:])["result"]["content"][0]["text"] == "let go"


# -- R52: leaving ---------------------------------------------------------------------------


@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_r52_a_client_that_vanishes_has_its_call_cancelled(era: str) -> None:
    async with serving() as http:
        params: dict[str, Any] = {"name": "hang", "arguments": {}}
        headers: dict[str, str] = {}
        if era == "modern":
            params["_meta"] = STAMP
            headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
            headers["mcp-name"] = "hang"
        else:
            headers["mcp-session-id"] = await http.session()
        frame: dict[str, Any] = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        _, writer = await asyncio.open_connection("127.0.0.1", http.port)
        writer.write(http.request(frame, headers))
        await http.bench.began.wait()
        writer.transport.abort()
        with anyio.fail_after(60):
            await http.bench.ended.wait()
        assert http.bench.reasons == ["the client went away"]
        await until(lambda: http.bench.seen["hang"] == 1)
        assert (await http.modern("server/discover")).status_code == 200


async def test_r52_a_client_that_stays_and_reads_nothing_is_dropped() -> None:
    ended = asyncio.Event()

    async def flood(arguments: JsonObject, ctx: ToolContext) -> str:
        assert ctx.on_progress is not None
        try:
            for step in itertools.count():
                ctx.on_progress(ToolProgress(step, message="x" * 65_536))
                await asyncio.sleep(0)
        finally:
            ended.set()
        raise AssertionError

    async with serving(unread_s=0.1) as http:
        http.bench.add("flood", flood)
        meta = {**STAMP, "progressToken": 1}
        params = {"name": "flood", "arguments": {}, "_meta": meta}
        frame = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": params}
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call"}
        with socket.create_connection(("127.0.0.1", http.port)) as stalled:
            stalled.sendall(http.request(frame, {**headers, "mcp-name": "flood"}))
            with anyio.fail_after(60):
                await ended.wait()
        assert (await http.modern("server/discover")).status_code == 200


async def test_a_cancelled_http_request_gets_an_error_response() -> None:
    async with serving() as http:
        session = await http.session()
        call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "hang"}}
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled"}
        answers: list[httpx2.Response] = []

        async def ask() -> None:
            answers.append(await http.post(call, mcp_session_id=session))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await http.bench.began.wait()
            sent = {**notice, "params": {"requestId": 5}}
            assert (await http.post(sent, mcp_session_id=session)).status_code == 202
        assert answers[0].json()["error"]["code"] == -32800


async def test_a_request_that_waits_is_cancelled_by_its_client_and_by_the_end_of_its_session() -> None:
    async with serving(requests_each=1) as http:

        async def call(session: str, request_id: int, name: str, into: list[int]) -> None:
            frame = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": {"name": name}}
            into.append((await http.post(frame, mcp_session_id=session)).status_code)

        async def is_waiting() -> bool:
            health = await http.client.get("/health", headers=KNOWN)
            return bool(health.json()["waiting"])

        for end in ("cancelled", "deleted"):
            session, hung, waited = await http.session(), list[int](), list[int]()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call, session, 5, "hang", hung)
                await http.bench.began.wait()
                tasks.start_soon(call, session, 6, "echo", waited)
                await until(is_waiting)
                if end == "cancelled":
                    notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 6}}
                    assert (await http.post(notice, mcp_session_id=session)).status_code == 202
                    await until(lambda waited=waited: waited == [400])
                    http.bench.let_go.set()
                else:
                    ended = await http.client.delete("/mcp", headers={**KNOWN, "mcp-session-id": session})
                    assert ended.status_code == 200
            assert (hung, waited) == ([200], [400 if end == "cancelled" else 404])
            http.bench.let_go.clear()
            http.bench.began.clear()
        assert http.bench.seen["echo"] == 0


@pytest.mark.parametrize(("settings", "status"), [({"requests": 2}, 503), ({"requests_each": 2}, 429)])
async def test_r52_there_is_a_limit_to_requests_at_once(settings: dict[str, int], status: int) -> None:
    async with serving(**settings, place_s=0) as http:
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(lambda: http.modern("tools/call", name="hang", arguments={}))
            await until(lambda: http.bench.seen["hang"] == 2)
            refused = await http.modern("tools/list")
            assert refused.status_code == status
            assert refused.headers["retry-after"] == "1"
            http.bench.let_go.set()
        assert (await http.modern("tools/list")).status_code == 200


async def test_there_is_a_limit_to_streams() -> None:
    async with serving(streams=0) as http:
        got = await http.modern("subscriptions/listen", notifications={})
        assert got.status_code == 503


async def test_a_stopped_host_lets_calls_finish_and_streams_end_in_good_order() -> None:
    bench = Bench()
    got: list[httpx2.Response] = []
    async with httpx2.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:
        async with host_of(bench).serve_http(HttpSettings(tokens=[TOKEN])) as host:
            http = Http(host.port, bench, client)
            client.base_url = f"http://127.0.0.1:{host.port}"

            async def ask(method: str, **params: Any) -> None:
                got.append(await http.modern(method, **params))

            async def finish() -> None:
                refused = await http.modern("tools/list")
                while refused.status_code == 200:
                    refused = await http.modern("tools/list")
                assert refused.status_code == 503
                bench.let_go.set()

            tasks.start_soon(lambda: ask("tools/call", name="hang", arguments={}))
            tasks.start_soon(lambda: ask("subscriptions/listen", notifications={}))
            await bench.began.wait()
            tasks.start_soon(finish)
        assert {answer.status_code for answer in got} == {200}
        assert any("let go" in answer.text for answer in got)
        assert any("subscriptions/acknowledged" in answer.text for answer in got)


async def test_calls_that_outlast_the_stop_are_cancelled() -> None:
    bench = Bench()
    settings = HttpSettings(tokens=[TOKEN], stop_s=0.05)
    async with httpx2.AsyncClient(timeout=60) as client, anyio.create_task_group() as tasks:
        async with host_of(bench).serve_http(settings) as host:
            client.base_url = f"http://127.0.0.1:{host.port}"
            http = Http(host.port, bench, client)
            session = await http.session()
            call = {"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "hang"}}
            tasks.start_soon(lambda: http.modern("tools/call", name="hang", arguments={}))
            tasks.start_soon(lambda: http.post(call, mcp_session_id=session))
            await until(lambda: bench.seen["hang"] == 2)
        assert bench.reasons == ["the host was stopped"] * 2


def test_a_state_directory_of_another_user_is_not_used(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "indus").symlink_to(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(PermissionError):
        load_token()
