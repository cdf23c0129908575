"""`indus serve --http` with 256 busy sessions: does every request get an answer, and how soon?

All calls are sent at once, so the last of them waits for all the others. What 99 of 100 calls take
at most is therefore compared with what as many calls of one client take one after the other: a
gateway that handled them at the same rate, with nothing lost on the crowd, would be at 0.99.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from time import monotonic, perf_counter
from typing import TYPE_CHECKING

from bench.gateway.client import end_group, meet
from bench.gateway.contenders import free_port
from bench.gateway.http_client import Web
from bench.measure import Pair, Sample
from bench.process import surroundings
from bench.row import CannotMeasure, Row

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from indusagi.core import JsonObject

SESSIONS = 256
EACH = 4
"""Calls of one session at once: a thousand in all."""
_ROUNDS = 3
_ALONE = 200
_WITHIN_S = 30.0
_POLL_S = 0.02
_SERVER = os.path.join(os.path.dirname(os.path.dirname(__file__)), "echo_server.py")
_CALL: JsonObject = {"name": "echo__echo", "arguments": {"text": "The quick brown fox."}}


def compare_crowd(sessions: int = SESSIONS, each: int = EACH, rounds: int = _ROUNDS) -> Pair:
    """Compare the slowest calls of a crowd with as many calls one after the other."""
    return asyncio.run(_crowd(sessions, each, rounds))


async def _crowd(sessions: int, each: int, rounds: int) -> Pair:
    _allow_files(sessions * each)
    async with open_gateway("--no-token") as port:
        clients = [Web(port, "/mcp") for _ in range(sessions)]
        for client in clients:
            await meet(client)
        for _ in range(20):
            await _call(clients[0])
        alone = sorted([await _call(clients[0]) for _ in range(_ALONE)])
        slow: list[float] = []
        for _ in range(rounds):
            async with asyncio.TaskGroup() as tasks:
                asked = [tasks.create_task(_call(one)) for one in clients for _ in range(each)]
            taken = sorted(task.result() for task in asked)
            slow.append(taken[len(taken) * 99 // 100])
        for client in clients:
            await client.aclose()
    in_turn = [sessions * each * seconds for seconds in alone]
    return Pair(Sample(statistics.median(slow), min(slow)), Sample(statistics.median(in_turn), min(in_turn)))


async def _call(client: Web) -> float:
    started = perf_counter()
    answer = await client.request("tools/call", _CALL)
    if "result" not in answer:
        raise CannotMeasure(f"a call was refused: {json.dumps(answer)[:200]}")
    return perf_counter() - started


def _allow_files(count: int) -> None:
    needed = count + 256
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        except ValueError as exc:
            raise CannotMeasure(f"the system allows fewer than {needed} open files") from exc


@asynccontextmanager
async def open_gateway(*flags: str) -> AsyncGenerator[int]:
    """Run `indus serve --http` before one server, and give its port."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "servers.json")
        row = {"command": sys.executable, "args": ["-I", "-S", _SERVER]}
        with open(config, "w", encoding="utf-8") as file:  # noqa: ASYNC230 — before anything runs
            json.dump({"mcpServers": {"echo": row}}, file)
        words = ["serve", "--http", f"127.0.0.1:{port}", "--profile", "none", *flags]
        process = subprocess.Popen(  # noqa: ASYNC220 — as above
            [sys.executable, "-m", "induscode", *words, "--mcp", config],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**surroundings(), "HOME": folder},
            cwd=folder,
            start_new_session=True,
        )
        try:
            await _listens(port)
            yield port
        finally:
            end_group(process.pid)
            process.wait()


async def _listens(port: int) -> None:
    deadline = monotonic() + _WITHIN_S
    while monotonic() < deadline:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(_POLL_S)
        else:
            writer.close()
            return
    raise CannotMeasure(f"the gateway does not listen within {_WITHIN_S:g} s")


ROWS = (
    Row(
        "gateway-http-crowd",
        f"{SESSIONS} sessions over HTTP, {SESSIONS * EACH:,} calls at once: the slowest of 100",
        "as many calls of one client, one after the other",
        compare_crowd,
        budget=1.5,
    ),
)
