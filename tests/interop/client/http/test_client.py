"""The guard in front of a network in memory: what it lets through, counts, answers itself and notes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest

from indusagi.interop.auth.contract import AuthFault, Refusal
from indusagi.interop.protocol_bridge.client.http import guard as module
from indusagi.interop.protocol_bridge.client.http.failures import build_failure
from indusagi.interop.protocol_bridge.client.http.guard import REQUEST, GuardedClient, HttpGuard, open_guarded_client
from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerLimits, StreamableHttpServerConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.anyio
URL = "http://host/mcp"
CAP = 20


class Body(httpx2.AsyncByteStream):
    """A body of some pieces, and perhaps an error at its end."""

    def __init__(self, pieces: tuple[bytes, ...], error: Exception | None = None) -> None:
        self.pieces, self.error, self.is_closed = pieces, error, False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            yield piece
        if self.error is not None:
            raise self.error

    async def aclose(self) -> None:
        self.is_closed = True


class Network(httpx2.AsyncBaseTransport):
    """Answers each request by the next of the given responses or errors."""

    def __init__(self, *answers: Any) -> None:
        self.answers, self.asked = list(answers), list[httpx2.Request]()
        self.is_closed = False

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.asked.append(httpx2.Request(request.method, request.url, headers=request.headers))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def aclose(self) -> None:
        self.is_closed = True


def respond(*pieces: bytes, status: int = 200, kind: str = "", error: Exception | None = None, **headers: str) -> Any:
    """A response with a body in pieces."""
    rows = {"content-type": kind, **{name.replace("_", "-"): value for name, value in headers.items()}}
    return httpx2.Response(status, headers=rows, stream=Body(pieces, error))


def events(*pieces: bytes, **rest: Any) -> Any:
    """A response with an event stream."""
    return respond(*pieces, kind="text/event-stream", **rest)


def answer(*pieces: bytes, **rest: Any) -> Any:
    """A response with a JSON body."""
    return respond(*pieces, kind="application/json", **rest)


def make_guard(*answers: Any, authorizer: Any = None, cap: int = CAP, via: str | None = None) -> HttpGuard:
    """A guard in front of a network."""
    limits = ServerLimits(frame_bytes=cap, close_s=20, connect_s=20)
    return HttpGuard(Network(*answers), httpx2.URL(URL), limits, via, authorizer)


async def ask(guard: HttpGuard, method: str = "POST", request_id: Any = 1, url: str = URL, **headers: str) -> Any:
    """Send a request; return the status, the body or its error, and the reason that the guard has noted."""
    rows = {name.replace("_", "-"): value for name, value in headers.items()}
    extensions = {} if request_id is None else {REQUEST: request_id}
    response = await guard.handle_async_request(httpx2.Request(method, url, headers=rows, extensions=extensions))
    try:
        body: Any = await response.aread()
    except httpx2.StreamError as exc:
        body = type(exc).__name__
    except httpx2.TransportError as exc:
        body = type(exc).__name__
    failure = None if request_id is None else guard.find_failure(request_id)
    return response.status_code, body, failure and failure.detail.reason


# -- sizes ------------------------------------------------------------------------------------


async def test_events_are_counted_one_by_one() -> None:
    stream = (b"data: 1234567\n\n", b"data: 1234567\r\n\r\n", b"data: 1\r\r" * 2)
    assert await ask(make_guard(events(*stream))) == (200, b"".join(stream), "closed")
    long = (b"data: 1\n\n", b"data: 12345", b"6789012345")
    assert (await ask(make_guard(events(*long))))[1:] == ("SSEError", "frame_too_large")


async def test_the_end_of_an_event_may_be_split() -> None:
    stream = (b"data: 12345678\r\n\r", b"\ndata: 12345678\n", b"\ndata: 12345678\n\n")
    assert (await ask(make_guard(events(*stream))))[1] == b"".join(stream)


@pytest.mark.parametrize("second", [b"\n", b"\r", b"\r\n"])
@pytest.mark.parametrize("first", [b"\n", b"\r", b"\r\n"])
async def test_finding_f16_a_blank_line_of_any_kind_ends_an_event(first: bytes, second: bytes) -> None:
    if (first, second) == (b"\r", b"\n"):  # together one line end
        second = b"\r\n"
    whole = (b"data: 1234567" + first + second) * 5
    for pieces in ((whole,), tuple(whole[at : at + 1] for at in range(len(whole)))):
        assert (await ask(make_guard(events(*pieces))))[1] == whole


async def test_finding_f16_the_length_of_an_event_stream_is_not_the_length_of_an_event() -> None:
    stream = (b"data: 12345678\n\n",) * 5
    guard = make_guard(events(*stream, content_length=str(sum(map(len, stream)))))
    assert await ask(guard) == (200, b"".join(stream), "closed")


@pytest.mark.parametrize(("size", "reason"), [(CAP, None), (CAP + 1, "frame_too_large")])
async def test_a_body_is_counted_as_a_whole(size: int, reason: str | None) -> None:
    pieces = (b"{\n\n", b"\n\n" + b" " * (size - 6), b"}")
    found = await ask(make_guard(answer(*pieces)), "GET", request_id=None)
    assert found[1] == (b"".join(pieces) if reason is None else "StreamError")
    assert (await ask(make_guard(respond(*pieces, kind="text/plain"))))[2] == (reason or "malformed")


@pytest.mark.parametrize(("length", "is_read"), [("20", True), ("21", False), ("x", True), ("", True), ("-1", True)])
async def test_a_body_that_says_it_is_too_large_is_not_read(length: str, *, is_read: bool) -> None:
    response = answer(b"{}", content_length=length)
    guard = make_guard(response)
    status, _, reason = await ask(guard)
    assert (status == 200, reason != "frame_too_large") == (is_read, is_read)
    assert response.stream.is_closed


@pytest.mark.parametrize(
    ("coding", "is_read"), [("", True), ("identity", True), (" Identity ", True), ("gzip", False), ("br", False)]
)
async def test_a_compressed_body_is_refused(coding: str, *, is_read: bool) -> None:
    guard = make_guard(events(b": \n\n", content_encoding=coding))
    status, _, reason = await ask(guard)
    assert (status, reason) == ((200, "closed") if is_read else (502, "malformed"))
    network: Any = guard._network
    assert network.asked[0].headers["accept-encoding"] == "identity"


# -- responses --------------------------------------------------------------------------------

OWN = b'{"id":1,"result":{}}'
FOREIGN = b'{"id":2,"result":{}}'


async def test_the_response_of_a_request_passes_and_loses_its_length() -> None:
    guard = make_guard(answer(OWN, content_length=str(len(OWN))))
    assert await ask(guard) == (200, OWN, None)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (FOREIGN, "it answered a request that was not asked (id 2)"),
        (b'{"method":"x"}', "it answered with a message that is not an answer"),
    ],
)
async def test_another_body_becomes_an_error_of_the_request(body: bytes, message: str) -> None:
    status, found, reason = await ask(make_guard(answer(body)))
    assert (status, reason) == (200, "malformed")
    assert json.loads(found) == {"jsonrpc": "2.0", "id": 1, "error": {"code": -32700, "message": message}}


async def test_an_error_without_an_id_gets_that_of_the_request() -> None:
    _, found, reason = await ask(make_guard(answer(b'{"error":{}}')))
    assert (json.loads(found), reason) == ({"error": {}, "id": 1}, None)


@pytest.mark.parametrize("method", ["POST", "GET"])
async def test_events_of_other_requests_are_left_out_but_for_a_shared_stream(method: str) -> None:
    notes: list[str] = []
    guard = make_guard(events(b"data: %b\n\n" % FOREIGN), cap=99)
    guard.on_foreign_response = notes.append
    _, found, reason = await ask(guard, method)
    if method == "GET":
        assert (found, notes) == (b"data: %b\n\n" % FOREIGN, [])
    else:
        assert (found, reason) == (b"", "malformed")
        assert notes == ["it answered a request that was not asked (id 2), which was ignored"]


async def test_finding_w2_the_standing_stream_passes_no_message_with_a_name_twice() -> None:
    notes: list[str] = []
    guard = make_guard(events(b'data: {"id":1,"method":"ping","method":"x"}\n\n', b"data: %b\n\n" % FOREIGN), cap=99)
    guard.on_foreign_response = notes.append
    _, found, _ = await ask(guard, "GET", request_id=None)
    assert found == b"data: %b\n\n" % FOREIGN
    assert "the name 'method' occurs twice" in notes[0]


async def test_a_notification_needs_no_answer_of_a_kind() -> None:
    assert await ask(make_guard(respond(status=202)), request_id=None) == (202, b"", None)
    assert (await ask(make_guard(respond(status=202))))[2] == "malformed"


async def test_a_broken_body_is_noted() -> None:
    status, found, reason = await ask(make_guard(answer(b"{", error=httpx2.ReadError("x"))))
    assert (status, found, reason) == (200, "StreamError", "closed")


# -- refusals ---------------------------------------------------------------------------------

RPC_ERROR = b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"m"}}'


@pytest.mark.parametrize(
    ("status", "body", "kept", "reason"),
    [
        (400, b"no", False, "refused"),
        (400, RPC_ERROR, True, None),
        (401, RPC_ERROR, True, "auth"),
        (429, RPC_ERROR, True, "rate_limited"),
        (500, RPC_ERROR, True, None),
        (500, RPC_ERROR + b" " * 70_000, False, "upstream"),
        (404, b"", False, "not_found"),
    ],
)
async def test_an_error_of_json_rpc_passes_and_other_bodies_do_not(
    status: int, body: bytes, kept: bool, reason: str | None
) -> None:
    response = respond(body, status=status)
    guard = make_guard(response)
    found = await ask(guard)
    assert (found[0], found[2]) == (status, reason)
    assert (found[1] == body) is kept
    assert response.stream.is_closed
    failure = guard.find_failure(1)
    assert failure is not None
    assert failure.detail.http_status == status


async def test_a_refusal_that_breaks_off_is_classified_by_its_status() -> None:
    found = await ask(make_guard(respond(RPC_ERROR, status=503, error=httpx2.ReadError("x"))))
    assert (found[0], found[2]) == (503, "upstream")


@pytest.mark.parametrize(
    ("method", "status", "headers", "is_lost"),
    [
        ("POST", 404, {"mcp_session_id": "s"}, True),
        ("GET", 404, {"mcp_session_id": "s"}, False),
        ("POST", 404, {}, False),
        ("POST", 400, {"mcp_session_id": "s"}, False),
    ],
)
async def test_a_session_is_lost_where_its_id_is_not_found(
    method: str, status: int, headers: dict[str, str], *, is_lost: bool
) -> None:
    lost: list[int] = []
    guard = make_guard(respond(status=status), respond(status=200))
    guard.on_session_lost = lambda: lost.append(1)
    await ask(guard, method, **headers)
    assert bool(lost) is is_lost
    assert await ask(guard, "DELETE", None) == (204, b"", None)
    network: Any = guard._network
    assert [request.method for request in network.asked] == [method, *(() if is_lost else ("DELETE",))]


@pytest.mark.parametrize("error", [httpx2.ReadError("x"), AuthFault("x"), TimeoutError()])
async def test_a_session_ends_whatever_the_server_says(error: Exception) -> None:
    assert await ask(make_guard(error), "DELETE", None) == (204, b"", None)


@pytest.mark.parametrize("url", ["https://host/mcp", "http://other/mcp", "http://host:81/mcp"])
async def test_nothing_leaves_the_origin(url: str) -> None:
    guard = make_guard()
    status, body, reason = await ask(guard, url=url)
    assert (status, reason) == (502, "redirect")
    assert json.loads(body)["error"]["code"] == -32000
    assert json.loads(body)["error"]["message"].startswith("it redirects to ")


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (httpx2.ConnectError("x"), 502, "refused"),
        (httpx2.ReadError("x"), 502, "closed"),
        (AuthFault("x"), 401, "auth"),
        (TimeoutError(), 502, "closed"),
    ],
)
async def test_a_failure_of_the_network_is_an_answer(error: Exception, status: int, reason: str) -> None:
    found = await ask(make_guard(error))
    assert (found[0], found[2]) == (status, reason)


# -- notes ------------------------------------------------------------------------------------


def test_failures_are_kept_by_request_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_FAILURES", 2)
    guard, failure = make_guard(), build_failure("m", "closed")
    guard.note(None, failure)
    for request_id in (1, 2, 1, 3):
        guard.note(request_id, failure)
    assert [guard.find_failure(request_id) for request_id in (1, 2, 3)] == [failure, None, failure]
    assert guard.take_detail(1) == failure.detail
    assert guard.take_detail(1) is None
    guard.note(3, None)
    assert guard.find_failure(3) is None


async def test_a_given_up_request_is_not_resumed() -> None:
    guard = make_guard(events(b": \n\n"))
    await ask(guard)
    guard.give_up(2)
    guard.give_up(1)
    status, body, _ = await ask(guard, "GET", None, last_event_id="7")
    assert (status, json.loads(body)["error"]["message"]) == (502, "it was given up")


async def test_the_network_is_closed_with_the_guard() -> None:
    guard = make_guard()
    await guard.aclose()
    network: Any = guard._network
    assert network.is_closed


# -- credentials ------------------------------------------------------------------------------


class Authorizer:
    """Sends a new number with each try, and renews as often as it may."""

    def __init__(self, renewals: int, error: Exception | None = None) -> None:
        self.renewals, self.error, self.tries = renewals, error, 0
        self.refusals, self.accepted = list[tuple[dict[str, str], Refusal]](), list[tuple[dict[str, str], str]]()

    async def build_headers(self, method: str, url: str) -> dict[str, str]:
        self.tries += 1
        assert (method, url) == ("POST", URL)
        return {"authorization": str(self.tries)}

    async def handle_refusal(self, sent: dict[str, str], refusal: Refusal) -> bool:
        self.refusals.append((sent, refusal))
        if self.error is not None:
            raise self.error
        return self.tries <= self.renewals

    def accept(self, sent: dict[str, str], nonce: str) -> None:
        self.accepted.append((sent, nonce))


async def test_a_refused_request_is_sent_again_with_new_credentials() -> None:
    first = respond(status=401, www_authenticate="Bearer x", dpop_nonce="n")
    authorizer = Authorizer(9)
    assert await ask(make_guard(first, respond(status=403), answer(OWN), authorizer=authorizer)) == (200, OWN, None)
    assert authorizer.refusals == [
        ({"authorization": "1"}, Refusal(401, ["Bearer x"], "n")),
        ({"authorization": "2"}, Refusal(403, [], "")),
    ]
    assert authorizer.accepted == [({"authorization": "3"}, "")]
    assert first.stream.is_closed


async def test_a_refusal_stands_where_nothing_is_renewed() -> None:
    authorizer = Authorizer(0)
    found = await ask(make_guard(respond(status=401), authorizer=authorizer))
    assert (found[0], found[2], authorizer.tries, authorizer.accepted) == (401, "auth", 1, [])


async def test_a_request_is_sent_six_times_at_most() -> None:
    authorizer = Authorizer(99)
    found = await ask(make_guard(*[respond(status=401) for _ in range(9)], authorizer=authorizer))
    assert (found[0], authorizer.tries, len(authorizer.refusals), len(authorizer.accepted)) == (401, 6, 5, 1)


async def test_a_failed_renewal_closes_the_refused_response() -> None:
    response = respond(status=401)
    found = await ask(make_guard(response, authorizer=Authorizer(0, AuthFault("x", is_transient=True))))
    assert (found[0], found[2]) == (401, "upstream")
    assert response.stream.is_closed


async def test_other_statuses_renew_nothing() -> None:
    authorizer = Authorizer(9)
    found = await ask(make_guard(respond(status=400, dpop_nonce="n"), authorizer=authorizer))
    assert (found[0], authorizer.refusals, authorizer.accepted) == (400, [], [({"authorization": "1"}, "n")])


# -- the client -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "marked"),
    [
        ({"method": "m", "id": 7}, {REQUEST: 7}),
        ({"method": "m"}, {}),
        ({"id": 7, "result": {}}, {}),
        ([1], {}),
        (None, {}),
    ],
)
async def test_a_request_is_marked_with_its_id(body: Any, marked: dict[str, Any]) -> None:
    async with GuardedClient() as client:
        request = client.build_request("POST", URL, json=body, extensions={"x": 1})
    assert {key: value for key, value in request.extensions.items() if key in {REQUEST, "x"}} == {**marked, "x": 1}


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("ftp://host/", {}),
        ("http://", {}),
        ("http://host:port/", {}),
        (URL, {"a b": "c"}),
        (URL, {"": "c"}),
        (URL, {"a": "b\nc"}),
        (URL, {"a": "é"}),
    ],
)
async def test_an_address_or_header_that_cannot_be_sent_is_refused(url: str, headers: dict[str, str]) -> None:
    with pytest.raises(ProtocolFault) as caught:
        async with open_guarded_client(StreamableHttpServerConfig("s", url, headers)):
            pass
    assert (caught.value.kind, caught.value.detail.reason, caught.value.detail.server) == (
        "transport",
        "malformed",
        "s",
    )


# -- pauses -----------------------------------------------------------------------------------


class Clock:
    """A loop whose time goes on by sleeping alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.slept = 100.0, list[float]()
        monkeypatch.setattr(module.asyncio, "get_running_loop", lambda: self)
        monkeypatch.setattr(module.asyncio, "sleep", self.sleep)

    def time(self) -> float:
        return self.now

    async def sleep(self, pause_s: float) -> None:
        self.slept.append(round(pause_s, 3))
        self.now += pause_s


@pytest.mark.parametrize(("resumes", "expected"), [(True, [0.5, 0.8, 1.28]), (False, [0.5, 0.8])])
def test_each_further_connection_waits_longer(resumes: bool, expected: list[float]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        clock = Clock(patch)
        paced = module.ResumableRequest(1)
        for _ in range(3):
            run_at_once(paced.pace(resumes=resumes))
        assert clock.slept == expected
        for _ in range(20):
            run_at_once(paced.pace(resumes=True))
        assert clock.slept[-1] == 60.0
        clock.now += 200
        run_at_once(paced.pace(resumes=True))
        run_at_once(paced.pace(resumes=True))
        assert clock.slept[-2:] == [0.0, 0.5]


def run_at_once(coroutine: Any) -> None:
    """Run a coroutine that waits for nothing."""
    with pytest.raises(StopIteration):
        coroutine.send(None)


async def test_waiting_ends_when_the_request_is_given_up() -> None:
    request = module.ResumableRequest(1)
    assert not request.is_given_up

    async def wait() -> None:
        with pytest.raises(TimeoutError):
            await request.wait(asyncio.Event().wait())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await anyio.lowlevel.checkpoint()
        request.give_up(0.0)
    assert request.is_given_up
