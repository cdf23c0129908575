"""Several processes that share one sign-in with a rotating refresh token, and call at the same moment."""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Literal

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream
from tests.support.authlib_server import PERSON
from tests.support.scripts import unmeasured

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from anyio.abc import Process
    from tests.support.protected_server import Site

_ROOT = Path(__file__).parents[2]
_LONGEST = 10_000


@dataclass
class Worker:
    """A process of `tests.support.refresh_worker`."""

    process: Process
    lines: BufferedByteReceiveStream

    async def ask(self) -> str:
        """Let it call once, and return its answer."""
        assert self.process.stdin is not None
        await self.process.stdin.send(b"\n")
        return await self.read()

    async def read(self) -> str:
        """Return its next line."""
        return (await self.lines.receive_until(b"\n", _LONGEST)).decode()


@dataclass
class RaceReport:
    """What happened in the rounds of a race."""

    refreshes: list[int] = field(default_factory=list[int])
    """Of each round."""
    faults: list[str] = field(default_factory=list[str])


@asynccontextmanager
async def started_worker(url: str) -> AsyncGenerator[Worker]:
    """Start a process that calls the server at once, and end it when the block is left."""
    command = [sys.executable, "-m", "tests.support.refresh_worker", url]
    async with await anyio.open_process(command, stdin=PIPE, stderr=DEVNULL, cwd=_ROOT, env=unmeasured()) as process:
        assert process.stdout is not None
        worker = Worker(process, BufferedByteReceiveStream(process.stdout))
        try:
            yield worker
        finally:
            if process.returncode is None:
                process.kill()


async def run_race(site: Site, processes: int, rounds: int) -> RaceReport:
    """Let processes call at the same moment after the access token has expired, again and again."""
    report = RaceReport()
    async with AsyncExitStack() as stack:
        openings = [started_worker(site.server.url) for _ in range(processes)]
        workers = [await stack.enter_async_context(opening) for opening in openings]
        for worker in workers:
            assert PERSON in await worker.read()

        async def call(worker: Worker) -> None:
            answer = await worker.ask()
            if PERSON not in answer:
                report.faults.append(answer)

        for _ in range(rounds):
            before = site.issuer.count("refresh_token")
            site.issuer.expire_access()
            async with anyio.create_task_group() as tasks:
                for worker in workers:
                    tasks.start_soon(call, worker)
            report.refreshes.append(site.issuer.count("refresh_token") - before)
    return report


async def kill_in_refresh(site: Site, *, pause: Literal["before", "after"]) -> None:
    """Kill a process (SIGKILL) while its refresh is at the issuer: before it is judged, or before it is answered."""
    issuer = site.issuer
    async with started_worker(site.server.url) as worker:
        assert PERSON in await worker.read()
        issuer.expire_access()
        issuer.pause, issuer.reached, issuer.resume = pause, anyio.Event(), anyio.Event()
        assert worker.process.stdin is not None
        await worker.process.stdin.send(b"\n")
        await issuer.reached.wait()
        worker.process.kill()
        await worker.process.wait()
    issuer.pause = ""
    issuer.resume.set()
