"""Servers of the SDK behind a real socket of 127.0.0.1, in the event loop of the test."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import uvicorn
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.sse import SseServerTransport
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Mount, Route
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

_FINISH_S = 0.2
"""How long a response may take after the end of the test; a stream has no end of its own."""


class _Quiet(uvicorn.Server):
    """Ends when it is told to: the server of the library looks every tenth of a second, at each step of its end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.told = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        state = self.server_state
        for server in self.servers:
            server.close()
        for connection in [*state.connections]:
            connection.shutdown()
        with anyio.move_on_after(_FINISH_S):
            await until(lambda: not state.connections and not state.tasks)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@asynccontextmanager
async def served(app: ASGIApp) -> AsyncGenerator[str]:
    """Serve until the end of the block; gives the address without a path."""
    config = uvicorn.Config(app, ws="none", log_config=None)
    server = _Quiet(config)
    # Only of sockets that name the protocol asyncio takes Nagle's delay, 40 ms for each answer in two pieces.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(server.serve([listener]))
            await until(lambda: server.started)
            try:
                yield f"http://127.0.0.1:{listener.getsockname()[1]}"
            finally:
                server.told.set()


def only_legacy(app: ASGIApp) -> ASGIApp:
    """Be a server that never heard of the newer protocol."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and b"mcp-method" in dict(scope["headers"]):
            await Response("what is that?", 400)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return answer


def sse_app(server: Server[Any]) -> Starlette:
    """Put a server behind the old transport, at `/sse`."""
    transport = SseServerTransport("/messages/")

    async def events(request: Request) -> Response:
        options = server.create_initialization_options(NotificationOptions(tools_changed=True))
        async with transport.connect_sse(request.scope, request.receive, request._send) as (read, write):
            await server.run(read, write, options)
        return Response()

    mounted = Mount("/messages/", app=transport.handle_post_message)
    return Starlette(routes=[Route("/sse", events), mounted])
