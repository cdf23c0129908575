"""MCP client session over a fake transport: handshake, lists, calls, input requests, notifications."""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, cast

import anyio
import pytest
from tests.support.transports import (
    FakeTransport,
    LoopTime,
    ScriptedTransport,
    one_after_the_other,
    outcome_of,
    settled,
)

from indusagi.interop.protocol_bridge.client.handlers import Handlers
from indusagi.interop.protocol_bridge.client.session import INPUT_ROUNDS, ClientSession, ServerFacts
from indusagi.interop.protocol_bridge.contract import FaultDetail, ServerLimits, StdioServerConfig
from indusagi.interop.protocol_bridge.rpc.connection import (
    UNSUPPORTED_VERSION,
    ConnectionClosedError,
    InvalidResponseError,
    RequestOptions,
    RequestTimeoutError,
    RpcError,
    VersionMismatchError,
)
from indusagi.interop.protocol_bridge.rpc.mcp_headers import LEGACY_VERSIONS, MODERN_VERSIONS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.transports import Reply, Script

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.session import Era
    from indusagi.interop.protocol_bridge.rpc.transport import Transport

pytestmark = pytest.mark.anyio

NEWEST = MODERN_VERSIONS[-1]
INFO: JsonObject = {"name": "indus-protocol-bridge", "version": "0.1.0"}
LIMITS = ServerLimits()
MODERN: JsonObject = {
    "supportedVersions": ["2099-01-01", NEWEST],
    "capabilities": {"tools": {"listChanged": True}, "logging": None},
    "serverInfo": {"name": "a"},
}
LEGACY: JsonObject = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
STRANGE: JsonObject = {"supportedVersions": ["2099-01-01"]}
TOO_OLD: JsonObject = {"protocolVersion": "1999-01-01"}
UNKNOWN_METHOD = RpcError(-32601, "no such method")


def unsupported(*versions: JsonValue) -> RpcError:
    return RpcError(UNSUPPORTED_VERSION, "not spoken", {"supported": list(versions)})


def make_session(transport: Transport, limits: ServerLimits = LIMITS, **handlers: object) -> ClientSession:
    return ClientSession(transport, StdioServerConfig("a", "a", limits=limits), Handlers(**handlers))  # pyright: ignore[reportArgumentType]


async def connected(
    script: dict[str, Script], era: Era = "modern", *, limits: ServerLimits = LIMITS, **handlers: object
) -> tuple[ScriptedTransport, ClientSession]:
    """Connect to a scripted server of that era."""
    transport = ScriptedTransport({"server/discover": MODERN, "initialize": LEGACY, **script})
    session = make_session(transport, limits, **handlers)
    await session.connect(era)
    return transport, session


async def call_tool(
    session: ClientSession, arguments: JsonObject, on_progress: Callable[[JsonObject], None] | None = None
) -> JsonObject:
    return await session.call("tools/call", {"name": "t", "arguments": arguments}, on_progress)


def params_of(frame: JsonObject) -> JsonObject:
    return cast("JsonObject", frame["params"])


def meta_of(frame: JsonObject) -> JsonObject:
    return cast("JsonObject", params_of(frame)["_meta"])


# -- handshake ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("discover", "initialize", "era", "version"),
    [
        pytest.param(MODERN, UNKNOWN_METHOD, "modern", NEWEST, id="modern"),
        pytest.param(MODERN, LEGACY, "modern", NEWEST, id="both"),
        pytest.param(UNKNOWN_METHOD, LEGACY, "legacy", "2025-06-18", id="legacy refuses"),
        pytest.param(None, LEGACY, "legacy", "2025-06-18", id="legacy is silent"),
        pytest.param(STRANGE, LEGACY, "legacy", "2025-06-18", id="no common modern version"),
        pytest.param({}, LEGACY, "legacy", "2025-06-18", id="no versions at all"),
        pytest.param(unsupported("2099-01-01"), LEGACY, "legacy", "2025-06-18", id="refuses our version"),
        pytest.param(
            one_after_the_other(unsupported(NEWEST, 5), MODERN),
            UNKNOWN_METHOD,
            "modern",
            NEWEST,
            id="names a version we speak",
        ),
        pytest.param(one_after_the_other(None, MODERN), unsupported(NEWEST), "modern", NEWEST, id="locked modern"),
    ],
)
async def test_negotiation_finds_the_era_of_the_server(
    monkeypatch: pytest.MonkeyPatch, discover: Script, initialize: Script, era: Era, version: str
) -> None:
    transport, time = (
        ScriptedTransport({"server/discover": discover, "initialize": initialize}),
        LoopTime(monkeypatch),
    )
    session = make_session(transport)
    async with asyncio.TaskGroup() as tasks:
        meeting = tasks.create_task(session.connect())
        await time.passes(LIMITS.probe_s)
        facts = await meeting
    assert session.facts is facts
    assert (facts.era, facts.version) == (era, version)
    assert facts.result == (MODERN if era == "modern" else LEGACY)
    told = transport.heard("notifications/initialized")
    assert len(told) == (1 if era == "legacy" else 0)
    assert transport.heard("notifications/cancelled") == []


@pytest.mark.parametrize("version", LEGACY_VERSIONS)
async def test_every_legacy_version_is_supported(version: str) -> None:
    transport = ScriptedTransport({"initialize": {"protocolVersion": version}})
    facts = await make_session(transport).connect("legacy")
    assert (facts.era, facts.version) == ("legacy", version)
    assert [frame["method"] for frame in transport.sent] == ["initialize", "notifications/initialized"]
    assert params_of(transport.sent[0]) == {
        "protocolVersion": LEGACY_VERSIONS[-1],
        "capabilities": {},
        "clientInfo": INFO,
    }


async def test_modern_response_needs_no_initialize() -> None:
    transport = ScriptedTransport({"server/discover": MODERN, "initialize": LEGACY})
    await make_session(transport).connect()
    assert [frame["method"] for frame in transport.sent] == ["server/discover"]


async def test_slow_modern_server_is_awaited_after_it_refuses_initialize(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = ScriptedTransport({"server/discover": None}), LoopTime(monkeypatch)
    session = make_session(transport)
    async with asyncio.TaskGroup() as tasks:
        meeting = tasks.create_task(session.connect())
        await time.passes(LIMITS.probe_s - 0.5)
        assert transport.heard("initialize") == []
        await time.passes(0.5)
        await transport.hears("initialize")
        await settled()
        assert not meeting.done()
        transport.answer(transport.heard("server/discover")[0]["id"], MODERN)
        assert (await meeting).era == "modern"


async def test_first_good_response_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    session = make_session(transport)
    async with asyncio.TaskGroup() as tasks:
        meeting = tasks.create_task(session.connect())
        await time.passes(LIMITS.probe_s)
        (initialize,) = await transport.hears("initialize")
        transport.answer(initialize["id"], LEGACY)
        assert (await meeting).era == "legacy"
        transport.answer(transport.heard("server/discover")[0]["id"], MODERN)
    assert session.facts is not None
    assert session.facts.era == "legacy"
    assert len(transport.heard("notifications/initialized")) == 1


@pytest.mark.parametrize("attempt", range(8))
async def test_modern_response_wins_over_a_simultaneous_legacy_one(
    monkeypatch: pytest.MonkeyPatch, attempt: int
) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    session = make_session(transport)
    async with asyncio.TaskGroup() as tasks:
        meeting = tasks.create_task(session.connect())
        await time.passes(LIMITS.probe_s)
        await transport.hears("initialize")
        transport.say([{"id": 2, "result": LEGACY}, {"id": 1, "result": MODERN}])
        assert (await meeting).era == "modern"
    assert transport.heard("notifications/initialized") == []


@pytest.mark.parametrize(
    ("discover", "initialize", "kind", "said"),
    [
        (UNKNOWN_METHOD, RpcError(-1, "go away"), RpcError, "go away"),
        (RpcError(-2, "first"), RpcError(-1, "second"), RpcError, "second"),
        (UNKNOWN_METHOD, TOO_OLD, VersionMismatchError, "it speaks 1999-01-01; we speak 2024-10-07,"),
        (UNKNOWN_METHOD, {}, VersionMismatchError, "it speaks None; we speak"),
        (STRANGE, UNKNOWN_METHOD, VersionMismatchError, "it speaks 2099-01-01; we speak"),
        ({"supportedVersions": 5}, UNKNOWN_METHOD, VersionMismatchError, "it speaks no version at all"),
        (unsupported("2099-01-01"), UNKNOWN_METHOD, RpcError, "not spoken"),
        (RpcError(UNSUPPORTED_VERSION, "bare"), UNKNOWN_METHOD, RpcError, "bare"),
        (RpcError(UNSUPPORTED_VERSION, "odd", {"supported": 5}), TOO_OLD, RpcError, "odd"),
        (unsupported(NEWEST), UNKNOWN_METHOD, RpcError, "not spoken"),
        (RpcError(-1, "no", {"supported": [NEWEST]}), UNKNOWN_METHOD, RpcError, "no such method"),
        (STRANGE, unsupported("2099-01-01"), VersionMismatchError, "it speaks 2099-01-01"),
    ],
)
async def test_r23_a_server_that_cannot_be_met_says_most_usefully_why(
    discover: Reply, initialize: Reply, kind: type[Exception], said: str
) -> None:
    transport = ScriptedTransport({"server/discover": discover, "initialize": initialize})
    session = make_session(transport)
    with anyio.fail_after(60), pytest.raises(kind) as caught:
        await session.connect()
    assert said in str(caught.value)
    assert session.facts is None
    assert transport.heard("notifications/initialized") == []


async def test_final_refusal_sends_no_initialize() -> None:
    transport = ScriptedTransport({"server/discover": RpcError(-1, "log in first"), "initialize": LEGACY})
    transport.details[1] = FaultDetail(reason="auth", http_status=401)
    with pytest.raises(RpcError, match="log in first"):
        await make_session(transport).connect()
    assert transport.heard("initialize") == []


@pytest.mark.parametrize("when", ["server/discover", "initialize"])
async def test_transport_end_during_negotiation_is_connection_closed(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    session = make_session(transport)
    async with asyncio.TaskGroup() as tasks:

        async def meet() -> None:
            with pytest.raises(ConnectionClosedError, match="went away"):
                await session.connect()

        tasks.create_task(meet())
        if when == "initialize":
            await time.passes(LIMITS.probe_s)
        await transport.hears(when)
        transport.end()
    assert session.connection.ended.result().message == "went away"


async def test_cancelled_negotiation_leaves_nothing_and_sends_no_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, time = FakeTransport(), LoopTime(monkeypatch)
    session = make_session(transport)
    async with asyncio.TaskGroup() as tasks:
        meeting = tasks.create_task(session.connect())
        await time.passes(LIMITS.probe_s)
        await transport.hears("initialize")
        meeting.cancel()
    assert [frame["method"] for frame in transport.sent] == ["server/discover", "initialize"]
    transport.answer(1, MODERN)
    transport.answer(2, LEGACY)


# -- stamps -----------------------------------------------------------------------------------


async def test_modern_requests_carry_meta() -> None:
    async def answer(params: JsonObject) -> JsonObject:
        return {}

    transport, session = await connected({"a": {}, "b": {}, "c": {}}, elicit=answer, roots=answer)
    await session.request("a", None, RequestOptions(9))
    await session.request("b", {"x": 1, "_meta": {"k": "v"}}, RequestOptions(9, 9))
    await session.request("c", {"_meta": 5}, RequestOptions(9, request_id="own"))
    stamp: JsonObject = {
        "io.modelcontextprotocol/protocolVersion": NEWEST,
        "io.modelcontextprotocol/clientInfo": INFO,
        "io.modelcontextprotocol/clientCapabilities": {
            "elicitation": {"form": {}, "url": {}},
            "roots": {"listChanged": True},
        },
    }
    discover, first, second, third = transport.sent
    assert params_of(discover) == {"_meta": stamp}
    assert params_of(first) == {"_meta": stamp}
    assert params_of(second)["x"] == 1
    assert meta_of(second) == {"k": "v", **stamp, "progressToken": second["id"]}
    assert params_of(third) == {"_meta": stamp}
    assert third["id"] == "own"


async def test_legacy_requests_carry_no_meta() -> None:
    transport, session = await connected({"a": {}, "b": {}}, "legacy")
    await session.request("a", None, RequestOptions(9))
    await session.request("b", {"x": 1}, RequestOptions(9))
    assert "params" not in transport.heard("a")[0]
    assert params_of(transport.heard("b")[0]) == {"x": 1}


async def test_requests_before_the_handshake_carry_no_meta() -> None:
    transport = ScriptedTransport({"a": {"b": 1}})
    assert await make_session(transport).request("a", {"x": 1}, RequestOptions(9)) == {"b": 1}
    assert params_of(transport.sent[0]) == {"x": 1}


# -- facts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("capabilities", "tools", "changes"),
    [
        ({"tools": {"listChanged": True}}, True, True),
        ({"tools": {"listChanged": False}}, True, False),
        ({"tools": {"listChanged": "yes"}}, True, False),
        ({"tools": {}}, True, False),
        ({"tools": None}, False, False),
        ({"tools": True}, False, False),
        ({"prompts": {}}, False, False),
        ({}, False, False),
        (None, False, False),
        ([], False, False),
    ],
)
def test_offers_follows_the_declared_capabilities(capabilities: JsonValue, tools: bool, changes: bool) -> None:
    facts = ServerFacts("modern", NEWEST, {"capabilities": capabilities})
    assert (facts.offers("tools"), facts.offers("tools", "listChanged")) == (tools, changes)


def test_server_without_capabilities_offers_nothing() -> None:
    assert ServerFacts("legacy", "2025-06-18").capabilities == {}


# -- lists ------------------------------------------------------------------------------------


def page(*rows: JsonValue, cursor: JsonValue = None) -> JsonObject:
    return {"tools": list(rows), "nextCursor": cursor}


async def test_lists_are_read_page_by_page() -> None:
    answers = one_after_the_other(page(1, 2, cursor="x"), page(cursor="y"), page(None))
    transport, session = await connected({"tools/list": answers}, "legacy")
    assert await session.read_pages("tools/list", "tools") == [1, 2, None]
    asked = [params_of(frame) for frame in transport.heard("tools/list")]
    assert asked == [{}, {"cursor": "x"}, {"cursor": "y"}]
    assert session.notes == []


@pytest.mark.parametrize("cursor", [None, "", 5, [], {}])
async def test_invalid_cursor_ends_the_list(cursor: JsonValue) -> None:
    _, session = await connected({"tools/list": page(1, cursor=cursor)})
    assert await session.read_pages("tools/list", "tools") == [1]
    assert session.notes == []


async def test_r21_pages_that_repeat_are_read_once_and_noted() -> None:
    answers = one_after_the_other(page(1, cursor="x"), page(2, cursor="y"), page(3, cursor="x"), page(4))
    _, session = await connected({"tools/list": answers})
    assert await session.read_pages("tools/list", "tools") == [1, 2, 3]
    assert session.notes == ["tools/list repeats its pages; the rest was left out"]


async def test_r21_a_list_without_end_is_capped_and_noted() -> None:
    asked: list[JsonObject] = []

    def endless(params: JsonObject) -> Reply:
        asked.append(params)
        return page(len(asked), cursor=str(len(asked)))

    _, session = await connected({"tools/list": endless}, limits=ServerLimits(pages=3))
    assert await session.read_pages("tools/list", "tools") == [1, 2, 3]
    assert session.notes == ["tools/list has more than 3 pages; the rest was left out"]


async def test_first_hundred_notes_are_kept() -> None:
    _, session = await connected({})
    for number in (*range(5_000), *range(5_000)):
        session.note(f"oddity {number}")
    assert session.notes[:100] == [f"oddity {number}" for number in range(100)]
    assert session.notes[100:] == ["there is more of this kind, which is not listed"]


async def test_r21_a_list_that_is_read_again_is_noted_once() -> None:
    _, session = await connected({"tools/list": page(1, cursor="x")})
    await session.read_pages("tools/list", "tools")
    await session.read_pages("tools/list", "tools")
    assert session.notes == ["tools/list repeats its pages; the rest was left out"]


@pytest.mark.parametrize("rows", [None, {}, "odd", 5])
async def test_r20_a_page_that_is_no_list_is_a_bad_answer(rows: JsonValue) -> None:
    _, session = await connected({"tools/list": {"tools": rows}})
    with pytest.raises(InvalidResponseError, match="tools/list answered without a list of tools"):
        await session.read_pages("tools/list", "tools")


async def test_all_pages_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, session = await connected({"tools/list": None}, limits=ServerLimits(list_s=60))
    time = LoopTime(monkeypatch)
    async with asyncio.TaskGroup() as tasks:

        async def read() -> JsonObject:
            return {"rows": list(await session.read_pages("tools/list", "tools"))}

        reading = tasks.create_task(outcome_of(read()))
        for n in range(2):
            sent = (await transport.hears("tools/list", n + 1))[n]
            await time.passes(25)
            transport.answer(sent["id"], page(n, cursor=str(n)))
        await transport.hears("tools/list", 3)
        assert not reading.done()
        await time.passes(15)
        failure = await reading
    assert isinstance(failure, RequestTimeoutError)
    assert str(failure) == "tools/list was not answered within 60 s in all"
    (cancelled,) = transport.heard("notifications/cancelled")
    assert params_of(cancelled)["requestId"] == transport.heard("tools/list")[2]["id"]


# -- calls and rounds of input ------------------------------------------------------------------

DONE: JsonObject = {"resultType": "complete", "content": []}


def asking(state: JsonValue = None, **questions: JsonValue) -> JsonObject:
    answer: JsonObject = {"resultType": "input_required", "inputRequests": questions}
    return answer if state is None else {**answer, "requestState": state}


def question(method: str, **params: JsonValue) -> JsonObject:
    return {"method": method, "params": params}


@pytest.mark.parametrize("answer", [DONE, {"content": []}, {"content": [], "resultType": None}])
async def test_call_is_one_request_and_its_result(answer: JsonObject) -> None:
    transport, session = await connected({"tools/call": answer}, "legacy")
    assert await call_tool(session, {"a": None}) is answer
    (sent,) = transport.heard("tools/call")
    assert params_of(sent) == {"name": "t", "arguments": {"a": None}, "_meta": {"progressToken": sent["id"]}}


async def test_progress_of_a_call_is_reported() -> None:
    heard: list[JsonObject] = []
    transport, session = await connected({"tools/call": None})
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(call_tool(session, {}, heard.append))
        (sent,) = await transport.hears("tools/call")
        token = meta_of(sent)["progressToken"]
        notice: JsonObject = {"progressToken": token, "progress": 1}
        transport.say({"method": "notifications/progress", "params": notice})
        transport.answer(sent["id"], DONE)
        assert await call == DONE
    assert heard == [{"progressToken": token, "progress": 1}]


async def test_input_is_provided_and_the_request_state_returned_verbatim() -> None:
    asked: list[tuple[str, JsonObject]] = []

    def answering(name: str) -> Callable[[JsonObject], object]:
        async def answer(params: JsonObject) -> JsonObject:
            asked.append((name, params))
            return {"by": name}

        return answer

    state: JsonObject = {"opaque": [None, 1]}
    rounds = one_after_the_other(
        asking(state, q1=question("elicitation/create", message="?"), q2=question("sampling/createMessage")),
        asking(q3={"method": "roots/list", "params": 5}),
        DONE,
    )
    transport, session = await connected(
        {"tools/call": rounds}, elicit=answering("elicit"), sample=answering("sample"), roots=answering("roots")
    )
    assert await call_tool(session, {"a": 1}) == DONE
    assert asked == [("elicit", {"message": "?"}), ("sample", {}), ("roots", {})]
    first, second, third = [params_of(frame) for frame in transport.heard("tools/call")]
    assert "inputResponses" not in first
    assert second["inputResponses"] == {"q1": {"by": "elicit"}, "q2": {"by": "sample"}}
    assert second["requestState"] == state
    assert third["inputResponses"] == {"q3": {"by": "roots"}}
    assert "requestState" not in third
    for params in (first, second, third):
        assert (params["name"], params["arguments"]) == ("t", {"a": 1})
    assert len({str(frame["id"]) for frame in transport.heard("tools/call")}) == 3


@pytest.mark.parametrize("asked", [question("elicitation/create"), question("tools/call"), {}, None, "text"])
async def test_input_request_without_handler_ends_the_call(asked: JsonValue) -> None:
    transport, session = await connected({"tools/call": asking(q=asked)})
    with pytest.raises(RpcError, match="is not allowed here") as caught:
        await call_tool(session, {})
    assert caught.value.code == -32601
    assert len(transport.heard("tools/call")) == 1


@pytest.mark.parametrize("questions", [None, {}, [], "odd"])
async def test_empty_input_round_is_a_pause(questions: JsonValue) -> None:
    empty: JsonObject = {"resultType": "input_required", "inputRequests": questions}
    transport, session = await connected({"tools/call": one_after_the_other({**empty, "requestState": 1}, DONE)})
    assert await call_tool(session, {}) == DONE
    again = params_of(transport.heard("tools/call")[1])
    assert (again["inputResponses"], again["requestState"]) == ({}, 1)


async def test_input_rounds_are_limited() -> None:
    async def answer(params: JsonObject) -> JsonObject:
        return {}

    transport, session = await connected({"tools/call": asking(q=question("roots/list"))}, roots=answer)
    with pytest.raises(InvalidResponseError, match=f"asked for input more than {INPUT_ROUNDS} times"):
        await call_tool(session, {})
    assert len(transport.heard("tools/call")) == INPUT_ROUNDS + 1


async def test_handler_runs_once_per_input_round() -> None:
    asked: list[JsonObject] = []

    async def answer(params: JsonObject) -> JsonObject:
        asked.append(params)
        return {}

    _, session = await connected({"tools/call": asking(q=question("roots/list"))}, roots=answer)
    with pytest.raises(InvalidResponseError):
        await call_tool(session, {})
    assert len(asked) == INPUT_ROUNDS


async def test_unknown_result_type_is_an_invalid_response() -> None:
    _, session = await connected({"tools/call": {"resultType": "vendor/odd"}})
    with pytest.raises(InvalidResponseError, match="tools/call answered with a result of type 'vendor/odd'"):
        await call_tool(session, {})


async def test_all_input_rounds_share_one_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(params: JsonObject) -> JsonObject:
        await asyncio.sleep(math.inf)
        return {}

    transport, session = await connected({"tools/call": asking(q=question("roots/list"))}, roots=answer)
    time = LoopTime(monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(outcome_of(call_tool(session, {})))
        await transport.hears("tools/call")
        await time.passes(LIMITS.call_hard_s)
        failure = await call
    assert isinstance(failure, RequestTimeoutError)
    assert str(failure) == "tools/call was not answered within 600 s in all"


# -- changes and what a server pushes -----------------------------------------------------------


async def test_subscription_has_no_deadline_and_its_own_id(monkeypatch: pytest.MonkeyPatch) -> None:
    transport, session = await connected({"subscriptions/listen": None})
    time = LoopTime(monkeypatch)
    async with asyncio.TaskGroup() as tasks:
        listening = [
            tasks.create_task(session.listen(toolsListChanged=True, promptsListChanged=False)) for _ in range(2)
        ]
        sent = await transport.hears("subscriptions/listen", 2)
        await time.passes(10**6)
        assert not any(task.done() for task in listening)
        assert len({str(frame["id"]) for frame in sent}) == 2
        for frame in sent:
            assert str(frame["id"]).startswith("listen-")
            params = params_of(frame)
            wanted = {"toolsListChanged": True, "promptsListChanged": False}
            assert params["notifications"] == wanted
            assert "io.modelcontextprotocol/protocolVersion" in meta_of(frame)
            transport.answer(frame["id"], {})
    assert [task.result() for task in listening] == [None, None]


async def test_notifications_reach_their_listeners() -> None:
    heard: list[str] = []

    def hear(method: str, params: JsonObject) -> None:
        heard.append(method)

    transport, session = await connected({}, on_notification=hear)
    transport.say({"method": "notifications/tools/list_changed"})
    changes: list[object] = []
    session.on_list_changed = changes.append
    transport.say({"method": "notifications/tools/list_changed"}, {"method": "notifications/message"})
    assert changes == [("tool",)]
    assert heard == ["notifications/tools/list_changed"] * 2 + ["notifications/message"]


async def test_other_notifications_without_listener_are_ignored() -> None:
    transport, session = await connected({})
    transport.say({"method": "notifications/message"})
    assert session.connection.invalid_frames == 0


async def test_legacy_server_requests_reach_their_handler() -> None:
    async def roots(params: JsonObject) -> JsonObject:
        return {"roots": [], "seen": params}

    transport, session = await connected({}, "legacy", roots=roots)
    transport.say({"id": "a", "method": "roots/list", "params": {"x": 1}})
    transport.say({"id": "b", "method": "sampling/createMessage"})
    await settled()
    first, second = transport.replies()
    assert first["result"] == {"roots": [], "seen": {"x": 1}}
    refusal: JsonValue = {"code": -32601, "message": "sampling/createMessage is not allowed here"}
    assert second["error"] == refusal
    await session.connection.close()


async def test_declared_capabilities_follow_the_handlers() -> None:
    async def answer(params: JsonObject) -> JsonObject:
        return {}

    transport, _ = await connected({}, "legacy", elicit=answer, sample=answer, roots=answer)
    assert params_of(transport.sent[0])["capabilities"] == {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {},
        "roots": {"listChanged": True},
    }
