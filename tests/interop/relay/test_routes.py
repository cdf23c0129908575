"""Which way the words of a server take when a relay has several to choose from."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.relays import HELLO, HttpFront, front_of, http_fronts, stamped
from tests.support.transports import FakeTransport, LoopTime, settled
from tests.support.waiting import until

from indusagi.interop import HostLimits, StdioServerConfig, create_relay_host
from indusagi.interop.protocol_bridge import relay
from indusagi.interop.protocol_bridge.relay import upstream as relay_line
from indusagi.interop.protocol_bridge.relay.upstream import ToolSchemas

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

CONFIG = StdioServerConfig("behind", "none")
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"


class Behind:
    """The servers that a relay has started: links on which the test plays the server."""

    def __init__(self) -> None:
        self.links: list[FakeTransport] = []
        self.closed = 0

    @property
    def link(self) -> FakeTransport:
        return self.links[-1]

    @asynccontextmanager
    async def open(self, *_: object) -> AsyncGenerator[FakeTransport]:
        self.links.append(FakeTransport())
        try:
            yield self.links[-1]
        finally:
            self.closed += 1

    async def wait_for(self, method: str, count: int = 1) -> Any:
        """Wait until the last server was asked something so many times, and give the last one."""
        await until(lambda: bool(self.links))
        return (await self.link.hears(method, count))[-1]

    def asked(self, method: str) -> list[Any]:
        """List what the last server was asked."""
        return [*self.link.heard(method)]

    def notify(self, method: str, params: Any = None) -> None:
        frame: Any = {"jsonrpc": "2.0", "method": method}
        self.link.say(frame if params is None else {**frame, "params": params})

    def ask(self, identity: Any, method: str) -> None:
        self.link.say({"jsonrpc": "2.0", "id": identity, "method": method, "params": {"a": 1}})


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch) -> Behind:
    servers = Behind()
    monkeypatch.setattr(relay_line, "open_transport", servers.open)
    return servers


async def opened(front: HttpFront, behind: Behind) -> None:
    """Shake hands over HTTP."""
    before = len(behind.links)
    front.say("initialize", HELLO, 0)
    await until(lambda: len(behind.links) > before)
    await behind.wait_for("initialize")
    behind.link.answer(0, {"protocolVersion": "2025-11-25"})
    await front.wait_for(lambda frame: frame.get("id") == 0)


async def streams(front: HttpFront) -> None:
    """Open the standing stream, and wait until it stands."""
    front.listen()
    await until(lambda: front.stream_is_open)


def call(front: Any, identity: Any, **meta: Any) -> None:
    front.say("tools/call", {"name": "t", "arguments": {}, "_meta": meta}, identity)


def modern_call(front: Any, identity: Any, **meta: Any) -> None:
    front.say("tools/call", stamped({"name": "t"}, **meta), identity)


# -- a client with a connection of its own --------------------------------------------------


async def test_progress_goes_to_the_call_with_its_token(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        await opened(front, behind)
        call(front, 1, progressToken="a")
        call(front, 2, progressToken="b")
        await behind.wait_for("tools/call", 2)
        behind.notify("notifications/progress", {"progressToken": "a", "progress": 1})
        first = await front.stream_of(1)
        assert first["params"]["progressToken"] == "a"
        behind.link.answer(1, {})
        behind.link.answer(2, {})
        await front.wait_for(lambda frame: frame.get("id") == 2)
        assert front.by_request[2] == [{"jsonrpc": "2.0", "id": 2, "result": {}}]


@pytest.mark.parametrize("method", ["notifications/message", "roots/list"])
async def test_messages_that_name_no_call_go_to_the_newest(behind: Behind, method: str) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        await opened(front, behind)
        await streams(front)
        call(front, 1)
        call(front, 2)
        newest = (await behind.wait_for("tools/call", 2))["id"]
        if method == "roots/list":
            behind.ask("q", method)
        else:
            behind.notify(method, {"data": "x"})
        assert (await front.stream_of(newest))["method"] == method
        if method == "roots/list":
            front.write({"jsonrpc": "2.0", "id": "q", "result": {"roots": []}})
            await until(lambda: bool(behind.link.replies()))
            assert behind.link.replies() == [{"jsonrpc": "2.0", "id": "q", "result": {"roots": []}}]


@pytest.mark.parametrize("method", ["notifications/tools/list_changed", "notifications/resources/updated"])
async def test_news_go_to_the_standing_stream(behind: Behind, method: str) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        await opened(front, behind)
        await streams(front)
        call(front, 1)
        await behind.wait_for("tools/call")
        behind.notify(method)
        assert (await front.stream_of("standing")) == {"jsonrpc": "2.0", "method": method}


async def test_messages_without_a_stream_wait_for_one(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        await opened(front, behind)
        behind.ask(9, "sampling/createMessage")
        behind.notify("notifications/prompts/list_changed")
        await settled()
        await streams(front)
        assert (await front.stream_of("standing"))["id"] == 9
        await until(lambda: len(front.by_request["standing"]) == 2)


async def test_messages_that_wait_for_a_stream_are_limited(behind: Behind, caplog: pytest.LogCaptureFixture) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        await opened(front, behind)
        caplog.set_level(logging.DEBUG)
        for number in range(100):
            behind.notify("notifications/message", {"n": number})
        behind.ask("late", "roots/list")
        await until(lambda: bool(behind.link.replies()))
        [refused] = behind.link.replies()
        assert "reads nothing" in json.dumps(refused)
        assert "reads nothing" in caplog.text
        await streams(front)
        await until(lambda: len(front.by_request["standing"]) == 64)


async def test_of_too_many_questions_the_oldest_is_forgotten(behind: Behind) -> None:
    host = create_relay_host(CONFIG, limits=HostLimits(asks=2, linger_s=0.1))
    async with front_of(host) as front:
        front.say("x/y", {}, "call")
        await behind.wait_for("x/y")
        for number in (1, 2, 3):
            behind.ask(number, "roots/list")
        await front.wait_for(lambda frame: frame.get("id") == 3)
        for number in (1, 2, 3):
            front.write({"jsonrpc": "2.0", "id": number, "result": {}})
        await until(lambda: len(behind.link.replies()) == 2)
        assert [reply["id"] for reply in behind.link.replies()] == [2, 3]


async def test_questions_of_a_server_that_broke_are_not_put(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        await opened(front, behind)
        behind.ask("old", "roots/list")
        behind.notify("notifications/tools/list_changed")
        behind.link.end("went away")
        front.say("x/y", {}, 5)
        await until(lambda: len(behind.links) == 2)
        await streams(front)
        response = await front.stream_of("standing")
        assert response["method"] == "notifications/tools/list_changed"


@pytest.mark.parametrize("code", [[], {}, "x", None, 1.5, True])
async def test_an_error_with_an_odd_code_is_still_passed_on(behind: Behind, code: Any) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        modern_call(front, 1)
        asked = await behind.wait_for("tools/call")
        behind.link.say({"jsonrpc": "2.0", "id": asked["id"], "error": {"code": code}})
        assert (await front.wait_for(lambda f: f.get("id") == 1))["error"] == {"code": code}


async def test_a_question_that_is_withdrawn_is_withdrawn_where_it_was_put(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        await opened(front, behind)
        call(front, 1)
        await behind.wait_for("tools/call")
        behind.ask("q", "elicitation/create")
        await front.stream_of(1)
        call(front, 2)
        await behind.wait_for("tools/call", 2)
        behind.notify("notifications/cancelled", {"requestId": "q"})
        await until(lambda: len(front.by_request[1]) == 2)
        front.write({"jsonrpc": "2.0", "id": "q", "result": {}})
        await until(lambda: 202 in front.statuses)
        assert not behind.link.replies()


async def test_a_response_to_an_unknown_server_request_is_dropped(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG), 2) as [one, other]:
        await opened(one, behind)
        await opened(other, behind)
        first, second = behind.links
        call(one, 1)
        await first.hears("tools/call")
        first.say({"jsonrpc": "2.0", "id": 1, "method": "roots/list"})
        await one.stream_of(1)
        other.write({"jsonrpc": "2.0", "id": 1, "result": {"roots": ["mine"]}})
        await until(lambda: 202 in other.statuses)
        assert not first.replies()
        assert not second.replies()


async def test_two_clients_that_shook_hands_never_hear_each_other(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG), 2) as fronts:
        for front in fronts:
            await opened(front, behind)
            await streams(front)
        for link, said in zip(behind.links, ("one", "other"), strict=True):
            link.say({"jsonrpc": "2.0", "method": "notifications/message", "params": {"d": said}})
        for front, said in zip(fronts, ("one", "other"), strict=True):
            assert (await front.stream_of("standing"))["params"] == {"d": said}
            assert len(front.by_request["standing"]) == 1


async def test_an_answer_may_bear_its_id_in_another_dress(behind: Behind) -> None:
    async with front_of(create_relay_host(CONFIG)) as front:
        for number, dressed in ((1, 1.0), (2, "2"), (3, 3)):
            front.say("ping", None, number)
            await behind.wait_for("ping", number)
            behind.link.say(
                {"jsonrpc": "2.0", "id": True, "result": {}},
                {"jsonrpc": "2.0", "id": "9" * 30, "result": {}},
                {"jsonrpc": "2.0", "id": dressed, "result": {"was": number}},
            )
            answer = await front.wait_for(lambda frame, n=number: frame.get("id") == n)
            assert answer["result"] == {"was": number}


@pytest.mark.parametrize("result", [5, None, [1], "text", {"a": None}])
async def test_whatever_the_server_calls_a_result_is_passed_on(behind: Behind, result: Any) -> None:
    async with front_of(create_relay_host(CONFIG)) as front:
        front.say("x/y", {}, "a")
        await behind.wait_for("x/y")
        behind.link.say(b"noise", "noise", {"neither": 1}, {"id": "a"}, None)
        behind.link.answer("a", result)
        answer = json.loads(await front.next_frame())
        assert answer == {"jsonrpc": "2.0", "id": "a", "result": result}


async def test_an_error_is_passed_on_with_all_that_is_in_it(behind: Behind) -> None:
    async with front_of(create_relay_host(CONFIG)) as front:
        odd: list[Any] = [{"code": 7, "message": "m", "data": None, "vendor": [1]}, "odd", {}]
        for error in odd:
            front.say("x/y", {}, 1)
            await behind.wait_for("x/y")
            behind.link.sent.clear()
            behind.link.say({"jsonrpc": "2.0", "id": 1, "error": error})
            assert json.loads(await front.next_frame())["error"] == error


async def test_an_invalid_response_fails_its_request_at_once(behind: Behind) -> None:
    async with front_of(create_relay_host(CONFIG)) as front:
        front.say("x/y", {}, 1)
        await behind.wait_for("x/y")
        behind.link.say(b'{"jsonrpc":"2.0","id":1,"result":{"a":NaN}}')
        answer = json.loads(await front.next_frame())
        assert "server 'behind': its answer cannot be read" in answer["error"]["message"]


async def test_notices_to_a_client_that_does_not_read_are_dropped_in_the_end(
    behind: Behind, caplog: pytest.LogCaptureFixture
) -> None:
    host = create_relay_host(CONFIG)
    async with front_of(host) as front:
        front.say("x/y", {}, 1)
        await behind.wait_for("x/y")
        caplog.set_level(logging.DEBUG)
        front.link.other.writable.clear()
        for number in range(1_100):
            behind.notify("notifications/message", {"n": number})
        behind.ask("q", "roots/list")
        assert "reads nothing" in json.dumps(behind.link.replies())
        front.link.other.writable.set()
        behind.notify("notifications/message", {"n": "last"})
        behind.link.answer(1, {})
        await front.wait_for(lambda frame: frame.get("id") == 1)
        assert len(front.received) == 1_000 + 2
        assert caplog.text.count("reads nothing") == 101


async def test_a_server_that_does_not_answer_the_first_question_is_not_waited_for(
    behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = LoopTime(monkeypatch)
    async with front_of(create_relay_host(CONFIG)) as front:
        front.say("server/discover", stamped(), 1)
        await behind.wait_for("server/discover")
        await time.passes(11)
        answer = await front.wait_for(lambda frame: frame.get("id") == 1)
        assert "did not answer server/discover within 10 s" in answer["error"]["message"]
        await behind.wait_for("notifications/cancelled")


# -- a connection that many share -----------------------------------------------------------


async def test_clients_that_share_a_connection_get_their_own_answers(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG), 2) as fronts:
        for front in fronts:
            modern_call(front, "same", progressToken="same", **{"x/y": 1})
        await behind.wait_for("tools/call", 2)
        first, second = behind.asked("tools/call")
        assert first["id"] != second["id"]
        tokens = [asked["params"]["_meta"]["progressToken"] for asked in (first, second)]
        assert tokens == [first["id"], second["id"]]
        for asked in (second, first):
            step = {"progressToken": asked["id"], "progress": asked["id"]}
            behind.notify("notifications/progress", step)
            behind.link.answer(asked["id"], {"for": asked["id"]})
        for front in fronts:
            step, answer = await front.next_frame(), await front.next_frame()
            assert json.loads(step)["params"]["progressToken"] == "same"
            assert json.loads(step)["params"]["progress"] == json.loads(answer)["result"]["for"]
            assert json.loads(answer)["id"] == "same"
        assert len(behind.links) == 1


async def test_a_request_without_a_token_passes_as_it_was_written(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        text = json.dumps(stamped({"name": "t", "arguments": {"n": 1.50}})).encode()
        head = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":'
        front.write(head + text + b"}")
        asked = await behind.wait_for("tools/call")
        assert asked["params"].encoded == text


async def test_values_that_cannot_be_encoded_again_are_refused_or_dropped(
    behind: Behind, caplog: pytest.LogCaptureFixture
) -> None:
    """A number that no double holds passes in the bytes it came in, and in no others."""
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        params = json.dumps(stamped({"name": "t"}, progressToken=7))[:-1].encode()
        head = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":'
        front.write(head + params + b',"n":1e400}}')
        refused = await front.wait_for(lambda frame: frame.get("id") == 5)
        assert "too large" in refused["error"]["message"]
        modern_call(front, 6, progressToken=7)
        asked = await behind.wait_for("tools/call")
        step = b'{"method":"notifications/progress","params":{"progressToken":%d,"n":1e400}}'
        behind.link.say(step % asked["id"])
        behind.link.say(b'{"id":%d,"result":{"n":1e400}}' % asked["id"])
        assert b'"result":{"n":1e400}' in (await front.wait_for_raw(6))
        assert "too large" in caplog.text


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list"])
async def test_a_server_request_that_names_no_client_is_refused_and_never_delivered(
    behind: Behind, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_fronts(create_relay_host(CONFIG), 2) as fronts:
        for front in fronts:
            modern_call(front, 1)
        await behind.wait_for("tools/call", 2)
        behind.ask(77, method)
        await until(lambda: bool(behind.link.replies()))
        [refused] = behind.link.replies()
        assert refused["id"] == 77
        assert "several clients share" in json.dumps(refused["error"])
        for asked in behind.link.heard("tools/call"):
            behind.link.answer(asked["id"], {})
        for front in fronts:
            await front.wait_for(lambda frame: frame.get("id") == 1)
            assert len(front.received) == 1
        assert method in caplog.text


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("notifications/tools/list_changed", None),
        ("notifications/message", {"data": "x"}),
        ("notifications/progress", {"progressToken": "nobody", "progress": 1}),
        ("notifications/progress", {"progressToken": 1, "progress": 1}),
        ("notifications/tools/list_changed", {"_meta": {SUBSCRIPTION: 1}}),
        ("notifications/tools/list_changed", {"_meta": {SUBSCRIPTION: "other"}}),
        ("notifications/cancelled", {"requestId": 1}),
    ],
)
async def test_a_notification_that_names_no_request_is_dropped(
    behind: Behind, method: str, params: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with http_fronts(create_relay_host(CONFIG), 2) as fronts:
        for front in fronts:
            modern_call(front, 1, **{LOG_LEVEL: "debug"})
        await behind.wait_for("tools/call", 2)
        behind.notify(method, params)
        for asked in behind.link.heard("tools/call"):
            behind.link.answer(asked["id"], {})
        for front in fronts:
            await front.wait_for(lambda frame: frame.get("id") == 1)
            assert len(front.received) == 1
        assert "dropped" in caplog.text


async def test_log_messages_reach_the_only_request_that_asked_for_them(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        modern_call(front, 1, **{LOG_LEVEL: "debug"})
        asked = await behind.wait_for("tools/call")
        behind.notify("notifications/message", {"data": "x"})
        assert json.loads(await front.next_frame())["params"] == {"data": "x"}
        behind.link.answer(asked["id"], {})
        await front.next_frame()
        modern_call(front, 2)
        asked = await behind.wait_for("tools/call", 2)
        behind.notify("notifications/message", {"data": "not asked for"})
        behind.link.answer(asked["id"], {})
        assert json.loads(await front.next_frame())["id"] == 2


async def test_after_a_cancelled_call_log_messages_have_no_addressee(
    behind: Behind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay, "ABANDONED_S", 5.0)  # the client has a clock as well
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        modern_call(front, 1, **{LOG_LEVEL: "debug"})
        await behind.wait_for("tools/call")
        front.scopes[1].cancel()
        withdrawn = await behind.wait_for("notifications/cancelled")
        assert withdrawn["params"]["requestId"] == 1
        modern_call(front, 2, **{LOG_LEVEL: "debug"})
        asked = await behind.wait_for("tools/call", 2)
        behind.notify("notifications/message", {"data": "of the first"})
        await LoopTime(monkeypatch).passes(6)
        behind.notify("notifications/message", {"data": "of the second"})
        behind.link.answer(asked["id"], {})
        assert json.loads(await front.next_frame())["params"] == {"data": "of the second"}


async def test_a_subscription_is_known_to_each_side_by_its_own_name(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG), 2) as fronts:
        for front in fronts:
            front.say("subscriptions/listen", stamped({"notifications": {}}), "mine")
        await behind.wait_for("subscriptions/listen", 2)
        names = [asked["id"] for asked in behind.asked("subscriptions/listen")]
        assert len({*names}) == 2
        for name in names:
            meta = {"first": 1, SUBSCRIPTION: name, "last": 2}
            behind.notify("notifications/subscriptions/acknowledged", {"_meta": meta})
            behind.link.say({"id": "nobody", "result": {}})
            behind.link.answer(name, {"resultType": "complete", "_meta": meta})
        for front in fronts:
            response, over = await front.next_frame(), await front.next_frame()
            assert json.loads(response)["params"]["_meta"] == {"first": 1, SUBSCRIPTION: "mine", "last": 2}
            assert list(json.loads(response)["params"]["_meta"]) == ["first", SUBSCRIPTION, "last"]
            assert json.loads(over)["result"]["_meta"][SUBSCRIPTION] == "mine"
            assert json.loads(over)["id"] == "mine"


async def test_steps_to_a_client_that_does_not_read_do_not_pile_up(behind: Behind) -> None:
    host = create_relay_host(CONFIG)
    async with http_fronts(host) as [front]:
        modern_call(front, 1, progressToken=1)
        asked = await behind.wait_for("tools/call")
        for step in range(1_000):
            # More than the system buffers for a connection, all before the client can read any of it.
            progress = {"progressToken": asked["id"], "progress": step, "message": "x" * 20_000}
            behind.notify("notifications/progress", progress)
        behind.link.answer(asked["id"], {})
        await front.wait_for(lambda frame: frame.get("id") == 1)
        assert len(front.received) < 500


async def test_of_very_many_tools_the_last_are_remembered(behind: Behind) -> None:
    schema: Any = {"type": "object", "properties": {"r": {"x-mcp-header": "R"}}}
    schemas = ToolSchemas()
    schemas.learn({"tools": [{"name": f"t{n}", "inputSchema": schema} for n in range(1_001)]})
    assert schemas.find("t0") is None
    assert schemas.find("t1") == schemas.find("t1000") == schema
    schemas.learn({"tools": [{"name": "t1", "inputSchema": {"type": "object"}}]})
    assert schemas.find("t1") is None
    schemas.learn({"tools": {}})


async def test_a_late_response_to_a_cancelled_call_is_dropped(behind: Behind) -> None:
    async with front_of(create_relay_host(CONFIG)) as front:
        front.say("x/y", {}, 1)
        await behind.wait_for("x/y")
        front.say("notifications/cancelled", {"requestId": 1})
        await behind.wait_for("notifications/cancelled")
        behind.link.answer(1, {})
        await front_settled(front, behind)
        assert [frame["id"] for frame in front.frames()] == [2]


async def front_settled(front: Any, behind: Behind) -> None:
    front.say("ping", None, 2)
    await behind.wait_for("ping")
    behind.link.answer(2, {})
    await front.next_frame()


async def test_a_header_that_a_tool_wants_is_checked_once_the_tool_was_listed(behind: Behind) -> None:
    schema = {"type": "object", "properties": {"r": {"type": "string", "x-mcp-header": "R"}}}
    listed: Any = {"tools": [{"name": "t", "inputSchema": schema}, {"name": "u"}, 3, {"x": 1}]}
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        front.say("tools/list", stamped(), 1)
        asked = await behind.wait_for("tools/list")
        behind.link.answer(asked["id"], listed)
        assert (await front.wait_for(lambda f: f.get("id") == 1))["result"] == listed
        front.say("tools/call", stamped({"name": "t", "arguments": {"r": "here"}}), 2)
        refused = await front.wait_for(lambda f: f.get("id") == 2)
        assert refused["error"]["code"] == -32020
        assert not behind.link.heard("tools/call")


async def test_the_older_protocol_shares_nothing_over_http(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG), 2) as [old, new]:
        await opened(old, behind)
        modern_call(new, 1)
        await until(lambda: len(behind.links) == 2)
        assert not behind.links[0].heard("tools/call")


async def test_a_listener_is_let_go_with_an_answer_when_the_host_ends(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG), stay=True) as [front]:
        front.say("subscriptions/listen", stamped({"notifications": {}}), "mine")
        await behind.wait_for("subscriptions/listen")
    answer = await front.wait_for(lambda frame: frame.get("id") == "mine")
    assert answer["result"]["_meta"] == {SUBSCRIPTION: "mine"}
    assert behind.closed == 1


# -- how many -------------------------------------------------------------------------------


async def test_connections_to_the_server_are_limited(behind: Behind) -> None:
    host = create_relay_host(CONFIG, limits=HostLimits(upstreams=2, linger_s=0.1))
    async with front_of(host) as first, front_of(host) as second:
        for front in (first, second):
            front.say("ping", None, 1)
        await until(lambda: len(behind.links) == 2)
        async with front_of(host) as third:
            refused = await third.ask("initialize", HELLO)
            assert "2 clients have a connection" in refused["error"]["message"]
    await until(lambda: not len(host.pool))
    async with front_of(host) as fourth:
        fourth.say("ping", None, 1)
        await until(lambda: len(behind.links) == 3)


async def test_hanging_calls_do_not_block_others(behind: Behind) -> None:
    host = create_relay_host(CONFIG, limits=HostLimits(calls=2, linger_s=0.1))
    async with front_of(host) as front:
        for number in range(10):
            front.say("x/y", {}, number)
        front.say("ping", None, "last")
        await behind.wait_for("ping")
        behind.link.answer("last", {})
        await front.wait_for(lambda frame: frame.get("id") == "last")


async def test_a_server_that_does_not_read_gets_no_more_requests(behind: Behind) -> None:
    host = create_relay_host(CONFIG, limits=HostLimits(waiting=2, linger_s=0.1))
    async with front_of(host) as front:
        front.say("x/y", {}, 1)
        await behind.wait_for("x/y")
        behind.link.writable.clear()
        front.say("x/y", {}, 2)
        front.say("x/z", {}, 3)
        behind.link.writable.set()
        await settled()
        assert behind.asked("x/z") == []
        behind.link.answer(1, {})
        await behind.wait_for("x/z")


LARGE = {"blob": "x" * 500_000}


async def test_unread_messages_to_a_server_are_limited(behind: Behind, caplog: pytest.LogCaptureFixture) -> None:
    async with front_of(create_relay_host(CONFIG)) as front:
        front.say("x/y", {}, 1)
        await behind.wait_for("x/y")
        behind.link.writable.clear()
        for _ in range(100):
            front.say("notifications/x", LARGE)
        front.say("x/y", {}, 2)
        refused = await front.wait_for(lambda frame: frame.get("id") == 2)
        assert "takes nothing more" in refused["error"]["message"]
        assert len(behind.asked("notifications/x")) < 10
        response = [record for record in caplog.records if "reads nothing" in record.getMessage()]
        assert len(response) == 2  # the first time and the tenth
        behind.link.writable.set()
        front.say("notifications/x", {})
        front.say("x/y", {}, 3)
        await behind.wait_for("x/y", 2)
        assert not behind.asked("notifications/cancelled")
        behind.link.answer(3, {})
        behind.link.answer(1, {})
        await front.wait_for(lambda frame: frame.get("id") == 1)


async def test_messages_before_a_connection_is_open_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    late, link = asyncio.Event(), FakeTransport()

    @asynccontextmanager
    async def slow(*_: object) -> AsyncGenerator[FakeTransport]:
        await late.wait()
        yield link

    monkeypatch.setattr(relay_line, "open_transport", slow)
    async with front_of(create_relay_host(CONFIG)) as front:
        for identity in range(20):
            front.say("x/y", LARGE, identity)
        try:
            refused = await front.wait_for(lambda frame: frame.get("id") == 19)
        finally:
            late.set()
        assert "takes nothing more" in refused["error"]["message"]
        await until(lambda: 5 < len(link.heard("x/y")) < 15)
        for asked in link.heard("x/y"):
            link.answer(asked["id"], {})


async def test_large_messages_to_a_client_that_does_not_read_are_limited(behind: Behind) -> None:
    large = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": LARGE})
    async with front_of(create_relay_host(CONFIG)) as front:
        front.say("x/y", {}, 1)
        await behind.wait_for("x/y")
        front.link.other.writable.clear()
        for _ in range(100):
            behind.link.say(large.encode())
        front.link.other.writable.set()
        behind.link.answer(1, {})
        await front.wait_for(lambda frame: frame.get("id") == 1)
        assert len(front.received) < 12


async def test_warnings_about_a_server_are_limited(behind: Behind, caplog: pytest.LogCaptureFixture) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        modern_call(front, 1)
        asked = await behind.wait_for("tools/call")
        for number in range(1_000):
            behind.notify("notifications/tools/list_changed")
            behind.ask(number, "roots/list")
            behind.notify(f"notifications/{number}\n")
            behind.link.say(b"no json", 7)
        behind.link.answer(asked["id"], {})
        await front.wait_for(lambda frame: frame.get("id") == 1)
    assert len(caplog.records) < 50
    assert "roots/list (1,000 times)" in caplog.text
    assert all("\n" not in record.getMessage() for record in caplog.records)


# -- a server that breaks off ---------------------------------------------------------------


async def test_a_restarted_server_gets_the_handshake_and_settings_again(behind: Behind) -> None:
    async with front_of(create_relay_host(CONFIG)) as front:
        front.say("initialize", HELLO, 0)
        await behind.wait_for("initialize")
        behind.link.answer(0, {"protocolVersion": "2025-11-25"})
        await front.next_frame()
        for number, (method, params) in enumerate(
            [
                ("logging/setLevel", {"level": "error"}),
                ("logging/setLevel", {"level": "info"}),
                ("resources/subscribe", {"uri": "a"}),
                ("resources/subscribe", {"uri": "b"}),
                ("resources/unsubscribe", {"uri": "a"}),
            ],
            1,
        ):
            front.say(method, params, number)
            await until(lambda m=method, n=number: behind.link.sent[-1].get("id") == n)
            behind.link.answer(number, {})
            await front.next_frame()
        front.say("x/y", {}, 8)
        await behind.wait_for("x/y")
        behind.link.end("exited with code 1")
        lost = json.loads(await front.next_frame())
        assert lost["id"] == 8
        assert "server 'behind'" in lost["error"]["message"]
        assert "exited with code 1" in lost["error"]["message"]
        front.say("x/y", {}, 9)
        front.say("notifications/roots/list_changed")
        await until(lambda: len(behind.links) == 2)
        hello = await behind.wait_for("initialize")
        assert hello["params"] == HELLO
        await settled()
        assert len(behind.link.sent) == 1
        behind.link.answer(hello["id"], {"protocolVersion": "2025-11-25"})
        await behind.wait_for("x/y")
        assert [(f["method"], f.get("params")) for f in behind.link.sent[1:]] == [
            ("notifications/initialized", None),
            ("logging/setLevel", {"level": "info"}),
            ("resources/subscribe", {"uri": "b"}),
            ("x/y", {}),
            ("notifications/roots/list_changed", None),
        ]
        behind.link.answer(behind.link.sent[2]["id"], {})
        behind.link.answer(9, {"again": True})
        assert json.loads(await front.next_frame())["result"] == {"again": True}


async def test_a_shared_connection_that_broke_is_made_anew_by_the_next(behind: Behind) -> None:
    async with http_fronts(create_relay_host(CONFIG)) as [front]:
        modern_call(front, 1)
        await behind.wait_for("tools/call")
        behind.link.end("went away")
        lost = await front.wait_for(lambda frame: frame.get("id") == 1)
        assert "went away" in lost["error"]["message"]
        modern_call(front, 2)
        await until(lambda: len(behind.links) == 2)
        asked = await behind.wait_for("tools/call")
        behind.link.answer(asked["id"], {})
        await front.wait_for(lambda frame: frame.get("id") == 2)


async def test_a_notice_without_a_server_starts_none(behind: Behind) -> None:
    async with front_of(create_relay_host(CONFIG)) as front:
        front.say("notifications/initialized")
        front.write({"jsonrpc": "2.0", "id": 1, "result": {}})
        await settled()
        assert not behind.links


async def test_input_after_the_end_is_ignored(behind: Behind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with front_of(create_relay_host(CONFIG)) as front:
        front.say("x/y", {}, 1)
        await behind.wait_for("x/y")
        link = behind.link
        link.end("went away")
        link.say({"jsonrpc": "2.0", "method": "notifications/message"})
        await front.next_frame()
        await asyncio.sleep(0)
        assert len(front.received) == 1
