"""HTTP/1.1 connections of a host: every refusal is a response, and no request hides in another."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import sys
import tomllib
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.host_clients import TOKEN, host_of
from tests.support.host_tools import Bench
from tests.support.scripts import ROOT
from tests.support.waiting import LIMIT_S, until

from indusagi.interop import HttpSettings
from indusagi.interop.protocol_bridge.host.http.request import check_head
from indusagi.interop.protocol_bridge.host.http.server import allow_connections

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

LIMIT = 4 * 1024 * 1024
STAMP: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Raw:
    """A client that writes bytes and reads all that comes back."""

    def __init__(self, port: int, bench: Bench) -> None:
        self.port, self.bench = port, bench

    async def send(self, data: bytes, *, eof: bool = False) -> bytes:
        """Send, and read until the host closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(data)
            if eof:
                writer.write_eof()
            with anyio.fail_after(LIMIT_S):
                return await reader.read()
        finally:
            writer.transport.abort()

    def head(self, *lines: str, method: str = "POST", version: str = "1.1") -> bytes:
        known = [f"Host: 127.0.0.1:{self.port}", f"Authorization: Bearer {TOKEN}"]
        known += ["Content-Type: application/json", "Accept: application/json"]
        return "\r\n".join([f"{method} /mcp HTTP/{version}", *known, *lines, "", ""]).encode()

    def call(self, identity: int, *lines: str) -> bytes:
        """Write a call of `hang` that stands alone."""
        params = {"name": "hang", "arguments": {}, "_meta": STAMP}
        frame = {"jsonrpc": "2.0", "id": identity, "method": "tools/call", "params": params}
        body = json.dumps(frame).encode()
        named = ["MCP-Protocol-Version: 2026-07-28", "Mcp-Method: tools/call", "Mcp-Name: hang"]
        return self.head(*named, f"Content-Length: {len(body)}", *lines) + body


@asynccontextmanager
async def serving(**settings: Any) -> AsyncGenerator[Raw]:
    bench = Bench()
    async with host_of(bench).serve_http(HttpSettings(tokens=[TOKEN], **settings)) as host:
        yield Raw(host.port, bench)


def status_of(answer: bytes) -> int:
    """Read the status of an answer; 0 if the connection was closed without one."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


# -- the head ---------------------------------------------------------------------------------

CHUNKED = "Transfer-Encoding: chunked"
FRAMINGS: list[tuple[int, list[str]]] = [
    (413, ["Content-Length: 100000000000000000000"]),
    (413, ["Content-Length: " + "9" * 400]),
    (413, [f"Content-Length: {LIMIT + 1}"]),
    (400, ["Content-Length: 2", CHUNKED]),
    (400, [CHUNKED, "content-length: 0"]),
    (400, ["Content-Length: 2", "Content-Length: 2"]),
    (400, ["Content-Length: 2", "Content-Length: 3"]),
    (400, ["Content-Length: 2, 2"]),
    (400, ["Content-Length: -1"]),
    (400, ["Content-Length: +2"]),
    (400, ["Content-Length: 0x2"]),
    (400, ["Content-Length: 2 2"]),
    (400, ["Content-Length: 1e3"]),
    (400, ["Content-Length:"]),
    (400, ["Content-Length : 2"]),
    (400, ["X: a", " Content-Length: 2"]),
    (501, ["Transfer-Encoding: identity"]),
    (501, ["Transfer-Encoding: chunked, chunked"]),
    (501, ["Transfer-Encoding: gzip, chunked"]),
    (431, ["X: " + "a" * 70_000]),
]  # fmt: skip


@pytest.mark.parametrize(("status", "lines"), FRAMINGS, ids=lambda value: str(value)[:40])
async def test_finding_d11_a_head_that_can_be_read_two_ways_is_answered_at_once(status: int, lines: list[str]) -> None:
    """Nothing is waited for: the limits of time are far away."""
    async with serving(head_s=600, body_s=600) as raw:
        answer = await raw.send(raw.head(*lines))
        assert status_of(answer) == status
        assert b"connection: close" in answer
        assert raw.bench.asked == 0


async def test_finding_d11_a_version_with_other_framing_is_refused() -> None:
    async with serving(head_s=600, body_s=600) as raw:
        assert status_of(await raw.send(raw.head(CHUNKED, version="1.0"))) == 400
        assert status_of(await raw.send(raw.head(version="2.0"))) == 505


@given(before=st.integers(0, 3), zeros=st.integers(0, 30), size=st.integers(0, 10**30))
def test_finding_d11_a_content_length_of_any_length_is_compared_with_the_limit(
    before: int, zeros: int, size: int
) -> None:
    value = b" " * before + b"0" * zeros + str(size).encode()
    fault = check_head(b"POST / HTTP/1.1\r\nContent-Length:%b\r\n\r\n" % value, LIMIT)
    expected = (413, f"the body has more than {LIMIT:,} bytes") if size > LIMIT else None
    assert (fault if fault is None else (fault.status, str(fault))) == expected


@given(st.text("0123456789,+-_ xeE.abc٣", min_size=1))
def test_finding_d11_a_content_length_that_is_not_one_number_is_refused(value: str) -> None:
    data = b"POST / HTTP/1.1\r\nContent-Length: " + value.encode() + b"\r\n\r\n"
    number = value.strip(" ")
    fault = check_head(data, LIMIT)
    if number.isascii() and number.isdigit():
        assert fault is None or fault.status == 413
    else:
        assert fault is not None
        assert fault.status == 400


def test_a_head_that_has_not_ended_is_not_judged() -> None:
    assert check_head(b"POST / HTTP/1.1\r\nContent-Length: x\r\n", LIMIT) is None


async def test_finding_d11_a_request_in_the_body_of_a_refused_one_is_not_answered() -> None:
    async with serving(head_s=600, body_s=600) as raw:
        smuggled = raw.head("Content-Length: 5", CHUNKED) + b"0\r\n\r\n" + raw.call(1)
        answer = await raw.send(smuggled)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert status_of(answer) == 400
        assert raw.bench.seen["hang"] == 0


async def test_finding_d11_the_second_of_two_requests_in_one_packet_is_checked_too() -> None:
    async with serving(head_s=600, body_s=600) as raw:
        raw.bench.let_go.set()
        answer = await raw.send(raw.call(1) + raw.head("Content-Length: 2", CHUNKED))
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert b"HTTP/1.1 400 " in answer


# -- the body ---------------------------------------------------------------------------------


async def test_finding_d11_chunks_that_are_mostly_framing_are_refused() -> None:
    async with serving(head_s=600, body_s=600) as raw:
        chunk = b"1;" + b"x" * 4_000 + b"\r\na\r\n"
        assert status_of(await raw.send(raw.head(CHUNKED) + chunk * 800)) == 400


@pytest.mark.parametrize("size", [b"ffffffffffffffffff", b"1000001", b"7fffffff;name=value"])
async def test_finding_d11_a_chunk_that_announces_too_much_is_refused_before_its_data(size: bytes) -> None:
    async with serving(head_s=600, body_s=600) as raw:
        assert status_of(await raw.send(raw.head(CHUNKED) + size + b"\r\n")) == 413


async def test_finding_d11_an_invalid_chunk_length_is_refused() -> None:
    async with serving(head_s=600, body_s=600) as raw:
        assert status_of(await raw.send(raw.head(CHUNKED) + b"not a length\r\n")) == 400


async def test_a_body_in_chunks_of_one_byte_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "indusagi.interop.protocol_bridge.host.http.connection._FRAMING_BYTES"
    monkeypatch.setattr(place, 8 * 1024)
    async with serving(body_s=600) as raw:
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "ping"}).encode().ljust(10_000)
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
        answer = await raw.send(raw.head(CHUNKED, "Connection: close") + chunks)
        # It was read to its end: what is missing is a session.
        assert b"Mcp-Session-Id is missing" in answer


async def test_finding_d11_a_client_that_goes_on_sending_gets_its_refusal() -> None:
    """Closing while it sends would reset the connection, and the answer would be lost."""
    async with serving(head_s=600, body_s=600) as raw:
        chunks = b"10000\r\n%b\r\n" % (b"a" * 65_536) * 160
        assert status_of(await raw.send(raw.head(CHUNKED) + chunks)) == 413
        wrong = raw.head(CHUNKED).replace(TOKEN.encode(), b"wrong")
        assert status_of(await raw.send(wrong + chunks)) == 401


@pytest.mark.parametrize("cut", [30, -5], ids=["in the head", "in the body"])
async def test_finding_d11_a_request_that_breaks_off_is_answered(cut: int) -> None:
    async with serving(head_s=600, body_s=600) as raw:
        assert status_of(await raw.send(raw.call(1)[:cut], eof=True)) == 400


async def test_finding_f1_a_refused_head_request_has_no_body(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(head_s=600, body_s=600) as raw:
        answer = await raw.send(raw.head("Content-Length: 5", method="HEAD").replace(b"/mcp", b"/health", 1), eof=True)
        assert status_of(answer) == 400
        assert answer.endswith(b"\r\n\r\n")
    assert "failed in" not in caplog.text


async def test_finding_d11_a_wrong_method_gets_an_allow_header() -> None:
    async with serving() as raw:
        head = raw.head("Connection: close", method="PUT").replace(b"/mcp", b"/health", 1)
        answer = await raw.send(head)
        assert status_of(answer) == 405
        assert b"allow: GET" in answer


# -- HTTP/1.1 ---------------------------------------------------------------------------------


async def test_pipelined_requests_are_answered_in_order() -> None:
    count = 2_000  # more than the interpreter allows to nest
    async with serving() as raw:
        head = raw.head(method="GET").replace(b"/mcp", b"/health", 1)
        last = raw.head("Connection: close", method="GET").replace(b"/mcp", b"/missing", 1)
        answer = await raw.send(head * count + last)
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == count
    assert answer.index(b"HTTP/1.1 404 ") > answer.rindex(b"HTTP/1.1 200 ")


async def test_the_body_is_requested_from_a_client_that_waits_for_it() -> None:
    """https://www.rfc-editor.org/rfc/rfc9110#section-10.1.1."""
    async with serving() as raw:
        reader, writer = await asyncio.open_connection("127.0.0.1", raw.port)
        with anyio.fail_after(LIMIT_S):
            writer.write(raw.head("Content-Length: 2", "Expect: 100-continue", "Connection: close"))
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 \r\n\r\n"
            writer.write(b"{}")
            assert status_of(await reader.read()) == 400
        writer.transport.abort()


async def test_a_refused_client_is_not_asked_for_its_body() -> None:
    async with serving() as raw:
        head = raw.head("Content-Length: 2", "Expect: 100-continue").replace(TOKEN.encode(), b"wrong")
        assert status_of(await raw.send(head)) == 401


async def test_head_gets_the_headers_alone() -> None:
    async with serving() as raw:
        answer = await raw.send(raw.head("Connection: close", method="HEAD"))
    head, _, body = answer.partition(b"\r\n\r\n")
    assert status_of(head) == 405
    assert b"\r\ndate: " in head
    assert body == b""


async def test_a_client_of_http_1_0_gets_its_answer_and_the_end_of_the_connection() -> None:
    async with serving() as raw:
        head = raw.head(method="GET", version="1.0").replace(b"/mcp", b"/health", 1)
        answer = await raw.send(head)
    assert status_of(answer) == 200
    assert answer.endswith(b"}")


async def test_an_error_inside_of_the_host_is_an_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise LookupError("a defect")

    monkeypatch.setattr("indusagi.interop.protocol_bridge.host.http.app.HostApp.handle", fail)
    async with serving() as raw:
        answer = await raw.send(raw.head("Connection: close", method="GET"))
    assert status_of(answer) == 500
    assert b"a defect" not in answer
    assert "a defect" in caplog.text


# -- many at once -----------------------------------------------------------------------------


async def test_finding_d11_a_thousand_requests_in_flight_are_all_answered() -> None:
    """With the numbers that hold by default, and the token of one client; a busy machine may take its time."""
    count = 1_000
    allow_connections(2 * count)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * count + 100:
        pytest.skip("the system allows too few open files")
    statuses: Counter[int] = Counter()
    async with serving(head_s=600, body_s=600) as raw:

        async def ask(identity: int) -> None:
            statuses[status_of(await raw.send(raw.call(identity, "Connection: close")))] += 1

        async with anyio.create_task_group() as tasks:
            for identity in range(count):
                tasks.start_soon(ask, identity)
            await until(lambda: raw.bench.seen["hang"] == count)
            raw.bench.let_go.set()
    assert statuses == {200: count}


async def test_finding_d11_beyond_the_limits_every_request_gets_a_status() -> None:
    limits = {"connections": 60, "unauthenticated": 40, "requests": 30, "requests_each": 20, "place_s": 0}
    count = 300
    answers: list[bytes] = []
    async with serving(**limits) as raw:

        async def ask(identity: int) -> None:
            answers.append(await raw.send(raw.call(identity, "Connection: close")))

        async with anyio.create_task_group() as tasks:
            for identity in range(count):
                tasks.start_soon(ask, identity)
            await until(lambda: raw.bench.seen["hang"] + len(answers) == count)
            raw.bench.let_go.set()
    statuses = Counter(status_of(answer) for answer in answers)
    assert statuses.keys() <= {200, 429, 503}
    assert statuses[200] == 20
    refusals = [answer for answer in answers if status_of(answer) != 200]
    assert all(b"retry-after: " in answer for answer in refusals)


async def test_finding_d11_a_connection_beyond_the_limit_gets_its_answer() -> None:
    async with serving(connections=1) as raw, anyio.create_task_group() as tasks:
        tasks.start_soon(raw.send, raw.call(1, "Connection: close"))
        await raw.bench.began.wait()
        answer = await raw.send(raw.call(2))
        assert status_of(answer) == 503
        assert b"retry-after: 1" in answer
        assert b"connection: close" in answer
        raw.bench.let_go.set()


@pytest.mark.parametrize("settings", [{"requests": 1}, {"requests_each": 1}, {"streams": 0}])
async def test_finding_d11_each_limit_names_when_to_try_again(settings: dict[str, int]) -> None:
    async with serving(**settings, place_s=0) as raw, anyio.create_task_group() as tasks:
        tasks.start_soon(raw.send, raw.call(1, "Connection: close"))
        await raw.bench.began.wait()
        second = raw.call(2, "Connection: close")
        if "streams" in settings:
            method = b"subscriptions/listen"
            second = second.replace(b"tools/call", method).replace(b"Mcp-Name: hang\r\n", b"")
            second = second.replace(b'"name": "hang", ', b'"notifications": {}, "n": 1, ')
            head, _, body = second.partition(b"\r\n\r\n")
            size = b"Content-Length: %d" % len(body)
            lines = [size if b"Content-Length" in line else line for line in head.split(b"\r\n")]
            second = b"\r\n".join(lines) + b"\r\n\r\n" + body
            second = second.replace(b"Accept: application/json", b"Accept: */*")
        answer = await raw.send(second)
        assert status_of(answer) in {429, 503}
        assert b"retry-after: 1" in answer
        raw.bench.let_go.set()


async def test_finding_d11_refused_clients_that_stay_are_hung_up_on_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indusagi.interop.protocol_bridge.host.http.quota.LINGERING", 2)
    async with serving() as raw:
        clients: list[socket.socket] = []
        for _ in range(4):
            client = socket.create_connection(("127.0.0.1", raw.port))
            clients.append(client)
            client.settimeout(LIMIT_S)
            client.sendall(raw.head("Content-Length: -1"))
            assert await asyncio.to_thread(client.recv, 12) == b"HTTP/1.1 400"

        async def is_reset(client: socket.socket) -> bool:
            # Of a connection that is gone, writing says so: the first time it is only refused.
            try:
                client.send(b"x")
            except OSError:
                return True
            return False

        for client in clients[:2]:
            await until(lambda client=client: is_reset(client))
        for client in clients[2:]:
            assert not await is_reset(client)
        for client in clients:
            client.close()


# -- descriptors ------------------------------------------------------------------------------

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), int(sys.argv[2])))
from indusagi.interop.protocol_bridge.host.http.server import allow_connections
print(allow_connections(int(sys.argv[3])), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.process
@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "response"),
    [(256, 1024, 100, (100, 868)), (256, 1024, 2048, (510, 1024)), (1000, 1024, 100, (100, 1000))],
    ids=["raised", "as far as it may be", "enough"],
)
def test_finding_d11_the_limit_of_open_files_is_raised_to_what_is_needed(
    soft: int, hard: int, wanted: int, response: tuple[int, int]
) -> None:
    command = [sys.executable, "-c", LIMITED, str(soft), str(hard), str(wanted)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    allowed, raised = map(int, ran.stdout.split())
    assert raised == response[1]
    # Half of the descriptors that are left: the interpreter has a few open.
    assert allowed == response[0] or 490 <= allowed <= response[0]


def test_finding_d11_a_limit_that_cannot_be_raised_lowers_the_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not here")

    limits = [(256, resource.RLIM_INFINITY), (20, 20)]

    def tell(_: int) -> tuple[int, int]:
        return limits.pop(0)

    monkeypatch.setattr(resource, "setrlimit", refuse)
    monkeypatch.setattr(resource, "getrlimit", tell)
    monkeypatch.setattr("indusagi.interop.protocol_bridge.host.http.server._count_open_files", lambda: 16)
    assert [allow_connections(1_000), allow_connections(1_000)] == [120, 4]


# -- the parser -------------------------------------------------------------------------------


def test_finding_d11_the_parser_still_has_the_private_name_that_is_read() -> None:
    """`HttpConnection` reads the length of the present chunk from h11's reader, which has no public name for it."""
    parser = h11.Connection(h11.SERVER)
    parser.receive_data(b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n7b\r\n")
    parser.next_event()
    assert parser.next_event() is h11.NEED_DATA
    assert parser._reader._bytes_in_chunk == 0x7B  # pyright: ignore — the private name is the point
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "h11>=0.16,<1" in set(required)
