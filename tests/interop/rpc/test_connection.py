"""JSON-RPC connection over a fake transport; `test_stdio_faults` covers what needs a process."""

from __future__ import annotations

import asyncio
import json
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.transports import FakeTransport, LoopTime, outcome_of, settled

from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import (
    ConnectionClosedError,
    InvalidResponseError,
    JsonRpcConnection,
    RequestOptions,
    RequestTimeoutError,
    RpcError,
    is_final,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.core.json import JsonObject, JsonValue

pytestmark = pytest.mark.anyio

GOOD: JsonObject = {"good": True}
LONG_S = 60.0
"""A deadline that only a test with a moved clock reaches."""
ResponseTask = asyncio.Task["JsonObject | Exception"]


def start_request(
    tasks: asyncio.TaskGroup, connection: JsonRpcConnection, method: str = "m", **options: object
) -> ResponseTask:
    """Send a request in a task of its own; its result is the response, or what was raised."""
    params = cast("JsonObject | None", options.pop("params", None))
    values = cast("dict[str, float]", {"idle_s": LONG_S, **options})
    request_options = RequestOptions(**values)  # pyright: ignore[reportArgumentType]
    return tasks.create_task(outcome_of(connection.request(method, params, request_options)))


@asynccontextmanager
async def sent_request(**options: object) -> AsyncGenerator[tuple[FakeTransport, JsonRpcConnection, ResponseTask]]:
    """Send the request `m` with id 1; yields its transport, its connection and the task that waits for the response."""
    transport = FakeTransport()
    connection = JsonRpcConnection(transport)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, "m", **options)
        await transport.hears("m")
        yield transport, connection, pending


def request(identity: JsonValue, method: str = "roots/list", **params: JsonValue) -> JsonObject:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def notification(method: str, **params: JsonValue) -> JsonObject:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def progress(token: JsonValue, done: int = 1) -> JsonObject:
    return notification("notifications/progress", progressToken=token, progress=done)


async def empty_handler(method: str, params: JsonObject) -> JsonObject:
    return {}


# -- answers ----------------------------------------------------------------------------------


async def test_request_is_one_frame_and_its_result_is_returned_unchanged() -> None:
    transport = FakeTransport()
    connection = JsonRpcConnection(transport)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, "m", params={"a": None})
        bare = start_request(tasks, connection, "n")
        await transport.hears("n")
        assert transport.sent == [
            {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": None}},
            {"jsonrpc": "2.0", "id": 2, "method": "n"},
        ]
        transport.answer(1, GOOD)
        transport.say(b'{"id": 2, "result": {"b": 1, "a": [null, 1.0]}}')
        assert await pending is GOOD
        answer = await bare
        assert json.dumps(answer) == '{"b": 1, "a": [null, 1.0]}'


@given(st.data())
async def test_concurrent_requests_get_their_own_responses(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    order = data.draw(st.permutations(range(1, count + 1)))
    shapes = data.draw(st.lists(st.sampled_from([int, str, float]), min_size=count, max_size=count))
    unknown_ids = data.draw(st.lists(st.sampled_from([0, 99, "x", None, "1x", 1.5]), max_size=3))
    frames: list[JsonValue] = []
    for identity, shape in zip(order, shapes, strict=True):
        frames.append({"id": shape(identity), "result": {"n": identity}})
    frames.extend({"id": unknown_id, "result": {"n": "nobody"}} for unknown_id in unknown_ids)
    cut = data.draw(st.integers(0, len(frames)))
    transport = FakeTransport()
    connection = JsonRpcConnection(transport)
    async with asyncio.TaskGroup() as tasks:
        pending = [start_request(tasks, connection) for _ in range(count)]
        await transport.hears("m", count)
        transport.say(frames[:cut], *frames[cut:], *frames)
    assert [task.result() for task in pending] == [{"n": n} for n in range(1, count + 1)]


@pytest.mark.parametrize(
    "frame",
    [
        {"id": 1, "result": GOOD},
        {"jsonrpc": "1.0", "id": "1", "result": GOOD},
        {"id": 1.0, "result": GOOD, "error": {"code": 1}},
        [{"id": 1, "result": GOOD}],
        [5, {"id": 7, "result": {}}, {"id": 1, "result": GOOD}, None],
        b'\xef\xbb\xbf{"id":1,"result":{"good":true}}',
    ],
)
async def test_response_ids_match_as_number_float_or_text(frame: bytes | JsonValue) -> None:
    async with sent_request() as (transport, _, pending):
        transport.say(frame)
        assert await pending == GOOD


@pytest.mark.parametrize("identity", [True, None, [], {}, 1.5, math.inf, "", "x", "²", "٣", "1" * 5_000, 2, -1, "-1"])
async def test_unmatched_response_is_ignored(identity: JsonValue) -> None:
    async with sent_request() as (transport, _, pending):
        transport.answer(identity, {"wrong": True})
        transport.say({"id": identity, "error": {"code": 1, "message": "wrong"}})
        transport.say(progress(identity))
        transport.answer(1, GOOD)
        assert await pending == GOOD


async def test_first_of_two_responses_counts() -> None:
    async with sent_request() as (transport, _, pending):
        transport.answer(1, GOOD)
        transport.answer(1, {})
        transport.say({"id": 1, "error": {}})
        assert await pending == GOOD
        transport.answer(1, {})


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "the result is null, not an object"),
        ([1], "the result is list, not an object"),
        ("text", "the result is str, not an object"),
    ],
)
async def test_result_that_is_not_an_object_fails_the_request_at_once(result: JsonValue, said: str) -> None:
    async with sent_request() as (transport, _, pending):
        transport.answer(1, result)
        failure = await pending
    assert isinstance(failure, InvalidResponseError)
    assert str(failure) == said


@pytest.mark.parametrize(
    ("error", "code", "message", "data"),
    [
        ({"code": -5, "message": "no", "data": [1]}, -5, "no", [1]),
        ({"code": "E1", "message": 5}, -32603, "the server gave no reason", None),
        ({}, -32603, "the server gave no reason", None),
        ({"code": None, "message": ""}, -32603, "", None),
    ],
)
async def test_error_response_with_any_fields_raises_rpc_error(
    error: JsonObject, code: int, message: str, data: JsonValue
) -> None:
    async with sent_request() as (transport, _, pending):
        transport.say({"id": 1, "error": error})
        failure = await pending
    assert isinstance(failure, RpcError)
    assert (failure.code, failure.message, failure.data) == (code, message, data)
    assert str(failure) == message
    assert failure.detail is None


@pytest.mark.parametrize("error", ["bare", None, [], 5])
async def test_error_that_is_not_an_object_is_an_invalid_response(error: JsonValue) -> None:
    async with sent_request() as (transport, _, pending):
        transport.say({"id": 1, "error": error})
        assert isinstance(await pending, InvalidResponseError)


async def test_error_has_the_detail_of_the_transport() -> None:
    transport = FakeTransport()
    connection = JsonRpcConnection(transport)
    detail = transport.details[1] = FaultDetail(reason="auth", http_status=401)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection)
        await transport.hears("m")
        transport.say({"id": 1, "error": {"code": 1, "message": "no"}})
        failure = await pending
    assert isinstance(failure, RpcError)
    assert failure.detail is detail
    assert transport.details == {}


# -- frames that cannot be read ---------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{"n":NaN}}',
        b'{"jsonrpc": "2.0", "id" : 1 , "result": {"n": -Infinity}}',
        b'{"id":1,"result":{"content":[',
        b'\xef\xbb\xbf{"id":1,"result":{"n":' + b"9" * 5_000 + b"}}",
        b'{"id":1,"result":{"n":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
    ],
)
async def test_invalid_result_fails_the_request_it_names(line: bytes) -> None:
    async with sent_request() as (transport, connection, pending):
        transport.say(line)
        failure = await pending
    assert isinstance(failure, InvalidResponseError)
    assert "the answer cannot be read" in str(failure)
    assert connection.invalid_frames == 1


@pytest.mark.parametrize(
    "line",
    [
        b"Listening on port 8080",
        b'{"id":1,',
        b'{"method":"m","params":{"id":1}',
        b'{"id":7,"result":{',
        b'{"pad":"' + b"x" * 600 + b'","id":1,"result":{',
        b"",
        b"null",
        b"5",
        b"[]",
        b'"text"',
        b"{}",
        b'{"id":1}',
        b'{"jsonrpc":"2.0","method":5,"id":1}',
        b"\xff\xfe",
    ],
)
async def test_invalid_frames_are_counted_and_ignored(line: bytes) -> None:
    async with sent_request() as (transport, connection, pending):
        transport.say(line)
        assert connection.invalid_frames == 1
        transport.answer(1, GOOD)
        assert await pending == GOOD
    assert connection.invalid_frames == 1


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","result":{"items":[{"id":1,"n":NaN}]},"id":77}',
        b'{"jsonrpc":"2.0","result":{"n":NaN},"_meta":{"id":1}}',
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"id":1,"result":NaN}}',
        b'{"jsonrpc":"2.0","id":1,"method":"roots/list","params":{"result":NaN}}',
    ],
)
async def test_invalid_frame_fails_no_other_request(line: bytes) -> None:
    async with sent_request() as (transport, _, pending):
        transport.say(line)
        transport.answer(1, GOOD)
        assert await pending == GOOD


async def test_invalid_error_fails_the_request_it_names() -> None:
    async with sent_request() as (transport, _, pending):
        transport.say(b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"data":NaN}}')
        transport.answer(1, GOOD)
        assert isinstance(await pending, InvalidResponseError)


@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]":,id1resultmethod ')).map(str.encode))
async def test_any_line_leaves_the_connection_usable(line: bytes) -> None:
    transport = FakeTransport()
    connection = JsonRpcConnection(transport, on_request=empty_handler, on_notify=lambda method, params: None)
    transport.say(line)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection)
        await transport.hears("m")
        transport.answer(1, GOOD)
        assert await pending == GOOD
    await connection.close()


# -- deadlines --------------------------------------------------------------------------------


async def test_request_without_response_times_out_and_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    connection = JsonRpcConnection(transport)
    async with asyncio.TaskGroup() as tasks:
        first = start_request(tasks, connection, "n", idle_s=2 * LONG_S)
        pending = start_request(tasks, connection)
        await transport.hears("m")
        await time.passes(LONG_S - 5)
        assert not pending.done()
        await time.passes(5)
        failure = await pending
        assert isinstance(failure, RequestTimeoutError)
        assert str(failure) == "m was not answered within 60 s"
        (cancelled,) = transport.heard("notifications/cancelled")
        assert cancelled["params"] == {"requestId": 2, "reason": "no longer wanted"}
        transport.answer(2, GOOD)
        transport.answer(1, GOOD)
        assert await first == GOOD


async def test_progress_restarts_the_idle_deadline_within_the_hard_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    connection = JsonRpcConnection(transport)
    heard: list[JsonObject] = []
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, idle_s=60.0, hard_s=200.0, on_progress=heard.append)
        (frame,) = await transport.hears("m")
        assert frame["params"] == {"_meta": {"progressToken": 1}}
        for done in range(4):
            await time.passes(45)
            transport.say(progress(1 if done % 2 else "1", done))
            assert not pending.done()
        await time.passes(25)
        failure = await pending
    assert isinstance(failure, RequestTimeoutError)
    assert str(failure) == "m was not answered within 200 s in all"
    assert [notification["progress"] for notification in heard] == [0, 1, 2, 3]
    assert len(transport.heard("notifications/cancelled")) == 1


async def test_idle_deadline_ends_a_silent_request(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    connection = JsonRpcConnection(transport)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, idle_s=60.0, hard_s=200.0)
        await transport.hears("m")
        transport.say(progress(1))
        await time.passes(61)
        assert str(await pending) == "m was not answered within 60 s"


async def test_idle_deadline_pauses_while_the_peer_waits_for_our_response(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    thought = asyncio.Event()

    async def think(method: str, params: JsonObject) -> JsonObject:
        await thought.wait()
        return {}

    connection = JsonRpcConnection(transport, on_request=think)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, idle_s=60.0, hard_s=400.0)
        await transport.hears("m")
        transport.say(request(7))
        for _ in range(5):
            await time.passes(50)
        assert not pending.done()
        thought.set()
        await settled()
        await time.passes(40)
        assert not pending.done()
        await time.passes(20)
        assert str(await pending) == "m was not answered within 60 s"


async def test_hard_deadline_counts_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    connection = JsonRpcConnection(transport)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, idle_s=60.0, hard_s=20.0)
        await transport.hears("m")
        await time.passes(20)
        assert str(await pending) == "m was not answered within 20 s in all"


async def test_infinite_deadline_waits_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    connection = JsonRpcConnection(transport)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, idle_s=math.inf)
        await transport.hears("m")
        await time.passes(10**9)
        assert not pending.done()
        transport.answer(1, GOOD)
        assert await pending == GOOD


async def test_waiting_for_a_free_slot_counts_toward_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    connection = JsonRpcConnection(transport, in_flight=1)
    async with asyncio.TaskGroup() as tasks:
        first = start_request(tasks, connection, "first", idle_s=math.inf)
        await transport.hears("first")
        second, third = (
            start_request(tasks, connection, "second"),
            start_request(tasks, connection, "third", idle_s=math.inf),
        )
        await time.passes(LONG_S)
        assert isinstance(await second, RequestTimeoutError)
        assert [frame["method"] for frame in transport.sent] == ["first"]
        transport.answer(1, GOOD)
        assert await first == GOOD
        (sent,) = await transport.hears("third")
        transport.answer(sent["id"], GOOD)
        assert await third == GOOD
    assert transport.heard("second") == []


async def test_unwritable_transport_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    connection = JsonRpcConnection(transport)
    transport.writable.clear()
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection)
        await time.passes(LONG_S)
        assert isinstance(await pending, RequestTimeoutError)
        assert transport.heard("m") == []
        transport.writable.set()
        again = start_request(tasks, connection, "again")
        (sent,) = await transport.hears("again")
        transport.answer(sent["id"], GOOD)
        assert await again == GOOD


async def test_request_that_was_never_sent_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    connection = JsonRpcConnection(transport)
    transport.writable.clear()
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection)
        await time.passes(LONG_S)
        assert isinstance(await pending, RequestTimeoutError)
    assert transport.sent == []


# -- cancellation -----------------------------------------------------------------------------


@pytest.mark.parametrize("cancellable", [True, False])
async def test_cancelled_request_notifies_the_peer_if_cancellable(cancellable: bool) -> None:
    transport = FakeTransport()
    connection = JsonRpcConnection(transport)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, request_id="own-id", cancellable=cancellable)
        (sent,) = await transport.hears("m")
        assert sent["id"] == "own-id"
        pending.cancel()
    assert pending.cancelled()
    told = transport.heard("notifications/cancelled")
    expected = {"requestId": "own-id", "reason": "no longer wanted"}
    assert [frame["params"] for frame in told] == ([expected] if cancellable else [])


async def test_timeout_of_an_uncancellable_request_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    connection = JsonRpcConnection(transport)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, cancellable=False)
        await transport.hears("m")
        await time.passes(LONG_S)
        assert isinstance(await pending, RequestTimeoutError)
    assert [frame["method"] for frame in transport.sent] == ["m"]


async def test_error_at_the_moment_of_cancellation_is_dropped() -> None:
    async with sent_request() as (transport, _, pending):
        pending.cancel()
        transport.say({"id": 1, "error": {"code": 1, "message": "late"}})
    assert pending.cancelled()


# -- the end ----------------------------------------------------------------------------------


async def test_transport_end_fails_pending_and_later_requests() -> None:
    transport = FakeTransport()
    connection = JsonRpcConnection(transport, in_flight=2)
    async with asyncio.TaskGroup() as tasks:
        answered, *pending = [start_request(tasks, connection) for _ in range(4)]
        await transport.hears("m", 2)
        transport.answer(1, GOOD)
        end = transport.end()
        transport.end("again")
        assert await answered == GOOD
        for task in (*pending, start_request(tasks, connection, "later")):
            failure = await task
            assert isinstance(failure, ConnectionClosedError)
            assert failure.end is end
            assert str(failure) == "went away"
    assert connection.ended.result() is end
    assert len(transport.sent) == 2


async def test_transport_end_fails_a_request_that_waits_for_writable() -> None:
    transport = FakeTransport()
    connection = JsonRpcConnection(transport)
    transport.writable.clear()
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection)
        await settled()
        transport.end()
        assert isinstance(await pending, ConnectionClosedError)
    assert transport.sent == []


async def test_transport_end_cancels_inbound_requests() -> None:
    transport = FakeTransport()
    ended: list[str] = []

    async def answer(method: str, params: JsonObject) -> JsonObject:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            ended.append(method)
        return {}

    connection = JsonRpcConnection(transport, on_request=answer)
    transport.say(request(1))
    await settled()
    transport.end()
    await settled()
    assert ended == ["roots/list"]
    assert transport.replies() == []
    await connection.close()


async def test_close_does_not_wait_for_a_handler_that_ignores_its_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("indusagi.interop.protocol_bridge.rpc.connection.HANDLER_EXIT_S", 0.01)
    transport, go = FakeTransport(), asyncio.Event()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return {}

    connection = JsonRpcConnection(transport, on_request=answer)
    transport.say(request(1))
    await settled()
    async with asyncio.timeout(LONG_S):
        await connection.close()
    go.set()
    await settled()


async def test_close_cancels_inbound_requests() -> None:
    transport = FakeTransport()
    started: list[str] = []

    async def answer(method: str, params: JsonObject) -> JsonObject:
        started.append(method)
        await asyncio.sleep(LONG_S)
        return {}

    connection = JsonRpcConnection(transport, on_request=answer)
    await connection.close()
    transport.say(request(1), request(2))
    await settled()
    assert len(started) == 2
    await connection.close()
    assert transport.replies() == []
    assert not connection.ended.done()


# -- what the server asks ---------------------------------------------------------------------


@pytest.mark.parametrize("on_request", [None, empty_handler])
@pytest.mark.parametrize("identity", [0, 7, "seven", ""])
async def test_ping_gets_an_empty_result(identity: int | str, on_request: None) -> None:
    transport = FakeTransport()
    JsonRpcConnection(transport, on_request=on_request, inbound=0)
    transport.say(request(identity, "ping"))
    assert transport.sent == [{"jsonrpc": "2.0", "id": identity, "result": {}}]


async def test_request_without_handler_is_method_not_found() -> None:
    transport = FakeTransport()
    JsonRpcConnection(transport)
    transport.say(request("a"))
    error: JsonValue = {"code": -32601, "message": "roots/list is not supported"}
    assert transport.sent == [{"jsonrpc": "2.0", "id": "a", "error": error}]


async def test_handler_result_is_the_response() -> None:
    transport = FakeTransport()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        return {"method": method, "params": params}

    JsonRpcConnection(transport, on_request=answer)
    transport.say(request("a", x=1), {"id": 2, "method": "bare", "params": [1]})
    await settled()
    assert transport.sent == [
        {"jsonrpc": "2.0", "id": "a", "result": {"method": "roots/list", "params": {"x": 1}}},
        {"jsonrpc": "2.0", "id": 2, "result": {"method": "bare", "params": {}}},
    ]


async def test_inbound_requests_are_limited_and_deduplicated_by_id() -> None:
    transport = FakeTransport()
    gate = asyncio.Event()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        await gate.wait()
        return {}

    JsonRpcConnection(transport, on_request=answer, inbound=2)
    transport.say(request(1), request(2), request(3), request(1))
    await settled()
    errors = [cast("JsonObject", frame["error"]) for frame in transport.replies()]
    assert [error["code"] for error in errors] == [-32603, -32601]
    gate.set()
    await settled()
    assert [frame["id"] for frame in transport.replies()] == [3, 1, 1, 2]
    transport.say(request(1))
    await settled()
    assert transport.replies()[-1] == {"jsonrpc": "2.0", "id": 1, "result": {}}


async def test_peer_can_cancel_its_request() -> None:
    transport = FakeTransport()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        await asyncio.sleep(LONG_S)
        return {}

    connection = JsonRpcConnection(transport, on_request=answer, inbound=1)
    transport.say(request(1))
    await settled()
    others: list[JsonValue] = [None, [], {}, 7, "1"]
    for identity in others:
        transport.say(notification("notifications/cancelled", requestId=identity))
    await settled()
    transport.say(request(2))
    assert [frame["id"] for frame in transport.replies()] == [2]
    transport.say(notification("notifications/cancelled", requestId=1))
    await settled()
    transport.say(request(3))
    await settled()
    assert [frame["id"] for frame in transport.replies()] == [2]
    await connection.close()


async def test_request_cancelled_before_it_starts_never_runs() -> None:
    transport = FakeTransport()
    begun: list[str] = []

    async def answer(method: str, params: JsonObject) -> JsonObject:
        begun.append(method)
        return {}

    JsonRpcConnection(transport, on_request=answer)
    transport.say([request(1), notification("notifications/cancelled", requestId=1)])
    await settled()
    assert begun == []
    assert transport.sent == []


async def test_handler_exception_becomes_an_internal_error_without_detail() -> None:
    transport = FakeTransport()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        raise ValueError("the password is 1234")

    def refuse(method: str, params: JsonObject) -> asyncio.Future[JsonObject]:
        raise ValueError("the password is 1234")

    JsonRpcConnection(transport, on_request=answer)
    transport.say(request(1))
    other = FakeTransport()
    JsonRpcConnection(other, on_request=refuse)
    other.say(request(1))
    await settled()
    error: JsonValue = {"code": -32603, "message": "internal error"}
    assert transport.sent == other.sent == [{"jsonrpc": "2.0", "id": 1, "error": error}]


async def test_handler_rpc_error_is_the_response() -> None:
    transport = FakeTransport()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        raise RpcError(-1, "not today", {"kept": "here"})

    JsonRpcConnection(transport, on_request=answer)
    transport.say(request(1))
    await settled()
    error: JsonValue = {"code": -1, "message": "not today"}
    assert transport.sent == [{"jsonrpc": "2.0", "id": 1, "error": error}]


@pytest.mark.parametrize("identity", [1.5, 1.0, -0.5, 1e30])
async def test_finding_f16_a_request_with_a_float_id_is_answered_under_it(identity: float) -> None:
    transport = FakeTransport()
    JsonRpcConnection(transport, on_request=empty_handler)
    transport.say(request(identity, "ping"), request(identity))
    await settled()
    assert [repr(frame["id"]) for frame in transport.sent] == [repr(identity)] * 2
    assert all("result" in frame for frame in transport.sent)


@pytest.mark.parametrize("identity", [[], {}, True])
async def test_a_request_with_an_invalid_id_is_refused_without_one(identity: JsonValue) -> None:
    transport = FakeTransport()
    JsonRpcConnection(transport, on_request=empty_handler)
    transport.say(request(identity))
    await settled()
    assert [(frame["id"], "error" in frame) for frame in transport.sent] == [(None, True)]


TWICE = [
    b'{"jsonrpc":"2.0","id":1,"result":{"a":1},"result":{"a":2}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"b":[{"c":{"a":1,"\\u0061":2}}]}}',
]


@pytest.mark.parametrize("line", TWICE)
async def test_finding_w2_an_answer_with_a_name_twice_is_refused(line: bytes) -> None:
    async with sent_request() as (transport, _, pending):
        transport.say(line)
        answered = await pending
        assert isinstance(answered, InvalidResponseError)
        assert "occurs twice" in str(answered)


# -- notices ----------------------------------------------------------------------------------


async def test_notifications_reach_the_listener_except_progress_of_pending_requests_and_cancelled() -> None:
    transport = FakeTransport()
    heard: list[tuple[str, JsonObject]] = []
    connection = JsonRpcConnection(transport, on_notify=lambda method, params: heard.append((method, params)))
    transport.say(
        notification("notifications/message", level="info"),
        {"method": "notifications/bare"},
        {"method": "null-id", "id": None, "params": 5},
        progress("nobody"),
        notification("notifications/cancelled"),
    )
    assert heard == [
        ("notifications/message", {"level": "info"}),
        ("notifications/bare", {}),
        ("null-id", {}),
        ("notifications/progress", {"progressToken": "nobody", "progress": 1}),
    ]
    JsonRpcConnection(transport).notify("notifications/initialized")
    connection.notify("notifications/x", {"a": 1})
    assert transport.sent == [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": 1}},
    ]
    transport.say(notification("notifications/message"))
    assert connection.invalid_frames == 0


async def test_notification_without_listener_is_ignored() -> None:
    transport = FakeTransport()
    connection = JsonRpcConnection(transport)
    transport.say(notification("notifications/message"))
    assert connection.invalid_frames == 0
    assert transport.sent == []


async def test_listener_exception_is_logged_and_reading_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    transport = FakeTransport()

    def listen(*heard: object) -> None:
        raise ValueError("a defect")

    connection = JsonRpcConnection(transport, on_notify=listen)
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, hard_s=LONG_S, on_progress=listen)
        await transport.hears("m")
        transport.say([notification("notifications/message"), progress(1), {"id": 1, "result": GOOD}])
        assert await pending == GOOD
    assert [record.exc_text is not None for record in caplog.records] == [True, True]


async def test_progress_token_is_added_to_existing_meta() -> None:
    transport = FakeTransport()
    connection = JsonRpcConnection(transport)
    params: JsonObject = {"name": "x", "_meta": {"k": "v"}}
    async with asyncio.TaskGroup() as tasks:
        pending = start_request(tasks, connection, params=params, hard_s=LONG_S)
        odd = start_request(tasks, connection, params={"_meta": None}, hard_s=LONG_S)
        first, second = await transport.hears("m", 2)
        assert first["params"] == {"name": "x", "_meta": {"k": "v", "progressToken": 1}}
        assert second["params"] == {"_meta": {"progressToken": 2}}
        transport.say(progress(1))
        transport.answer(1, GOOD)
        transport.answer(2, GOOD)
        assert (await pending, await odd) == (GOOD, GOOD)
    assert params == {"name": "x", "_meta": {"k": "v"}}


# -- what is final ----------------------------------------------------------------------------


def refused(detail: FaultDetail | None) -> RpcError:
    error = RpcError(-1, "no")
    error.detail = detail
    return error


@pytest.mark.parametrize(
    ("exc", "final"),
    [
        (None, True),
        (ValueError(), False),
        (InvalidResponseError(), False),
        (refused(None), False),
        (refused(FaultDetail()), False),
        (refused(FaultDetail(reason="auth", http_status=401)), True),
        (refused(FaultDetail(reason="rate_limited", http_status=429)), True),
        (refused(FaultDetail(reason="redirect", http_status=301)), True),
        (refused(FaultDetail(reason="refused")), True),
        (refused(FaultDetail(reason="refused", http_status=405)), False),
        (refused(FaultDetail(reason="not_found", http_status=404)), False),
        (refused(FaultDetail(reason="upstream", http_status=502)), False),
    ],
)
def test_final_refusals_end_the_negotiation(exc: BaseException | None, final: bool) -> None:
    assert is_final(exc) is final


async def test_finding_e7_close_waits_until_running_handlers_have_cleaned_up() -> None:
    """The owner closes the transport after the connection: no handler may still run then."""
    transport = FakeTransport()
    began, cleaned = asyncio.Event(), asyncio.Event()

    async def handle(method: str, params: JsonObject) -> JsonObject:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await settled()
            cleaned.set()
        return {}

    connection = JsonRpcConnection(transport, on_request=handle)
    transport.say(request(1))
    await began.wait()
    await connection.close()
    assert cleaned.is_set()
    assert transport.replies() == []
