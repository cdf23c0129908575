"""The host on standard streams: a process that a client starts."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from shlex import quote
from typing import IO, TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.host_clients import CHILD
from tests.support.scripts import ROOT
from tests.support.servers import honest
from tests.support.waiting import LIMIT_S, is_asleep, until

from indusagi.core.process.child import ChildProcess
from indusagi.interop.protocol_bridge.host import stdio as host_stdio
from indusagi.interop.protocol_bridge.host.stdio import LineSplitter, StdioHostTransport

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence
    from pathlib import Path

STAMP: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
ENV = {**os.environ, "PYTHONPATH": str(ROOT)}


def frame(identity: int, method: str, **params: Any) -> bytes:
    said = {"jsonrpc": "2.0", "id": identity, "method": method}
    return json.dumps({**said, "params": {**params, "_meta": STAMP}}).encode() + b"\n"


class Speaker:
    """Talks to a host line by line."""

    def __init__(self) -> None:
        self.child = ChildProcess(self)
        self.lines: list[Any] = []
        self.errors = b""
        self._rest = b""
        self._stirred = asyncio.Event()

    def stdout_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.lines += [json.loads(line) for line in lines]
        self._stirred.set()

    def stderr_received(self, data: bytes) -> None:
        self.errors += data

    def state_changed(self) -> None:
        self._stirred.set()

    async def answer(self, identity: int, method: str, **params: Any) -> Any:
        self.child.write(frame(identity, method, **params))
        with anyio.fail_after(LIMIT_S):
            while True:
                for line in self.lines:
                    if line.get("id") == identity:
                        return line.get("result", line.get("error"))
                self._stirred.clear()
                await self._stirred.wait()


@asynccontextmanager
async def speaker(command: Sequence[str] = (sys.executable, str(CHILD))) -> AsyncGenerator[Speaker]:
    talks = Speaker()
    await talks.child.start([*command], ENV, None)
    try:
        yield talks
    finally:
        await talks.child.end(5.0)


pytestmark = pytest.mark.process


async def test_a_host_on_standard_streams_loads_neither_the_sdk_nor_a_web_server() -> None:
    async with speaker() as talks:
        answer = await talks.answer(1, "tools/call", name="loaded")
        loaded = set(json.loads(answer["content"][0]["text"]))
        assert loaded & {"mcp", "mcp_types", "pydantic", "httpx2", "uvicorn", "starlette"} == set()


async def test_output_of_tools_and_their_processes_does_not_reach_the_client() -> None:
    async with speaker() as talks:
        assert (await talks.answer(1, "tools/call", name="noise"))["content"][0]["text"] == "quiet"
        assert await talks.answer(2, "server/discover")
        assert len(talks.lines) == 2
        assert b"more stray words" in talks.errors


CALLS = 4_000


@pytest.mark.parametrize("way", ["host", "relay"])
async def test_finding_r6_pipelined_calls_are_all_answered(way: str) -> None:
    command = [sys.executable, str(CHILD)]
    if way == "relay":
        server = honest("--era", "modern")
        command = [sys.executable, str(CHILD.with_name("relay_child.py")), server.command, *server.args]
    async with speaker(command) as talks:
        for number in range(CALLS):
            talks.child.write(frame(number, "tools/call", name="echo", arguments={"text": "x"}))
        await talks.answer(CALLS, "tools/call", name="echo", arguments={"text": "last"})
        await until(lambda: len(talks.lines) == CALLS + 1)
        assert sum("result" in line for line in talks.lines) == CALLS + 1


def test_finding_r6_pipelined_calls_are_all_answered_after_the_end_of_input() -> None:
    sent = b"".join(frame(number, "tools/call", name="echo", arguments={"text": "x"}) for number in range(CALLS))
    command = [sys.executable, str(CHILD)]
    done = subprocess.run(command, input=sent, capture_output=True, env=ENV, check=True, timeout=LIMIT_S)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert sum("result" in answer for answer in answers) == CALLS


async def test_c22_an_overlong_or_invalid_line_is_answered_and_ends_nothing() -> None:
    async with speaker() as talks:
        talks.child.write(b"x" * (17 * 1024 * 1024) + b"\n")
        talks.child.write(b"no json\n\n  \n")
        assert await talks.answer(1, "server/discover")
        assert [line["error"]["code"] for line in talks.lines[:2]] == [-32700, -32700]


async def test_a_host_ends_after_the_end_of_its_input() -> None:
    async with speaker() as talks:
        assert await talks.answer(1, "server/discover")
        await talks.child.end(10.0)
        assert talks.child.exit_code == 0


async def test_a_stopped_host_cancels_calls_that_do_not_end() -> None:
    async with speaker() as talks:
        assert await talks.answer(1, "server/discover")
        talks.child.write(frame(2, "subscriptions/listen", notifications={}))
        assert await talks.answer(3, "server/discover")
        pid = talks.child.pid
        assert pid is not None
        os.kill(pid, signal.SIGTERM)
        with anyio.fail_after(LIMIT_S):
            await talks.child.exited.wait()
        assert talks.lines[-1]["id"] == 2
        assert talks.child.exit_code == 0


WRITTEN = 16 * 1024 * 1024


@asynccontextmanager
async def unread(piece: bytes) -> AsyncGenerator[tuple[subprocess.Popen[bytes], int]]:
    """Write to a host without reading its responses, until it reads no more; return how much it read."""
    child = subprocess.Popen(  # noqa: ASYNC220 — its pipes are this test's alone
        [sys.executable, str(CHILD), "hurried"], env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        os.set_blocking(child.stdin.fileno(), False)
        taken, data = 0, piece * (WRITTEN // len(piece))
        while taken < len(data):
            with contextlib.suppress(BlockingIOError):
                taken += os.write(child.stdin.fileno(), data[taken : taken + 65_536])
                continue
            # It has answered, does not take what is there, and has nothing else to do.
            if _has_data(child.stdout) and is_asleep(child.pid) and not _is_writable(child.stdin):
                break
            await asyncio.sleep(0.005)
        yield child, taken
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            child.stdin.close()


def _has_data(stream: IO[bytes]) -> bool:
    return bool(select.select([stream], [], [], 0)[0])


def _is_writable(stream: IO[bytes]) -> bool:
    return bool(select.select([], [stream], [], 0)[1])


@pytest.mark.parametrize("piece", [b"no json\n", frame(1, "no/such")])
async def test_a_client_that_does_not_read_is_not_listened_to_until_it_does(piece: bytes) -> None:
    async with unread(piece) as (child, taken):
        assert taken < WRITTEN // 4
        assert child.stdout is not None
        lines = 0
        with anyio.fail_after(LIMIT_S):
            while lines < taken // len(piece):
                await anyio.wait_readable(child.stdout)
                lines += os.read(child.stdout.fileno(), 1 << 20).count(b"\n")
        assert lines == taken // len(piece)


async def test_a_client_that_reads_nothing_and_closes_its_input_ends_the_host() -> None:
    async with unread(b"no json\n") as (child, _):
        assert child.stdin is not None
        child.stdin.close()
        assert await asyncio.to_thread(child.wait, LIMIT_S) == 0


SAID = frame(1, "tools/list") + frame(2, "tools/call", name="echo", arguments={"text": "hi"})


def test_the_answers_come_also_where_the_input_ends_at_once() -> None:
    command = [sys.executable, str(CHILD), str(LIMIT_S)]
    done = subprocess.run(command, env=ENV, timeout=LIMIT_S, check=True, input=SAID, stdout=subprocess.PIPE)
    _check_answers(done.stdout)


def test_standard_streams_may_be_files(tmp_path: Path) -> None:
    (tmp_path / "in").write_bytes(SAID.rstrip(b"\n"))
    with open(tmp_path / "in", "rb") as source, open(tmp_path / "out", "wb") as sink:
        command = [sys.executable, str(CHILD), str(LIMIT_S)]
        subprocess.run(command, env=ENV, timeout=LIMIT_S, check=True, stdin=source, stdout=sink)
    _check_answers((tmp_path / "out").read_bytes())


@pytest.mark.parametrize(
    ("redirected", "code", "said"),
    [("</dev/null", 0, ""), ("<&-", 1, "not open"), (">&-", 1, "not open"), ("</dev/null 2>&-", 0, "")],
)
def test_streams_that_carry_nothing_end_the_host_at_once(redirected: str, code: int, said: str) -> None:
    command = f"{quote(sys.executable)} {quote(str(CHILD))} {redirected}"
    done = subprocess.run(command, shell=True, env=ENV, timeout=LIMIT_S, check=False, capture_output=True, text=True)
    assert done.returncode == code
    assert said in done.stderr


def _check_answers(out: bytes) -> None:
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["id"] for answer in answers] == [1, 2]
    assert answers[1]["result"]["content"][0]["text"] == "hi"


# -- the link alone -------------------------------------------------------------------------


@asynccontextmanager
async def piped() -> AsyncGenerator[tuple[StdioHostTransport, int, int]]:
    """Give a link over two pipes, and the client's ends of them."""
    source, theirs_in = os.pipe()
    theirs_out, sink = os.pipe()
    link = StdioHostTransport(source, sink, 1024)
    await link.open()
    try:
        yield link, theirs_in, theirs_out
    finally:
        await link.close()
        for descriptor in (source, theirs_in, theirs_out, sink):
            try:
                os.close(descriptor)
            except OSError:
                continue


async def test_input_before_attach_is_stored() -> None:
    async with piped() as (link, theirs_in, _):
        os.write(theirs_in, b'{"a":1}\n{"b":2}')
        os.close(theirs_in)
        with anyio.fail_after(LIMIT_S):
            await link.input_ended.wait()
        heard: list[Any] = []
        ends: list[str] = []
        link.attach(heard.append, lambda end: ends.append(end.message))
        assert heard == [b'{"a":1}', b'{"b":2}']
        link.finish("enough")
        link.finish("again")
        assert ends == ["enough"]
        link.attach(heard.append, lambda end: ends.append(end.message))
        assert ends == ["enough", "enough"]
        link.send({"c": 3})


async def test_a_client_that_reads_nothing_does_not_keep_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_stdio, "_FLUSH_S", 0.05)
    async with piped() as (link, _, _):
        link.attach(lambda data: None, lambda end: None)
        for _ in range(64):
            link.send({"x": "y" * 65_536})
        await asyncio.sleep(0)
        assert not link.writable.is_set()
        with anyio.fail_after(LIMIT_S):
            await link.close()
        assert link.writable.is_set()


async def test_many_lines_at_once_are_handled_in_several_turns() -> None:
    async with piped() as (link, theirs_in, _):
        heard: list[Any] = []
        turns: set[int] = set()
        turn = 0

        def take(data: object) -> None:
            heard.append(data)
            turns.add(turn)

        link.attach(take, lambda end: None)
        os.write(theirs_in, b"".join(b"%d\n" % number for number in range(1_000)))
        with anyio.fail_after(LIMIT_S):
            while len(heard) < 1_000:
                await asyncio.sleep(0)
                turn += 1
        assert heard == [b"%d" % number for number in range(1_000)]
        assert len(turns) > 5


async def test_a_client_that_closes_its_end_has_gone_away() -> None:
    async with piped() as (link, _, theirs_out):
        ended = asyncio.Event()
        link.attach(lambda data: None, lambda end: ended.set())
        os.close(theirs_out)
        with anyio.fail_after(LIMIT_S):
            await ended.wait()


@given(lines=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b""))), cut=st.integers(1, 7))
def test_lines_are_the_same_however_they_arrive(lines: list[bytes], cut: int) -> None:
    found: list[bytes] = []
    cutter = LineSplitter(found.append, 8)
    data = b"".join(line + b"\n" for line in lines)
    for start in range(0, len(data), cut):
        cutter.feed(data[start : start + cut])
    kept = [b"" if len(line) > 8 else line for line in lines]
    assert found == [
        line
        for line, given_line in zip(kept, lines, strict=True)
        if len(given_line) > 8 or (line and not line.isspace())
    ]
