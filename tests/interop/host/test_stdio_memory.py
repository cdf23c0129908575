"""The stdio transport of a host with a client in memory: lines in, lines out, and pauses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from anyio import to_thread

from indusagi.interop.protocol_bridge.host import stdio as module
from indusagi.interop.protocol_bridge.host.stdio import StdioHostTransport

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


class Writer:
    """Output that the client reads when a test says so."""

    def __init__(self) -> None:
        self.written, self.unread = b"", 0

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.unread


class Reader:
    """Input that notes when it is held."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def pause(self) -> None:
        self.told.append("pause")

    def resume(self) -> None:
        self.told.append("resume")


def make() -> tuple[Any, Writer, Reader, list[Any]]:
    """A transport with a client; return what it delivers too."""
    transport: Any = StdioHostTransport(0, 1, 100)
    writer, reader, got = Writer(), Reader(), list[Any]()
    transport._writer, transport._reader = writer, reader

    attach(transport, got)
    return transport, writer, reader, got


def attach(transport: Any, got: list[Any] | None = None) -> list[Any]:
    """Note what a transport delivers, and the message of its end."""
    noted = list[Any]() if got is None else got

    def end(end: Any) -> None:
        noted.append(end.message)

    transport.attach(noted.append, end)
    return noted


async def turn(count: int = 3) -> None:
    """Let the event loop go round."""
    for _ in range(count):
        await anyio.lowlevel.checkpoint()


async def test_lines_are_written_together_and_large_ones_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", 20)
    transport, writer, _, got = make()
    transport.send({"a": 1})
    transport.send({"b": 2})
    assert writer.written == b""
    await turn()
    assert writer.written == b'{"a":1}\n{"b":2}\n'
    transport.send({"c": "x" * 20})
    assert writer.written.endswith(b'{"c":"%b"}\n' % (b"x" * 20))
    for number in range(3):
        transport.send({"d": number})
    assert writer.written.endswith(b'{"d":0}\n{"d":1}\n{"d":2}\n')
    transport.send({"e": 1})
    transport.finish("over")
    transport.finish("again")
    assert writer.written.endswith(b'{"e":1}\n')
    transport.send({"f": 1})
    await turn()
    assert b'"f"' not in writer.written
    assert (got, transport.accepts_notifications, transport.input_ended.is_set()) == (["over"], False, True)
    assert transport.detail(1) is None


async def test_lines_are_handled_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINES_PER_TURN", 3)
    transport, _, reader, got = make()
    transport._receive_data(b"".join(b"%d\n" % number for number in range(8)) + b"res")
    assert (got, reader.told[-1]) == ([b"0", b"1", b"2"], "pause")
    await turn()
    assert (got[3:], reader.told[-1]) == ([b"3", b"4", b"5", b"6", b"7"], "resume")
    transport._receive_data(b"t\nlast")
    assert got[-1] == b"rest"
    transport._handle_input_end()
    transport._handle_input_end()
    assert (got[-1], got.count(b"last"), transport.input_ended.is_set()) == (b"last", 1, True)
    transport.finish("over")
    transport.deliver(b"late")
    assert got[-1] == "over"


async def test_exactly_a_turn_of_lines_is_handled_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINES_PER_TURN", 3)
    transport, _, reader, got = make()
    transport._receive_data(b"1\n2\n3\nrest")
    assert (got, reader.told) == ([b"1", b"2", b"3"], ["resume"])


@pytest.mark.parametrize(("unread", "pauses"), [(100, False), (101, True)])
async def test_a_client_that_does_not_read_is_not_listened_to(
    monkeypatch: pytest.MonkeyPatch, unread: int, *, pauses: bool
) -> None:
    monkeypatch.setattr(module, "_UNREAD_BYTES", 100)
    monkeypatch.setattr(module, "_HANGUP_CHECK_S", 600.0)
    transport, writer, reader, got = make()
    writer.unread = unread
    transport._receive_data(b"1\n")
    assert got == [b"1"], "it may write"
    transport.writable.clear()
    transport._receive_data(b"2\n")
    assert (got[1:], reader.told[-1]) == (([], "pause") if pauses else ([b"2"], "resume"))
    transport._is_hung_up = True
    transport._handle_input()
    assert got[1:] == [b"2"]
    transport._is_hung_up = False
    transport._receive_data(b"3\n")
    transport.writable.set()
    assert got[1:] == [b"2", b"3"]


async def test_finding_r6_nothing_is_read_while_there_is_no_room() -> None:
    transport, _, reader, got = make()
    has_room = True
    go_on = transport.limit_input(lambda: has_room)
    transport._receive_data(b"1\n")
    has_room = False
    transport._receive_data(b"2\n")
    assert (got, reader.told[-1]) == ([b"1"], "pause")
    transport._is_hung_up = True
    transport._handle_input()
    assert got == [b"1"]
    has_room = True
    go_on()
    assert (got, reader.told[-1]) == ([b"1", b"2"], "resume")


async def test_lines_before_the_host_listens_are_kept() -> None:
    transport: Any = StdioHostTransport(0, 1, 100)
    transport._receive_data(b"1\n2\n")
    transport.finish("over")
    got = attach(transport)
    assert got == [b"1", b"2", "over"]


async def test_output_that_cannot_be_written_ends_the_connection(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.touch()
    for flags, is_written in ((os.O_WRONLY, True), (os.O_RDONLY, False)):
        sink = os.open(path, flags)
        transport: Any = StdioHostTransport(0, sink, 100)
        transport._outgoing.append(b"{}")
        try:
            await to_thread.run_sync(transport._flush)
        finally:
            os.close(sink)
        assert path.read_bytes() == b"{}\n"
        assert (transport.write_error is None) is is_written
        assert transport.accepts_notifications is is_written


async def test_input_from_a_file_is_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_bytes(b"1\n2\nrest")
    source = os.open(path, os.O_RDONLY)
    transport: Any = StdioHostTransport(source, 1, 100)
    got = attach(transport)
    await transport.read_file()
    os.close(source)
    assert (got, transport.input_ended.is_set()) == ([b"1", b"2", b"rest"], True)


async def test_a_client_that_stops_reading_has_gone() -> None:
    transport, _, _, got = make()
    transport.writable.clear()
    transport._handle_output_closed()
    assert (got, transport.writable.is_set()) == (["the client stopped reading"], True)
