"""Requests that one node forwards to another, without a broker: what reaches the session, and what the client."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import h11
import pytest
from tests.support.broker import KEY

from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.host.http.request import CLIENT_GONE, HttpRefusal, HttpRequest
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
from induscode.cluster.contract import ClusterSettings
from induscode.cluster.sessions import ClusterSessions, ForwardedConnection, SealedIds, open_sessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from indusagi.core.json import JsonObject

pytestmark = pytest.mark.anyio
SECRET = KEY.derive("session ids")
OWNER = ClientIdentity(owner=b"\x01\xff", principal="ada", client_id="c", scopes=frozenset({"b", "a"}))


class Channel:
    """One end of a channel that records what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.ends: list[str] = []
        self.is_unheard = False
        self.writable = self.room = asyncio.Event()
        self.receive: Callable[[Any], None] = lambda _: None
        self.finished: Callable[[TransportEnd], None] = lambda _: None

    def attach(self, receive: Callable[[Any], None], finished: Callable[[TransportEnd], None]) -> None:
        self.receive, self.finished = receive, finished

    def send(self, frame: JsonObject) -> None:
        self.sent.append(frame)

    def finish(self, message: str) -> None:
        self.ends.append(message)

    def end_after_queue(self) -> None:
        self.ends.append("after the queue")


class Client:
    """The connection of a client that records what is written."""

    def __init__(self) -> None:
        self.written: list[Any] = []
        self.writable = asyncio.Event()

    def send_response(self, status: int, body: bytes = b"", headers: Any = ()) -> None:
        self.written.append((status, body, [*headers]))

    def start_stream(self, headers: Any) -> None:
        self.written.append(("begins", [*headers]))

    def write_stream(self, data: bytes) -> None:
        self.written.append(data)

    def end_stream(self) -> None:
        self.written.append("ends")


class Stage:
    """A request for a session of the node `other`, taken by the node `here`."""

    def __init__(self, *headers: tuple[bytes, bytes], target: str = "/mcp", body: bytes = b"") -> None:
        self.channel, self.client = Channel(), Client()
        self.nodes: list[str] = []
        self.membership = SimpleNamespace(find_seal=dict[str, Any]().get, info=SimpleNamespace())
        node: Any = SimpleNamespace(
            info=SimpleNamespace(instance="here"),
            broker=SimpleNamespace(settings=ClusterSettings(brokers=[], node="n", key=KEY)),
            membership=self.membership,
            open_channel=self._open_channel,
            send_first=self._send_first,
        )
        event = h11.Request(method="POST", target=target, headers=[(b"host", b"x"), *headers])
        self.request = HttpRequest(cast("Any", self.client), event)
        self.request.identity, self.request.body = OWNER, body
        self.sessions = ClusterSessions(node)
        self.sessions.forward(self.request, "other")

    def _open_channel(self, subject: str, owner: str, seal: object) -> Channel:
        return self.channel

    def _send_first(self, channel: Channel, node: str, frame: JsonObject) -> None:
        self.nodes.append(node)
        channel.send(frame)

    def end(self, message: str, **detail: Any) -> None:
        self.channel.finished(TransportEnd(message, FaultDetail(**detail)))


async def test_request_is_forwarded_with_its_owner_and_without_credentials() -> None:
    kept = [(b"accept", b"x"), (b"mcp-session-id", b"s")]
    secret = [(name, b"s3cret") for name in (b"authorization", b"cookie", b"dpop")]
    stage = Stage(*kept, *secret, target="/mcp?view=a", body=b"\xc3{}")
    assert (stage.nodes, stage.channel.sent) == (
        ["other"],
        [
            {
                "method": "POST",
                "target": "/mcp?view=a",
                "headers": [[name.decode(), value.decode()] for name, value in kept],
                "body": "\xc3{}",
                "owner": "01ff",
                "principal": "ada",
                "user": "",
                "client_id": "c",
                "scopes": ["a", "b"],
                "view": "",
                "credential": "user",
            }
        ],
    )
    stage.request.disconnect()
    assert stage.channel.ends == [CLIENT_GONE]


@pytest.mark.parametrize(
    ("frames", "written"),
    [
        ([{"status": 202, "body": "\xff", "headers": [["a", "b"], "odd"]}], [(202, b"\xff", [(b"a", b"b")])]),
        ([{"headers": [["a", "b"]]}, {"body": "x"}, {}], [("begins", [(b"a", b"b")]), b"x", "ends"]),
        ([b'{"status":204,"headers":[["a","b"]]}', [1]], [(204, b"", [(b"a", b"b")])]),
    ],
)
async def test_response_of_the_other_node_reaches_the_client(frames: list[Any], written: list[Any]) -> None:
    stage = Stage()
    for frame in frames:
        stage.channel.receive(frame)
    assert stage.client.written == written


async def test_nothing_is_written_after_the_answer() -> None:
    stage = Stage()
    stage.channel.receive({"status": 200})
    stage.request.is_answered = True
    stage.channel.receive({"status": 500})
    stage.end("has ended", reason="closed")
    assert stage.client.written == [(200, b"", [])]


@pytest.mark.parametrize(
    ("is_unheard", "reason", "said"),
    [
        (True, "closed", "there is no such session: its node is gone; send initialize again"),
        (True, "node_changed", "the session is gone; whether the request took effect is unknown"),
        (False, "closed", "the session is gone; whether the request took effect is unknown"),
    ],
)
async def test_client_learns_whether_a_lost_request_may_have_taken_effect(
    is_unheard: bool, reason: str, said: str
) -> None:
    stage = Stage()
    stage.channel.is_unheard = is_unheard
    stage.end("is gone", reason=reason)
    ((status, body, _),) = stage.client.written
    assert (status, said in body.decode()) == (404, True)


async def test_stream_that_has_begun_ends_with_its_node() -> None:
    stage = Stage()
    stage.channel.receive({"headers": []})
    stage.end("is gone", reason="closed")
    assert stage.client.written == [("begins", []), "ends"]


async def test_ids_of_another_secret_or_form_name_no_node() -> None:
    sessions = Stage().sessions
    assert sessions.find_node(SealedIds("there.1", SECRET).seal("s")) == "there.1"
    assert sessions.find_node(sessions.seal("s")) is None
    sealed = SealedIds("there", SECRET).seal("s")
    for wrong in (SealedIds("there", b"x" * 32).seal("s"), sealed[:-1], f"x{sealed}", "n1.", "", "n1.é"):
        assert sessions.find_node(wrong) is None


# -- at the node that has the session ---------------------------------------------------------


async def test_node_takes_requests_inside_of_the_block_alone() -> None:
    taken: dict[str, object] = {}

    async def subscribe(subject: str, receive: object) -> Callable[[], Awaitable[object]]:
        async def stop() -> None:
            del taken[subject]

        taken[subject] = receive
        return stop

    settings = ClusterSettings(brokers=[], node="n")
    broker = SimpleNamespace(settings=settings, subscribe=subscribe)
    node: Any = SimpleNamespace(info=SimpleNamespace(instance="here"), broker=broker)
    async with open_sessions(node) as sessions:
        assert taken == {settings.subject("http", "here"): sessions.receive}
    assert taken == {}


FRAME: dict[str, Any] = {
    "method": "GET",
    "target": "/mcp?a=b",
    "headers": [["accept", "x"]],
    "body": "\xc3",
    "owner": "01ff",
    "principal": "ada",
    "client_id": "c",
    "scopes": ["a"],
}


def take(handle: Callable[[HttpRequest], None] | None, frame: Any) -> tuple[ForwardedConnection, Channel]:
    """Take the first frame of a request."""
    channel = Channel()
    connection = ForwardedConnection(cast("Any", channel))
    connection.receive(handle, frame)
    return connection, channel


async def test_forwarded_request_is_the_one_that_the_client_sent() -> None:
    taken: list[HttpRequest] = []
    connection, channel = take(taken.append, FRAME)
    connection.receive(taken.append, FRAME)  # the second frame of a channel is no request
    (request,) = taken
    assert (request.method, request.path, request.query, request.body) == ("GET", "/mcp", "a=b", b"\xc3")
    identity = request.identity
    assert (identity.owner, identity.principal, identity.client_id) == (b"\x01\xff", "ada", "c")
    assert (identity.scopes, identity.credential, channel.sent) == (frozenset({"a"}), "principal", [])


async def test_request_without_scopes_opens_no_more_than_a_view() -> None:
    taken: list[HttpRequest] = []
    take(taken.append, {**FRAME, "scopes": None})
    assert (taken[0].identity.scopes, taken[0].identity.credential) == (None, "view")


def refuse(_: HttpRequest) -> None:
    raise HttpRefusal(403, "no")


def fail(_: HttpRequest) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize(
    ("handle", "changes", "status"),
    [
        (None, {}, 503),
        (refuse, {}, 403),
        (fail, {}, 500),
        (refuse, {"owner": "no hex"}, 400),
        (refuse, {"method": "G E T"}, 400),
        (refuse, {"headers": [["a b", "c"]]}, 400),
    ],
)
async def test_request_that_cannot_be_served_is_answered(handle: Any, changes: Any, status: int) -> None:
    _, channel = take(handle, {**FRAME, **changes})
    assert ([frame["status"] for frame in channel.sent], channel.ends) == ([status], ["after the queue"])


async def test_streamed_answer_is_sent_in_parts_and_a_deadline_ends_with_it() -> None:
    taken: list[HttpRequest] = []
    late: list[int] = []
    connection, channel = take(taken.append, FRAME)
    connection.set_deadline(0, lambda: late.append(1))
    connection.set_deadline(0, lambda: late.append(2))
    connection.start_stream([(b"a", b"b")])
    connection.write_stream(b"\xff")
    connection.end_stream()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert channel.sent == [{"headers": [["a", "b"]]}, {"body": "\xff"}, {}]
    assert (channel.ends, late, taken[0].is_finished) == (["after the queue"], [], True)
    connection.write_stream(b"late")
    assert len(channel.sent) == 3


@pytest.mark.parametrize(("is_answered", "told"), [(False, ["gone"]), (True, [])])
async def test_session_learns_that_the_client_is_gone(is_answered: bool, told: list[str]) -> None:
    taken: list[HttpRequest] = []
    connection, _ = take(taken.append, FRAME)
    heard: list[str] = []
    taken[0].on_disconnect = lambda: heard.append("gone")
    taken[0].is_answered = is_answered
    connection.disconnect()
    connection.disconnect()
    assert (heard, taken[0].is_finished) == (told, True)
