"""JSON-RPC over a link in memory; what only a process can do stands in `test_stdio_faults`."""

from __future__ import annotations

import asyncio
import json
import math
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.transports import FakeTransport, LoopTime, outcome_of, settled

from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import JsonRpcConnection, RequestOptions
from indusagi.interop.protocol_bridge.rpc.errors import (
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
    is_final,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

pytestmark = pytest.mark.anyio

GOOD: JsonObject = {"good": True}
LONG_S = 60.0
"""Never reached by itself: only a test that moves the clock gets there."""
Answering = asyncio.Task["JsonObject | Exception"]


def ask(tasks: asyncio.TaskGroup, wire: JsonRpcConnection, method: str = "m", **options: object) -> Answering:
    """Send a request in a task of its own; its result is the response, or what was raised."""
    params = cast("JsonObject | None", options.pop("params", None))
    values = cast("dict[str, float]", {"idle_s": LONG_S, **options})
    request_options = RequestOptions(**values)  # pyright: ignore[reportArgumentType]
    return tasks.create_task(outcome_of(wire.request(method, params, request_options)))


def request(identity: JsonValue, method: str = "roots/list", **params: JsonValue) -> JsonObject:
    return {"jsonrpc": "2.0", "id": identity, "method": method, "params": params}


def notice(method: str, **params: JsonValue) -> JsonObject:
    return {"jsonrpc": "2.0", "method": method, "params": params}


def progress(token: JsonValue, done: int = 1) -> JsonObject:
    return notice("notifications/progress", progressToken=token, progress=done)


async def nothing(method: str, params: JsonObject) -> JsonObject:
    return {}


# -- answers ----------------------------------------------------------------------------------


async def test_request_is_one_frame_and_its_result_is_returned_unchanged() -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, "m", params={"a": None})
        bare = ask(tasks, wire, "n")
        await link.hears("n")
        assert link.sent == [
            {"jsonrpc": "2.0", "id": 1, "method": "m", "params": {"a": None}},
            {"jsonrpc": "2.0", "id": 2, "method": "n"},
        ]
        link.answer(1, GOOD)
        link.say(b'{"id": 2, "result": {"b": 1, "a": [null, 1.0]}}')
        assert await asked is GOOD
        answer = await bare
        assert json.dumps(answer) == '{"b": 1, "a": [null, 1.0]}'


@given(st.data())
@settings(max_examples=50)
async def test_concurrent_requests_get_their_own_responses(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 12))
    order = data.draw(st.permutations(range(1, count + 1)))
    shapes = data.draw(st.lists(st.sampled_from([int, str, float]), min_size=count, max_size=count))
    strangers = data.draw(st.lists(st.sampled_from([0, 99, "x", None, "1x", 1.5]), max_size=3))
    frames: list[JsonValue] = []
    for identity, shape in zip(order, shapes, strict=True):
        frames.append({"id": shape(identity), "result": {"n": identity}})
    frames.extend({"id": stranger, "result": {"n": "nobody"}} for stranger in strangers)
    cut = data.draw(st.integers(0, len(frames)))
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = [ask(tasks, wire) for _ in range(count)]
        await link.hears("m", count)
        link.say(frames[:cut], *frames[cut:], *frames)
    assert [task.result() for task in asked] == [{"n": n} for n in range(1, count + 1)]


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
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.say(frame)
        assert await asked == GOOD


@pytest.mark.parametrize("identity", [True, None, [], {}, 1.5, math.inf, "", "x", "²", "٣", "1" * 5_000, 2, -1, "-1"])
async def test_unmatched_response_is_ignored(identity: JsonValue) -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.answer(identity, {"wrong": True})
        link.say({"id": identity, "error": {"code": 1, "message": "wrong"}})
        link.say(progress(identity))
        link.answer(1, GOOD)
        assert await asked == GOOD


async def test_first_of_two_responses_counts() -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.answer(1, GOOD)
        link.answer(1, {})
        link.say({"id": 1, "error": {}})
        assert await asked == GOOD
        link.answer(1, {})


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (None, "the result is null, not an object"),
        ([1], "the result is list, not an object"),
        ("text", "the result is str, not an object"),
    ],
)
async def test_result_that_is_not_an_object_fails_the_request_at_once(result: JsonValue, said: str) -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.answer(1, result)
        failure = await asked
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
async def test_error_response_with_any_fields_raises_rpc_error(error: JsonObject, code: int, message: str, data: JsonValue) -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.say({"id": 1, "error": error})
        failure = await asked
    assert isinstance(failure, RpcError)
    assert (failure.code, failure.message, failure.data) == (code, message, data)
    assert str(failure) == message
    assert failure.detail is None


@pytest.mark.parametrize("error", ["bare", None, [], 5])
async def test_error_that_is_not_an_object_is_an_invalid_response(error: JsonValue) -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.say({"id": 1, "error": error})
        assert isinstance(await asked, InvalidResponseError)


async def test_error_has_the_detail_of_the_transport() -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    detail = link.details[1] = FaultDetail(reason="auth", http_status=401)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.say({"id": 1, "error": {"code": 1, "message": "no"}})
        failure = await asked
    assert isinstance(failure, RpcError)
    assert failure.detail is detail
    assert link.details == {}


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
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.say(line)
        failure = await asked
    assert isinstance(failure, InvalidResponseError)
    assert "the answer cannot be read" in str(failure)
    assert wire.invalid_frames == 1


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
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.say(line)
        assert wire.invalid_frames == 1
        link.answer(1, GOOD)
        assert await asked == GOOD
    assert wire.invalid_frames == 1


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
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.say(line)
        link.answer(1, GOOD)
        assert await asked == GOOD


async def test_invalid_error_fails_the_request_it_names() -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.say(b'{"jsonrpc":"2.0","id":1,"error":{"code":-1,"data":NaN}}')
        link.answer(1, GOOD)
        assert isinstance(await asked, InvalidResponseError)


@given(st.binary(max_size=60) | st.text(st.sampled_from('{}[]":,id1resultmethod ')).map(str.encode))
async def test_any_line_leaves_the_connection_usable(line: bytes) -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link, on_request=nothing, on_notify=lambda method, params: None)
    link.say(line)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        link.answer(1, GOOD)
        assert await asked == GOOD
    await wire.close()


# -- deadlines --------------------------------------------------------------------------------


async def test_request_without_response_times_out_and_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        first = ask(tasks, wire, "n", idle_s=2 * LONG_S)
        asked = ask(tasks, wire)
        await link.hears("m")
        await time.passes(LONG_S - 5)
        assert not asked.done()
        await time.passes(5)
        failure = await asked
        assert isinstance(failure, RequestTimeoutError)
        assert str(failure) == "m was not answered within 60 s"
        (cancelled,) = link.heard("notifications/cancelled")
        assert cancelled["params"] == {"requestId": 2, "reason": "no longer wanted"}
        link.answer(2, GOOD)
        link.answer(1, GOOD)
        assert await first == GOOD


async def test_progress_restarts_the_idle_deadline_within_the_hard_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    wire = JsonRpcConnection(link)
    heard: list[JsonObject] = []
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, idle_s=60.0, hard_s=200.0, on_progress=heard.append)
        (frame,) = await link.hears("m")
        assert frame["params"] == {"_meta": {"progressToken": 1}}
        for done in range(4):
            await time.passes(45)
            link.say(progress(1 if done % 2 else "1", done))
            assert not asked.done()
        await time.passes(25)
        failure = await asked
    assert isinstance(failure, RequestTimeoutError)
    assert str(failure) == "m was not answered within 200 s in all"
    assert [notice["progress"] for notice in heard] == [0, 1, 2, 3]
    assert len(link.heard("notifications/cancelled")) == 1


async def test_idle_deadline_ends_a_silent_request(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, idle_s=60.0, hard_s=200.0)
        await link.hears("m")
        link.say(progress(1))
        await time.passes(61)
        assert str(await asked) == "m was not answered within 60 s"


async def test_idle_deadline_pauses_while_the_peer_waits_for_our_response(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    thought = asyncio.Event()

    async def think(method: str, params: JsonObject) -> JsonObject:
        await thought.wait()
        return {}

    wire = JsonRpcConnection(link, on_request=think)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, idle_s=60.0, hard_s=400.0)
        await link.hears("m")
        link.say(request(7))
        for _ in range(5):
            await time.passes(50)
        assert not asked.done()
        thought.set()
        await settled()
        await time.passes(59)
        assert not asked.done()
        await time.passes(2)
        assert str(await asked) == "m was not answered within 60 s"


async def test_hard_deadline_counts_from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, idle_s=60.0, hard_s=20.0)
        await link.hears("m")
        await time.passes(20)
        assert str(await asked) == "m was not answered within 20 s in all"


async def test_infinite_deadline_waits_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, idle_s=math.inf)
        await link.hears("m")
        await time.passes(10**9)
        assert not asked.done()
        link.answer(1, GOOD)
        assert await asked == GOOD


async def test_waiting_for_a_free_slot_counts_toward_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    wire = JsonRpcConnection(link, in_flight=1)
    async with asyncio.TaskGroup() as tasks:
        first = ask(tasks, wire, "first", idle_s=math.inf)
        await link.hears("first")
        second, third = ask(tasks, wire, "second"), ask(tasks, wire, "third", idle_s=math.inf)
        await time.passes(LONG_S)
        assert isinstance(await second, RequestTimeoutError)
        assert [frame["method"] for frame in link.sent] == ["first"]
        link.answer(1, GOOD)
        assert await first == GOOD
        (sent,) = await link.hears("third")
        link.answer(sent["id"], GOOD)
        assert await third == GOOD
    assert link.heard("second") == []


async def test_unwritable_transport_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    wire = JsonRpcConnection(link)
    link.writable.clear()
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await time.passes(LONG_S)
        assert isinstance(await asked, RequestTimeoutError)
        assert link.heard("m") == []
        link.writable.set()
        again = ask(tasks, wire, "again")
        (sent,) = await link.hears("again")
        link.answer(sent["id"], GOOD)
        assert await again == GOOD


async def test_request_that_was_never_sent_is_not_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    wire = JsonRpcConnection(link)
    link.writable.clear()
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await time.passes(LONG_S)
        assert isinstance(await asked, RequestTimeoutError)
    assert link.sent == []


# -- cancellation -----------------------------------------------------------------------------


@pytest.mark.parametrize("cancellable", [True, False])
async def test_cancelled_request_notifies_the_peer_if_cancellable(cancellable: bool) -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, request_id="own-id", cancellable=cancellable)
        (sent,) = await link.hears("m")
        assert sent["id"] == "own-id"
        asked.cancel()
    assert asked.cancelled()
    told = link.heard("notifications/cancelled")
    expected = {"requestId": "own-id", "reason": "no longer wanted"}
    assert [frame["params"] for frame in told] == ([expected] if cancellable else [])


async def test_timeout_of_an_uncancellable_request_sends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    link, time = FakeTransport(), LoopTime(monkeypatch)
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, cancellable=False)
        await link.hears("m")
        await time.passes(LONG_S)
        assert isinstance(await asked, RequestTimeoutError)
    assert [frame["method"] for frame in link.sent] == ["m"]


async def test_error_at_the_moment_of_cancellation_is_dropped() -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await link.hears("m")
        asked.cancel()
        link.say({"id": 1, "error": {"code": 1, "message": "late"}})
    assert asked.cancelled()


# -- the end ----------------------------------------------------------------------------------


async def test_transport_end_fails_pending_and_later_requests() -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link, in_flight=2)
    async with asyncio.TaskGroup() as tasks:
        answered, *asked = [ask(tasks, wire) for _ in range(4)]
        await link.hears("m", 2)
        link.answer(1, GOOD)
        end = link.end()
        link.end("again")
        assert await answered == GOOD
        for task in (*asked, ask(tasks, wire, "later")):
            failure = await task
            assert isinstance(failure, ConnectionClosedError)
            assert failure.end is end
            assert str(failure) == "went away"
    assert wire.ended.result() is end
    assert len(link.sent) == 2


async def test_transport_end_fails_a_request_that_waits_for_writable() -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    link.writable.clear()
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire)
        await settled()
        link.end()
        assert isinstance(await asked, ConnectionClosedError)
    assert link.sent == []


async def test_transport_end_cancels_inbound_requests() -> None:
    link = FakeTransport()
    ended: list[str] = []

    async def answer(method: str, params: JsonObject) -> JsonObject:
        try:
            await asyncio.sleep(LONG_S)
        finally:
            ended.append(method)
        return {}

    wire = JsonRpcConnection(link, on_request=answer)
    link.say(request(1))
    await settled()
    link.end()
    await settled()
    assert ended == ["roots/list"]
    assert link.replies() == []
    await wire.close()


async def test_close_cancels_inbound_requests() -> None:
    link = FakeTransport()
    started: list[str] = []

    async def answer(method: str, params: JsonObject) -> JsonObject:
        started.append(method)
        await asyncio.sleep(LONG_S)
        return {}

    wire = JsonRpcConnection(link, on_request=answer)
    await wire.close()
    link.say(request(1), request(2))
    await settled()
    assert len(started) == 2
    await wire.close()
    assert link.replies() == []
    assert not wire.ended.done()


# -- what the server asks ---------------------------------------------------------------------


@pytest.mark.parametrize("on_request", [None, nothing])
@pytest.mark.parametrize("identity", [0, 7, "seven", ""])
async def test_ping_gets_an_empty_result(identity: int | str, on_request: None) -> None:
    link = FakeTransport()
    JsonRpcConnection(link, on_request=on_request, inbound=0)
    link.say(request(identity, "ping"))
    assert link.sent == [{"jsonrpc": "2.0", "id": identity, "result": {}}]


async def test_request_without_handler_is_method_not_found() -> None:
    link = FakeTransport()
    JsonRpcConnection(link)
    link.say(request("a"))
    error: JsonValue = {"code": -32601, "message": "roots/list is not supported"}
    assert link.sent == [{"jsonrpc": "2.0", "id": "a", "error": error}]


async def test_handler_result_is_the_response() -> None:
    link = FakeTransport()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        return {"method": method, "params": params}

    JsonRpcConnection(link, on_request=answer)
    link.say(request("a", x=1), {"id": 2, "method": "bare", "params": [1]})
    await settled()
    assert link.sent == [
        {"jsonrpc": "2.0", "id": "a", "result": {"method": "roots/list", "params": {"x": 1}}},
        {"jsonrpc": "2.0", "id": 2, "result": {"method": "bare", "params": {}}},
    ]


async def test_inbound_requests_are_limited_and_deduplicated_by_id() -> None:
    link = FakeTransport()
    gate = asyncio.Event()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        await gate.wait()
        return {}

    JsonRpcConnection(link, on_request=answer, inbound=2)
    link.say(request(1), request(2), request(3), request(1))
    await settled()
    errors = [cast("JsonObject", frame["error"]) for frame in link.replies()]
    assert [error["code"] for error in errors] == [-32603, -32601]
    gate.set()
    await settled()
    assert [frame["id"] for frame in link.replies()] == [3, 1, 1, 2]
    link.say(request(1))
    await settled()
    assert link.replies()[-1] == {"jsonrpc": "2.0", "id": 1, "result": {}}


async def test_peer_can_cancel_its_request() -> None:
    link = FakeTransport()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        await asyncio.sleep(LONG_S)
        return {}

    wire = JsonRpcConnection(link, on_request=answer, inbound=1)
    link.say(request(1))
    await settled()
    others: list[JsonValue] = [None, [], {}, 7, "1"]
    for identity in others:
        link.say(notice("notifications/cancelled", requestId=identity))
    await settled()
    link.say(request(2))
    assert [frame["id"] for frame in link.replies()] == [2]
    link.say(notice("notifications/cancelled", requestId=1))
    await settled()
    link.say(request(3))
    await settled()
    assert [frame["id"] for frame in link.replies()] == [2]
    await wire.close()


async def test_request_cancelled_before_it_starts_never_runs() -> None:
    link = FakeTransport()
    begun: list[str] = []

    async def answer(method: str, params: JsonObject) -> JsonObject:
        begun.append(method)
        return {}

    JsonRpcConnection(link, on_request=answer)
    link.say([request(1), notice("notifications/cancelled", requestId=1)])
    await settled()
    assert begun == []
    assert link.sent == []


async def test_handler_exception_becomes_an_internal_error_without_detail() -> None:
    link = FakeTransport()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        raise ValueError("the password is 1234")

    def refuse(method: str, params: JsonObject) -> asyncio.Future[JsonObject]:
        raise ValueError("the password is 1234")

    JsonRpcConnection(link, on_request=answer)
    link.say(request(1))
    other = FakeTransport()
    JsonRpcConnection(other, on_request=refuse)
    other.say(request(1))
    await settled()
    error: JsonValue = {"code": -32603, "message": "internal error"}
    assert link.sent == other.sent == [{"jsonrpc": "2.0", "id": 1, "error": error}]


async def test_handler_rpc_error_is_the_response() -> None:
    link = FakeTransport()

    async def answer(method: str, params: JsonObject) -> JsonObject:
        raise RpcError(-1, "not today", {"kept": "here"})

    JsonRpcConnection(link, on_request=answer)
    link.say(request(1))
    await settled()
    error: JsonValue = {"code": -1, "message": "not today"}
    assert link.sent == [{"jsonrpc": "2.0", "id": 1, "error": error}]


@pytest.mark.parametrize("identity", [1.5, [], {}])
async def test_request_with_an_invalid_id_is_ignored(identity: JsonValue) -> None:
    link = FakeTransport()
    JsonRpcConnection(link, on_request=nothing)
    link.say(request(identity), request(identity, "ping"))
    await settled()
    assert link.sent == []


# -- notices ----------------------------------------------------------------------------------


async def test_notifications_reach_the_listener_except_progress_and_cancelled() -> None:
    link = FakeTransport()
    heard: list[tuple[str, JsonObject]] = []
    wire = JsonRpcConnection(link, on_notify=lambda method, params: heard.append((method, params)))
    link.say(
        notice("notifications/message", level="info"),
        {"method": "notifications/bare"},
        {"method": "null-id", "id": None, "params": 5},
        progress("nobody"),
        notice("notifications/cancelled"),
    )
    assert heard == [("notifications/message", {"level": "info"}), ("notifications/bare", {}), ("null-id", {})]
    JsonRpcConnection(link).notify("notifications/initialized")
    wire.notify("notifications/x", {"a": 1})
    assert link.sent == [
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "method": "notifications/x", "params": {"a": 1}},
    ]
    link.say(notice("notifications/message"))
    assert wire.invalid_frames == 0


async def test_notification_without_listener_is_ignored() -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    link.say(notice("notifications/message"))
    assert wire.invalid_frames == 0
    assert link.sent == []


async def test_listener_exception_is_logged_and_reading_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    link = FakeTransport()

    def listen(*heard: object) -> None:
        raise ValueError("a defect")

    wire = JsonRpcConnection(link, on_notify=listen)
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, hard_s=LONG_S, on_progress=listen)
        await link.hears("m")
        link.say([notice("notifications/message"), progress(1), {"id": 1, "result": GOOD}])
        assert await asked == GOOD
    assert [record.exc_text is not None for record in caplog.records] == [True, True]


async def test_progress_token_is_added_to_existing_meta() -> None:
    link = FakeTransport()
    wire = JsonRpcConnection(link)
    params: JsonObject = {"name": "x", "_meta": {"k": "v"}}
    async with asyncio.TaskGroup() as tasks:
        asked = ask(tasks, wire, params=params, hard_s=LONG_S)
        odd = ask(tasks, wire, params={"_meta": None}, hard_s=LONG_S)
        first, second = await link.hears("m", 2)
        assert first["params"] == {"name": "x", "_meta": {"k": "v", "progressToken": 1}}
        assert second["params"] == {"_meta": {"progressToken": 2}}
        link.say(progress(1))
        link.answer(1, GOOD)
        link.answer(2, GOOD)
        assert (await asked, await odd) == (GOOD, GOOD)
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
    """Whoever closes the wire closes the link next: a handler must not be half way then."""
    link = FakeTransport()
    began, cleaned = asyncio.Event(), asyncio.Event()

    async def handle(method: str, params: JsonObject) -> JsonObject:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            await settled()
            cleaned.set()
        return {}

    wire = JsonRpcConnection(link, on_request=handle)
    link.say(request(1))
    await began.wait()
    await wire.close()
    assert cleaned.is_set()
    assert link.replies() == []
