"""How the work of `indus serve` grows: `python -m bench.growth` prints an exponent for each quantity.

CPU time of the gateway's process alone, so other work on the machine matters little. An exponent is the slope between
the smallest and the largest size on logarithmic axes, after the time with nothing to do is subtracted: 1 is a straight
line, 2 a square. Ends with 1 if one is past its budget.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import tempfile
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.gateway.client import meet, names, open_pipes, result_of
from bench.gateway.crowd import open_gateway
from bench.gateway.http_client import Web
from bench.process import compile_packages, console_script, surroundings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from bench.gateway.client import Pipes

_SERVER = os.path.join(os.path.dirname(__file__), "echo_server.py")
_RELAY = os.path.join(os.path.dirname(__file__), "gateway", "relay.py")
_SETTLED_S = 0.05
"""Less CPU time than this between two looks: it has nothing to do any more."""
_LOOK_S = 2.0
_CALLERS = 64


@dataclass(frozen=True, slots=True)
class Growth:
    """One quantity, its sizes, and the exponent it must keep to."""

    name: str
    sizes: tuple[int, ...]
    measure: Callable[[int], Awaitable[float]]
    budget: float
    counts_idle: bool = True
    """Whether the time of a gateway without any of it has to be subtracted."""


def read_cpu(pid: int) -> float:
    """Give the CPU time of a process, in seconds, by its threads."""
    used = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat", encoding="ascii") as file:
            used += int(file.read().split()[0])
    return used / 1e9


@asynccontextmanager
async def _serving(folder: str, servers: int, tools: int = 1) -> AsyncGenerator[Pipes]:
    """Run a gateway in front of so many servers, until all of them are listed and it has nothing to do."""
    config = os.path.join(folder, "servers.json")
    row = {"command": sys.executable, "args": ["-I", "-S", _SERVER, str(tools)]}
    with open(config, "w", encoding="utf-8") as file:  # noqa: ASYNC230 — before anything runs
        json.dump({"mcpServers": {f"s{number}": row for number in range(servers)}}, file)
    command = [console_script("indus"), "serve", "--profile", "none", "--search", "off", "--mcp", config]
    pipes = await open_pipes(command, cwd=folder, env={**surroundings(), "HOME": folder})
    try:
        await meet(pipes)
        while len(await names(pipes)) < servers * tools:  # noqa: ASYNC110 — what another process does
            await asyncio.sleep(1)
        before = 0.0
        while (now := read_cpu(pipes.pid)) - before > _SETTLED_S:
            before = now
            await asyncio.sleep(_LOOK_S)
        yield pipes
    finally:
        await pipes.aclose()


async def _start(servers: int, tools: int = 1, starts: int = 1) -> float:
    """Give the CPU time of the last of several starts in one home."""
    used = 0.0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for _ in range(starts):
            async with _serving(folder, servers, tools) as pipes:
                used = read_cpu(pipes.pid)
    return used


async def _call(pipes: Pipes, count: int, text: str = "The quick brown fox.", name: str = "s0__echo") -> float:
    """Give the CPU time of so many calls by many callers."""
    before, pending = read_cpu(pipes.pid), iter(range(count))

    async def call() -> None:
        for _ in pending:
            result_of(await pipes.request("tools/call", {"name": name, "arguments": {"text": text}}))

    async with asyncio.TaskGroup() as tasks:
        for _ in range(_CALLERS):
            tasks.create_task(call())
    return read_cpu(pipes.pid) - before


async def _call_often(count: int) -> float:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with _serving(folder, 1) as pipes:
            await _call(pipes, _CALLERS)
            return await _call(pipes, count)


async def _return_result(size: int) -> float:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with _serving(folder, 1) as pipes:
            await _call(pipes, _CALLERS)
            return await _call(pipes, 8, "x" * size)


async def _open_sessions(count: int) -> float:
    async with open_gateway("--no-token") as port:
        clients = [Web(port, "/mcp") for _ in range(count)]
        before = _read_listener(port)
        for client in clients:
            await meet(client)
            await client.request("tools/call", {"name": "echo__echo", "arguments": {"text": "x"}})
        used = _read_listener(port) - before
        for client in clients:
            await client.aclose()
    return used


def _read_listener(port: int) -> float:
    """Give the CPU time of the gateway that listens on a port: a child of this process."""
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        for child in file.read().split():
            with open(f"/proc/{child}/cmdline", "rb") as line:
                if f"127.0.0.1:{port}".encode() in line.read().split(b"\0"):
                    return read_cpu(int(child))
    raise ProcessLookupError(f"nothing listens on port {port}")


GROWTHS = (
    Growth("servers, first start", (10, 30, 100, 200), _start, 1.1),
    Growth("servers, second start", (10, 30, 100, 200), lambda count: _start(count, starts=2), 1.1),
    Growth("tools of 10 servers, first start", (100, 1_000, 5_000), lambda count: _start(10, count // 10), 1.1),
    Growth("tools of 10 servers, known", (100, 1_000, 5_000), lambda count: _start(10, count // 10, 2), 1.1),
    Growth("sessions over HTTP, one call each", (32, 128, 512), _open_sessions, 1.1, counts_idle=False),
    Growth("calls with records", (1_000, 4_000, 16_000), _call_often, 1.1, counts_idle=False),
    Growth("bytes of a result", (65_536, 1_048_576, 8_388_608), _return_result, 1.1, counts_idle=False),
)


async def compare_with_relay(rounds: int = 5, calls: int = 2_000) -> float:
    """Give how many times a bare relay's CPU time a call takes, by many callers over stdio, in turns."""
    ratios: list[float] = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        async with _serving(folder, 2) as ours:
            command = [sys.executable, _RELAY, os.path.join(folder, "servers.json")]
            relay = await open_pipes(command, cwd=folder, env={**surroundings(), "HOME": folder})
            try:
                await meet(relay)
                for turn in range(rounds + 1):
                    ratio = await _call(ours, calls) / await _call(relay, calls)
                    ratios += [ratio] if turn else []  # the first turn warms up
            finally:
                await relay.aclose()
    return sorted(ratios)[rounds // 2]


async def measure_growth(chosen: list[str]) -> bool:
    """Print the table and return whether everything is within its budget."""
    compile_packages()
    idle = await _start(1)
    print("| quantity | CPU time by size | exponent | budget |\n|---|---|---|---|")
    fits = True
    for one in GROWTHS:
        if chosen and not any(word in one.name for word in chosen):
            continue
        seconds = [await one.measure(size) - (idle if one.counts_idle else 0.0) for size in one.sizes]
        exponent = math.log(seconds[-1] / seconds[0]) / math.log(one.sizes[-1] / one.sizes[0])
        shown = ", ".join(f"{size:,}: {used:.2f} s" for size, used in zip(one.sizes, seconds, strict=True))
        print(f"| {one.name} | {shown} | {exponent:.2f} | {one.budget:g} |", flush=True)
        fits = fits and exponent <= one.budget
    if not chosen or "relay" in chosen:
        print(f"\nCPU time of a call, {_CALLERS} callers, stdio: {await compare_with_relay():.1f} times a bare relay's")
    return fits


if __name__ == "__main__":
    sys.exit(not asyncio.run(measure_growth(sys.argv[1:])))
