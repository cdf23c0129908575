"""The server that listens for a host: its socket, its limits, and how it ends."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
import uvicorn

from indusagi.interop.protocol_bridge._host_app import HostApp
from indusagi.interop.protocol_bridge._host_line import HostLine, Lines
from indusagi.interop.protocol_bridge.host_doors import make_doors

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

    from indusagi.interop.protocol_bridge.host_settings import HttpSettings, NewClient, SchemaOf

_BACKLOG = 128
_CONNECTIONS = 512
_KEEP_ALIVE_S = 15
_HEADER_BYTES = 32 * 1024
_LINGER_S = 1
"""How long answers that are made may take to be read at the end."""
_UNREAD_BYTES = 256 * 1024
"""So much of an answer the system keeps for a client that has not taken it.

It tells that some was taken only after a third of this was, so more would take slow clients for
deaf ones.
"""


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._told = asyncio.Event()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave them alone."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self.ready.set()

    async def main_loop(self) -> None:
        """Wait to be told to end."""
        # Its own looks ten times a second whether it is to end.
        while not self._told.is_set():
            await self.on_tick(0)
            with anyio.move_on_after(1.0):
                await self._told.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and hang up on those that do not take their answers."""
        last = asyncio.get_running_loop().call_later(_LINGER_S, self._hang_up)
        try:
            await super().shutdown(sockets)
        finally:
            last.cancel()

    def _hang_up(self) -> None:
        for line in [*self.server_state.connections]:
            cast("HostLine", line).transport.abort()

    def leave(self) -> None:
        """Be told to end."""
        self.should_exit = True
        self._told.set()


@asynccontextmanager
async def serve_app(
    new_client: NewClient, schema_of: SchemaOf, settings: HttpSettings, tokens: Sequence[str]
) -> AsyncGenerator[int]:
    """Listen until the block is left; gives the port.

    Raises:
        OSError: The address cannot be listened on.
    """
    # In a thread: the address may be a name that somebody has to be asked for.
    with await asyncio.to_thread(_listener, settings) as listener:
        port = listener.getsockname()[1]
        lines = Lines(settings)
        doors = make_doors(settings, tokens, port)
        app = HostApp(new_client, schema_of, settings, doors, lines.dropped)
        server = _Server(await asyncio.to_thread(_config, app, lines))
        over = asyncio.Event()

        async def serve() -> None:
            try:
                await server.serve([listener])
            finally:
                over.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(serve)
            tasks.start_soon(app.sessions.watch)
            await server.ready.wait()
            try:
                yield port
            finally:
                with anyio.CancelScope(shield=True):
                    await app.stop("the host was stopped")
                    server.leave()
                    await over.wait()
                tasks.cancel_scope.cancel()


def _listener(settings: HttpSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    # Named as TCP: asyncio looks for that before it has each write sent at once.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _UNREAD_BYTES)
        listener.bind((settings.host.strip("[]"), settings.port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


def _config(app: HostApp, lines: Lines) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        # It is only ever called, with names.
        http=cast("type[asyncio.Protocol]", partial(HostLine, lines)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_BACKLOG,
        limit_concurrency=_CONNECTIONS,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=2 * _LINGER_S,
        h11_max_incomplete_event_size=_HEADER_BYTES,
    )
    config.load()
    return config
