"""The stdio transport with a process in memory: lines, limits, turns, standard error and the end."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest

from indusagi.interop.protocol_bridge.client import stdio as module
from indusagi.interop.protocol_bridge.client.stdio import StdioTransport, start_server_process
from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerLimits, StdioServerConfig

pytestmark = pytest.mark.anyio


class Child:
    """A process that writes what a test gives it, and notes what it is told."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler
        self.writable, self.exited = anyio.Event(), anyio.Event()
        self.writable.set()
        self.output_open = self.errors_open = self.input_open = True
        self.exit_code: int | None = None
        self.written, self.unwritten = b"", 0
        self.rest = b""
        """What is in its pipe, unread."""
        self.told: list[Any] = []

    def write(self, data: bytes) -> int:
        self.written += data
        return self.unwritten

    def pause_output(self) -> None:
        self.told.append("pause")

    def resume_output(self) -> None:
        self.told.append("resume")

    def stop_reading(self) -> None:
        self.told.append("stop")

    def read_rest(self) -> None:
        rest, self.rest = self.rest, b""
        if rest:
            self.handler.stdout_received(rest)

    async def end(self, grace_s: float, *, gentle: bool = False) -> None:
        self.told.append((grace_s, gentle))


def start(monkeypatch: pytest.MonkeyPatch, *, downloads: bool = False, **limits: Any) -> tuple[Any, Any, list[Any]]:
    """Start a transport; return it, its process, and the lines and the end that it delivers."""
    monkeypatch.setattr(module, "ChildProcess", Child)
    transport: Any = StdioTransport("s", ServerLimits(close_s=8.0, **limits), downloads=downloads)
    got: list[Any] = []
    transport.attach(got.append, str)
    finish = transport.finish

    def note(message: str, detail: Any = None) -> None:
        got.append((message, detail))
        finish(message, detail)

    transport.finish = note
    return transport, transport.child, got


async def turn(count: int = 3) -> None:
    """Let the event loop go round."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def test_output_is_split_into_lines_wherever_it_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b'{"a":1}\n\n  \n{"b":2}\r\n{"c":3}\nrest'
    for size in range(1, len(data) + 1):
        transport, _, got = start(monkeypatch)
        for begin in range(0, len(data), size):
            transport.stdout_received(data[begin : begin + size])
            await turn()
        assert got == [b'{"a":1}', b'{"b":2}\r', b'{"c":3}']
        assert transport.bytes_received == len(data)


async def test_a_turn_handles_so_many_lines_or_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, child, got = start(monkeypatch)
    transport.stdout_received(b"1\n" * 40)
    assert (len(got), child.told) == (16, ["pause"])
    transport.stdout_received(b"2\n")
    assert len(got) == 16
    await turn(5)
    assert (len(got), child.told) == (41, ["pause", "resume"])
    transport.stdout_received(b"3\n")
    assert got[-1] == b"3"
    transport, child, got = start(monkeypatch)
    transport.stdout_received((b"x" * 20_000 + b"\n") * 3)
    assert (len(got), child.told) == (2, ["pause"])


@pytest.mark.parametrize("cut", [False, True])
async def test_a_line_past_the_limit_ends_the_connection(monkeypatch: pytest.MonkeyPatch, *, cut: bool) -> None:
    transport, child, got = start(monkeypatch, frame_bytes=10)
    transport.stdout_received(b"0123456789\n")
    assert got == [b"0123456789"]
    for piece in (b"01234", b"567890") if cut else (b"01234567890\n5\n",):
        transport.stdout_received(piece)
    ((message, detail),) = got[1:]
    assert (message, detail.reason) == ("sent a message of more than 10 bytes", "frame_too_large")
    assert "stop" in child.told
    transport.stdout_received(b"6\n")
    assert len(got) == 2


async def test_lines_are_written_together(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, child, _ = start(monkeypatch)
    transport.send({"a": 1})
    transport.send({"b": "é"})
    assert child.written == b""
    await turn()
    assert child.written == '{"a":1}\n{"b":"é"}\n'.encode()
    transport.send({"c": 3})
    await transport.close()
    assert child.written.endswith(b'{"c":3}\n')


async def test_only_the_first_invalid_lines_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, _, _ = start(monkeypatch, stderr_line_bytes=3)
    for number in range(9):
        transport.keep_invalid_line(b"%d-long" % number)
    assert transport.read_invalid_lines() == ("0-l", "1-l", "2-l", "3-l", "4-l")


async def test_the_last_lines_of_standard_error_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, _, _ = start(monkeypatch, stderr_lines=4, stderr_line_bytes=5)
    transport.stderr_received(b"1\n2\n \n3\nlonger than that\n4")
    assert transport.read_stderr() == ("2", "3", "longe", "4")
    transport.stderr_received(b"4444444")
    transport.stderr_received(b"\n5\n")
    assert transport.read_stderr() == ("3", "longe", "44444", "5")
    await transport.close()
    transport.stderr_received(b"6\n")
    transport.keep_invalid_line(b"7")
    assert (transport.read_stderr(), transport.read_invalid_lines()) == (("3", "longe", "44444", "5"), ())


async def test_an_older_cause_heads_the_lines_that_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, _, _ = start(monkeypatch)
    lines = [f"line {number}" for number in range(30)]
    transport.stderr_received("\n".join(["ModuleNotFoundError: No module named 'x'", *lines, ""]).encode())
    shown = transport.read_stderr()
    assert (len(shown), shown[1:]) == (20, tuple(lines[-19:]))
    assert "No module named 'x'" in shown[0]
    transport, _, _ = start(monkeypatch)
    transport.stderr_received("\n".join([*lines[:20], ""]).encode())
    assert transport.read_stderr() == tuple(lines[:20])


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (0, ("exited with code 0", "exited", 0, None)),
        (3, ("exited with code 3", "exited", 3, None)),
        (-9, ("was ended by SIGKILL", "exited", None, 9)),
        (-99, ("was ended by signal 99", "exited", None, 99)),
    ],
)
async def test_the_end_of_the_process_is_the_end_of_the_connection(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: Any
) -> None:
    transport, child, got = start(monkeypatch)
    transport.stdout_received(b"1\n" * 20)
    transport.stderr_received(b"why\n")
    transport.state_changed()
    child.exit_code = code
    child.exited.set()
    child.output_open = child.errors_open = False
    transport.state_changed()
    transport.state_changed()
    assert got[:-1] == [b"1"] * 20
    message, detail = got[-1]
    assert (message, detail.reason, detail.exit_code, detail.signal) == expected
    assert (detail.server, detail.stderr, detail.stdout) == ("s", ("why",), ())


@pytest.mark.parametrize(
    ("stream", "message"), [("output_open", "closed its output"), ("input_open", "stopped reading")]
)
async def test_a_process_that_lives_on_without_a_stream_is_given_a_moment(
    monkeypatch: pytest.MonkeyPatch, stream: str, message: str
) -> None:
    monkeypatch.setattr(module, "_SETTLE_S", 0.0)
    transport, child, got = start(monkeypatch)
    child.errors_open = False
    transport.state_changed()
    await turn()
    assert got == []
    setattr(child, stream, False)
    transport.state_changed()
    assert got == []
    await turn()
    assert [(said, detail.reason, detail.exit_code) for said, detail in got] == [(message, "closed", None)]


@pytest.mark.parametrize(
    ("downloads", "line", "is_over", "expected"),
    [
        (False, b"", False, (8.0, False)),
        (False, b"", True, (2.0, False)),
        (True, b"", False, (8.0, True)),
        (True, b"{}\n", False, (8.0, False)),
        (True, b"\n", False, (8.0, True)),
    ],
)
async def test_a_process_is_ended_as_it_deserves(
    monkeypatch: pytest.MonkeyPatch, downloads: bool, line: bytes, is_over: bool, expected: Any
) -> None:
    transport, child, _ = start(monkeypatch, downloads=downloads)
    transport.stdout_received(line)
    if is_over:
        transport.finish("over")
    await transport.close()
    assert child.told[-1] == expected


class Loop:
    """A clock that goes on when a test says so."""

    def __init__(self) -> None:
        self.now, self.timers = 0.0, list[Any]()

    def time(self) -> float:
        return self.now

    def call_soon(self, act: Any) -> None:
        """Leave it to the test."""

    def call_later(self, delay_s: float, act: Any) -> Any:
        self.timers.append((delay_s, act))
        return asyncio.get_running_loop().call_soon(lambda: None)

    def go_on(self) -> None:
        delay_s, act = self.timers.pop()
        self.now += delay_s
        act()


async def test_a_process_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin() -> tuple[Any, Any, list[Any], Loop]:
        transport, child, got = start(monkeypatch, call_idle_s=10, call_hard_s=30)
        clock = Loop()
        monkeypatch.setattr(module, "asyncio", type("A", (), {"get_running_loop": staticmethod(lambda: clock)}))
        child.unwritten = 5
        transport.send({"a": 1})
        transport._flush()
        return transport, child, got, clock

    _, _, got, clock = begin()
    clock.go_on()
    ((message, detail),) = got
    assert (message, detail.reason, clock.timers) == ("did not read its standard input for 10 s", "closed", [])
    _, child, got, clock = begin()
    child.unwritten = 0
    clock.go_on()
    assert (got, clock.timers) == ([], [])
    _, child, got, clock = begin()
    child.unwritten = 4
    clock.go_on()
    clock.go_on()
    assert got[0][0] == "did not read its standard input for 10 s"
    transport, _, got, clock = begin()
    for _ in range(2):
        transport.stderr_received(b"busy\n")
        clock.go_on()
        assert got == []
    transport.stderr_received(b"busy\n")
    clock.go_on()
    assert got[0][0] == "did not read its standard input for 30 s"


@pytest.mark.parametrize(
    ("config", "error", "reason", "message"),
    [
        (
            {},
            FileNotFoundError(2, "no", "x"),
            "not_found",
            "the command 'x' was not found: check its spelling and PATH",
        ),
        ({}, PermissionError(13, "no"), "refused", "the command 'x' may not be executed: no"),
        ({}, OSError(8, "odd"), None, "the command 'x' could not be started: odd"),
        ({}, ValueError("NUL"), "malformed", "the command line cannot be used: NUL"),
        ({"cwd": "/d"}, FileNotFoundError(2, "gone", "/d"), "not_found", "its working directory '/d': gone"),
        ({"cwd": "/d"}, PermissionError(13, "no", "/d"), "not_found", "its working directory '/d': no"),
        ({"cwd": "/d"}, PermissionError(13, "no", "x"), "refused", "the command 'x' may not be executed: no"),
        (
            {"command": f"{module.CLUSTER_PREFIX}x"},
            FileNotFoundError(2, "no"),
            "not_found",
            "it runs on another node of a cluster: only a gateway with --cluster reaches it",
        ),
    ],
)
async def test_a_process_that_cannot_be_started_says_why(
    monkeypatch: pytest.MonkeyPatch, config: Any, error: Exception, reason: str | None, message: str
) -> None:
    class Unable(Child):
        async def start(self, argv: Any, env: Any, cwd: Any, *, gentle: bool) -> None:
            assert argv[1:] == ["1", "2"]
            raise error

    monkeypatch.setattr(module, "ChildProcess", Unable)
    fields: dict[str, Any] = {"command": "x", "args": ("1", "2"), **config}
    with pytest.raises(ProtocolFault) as caught:
        await start_server_process(StdioServerConfig("s", **fields))
    assert (caught.value.kind, caught.value.detail.reason) == ("spawn_failed", reason)
    assert (str(caught.value), caught.value.detail.server) == (f"server 's': {message}", "s")


async def test_a_closed_transport_waits_for_no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, child, got = start(monkeypatch, call_idle_s=0.0)
    child.unwritten = 5
    transport.send({"a": 1})
    transport._flush()
    await transport.close()
    await turn()
    assert got == []


async def test_a_second_request_does_not_start_the_wait_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, child, _ = start(monkeypatch)
    watched: list[float] = []
    transport._watch_stall = watched.append
    transport.send({"a": 1})
    transport._flush()
    transport._flush()
    assert (watched, child.written) == ([], b'{"a":1}\n')
    child.unwritten = 5
    transport.send({"a": 2})
    transport._flush()
    assert len(watched) == 1


@pytest.mark.parametrize("last", [b'{"id": 2}\n', b'{"id": 2}'])
async def test_finding_f8_an_answer_in_the_pipe_is_read_before_the_exit_is_reported(
    monkeypatch: pytest.MonkeyPatch, last: bytes
) -> None:
    transport, child, got = start(monkeypatch)
    child.rest = b'{"id": 1}\n' + last
    child.exit_code = 0
    child.exited.set()
    transport._declare_exit()
    assert got[:2] == [b'{"id": 1}', b'{"id": 2}']
    assert len(got) == 3


async def test_half_a_message_at_the_exit_is_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, child, got = start(monkeypatch)
    child.rest = b'{"id": 1'
    child.exit_code = 0
    child.exited.set()
    transport._declare_exit()
    assert len(got) == 1
    assert transport.read_invalid_lines() == ('{"id": 1',)
