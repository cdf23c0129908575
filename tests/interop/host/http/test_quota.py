"""The quota of a host behind HTTP: who waits, who is refused, and what is bounded in bytes."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.host_clients import TOKEN, host_of
from tests.support.host_tools import Bench
from tests.support.scripts import ROOT
from tests.support.waiting import LIMIT_S, until

from indusagi.interop import HostLimits, HttpSettings
from indusagi.interop.protocol_bridge.host import outgoing as waiting
from indusagi.interop.protocol_bridge.host.http.quota import Place, Quota
from indusagi.interop.protocol_bridge.host.http.request import HttpRefusal, SiteResponse
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.runtime.contract import JsonContentBlock, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from random import Random

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host.http.request import HttpRequest

STAMP: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
LARGE = 3_000_000


def write_call(port: int, name: str, *lines: str, accept: str = "application/json", token: str = TOKEN) -> bytes:
    """Write a call that stands alone."""
    params = {"name": name, "arguments": {"text": "x"} if name == "echo" else {}, "_meta": STAMP}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    head = [
        "POST /mcp HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Authorization: Bearer {token}",
        "Content-Type: application/json",
        f"Accept: {accept}",
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        f"Mcp-Name: {name}",
        f"Content-Length: {len(body)}",
        *lines,
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


def write_initialize(port: int) -> bytes:
    """Write the first request of a session."""
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}).encode()
    head = [
        "POST /mcp HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        f"Authorization: Bearer {TOKEN}",
        "Content-Type: application/json",
        "Accept: application/json, text/event-stream",
        f"Content-Length: {len(body)}",
    ]
    return "\r\n".join([*head, "", ""]).encode() + body


async def read_status(reader: asyncio.StreamReader) -> int:
    """Read one response; return its status, and 0 if there is none."""
    with anyio.fail_after(LIMIT_S):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.partition(b":")[2]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return 0
    return int(head.split(b" ", 2)[1])


@asynccontextmanager
async def serving(**settings: Any) -> AsyncGenerator[tuple[int, Bench]]:
    bench = Bench()
    # No response waits in memory.
    host_limits = HostLimits(unread_bytes=0)
    async with host_of(bench, host_limits).serve_http(HttpSettings(tokens=[TOKEN], **settings)) as host:
        yield host.port, bench


async def answer_large(_: JsonObject, __: ToolContext) -> ToolResult:
    return ToolResult([JsonContentBlock({"type": "image", "data": "x" * LARGE, "mimeType": "image/png"})])


# -- connections ------------------------------------------------------------------------------


async def test_finding_r5b_a_burst_of_known_clients_is_admitted() -> None:
    statuses: Counter[int] = Counter()
    writers: list[asyncio.StreamWriter] = []
    async with serving(connections=60, unauthenticated=20, queue_s=60.0, requests=60) as (port, _):

        async def ask() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writers.append(writer)  # kept open, as by a client with a pool
            writer.write(write_call(port, "echo"))
            statuses[await read_status(reader)] += 1

        async with anyio.create_task_group() as tasks:
            for _ in range(400):
                tasks.start_soon(ask)
        for writer in writers:
            writer.transport.abort()
    assert statuses == {200: 400}


async def test_finding_r5b_silent_strangers_keep_no_known_client_out() -> None:
    async with serving(unauthenticated=10, head_s=600, queue_s=60.0) as (port, _):
        strangers = [await asyncio.open_connection("127.0.0.1", port) for _ in range(30)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(write_call(port, "echo", "Connection: close"))
        assert await read_status(reader) == 200
        for _, other in (*strangers, (reader, writer)):
            other.transport.abort()


async def test_a_connection_that_waits_for_too_long_is_refused_and_a_place_is_used_again() -> None:
    async with serving(connections=2, queue_s=0.05) as (port, bench), anyio.create_task_group() as tasks:
        answers: list[int] = []

        async def ask(name: str) -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(write_call(port, name, "Connection: close"))
            answers.append(await read_status(reader))
            writer.transport.abort()

        for _ in range(2):
            tasks.start_soon(ask, "hang")
        await until(lambda: bench.seen["hang"] == 2)
        await ask("echo")
        assert answers == [503]
        bench.let_go.set()
        await until(lambda: len(answers) == 3)
        await ask("echo")
        assert answers == [503, 200, 200, 200]


FEW_FILES = """
import asyncio, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]),) * 2)
from indusagi.interop import HostLimits, HttpSettings
from indusagi.interop.protocol_bridge.host import outgoing as waiting
from tests.support.host_clients import TOKEN, host_of
from tests.support.host_tools import Bench

async def main():
    async with host_of(Bench()).serve_http(HttpSettings(tokens=[TOKEN], queue_s=60.0)) as host:
        print(host.port, flush=True)
        taken = [open("/dev/null") for _ in range(int(sys.argv[2]))]
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.mark.process
@pytest.mark.parametrize(("files", "taken"), [(32, 0), (64, 30)], ids=["32", "64 and few left"])
async def test_finding_r9_with_few_descriptors_every_request_is_answered(files: int, taken: int) -> None:
    command = [sys.executable, "-c", FEW_FILES, str(files), str(taken)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    async with await anyio.open_process(command, cwd=ROOT, **pipes) as host:
        assert host.stdout is not None
        assert host.stdin is not None
        assert host.stderr is not None
        port = int(await host.stdout.receive())
        statuses: Counter[int] = Counter()

        async def ask() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(write_call(port, "echo"))
            statuses[await read_status(reader)] += 1
            writer.transport.abort()

        async with anyio.create_task_group() as tasks:
            for _ in range(150):
                tasks.start_soon(ask)
        await host.stdin.aclose()
        said = b"".join([part async for part in host.stderr]).decode()
    assert statuses == {200: 150}, said
    assert "Traceback" not in said


# -- requests ---------------------------------------------------------------------------------


class Page:
    """A site whose pages take as long as the test likes."""

    prefix = "/ui"

    def __init__(self) -> None:
        self.began, self.let_go = asyncio.Event(), asyncio.Event()

    def accept(self, request: HttpRequest) -> bool:
        return True

    async def respond(self, request: HttpRequest) -> SiteResponse:
        self.began.set()
        await self.let_go.wait()
        return SiteResponse(b"page")


async def test_finding_f12_every_route_takes_from_one_quota() -> None:
    page = Page()
    async with serving(requests=1, place_s=0, site=page) as (port, bench), anyio.create_task_group() as tasks:
        look = f"GET /ui HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
        tasks.start_soon(ask, port, look)
        await page.began.wait()
        assert await ask(port, write_call(port, "echo")) == 503
        assert await ask(port, look) == 503
        assert await ask(port, write_initialize(port)) == 503
        page.let_go.set()
        await until(lambda: bench.seen["echo"] == 0)

        async def is_free() -> bool:
            return await ask(port, write_call(port, "echo")) == 200

        await until(is_free)
        for path in ("/messages?session_id=x", "/sse"):
            assert await ask(port, write_call(port, "echo").replace(b"/mcp", path.encode(), 1)) == 404


async def test_event_streams_of_a_site_are_limited() -> None:
    class Events(Page):
        """A site that sends an event, and no more."""

        async def respond(self, request: HttpRequest) -> SiteResponse:
            async def list_events() -> AsyncGenerator[bytes]:
                yield b"data: 1\n\n"
                await self.let_go.wait()

            return SiteResponse(events=list_events())

    async with serving(streams=1, site=Events()) as (port, _):

        async def ask() -> tuple[bytes, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"GET /ui HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
            with anyio.fail_after(LIMIT_S):
                head = await reader.readuntil(b"\r\n")
            return head.split(b" ")[1], writer

        async def is_free() -> bool:
            status, writer = await ask()
            writer.transport.abort()
            return status == b"200"

        status, streaming = await ask()
        assert status == b"200"
        assert not await is_free()
        streaming.transport.abort()
        await until(is_free)


async def test_finding_f15_a_client_that_pipelined_and_hangs_up_has_its_call_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("indusagi.interop.protocol_bridge.host.http.connection._HANGUP_CHECK_S", 0.01)
    for end in ("close", "reset", "half"):
        async with serving() as (port, bench):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(write_call(port, "hang") + write_call(port, "echo") * 3)
            await bench.began.wait()
            if end == "reset":
                writer.transport.abort()
            elif end == "half":
                writer.write_eof()
            else:
                writer.close()
            await until(lambda bench=bench: bench.reasons == ["the client went away"])
            writer.transport.abort()
            assert bench.seen["echo"] == 0


async def ask(port: int, data: bytes) -> int:
    """Send bytes over a connection of their own; return the status of the response."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    status = await read_status(reader)
    writer.transport.abort()
    return status


async def count_waiting(port: int) -> int:
    """Read from a host how many requests wait."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    lines = f"Host: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close"
    writer.write(f"GET /health HTTP/1.1\r\n{lines}\r\n\r\n".encode())
    with anyio.fail_after(LIMIT_S):
        response = await reader.read()
    writer.transport.abort()
    waiting: int = json.loads(response.partition(b"\r\n\r\n")[2])["waiting"]
    return waiting


async def test_finding_r6_a_client_with_many_requests_over_http_is_slowed_down_not_refused() -> None:
    statuses: Counter[int] = Counter()
    async with serving(requests_each=10) as (port, bench), anyio.create_task_group() as tasks:

        async def hang() -> None:
            statuses[await ask(port, write_call(port, "hang"))] += 1

        for _ in range(10):
            tasks.start_soon(hang)
        await until(lambda: bench.seen["hang"] == 10)
        for _ in range(11):
            tasks.start_soon(hang)
        # As many wait as may run. The next one is refused, and nothing else.
        await until(lambda: statuses == {429: 1})
        assert await count_waiting(port) == 10
        assert bench.seen["hang"] == 10
        bench.let_go.set()
    assert statuses == {200: 20, 429: 1}


async def test_a_request_that_waited_for_too_long_is_refused() -> None:
    async with serving(requests=1, place_s=0.01) as (port, bench), anyio.create_task_group() as tasks:
        tasks.start_soon(ask, port, write_call(port, "hang"))
        await bench.began.wait()
        assert await ask(port, write_call(port, "echo")) == 503
        assert await count_waiting(port) == 0
        bench.let_go.set()
    assert bench.seen["echo"] == 0


async def test_requests_that_wait_are_bounded_in_bytes() -> None:
    statuses: Counter[int] = Counter()
    async with serving(requests_each=1, queued_bytes=300) as (port, bench), anyio.create_task_group() as tasks:

        async def echo() -> None:
            statuses[await ask(port, write_call(port, "echo"))] += 1

        tasks.start_soon(ask, port, write_call(port, "hang"))
        await bench.began.wait()
        tasks.start_soon(echo)
        tasks.start_soon(echo)
        await until(lambda: statuses == {429: 1})
        bench.let_go.set()
    assert statuses == {429: 1, 200: 1}


async def test_a_client_that_hangs_up_while_it_waits_has_no_call() -> None:
    async with serving(requests_each=1) as (port, bench), anyio.create_task_group() as tasks:
        tasks.start_soon(ask, port, write_call(port, "hang"))
        await bench.began.wait()
        _, leaving = await asyncio.open_connection("127.0.0.1", port)
        leaving.write(write_call(port, "echo"))

        async def waits() -> bool:
            return await count_waiting(port) == 1

        async def is_gone() -> bool:
            return await count_waiting(port) == 0

        await until(waits)
        leaving.transport.abort()
        await until(is_gone)
        bench.let_go.set()
    assert bench.seen["echo"] == 0


@given(
    st.lists(st.tuples(st.sampled_from("ABC"), st.sampled_from("xy")), min_size=1, max_size=40),
    st.randoms(use_true_random=False),
)
def test_every_place_is_used_and_no_limit_is_passed(asks: list[tuple[str, str]], random: Random) -> None:
    settings = HttpSettings(requests=4, requests_each=2, queued_bytes=10_000)

    async def run() -> None:
        quota = Quota(settings, 10)
        places: list[Place] = []
        while asks or places:
            if asks and random.random() < 0.6:
                owner, principal = asks.pop()
                with suppress(HttpRefusal):
                    places.append(quota.enter(owner.encode(), ClientIdentity(principal=principal), 1))
            elif places:
                quota.leave(places.pop(random.randrange(len(places))))
            running = [place for place in places if place.is_taken]
            waiting = [place for place in places if not place.is_taken]
            owners = Counter(place.owner for place in running)
            assert quota.running == len(running) <= 4
            assert quota.waiting == len(waiting)
            assert all(count <= 2 for count in owners.values())
            # Nobody waits for a place that's free.
            assert not any(quota.running < 4 and owners[place.owner] < 2 for place in waiting)
        assert (quota.running, quota.waiting) == (0, 0)
        await quota.wait_idle()

    asyncio.run(run())


# -- bytes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("accept", ["application/json", "application/json, text/event-stream"])
async def test_finding_r5_a_client_that_reads_late_is_slowed_down_not_refused(accept: str) -> None:
    count, limit = 12, 3 * LARGE
    async with serving(unread_bytes=limit, unread_s=600, ping_s=0.001 if "event" in accept else 15.0) as (port, bench):
        bench.add("large", answer_large)
        clients: list[socket.socket] = []
        for _ in range(count):
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.connect(("127.0.0.1", port))
            client.sendall(write_call(port, "large", "Connection: close", accept=accept))
            clients.append(client)
        # At most four fill the limit, with the part that the system buffers; the others wait, on disk.
        await until(lambda: waiting._total.disk >= (count - 5) * LARGE)
        assert waiting._total.memory == 0

        # A small response doesn't wait for other connections.
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(write_call(port, "echo", "Connection: close"))
        assert await read_status(reader) == 200
        writer.transport.abort()

        # A client that leaves gives up its response.
        clients.pop().close()

        async def read(client: socket.socket) -> None:
            client.setblocking(False)
            reader, writer = await asyncio.open_connection(sock=client)
            response = await reader.read()
            assert response.startswith(b"HTTP/1.1 200")
            assert len(response) > LARGE
            assert b'"error"' not in response
            writer.transport.abort()

        # All at once: any four of them may have filled the limit, and the others wait for those.
        with anyio.fail_after(LIMIT_S):
            async with anyio.create_task_group() as tasks:
                for client in clients:
                    tasks.start_soon(read, client)
        await until(lambda: waiting._total.disk == 0)
