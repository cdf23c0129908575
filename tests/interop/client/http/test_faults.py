"""Servers behind HTTP that fail in every way: one request fails, the rest goes on."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpcore2
import pytest
from tests.support.http_behaviours import (
    Legacy,
    Modern,
    OldSse,
    cut,
    drip,
    events_cut,
    forgets_session,
    gzip_bomb,
    large,
    mistyped,
    page,
    redirect,
    silence,
    sometimes,
    status,
    together,
)
from tests.support.http_peer import http_server, self_signed
from tests.support.servers import SHORT_START, STEADY, STEADY_S, remote, remote_sse
from tests.support.transports import LoopTime
from tests.support.waiting import until, until_task_ends

from indusagi.core.cancel import CancelToken
from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.http import client as _http
from indusagi.interop.protocol_bridge.client.http import streamable
from indusagi.interop.protocol_bridge.client.start import Supervision
from indusagi.interop.protocol_bridge.contract import (
    BridgeConfig,
    EndpointPhase,
    ProtocolFault,
    ServerLimits,
    SseServerConfig,
    StreamableHttpServerConfig,
)
from indusagi.interop.protocol_bridge.endpoint import create_server_endpoint
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from pathlib import Path

    from tests.support.http_peer import Behaviour, Exchange

    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl


class Turns:
    """Counts the turns of the event loop, and what happens in each."""

    def __init__(self) -> None:
        self.heard: Counter[int] = Counter()
        self._turn = 0
        self._loop = asyncio.get_running_loop()
        self._next = self._loop.call_soon(self._count)

    def _count(self) -> None:
        self._turn += 1
        self._next = self._loop.call_soon(self._count)

    def note(self, method: str, params: object) -> None:
        self.heard[self._turn] += 1

    def stop(self) -> None:
        self._next.cancel()


@pytest.mark.parametrize("transport", ["old", "present"])
async def test_finding_d12_a_flood_of_events_is_taken_a_little_in_each_turn(transport: str) -> None:
    honest = OldSse() if transport == "old" else Legacy(events=True)
    count = 500
    line = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "on"}}
    flood = f"event: message\ndata: {json.dumps(line)}\n\n".encode() * count

    async def behave(exchange: Exchange) -> None:
        if exchange.request.is_a("tools/call"):
            await honest.write(b"%x\r\n%b\r\n" % (len(flood), flood))
        await honest(exchange)

    turns = Turns()
    try:
        async with http_server(behave) as server:
            config = (remote_sse if transport == "old" else remote)(server, limits=PATIENT)
            handlers = Handlers(on_notification=turns.note)
            endpoint = create_server_endpoint(config, handlers=handlers)
            await endpoint.open()
            await until(lambda: honest.is_standing)
            await endpoint.invoke("echo", {})
            await until(lambda: turns.heard.total() == count)
            await endpoint.close()
    finally:
        turns.stop()
    assert max(turns.heard.values()) <= 17


SECRET = "canary-6f1d2c"
HASTY = Supervision(first_s=0.05, jitter=0.0, failures=20)
PATIENT = ServerLimits(close_s=0.3)


@asynccontextmanager
async def opened(config: ServerConfig) -> AsyncGenerator[ServerEndpointImpl]:
    endpoint = create_server_endpoint(config)
    await endpoint.open()
    try:
        yield endpoint
    finally:
        await endpoint.close()


@asynccontextmanager
async def fleet_of(config: ServerConfig) -> AsyncGenerator[ServerFleetImpl]:
    fleet = ServerFleetImpl(supervision=HASTY)
    await fleet.start(BridgeConfig([config]))
    try:
        yield fleet
    finally:
        await fleet.tear_down()


async def refusal(config: ServerConfig) -> ProtocolFault:
    """Open in vain."""
    endpoint = create_server_endpoint(config)
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.open()
    assert endpoint.phase is EndpointPhase.FAULTED
    await endpoint.close()
    return caught.value


async def failure(endpoint: ServerEndpointImpl, arguments: dict[str, Any] | None = None) -> ProtocolFault:
    """Call in vain."""
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.invoke("echo", {"text": "x", **(arguments or {})})
    return caught.value


async def works(endpoint: ServerEndpointImpl) -> bool:
    result = await endpoint.invoke("echo", {"text": "again"})
    return result.content == ({"type": "text", "text": "again"},)


# -- connecting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [401, 403])
async def test_r24_refused_credentials_are_told_once_and_not_tried_again(code: int) -> None:
    async with http_server(status(code, www_authenticate='Bearer realm="x"')) as server:
        async with fleet_of(remote(server)) as fleet:
            told = fleet.status()["remote"]
            fault = told.fault
            assert fault is not None
            assert (fault.kind, fault.detail.reason) == ("transport", "auth")
            assert fault.detail.http_status == code
            assert "wants Bearer" in str(fault)
            await until_task_ends("supervisor remote")
            assert fleet.status()["remote"].restarts == 0
        assert len(server.requests) == 1


async def test_r25_a_server_that_wants_to_be_left_alone_as_long_as_it_says_is(monkeypatch: pytest.MonkeyPatch) -> None:
    time = LoopTime(monkeypatch)
    behaviour = sometimes(status(429, retry_after="200"), times=1)
    async with http_server(behaviour) as server, fleet_of(remote(server)) as fleet:
        told = fleet.status()["remote"]
        assert told.fault is not None
        assert told.fault.detail.reason == "rate_limited"
        assert told.fault.detail.retry_after_s == 200
        await until(lambda: fleet.status()["remote"].next_try_s is not None)
        assert (fleet.status()["remote"].next_try_s or 0) > 100
        assert len(server.requests) == 1
        await time.passes(200)
        await until(lambda: fleet.status()["remote"].phase is EndpointPhase.READY)


async def test_r25_a_call_that_is_one_too_many_is_told_so_and_not_repeated() -> None:
    behaviour = sometimes(status(429, retry_after="7"), on="tools/call", times=1)
    async with http_server(behaviour) as server, opened(remote(server)) as endpoint:
        fault = await failure(endpoint)
        assert (fault.kind, fault.detail.reason) == ("transport", "rate_limited")
        assert (fault.detail.http_status, fault.detail.retry_after_s) == (429, 7)
        assert len(server.heard("tools/call")) == 1
        assert await works(endpoint)


async def test_r26_a_server_that_fails_three_times_is_ready_after_that() -> None:
    behaviour = sometimes(status(500), times=3)
    async with http_server(behaviour) as server, fleet_of(remote(server)) as fleet:
        await until(lambda: fleet.status()["remote"].phase is EndpointPhase.READY)
        assert fleet.status()["remote"].restarts >= 1


async def test_r26_a_failing_server_is_named_as_that() -> None:
    async with http_server(status(503)) as server:
        fault = await refusal(remote(server))
    assert (fault.kind, fault.detail.reason) == ("transport", "upstream")
    assert fault.detail.http_status == 503


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_r27_headers_do_not_follow_a_redirect_to_another_origin(code: int) -> None:
    async with http_server(Modern()) as elsewhere:
        async with http_server(redirect(elsewhere.url, code)) as server:
            fault = await refusal(remote(server, headers={"authorization": SECRET}))
        assert elsewhere.requests == []
    assert (fault.kind, fault.detail.reason) == ("transport", "redirect")
    assert elsewhere.url.removesuffix("/mcp") in str(fault)
    assert server.requests[0].headers["authorization"] == SECRET


async def test_r27_a_redirect_of_the_old_transport_is_not_followed_either() -> None:
    async with http_server(OldSse()) as elsewhere:
        async with http_server(redirect(elsewhere.url)) as server:
            fault = await refusal(remote_sse(server))
        assert elsewhere.requests == []
    assert fault.detail.reason == "redirect"


async def test_r27_the_old_transport_does_not_post_to_another_origin() -> None:
    async def lure(exchange: Any) -> None:
        await exchange.open_events()
        await exchange.event(event="endpoint", data="http://127.0.0.2:9/messages")
        await exchange.until_gone()

    async with http_server(lure) as server:
        fault = await refusal(remote_sse(server))
    assert fault.detail.reason == "redirect"
    assert "http://127.0.0.2:9" in str(fault)


async def test_r27_a_redirect_from_https_to_http_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tls, certificate = await asyncio.to_thread(self_signed, tmp_path)
    trusting = await asyncio.to_thread(httpcore2.default_ssl_context)
    trusting.load_verify_locations(certificate)
    monkeypatch.setattr(_http, "shared_tls", lambda: trusting)
    async with http_server(Modern()) as plain:
        async with http_server(redirect(plain.url), tls=tls) as server:
            fault = await refusal(remote(server, headers={"authorization": SECRET}))
        assert plain.requests == []
    assert fault.detail.reason == "redirect"


@pytest.mark.process
async def test_tls_certificate_must_match_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tls, certificate = await asyncio.to_thread(self_signed, tmp_path)
    async with http_server(Modern(), tls=tls) as server:
        fault = await refusal(remote(server))
        assert fault.detail.reason == "refused"
        assert "CERTIFICATE_VERIFY_FAILED" in str(fault)
        trusting = await asyncio.to_thread(httpcore2.default_ssl_context)
        trusting.load_verify_locations(certificate)
        monkeypatch.setattr(_http, "shared_tls", lambda: trusting)
        async with opened(remote(server)) as endpoint:
            assert await works(endpoint)


async def test_redirects_within_the_origin_are_followed_up_to_a_limit() -> None:
    behaviour = sometimes(redirect("/other"), on=lambda request: request.path == "/mcp")
    async with http_server(behaviour) as server, opened(remote(server)) as endpoint:
        assert await works(endpoint)
    async with http_server(redirect("/mcp")) as server:
        fault = await refusal(remote(server))
    assert fault.detail.reason == "redirect"
    assert len(server.requests) == 4


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/mcp", "http://nowhere.invalid/mcp"])
@pytest.mark.parametrize("kind", [StreamableHttpServerConfig, SseServerConfig])
async def test_unreachable_server_is_reported_as_refused(kind: Any, url: str) -> None:
    fault = await refusal(kind("it", url))
    assert (fault.kind, fault.detail.reason) == ("transport", "refused")
    assert "could not be reached" in str(fault)


@pytest.mark.parametrize("url", ["", "ftp://host/x", "http://", "http://host:port/", "no address"])
async def test_invalid_url_is_refused_before_anything_is_sent(url: str) -> None:
    fault = await refusal(StreamableHttpServerConfig("it", url))
    assert (fault.kind, fault.detail.reason) == ("transport", "malformed")


@pytest.mark.parametrize("behaviour", [page(), mistyped(), mistyped(""), page(b"{oops", "application/json")])
async def test_response_that_is_not_mcp_is_a_protocol_fault(behaviour: Behaviour) -> None:
    async with http_server(behaviour) as server:
        fault = await refusal(remote(server))
    assert (fault.kind, fault.detail.reason) == ("protocol", "malformed")


async def test_sse_transport_requires_an_event_stream() -> None:
    async with http_server(page()) as server:
        fault = await refusal(remote_sse(server))
    assert fault.detail.reason == "malformed"
    assert "text/html" in str(fault)


# -- calls ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["nothing", "headers", "body"])
@pytest.mark.parametrize("era", ["modern", "legacy"])
async def test_r28_one_of_twenty_calls_is_dropped_and_only_that_one_fails(where: Any, era: str) -> None:
    dropped = sometimes(
        cut(where),
        on=lambda request: bool(request.arguments.get("drop")),
        then=Modern() if era == "modern" else Legacy(),
    )
    async with http_server(together(20, dropped)) as server:
        async with opened(remote(server)) as endpoint:
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(endpoint.invoke("echo", {"text": str(n)})) for n in range(19)]
                victim = tasks.create_task(failure(endpoint, {"drop": True}))
            texts = [call.result().content[0] for call in calls]
            assert texts == [{"type": "text", "text": str(n)} for n in range(19)]
            fault = victim.result()
            assert (fault.kind, fault.detail.reason) == ("transport", "outcome_unknown")
            assert endpoint.phase is EndpointPhase.READY
            assert await works(endpoint)


async def test_r29_a_stream_that_ends_before_the_answer_is_one_fault() -> None:
    async with http_server(events_cut()) as server, opened(remote(server)) as endpoint:
        fault = await failure(endpoint)
        assert (fault.kind, fault.detail.reason) == ("transport", "outcome_unknown")
        assert endpoint.phase is EndpointPhase.READY


async def test_r29_a_stream_that_can_be_resumed_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable, "_FIRST_PAUSE_S", 0.001)
    behaviour = events_cut(event_id="e1", retry_ms=0, resumes_after=2)
    async with http_server(behaviour) as server:
        async with opened(remote(server, limits=PATIENT)) as endpoint:
            assert (await endpoint.invoke("echo", {"text": "x"})).content
        resumed = [get for get in server.heard("GET") if "last-event-id" in get.headers]
        assert len(resumed) == 2


async def test_r29_a_forgotten_session_is_one_fault_and_one_new_session() -> None:
    async with http_server(forgets_session()) as server, fleet_of(remote(server)) as fleet:
        first = fleet.endpoint("remote")
        assert first is not None
        fault = await failure(first)
        assert (fault.kind, fault.detail.http_status) == ("transport", 404)
        await until(lambda: fleet.endpoint("remote") is not first)
        await until(lambda: fleet.status()["remote"].tool_count == 3)
        second = fleet.endpoint("remote")
        assert second is not None
        assert await works(second)
        assert len(server.heard("initialize")) == 2


@pytest.mark.parametrize("behaviour", [silence, drip(), drip(inside="body")])
async def test_r30_a_server_that_never_answers_is_given_up(behaviour: Behaviour) -> None:
    async with http_server(behaviour) as server:
        assert (await refusal(remote(server, limits=SHORT_START))).kind == "timeout"
        assert (await refusal(remote_sse(server, limits=SHORT_START))).kind in {"timeout", "transport"}


@pytest.mark.parametrize("behaviour", [silence, drip(), drip(inside="body")])
async def test_r30_a_call_that_is_never_answered_is_given_up(
    behaviour: Behaviour, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = LoopTime(monkeypatch)
    hanging = sometimes(behaviour, on="tools/call", times=1, then=Modern())
    async with http_server(hanging) as server, opened(remote(server)) as endpoint, asyncio.TaskGroup() as tasks:
        call = tasks.create_task(failure(endpoint))
        await until(lambda: bool(server.heard("tools/call")))
        await time.passes(STEADY_S)
        assert (await call).kind == "timeout"
        assert await works(endpoint)


async def test_r30_a_server_that_hangs_at_the_farewell_does_not_hold_us_up(monkeypatch: pytest.MonkeyPatch) -> None:
    time = LoopTime(monkeypatch)
    async with http_server(sometimes(silence, on="DELETE")) as server, asyncio.TaskGroup() as tasks:
        endpoint = create_server_endpoint(remote(server, limits=replace(STEADY, close_s=20.0)))
        await endpoint.open()
        tasks.create_task(endpoint.close())
        await until(lambda: len(server.heard("DELETE")) == 1)
        await time.passes(STEADY_S)


async def test_r30_a_notice_that_is_never_answered_does_not_hold_up_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    time = LoopTime(monkeypatch)
    behaviour = sometimes(silence, on="notifications/initialized")
    patient = replace(STEADY, call_idle_s=100.0, call_hard_s=100.0)
    async with (
        http_server(behaviour) as server,
        opened(remote(server, limits=patient)) as endpoint,
        asyncio.TaskGroup() as tasks,
    ):
        call = tasks.create_task(works(endpoint))
        await until(lambda: bool(server.heard("notifications/initialized")))
        await time.passes(STEADY_S)
        assert await call


async def test_r31_what_is_packed_is_not_unpacked() -> None:
    behaviour = sometimes(gzip_bomb(), on="tools/call", times=1, then=Modern())
    async with http_server(behaviour) as server, opened(remote(server)) as endpoint:
        fault = await failure(endpoint)
        assert (fault.kind, fault.detail.reason) == ("protocol", "malformed")
        assert server.requests[0].headers["accept-encoding"] == "identity"
        assert await works(endpoint)


@pytest.mark.parametrize("mib", [3])
async def test_event_of_several_mib_passes(mib: int) -> None:
    behaviour = sometimes(large(mib, of="event"), on="tools/call", then=Modern())
    async with http_server(behaviour) as server:
        async with opened(remote(server, limits=PATIENT)) as endpoint:
            result = await endpoint.invoke("echo", {})
    assert len(str(result.content)) > mib * 1024 * 1024


# -- streams that come back too soon --------------------------------------------------------------


async def test_reconnections_of_a_standing_stream_are_delayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamable, "_PAUSE_FACTOR", 1e6)
    monkeypatch.setattr(streamable, "_FIRST_PAUSE_S", 0.01)
    async with http_server(Legacy(stream="closes")) as server:
        async with opened(remote(server)) as endpoint:
            await until(lambda: len(server.heard("GET")) >= 2)
            # The next GET is a minute away. Requests at full speed would overtake these calls.
            for _ in range(20):
                assert await works(endpoint)
        assert len(server.heard("GET")) == 2


async def test_cancelled_call_is_not_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FIRST_PAUSE_S", "_LONGEST_PAUSE_S"):
        monkeypatch.setattr(streamable, name, 0.001)
    behaviour = events_cut(event_id="e1", retry_ms=0)

    def count_resumptions() -> int:
        return sum("last-event-id" in get.headers for get in server.heard("GET"))

    async with http_server(behaviour) as server, opened(remote(server)) as endpoint:
        cancel = CancelToken()
        async with asyncio.TaskGroup() as tasks:
            call = tasks.create_task(_cancelled(endpoint, cancel))
            await until(lambda: count_resumptions() > 2)
            cancel.cancel()
        assert call.result().detail.reason == "cancelled"
        resumptions = count_resumptions()
        for _ in range(20):
            await endpoint.list_tools()
        assert count_resumptions() <= resumptions + 1


# -- the old transport ----------------------------------------------------------------------------


async def test_failed_post_on_sse_fails_one_call() -> None:
    behaviour = sometimes(status(500), on="tools/call", times=1, then=OldSse())
    async with http_server(behaviour) as server, opened(remote_sse(server)) as endpoint:
        fault = await failure(endpoint)
        assert (fault.kind, fault.detail.reason) == ("transport", "upstream")
        assert fault.detail.http_status == 500
        assert await works(endpoint)


async def test_end_of_the_sse_stream_faults_the_endpoint() -> None:
    streams: list[Any] = []

    async def keep(exchange: Any) -> None:
        if exchange.request.method == "GET":
            streams.append(exchange)
        await honest(exchange)

    honest = OldSse()
    async with http_server(keep) as server, opened(remote_sse(server)) as endpoint:
        streams[0].cut()
        await until(lambda: endpoint.phase is EndpointPhase.FAULTED)
        fault = endpoint.status().fault
        assert fault is not None
        assert (fault.kind, fault.detail.reason) == ("transport", "closed")


# -- secrets --------------------------------------------------------------------------------------


def _everything(fault: BaseException | None) -> str:
    said = ""
    while fault is not None:
        said += f"{fault!s} {fault!r} {fault.args!r}"
        fault = fault.__cause__ or fault.__context__
    return said


@pytest.mark.parametrize(
    "behaviour", [status(401), status(500), cut(), page(), redirect("http://127.0.0.2:9/x"), Modern()]
)
async def test_r39_header_values_are_sent_and_never_shown(
    behaviour: Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with http_server(behaviour) as server:
        config = remote(server, headers={"Authorization": f"Bearer {SECRET}"})
        endpoint = create_server_endpoint(config)
        told: ProtocolFault | None = None
        try:
            await endpoint.open()
            await endpoint.list_tools()
        except ProtocolFault as fault:
            told = fault
        shown = f"{config!r} {endpoint.status()!r} {endpoint!r} {_everything(told)}"
        await endpoint.close()
        assert server.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert SECRET not in shown
    assert SECRET not in caplog.text


@pytest.mark.parametrize("value", [f"{SECRET}\r\nX-More: 1", f"{SECRET}é", f"{SECRET}\x00"])
async def test_c27_a_header_that_cannot_be_sent_is_named_without_its_value(value: str) -> None:
    config = StreamableHttpServerConfig("it", "http://127.0.0.1:9/", {"Authorization": value})
    fault = await refusal(config)
    assert "'Authorization' cannot be sent" in str(fault)
    assert SECRET not in _everything(fault)


async def test_call_cancelled_during_a_slow_response_ends_at_once() -> None:
    hanging = sometimes(drip(inside="body"), on="tools/call", times=1, then=Modern())
    async with http_server(hanging) as server:
        async with opened(remote(server, limits=PATIENT)) as endpoint:
            token = CancelToken()
            async with asyncio.TaskGroup() as tasks:
                call = tasks.create_task(_cancelled(endpoint, token))
                await until(lambda: bool(server.heard("tools/call")))
                token.cancel("enough")
            assert call.result().detail.reason == "cancelled"
            assert await works(endpoint)


async def _cancelled(endpoint: ServerEndpointImpl, token: CancelToken) -> ProtocolFault:
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.invoke("echo", {}, cancel=token)
    return caught.value


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5), ("99999999999", 3600), ("soon", None), ("Thu, 01 Jan 1970 00:00:00 GMT", 0)]
)
async def test_retry_after_is_parsed_in_each_form(text: str, seconds: float | None) -> None:
    async with http_server(status(429, retry_after=text)) as server:
        fault = await refusal(remote(server))
    assert fault.detail.retry_after_s == seconds


async def test_not_found_on_both_transports_reports_the_first_response() -> None:
    async with http_server(status(404)) as server:
        fault = await refusal(remote(server))
        assert [request.method for request in server.requests] == ["POST", "POST", "GET"]
    assert (fault.kind, fault.detail.reason) == ("transport", "not_found")


@pytest.mark.parametrize("size", [100, 100_000])
async def test_error_body_is_read_only_if_short_and_quick(size: int) -> None:
    async def reluctant(exchange: Any) -> None:
        await exchange.head(503, {"Content-Type": "application/json", "Content-Length": "200000"})
        await exchange.write(b" " * size)
        await exchange.until_gone()

    behaviour = sometimes(reluctant, on="tools/call", times=1, then=Modern())
    async with http_server(behaviour) as server:
        async with opened(remote(server, limits=replace(STEADY, close_s=0.02))) as endpoint:
            assert (await failure(endpoint)).detail.http_status == 503
            assert await works(endpoint)


async def test_refused_credentials_are_reported_with_an_rpc_error_body() -> None:
    error = {"code": -32001, "message": f"what is {SECRET}?"}
    body = {"jsonrpc": "2.0", "id": None, "error": error}
    async with http_server(lambda exchange: exchange.reply_json(body, 401)) as server:
        fault = await refusal(remote(server, headers={"authorization": SECRET}))
    assert fault.detail.reason == "auth"
    assert SECRET not in str(fault)


@pytest.mark.parametrize("body", [{"error": "no"}, {"jsonrpc": "2.0", "error": {"code": "x"}}])
async def test_refusal_with_a_foreign_body_is_reported_by_its_status(body: dict[str, Any]) -> None:
    async with http_server(lambda exchange: exchange.reply_json(body, 418)) as server:
        fault = await refusal(remote(server))
    assert (fault.detail.reason, fault.detail.http_status) == ("refused", 418)


@pytest.mark.parametrize("configured", [remote, remote_sse])
async def test_endpoint_can_be_closed_while_connecting(configured: Any) -> None:
    async with http_server(silence) as server:
        endpoint = create_server_endpoint(configured(server))
        async with asyncio.TaskGroup() as tasks:
            opening = tasks.create_task(_closed(endpoint))
            await until(lambda: bool(server.requests))
            await endpoint.close()
        assert opening.result().kind == "not_connected"
        await until(lambda: len(server.hangups) == len(server.requests))


async def _closed(endpoint: ServerEndpointImpl) -> ProtocolFault:
    with pytest.raises(ProtocolFault) as caught:
        await endpoint.open()
    return caught.value


@pytest.mark.parametrize("method", ["notifications/roots/list_changed", "notifications/initialized"])
@pytest.mark.parametrize("transport", ["old", "present"])
async def test_finding_f9_a_notification_that_is_never_answered_holds_up_no_call(transport: str, method: str) -> None:
    honest = OldSse() if transport == "old" else Legacy(events=True)
    gone: list[Exchange] = []

    async def behave(exchange: Exchange) -> None:
        if exchange.request.is_a(method):
            gone.append(exchange)
            await silence(exchange)
        else:
            await honest(exchange)

    async with http_server(behave) as server:
        # Its answer is waited for past the end of the test.
        limits = replace(STEADY, connect_s=600)
        endpoint = create_server_endpoint((remote_sse if transport == "old" else remote)(server, limits=limits))
        async with asyncio.timeout(120):
            await endpoint.open()
            for _ in range(3):
                endpoint.notify("notifications/roots/list_changed")
                await endpoint.invoke("echo", {})
            await until(lambda: len(gone) == (1 if method == "notifications/initialized" else 3))
            await endpoint.close()


async def test_a_notification_follows_a_redirect_to_the_same_origin() -> None:
    honest, heard = Legacy(), list[str]()

    async def behave(exchange: Exchange) -> None:
        request = exchange.request
        if request.is_a("notifications/roots/list_changed"):
            heard.append(request.path)
        if not request.path.endswith("/"):
            await redirect(f"{request.path}/")(exchange)
        else:
            await honest(exchange)

    async with http_server(behave) as server:
        endpoint = create_server_endpoint(remote(server))
        await endpoint.open()
        endpoint.notify("notifications/roots/list_changed")
        await until(lambda: len(heard) == 2)
        await endpoint.close()
    assert heard == ["/mcp", "/mcp/"]


# -- subscriptions that are cut -------------------------------------------------------------------


class CutModern(Modern):
    """A modern server whose subscriptions a test cuts, and which counts what it's asked."""

    def __init__(self) -> None:
        self.listening: list[Exchange] = []
        self.asked: Counter[str] = Counter()
        self.refuse_next = 0

    async def __call__(self, exchange: Exchange) -> None:
        method = str(exchange.request.rpc.get("method"))
        self.asked[method] += 1
        if self.refuse_next and method in {"subscriptions/listen", "tools/list"}:
            self.refuse_next -= 1
            await status(503)(exchange)
        elif method == "subscriptions/listen":
            self.listening.append(exchange)
            await self._listen(exchange)
        else:
            await super().__call__(exchange)

    async def cut(self) -> None:
        for exchange in self.listening:
            exchange.cut()
        self.listening.clear()


async def test_finding_f3_a_subscription_that_is_cut_is_opened_again_and_everything_is_read_again() -> None:
    behaviour, updates = CutModern(), list[Any]()

    def note(method: str, params: Any) -> None:
        if method.endswith("updated"):
            updates.append(params)

    handlers = Handlers(on_notification=note)
    async with http_server(behaviour) as server:
        limits = replace(STEADY, relist_gap_s=0.01)
        endpoint = create_server_endpoint(remote(server, limits=limits), handlers=handlers)
        await endpoint.open()
        try:
            await endpoint.list_tools()
            await endpoint.watch_resource("file:///a")
            await until(lambda: len(behaviour.listening) == 2)
            for refused in (0, 3):
                lists, count = behaviour.asked["tools/list"], len(updates)
                behaviour.refuse_next = refused
                await behaviour.cut()
                await until(lambda: len(behaviour.listening) == 2)
                await until(lambda lists=lists: behaviour.asked["tools/list"] > lists)
                await until(lambda count=count: len(updates) > count)
            await until(lambda: behaviour.refuse_next == 0)
            assert endpoint.phase is EndpointPhase.READY
            assert updates == [{"uri": "file:///a"}] * 2
        finally:
            await endpoint.close()


async def test_finding_f3_the_standing_stream_of_a_legacy_server_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streamable, "_FIRST_PAUSE_S", 0.001)
    monkeypatch.setattr(streamable, "_LONGEST_PAUSE_S", 0.001)
    honest = Legacy()
    gets: list[Exchange] = []

    async def behave(exchange: Exchange) -> None:
        if exchange.request.method == "GET":
            gets.append(exchange)
            if 1 < len(gets) < 6:
                await (status(503) if len(gets) % 2 else cut())(exchange)
                return
        await honest(exchange)

    async with http_server(behave) as server:
        endpoint = create_server_endpoint(remote(server, limits=replace(STEADY, relist_gap_s=0.01)))
        await endpoint.open()
        try:
            await endpoint.list_tools()
            await until(lambda: honest.is_standing)
            before = len(server.heard("tools/list"))
            gets[0].cut()
            await until(lambda: len(gets) >= 6 and honest.is_standing)
            await until(lambda: len(server.heard("tools/list")) > before)
        finally:
            await endpoint.close()
