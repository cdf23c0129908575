"""`python -m outside.leaver`: how long a leaver keeps access to three nodes of a cluster.

Each round gives somebody a session at one node, its stream by way of another, and a running call at the third. Then
`indus tokens revoke` (or `lock`, for a user whose access token is still valid) runs on one machine. A round ends when
the stream is closed, the call has ended, and every node answers 401. Its time includes the start of the command. Ends
with 1 if a round took longer than two seconds.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import anyio
import httpx2
from tests.commands.serving import hello
from tests.support.broker import broker_process
from tests.support.issuer import running_issuer
from tests.support.resources import STAMP

from induscode.cluster.broker import open_broker
from induscode.cluster.contract import ClusterSettings
from induscode.cluster.key import create_key
from induscode.cluster.opening import prepare_cluster
from outside.approvals.processes import build_environment, start_gateway
from outside.install import ROOT

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_S = 2.0
_GIVE_UP_S = 60.0
_LEASE_S = 60.0
_AUDIENCE = "https://tools.example/mcp"
_JSON = {"accept": "application/json, text/event-stream"}


async def _run(home: Path, *words: str) -> str:
    command = [sys.executable, "-m", "induscode", *words]
    done = await anyio.run_process(command, env=build_environment(home), cwd=home)
    return done.stdout.decode().strip()


async def _ask(client: httpx2.AsyncClient, url: str, token: str) -> int:
    headers = {**_JSON, "authorization": f"Bearer {token}", "mcp-protocol-version": "2026-07-28"}
    frame = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": STAMP}}
    return (await client.post(url, json=frame, headers={**headers, "mcp-method": "tools/list"})).status_code


async def _wait_for(client: httpx2.AsyncClient, urls: Sequence[str], token: str, status: int) -> None:
    for url in urls:
        while await _ask(client, url, token) != status:  # noqa: ASYNC110 — of another process
            await anyio.sleep(0.02)


async def _leave(
    client: httpx2.AsyncClient, urls: Sequence[str], home: Path, token: str, words: Sequence[str]
) -> float:
    """Take somebody's access away, and return after how many seconds it was gone."""
    a, b, c = urls
    headers = {**_JSON, "authorization": f"Bearer {token}"}
    session = (await client.post(b, json=hello(), headers=headers)).headers["mcp-session-id"]
    headers["mcp-session-id"] = session
    is_open, began = anyio.Event(), 0.0

    async def stream() -> None:
        with suppress(httpx2.HTTPError):
            async with client.stream("GET", c, headers={**headers, "accept": "text/event-stream"}) as response:
                is_open.set()
                async for _ in response.aiter_bytes():
                    pass

    async def call() -> None:
        params = {"name": "one__slow", "arguments": {"seconds": 600}}
        frame = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
        with suppress(httpx2.HTTPError):
            await client.post(a, json=frame, headers=headers)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(stream)
        tasks.start_soon(call)
        with anyio.fail_after(_GIVE_UP_S):
            await is_open.wait()
            await anyio.sleep(0.2)  # for the call
            began = time.monotonic()
            tasks.start_soon(_run, home, "tokens", *words)
            tasks.start_soon(_wait_for, client, urls, token, 401)
    return time.monotonic() - began


async def measure(rounds: int) -> dict[str, list[float]]:
    """Run the rounds, and return their times by kind."""
    times: dict[str, list[float]] = {"revoke": [], "lock": []}
    with tempfile.TemporaryDirectory() as folder:
        root, key = Path(folder), str(Path(folder) / "cluster.key")
        async with AsyncExitStack() as stack:
            broker = stack.enter_context(broker_process(root / "broker"))
            issuer = await stack.enter_async_context(running_issuer())
            settings = ClusterSettings(brokers=[broker.url], node="set-up", key=create_key(key))
            async with open_broker(settings) as opened:
                await prepare_cluster(opened, replicas=1, lease_s=_LEASE_S)
            rows = {"one": {"command": sys.executable, "args": [str(ROOT / "tests" / "servers" / "honest.py")]}}
            homes = [root / name for name in "abc"]
            urls: list[str] = []
            for home in homes:
                (home / "indus").mkdir(parents=True, mode=0o700)
                (home / "servers.json").write_text(json.dumps({"mcpServers": rows}), "utf-8")
                flags = ["--mcp", str(home / "servers.json"), "--cluster", broker.url, "--node", home.name]
                flags += ["--cluster-key", key, "--auth", issuer.url, "--audience", _AUDIENCE]
                urls.append(await start_gateway(home, flags, build_environment(home), stack))
            client = await stack.enter_async_context(httpx2.AsyncClient(timeout=_GIVE_UP_S, trust_env=False))
            for number in range(rounds):
                token = await _run(homes[0], "tokens", "create", f"t{number}")
                access = issuer.mint(_AUDIENCE, sub=f"user{number}")
                for kind, name, presented in (("revoke", f"t{number}", token), ("lock", f"user{number}", access)):
                    with anyio.fail_after(_GIVE_UP_S):
                        await _wait_for(client, urls, presented, 200)
                    times[kind].append(await _leave(client, urls, homes[number % 3], presented, (kind, name)))
    return times


def main() -> int:
    """Read the options, measure, and print the table."""
    parser = argparse.ArgumentParser(prog="outside.leaver", description="Measure how long a leaver keeps access.")
    parser.add_argument("--rounds", type=int, default=20)
    times = anyio.run(measure, parser.parse_args().rounds)
    for kind, seconds in times.items():
        print(f"{kind}: {len(seconds)} rounds, median {median(seconds):.2f} s, slowest {max(seconds):.2f} s")
    return int(max(map(max, times.values())) > _MOST_S)


if __name__ == "__main__":
    sys.exit(main())
