"""A relay under servers that break, clients that vanish, and whoever ends it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from tests.support.host_tools import Bench
from tests.support.http_behaviours import Modern, OldSse
from tests.support.http_peer import http_server
from tests.support.relays import CHILD, HELLO, front_of, http_fronts, stamped
from tests.support.scripts import ROOT
from tests.support.servers import fault, honest
from tests.support.waiting import LIMIT_S, is_alive, until

from indusagi.interop import (
    HttpSettings,
    SseServerConfig,
    StdioServerConfig,
    StreamableHttpServerConfig,
    Supervision,
    create_provider_host,
    create_relay_host,
    linked_pair,
)
from indusagi.interop.protocol_bridge.host.dispatcher import HostLimits

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.http_peer import Exchange

TOKEN = "t" * 64


def starts(diary: Path) -> list[int]:
    """List the processes of a server that keeps a diary."""
    lines = diary.read_text("utf-8").splitlines() if diary.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("start ")]


# -- servers that break ---------------------------------------------------------------------


async def test_a_server_that_dies_is_named_and_started_again_by_the_next_call() -> None:
    async with front_of(create_relay_host(fault("dies"))) as front:
        await front.hello()
        lost = await front.call("fault", 1)
        assert "server 'dies'" in lost["error"]["message"]
        assert "SIGKILL" in lost["error"]["message"]
        assert (await front.ask("ping", None, 2))["result"] == {}


REFUSES_ONCE = """
import json, os, sys
state = sys.argv[1]
number = os.path.getsize(state) if os.path.exists(state) else 0
open(state, "a").write("x")
for line in sys.stdin:
    frame = json.loads(line)
    if "id" not in frame:
        continue
    answer = {"result": {"content": [], "start": number}}
    if frame["method"] == "initialize":
        version = frame["params"]["protocolVersion"]
        info = {"name": "s", "version": "1"}
        answer = {"result": {"protocolVersion": version, "capabilities": {}, "serverInfo": info}}
        if number == 1:
            answer = {"error": {"code": -32000, "message": "out of licences"}}
    elif number == 0 and frame["method"] == "tools/call":
        os._exit(1)
    print(json.dumps({"jsonrpc": "2.0", "id": frame["id"], **answer}), flush=True)
"""


@pytest.mark.process
async def test_a_new_connection_that_refuses_the_handshake_is_not_used(tmp_path: Path) -> None:
    rules = Supervision(first_s=0.01, jitter=0.0, factor=1.0, failures=100)
    config = StdioServerConfig("s", sys.executable, ["-I", "-S", "-c", REFUSES_ONCE, str(tmp_path / "state")])
    async with front_of(create_relay_host(config, supervision=rules)) as front:
        await front.hello()
        assert "exited with code 1" in (await front.call("a", 1))["error"]["message"]
        refused = await front.call("a", 2)
        assert "out of licences" in refused["error"]["message"]

        async def works() -> bool:
            answer = await front.call("a", 3)
            return bool(answer.get("result", {}).get("start") == 2)

        await until(works)


async def test_a_server_that_dies_again_and_again_is_not_started_at_every_call(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    async with front_of(create_relay_host(fault("dies", "--log", diary))) as front:
        await front.hello()
        answers = [await front.call("fault", number) for number in range(1, 20)]
        assert all("server 'dies'" in answer["error"]["message"] for answer in answers)
        assert "not started again before" in answers[-1]["error"]["message"]
        assert len(starts(diary)) == 2


@pytest.mark.process
async def test_after_the_pause_it_is_started_again(tmp_path: Path) -> None:
    rules = Supervision(first_s=0.01, jitter=0.0, factor=1.0, failures=100)
    diary = tmp_path / "diary"
    host = create_relay_host(fault("dies", "--log", diary), supervision=rules)
    async with front_of(host) as front:
        await front.hello()
        number = 0

        async def risen() -> bool:
            nonlocal number
            number += 1
            await front.call("fault", number)
            return len(starts(diary)) >= 5

        await until(risen)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_an_absent_command_is_reported_to_the_client(era: str) -> None:
    host = create_relay_host(StdioServerConfig("nothing", "/nowhere/at-all"))
    async with front_of(host) as front:
        method, params = ("initialize", HELLO) if era == "legacy" else ("tools/list", stamped())
        refused = await front.ask(method, params)
        assert "server 'nothing'" in refused["error"]["message"]
        assert "was not found" in refused["error"]["message"]


@pytest.mark.process
async def test_a_server_that_exits_at_an_unknown_method_still_serves_older_revisions(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with http_fronts(create_relay_host(fault("dies-on-unknown"))) as [front]:
        lost = await front.ask("server/discover", stamped(), 1)
        # What it writes to its standard error is for whoever runs the relay.
        assert "unexpected message" not in json.dumps(lost)
        assert "unexpected message" in caplog.text
        assert "server 'dies-on-unknown'" in lost["error"]["message"]
        await front.hello()
        assert (await front.ask("tools/list", None, 3))["result"]["tools"]
        # Its end at the first question is not held against whoever asks in the old way.
        for number in range(4, 8):
            assert "error" in await front.ask("server/discover", stamped(), number)
            del front.session["mcp-session-id"]
            await front.hello()


async def test_noise_of_a_server_is_not_handed_on() -> None:
    async with front_of(create_relay_host(fault("garbage", 50))) as front:
        await front.hello()
        assert (await front.ask("ping", None, 2))["result"] == {}
        assert all(frame["jsonrpc"] == "2.0" for frame in front.frames())


# -- clients that leave ---------------------------------------------------------------------


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_r52_a_client_that_breaks_off_its_call_has_it_cancelled_at_the_server(era: str, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    async with http_fronts(create_relay_host(honest("--era", era, "--log", diary))) as [front]:
        slow: Any = {"name": "slow", "arguments": {"seconds": 50}}
        if era == "legacy":
            await front.hello()
        else:
            slow = stamped(slow)
        front.say("tools/call", slow, 5)
        await until(lambda: diary.exists() and "heard tools/call" in diary.read_text("utf-8"))
        front.scopes[5].cancel()
        await until(lambda: "\ncancelled " in diary.read_text("utf-8"))


async def test_a_hanging_call_is_cancelled_by_its_client(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    async with http_fronts(create_relay_host(honest("--log", diary))) as [front]:
        await front.hello()
        front.say("tools/call", {"name": "slow", "arguments": {"seconds": 50}}, 5)
        await until(lambda: "heard tools/call 5" in diary.read_text("utf-8"))
        front.say("notifications/cancelled", {"requestId": 5, "reason": "enough"})
        await until(lambda: "cancelled 5" in diary.read_text("utf-8"))
        ended = await front.wait_for(lambda frame: frame.get("id") == 5)
        assert ended["error"]["code"] == -32800


async def test_a_session_that_ends_takes_its_process_with_it(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    host = create_relay_host(honest("--log", diary))
    async with http_fronts(host, 2) as fronts:
        for front in fronts:
            await front.hello()
        first, second = starts(diary)
        front = fronts[0]
        gone = await front._client.delete(front._url, headers=front.session)
        assert gone.status_code == 200
        await until(lambda: not is_alive(first))
        assert is_alive(second)
        assert len(host.pool) == 1
    assert not is_alive(second)


async def test_an_idle_session_ends_and_its_process_too(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    host = create_relay_host(honest("--log", diary))
    async with http_fronts(host, idle_s=0.1) as [front]:
        await front.hello()
        await until(lambda: not len(host.pool))
        assert not is_alive(starts(diary)[0])


@pytest.mark.process
async def test_r52_a_hundred_sessions_at_once_are_refused_with_a_message(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    host = create_relay_host(honest("--log", diary))
    async with http_fronts(host, 20, sessions=4) as fronts:
        for front in fronts:
            front.say("initialize", HELLO, 1)
        for front in fronts:
            await front.wait_for(lambda frame: "error" in frame or "result" in frame)
        assert sorted(status for front in fronts for status in front.statuses) == [*[200] * 4, *[503] * 16]
        assert len(starts(diary)) == 4


@pytest.mark.process
async def test_clients_that_come_and_go_leave_nothing(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    host = create_relay_host(honest("--log", diary))
    for _ in range(5):
        async with front_of(host) as front:
            await front.hello()
            front.say("tools/call", {"name": "slow", "arguments": {"seconds": 50}}, 5)
    assert len(starts(diary)) == 5
    assert not any(is_alive(pid) for pid in starts(diary))
    assert not len(host.pool)


async def test_messages_to_an_ended_relay_start_no_server(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    host = create_relay_host(honest("--log", diary))
    ours, theirs = linked_pair()
    heard: list[Any] = []
    ends: list[object] = []
    ours.attach(heard.append, ends.append)
    running = await host.connect(theirs)
    await running.cancel()
    await until(lambda: bool(ends))
    ours.send({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}})
    await asyncio.sleep(0)
    assert heard == []
    assert not len(host.pool)
    assert not starts(diary)


async def test_many_calls_at_once_get_their_own_answers() -> None:
    async with front_of(create_relay_host(honest())) as front:
        await front.hello()
        for number in range(300):
            arguments = {"text": f"call {number}"}
            front.say("tools/call", {"name": "echo", "arguments": arguments}, number)
        await until(lambda: len(front.received) == 301)
        for frame in front.frames()[1:]:
            assert frame["result"]["content"][0]["text"] == f"call {frame['id']}"


# -- the end --------------------------------------------------------------------------------


@pytest.mark.process
@pytest.mark.parametrize("how", ["honest", "stubborn"])
@pytest.mark.parametrize("ending", ["SIGTERM", "end of input"])
async def test_a_relay_that_is_ended_ends_its_server(how: str, ending: str, tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    log = ("--log", str(diary))
    config = honest(*log) if how == "honest" else fault("stubborn", "TERM", *log)
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        str(CHILD),
        config.command,
        *config.args,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert child.stdin is not None
    assert child.stdout is not None
    said = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    child.stdin.write(json.dumps(said).encode() + b"\n")
    assert b"result" in await child.stdout.readline()
    [server] = starts(diary)
    if ending == "SIGTERM":
        os.kill(child.pid, signal.SIGTERM)
    else:
        child.stdin.close()
    with anyio.fail_after(LIMIT_S):
        assert await child.wait() == 0
    assert not is_alive(server)
    child.stdin.close()
    child._transport.close()  # type: ignore[attr-defined] — else its pipes stay open until it is collected


async def test_a_call_that_runs_when_the_host_is_stopped_may_finish(tmp_path: Path) -> None:
    diary = tmp_path / "diary"
    host = create_relay_host(honest("--log", diary), limits=HostLimits(stop_s=LIMIT_S))
    async with http_fronts(host, stay=True) as [front]:
        await front.hello()
        front.say("tools/call", {"name": "slow", "arguments": {"seconds": 0.3}}, 5)
        await until(lambda: "heard tools/call 5" in diary.read_text("utf-8"))
    assert "result" in await front.wait_for(lambda frame: frame.get("id") == 5)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": f"Bearer {TOKEN}", "host": "evil.com"}, 421),
        ({"authorization": f"Bearer {TOKEN}", "origin": "http://evil.com"}, 403),
    ],
)
async def test_r51_an_unauthorized_request_starts_no_server(
    headers: dict[str, str], status: int, tmp_path: Path
) -> None:
    diary = tmp_path / "diary"
    host = create_relay_host(honest("--log", diary))
    async with http_fronts(host, 1, without_token=False, tokens=[TOKEN]) as [front]:
        front.session |= headers
        front.say("initialize", HELLO, 1)
        front.say("tools/list", stamped(), 2)
        await until(lambda: len(front.statuses) == 2)
        assert front.statuses == [status, status]
    assert not starts(diary)


# -- servers behind an address --------------------------------------------------------------


async def test_c27_the_token_of_the_front_never_goes_to_the_server() -> None:
    async def answer(exchange: Exchange) -> None:
        request = exchange.request
        if request.is_a("GET") or request.is_a("DELETE"):
            await exchange.reply(405)
        elif "id" not in request.rpc:
            await exchange.reply(202)
        else:
            result: Any = {"protocolVersion": "2025-11-25", "capabilities": {}, "x": [1, {"b": 1, "a": 2}]}
            await exchange.reply_json({"jsonrpc": "2.0", "id": request.rpc["id"], "result": result})

    async with http_server(answer) as server:
        config = StreamableHttpServerConfig("there", server.url, {"x-own": "of the config"})
        async with http_fronts(create_relay_host(config), without_token=False, tokens=[TOKEN]) as [front]:
            front.session = {"authorization": f"Bearer {TOKEN}"}
            met = await front.ask("initialize", HELLO)
            assert list(met["result"]["x"][1]) == ["b", "a"]
            front.say("notifications/initialized")
            assert (await front.ask("x/y", {"a": 1}, 2))["result"] == met["result"]
            await front.ask("tools/list", stamped(), 3)
        for request in server.requests:
            assert "authorization" not in request.headers
            assert request.headers["x-own"] == "of the config"
            assert TOKEN not in str(request.headers) + request.body.decode()
        asked = [r for r in server.requests if r.is_a("x/y")]
        assert asked[0].headers["mcp-protocol-version"] == "2025-11-25"
        listed = [r for r in server.requests if r.is_a("tools/list")]
        assert listed[0].headers["mcp-method"] == "tools/list"
        assert listed[0].headers["mcp-protocol-version"] == "2026-07-28"


async def test_a_server_of_the_old_transport_is_relayed_as_well() -> None:
    async with http_server(OldSse()) as server:
        host = create_relay_host(SseServerConfig("there", server.url))
        async with front_of(host) as front:
            await front.hello()
            listed = await front.ask("tools/list", {}, 2)
            assert [tool["name"] for tool in listed["result"]["tools"]] == ["echo", "slow", "fail"]


@pytest.mark.parametrize("channel", ["memory", "http"])
async def test_a_server_behind_an_address_is_relayed_as_well(channel: str) -> None:
    behind = create_provider_host(Bench().box)
    async with behind.serve_http(HttpSettings(without_token=True)) as serving:
        host = create_relay_host(StreamableHttpServerConfig("there", serving.url))
        async with anyio.create_task_group():
            opening: Any = front_of(host) if channel == "memory" else http_fronts(host)
            async with opening as given:
                front = given if channel == "memory" else given[0]
                await front.hello()
                listed = await front.ask("tools/list", {}, 2)
                assert "echo" in [tool["name"] for tool in listed["result"]["tools"]]
                refused = await front.ask("nobody/knows", {}, 3)
                assert refused["error"] == {"code": -32601, "message": "nobody/knows is not supported"}
                steps = {"name": "steps", "_meta": {"progressToken": "mine"}}
                *response, answer = await front.exchange("tools/call", steps, 4)
                assert json.loads(answer)["id"] == 4
                assert all(json.loads(t)["params"]["progressToken"] == "mine" for t in response)
                assert response
                modern = await front.ask("tools/list", stamped(), 5)
                assert modern["result"]["resultType"] == "complete"
                headed = {"name": "headed", "arguments": {"region": "here"}}
                if channel == "memory":
                    assert "result" in await front.ask("tools/call", stamped(headed), 6)


async def test_numbers_that_no_float_holds_pass_unchanged() -> None:
    honest = Modern()

    async def answer(exchange: Exchange) -> None:
        if not exchange.request.is_a("tools/list"):
            await honest(exchange)
            return
        identity = json.dumps(exchange.request.rpc.get("id"))
        await exchange.open_events()
        await exchange.event(
            data=f'{{"jsonrpc":"2.0","id":{identity},"result":{{"n":1e400,"m":1{"0" * 40},"z":null}}}}'
        )
        await exchange.end_events()

    async with http_server(answer) as server:
        async with front_of(create_relay_host(StreamableHttpServerConfig("there", server.url))) as front:
            *_, line = await front.exchange("tools/list", stamped(), 7)
            assert b'"result":{"n":1e400,"m":1%b,"z":null}' % (b"0" * 40) in line


async def test_an_unreachable_address_is_named() -> None:
    config = StreamableHttpServerConfig("there", "http://127.0.0.1:9/mcp")
    async with front_of(create_relay_host(config)) as front:
        refused = await front.ask("initialize", HELLO)
        assert "server 'there'" in refused["error"]["message"]
    config = SseServerConfig("there", "http://127.0.0.1:9/mcp")
    async with front_of(create_relay_host(config)) as front:
        refused = await front.ask("initialize", HELLO)
        assert "server 'there'" in refused["error"]["message"]
