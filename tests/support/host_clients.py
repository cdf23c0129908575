"""Clients of the SDK, connected to a host of ours in every way there is."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.memory import create_client_server_memory_streams
from tests.support.scripts import ROOT

from indusagi.interop import HttpSettings, create_provider_host

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from tests.support.host_tools import Bench

    from indusagi.interop import HostLimits, ProviderHost

CHILD = ROOT / "tests" / "support" / "host_child.py"
WAYS = [f"{channel}-{era}" for channel in ("memory", "stdio", "http") for era in ("modern", "legacy")]
TOKEN = "t" * 64


@asynccontextmanager
async def memory(host: ProviderHost) -> AsyncGenerator[Any]:
    async with create_client_server_memory_streams() as (ours, theirs):
        running = await host.connect(theirs)
        try:
            yield ours
        finally:
            await running.cancel()


@asynccontextmanager
async def client_of(host: ProviderHost, way: str, **options: Any) -> AsyncGenerator[Client]:
    """Connect a client of the SDK to a host; over stdio the host is a process of its own."""
    channel, _, era = way.partition("-")
    mode = "auto" if era == "modern" else "legacy"
    async with AsyncExitStack() as stack:
        if channel == "memory":
            transport = memory(host)
        elif channel == "stdio":
            parameters = StdioServerParameters(command=sys.executable, args=[str(CHILD)], env={"PYTHONPATH": str(ROOT)})
            quiet = stack.enter_context(open("/dev/null", "w", encoding="utf-8"))  # noqa: ASYNC230, SIM115
            transport = stdio_client(parameters, errlog=quiet)
        else:
            settings = HttpSettings(tokens=[TOKEN])
            serving = await stack.enter_async_context(host.serve_http(settings))
            headers = {"authorization": f"Bearer {TOKEN}"}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers))
            transport = streamable_http_client(serving.url, http_client=http)
        yield await stack.enter_async_context(Client(transport, mode=mode, **options))


def host_of(bench: Bench, limits: HostLimits | None = None) -> ProviderHost:
    return create_provider_host(bench.box, limits=limits)
