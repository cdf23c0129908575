"""A relay says to each side what the other one said: the same script, directly and through it."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx2
import mcp_types as types
import pytest
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_client_server_memory_streams
from tests.support.relays import CHILD, HELLO, WAYS, direct, front_of, ordered, process, stamped
from tests.support.scripts import ROOT
from tests.support.servers import honest
from tests.support.waiting import LIMIT_S, until

from indusagi.interop import HttpSettings, StdioServerConfig, create_relay_host

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKEN = "t" * 64

Step = tuple[str, Any]

COMMON: Sequence[Step] = [
    ("tools/list", None),
    ("tools/list", {"cursor": "page-1"}),
    ("tools/list", {"cursor": "nowhere"}),
    ("tools/call", {"name": "echo", "arguments": {"text": "grüße \u2028 \U0001f600"}}),
    ("tools/call", {"arguments": {"b": 2.5, "a": 1}, "name": "add"}),
    ("tools/call", {"name": "media"}),
    ("tools/call", {"name": "fail", "arguments": {}}),
    ("tools/call", {"name": "refuse", "arguments": {}}),
    ("tools/call", {"name": "nobody", "arguments": {}}),
    ("tools/call", {"name": "big", "arguments": {"bytes": 100_000}}),
    ("tools/call", {"name": "slow", "arguments": {"seconds": 0.02, "progress": 2}, "_meta": {"progressToken": "mine"}}),
    (
        "tools/call",
        {"name": "slow", "arguments": {"seconds": 0.02, "progress": 1}, "_meta": {"x/y": [1], "progressToken": 7}},
    ),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "test://blob"}),
    ("resources/read", {"uri": "test://nowhere"}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "greet", "arguments": {"who": "Ada"}}),
    (
        "completion/complete",
        {"ref": {"type": "ref/prompt", "name": "greet"}, "argument": {"name": "who", "value": "A"}},
    ),
    ("nobody/knows", {"this": [None, True, 0.5]}),
    ("tools/call", {"name": "ask", "arguments": {"method": "elicitation/create"}}),
    ("tools/call", {"name": "ask", "arguments": {"method": "roots/list"}}),
    ("tools/call", {"name": "ask", "arguments": {"method": "sampling/createMessage"}}),
]
LEGACY: Sequence[Step] = [
    ("initialize", HELLO),
    *COMMON,
    ("ping", None),
    ("logging/setLevel", {"level": "info"}),
    ("tools/call", {"name": "mutate", "arguments": {"kind": "add"}}),
]
MODERN: Sequence[Step] = [
    ("server/discover", {}),
    *((method, params or {}) for method, params in COMMON),
    (
        "tools/call",
        {
            "name": "ask",
            "arguments": {"method": "roots/list"},
            "inputResponses": {"question": {"roots": []}},
            "requestState": "round 1",
        },
    ),
]


async def response(way: Any, config: StdioServerConfig, steps: Sequence[Step]) -> list[Any]:
    """Return all that a client receives, step by step."""
    heard: list[Any] = []
    async with way(config) as front:
        for number, (method, params) in enumerate(steps):
            identity = number if number % 2 else f"step {number}"
            frames = await front.exchange(method, params, identity)
            heard.append([method, *map(ordered, frames)])
    return heard


@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_client_receives_the_servers_messages_through_the_relay(way: str, era: str) -> None:
    config = honest("--era", "both", "--pages", 2)
    steps = LEGACY
    if era == "modern":
        steps = [(method, stamped(p, **p.get("_meta", {}))) for method, p in MODERN]
    with anyio.fail_after(LIMIT_S):
        expected = await response(direct, config, steps)
        heard = await response(WAYS[way], config, steps)
    for one, other in zip(heard, expected, strict=True):
        assert one == other
    assert sum(len(step) for step in heard) > 2 * len(steps)


@pytest.mark.process
@pytest.mark.parametrize("way", WAYS)
async def test_a_client_hears_only_its_own_era_from_a_server_of_the_other(way: str) -> None:
    """The answer of the server decides, so that a client falls back as it would without us."""
    for config, step in (
        (honest("--era", "legacy"), ("server/discover", stamped())),
        (honest("--era", "modern"), ("initialize", HELLO)),
    ):
        expected = await response(direct, config, [step])
        assert await response(WAYS[way], config, [step]) == expected


@pytest.mark.process
async def test_over_stdio_no_sdk_is_loaded() -> None:
    config = honest()
    argv = [sys.executable, str(CHILD), config.command, *config.args, "--loaded", "yes"]
    done = await anyio.to_thread.run_sync(
        lambda: subprocess.run(
            argv,
            input=b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n',
            capture_output=True,
            check=True,
            env={"PYTHONPATH": str(ROOT)},
            timeout=LIMIT_S,
        )
    )
    assert json.loads(done.stdout)["result"] == {}
    assert b"loaded []" in done.stderr


# -- clients of the SDK ---------------------------------------------------------------------


async def _elicited(_: object, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": "Ada"})


async def _sampled(_: object, __: object) -> types.CreateMessageResult:
    said = types.TextContent(type="text", text="something")
    return types.CreateMessageResult(role="assistant", content=said, model="m")


async def _rooted(_: object) -> types.ListRootsResult:
    return types.ListRootsResult(roots=[types.Root.model_validate({"uri": "file:///here"})])


async def sdk_client(stack: AsyncExitStack, way: str, config: StdioServerConfig) -> Client:
    host = create_relay_host(config)
    channel, _, mode = way.partition("-")
    if channel == "memory":
        ours, theirs = await stack.enter_async_context(create_client_server_memory_streams())
        running = await host.connect(theirs)
        stack.push_async_callback(running.cancel)
        transport: Any = _Lent(ours)
    else:
        settings = HttpSettings(tokens=[TOKEN])
        serving = await stack.enter_async_context(host.serve_http(settings))
        headers = {"authorization": f"Bearer {TOKEN}"}
        http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
        transport = streamable_http_client(serving.url, http_client=http)
    client = Client(
        transport,
        mode=cast("Any", mode),
        elicitation_callback=cast("Any", _elicited),
        sampling_callback=cast("Any", _sampled),
        list_roots_callback=cast("Any", _rooted),
    )
    return await stack.enter_async_context(client)


class _Lent:
    def __init__(self, streams: Any) -> None:
        self._streams = streams

    async def __aenter__(self) -> Any:
        return self._streams

    async def __aexit__(self, *_: object) -> None:
        return None


@pytest.mark.process
@pytest.mark.parametrize(
    ("channel", "mode", "era"),
    [
        *itertools.product(["memory", "http"], ["auto"], ["legacy", "modern", "both"]),
        *itertools.product(["memory", "http"], ["legacy"], ["legacy", "both"]),
    ],
)
async def test_a_client_of_the_sdk_finds_its_era_and_all_there_is(channel: str, mode: str, era: str) -> None:
    way = f"{channel}-{mode}"
    async with AsyncExitStack() as stack:
        client = await sdk_client(stack, way, honest("--era", era))
        modern = era != "legacy" and way.endswith("auto")
        assert client.session.protocol_version == ("2026-07-28" if modern else "2025-11-25")
        assert "echo" in [tool.name for tool in (await client.list_tools()).tools]
        for method in ("elicitation/create", "roots/list", "sampling/createMessage"):
            given = await client.call_tool("ask", {"method": method})
            assert not given.is_error, given
        assert (await client.get_prompt("greet", {"who": "Ada"})).messages
        steps: list[float] = []

        async def on_step(progress: float, total: float | None, message: str | None) -> None:
            steps.append(progress)

        slow = {"seconds": 0.02, "progress": 2}
        assert await client.call_tool("slow", slow, progress_callback=on_step)
        await until(lambda: steps == [1, 2])


async def test_a_client_of_the_sdk_hears_of_changes_over_http() -> None:
    async with AsyncExitStack() as stack:
        client = await sdk_client(stack, "http-auto", honest("--era", "modern"))
        with anyio.fail_after(LIMIT_S):
            async with client.listen(tools_list_changed=True) as listening:
                await client.call_tool("mutate", {"kind": "add"})
                assert await anext(aiter(listening)) is not None


# -- what is on the way ---------------------------------------------------------------------


@pytest.mark.process
async def test_messages_of_the_client_arrive_unchanged(tmp_path: Any) -> None:
    """Params that are absent stay absent, and numbers and texts keep the way they are written."""
    script = tmp_path / "mirror.py"
    script.write_text(
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    frame = json.loads(line)\n"
        "    if 'id' in frame:\n"
        "        said = {'jsonrpc': '2.0', 'id': frame['id'], 'result': {'line': line}}\n"
        "        print(json.dumps(said), flush=True)\n"
    )
    odd = b'{"z":1e400,"a":0.10000000000000000001,"n":12345678901234567890123,"b":"\\ud83d"}'
    async with process(sys.executable, str(CHILD), sys.executable, str(script)) as front:
        front.write(b'{"jsonrpc":"2.0","id":1,"method":"x/y"}')
        assert json.loads(await front.next_frame())["result"]["line"].strip() == (
            '{"jsonrpc":"2.0","id":1,"method":"x/y"}'
        )
        front.write(b' {"params" : %b, "id":"2", "method":"x/y","jsonrpc":"2.0"} ' % odd)
        line = json.loads(await front.next_frame())["result"]["line"]
        assert line.strip().encode().endswith(b'"params":%b}' % odd)
        for twice in (b'"params":{"a":{"b":1,"b":2}}', b'"params":{},"params":{"a":1}', b'"method":"x/z"'):
            front.write(b'{"jsonrpc":"2.0","id":3,"method":"x/y",%b}' % twice)
            refused = json.loads(await front.next_frame())
            assert (refused["id"], refused["error"]["code"]) == (None, -32700)
            assert "occurs twice" in refused["error"]["message"]


async def test_finding_w2_no_name_comes_twice_through_a_relay(tmp_path: Any) -> None:
    script = tmp_path / "twice.py"
    script.write_text(
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    if 'id' in json.loads(line):\n"
        '        print(\'{"jsonrpc":"2.0","id":1,"result":{"a":1,"a":2}}\', flush=True)\n'
    )
    async with front_of(create_relay_host(StdioServerConfig("it", sys.executable, [str(script)]))) as front:
        refused = await front.ask("x/y", {}, 1)
        assert "occurs twice" in refused["error"]["message"]


async def test_finding_f16_a_float_id_of_the_server_comes_back_to_it(tmp_path: Any) -> None:
    script = tmp_path / "asks.py"
    script.write_text(
        "import sys, json\n"
        "for line in sys.stdin:\n"
        "    frame = json.loads(line)\n"
        "    if frame.get('method') == 'x/y':\n"
        '        print(\'{"jsonrpc":"2.0","id":1.5,"method":"roots/list"}\', flush=True)\n'
        "    elif 'result' in frame:\n"
        "        print(json.dumps({'jsonrpc': '2.0', 'id': 1, 'result': {'id': frame['id']}}), flush=True)\n"
    )
    async with front_of(create_relay_host(StdioServerConfig("it", sys.executable, [str(script)]))) as front:
        front.say("x/y", {}, 1)
        assert json.loads(await front.next_frame()) == {"jsonrpc": "2.0", "id": 1.5, "method": "roots/list"}
        front.write({"jsonrpc": "2.0", "id": 1.5, "result": {"roots": []}})
        assert json.loads(await front.next_frame())["result"] == {"id": 1.5}


async def test_a_notice_of_the_client_reaches_the_server_in_its_turn(tmp_path: Any) -> None:
    diary = tmp_path / "diary"
    async with front_of(create_relay_host(honest("--log", diary))) as front:
        await front.hello()
        front.say("tools/call", {"name": "slow", "arguments": {"seconds": 30}}, 1)
        front.say("notifications/cancelled", {"requestId": 1, "reason": "enough"})
        front.say("notifications/roots/list_changed")
        await front.ask("ping", None, 2)
        await until(lambda: "cancelled 1" in diary.read_text("utf-8"))
        heard = [line for line in diary.read_text("utf-8").splitlines() if line.startswith("heard")]
        assert heard == [
            "heard initialize hello",
            "heard notifications/initialized",
            "heard tools/call 1",
            "heard notifications/cancelled",
            "heard notifications/roots/list_changed",
            "heard ping 2",
        ]
        assert not any(frame.get("id") == 1 for frame in front.frames())
