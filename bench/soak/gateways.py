"""The gateways that are soaked, and what happens to them besides calls.

Each has three servers, and a fourth that comes and goes with the configuration. The third stays up
throughout: answers of its tools must always be right. The first two are killed in turn, seldom
enough that whoever looks after them has no reason to be cautious.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from bench.gateway.client import LOG, end_group, meet, names, open_log, open_pipes
from bench.gateway.contenders import free_port
from bench.gateway.http_client import Web
from bench.gateway.run import children
from bench.process import surroundings
from bench.row import CannotMeasure
from bench.soak.load import Visitor, Wrong, expect, is_error, texts, visit

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import AsyncGenerator, Awaitable

    from bench.gateway.client import Answer
    from indusagi.core import JsonObject

_HERE = Path(__file__).resolve().parent
_SUBJECT = str(_HERE / "subject.py")
_SERVER = ["-I", "-S", str(_HERE.parents[1] / "tests" / "servers" / "honest.py")]
_STEADY = "gamma"
_MORTAL = ("alpha", "beta")
_PASSING = "delta"
_WITHIN_S = 45.0
_POLL_S = 0.02
_RECOVERED_S = 130.0
"""A server that has been up for so long since its last end is not taken for a faulty one."""
_APART_S = 15.0
_VISITORS = 4


@dataclass(frozen=True, slots=True)
class Subject:
    """One way to run a gateway."""

    name: str
    arguments: tuple[str, ...] = ()
    tool: str = f"{_STEADY}__{{}}"
    http: bool = False
    relay: bool = False
    """One server as it is: there is nothing to add to it, and its end is the end."""


SUBJECTS = (
    Subject("stdio"),
    Subject("http", http=True),
    Subject("relay", ("--transparent", _STEADY), tool="{}", relay=True),
    Subject("relay-http", ("--transparent", _STEADY), tool="{}", http=True, relay=True),
)


@dataclass(slots=True)
class Gateway:
    """A gateway that runs."""

    subject: Subject
    folder: str
    observer: str
    pid: int
    port: int
    visitor: Visitor
    killed: dict[str, float] = field(default_factory=dict[str, float])
    """When each server was up again after it had been killed."""

    def events(self) -> list[Awaitable[None]]:
        """Choose what happens in the next lap."""
        visits = self._visits_by_http() if self.subject.http else self._visit_by_pipes()
        if self.subject.relay:
            return [visits]
        victim = self._victim()
        death = [] if victim is None else [self._kill(victim)]
        return [visits, self._change(), *death]

    # -- clients that come and go -----------------------------------------------------------

    async def _visits_by_http(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for number in range(_VISITORS):
                # A relay speaks as its server does, and that one is old.
                modern = number % 2 == 0 and not self.subject.relay
                tasks.create_task(self._visit(Web(self.port, "/mcp", modern=modern), modern))

    async def _visit(self, web: Web, modern: bool) -> None:
        try:
            await visit(Visitor(web, self.subject.tool, self.visitor.done), greets=not modern)
            if not modern:
                await web.leave()
        finally:
            await web.aclose()

    async def _visit_by_pipes(self) -> None:
        """Start a gateway of one's own beside the others, and leave nothing of it behind."""
        command = [sys.executable, "-m", "induscode", *_serve(self.subject, self.folder)]
        pipes = await open_pipes(command, cwd=_work(self.folder), env=_env(self.folder))
        try:
            await visit(Visitor(pipes, self.subject.tool, self.visitor.done))
            below = children(pipes.pid)
        finally:
            await pipes.aclose()
        expect(pipes.code, 0, "the exit code of a gateway whose client left")
        async with asyncio.timeout(_WITHIN_S):
            while any(map(_lives, below)):  # noqa: ASYNC110 — no event tells when a process is gone
                await asyncio.sleep(_POLL_S)

    # -- servers that come and go -----------------------------------------------------------

    def _victim(self) -> str | None:
        now = monotonic()
        if any(now - up < _APART_S for up in self.killed.values()):
            return None
        ready = [one for one in _MORTAL if now - self.killed.get(one, 0.0) > _RECOVERED_S]
        return ready[0] if ready else None

    async def _kill(self, server: str) -> None:
        """End a server, and call it until it is there again; only then may it fail."""
        (process,) = texts(await self._ask(server, "pid")) or ["0"]
        if int(process) not in children(self.pid):
            raise Wrong(f"{server} says that it is process {process}, which is not below us")
        os.kill(int(process), signal.SIGKILL)
        async with asyncio.timeout(_WITHIN_S):
            while is_error(answer := await self._ask(server, "pid")):  # noqa: ASYNC110 — clients call again
                await asyncio.sleep(_POLL_S)
        if texts(answer) == [process]:
            raise Wrong(f"{server} answers after its end")
        self.killed[server] = monotonic()
        self.visitor.done["kills"] += 1

    async def _ask(self, server: str, tool: str) -> Answer:
        params: JsonObject = {"name": f"{server}__{tool}", "arguments": {}}
        return await self.visitor.client.request("tools/call", params)

    async def _change(self) -> None:
        """Add a server to the configuration, take it out again; the deck follows each time."""
        wanted = f"{_PASSING}__echo"
        for passing in (True, False):
            write_config(self.folder, passing=passing)
            async with asyncio.timeout(_WITHIN_S):
                while (wanted in await names(self.visitor.client)) != passing:
                    await self._write_config()
            self.visitor.done["changes"] += 1

    async def _write_config(self) -> None:
        """Wait to be told of a change; over HTTP there is no stream open to be told by."""
        if self.subject.http:
            await asyncio.sleep(_POLL_S)
            return
        await self.visitor.changes.wait()
        self.visitor.changes.clear()


# -- running one --------------------------------------------------------------------------------


@asynccontextmanager
async def opened(subject: Subject, folder: str, done: Counter[str]) -> AsyncGenerator[Gateway]:
    """Start a gateway under observation, meet it, and end it.

    Raises:
        CannotMeasure: It did not start.
        Wrong: It did not end as it should.
    """
    os.mkdir(_work(folder))
    write_config(folder, passing=False)
    runs = _by_http if subject.http else _by_pipes
    async with runs(subject, folder, done) as gateway:
        try:
            async with asyncio.timeout(_WITHIN_S):
                await meet(gateway.visitor.client)
                while subject.tool.format("echo") not in await names(gateway.visitor.client):  # noqa: ASYNC110 — at the start
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise CannotMeasure(f"{subject.name} did not start") from None
        yield gateway


@asynccontextmanager
async def _by_pipes(subject: Subject, folder: str, done: Counter[str]) -> AsyncGenerator[Gateway]:
    observer = os.path.join(folder, "observer")
    waiting: list[Visitor] = []
    pipes = await open_pipes(
        [sys.executable, _SUBJECT, observer, *_serve(subject, folder)],
        cwd=_work(folder),
        env=_env(folder),
        on_notice=lambda message: waiting[0].noticed(message),
    )
    visitor = Visitor(pipes, subject.tool, done)
    waiting.append(visitor)
    try:
        yield Gateway(subject, folder, observer, pipes.pid, 0, visitor)
        if pipes.code is not None:
            raise Wrong(f"the gateway has ended: {pipes.code}")
    finally:
        await pipes.aclose()
    expect(pipes.code, 0, f"the exit code of {subject.name}")


@asynccontextmanager
async def _by_http(subject: Subject, folder: str, done: Counter[str]) -> AsyncGenerator[Gateway]:
    port, observer = free_port(), os.path.join(folder, "observer")
    listening = ("--http", f"127.0.0.1:{port}", "--no-token")
    with open_log(_work(folder)) as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, _SUBJECT, observer, *_serve(subject, folder), *listening),
            cwd=_work(folder),
            env=_env(folder),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
        )
    waiting: list[Visitor] = []
    web = Web(port, "/mcp", on_notice=lambda message: waiting[0].noticed(message))
    visitor = Visitor(web, subject.tool, done)
    waiting.append(visitor)
    try:
        await _listens(web, process)
        yield Gateway(subject, folder, observer, process.pid, port, visitor)
        await web.leave()
    finally:
        await web.aclose()
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(_WITHIN_S):
                await process.wait()
        except TimeoutError:
            pass
        end_group(process.pid)
        await process.wait()
    expect(process.returncode, 0, f"the exit code of {subject.name}")


async def _listens(web: Web, process: asyncio.subprocess.Process) -> None:
    end = monotonic() + _WITHIN_S
    while monotonic() < end and process.returncode is None:
        try:
            expect((await web.get("/health")).get("status"), "ok", "health")
        except CannotMeasure:
            await asyncio.sleep(_POLL_S)
        else:
            return


def write_config(folder: str, *, passing: bool) -> None:
    """Write which servers there are, in one step."""
    servers = (*_MORTAL, _STEADY, *([_PASSING] if passing else []))
    rows = {name: {"command": sys.executable, "args": _SERVER} for name in servers}
    fresh = Path(folder, "mcp.json.new")
    fresh.write_text(json.dumps({"mcpServers": rows}), encoding="utf-8")
    fresh.replace(_config(folder))


def _config(folder: str) -> str:
    # Outside of the folder that is worked in: what changes there is not agreed to by itself.
    return os.path.join(folder, "mcp.json")


def _work(folder: str) -> str:
    return os.path.join(folder, "work")


def _serve(subject: Subject, folder: str) -> list[str]:
    return ["serve", "--mcp", _config(folder), *subject.arguments]


def _env(folder: str) -> dict[str, str]:
    kept = {key: value for key, value in surroundings().items() if not key.startswith("XDG_")}
    return {**kept, "HOME": folder}


def complaints(folder: str) -> str:
    """Give the last of what gateways have written to standard error."""
    path = Path(_work(folder), LOG)
    return path.read_text(encoding="utf-8", errors="replace")[-600:] if path.exists() else ""


def _lives(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")
