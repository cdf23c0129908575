"""Calls through a cluster: what forwarding adds, and how many calls three nodes answer."""

from __future__ import annotations

import asyncio
import itertools
import statistics
from time import perf_counter
from typing import TYPE_CHECKING

from bench.cluster.nodes import is_answer, make_call, open_cluster
from bench.row import CannotMeasure, Check, Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.gateway.http_client import Web

FORWARDED_MS = 1.0
RATE, P99_MS = 1_000, 25.0
CALLERS = 16
_ROUNDS, _EACH = 20, 50
_WARM_S, _LOAD_S = 1.0, 6.0
_SERVERS = 6


async def call_timed(client: Web, server: str) -> float:
    """Call a server, and return how long it took."""
    started = perf_counter()
    if not is_answer(await client.request("tools/call", make_call(server))):
        raise CannotMeasure("a call has failed")
    return perf_counter() - started


async def _forward() -> Check:
    """Call one server at its owner and at the other node, in turns."""
    async with open_cluster(nodes=2, servers=1) as cluster:
        owner = cluster.find_owners()[cluster.servers[0]]
        other = next(node for node in cluster.nodes if node is not owner)
        clients = {"local": owner.connect(), "forwarded": other.connect()}
        taken: dict[str, list[float]] = {name: [] for name in clients}
        for number, (name, client) in itertools.product(range(_ROUNDS + 1), clients.items()):
            seconds = [await call_timed(client, cluster.servers[0]) for _ in range(_EACH)]
            if number:  # the first round warms up
                taken[name] += seconds
        for client in clients.values():
            await client.aclose()
    local, forwarded = (statistics.median(taken[name]) * 1e3 for name in ("local", "forwarded"))
    more = forwarded - local
    note = f"p50 {forwarded:.2f} ms, at the owner {local:.2f} ms: {more:.2f} ms more (goal {FORWARDED_MS:g})"
    return Check(more <= FORWARDED_MS, note)


async def _load() -> Check:
    """Call six servers at three nodes, by callers that each use one node and every server."""
    async with open_cluster(nodes=3, servers=_SERVERS) as cluster:
        clients = [cluster.nodes[number % 3].connect() for number in range(CALLERS)]
        taken: list[float] = []
        began = perf_counter()

        async def be_caller(client: Web, first: int) -> None:
            for number in itertools.count(first):
                seconds = await call_timed(client, cluster.servers[number % _SERVERS])
                since = perf_counter() - began
                if since > _WARM_S:
                    taken.append(seconds)
                if since > _WARM_S + _LOAD_S:
                    return

        async with asyncio.TaskGroup() as tasks:
            for number, client in enumerate(clients):
                tasks.create_task(be_caller(client, number))
        for client in clients:
            await client.aclose()
    rate, p50, p99 = len(taken) / _LOAD_S, *_find_percentiles(taken)
    note = (
        f"{rate:,.0f} calls/s of {CALLERS} callers, p50 {p50:.1f} ms, p99 {p99:.1f} ms (goal {RATE:,}/s, {P99_MS:g} ms)"
    )
    return Check(rate >= RATE and p99 <= P99_MS, note)


def _find_percentiles(seconds: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2] * 1e3, ordered[len(ordered) * 99 // 100] * 1e3


ROWS = (
    Row(
        "cluster-forward",
        "a call over HTTP at a node that does not own the server",
        "the same call at its owner",
        lambda: asyncio.run(_forward()),
    ),
    Row(
        "cluster-load",
        f"{CALLERS} callers of {_SERVERS} servers through three node processes",
        "calls a second and the slowest of 100",
        lambda: asyncio.run(_load()),
    ),
)
