"""The comparison of gateways: its client, its fairness, its verdict. Not the speed."""

import asyncio
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from bench.gateway import CALLERS, Figures, Plan, check, measure, table
from bench.gateway.access_tokens import compare_access_tokens
from bench.gateway.client import names, open_pipes, result_of
from bench.gateway.contenders import (
    CONTENDERS,
    DIRECT,
    FASTMCP_PROXY,
    MCP_PIN_GATEWAY,
    MCP_PROXY_HTTP,
    OURS,
    OURS_HTTP,
    TOOLS,
    Contender,
    free_port,
    new_desk,
)
from bench.gateway.crowd import compare_crowd
from bench.gateway.http_client import Web
from bench.gateway.run import Memory, children, running
from bench.row import CannotMeasure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from bench.gateway.client import Answer
    from bench.gateway.contenders import Desk

BRIEF = Plan(starts=1, rounds=1, slice_s=0.0, least=2)
GOOD = Figures(0.2, 0.0005, 0.0006, 6000.0, Memory(25_000_000, 25_000_000))
WORSE = Figures(1.5, 0.15, 0.3, None, Memory(100_000_000, 120_000_000))
HEAD = b"HTTP/1.1 200 OK\r\nMcp-Session-Id: abc\r\n"
HELLO = b'{"jsonrpc":"2.0","id":1,"result":{"greeting":"hello"}}'


@pytest.mark.process
def test_everybody_is_measured_with_the_same_servers_and_the_same_client() -> None:
    other = replace(DIRECT, name="another", remark="the same again")
    measured = measure(1, [DIRECT, other], BRIEF)
    for figures in measured.values():
        assert isinstance(figures, Figures)
        assert 0 < figures.p50_s <= figures.p95_s
        assert figures.rate is not None
        assert min(figures.start_s, figures.rate, figures.memory.own) > 0
        assert figures.memory.own == figures.memory.tree


@pytest.mark.process
def test_a_gateway_that_fails_is_told_with_its_reason_and_the_others_are_measured() -> None:
    broken = Contender("broken", lambda _desk, _port: ["python3", "-c", "exit('out of order')"])
    measured = measure(1, [broken, DIRECT], BRIEF)
    assert isinstance(measured[DIRECT], Figures)
    assert "out of order" in str(measured[broken])
    assert "| broken | | | | | | | broken did not start" in table(1, measured)


@pytest.mark.process
def test_a_gateway_that_breaks_under_its_calls_is_told_and_the_others_are_measured() -> None:
    renamed = replace(DIRECT, name="renamed", tool="echo1")
    wrong = replace(DIRECT, name="wrong", command=broken_echo)
    measured = measure(1, [wrong, renamed], BRIEF)
    assert isinstance(measured[renamed], Figures)
    assert str(measured[wrong]).startswith("it started, and then: ")


def broken_echo(desk: "Desk", port: int) -> list[str]:
    """A server that lists its tools and ends when one is called."""
    python, *_, script, count = DIRECT.command(desk, port)
    code = f"import sys; sys.argv = ['', '{count}']; text = open({script!r}).read(); "
    code += "exec(text.replace('[\"arguments\"]', '[\"nothing\"]'))"
    return [python, "-c", code]


@pytest.mark.process
async def test_memory_is_counted_with_helpers_and_without_servers() -> None:
    script = (
        "import subprocess, sys\n"
        "helper = subprocess.Popen(['sleep', '60'])\n"
        "server = subprocess.Popen(sys.argv[1:])\n"
        "server.wait(); helper.kill(); helper.wait()\n"
    )

    def command(desk: "Desk", port: int) -> list[str]:
        return ["python3", "-c", script, *DIRECT.command(desk, port)]

    with new_desk(1) as desk:
        async with running(replace(DIRECT, command=command), desk) as gateway:
            assert len(children(gateway.pid)) == 2
            memory = gateway.memory()
    assert memory.own < memory.tree < memory.own + 5_000_000


def test_who_is_not_installed_is_named_with_the_variable_that_would_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rivals = (FASTMCP_PROXY, MCP_PIN_GATEWAY, MCP_PROXY_HTTP)
    for rival in rivals:
        assert rival.variable is not None
        monkeypatch.delenv(rival.variable, raising=False)
    measured = measure(2, rivals, BRIEF)
    shown = table(2, measured)
    for rival in rivals:
        assert f"| {rival.name} | | | | | | | not installed: {rival.variable} names none |" in shown


def test_we_are_ahead_only_if_no_column_of_anybody_is_better() -> None:
    ahead = check({OURS: GOOD, FASTMCP_PROXY: WORSE, MCP_PIN_GATEWAY: "not installed"})
    assert ahead.ok
    assert ahead.note.endswith("not compared: mcp-pin gateway")
    lighter = replace(WORSE, memory=Memory(20_000_000, 20_000_000))
    missed = check({OURS: GOOD, FASTMCP_PROXY: WORSE, MCP_PIN_GATEWAY: lighter})
    assert (missed.ok, missed.note) == (False, "memory 1.25 x mcp-pin gateway")
    # Over HTTP only with those over HTTP; and a start that failed is no start that was quicker.
    assert not check({OURS: "it broke", OURS_HTTP: WORSE, MCP_PROXY_HTTP: GOOD}).ok


def test_a_table_says_what_was_not_tried_and_why() -> None:
    shown = table(30, {DIRECT: replace(GOOD, p50_s=0.0001), FASTMCP_PROXY: WORSE})
    line = shown.splitlines()[-1]
    assert "| 1,500.0 x | not tried | 100.0 MB, 120.0 MB |" in line
    assert f"{CALLERS} callers would start 1,920 processes at once" in line


def test_every_contender_has_a_name_of_its_own() -> None:
    assert len({one.name for one in CONTENDERS}) == len(CONTENDERS)


# -- the client -------------------------------------------------------------------------------


@pytest.mark.process
async def test_the_client_over_pipes_tells_answers_apart_and_hands_on_the_rest() -> None:
    notices: list[Answer] = []
    with new_desk(1) as desk:
        command = DIRECT.command(desk, 0)
        script = 'print(\'{"jsonrpc":"2.0","method":"hi"}\', flush=True); import os, sys; '
        script += "os.execv(sys.argv[1], sys.argv[1:])"
        pipes = await open_pipes(
            ["python3", "-c", script, *command], cwd=desk.folder, env=os.environ, on_notice=notices.append
        )
        async with asyncio.timeout(60):
            first, second = pipes.asked("tools/list"), pipes.asked("nothing/known")
            assert len(result_of(await first[1])["tools"]) == TOOLS
            with pytest.raises(CannotMeasure, match="-32601"):
                result_of(await second[1])
            _, late = pipes.asked("tools/call", {"arguments": {}})
            with pytest.raises(CannotMeasure, match="ended: 1"):
                await late
        await pipes.aclose()
        with pytest.raises(CannotMeasure, match="has ended"):
            await pipes.notify("anybody")
    assert [notice["method"] for notice in notices] == ["hi"]


async def served(*answers: bytes, heard: "list[bytes] | None" = None) -> "AsyncGenerator[int]":
    left = list(answers)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].split()[0])
                body = await reader.readexactly(size)
                if heard is not None:
                    heard.append(head + body)
                writer.write(left.pop(0))
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def plain() -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n" % len(HELLO) + HELLO


def streamed() -> bytes:
    """An answer after a notification, cut where it hurts."""
    text = b'data: {"jsonrpc":"2.0","method":"hi"}\r\n\r\n: ping\n\ndata: ' + HELLO + b"\r\n\r\n"
    head = HEAD + b"Content-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + chunk(text[:60]) + chunk(text[60:]) + chunk(b"")


def in_pieces() -> bytes:
    head = HEAD + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + chunk(HELLO[:9]) + chunk(HELLO[9:]) + chunk(b"")


@pytest.mark.parametrize(("answer", "said"), [(plain, 0), (streamed, 1), (in_pieces, 0)])
async def test_the_client_over_http_reads_an_answer_in_every_form(answer: "Callable[[], bytes]", said: int) -> None:
    notices: list[Answer] = []
    async for port in served(answer()):
        web = Web(port, "/mcp", token="t", on_notice=notices.append)
        assert result_of(await web.request("greet"))["greeting"] == "hello"
        await web.aclose()
    assert len(notices) == said


async def test_the_client_over_http_tells_of_refusals_and_of_connections_that_break() -> None:
    refused = b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n"
    async for port in served(refused, b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"HTTP"):
        web = Web(port, "/mcp")
        with pytest.raises(CannotMeasure, match="403"):
            await names(web)
        with pytest.raises(CannotMeasure, match="not answered"):
            await web.request("greet")
        with pytest.raises(CannotMeasure, match="broke"):
            await web.request("greet")
        await web.aclose()
    with pytest.raises(CannotMeasure, match="no server listens"):
        await Web(free_port(), "/mcp").request("greet")


async def test_in_the_newer_protocol_the_client_stamps_its_requests_and_has_no_session() -> None:
    heard: list[bytes] = []
    async for port in served(plain(), plain(), heard=heard):
        older, newer = Web(port, "/mcp"), Web(port, "/mcp", modern=True)
        await older.request("tools/call", {"name": "echo"})
        await older.aclose()
        await newer.request("tools/call", {"name": "echo"})
        await newer.aclose()
    assert b"Mcp-Method" not in heard[0]
    assert b"_meta" not in heard[0]
    for said in (b"MCP-Protocol-Version: 2026-07-28", b"Mcp-Method: tools/call", b"Mcp-Name: echo"):
        assert heard[1].count(said) == 1
    assert b'"io.modelcontextprotocol/protocolVersion": "2026-07-28"' in heard[1]
    assert b"Mcp-Session-Id" not in heard[1]


@pytest.mark.process
def test_finding_d11_the_calls_of_a_crowd_are_timed() -> None:
    pair = compare_crowd(sessions=3, each=2, rounds=1)
    assert min(pair.ours.least, pair.baseline.least) > 0


@pytest.mark.process
def test_calls_with_access_tokens_are_timed_beside_calls_without() -> None:
    pair = compare_access_tokens(callers=2, each=2, rounds=1)
    assert min(pair.ours.least, pair.baseline.least) > 0
