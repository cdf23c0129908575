"""Servers behind HTTP that answer a request under the id of another one."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.http_behaviours import Legacy, Modern, OldSse
from tests.support.http_peer import http_server
from tests.support.servers import remote, remote_sse
from tests.support.waiting import LIMIT_S

from indusagi.interop.protocol_bridge.client.http.responses import EventFilter, classify_message, is_same_id
from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerLimits
from indusagi.interop.protocol_bridge.endpoint import create_server_endpoint

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.support.http_peer import Behaviour, Exchange

    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl

FOREIGN: list[Any] = [999_999, "other", "", -1, 1.5, True, False, None, [], {}]
RESULT = {"content": [{"type": "text", "text": "stolen"}]}
PATIENT = ServerLimits(call_idle_s=600, call_hard_s=600, close_s=0.3)
"""No call here may end by its deadline."""


def answer(identity: Any, text: str = "stolen") -> dict[str, Any]:
    result: dict[str, Any] = {"content": [{"type": "text", "text": text}], "resultType": "complete"}
    return {"jsonrpc": "2.0", "id": identity, "result": result}


def on_call(honest: Behaviour, *frames: Any, events: bool, id_like: str = "") -> Behaviour:
    """Answer calls with these frames, and everything else honestly; `OWN` is the id asked for."""

    async def behave(exchange: Exchange) -> None:
        if not exchange.request.is_a("tools/call"):
            await honest(exchange)
            return
        asked = exchange.request.rpc["id"]
        said = [json.loads(json.dumps(frame).replace('"OWN"', id_like or json.dumps(asked))) for frame in frames]
        if not events:
            await exchange.reply_json(said[0])
            return
        await exchange.open_events()
        for frame in said:
            await exchange.event(frame, event="message")
        await exchange.end_events()

    return behave


@asynccontextmanager
async def calling(behaviour: Behaviour) -> AsyncGenerator[ServerEndpointImpl]:
    async with http_server(behaviour) as server:
        endpoint = create_server_endpoint(remote(server, limits=PATIENT))
        try:
            await endpoint.open()
            with anyio.fail_after(LIMIT_S):
                yield endpoint
        finally:
            await endpoint.close()


@pytest.mark.parametrize("era", [Legacy, Modern])
@pytest.mark.parametrize("foreign", FOREIGN, ids=json.dumps)
@pytest.mark.parametrize("events", [False, True], ids=["json", "events"])
async def test_finding_d9_an_answer_with_a_foreign_id_fails_the_call_at_once(
    era: type[Legacy | Modern], foreign: Any, events: bool
) -> None:
    async with calling(on_call(era(), answer(foreign), events=events)) as endpoint:
        with pytest.raises(ProtocolFault) as caught:
            await endpoint.invoke("echo", {})
        assert caught.value.detail.reason == "malformed"
        if not events or not isinstance(foreign, (list, dict, float)):
            assert "answered a request that was not asked" in str(caught.value)


@pytest.mark.parametrize("body", [[], [answer("OWN")], 5, "text", {"method": "x", "jsonrpc": "2.0"}])
async def test_finding_d9_a_body_that_is_no_answer_fails_the_call_at_once(body: Any) -> None:
    async with calling(on_call(Legacy(), body, events=False)) as endpoint:
        with pytest.raises(ProtocolFault, match="not an answer") as caught:
            await endpoint.invoke("echo", {})
        assert caught.value.detail.reason == "malformed"


@pytest.mark.parametrize("era", [Legacy, Modern])
async def test_finding_d9_the_own_answer_behind_a_foreign_one_is_taken(era: type[Legacy | Modern]) -> None:
    frames = (answer(999_999), answer("OWN", "mine"))
    async with calling(on_call(era(), *frames, events=True)) as endpoint:
        result = await endpoint.invoke("echo", {})
        assert result.content == ({"type": "text", "text": "mine"},)
        notes = " ".join(str(note) for note in endpoint.status().notes)
        assert "answered a request that was not asked (id 999999)" in notes


@pytest.mark.parametrize("size", [0, 300_000], ids=["small", "large"])
@pytest.mark.parametrize("events", [False, True], ids=["json", "events"])
async def test_finding_w2_an_answer_of_an_address_with_a_name_twice_is_refused(events: bool, size: int) -> None:
    honest = Legacy()

    async def answer_twice(exchange: Exchange) -> None:
        if not exchange.request.is_a("tools/call"):
            await honest(exchange)
            return
        content = f'[{{"type":"text","text":"a","text":"b{"x" * size}"}}]'
        body = f'{{"jsonrpc":"2.0","id":{json.dumps(exchange.request.rpc["id"])},"result":{{"content":{content}}}}}'
        if events:
            await exchange.open_events()
            await exchange.event(data=body)
            await exchange.end_events()
        else:
            await exchange.reply(200, body.encode(), {"Content-Type": "application/json"})

    async with calling(answer_twice) as endpoint:
        with pytest.raises(ProtocolFault, match="occurs twice") as caught:
            await endpoint.invoke("echo", {})
        assert caught.value.detail.reason == "malformed"


@pytest.mark.parametrize("request_id", [1, None], ids=["of a request", "standing"])
@pytest.mark.parametrize(
    "twice",
    [
        b'{"id":9,"method":"roots/list","method":"ping"}',
        b'{"method":"notifications/message","params":{"data":1,"data":2}}',
        b'{"id":1,"result":{},"result":{"text":"%b"}}' % (b"x" * 300_000),
        b'{"result":{"a":1,"a":"%b"},"id":1}' % (b"x" * 300_000),
        b'{"id":1,"result":{"a":1,"a":"\xff"}}',
    ],
)
def test_finding_w2_no_message_with_a_name_twice_passes_a_stream(request_id: int | None, twice: bytes) -> None:
    stream, ping = EventFilter(request_id), b'data: {"id":9,"method":"ping"}\n\n'
    whole = b"event: message\ndata: %b\n\n%b" % (twice, ping)
    parts = [whole[start : start + 50_000] for start in range(0, len(whole), 50_000)]
    assert b"".join([*map(stream.take, parts), stream.finish()]) == ping
    assert stream.problem is not None
    assert "occurs twice" in stream.problem


@pytest.mark.parametrize("events", [False, True], ids=["json", "events"])
async def test_error_without_id_answers_its_request(events: bool) -> None:
    error = {"code": -32600, "message": "not understood"}
    frame = {"jsonrpc": "2.0", "id": None, "error": error}
    async with calling(on_call(Legacy(), frame, events=events)) as endpoint:
        with pytest.raises(ProtocolFault, match="not understood"):
            await endpoint.invoke("echo", {})


async def test_finding_d9_on_the_old_transport_a_foreign_answer_is_never_taken() -> None:
    old = OldSse()

    async def behave(exchange: Exchange) -> None:
        if exchange.request.is_a("tools/call"):
            await old.push(answer(999_999))
            await old.push(answer(True))
        await old(exchange)

    async with http_server(behave) as server:
        endpoint = create_server_endpoint(remote_sse(server, limits=PATIENT))
        try:
            await endpoint.open()
            with anyio.fail_after(LIMIT_S):
                result = await endpoint.invoke("echo", {"text": "mine"})
            assert result.content == ({"type": "text", "text": "mine"},)
        finally:
            await endpoint.close()


# -- ids --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given_id", "asked", "same"),
    [
        (1, 1, True), (1.0, 1, True), ("1", 1, True), ("a", "a", True),
        ("01", 1, False), (" 1", 1, False), (True, 1, False), (None, 1, False), (1.5, 1, False),
        (2, 1, False), (1, "1", False), ([1], 1, False), ("1.0", 1, False), (False, 0, False),
    ],
)  # fmt: skip
def test_finding_d9_ids_are_compared_by_value_and_kind(given_id: object, asked: int | str, same: bool) -> None:
    assert is_same_id(given_id, asked) is same
    assert (classify_message(json.dumps(answer(given_id)).encode(), asked).kind == "own") is same


@pytest.mark.parametrize("order", [["id", "result"], ["result", "id"]])
@pytest.mark.parametrize(("identity", "kind"), [(7, "own"), (8, "foreign"), ("x", "foreign")])
def test_finding_d9_the_id_of_a_large_answer_is_found_at_its_edges(
    order: list[str], identity: object, kind: str
) -> None:
    parts = {"id": identity, "result": {"id": 7, "text": "x" * 300_000}}
    whole = json.dumps({"jsonrpc": "2.0", **{key: parts[key] for key in order}})
    assert classify_message(whole.encode(), 7).kind == kind


@given(st.data())
def test_finding_d9_a_stream_loses_foreign_answers_and_nothing_else(data: st.DataObject) -> None:
    """However its lines end, and wherever it is cut."""
    line_end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    ids = data.draw(st.lists(st.sampled_from([1, 2, "1", "2", None]), max_size=5))
    events = [
        b"event: message%bdata: %b%b%b" % (line_end, json.dumps(answer(i)).encode(), line_end, line_end)
        if i is not None
        else b": alive%bid: 3%b%b" % (line_end, line_end, line_end)
        for i in ids
    ]
    whole = b"".join(events)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
    stream = EventFilter(1)
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    got = b"".join([*map(stream.take, parts), stream.finish()])
    kept = [event for event, i in zip(events, ids, strict=True) if i in {1, "1", None}]
    # Of a line end that is cut in two a half may be left: an empty line, which means nothing.
    assert got.split() == b"".join(kept).split()
    assert (stream.problem is None) == all(i in {1, "1", None} for i in ids)
