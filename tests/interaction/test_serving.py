"""The deck as a server: what somebody else's client meets."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from mcp.client import ClientSession
from mcp.shared.exceptions import MCPError
from mcp.shared.memory import create_client_server_memory_streams
from tests.commands.helpers import configured, row, user_file
from tests.commands.serving import serving
from tests.interaction.requirements import requirement
from tests.support.host_tools import Bench
from tests.support.servers import HONEST_TOOLS, honest

from indusagi.interop import create_provider_host

if TYPE_CHECKING:
    from pathlib import Path


@requirement("interop/host/snippet", "interop/host/identity", "interop/host/dispatch")
async def test_a_box_is_served_to_a_client_of_the_sdk() -> None:
    host = create_provider_host(Bench().box())
    async with create_client_server_memory_streams() as (ours, theirs):
        running = await host.connect(theirs)
        async with ClientSession(*ours) as session:
            met = (await session.initialize()).server_info
            assert (met.name, met.version) == ("indus-provider-host", "0.1.0")
            assert "echo" in [tool.name for tool in (await session.list_tools()).tools]
            assert (await session.call_tool("fail", {})).is_error
            with pytest.raises(MCPError) as refused:
                await session.call_tool("nobody", {})
            assert refused.value.code == -32602
    await running.waiting()


@pytest.mark.process
@requirement("serve/one-server", "serve/asks-its-client")
def test_servers_are_served_as_one_and_ask_through_it(tmp_path: Path) -> None:
    configured(user_file(), {"a": row(), "b": row()})
    with serving(cwd=tmp_path) as gateway:
        gateway.greet(elicitation={"form": {}})
        expected = [f"{server}__{name}" for server in ("a", "b") for name in HONEST_TOOLS]
        assert gateway.tools()[-len(expected) :] == expected
        asked = gateway.send("tools/call", name="b__ask", arguments={"method": "elicitation/create"})
        gateway.until(lambda: bool(gateway.questions))
        (question,) = gateway.questions
        assert question["params"]["message"] == "Server 'b' asks: What is your name?"
        given = {"action": "accept", "content": {"name": "Ada"}}
        gateway.write({"jsonrpc": "2.0", "id": question["id"], "result": given})
        assert gateway.answer(asked)["result"]["structuredContent"] == given


@pytest.mark.process
@requirement("serve/transparent")
def test_one_server_is_passed_through_as_it_is(tmp_path: Path) -> None:
    configured(user_file(), {"a": row()})
    config = honest()
    with serving("--transparent", "a", cwd=tmp_path) as gateway:
        gateway.greet()
        gateway.ask("tools/list")
        gateway.ask("tools/call", name="media", arguments={})
        through = [_result(line) for line in gateway.lines]
    assert _said_by([config.command, *config.args]) == through


def _result(line: bytes) -> bytes:
    """Give a result as it was written; the envelope around it is written by whoever sends it."""
    return line.partition(b'"result":')[2].strip()


def _said_by(argv: list[str]) -> list[bytes]:
    """Ask the server itself the same, and give its results."""
    from tests.commands.serving import hello  # noqa: PLC0415 — beside its user

    first: Any = hello()
    first["params"]["capabilities"] = {}
    frames: list[Any] = [
        first,
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "media", "arguments": {}}},
    ]
    said: list[bytes] = []
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        for frame in frames:
            server.stdin.write(json.dumps(frame).encode() + b"\n")
            server.stdin.flush()
            if "id" in frame:
                said.append(_result(server.stdout.readline()))
        server.stdin.close()
    return said
