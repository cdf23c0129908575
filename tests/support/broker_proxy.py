"""A TCP proxy in front of the brokers of one node: it cuts the connection, or holds back or delays what is sent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Literal, TypeAlias

Direction: TypeAlias = Literal["up", "down"]
_CHUNK = 65_536
_CHUNKS_UNDER_WAY = 256
_LOOK_S = 0.05


class BrokerProxy:
    """The way of one node to all brokers; `open_proxy` makes one."""

    def __init__(self, token: str = "") -> None:
        self._token = token
        self.urls: list[str] = []
        self._servers: list[asyncio.Server] = []
        self._kept: dict[int, socket.socket] = {}
        """While connections are refused: sockets that keep the ports, by the place of the server."""
        self._brokers: list[int] = []
        self._open: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.delay_s = 0.0
        """How long everything takes to arrive, in each direction."""
        self._flowing: dict[Direction, asyncio.Event] = {"up": asyncio.Event(), "down": asyncio.Event()}

    async def listen(self, broker: int) -> None:
        """Listen for a node that wants to reach the broker at a port."""
        server = await asyncio.start_server(partial(self._accept, broker), "127.0.0.1", 0)
        self._brokers.append(broker)
        self._servers.append(server)
        user = f"{self._token}@" if self._token else ""
        self.urls.append(f"nats://{user}127.0.0.1:{server.sockets[0].getsockname()[1]}")

    def cut(self) -> None:
        """Close every connection and refuse new ones."""
        for place, server in enumerate(self._servers):
            if server.is_serving():
                server.close()
                self._kept[place] = _bind_socket(self._find_port(place))
        for writer in self._open:
            writer.transport.abort()

    def hold(self, *directions: Direction) -> None:
        """Deliver nothing any more in these directions; connections stay open."""
        for direction in directions:
            self._flowing[direction].clear()

    async def release(self) -> None:
        """Deliver what was held back, without a delay, and accept connections."""
        self.delay_s = 0.0
        for event in self._flowing.values():
            event.set()
        kept, self._kept = self._kept, {}
        for place, keeper in kept.items():
            keeper.close()
            accept = partial(self._accept, self._brokers[place])
            self._servers[place] = await asyncio.start_server(accept, "127.0.0.1", self._find_port(place))

    def _find_port(self, place: int) -> int:
        return int(self.urls[place].rpartition(":")[2])

    def _accept(self, broker: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Awaited in `close`.
        task = asyncio.create_task(self._serve(broker, reader, writer))  # noqa: TID251
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def close(self) -> None:
        """End all connections."""
        for event in self._flowing.values():
            event.set()
        while self._serving:
            self.cut()
            await asyncio.wait({*self._serving})
        self.cut()
        for keeper in self._kept.values():
            keeper.close()

    async def _serve(self, broker: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers = {writer}
        self._open |= writers
        try:
            upward, upward_writer = await asyncio.open_connection("127.0.0.1", broker)
            writers.add(upward_writer)
            self._open |= writers
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._pump("up", reader, upward_writer, writers))
                tasks.create_task(self._pump("down", upward, writer, writers))
        except OSError:
            return  # the broker is away
        finally:
            self._open -= writers
            for one in writers:
                one.transport.abort()
                with suppress(OSError):
                    await one.wait_closed()

    async def _pump(
        self,
        direction: Direction,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        pair: set[asyncio.StreamWriter],
    ) -> None:
        loop = asyncio.get_running_loop()
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_CHUNKS_UNDER_WAY)

        async def deliver() -> None:
            while True:
                came_at, data = await under_way.get()
                while (left := came_at + self.delay_s - loop.time()) > 0:  # noqa: ASYNC110 — time passes, nothing happens
                    await asyncio.sleep(min(left, _LOOK_S))  # the delay may change meanwhile
                if not data:
                    return
                await self._flowing[direction].wait()
                writer.write(data)
                await writer.drain()

        with suppress(OSError, ExceptionGroup):  # an end of either side
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(deliver())
                data = b"-"
                while data:
                    data = await reader.read(_CHUNK)
                    await under_way.put((loop.time(), data))
        for one in pair:
            one.transport.abort()


def _bind_socket(port: int) -> socket.socket:
    keeper = socket.socket()
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    keeper.bind(("127.0.0.1", port))
    return keeper


@asynccontextmanager
async def open_proxy(ports: Sequence[int], token: str = "") -> AsyncGenerator[BrokerProxy]:
    """Listen for a node, at one port for each broker."""
    proxy = BrokerProxy(token)
    await proxy.release()
    try:
        for port in ports:
            await proxy.listen(port)
        yield proxy
    finally:
        await proxy.close()
