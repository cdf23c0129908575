"""Connect to servers in a process of its own: `python -P program.py HOW COUNT...`.

HOW names one of `WAYS`. For each COUNT it connects to so many servers, lists their tools, writes
one line of JSON about that, disconnects, and writes another. What it measures must be loaded by the
way that needs it, and not before; so nothing heavy is imported at the top, and nothing of `bench`.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from time import perf_counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable
    from contextlib import AbstractAsyncContextManager

_HERE = os.path.dirname(os.path.abspath(__file__))
# Isolated and without site packages: it starts in half the time, and starting it is not ours.
SERVER = ["-I", "-S", os.path.join(_HERE, os.pardir, os.pardir, "tests", "servers", "honest.py")]


def server(python: str) -> tuple[str, list[str]]:
    """Give the command and the arguments of a server that does what it should."""
    return python, SERVER


# These imports are what is measured: each way pays for its own.
# ruff: noqa: PLC0415


@asynccontextmanager
async def _ours(count: int, profile: str = "off") -> AsyncGenerator[None]:
    from indusagi.capabilities.sandbox.profile import parse_profile
    from indusagi.interop.protocol_bridge import BridgeConfig, StdioServerConfig, is_usable_phase, mount_protocol_bridge

    command, sandbox = server(sys.executable), parse_profile(profile)
    servers = [StdioServerConfig(f"server{n}", *command, cwd=os.getcwd(), sandbox=sandbox) for n in range(count)]
    bridge = await mount_protocol_bridge(BridgeConfig(servers))
    try:
        for status in bridge.fleet.status().values():
            if not is_usable_phase(status.phase) or not status.tool_count:
                raise status.fault or RuntimeError(f"{status.server} lists nothing")
        yield
    finally:
        await bridge.fleet.tear_down()


def _sdk_client() -> AbstractAsyncContextManager[Any]:
    from mcp import Client, StdioServerParameters

    command, args = server(sys.executable)
    return Client(StdioServerParameters(command=command, args=args))


def _fastmcp_client() -> AbstractAsyncContextManager[Any]:
    # Found by its name at run time: it is no dependency of this project.
    client, transports = map(importlib.import_module, ("fastmcp", "fastmcp.client.transports"))
    command, args = server(sys.executable)
    transport = transports.StdioTransport(command=command, args=args, keep_alive=False)
    return client.Client(transport)


@asynccontextmanager
async def _together(count: int, client: Callable[[], AbstractAsyncContextManager[Any]]) -> AsyncGenerator[None]:
    """Connect all at once, each in a task of its own, as their scopes want it."""
    listed = asyncio.Semaphore(0)
    stop = asyncio.Event()

    async def hold() -> None:
        async with client() as connected:
            await connected.list_tools()
            listed.release()
            await stop.wait()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(count):
            tasks.create_task(hold())
        for _ in range(count):
            await listed.acquire()
        yield
        stop.set()


@asynccontextmanager
async def _one_by_one(count: int, client: Callable[[], AbstractAsyncContextManager[Any]]) -> AsyncGenerator[None]:
    async with AsyncExitStack() as stack:
        for _ in range(count):
            connected = await stack.enter_async_context(client())
            await connected.list_tools()
        yield


WAYS: dict[str, Callable[[int], AbstractAsyncContextManager[None]]] = {
    "ours": _ours,
    "standard": lambda count: _ours(count, "standard"),
    "sdk": lambda count: _together(count, _sdk_client),
    "sdk-one-by-one": lambda count: _one_by_one(count, _sdk_client),
    "fastmcp": lambda count: _together(count, _fastmcp_client),
}


def _resident() -> int:
    """Give the memory of this process in bytes."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except FileNotFoundError:  # macOS, where the most it ever had is counted, in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _children_s() -> float:
    """Give the processor time of the children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


async def _main(how: str, counts: list[int]) -> None:
    for count in counts:
        before_s = _children_s()
        started = perf_counter()
        async with WAYS[how](count):
            connect_s = perf_counter() - started
            _say(connect_s=connect_s, resident=_resident(), sdk="mcp" in sys.modules)
        _say(children_s=_children_s() - before_s)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1], [int(count) for count in sys.argv[2:]]))
