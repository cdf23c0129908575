"""The host under a client that sends whatever it likes, frame by frame."""

from __future__ import annotations

import asyncio
import errno
import json
import tempfile
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.host_tools import Bench
from tests.support.transports import settled
from tests.support.waiting import LIMIT_S, until

from indusagi.interop import (
    Handlers,
    HostLimits,
    ProtocolFault,
    ProviderHostInfo,
    StdioServerConfig,
    create_provider_host,
    linked_pair,
)
from indusagi.interop.protocol_bridge.client.session import ClientSession
from indusagi.interop.protocol_bridge.host import outgoing as waiting
from indusagi.interop.protocol_bridge.rpc.mcp_headers import (
    CAPABILITIES,
    CLIENT_INFO,
    SERVER_INFO,
    SUBSCRIPTION,
    VERSION,
)
from indusagi.interop.protocol_bridge.rpc.transport import encode_frame
from indusagi.runtime.calls import CallingClient, current_client, current_trace
from indusagi.runtime.contract import ToolDescriptor, ToolOutcome, ToolProgress, ToolResult

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from indusagi.capabilities.context import ToolContext
    from indusagi.core.cancel import CancelToken
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop import ProviderHost, RunningProviderHost
    from indusagi.runtime.contract import ToolBox, ToolCall

STAMP: JsonObject = {VERSION: "2026-07-28", CAPABILITIES: {}}
INFO = ProviderHostInfo("host", "2.0", title="A host", instructions="Use it well.")


class Raw:
    """A client that sends frames of the test, and records those it receives."""

    def __init__(self) -> None:
        self.link, self.theirs = linked_pair()
        self.received: list[JsonObject] = []
        self.running: RunningProviderHost | None = None
        self._stirred = asyncio.Event()
        self.link.attach(self._take, lambda end: None)

    def _take(self, frame: bytes | JsonValue) -> None:
        assert isinstance(frame, dict)
        encode_frame(frame)
        self.received.append(frame)
        self._stirred.set()

    def say(self, frame: Any) -> None:
        self.link.send(frame)

    def ask(self, identity: Any, method: str, params: Any = None) -> None:
        frame = {"jsonrpc": "2.0", "id": identity, "method": method}
        self.say(frame if params is None else {**frame, "params": params})

    async def wait_for(self, count: int = 1) -> list[JsonObject]:
        with anyio.fail_after(LIMIT_S):
            while len(self.received) < count:
                self._stirred.clear()
                await self._stirred.wait()
        return self.received

    async def answer(self, identity: Any, method: str, params: Any = None) -> Any:
        """Ask, and wait for the answer."""
        self.ask(identity, method, params)
        with anyio.fail_after(LIMIT_S):
            while True:
                for frame in self.received:
                    if frame.get("id") == identity and "method" not in frame:
                        return frame.get("result", frame.get("error"))
                self._stirred.clear()
                await self._stirred.wait()

    async def initialize(self, version: str = "2025-11-25") -> Any:
        params = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw"}}
        met = await self.answer("init", "initialize", params)
        self.say({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return met


@asynccontextmanager
async def raw_client(host: ProviderHost) -> AsyncGenerator[Raw]:
    client = Raw()
    client.running = await host.connect(client.theirs)
    try:
        yield client
    finally:
        client.link.finish()
        await client.running.waiting()


def modern(**params: Any) -> JsonObject:
    return {**params, "_meta": {**STAMP, **params.get("_meta", {})}}


# -- messages that two readers would read differently ---------------------------------------

HALVES = [
    rb'{"jsonrpc":"2.0","id":"\ud800","method":"ping"}',
    rb'{"jsonrpc":"2.0","id":"a\udfffb","method":"ping"}',
    rb'[{"jsonrpc":"2.0","id":"\ud800","method":"ping"}]',
    rb'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"steps","_meta":{"progressToken":"\ud800"}}}',
]
TWICE = [
    b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","name":"fail"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":[{"b":1,"b":2}]}}}',
    rb'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","n\u0061me":"fail"}}',
    b'[{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":1,"a":1}}]',
]


@pytest.mark.parametrize("line", HALVES, ids=["id", "middle", "batch", "token"])
async def test_finding_r11_a_broken_id_is_refused_and_never_answered_under_another(line: bytes) -> None:
    async with raw_client(create_provider_host(Bench().box)) as client:
        await client.initialize()
        client.received.clear()
        client.theirs.deliver(line)
        (refused,) = await client.wait_for()
        error: Any = refused["error"]
        assert (refused["id"], error["code"]) == (None, -32700)
        assert await client.answer("\ufffd", "ping") == {}


async def test_finding_r11_half_a_character_cancels_no_other_request() -> None:
    bench = Bench()
    async with raw_client(create_provider_host(bench.box)) as client:
        await client.initialize()
        client.ask("\ufffd", "tools/call", {"name": "hang"})
        await until(lambda: bench.seen["hang"] == 1)
        cancel = rb'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"\ud800"}}'
        client.theirs.deliver(cancel)
        await settled()
        assert bench.reasons == []


@pytest.mark.parametrize("line", TWICE, ids=["id", "method", "params", "arguments", "escaped", "batch"])
async def test_finding_w2_a_request_with_a_name_twice_is_refused(line: bytes) -> None:
    bench = Bench()
    async with raw_client(create_provider_host(bench.box)) as client:
        await client.initialize()
        client.received.clear()
        client.theirs.deliver(line)
        (refused,) = await client.wait_for()
        error: Any = refused["error"]
        assert (refused["id"], error["code"]) == (None, -32700)
        assert "occurs twice" in error["message"]
        assert bench.seen["echo"] + bench.seen["fail"] == 0


# -- meeting --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("1999-01-01", "2025-11-25"),
        ("2026-07-28", "2025-11-25"),
    ],
)
async def test_the_handshake_agrees_on_a_version(asked: str, given: str) -> None:
    async with raw_client(create_provider_host(Bench().box, INFO)) as client:
        assert await client.initialize(asked) == {
            "protocolVersion": given,
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "host", "version": "2.0", "title": "A host"},
            "instructions": "Use it well.",
        }


async def test_discovery_needs_no_handshake() -> None:
    async with raw_client(create_provider_host(Bench().box, INFO)) as client:
        found = await client.answer(1, "server/discover", modern())
        assert found["supportedVersions"] == ["2026-07-28"]
        assert found["instructions"] == "Use it well."
        assert found["_meta"][SERVER_INFO]["name"] == "host"
        listed = await client.answer(2, "tools/list", modern(cursor="anything"))
        assert {"resultType", "ttlMs", "cacheScope"} <= set(listed)


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [
        ("tools/list", {}, -32602),  # before the handshake
        ("initialize", {}, -32602),
        ("tools/list", {"_meta": {**STAMP, VERSION: "2031-01-01"}}, -32022),
        ("tools/list", {"_meta": {**STAMP, VERSION: 3}}, -32602),
        ("tools/list", {"_meta": {VERSION: "2026-07-28"}}, -32602),
        ("ping", {"_meta": STAMP}, -32601),
        ("logging/setLevel", {"_meta": STAMP, "level": "info"}, -32601),
        ("resources/list", {"_meta": STAMP}, -32601),
        ("no/such", {}, -32601),
        ("tools/call", {"_meta": STAMP}, -32602),
        ("tools/call", {"_meta": STAMP, "name": 7}, -32602),
        ("tools/call", {"_meta": STAMP, "name": "nope"}, -32602),
        ("tools/call", {"_meta": STAMP, "name": "echo", "arguments": [1]}, -32602),
        ("subscriptions/listen", {"_meta": STAMP}, -32602),
    ],
)
async def test_unsupported_requests_are_refused_with_their_code(method: str, params: JsonObject, code: int) -> None:
    async with raw_client(create_provider_host(Bench().box())) as client:
        refused = await client.answer(1, method, params)
        assert refused["code"] == code
        if code == -32022:
            assert refused["data"] == {"supported": ["2026-07-28"], "requested": "2031-01-01"}


async def test_usual_requests_of_older_clients_are_accepted() -> None:
    async with raw_client(create_provider_host(Bench().box())) as client:
        assert await client.answer(0, "ping") == {}
        await client.initialize()
        assert await client.answer(1, "logging/setLevel", {"level": "debug"}) == {}
        client.say({"jsonrpc": "2.0", "method": "notifications/roots/list_changed"})
        client.say({"jsonrpc": "2.0", "id": 9, "result": {}})
        assert "tools" in await client.answer(2, "tools/list", {"cursor": "x"})


# -- C22: malformed requests ----------------------------------------------------------------

MALFORMED: list[Any] = [
    None, 1, "text", [], {}, {"jsonrpc": "2.0"}, {"method": 1, "id": 1}, {"id": 1},
    {"jsonrpc": "2.0", "id": None, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": True, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": 1.5, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": {}, "method": "tools/list"},
    {"jsonrpc": "2.0", "id": 5, "method": "tools/list", "params": [1]},
    b"", b"{", b"[" * 200_000, b"\xff\xfe", b'{"a": NaN}', b'{"jsonrpc": "2.0", "id": 1',
]  # fmt: skip


@pytest.mark.parametrize("frame", MALFORMED, ids=lambda frame: repr(frame)[:30])
async def test_c22_a_malformed_message_is_answered_and_ends_nothing(frame: Any) -> None:
    async with raw_client(create_provider_host(Bench().box())) as client:
        await client.initialize()
        client.say(frame)
        assert await client.answer("after", "ping") == {}
        (refused,) = [said for said in client.received if "error" in said]
        error = refused["error"]
        assert isinstance(error, dict)
        assert error["code"] in {-32600, -32700}


@given(frame=st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params", "_meta", "x"]), inner, max_size=4
    ), max_leaves=12,
))  # fmt: skip
def test_c22_no_message_ends_the_host(frame: Any) -> None:
    async def main() -> None:
        async with raw_client(create_provider_host(Bench().box())) as client:
            client.say(frame)
            assert await client.answer("after", "ping") == {}

    asyncio.run(main())


async def test_the_parts_of_a_batch_are_handled_one_by_one() -> None:
    async with raw_client(create_provider_host(Bench().box())) as client:
        client.say([{"jsonrpc": "2.0", "id": n, "method": "ping"} for n in (1, 2)])
        assert [frame["id"] for frame in await client.wait_for(2)] == [1, 2]


@pytest.mark.parametrize(("parts", "said"), [(101, "a batch may have 100"), (100, "not a request")])
@pytest.mark.parametrize("form", ["bytes", "list"])
async def test_a_batch_of_nonsense_is_refused_once(parts: int, said: str, form: str) -> None:
    nonsense: Any = [1] * parts
    async with raw_client(create_provider_host(Bench().box())) as client:
        client.say(json.dumps(nonsense).encode() if form == "bytes" else nonsense)
        assert await client.answer("after", "ping") == {}
        (refused,) = [frame for frame in client.received if "error" in frame]
        assert said in str(refused["error"])


async def test_nonsense_in_a_batch_keeps_nothing_from_being_answered() -> None:
    async with raw_client(create_provider_host(Bench().box())) as client:
        client.say([1, {"jsonrpc": "2.0", "id": 1, "method": "ping"}, None])
        answered, refused = await client.wait_for(2)
        assert answered["id"] == 1
        assert refused["id"] is None


async def test_an_id_that_is_in_use_is_refused_and_the_first_request_goes_on() -> None:
    bench = Bench()
    async with raw_client(create_provider_host(bench.box())) as client:
        client.ask(1, "tools/call", modern(name="hang"))
        await bench.began.wait()
        client.ask(1, "tools/call", modern(name="echo"))
        (refused,) = await client.wait_for()
        assert refused["error"] == {"code": -32600, "message": "a request with this id is running"}
        bench.let_go.set()
        await client.wait_for(2)
        assert client.received[1]["result"]


# -- calls ----------------------------------------------------------------------------------


async def test_a_cancelled_call_is_not_answered() -> None:
    bench = Bench()
    async with raw_client(create_provider_host(bench.box())) as client:
        client.ask(7, "tools/call", modern(name="hang"))
        await bench.began.wait()
        notice = {"requestId": 7, "reason": "changed my mind"}
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": notice})
        await bench.ended.wait()
        assert bench.reasons == ["changed my mind"]
        assert await client.answer(8, "server/discover", modern())
        assert [frame["id"] for frame in client.received] == [8]


@pytest.mark.parametrize("identity", [99, None, [1], 7.0, "7"])
async def test_a_cancel_notice_for_something_else_changes_nothing(identity: Any) -> None:
    bench = Bench()
    async with raw_client(create_provider_host(bench.box())) as client:
        client.ask("hang", "tools/call", modern(name="hang"))
        await bench.began.wait()
        params = {"requestId": identity}
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        bench.let_go.set()
        (answer,) = await client.wait_for()
        assert answer["result"]


async def test_r52_a_client_that_vanishes_has_its_calls_cancelled() -> None:
    bench = Bench()
    async with raw_client(create_provider_host(bench.box(), limits=HostLimits(waiting=1))) as client:
        for identity in range(3):
            client.ask(identity, "tools/call", modern(name="hang"))
        await bench.began.wait()
        client.link.finish("went away")
        assert client.running is not None
        await client.running.waiting()
        # Those in the queue never began.
        assert (bench.reasons, bench.seen["hang"]) == (["the client went away"], 1)


async def test_finding_r6_calls_are_queued_and_keep_their_order() -> None:
    bench = Bench()
    limits = HostLimits(calls=2, waiting=3)
    async with raw_client(create_provider_host(bench.box(), limits=limits)) as client:
        for identity in range(10):
            client.ask(identity, "tools/call", modern(name="hang"))
        client.ask("there?", "server/discover", modern())
        await until(lambda: bench.seen["hang"] == 2)
        assert client.received == []
        # One in the queue can be cancelled too, and its id is taken.
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
        client.ask(9, "tools/call", modern(name="hang"))
        refused: Any = (await client.wait_for())[0]
        assert "id is running" in refused["error"]["message"]
        client.received.clear()
        bench.let_go.set()
        await client.wait_for(10)
        answered = [frame["id"] for frame in client.received]
        assert answered == [0, 1, 2, 3, 4, 5, 6, 8, 9, "there?"]
        assert all("result" in frame for frame in client.received)


async def test_a_queue_that_is_full_refuses_and_a_stopped_host_clears_it() -> None:
    bench = Bench()
    limits = HostLimits(calls=2, waiting=4, queued_bytes=0, frame_bytes=0, stop_s=0.05, linger_s=0.05)
    async with raw_client(create_provider_host(bench.box(), limits=limits)) as client:
        for identity in range(7):
            client.ask(identity, "tools/call", modern(name="hang"))
        await client.wait_for(2)
        assert [frame["id"] for frame in client.received] == [5, 6]
        assert all(frame["error"]["code"] == -32000 for frame in client.received)  # type: ignore[index]
        await until(lambda: bench.seen["hang"] == 2)
        assert client.running is not None
        await client.running.stop()
        stopped: Any = client.received[2]
        assert (stopped["id"], stopped["error"]["message"]) == (4, "the host is stopping")
        assert bench.seen["hang"] == 2


async def test_progress_is_sent_on_request_only_and_never_decreases() -> None:
    async with raw_client(create_provider_host(Bench().box())) as client:
        await client.answer(1, "tools/call", modern(name="steps"))
        assert len(client.received) == 1
        await client.answer(2, "tools/call", modern(name="steps", _meta={"progressToken": "p"}))
        response = [frame["params"] for frame in client.received if "method" in frame]
        assert response == [
            {"progressToken": "p", "progress": n, "total": 3, "message": f"step {n}"} for n in (1, 2, 3)
        ]


async def test_progress_that_json_cannot_tell_is_left_out() -> None:
    bench = Bench()

    async def odd(arguments: JsonObject, ctx: ToolContext) -> str:
        assert ctx.on_progress is not None
        for done in (float("nan"), 1, float("inf"), 10**400):
            ctx.on_progress(ToolProgress(done, float("inf"), ""))
        return "walked"

    bench.add("odd", odd)
    async with raw_client(create_provider_host(bench.box())) as client:
        await client.answer(1, "tools/call", modern(name="odd", _meta={"progressToken": "p"}))
        response = [frame["params"] for frame in client.received if "method" in frame]
        assert response == [{"progressToken": "p", "progress": n} for n in (1, 10**400)]


async def test_progress_does_not_pile_up_for_a_client_that_does_not_read() -> None:
    async with raw_client(create_provider_host(Bench().box())) as client:
        client.theirs.writable.clear()
        client.ask(1, "tools/call", modern(name="steps", _meta={"progressToken": "p"}))
        client.ask(2, "server/discover", modern())
        await settled()
        assert client.received == []
        client.theirs.writable.set()
        assert len(await client.wait_for(2)) == 2


async def test_finding_r5_logs_outside_of_calls_do_not_pile_up_for_a_client_that_does_not_read() -> None:
    async with raw_client(create_provider_host(Bench().box())) as client:
        session = create_provider_host(Bench().box()).new_session()
        session.notification_channel = client.theirs
        client.theirs.writable.clear()
        session.notify("notifications/message", {"level": "error", "data": "unread"})
        session.notify("notifications/tools/list_changed")
        client.theirs.writable.set()
        session.notify("notifications/message", {"level": "error", "data": "read"})
        await settled()
        methods = [frame["method"] for frame in client.received]
        assert methods == ["notifications/tools/list_changed", "notifications/message"]


async def test_a_call_keeps_its_slot_until_its_response_is_read() -> None:
    bench = Bench()
    host = create_provider_host(bench.box(), limits=HostLimits(calls=2))
    async with raw_client(host) as client:
        client.theirs.writable.clear()
        for identity in range(6):
            client.ask(identity, "tools/call", modern(name="echo"))
        await settled()
        assert bench.seen["echo"] == 2
        client.theirs.writable.set()
        assert {frame["id"] for frame in await client.wait_for(6)} == {*range(6)}  # type: ignore[arg-type]


async def test_responses_wait_in_memory_then_on_disk_and_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    open_really = tempfile.TemporaryFile

    def open_file(**options: Any) -> Any:
        opened.append(open_really(**options))
        return opened[-1]

    monkeypatch.setattr(tempfile, "TemporaryFile", open_file)
    monkeypatch.setattr(waiting, "SMALL_BYTES", 100)
    bench = Bench()
    host = create_provider_host(bench.box(), limits=HostLimits(unread_bytes=1_500))
    texts = {number: str(number) * 1_000 for number in range(1, 6)}
    async with raw_client(host) as client:
        client.theirs.writable.clear()
        for number, text in texts.items():
            client.ask(number, "tools/call", modern(name="echo", arguments={"text": text}))
        client.ask(6, "tools/call", modern(name="echo", arguments={"text": "x"}))
        await until(lambda: len(opened) == 4 and bench.seen["echo"] == 6)
        assert client.received == []
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 5}})
        await until(lambda: any(file.closed for file in opened))
        client.theirs.writable.set()
        frames = await client.wait_for(5)
    answers = {frame["id"]: json.dumps(frame["result"]) for frame in frames}
    assert sorted(answers) == [1, 2, 3, 4, 6]  # type: ignore[type-var]
    assert all(texts[number] in answers[number] for number in (1, 2, 3, 4))
    assert all(file.closed for file in opened)
    assert (waiting._total.memory, waiting._total.disk) == (0, 0)


@pytest.mark.parametrize("cause", ["no room", "no disk"])
async def test_a_response_that_cannot_wait_on_disk_becomes_an_error(
    cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(waiting, "SMALL_BYTES", 100)
    if cause == "no room":
        monkeypatch.setattr(waiting, "MAX_DISK_BYTES", 500)
    else:
        monkeypatch.setattr(tempfile, "TemporaryFile", fail)
    host = create_provider_host(Bench().box(), limits=HostLimits(unread_bytes=500))
    async with raw_client(host) as client:
        client.theirs.writable.clear()
        client.ask(1, "tools/call", modern(name="echo", arguments={"text": "x" * 1_000}))
        (frame,) = await client.wait_for()
    expected = "are not read" if cause == "no room" else "No space left on device"
    assert expected in frame["error"]["message"]  # type: ignore[index]
    assert (waiting._total.memory, waiting._total.disk) == (0, 0)


class Broken:
    """A box that breaks its word."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.runner = self

    def descriptors(self) -> Sequence[ToolDescriptor]:
        return (ToolDescriptor("odd", "", {"type": "object"}),)

    async def run(self, call: ToolCall, cancel: CancelToken | None = None, **_: Any) -> ToolOutcome:
        if isinstance(self._answer, Exception):
            raise self._answer
        return ToolOutcome(call.id, self._answer)


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("the password is swordfish"),
        ToolResult.json(float("nan")),
        ToolResult((), structured={"a": float("inf")}),
    ],
)
async def test_a_box_that_fails_is_an_error_result_without_its_secrets(
    answer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    box: Any = Broken(answer)
    async with raw_client(create_provider_host(box)) as client:
        result = await client.answer(1, "tools/call", modern(name="odd"))
        assert result["isError"] is True
        assert result["content"][0]["text"]
        assert "swordfish" not in json.dumps(client.received)


async def test_an_internal_error_shows_no_details_to_the_client(caplog: pytest.LogCaptureFixture) -> None:
    def lost() -> ToolBox:
        raise OSError("/home/me/secret is gone")

    async with raw_client(create_provider_host(lost)) as client:
        refused = await client.answer(1, "tools/list", modern())
        assert refused == {"code": -32603, "message": "internal error"}
        assert "secret" in caplog.text


async def test_a_tool_that_ignores_its_cancel_token_is_ended_by_force() -> None:
    ended = asyncio.Event()

    class Deaf(Broken):
        async def run(self, call: ToolCall, cancel: CancelToken | None = None, **_: Any) -> ToolOutcome:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

    box: Any = Deaf(None)
    limits = HostLimits(linger_s=0.05)
    async with raw_client(create_provider_host(box, limits=limits)) as client:
        client.ask(1, "tools/call", modern(name="odd"))
        await settled()
        assert client.running is not None
        await client.running.cancel()
        assert ended.is_set()


# -- changes --------------------------------------------------------------------------------


async def test_a_subscription_is_acknowledged_notified_and_ended_with_a_response() -> None:
    bench = Bench()
    host = create_provider_host(bench.box)
    async with raw_client(host) as client:
        wanted = {"toolsListChanged": True, "promptsListChanged": True}
        client.ask("sub", "subscriptions/listen", modern(notifications=wanted))
        (first,) = await client.wait_for()
        assert first["method"] == "notifications/subscriptions/acknowledged"
        meta = {SUBSCRIPTION: "sub"}
        assert first["params"] == {"_meta": meta, "notifications": {"toolsListChanged": True}}
        assert await client.answer(1, "tools/list", modern())
        bench.add("late", bench._echo)
        assert host.refresh_tools()
        await client.wait_for(3)
        assert client.received[2]["params"] == {"_meta": meta}
        assert client.running is not None
        await client.running.stop()
        await client.wait_for(4)
        assert client.received[3]["id"] == "sub"


async def test_a_client_hears_nothing_it_did_not_ask_for() -> None:
    bench = Bench()
    host = create_provider_host(bench.box)
    async with raw_client(host) as quiet, raw_client(host) as other:
        quiet.ask(1, "subscriptions/listen", modern(notifications={"promptsListChanged": True}))
        assert (await quiet.wait_for())[0]["params"]["notifications"] == {}  # type: ignore[index]
        await other.initialize()
        bench.add("late", bench._echo)
        assert host.refresh_tools()
        assert await quiet.answer(2, "server/discover", modern())
        assert not [f for f in quiet.received if f.get("method") == "notifications/tools/list_changed"]
        await until(lambda: other.received[-1].get("method") == "notifications/tools/list_changed")


async def test_subscriptions_are_limited() -> None:
    limits = HostLimits(listeners=2, calls=1)
    async with raw_client(create_provider_host(Bench().box(), limits=limits)) as client:
        for identity in range(3):
            client.ask(identity, "subscriptions/listen", modern(notifications={}))
        await client.wait_for(3)
        assert [f["error"]["code"] for f in client.received if "error" in f] == [-32000]  # type: ignore[index]
        # Subscriptions take no slot of a call.
        assert await client.answer("c", "tools/call", modern(name="echo"))


async def test_requests_are_refused_while_the_host_stops() -> None:
    bench = Bench()
    async with raw_client(create_provider_host(bench.box())) as client:
        client.ask(1, "tools/call", modern(name="hang"))
        await bench.began.wait()
        assert client.running is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.running.stop)
            await asyncio.sleep(0)
            refused = await client.answer(2, "tools/call", modern(name="echo"))
            assert refused == {"code": -32000, "message": "the host is stopping"}
            bench.let_go.set()
        assert [frame["id"] for frame in client.received] == [2, 1]


async def test_calls_that_outlast_the_stop_are_cancelled() -> None:
    bench = Bench()
    limits = replace(HostLimits(), stop_s=0.05)
    async with raw_client(create_provider_host(bench.box(), limits=limits)) as client:
        client.ask(1, "tools/call", modern(name="hang"))
        await bench.began.wait()
        assert client.running is not None
        await client.running.stop()
        assert bench.ended.is_set()
        assert client.received == []


# -- links ----------------------------------------------------------------------------------


async def test_a_transport_pair_stores_frames_until_it_is_attached() -> None:
    ours, theirs = linked_pair()
    ours.send({"n": 1})
    await settled()
    heard: list[Any] = []
    ends: list[str] = []
    theirs.attach(heard.append, lambda end: ends.append(end.message))
    ours.finish("done")
    ours.send({"n": 2})
    await settled()
    assert (heard, ends, ours.detail(1)) == ([{"n": 1}], ["done"], None)
    ours.attach(heard.append, lambda end: ends.append(end.message))
    assert ends == ["done", "done"]


async def test_our_own_client_speaks_to_our_own_host_without_the_sdk() -> None:
    ours, theirs = linked_pair()
    running = await create_provider_host(Bench().box()).connect(theirs)
    peer = ClientSession(ours, StdioServerConfig("a", "a"), Handlers())
    facts = await peer.connect()
    assert facts.era == "modern"
    assert len(await peer.read_pages("tools/list", "tools")) == 10
    response: list[JsonObject] = []
    answer = await peer.call("tools/call", {"name": "steps", "arguments": {}}, response.append)
    assert answer["content"] == [{"type": "text", "text": "walked"}]
    assert len(response) == 3
    await peer.connection.close()
    ours.finish()
    await running.waiting()


async def test_a_second_handshake_is_accepted_without_a_second_notification() -> None:
    bench = Bench()
    host = create_provider_host(bench.box)
    async with raw_client(host) as client:
        await client.initialize()
        assert await client.answer("again", "initialize", {"protocolVersion": "2024-11-05"})
        bench.add("late", bench._echo)
        host.refresh_tools()
        await client.wait_for(3)
        await settled()
        assert [f.get("method") for f in client.received[2:]] == ["notifications/tools/list_changed"]


async def test_a_link_that_fails_at_the_start_is_a_transport_fault() -> None:
    class Unusable:
        writable = room = asyncio.Event()
        accepts_notifications = True

        def attach(self, on_frame: Any, on_end: Any) -> None:
            raise OSError("no such wire")

        def send(self, frame: JsonObject) -> None:
            raise AssertionError

    with pytest.raises(ProtocolFault, match="no such wire") as caught:
        await create_provider_host(Bench().box()).connect(Unusable())
    assert caught.value.kind == "transport"


async def test_progress_that_says_little_is_passed_on_as_it_is() -> None:
    class Terse(Broken):
        async def run(self, call: ToolCall, cancel: CancelToken | None = None, **more: Any) -> ToolOutcome:
            more["on_progress"](ToolProgress(1))
            return ToolOutcome(call.id, ToolResult.text("done"))

    box: Any = Terse(None)
    async with raw_client(create_provider_host(box)) as client:
        await client.answer(1, "tools/call", modern(name="odd", _meta={"progressToken": 0}))
        assert client.received[0]["params"] == {"progressToken": 0, "progress": 1}


@pytest.mark.parametrize(
    "method",
    [
        "notifications/initialized",
        "notifications/progress",
        "notifications/canceled",
        "notifications/cancelled/",
        "notifications/roots/list_changed",
        "cancelled",
        "$/cancelRequest",
        "",
    ],
)
async def test_finding_e5_no_other_notification_cancels_a_request(method: str) -> None:
    bench = Bench()
    async with raw_client(create_provider_host(bench.box())) as client:
        await client.initialize()
        client.ask(5, "tools/call", {"name": "hang", "arguments": {}})
        await bench.began.wait()
        params = {"requestId": 5, "progressToken": 5, "id": 5, "reason": "x"}
        client.say({"jsonrpc": "2.0", "method": method, "params": params})
        # Answered after the notification was taken: messages are taken in their order.
        assert await client.answer(6, "ping") == {}
        bench.let_go.set()
        answer = next(f for f in await client.wait_for(3) if f.get("id") == 5)
        assert "let go" in json.dumps(answer)
        assert bench.reasons == [None]


async def test_finding_e5_the_notification_for_it_cancels_a_request() -> None:
    bench = Bench()
    async with raw_client(create_provider_host(bench.box())) as client:
        await client.initialize()
        client.ask(5, "tools/call", {"name": "hang", "arguments": {}})
        await bench.began.wait()
        params = {"requestId": 5, "reason": "enough"}
        client.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params})
        await bench.ended.wait()
        assert bench.reasons == ["enough"]


# -- the client and the trace of a call -------------------------------------------------------

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_call_knows_its_client_and_its_trace(era: str) -> None:
    bench, seen = Bench(), list[Any]()

    async def look(*_: object) -> str:
        seen.append((current_client.get(), current_trace.get()))
        return "seen"

    bench.add("look", look)
    async with raw_client(create_provider_host(bench.box, INFO)) as client:
        await client.initialize()
        meta: JsonObject = {"traceparent": PARENT, "tracestate": "v=1", "baggage": "x" * 9_000}
        if era == "modern":
            meta |= {**STAMP, CLIENT_INFO: {"name": "ed\u202eitor", "version": "7"}}
        await client.answer(1, "tools/call", {"name": "look", "_meta": meta})
        await client.answer(2, "tools/call", {"name": "look", "_meta": {**meta, "traceparent": "00-0-0-00"}})
    expected = CallingClient("editor", "7") if era == "modern" else CallingClient("raw")
    assert seen == [(expected, {"traceparent": PARENT, "tracestate": "v=1"}), (expected, None)]
