"""One run of a gateway: from its start to all tools listed, its calls, its memory, its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

from bench.gateway.client import end_group, meet, names, open_log, open_pipes, result_of
from bench.gateway.contenders import DIRECT, ECHO, TOOLS, free_port
from bench.gateway.http_client import Web
from bench.row import CannotMeasure

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from bench.gateway.client import Client
    from bench.gateway.contenders import Contender, Desk
    from indusagi.core import JsonObject

_TEXT = "The quick brown fox jumps over the lazy dog."
_WITHIN_S = 60.0
_POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory in bytes."""

    own: int
    """Of the process that was started."""
    tree: int
    """With all it has started, but for the servers."""


class Running:
    """A gateway that runs, with everything listed."""

    def __init__(self, contender: Contender, desk: Desk, pid: int, clients: Sequence[Client]) -> None:
        self.contender = contender
        self.pid = pid
        self.start_s = 0.0
        self._clients = clients
        self._count = desk.count
        self._calls: list[JsonObject] = [
            {"name": contender.tool.format(n=n), "arguments": {"text": _TEXT}} for n in range(desk.count)
        ]

    async def list_all(self) -> None:
        """Shake hands and list, until every tool of every server is there."""
        async with asyncio.TaskGroup() as tasks:
            for client in self._clients:
                tasks.create_task(self._list(client))

    async def _list(self, client: Client) -> None:
        await meet(client)
        calls = self._calls[:1] if self.contender.apart else self._calls
        wanted = {str(call["name"]) for call in calls}
        alone = self.contender is DIRECT or self.contender.apart
        expected = TOOLS if alone else TOOLS * self._count
        # Whoever answers before its servers have must not look quicker than it is.
        while len(found := await names(client)) < expected or not wanted.issubset(found):  # noqa: ASYNC110 — no event to wait for
            await asyncio.sleep(_POLL_S)

    async def call(self, number: int = 0) -> None:
        """Call the tool of one server."""
        number %= self._count
        client = self._clients[number % len(self._clients)]
        result = result_of(await client.request("tools/call", self._calls[number]))
        if result["content"][0]["text"] != _TEXT:
            raise CannotMeasure(f"{self.contender.name} gave a wrong answer")

    async def one_by_one(self, seconds: float, least: int) -> list[float]:
        """Call again and again, for so many seconds; tell how long each call took."""
        taken: list[float] = []
        end = perf_counter() + seconds
        while len(taken) < least or perf_counter() < end:
            started = perf_counter()
            await self.call()
            taken.append(perf_counter() - started)
        return taken

    async def together(self, callers: int, each: int) -> float:
        """Have so many callers call so often, all at once; give the calls of a second."""

        async def caller(number: int) -> None:
            for _ in range(each):
                await self.call(number)

        started = perf_counter()
        async with asyncio.timeout(_WITHIN_S), asyncio.TaskGroup() as tasks:
            for number in range(callers):
                tasks.create_task(caller(number))
        return callers * each / (perf_counter() - started)

    def memory(self) -> Memory:
        """Tell how much memory it has now."""
        own = resident(self.pid)
        return Memory(own, own + sum(map(resident, _helpers(self.pid))))


@asynccontextmanager
async def running(contender: Contender, desk: Desk) -> AsyncGenerator[Running]:
    """Start a gateway, have everything listed, and end it.

    Raises:
        CannotMeasure: It did not come so far.
    """
    opened = _over_pipes if contender.path is None else _over_http
    started = perf_counter()
    async with opened(contender, desk) as gateway:
        trouble: Sequence[Exception] = ()
        try:
            async with asyncio.timeout(_WITHIN_S):
                await gateway.list_all()
        except* (CannotMeasure, TimeoutError) as group:
            trouble = group.exceptions  # what is raised in here would come out in a group
        if trouble:
            said = f"{contender.name} did not start: {trouble[0]} {desk.complaints()}"
            raise CannotMeasure(said)
        gateway.start_s = perf_counter() - started
        yield gateway


@asynccontextmanager
async def _over_pipes(contender: Contender, desk: Desk) -> AsyncGenerator[Running]:
    command = contender.command(desk, 0)
    pipes = await open_pipes(command, cwd=desk.folder, env=desk.env())
    try:
        yield Running(contender, desk, pipes.pid, [pipes])
    finally:
        await pipes.aclose()


@asynccontextmanager
async def _over_http(contender: Contender, desk: Desk) -> AsyncGenerator[Running]:
    port = free_port()
    with open_log(desk.folder) as complaints:
        process = await asyncio.create_subprocess_exec(
            *contender.command(desk, port),
            cwd=desk.folder,
            env=desk.env(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complaints,
            start_new_session=True,
        )
    clients = [Web(port, path) for path in contender.paths(desk.count)]
    try:
        await _listens(port, process)
        yield Running(contender, desk, process.pid, clients)
    finally:
        for client in clients:
            await client.aclose()
        await _end_process(process)


async def _listens(port: int, process: asyncio.subprocess.Process) -> None:
    """Wait until the port accepts connections: the only sign that all contenders give."""
    end = perf_counter() + _WITHIN_S
    while perf_counter() < end and process.returncode is None:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(_POLL_S)
        else:
            writer.close()
            return


async def _end_process(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(_WITHIN_S / 6):
                await process.wait()
        except TimeoutError:
            pass
    end_group(process.pid)
    await process.wait()


def resident(pid: int) -> int:
    """Give the resident memory of a process in bytes."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def children(pid: int) -> list[int]:
    """Name the processes that a process has started, and those that they have."""
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        own = _list_children(parent)
        found += own
        waiting += own
    return found


def _list_children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        # A process belongs to the thread that has started it.
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", encoding="ascii") as file:
                found += [int(word) for word in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def _helpers(pid: int) -> list[int]:
    return [child for child in children(pid) if not _is_server(child)]


def _is_server(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return ECHO.encode() in file.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return True
