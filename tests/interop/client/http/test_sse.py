"""A server configured as SSE that speaks the present HTTP transport is reached all the same."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.http_behaviours import Legacy, Modern, OldSse, silence, status
from tests.support.http_peer import http_server
from tests.support.servers import STEADY
from tests.support.waiting import until

from indusagi.core.cancel import CancelToken
from indusagi.interop import ProtocolFault, SseServerConfig, create_server_endpoint

if TYPE_CHECKING:
    from tests.support.http_peer import Behaviour, Exchange

pytestmark = pytest.mark.anyio


def answering_get(code: int | None, then: Behaviour) -> Behaviour:
    """Answer a GET without a session by a status, or by a stream that stays silent."""

    async def behave(exchange: Exchange) -> None:
        request = exchange.request
        if request.method != "GET" or "mcp-session-id" in request.headers:
            await then(exchange)
        elif code is None:
            await exchange.open_events()
            await exchange.until_gone()
        else:
            error = {"code": -32000, "message": "no"}
            await exchange.reply_json({"jsonrpc": "2.0", "id": None, "error": error}, code)

    return behave


@pytest.mark.parametrize("code", [400, 404, 405, 406, None])
@pytest.mark.parametrize("era", [Legacy, Modern])
async def test_finding_1a11_the_present_transport_is_tried_next(code: int | None, era: type[Legacy | Modern]) -> None:
    limits = STEADY if code else replace(STEADY, probe_s=0.05)
    async with http_server(answering_get(code, era())) as server:
        endpoint = create_server_endpoint(SseServerConfig("a", server.url, limits=limits))
        await endpoint.open()
        try:
            assert await endpoint.list_tools()
            assert any("present HTTP transport" in str(note) for note in endpoint.status().notes)
        finally:
            await endpoint.close()


async def test_sse_server_is_not_tried_with_streamable_http() -> None:
    async with http_server(OldSse()) as server:
        endpoint = create_server_endpoint(SseServerConfig("a", server.url, limits=STEADY))
        await endpoint.open()
        await endpoint.close()
        assert next(one.path for one in server.requests if one.method == "POST") != "/mcp"


@pytest.mark.parametrize("code", [400, 401, 403, 404, 405, 406, 429, 500, 503])
async def test_finding_1a11_a_refusal_in_both_is_told_with_its_status(code: int) -> None:
    async with http_server(status(code)) as server:
        endpoint = create_server_endpoint(SseServerConfig("a", server.url, limits=STEADY))
        with pytest.raises(ProtocolFault, match=f"HTTP {code}"):
            await endpoint.open()


async def test_finding_1a11_a_refusal_in_the_words_of_the_protocol_has_a_reason_too() -> None:
    async with http_server(answering_get(405, status(405))) as server:
        endpoint = create_server_endpoint(SseServerConfig("a", server.url, limits=STEADY))
        with pytest.raises(ProtocolFault, match=r"refused the request \(HTTP 405\)"):
            await endpoint.open()


async def test_an_endpoint_that_is_no_url_is_a_fault() -> None:
    async def lure(exchange: Exchange) -> None:
        await exchange.open_events()
        await exchange.event(event="endpoint", data="http://[::1")
        await exchange.until_gone()

    async with http_server(lure) as server:
        endpoint = create_server_endpoint(SseServerConfig("a", server.url, limits=STEADY))
        with pytest.raises(ProtocolFault, match="named an endpoint that is not a URL"):
            await endpoint.open()


async def test_the_post_of_a_cancelled_call_is_given_up() -> None:
    honest, token = OldSse(), CancelToken()

    async def behave(exchange: Exchange) -> None:
        await (silence if exchange.request.is_a("tools/call") else honest)(exchange)

    async with http_server(behave) as server:
        endpoint = create_server_endpoint(SseServerConfig("a", server.url, limits=replace(STEADY, close_s=0.01)))
        await endpoint.open()

        async def fail() -> None:
            with pytest.raises(ProtocolFault, match="cancelled"):
                await endpoint.invoke("echo", {}, cancel=token)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(fail())
            await until(lambda: bool(server.heard("tools/call")))
            token.cancel("enough")
            await until(lambda: [gone.rpc.get("method") for gone in server.hangups] == ["tools/call"])
        await endpoint.close()
