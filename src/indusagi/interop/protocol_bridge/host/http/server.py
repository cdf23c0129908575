"""The server that listens for a host: its socket, its limits, and how it ends."""

from __future__ import annotations

import asyncio
import resource
import socket
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio
import uvicorn

from indusagi.interop.protocol_bridge.host.http.app import HostApp
from indusagi.interop.protocol_bridge.host.http.auth import build_access_policy
from indusagi.interop.protocol_bridge.host.http.connection import LINGERING, ConnectionTracker, HttpConnection
from indusagi.interop.protocol_bridge.host.http.framing import HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

    from indusagi.interop.protocol_bridge.host.http.settings import FindSchema, HttpSettings, NewSession

_ACCEPTED = 128
"""So many connections are accepted in one turn of the event loop."""
_BACKLOG = 2_048
"""So many may wait to be accepted; the system may allow fewer (net.core.somaxconn)."""
_OTHER_FILES = 512
"""Descriptors that servers, files and the program itself need besides connections."""
_FEWEST = 16
"""So many connections are allowed whatever the system says about descriptors."""
_KEEP_ALIVE_S = 15
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
        for listener in sockets or ():
            # asyncio takes one number for how many wait and for how many it accepts at once.
            listener.listen(_BACKLOG)
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
            cast("HttpConnection", line).hang_up()

    def leave(self) -> None:
        """Be told to end."""
        self.should_exit = True
        self._told.set()


@asynccontextmanager
async def serve_app(
    new_session: NewSession, find_schema: FindSchema, settings: HttpSettings, tokens: Sequence[str]
) -> AsyncGenerator[tuple[int, int]]:
    """Listen until the block is left; gives the port, and how many connections are taken.

    Raises:
        OSError: The address cannot be listened on.
    """
    # In a thread: the address may be a name that somebody has to be asked for.
    with await asyncio.to_thread(_listener, settings) as listener:
        port = listener.getsockname()[1]
        limit = allow_connections(settings.connections)
        connections = ConnectionTracker(settings, limit)
        policy = build_access_policy(settings, tokens, port)
        app = HostApp(new_session, find_schema, settings, policy, connections.dropped)
        server = _Server(await asyncio.to_thread(_config, app, connections))
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
                yield port, limit
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
        listener.listen(_ACCEPTED)
    except OSError:
        listener.close()
        raise
    return listener


def allow_connections(wanted: int) -> int:
    """Raise the limit of open files to what so many connections need, as far as it may be raised.

    Only the soft limit is raised, as setrlimit(2) allows everyone. Gives how many there may be.
    """
    needed = wanted + LINGERING + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if soft == unlimited or soft >= needed:
        return wanted
    allowed = needed if hard == unlimited else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    except (OSError, ValueError):  # such as a limit of the whole system, on macOS
        allowed = soft
    return wanted if allowed >= needed else max(allowed // 2, _FEWEST)


def _config(app: HostApp, connections: ConnectionTracker) -> uvicorn.Config:
    config = uvicorn.Config(
        app,
        # It is only ever called, with names.
        http=cast("type[asyncio.Protocol]", partial(HttpConnection, connections)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=_ACCEPTED,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=2 * _LINGER_S,
        h11_max_incomplete_event_size=HEAD_BYTES,
    )
    config.load()
    return config
