"""The HTTP client in front of a network in memory: what it sends, reads, counts and refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from tests.support.networks import make_network

from indusagi.interop.auth.contract import AuthFault, Refusal, ServerAuth
from indusagi.interop.protocol_bridge.client.http import client
from indusagi.interop.protocol_bridge.client.http.client import HttpClient, open_http_client
from indusagi.interop.protocol_bridge.client.http.failures import EVENTS, HttpRequestError
from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerLimits, StreamableHttpServerConfig
from indusagi.net.address import parse_url
from indusagi.net.client import EventParser, get_media_type
from indusagi.net.dial import parse_proxy

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
    body = Body(pieces, error)
    return httpx2.Response(status, headers=rows, stream=body, extensions={"body": body})


def events(*pieces: bytes, **rest: Any) -> Any:
    """A response with an event stream."""
    return respond(*pieces, kind="text/event-stream", **rest)


def answer(*pieces: bytes, **rest: Any) -> Any:
    """A response with a JSON body."""
    return respond(*pieces, kind="application/json", **rest)


def make_client(*answers: Any, authorizer: Any = None, cap: int = CAP, url: str = URL) -> tuple[HttpClient, Network]:
    """Make a client in front of a network."""
    network, limits = Network(*answers), ServerLimits(frame_bytes=cap, close_s=20, connect_s=20)
    target = parse_url(url, with_user=True)
    return HttpClient(make_network(network), target, limits, {}, None, authorizer), network


async def ask(http: HttpClient, method: str = "POST", url: str | None = None) -> tuple[int | None, Any, str | None]:
    """Send a request; return its status, its body or the data of its events, and the reason of its failure."""
    found = list[bytes]()
    try:
        async with http.request(method, {}, b"{}", None if url is None else parse_url(url)) as response:
            if get_media_type(response.headers) != EVENTS:
                return response.status, await http.read_body(response), None
            parser = EventParser(CAP)
            await http.read_events(response, parser, lambda event: found.append(event.data))
            return response.status, found, None
    except HttpRequestError as exc:
        return exc.detail.http_status, exc.error or found, exc.detail.reason


# -- sizes ------------------------------------------------------------------------------------


async def test_events_are_counted_one_by_one() -> None:
    stream = (b"data: 1234567\n\n", b"data: 1234567\r\n\r\n", b"data: 1\r\r" * 2)
    assert await ask(make_client(events(*stream))[0]) == (200, [b"1234567", b"1234567", b"1", b"1"], None)
    long = (b"data: 1\n\n", b"data: 12345", b"6789012345")
    assert await ask(make_client(events(*long))[0]) == (None, [b"1"], "frame_too_large")


async def test_finding_f16_the_length_of_an_event_stream_is_not_the_length_of_an_event() -> None:
    stream = (b"data: 12345678\n\n",) * 5
    http, _ = make_client(events(*stream, content_length=str(sum(map(len, stream)))))
    assert await ask(http) == (200, [b"12345678"] * 5, None)


@pytest.mark.parametrize(("size", "reason"), [(CAP, None), (CAP + 1, "frame_too_large")])
async def test_a_body_is_counted_as_a_whole(size: int, reason: str | None) -> None:
    pieces = (b"{\n\n", b"\n\n" + b" " * (size - 6), b"}")
    found = await ask(make_client(answer(*pieces))[0])
    assert found == ((200, b"".join(pieces), None) if reason is None else (None, [], reason))


@pytest.mark.parametrize(("length", "is_read"), [("20", True), ("21", False), ("x", True), ("", True), ("-1", True)])
async def test_a_body_that_says_it_is_too_large_is_not_read(length: str, *, is_read: bool) -> None:
    response = answer(b"{}", content_length=length)
    found = await ask(make_client(response)[0])
    assert found == ((200, b"{}", None) if is_read else (None, [], "frame_too_large"))
    assert response.extensions["body"].is_closed


@pytest.mark.parametrize(
    ("coding", "is_read"), [("", True), ("identity", True), (" Identity ", True), ("gzip", False), ("br", False)]
)
async def test_a_compressed_body_is_refused(coding: str, *, is_read: bool) -> None:
    http, network = make_client(events(b": \n\n", content_encoding=coding))
    assert await ask(http) == (200, [], None if is_read else "malformed")
    assert network.asked[0].headers["accept-encoding"] == "identity"


async def test_a_refusal_with_a_compressed_body_is_classified_by_its_status() -> None:
    http, _ = make_client(respond(RPC_ERROR, status=401, content_encoding="gzip"))
    assert await ask(http) == (401, [], "auth")


@pytest.mark.parametrize("kind", [answer, events])
async def test_a_body_that_breaks_off_is_incomplete(kind: Any) -> None:
    assert await ask(make_client(kind(b"{", error=httpx2.ReadError("x")))[0]) == (None, [], "closed")


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
    found = await ask(make_client(response)[0])
    assert found == (status, {"code": 1, "message": "m"} if kept else [], reason)
    assert response.extensions["body"].is_closed


async def test_a_refusal_that_breaks_off_is_classified_by_its_status() -> None:
    http, _ = make_client(respond(RPC_ERROR, status=503, error=httpx2.ReadError("x")))
    assert await ask(http) == (503, [], "upstream")


@pytest.mark.parametrize("url", ["https://host/mcp", "http://other/mcp", "http://host:81/mcp"])
async def test_nothing_leaves_the_origin(url: str) -> None:
    http, network = make_client()
    assert (await ask(http, url=url))[2] == "redirect"
    assert network.asked == []


@pytest.mark.parametrize(
    ("method", "status", "location", "is_followed"),
    [
        ("POST", 307, "/other", True),
        ("POST", 308, "/other", True),
        ("POST", 301, "/other", False),
        ("POST", 302, "/other", False),
        ("POST", 303, "/other", False),
        ("GET", 302, "/other", True),
        ("GET", 302, "http://other/", False),
        ("POST", 307, "https://host/mcp", False),
    ],
)
async def test_a_redirect_keeps_origin_and_method(method: str, status: int, location: str, is_followed: bool) -> None:
    moved = respond(status=status, location=location)
    http, network = make_client(moved, answer(b"{}"))
    assert await ask(http, method) == ((200, b"{}", None) if is_followed else (status, [], "redirect"))
    assert [request.method for request in network.asked] == [method] * (1 + is_followed)
    assert moved.extensions["body"].is_closed


@pytest.mark.parametrize(
    ("error", "status", "reason"),
    [
        (httpx2.ConnectError("x"), None, "refused"),
        (httpx2.ReadError("x"), None, "closed"),
        (AuthFault("x"), 401, "auth"),
        (TimeoutError(), None, "closed"),
    ],
)
async def test_a_failure_of_the_network_has_a_reason(error: Exception, status: int | None, reason: str) -> None:
    assert await ask(make_client(error)[0]) == (status, [], reason)


# -- credentials ------------------------------------------------------------------------------


class Authorizer:
    """Sends a new number with each try, and renews as often as it may."""

    def __init__(self, renewals: int, error: Exception | None = None) -> None:
        self.renewals, self.error, self.tries, self.url = renewals, error, 0, URL
        self.refusals, self.accepted = list[tuple[dict[str, str], Refusal]](), list[tuple[dict[str, str], str]]()

    async def build_headers(self, method: str, url: str) -> dict[str, str]:
        self.tries += 1
        assert (method, url) == ("POST", self.url)
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
    assert await ask(make_client(first, respond(status=403), answer(b"{}"), authorizer=authorizer)[0]) == (
        200,
        b"{}",
        None,
    )
    assert authorizer.refusals == [
        ({"authorization": "1"}, Refusal(401, ["Bearer x"], "n")),
        ({"authorization": "2"}, Refusal(403, [], "")),
    ]
    assert authorizer.accepted == [({"authorization": "3"}, "")]
    assert first.extensions["body"].is_closed


async def test_a_refusal_stands_where_nothing_is_renewed() -> None:
    authorizer = Authorizer(0)
    found = await ask(make_client(respond(status=401), authorizer=authorizer)[0])
    assert (found[0], found[2], authorizer.tries, authorizer.accepted) == (401, "auth", 1, [])


async def test_a_request_is_sent_six_times_at_most() -> None:
    authorizer = Authorizer(99)
    found = await ask(make_client(*[respond(status=401) for _ in range(9)], authorizer=authorizer)[0])
    assert (found[0], authorizer.tries, len(authorizer.refusals), len(authorizer.accepted)) == (401, 6, 5, 1)


async def test_a_failed_renewal_closes_the_refused_response() -> None:
    response = respond(status=401)
    found = await ask(make_client(response, authorizer=Authorizer(0, AuthFault("x", is_transient=True)))[0])
    assert (found[0], found[2]) == (401, "upstream")
    assert response.extensions["body"].is_closed


async def test_an_authorizer_that_breaks_fails_its_request_alone() -> None:
    response = respond(status=401)
    found = await ask(make_client(response, authorizer=Authorizer(0, KeyError("keyring")))[0])
    assert found[2] == "auth"
    assert response.extensions["body"].is_closed


async def test_other_statuses_renew_nothing() -> None:
    authorizer = Authorizer(9)
    found = await ask(make_client(respond(status=400, dpop_nonce="n"), authorizer=authorizer)[0])
    assert (found[0], authorizer.refusals, authorizer.accepted) == (400, [], [({"authorization": "1"}, "n")])


async def test_credentials_in_the_url_do_not_replace_those_of_a_sign_in() -> None:
    class Silent(Authorizer):
        async def build_headers(self, method: str, url: str) -> dict[str, str]:
            return {}

    for authorizer, sent in ((Authorizer(0), "1"), (Silent(0), "Basic dTpw")):
        http, network = make_client(answer(b"{}"), authorizer=authorizer, url="http://u:p@host/mcp")
        assert (await ask(http))[0] == 200
        assert network.asked[0].headers["authorization"] == sent


async def test_cookies_of_a_server_are_sent_back() -> None:
    http, network = make_client(answer(b"{}", set_cookie="node=7"), answer(b"{}"))
    await ask(http)
    await ask(http)
    assert [request.headers.get("cookie") for request in network.asked] == [None, "node=7"]


async def test_cookies_of_a_server_do_not_replace_the_configured_one() -> None:
    network = Network(answer(b"{}", set_cookie="node=7"), answer(b"{}"))
    http = HttpClient(make_network(network), parse_url(URL), ServerLimits(), {"Cookie": "login=1"})
    await ask(http)
    await ask(http)
    assert [request.headers.get("cookie") for request in network.asked] == ["login=1", "login=1"]


# -- opening ----------------------------------------------------------------------------------


async def test_a_sign_in_uses_the_proxy_with_its_password() -> None:
    proxy = parse_proxy("http://me:p%40ß@proxy:3128", "a test")
    store: Any = None
    config = StreamableHttpServerConfig("s", URL, auth=ServerAuth(store=store))
    authorizer: Any = client._open_authorizer(config, proxy)
    assert parse_proxy(authorizer._driver._proxy, "a test") == proxy


async def test_connections_close_even_if_the_sign_in_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Authorizer):
        async def close(self) -> None:
            raise RuntimeError("cut")

    def open_authorizer(*_: object) -> Any:
        return Broken(0)

    def open_network(**_: object) -> Any:
        return make_network(network)

    network = Network()
    monkeypatch.setattr(client, "_open_authorizer", open_authorizer)
    monkeypatch.setattr(client, "open_network", open_network)
    with pytest.raises(RuntimeError, match="cut"):
        async with open_http_client(StreamableHttpServerConfig("s", URL, proxy="")):
            pass
    assert network.is_closed


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
        async with open_http_client(StreamableHttpServerConfig("s", url, headers)):
            pass
    assert (caught.value.kind, caught.value.detail.reason, caught.value.detail.server) == (
        "transport",
        "malformed",
        "s",
    )
