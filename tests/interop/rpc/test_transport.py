"""Transports in memory, and frames as bytes: what is delivered, when, and what is refused."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc import transport as module
from indusagi.interop.protocol_bridge.rpc.transport import (
    BaseTransport,
    EncodedObject,
    EncodeError,
    QueuedTransport,
    decode_frame,
    decode_frame_verbatim,
    encode_frame,
    encode_object,
    estimate_size,
    find_cancelled_id,
    find_request_id,
    find_response_id,
    find_responses,
    is_transport,
    linked_pair,
)

pytestmark = pytest.mark.anyio
OVER = FaultDetail(reason="closed")


def attach(transport: Any) -> list[Any]:
    """Attach to a transport; return what it delivers: frames, and the message of its end."""
    got: list[Any] = []

    def end(end: Any) -> None:
        got.append(end.message)

    transport.attach(got.append, end)
    return got


async def test_frames_that_come_early_are_kept_and_the_end_comes_once() -> None:
    transport = BaseTransport()
    assert transport.writable.is_set()
    transport.deliver(b"1")
    assert transport.accepts_notifications
    first = transport.finish("over", OVER)
    assert not transport.accepts_notifications
    assert transport.finish("again", OVER) is first
    transport.deliver(b"2")
    assert attach(transport) == [b"1", "over"]
    assert transport.detail(1) is None


async def test_the_end_lets_writers_go_on() -> None:
    writable = anyio.Event()
    transport: Any = BaseTransport(writable)  # type: ignore[arg-type]
    assert not writable.is_set()
    got = attach(transport)
    transport.deliver(b"1")
    transport.finish("over", OVER)
    transport.finish("again", OVER)
    assert (writable.is_set(), got) == (True, [b"1", "over"])


async def test_a_queue_that_is_full_holds_writers_until_a_frame_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_QUEUE_FRAMES", 2)
    transport = QueuedTransport()
    transport.send({"n": 1})
    assert transport.writable.is_set()
    transport.send({"n": 2})
    transport.send({"n": 3})
    assert not transport.writable.is_set()
    assert await transport.next_frame() == {"n": 1}
    assert not transport.writable.is_set()
    assert await transport.next_frame() == {"n": 2}
    assert transport.writable.is_set()
    assert await transport.next_frame() == {"n": 3}
    taken: list[Any] = []

    async def take() -> None:
        taken.append(await transport.next_frame())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(take)
        await anyio.lowlevel.checkpoint()
        assert taken == []
        transport.send({"n": 4})
    assert taken == [{"n": 4}]


async def test_a_queue_drops_what_comes_after_the_end_and_fails_single_requests() -> None:
    transport, details = QueuedTransport(), list[FaultDetail | None]()
    got: list[Any] = []

    def receive(frame: Any) -> None:
        got.append(frame)
        details.append(transport.detail(frame["id"]))

    transport.attach(receive, lambda _: None)
    transport.fail(7, "no")
    transport.fail("x", "bad", OVER, {"code": -1, "message": "theirs", "data": 5})
    assert got == [
        {"jsonrpc": "2.0", "id": 7, "error": {"code": -32000, "message": "no"}},
        {"jsonrpc": "2.0", "id": "x", "error": {"code": -1, "message": "bad", "data": 5}},
    ]
    assert details == [None, OVER]
    assert transport.detail("x") is None
    transport.send({"n": 1})
    transport.finish("over", OVER)
    transport.send({"n": 2})
    with anyio.move_on_after(0) as scope:
        await transport.next_frame()
    assert scope.cancelled_caught


async def test_a_pair_delivers_in_order_and_ends_together() -> None:
    ours, theirs = linked_pair()
    got, back = attach(theirs), attach(ours)
    ours.send({"n": 1})
    ours.send({"n": 2})
    assert got == []
    await anyio.lowlevel.checkpoint()
    assert got == [{"n": 1}, {"n": 2}]
    ours.send({"n": 3})
    theirs.send({"n": 4})
    ours.finish()
    ours.finish()
    assert (got, back) == ([{"n": 1}, {"n": 2}, {"n": 3}, "closed the connection"], [{"n": 4}, "closed the connection"])
    ours.send({"n": 5})
    await anyio.lowlevel.checkpoint()
    assert len(got) == 4


def test_a_transport_has_three_methods_and_is_no_class() -> None:
    assert is_transport(linked_pair()[0])
    assert not is_transport(BaseTransport)
    assert not is_transport(type("Half", (), {"attach": lambda: 0, "send": lambda: 0})())
    assert not is_transport(type("Half", (), {"attach": lambda: 0, "send": 1, "detail": lambda: 0})())


@pytest.mark.parametrize(
    ("frame", "request_id", "cancelled"),
    [
        ({"method": "m", "id": 1}, 1, None),
        ({"method": "m", "id": "a"}, "a", None),
        ({"method": "m", "id": None}, None, None),
        ({"method": "m", "id": 1.5}, None, None),
        ({"id": 1, "result": {}}, None, None),
        ({"method": "notifications/cancelled", "params": {"requestId": 3}}, None, 3),
        ({"method": "notifications/cancelled", "params": {"requestId": [3]}}, None, None),
        ({"method": "notifications/cancelled", "params": 3}, None, None),
        ({"method": "notifications/other", "params": {"requestId": 3}}, None, None),
    ],
)
def test_a_frame_names_its_request(frame: Any, request_id: Any, cancelled: Any) -> None:
    assert (find_request_id(frame), find_cancelled_id(frame)) == (request_id, cancelled)


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'\xef\xbb\xbf {"a":1} \r\n', {"a": 1}),
        (b"[1,2]", [1, 2]),
        (b'{"a":"\\ud83d\\ude00"}', {"a": "😀"}),
        (b'{"a":"\\ud83d"}', {"a": "\ufffd"}),
        (b'{"a":"\xff"}', {"a": "\ufffd"}),
        (b"{}", {}),
        (b'{ "id" : 1 , "b" : [ 2 ] }', {"id": 1, "b": [2]}),
    ],
)
def test_a_line_is_decoded(line: bytes, value: Any) -> None:
    assert decode_frame(line) == value
    if b"ud83d" not in line:
        assert decode_frame_verbatim(line) == value


@pytest.mark.parametrize(
    "line",
    [
        *(b"", b"{", b"{}}", b"{} {}", b'{"a":1,}', b'{"a" 1}', b"{a:1}", b'{"a":NaN}', b'{"a":Infinity}', b"1 2"),
        *(b'{"a":1 "b":2}', b"[" * 100_000, b'{"a":' * 100_000),
    ],
)
def test_an_invalid_line_is_refused(line: bytes) -> None:
    for decode in (decode_frame, decode_frame_verbatim):
        with pytest.raises((ValueError, RecursionError)):
            decode(line)


@pytest.mark.parametrize("key", ["result", "params", "error"])
def test_the_bytes_of_a_payload_are_kept_and_sent_again(key: str) -> None:
    line = b'{"jsonrpc":"2.0","%b": {"n": 1.0,\n\r "s":"\\u00e9"} ,"id":1}' % key.encode()
    frame: Any = decode_frame_verbatim(line)
    assert type(frame[key]) is EncodedObject
    assert frame == {"jsonrpc": "2.0", key: {"n": 1.0, "s": "é"}, "id": 1}
    payload = b'{"n": 1.0,   "s":"\\u00e9"}'
    assert frame[key].encoded == payload
    assert encode_frame(frame) == b'{"jsonrpc":"2.0","id":1,"%b":%b}' % (key.encode(), payload)
    assert estimate_size(frame) == 256 + len(payload)
    other: Any = decode_frame_verbatim(b'{"%b":[1],"x":{"a":1}}' % key.encode())
    assert (type(other[key]), type(other["x"]), estimate_size(other)) == (list, dict, 256)


def test_a_number_that_cannot_be_written_is_refused() -> None:
    for value in ({"n": float("inf")}, {"n": [float("nan")]}):
        with pytest.raises(EncodeError, match="it holds a number that cannot be written"):
            encode_frame(value)  # type: ignore[arg-type]
    for line in (b'{"id":1e999}', b'{"x":[1e999]}', b"1e999"):
        with pytest.raises(ValueError, match="number"):
            decode_frame_verbatim(line)
    assert encode_object({"a": "\ud800é"}).encoded == '{"a":"\\ud800é"}'.encode()


@pytest.mark.parametrize(
    ("line", "identity"),
    [
        (b'{"jsonrpc":"2.0","id":12,"result":{', 12),
        (b'\xef\xbb\xbf { "id" : 3 , "error" : x', 3),
        (b'{"id":"a","result":{', None),
        (b'{"id":3,"method":"m"', None),
        (b'{"result":{},"id":3', None),
    ],
)
def test_a_broken_response_shows_its_id_at_its_beginning(line: bytes, identity: int | None) -> None:
    assert find_response_id(line) == identity


def test_responses_are_found_among_other_text() -> None:
    one, two = '{"jsonrpc":"2.0","id":1,"result":{}}', '{"jsonrpc":"2.0","id":2,"error":{}}'
    ids = [found["id"] for found in find_responses(f"log {one} and {two}\x1b[0m".encode())]
    assert ids == [1, 2]
    assert find_responses(b'{"id":1,"result":{}} {"jsonrpc":"2.0","id":3} {"jsonrpc": broken') == []
    assert [found["id"] for found in find_responses(f'{{"id": {one}'.encode())] == [1]
    assert find_responses(b'{"id": ' * 17 + one.encode()) == []
    assert len(find_responses(b'{"id": ' * 15 + one.encode())) == 1
