"""Three nodes of a cluster behind one port: `python -m outside.conformance.nodes PORT FLAG…`.

A broker, three `indus serve --http --cluster` with the given flags, and a balancer without stickiness: each request
goes to the next node, over a connection of its own. Each node has a copy of the state directory, as on a machine of its
own: what they share, they share by the broker.
"""

from __future__ import annotations

import asyncio
import itertools
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.broker import broker_process

from indusagi.core.app_dirs import state_dir
from outside.remote import LOOPBACK, listening

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_NODES = ("one", "two", "three")
_INDUS = (sys.executable, "-m", "induscode")
_HEAD_BYTES = 65_536
_INIT_S = 60


class Balancer:
    """Sends each HTTP request to the next port, when all nodes listen."""

    def __init__(self, count: int) -> None:
        self._ports: list[int] = []
        self._turns: Iterator[int] = itertools.cycle(range(count))
        self._count = count
        self._ready = asyncio.Event()

    def add(self, port: int) -> None:
        """Send requests to a node, too."""
        self._ports.append(port)
        if len(self._ports) == self._count:
            self._ready.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request on, and its response back; then the connection ends."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await self._ready.wait()
            upward, upward_writer = await asyncio.open_connection(LOOPBACK, self._ports[next(self._turns)])
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            writer.close()
            return
        lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
        upward_writer.write(b"\r\n".join([lines[0], b"Connection: close", *lines[1:]]))
        sending = asyncio.create_task(_copy(reader, upward_writer))  # noqa: TID251 — ended below
        try:
            await _copy(upward, writer)
        finally:
            sending.cancel()
            for one in (writer, upward_writer):
                one.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(_HEAD_BYTES):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    writer.close()


async def serve(port: int, flags: Sequence[str]) -> None:
    """Serve until SIGTERM."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        broker = stack.enter_context(broker_process(folder))
        init = (*_INDUS, "cluster", "init", "--cluster", broker.url)
        await asyncio.to_thread(partial(subprocess.run, init, check=True, timeout=_INIT_S, stdout=subprocess.DEVNULL))
        hosts = ("--allowed-host", f"localhost:{port}", "--allowed-host", f"{LOOPBACK}:{port}")
        balancer = Balancer(len(_NODES))
        server = await asyncio.start_server(balancer.serve, LOOPBACK, port, limit=_HEAD_BYTES)
        stack.callback(server.close)
        async with asyncio.TaskGroup() as tasks:  # each in a task of its own: they end at the same time
            for name in _NODES:
                home = folder / "homes" / name
                await asyncio.to_thread(shutil.copytree, state_dir(), home / "indus")
                address = f"{LOOPBACK}:{{port}}"
                words = ("serve", "--http", address, *flags, *hosts, "--cluster", broker.url, "--node", name)
                tasks.create_task(_run_node((*_INDUS, *words), home, balancer, ended))


async def _run_node(command: Sequence[str], home: Path, balancer: Balancer, ended: asyncio.Event) -> None:
    log = home / "log.txt"
    async with listening(command, log=log, env={"XDG_STATE_HOME": str(home)}, within_s=_INIT_S) as port:
        balancer.add(port)
        await ended.wait()
    print(await asyncio.to_thread(log.read_text, "utf-8"), file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2:]))
