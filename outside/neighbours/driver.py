"""Uses an installed `indus` in every way that needs an HTTP client; prints what happened as JSON.

It runs as a file in the environment that is judged, and imports only what the wheel installs there.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anyio

from indusagi.capabilities import ToolSpec, define_tool
from indusagi.interop import HttpSettings, ProtocolFault, StdioServerConfig, StreamableHttpServerConfig
from indusagi.mcp import MCPClient, MCPServer

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

INDUS = str(Path(sysconfig.get_path("scripts")) / "indus")
_LIMIT_S = 180.0
_SHAPE: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


async def _greet(arguments: Any, ctx: object) -> str:
    return f"hello {arguments['name']}"


async def _use(client: MCPClient, name: str) -> str:
    """List the tools and call one; return what's wrong."""
    async with client:
        listed = [tool.ref.name for tool in await client.list_tools()]
        if name not in listed:
            return f"no {name} in {listed}"
        result = await client.call_tool(name, {"name": "Ada"})
        return "" if "hello Ada" in str(result.content) else str(result.content)


async def _check_version() -> str:
    done = await anyio.run_process([INDUS, "--version"], check=False)
    return "" if done.returncode == 0 and b"indus" in done.stdout else done.stderr.decode()


async def _check_stdio() -> str:
    # A process of the bridge gets few variables: those that say where the state is are named.
    home = {key: value for key, value in os.environ.items() if key in {"HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"}}
    config = StdioServerConfig("gateway", INDUS, ["serve", "--profile", "none"], env=home)
    return await _use(MCPClient(config), "up__greet")


async def _check_http() -> str:
    command = [INDUS, "serve", "--profile", "none", "--http", "127.0.0.1:0", "--no-token"]
    async with await anyio.open_process(command, stderr=subprocess.STDOUT) as process:
        try:
            said = ""
            assert process.stdout is not None
            while (found := re.search(r"serving at (\S+)", said)) is None:
                said += (await process.stdout.receive()).decode()
            return await _use(MCPClient(StreamableHttpServerConfig("gateway", found[1])), "up__greet")
        except anyio.EndOfStream:
            return "it ended"
        finally:
            process.terminate()


async def _check_sdk() -> str:
    """Give a client streams, which needs the SDK of version 2 and says so where there's none."""
    sending, receiving = anyio.create_memory_object_stream[Any](1)
    expects = sys.argv[1] == "2"
    try:
        if expects:
            from indusagi.adapters.calls import allow_all  # noqa: PLC0415 — needs the SDK
            from indusagi.adapters.mcp import to_mcp  # noqa: PLC0415 — needs the SDK

            tool = define_tool(ToolSpec("greet", "Greets.", _SHAPE, _greet))
            server: Any = to_mcp(MCPServer([tool]).host.catalog.box(), gate=allow_all)

            @asynccontextmanager
            async def give() -> AsyncGenerator[object]:
                yield server

            return await _use(MCPClient(StdioServerConfig("s", "none"), give), "greet")
        async with MCPClient(StdioServerConfig("s", "none"), (receiving, sending)):
            return "streams need no SDK?"
    except ProtocolFault as exc:
        return str(exc) if expects or "pip install 'indus-deck[mcp]'" not in str(exc) else ""
    finally:
        sending.close()
        receiving.close()


async def _main() -> dict[str, str]:
    found: dict[str, str] = {}
    server = MCPServer([define_tool(ToolSpec("greet", "Greets.", _SHAPE, _greet))])
    async with server.serve_http(HttpSettings(without_token=True)) as serving:
        found["version"] = await _check_version()
        found["library"] = await _use(MCPClient(StreamableHttpServerConfig("up", serving.url)), "greet")
        added = await anyio.run_process([INDUS, "mcp", "add", "up", serving.url], check=False)
        found["add"] = "" if added.returncode == 0 else (added.stdout + added.stderr).decode()
        for name, check in (("serve", _check_stdio), ("serve --http", _check_http), ("sdk", _check_sdk)):
            with anyio.move_on_after(_LIMIT_S):
                found[name] = await check()
                continue
            found[name] = "no answer"
    return found


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.environ.update(HOME=folder, XDG_STATE_HOME=f"{folder}/state", XDG_CONFIG_HOME=f"{folder}/config")
        os.chdir(folder)
        print(json.dumps(anyio.run(_main)))
