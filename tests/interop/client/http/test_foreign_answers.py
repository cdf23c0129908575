"""Servers behind HTTP that answer a request under the id of another one."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.http_behaviours import Legacy, Modern, OldSse
from tests.support.http_peer import http_server
from tests.support.servers import remote, remote_sse
from tests.support.waiting import LIMIT_S, until

from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.http.streamable import ResumableRequest
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


@pytest.mark.parametrize("standing", [True, False])
@pytest.mark.parametrize(
    "twice",
    [
        '{"id":9,"method":"roots/list","method":"ping"}',
        '{"method":"notifications/message","params":{"data":1,"data":2}}',
        '{"id":"OWN","result":{},"result":{"text":"%s"}}' % ("x" * 300_000),
        '{"result":{"a":1,"a":"%s"},"id":"OWN"}' % ("x" * 300_000),
    ],
)
async def test_finding_w2_no_message_with_a_name_twice_passes_a_stream(standing: bool, twice: str) -> None:
    honest, heard = Legacy(events=True), list[str]()

    async def behave(exchange: Exchange) -> None:
        if not exchange.request.is_a("tools/call"):
            await honest(exchange)
        elif standing:
            await until(lambda: honest.is_standing)
            await honest.write(b"%x\r\ndata: %b\n\n\r\n" % (len(twice) + 8, twice.encode()))
            await honest.push({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "last"}})
            await honest(exchange)
        else:
            await exchange.open_events()
            await exchange.event(data=twice.replace('"OWN"', "1000000"))
            await exchange.event(answer(exchange.request.rpc["id"], "mine"))
            await exchange.end_events()

    async with http_server(behave) as server:
        handlers = Handlers(on_notification=lambda method, params: heard.append(str(params)))
        endpoint = create_server_endpoint(remote(server, limits=PATIENT), handlers=handlers)
        await endpoint.open()
        try:
            await endpoint.invoke("echo", {})
            await until(lambda: "occurs twice" in str(endpoint.status().notes))
            await until(lambda: heard == (["{'data': 'last'}"] if standing else []))
        finally:
            await endpoint.close()


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
async def test_finding_d9_ids_are_compared_by_value_and_kind(given_id: Any, asked: int | str, same: bool) -> None:
    assert ResumableRequest(asked, {"method": "x"}).is_own(answer(given_id)) is same
