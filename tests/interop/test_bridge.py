from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from tests.support.opened import mounted
from tests.support.servers import HONEST_TOOLS, fault, hidden, honest

from indusagi.core.cancel import CancelToken
from indusagi.interop import BridgeConfig, StdioServerConfig, mount_protocol_bridge
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolCall, ToolProgress

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from indusagi.interop import MountedProtocolBridge
    from indusagi.runtime.contract import ToolOutcome

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def call(bridge: MountedProtocolBridge, name: str, arguments: JsonValue = None) -> ToolOutcome:
    return await bridge.box.runner.run(ToolCall("1", name, arguments))


async def test_tools_of_ready_servers_are_mounted_in_order() -> None:
    bad = StdioServerConfig("bad", "no-such-command")
    async with mounted(honest(id="b"), bad, honest(id="a")) as bridge:
        expected = [f"{server}__{name}" for server in ("b", "a") for name in HONEST_TOOLS]
        assert [descriptor.name for descriptor in bridge.box.descriptors()] == expected
        first = bridge.tools[0].ref
        assert (first.server, first.name) == ("b", "echo")
        assert bridge.fleet.status()["bad"].fault is not None


async def test_mounted_tool_returns_every_block() -> None:
    async with mounted(honest()) as bridge:
        outcome = await call(bridge, "honest__media")
        text, image = outcome.content[0], outcome.content[1]
        assert isinstance(text, TextContentBlock)
        assert text.extra
        assert isinstance(image, JsonContentBlock)
        assert isinstance(image.value, dict)
        assert image.value["type"] == "image"
        assert len(outcome.content) == 7
        added = await call(bridge, "honest__add", {"a": 2, "b": 3})
        assert added.structured == {"sum": 5}


async def test_fault_becomes_an_error_result() -> None:
    async with mounted(honest()) as bridge:
        assert (await call(bridge, "honest__fail")).is_error
        refused = await call(bridge, "honest__refuse")
        assert (refused.is_error, refused.details["code"]) == (True, "tool_error")
        assert refused.details["rpcCode"] == -32602
        assert "the call of 'refuse' failed" in str(refused.output)
        await bridge.fleet.tear_down()
        gone = await call(bridge, "honest__echo", {"text": "x"})
        assert (gone.is_error, gone.details["code"]) == (True, "not_connected")


async def test_tool_of_a_removed_server_reports_it() -> None:
    async with mounted(honest()) as bridge:
        await bridge.fleet.start(BridgeConfig())
        outcome = await call(bridge, "honest__echo", {"text": "x"})
        assert outcome.output == "server 'honest' is not there any more"


async def test_progress_and_cancellation_pass_the_tool_box() -> None:
    async with mounted(honest()) as bridge:
        token, heard = CancelToken(), list[ToolProgress]()

        def follow(progress: ToolProgress) -> None:
            heard.append(progress)
            token.cancel("seen enough")

        call = ToolCall("1", "honest__slow", {"seconds": 30, "progress": 3000})
        outcome = await bridge.box.runner.run(call, token, on_progress=follow)
        assert outcome.output == "honest__slow was stopped: seen enough"
        assert heard


async def test_r40_names_are_unique_accepted_everywhere_and_lead_to_the_right_tool() -> None:
    servers = [
        fault("tools", "qualifier", id="a"),
        fault("tools", "qualifier", id="a__a"),
        fault("tools", "spaces", id="my server"),
        fault("tools", "long-name", id="long"),
        fault("tools", "emoji", id="e"),
        fault("tools", "dots", id="d"),
    ]
    async with mounted(*servers) as bridge:
        names = [descriptor.name for descriptor in bridge.box.descriptors()]
        assert len(set(names)) == len(names) == 60
        assert all(len(name) <= 64 and name.replace("-", "_").isidentifier() for name in names)
        for tool in bridge.tools:
            outcome = await call(bridge, tool.tool.name)
            assert outcome.output == tool.ref.name


ONE_TOOL = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    result = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}},
        "tools/list": {"tools": [{"name": sys.argv[1], "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": sys.argv[1]}]},
    }.get(asked["method"])
    if "id" in asked:
        body = {"result": result} if result else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}), flush=True)
"""


def one_tool(server: str, tool: str) -> StdioServerConfig:
    return StdioServerConfig(server, sys.executable, ("-I", "-S", "-c", ONE_TOOL, tool))


async def test_c26_a_server_cannot_take_the_name_of_another_tool() -> None:
    # Joined, both would be called x__y__z.
    async with mounted(one_tool("x", "y__z"), one_tool("x__y", "z")) as bridge:
        first, second = (tool.tool.name for tool in bridge.tools)
        assert first == "x__y__z"
        assert second.startswith("x__y__z_")
        assert (await call(bridge, first)).output == "y__z"
        assert (await call(bridge, second)).output == "z"
        assert any(f"it is called {second!r}" in str(note) for note in bridge.notes)


@pytest.mark.parametrize("name", ["read", "bash", "r\u0435ad"])
async def test_c26_a_tool_named_like_one_of_ours_cannot_shadow_it(name: str) -> None:
    async with mounted(one_tool("evil", name)) as bridge:
        (tool,) = bridge.tools
        assert tool.tool.name.startswith("evil__")
        assert tool.tool.name.isascii()
        assert (await call(bridge, tool.tool.name)).output == name


async def test_server_without_listing_contributes_no_tools() -> None:
    async with mounted(fault("lists", "error"), honest()) as bridge:
        assert {tool.ref.server for tool in bridge.tools} == {"honest"}
        assert bridge.fleet.status()["lists"].fault is not None


async def test_omissions_and_changes_are_noted() -> None:
    async with mounted(fault("tools", "list-schema"), honest(id="x"), honest(id="x")) as bridge:
        said = [str(note) for note in bridge.notes]
        assert any("configured more than once" in note for note in said)
        assert any("its inputSchema is not an object, and it was left out" in note for note in said)


def test_descriptors_are_identical_in_every_run() -> None:
    script = """
import asyncio
from tests.support.servers import honest
from indusagi.core.json import compact_json
from indusagi.interop import BridgeConfig, mount_protocol_bridge
async def main():
    bridge = await mount_protocol_bridge(BridgeConfig([honest(id=i) for i in "cab"]))
    print(compact_json([[d.name, d.description, d.parameters] for d in bridge.box.descriptors()]))
    await bridge.fleet.tear_down()
asyncio.run(main())
"""
    printed = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(printed) == 1
    assert len(json.loads(printed.pop())) == 3 * len(HONEST_TOOLS)


def test_mounting_processes_does_not_load_the_sdk() -> None:
    script = """
import asyncio, sys
from tests.support.servers import honest
from indusagi.interop import BridgeConfig, mount_protocol_bridge
async def main():
    bridge = await mount_protocol_bridge(BridgeConfig([honest()]))
    await bridge.fleet.tear_down()
asyncio.run(main())
assert not {"mcp", "mcp_types", "pydantic", "httpx2"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)


async def test_mount_never_raises_because_of_a_server() -> None:
    bridge = await mount_protocol_bridge(
        BridgeConfig([StdioServerConfig("bad", "no-such-command"), fault("exits", 1, "x")])
    )
    assert (list(bridge.box.descriptors()), list(bridge.tools)) == ([], [])
    await bridge.fleet.tear_down()


@pytest.mark.parametrize("escape", ["\\ud800", "\\uDFFF", "a\\udc00\\ud800b"])
async def test_finding_d10_half_a_surrogate_pair_reaches_no_caller_of_the_library(escape: str) -> None:
    async with mounted(hidden(escape)) as bridge:
        call = ToolCall("1", "h__paint", {})
        outcome = await bridge.box.runner.run(call)
        endpoint = bridge.fleet.endpoint("h")
        assert endpoint is not None
        answer = await endpoint.invoke("paint", {})
        shown = [one.descriptor for one in await endpoint.list_tools()]
    told = [outcome.output, outcome.structured, dict(outcome.details), *answer.content]
    json.dumps([*told, answer.structured, answer.meta], ensure_ascii=False).encode("utf-8")
    repr([*shown, *bridge.box.descriptors()]).encode("utf-8")
    assert "t\ufffd" in str(answer.content[0]) or "ta\ufffd\ufffdb" in str(answer.content[0])
