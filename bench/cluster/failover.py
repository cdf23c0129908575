"""How long clients are without a server: after the kill of its owner, and of the leader of the brokers."""

from __future__ import annotations

import asyncio
import signal
import statistics
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING

from tests.support.broker import find_leader

from bench.cluster.nodes import is_answer, make_call, open_cluster
from bench.row import CannotMeasure, Check, Row
from induscode.cluster.broker import open_broker
from induscode.cluster.contract import ClusterSettings

if TYPE_CHECKING:
    from bench.cluster.nodes import MeasuredCluster, Node

KILLED_S, CLOSED_S, LEADER_S = 12.0, 3.0, 6.0
_TRIES = 3
_LIMIT_S = 60.0
_POLL_S = 0.02
_WATCH_S = 8.0
_CALL_S = 2.0


async def _wait_for_answer(node: Node, server: str, since: float) -> float:
    """Call until the server answers, and return how long that took."""
    while perf_counter() - since < _LIMIT_S:
        client = node.connect()
        with suppress(CannotMeasure, TimeoutError):
            async with asyncio.timeout(_CALL_S):
                answer = await client.request("tools/call", make_call(server))
            if is_answer(answer):
                return perf_counter() - since
        await client.aclose()
        await asyncio.sleep(_POLL_S)
    raise CannotMeasure(f"{server} does not answer within {_LIMIT_S:g} s")


async def _kill_owner(*, guard_too: bool) -> float:
    async with open_cluster(nodes=3, servers=3) as cluster:
        owners = cluster.find_owners()
        server = cluster.servers[0]
        owner = owners[server]
        other = next(node for node in cluster.nodes if node is not owner)
        began = perf_counter()
        if guard_too:  # as if the machine were lost: nothing is left that could end the lease
            owner.process.send_signal(signal.SIGSTOP)
        else:
            owner.process.kill()
        try:
            return await _wait_for_answer(other, server, began)
        finally:
            if guard_too:
                owner.process.send_signal(signal.SIGCONT)


def measure_killed() -> Check:
    """Kill the owner of a server with -9; its guard ends the lease."""
    taken = [asyncio.run(_kill_owner(guard_too=False)) for _ in range(_TRIES)]
    worst = max(taken)
    median = statistics.median(taken)
    note = f"answers elsewhere after {median:.1f} s, {worst:.1f} s at most, of {_TRIES} (goal {CLOSED_S:g} s)"
    return Check(worst <= CLOSED_S, note)


def measure_silent() -> Check:
    """Stop the owner of a server, as if its machine were lost: its lease of 10 s runs out."""
    taken = asyncio.run(_kill_owner(guard_too=True))
    return Check(
        taken <= KILLED_S, f"answers elsewhere after {taken:.1f} s, with a lease of 10 s (goal {KILLED_S:g} s)"
    )


async def _kill_leader() -> Check:
    """Kill the leader of three brokers under calls at all nodes; the longest time without an answer counts."""
    async with open_cluster(nodes=3, servers=3, brokers=3) as cluster:
        settings = ClusterSettings(brokers=cluster.addresses.split(","), node="bench")
        async with open_broker(settings) as opened:
            name = await find_leader(opened)
        leader = next(broker for broker in cluster.brokers if broker.name == name)
        began = perf_counter()
        gaps: list[float] = []
        wrong: list[str] = []
        async with asyncio.TaskGroup() as tasks:
            for node in cluster.nodes:
                for server in cluster.servers:
                    tasks.create_task(_watch_gap(cluster, node, server, began + 1.0 + _WATCH_S, gaps, wrong))
            await asyncio.sleep(1.0)
            leader.stop()
    longest = max(gaps)
    note = f"at most {longest:.1f} s without an answer at any node, {len(wrong)} wrong answers (goal {LEADER_S:g} s, 0)"
    return Check(longest <= LEADER_S and not wrong, note)


async def _watch_gap(
    cluster: MeasuredCluster, node: Node, server: str, until: float, gaps: list[float], wrong: list[str]
) -> None:
    """Call a server again and again, and take down the longest time between two answers."""
    last, longest = perf_counter(), 0.0
    while perf_counter() < until:
        client = node.connect()
        with suppress(CannotMeasure, TimeoutError):
            async with asyncio.timeout(_CALL_S):
                answer = await client.request("tools/call", make_call(server))
            now = perf_counter()
            if is_answer(answer):
                longest, last = max(longest, now - last), now
            elif "result" in answer and not answer["result"].get("isError"):
                wrong.append(str(answer))
        await client.aclose()
        await asyncio.sleep(_POLL_S)
    gaps.append(max(longest, perf_counter() - last))


ROWS = (
    Row(
        "cluster-killed", "the owner of a server killed with -9: until it answers elsewhere", "the goal", measure_killed
    ),
    Row("cluster-silent", "the owner of a server stopped, as a lost machine: the same", "the goal", measure_silent),
    Row(
        "cluster-leader",
        "the leader of three brokers killed under calls: the longest silence",
        "the goal",
        lambda: asyncio.run(_kill_leader()),
    ),
)
