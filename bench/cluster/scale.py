"""What a cluster costs by its size: servers and nodes at a real broker, and a simulation of 10,000 servers.

The servers of `measure_size` are placements without processes: what grows with them is measured, not the machine.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING

from tests.support.broker import broker_process, name_node, new_cluster

from bench.deck import make_requests
from bench.gateway.run import resident
from bench.row import CannotMeasure, Check, Row
from induscode.cluster.contract import NodeInfo
from induscode.cluster.node import open_node
from induscode.cluster.placement import ServerTarget, rank_nodes
from induscode.deck.mcp.ledger import BridgeLedger

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import TypeAlias

    from induscode.cluster.node import ClusterNode

    Work: TypeAlias = Callable[[ClusterNode, str], Awaitable[object]]

SERVERS = (10, 100, 1_000)
NODES = (1, 3, 5)
_AT = "2026-11-15T12:00:00.000Z"
_IDLE_S = 3.0
_LEASE_S = 10.0
_AT_ONCE = 16
_SIMULATED_SERVERS, _SIMULATED_TOOLS = 10_000, 1_000_000
_RANKED_NODES = 5
_SIMULATE_S = 900
_MB = 1_000_000


@dataclass(frozen=True, slots=True)
class Size:
    """What a cluster of one size costs."""

    nodes: int
    servers: int
    claim_ms: float
    """To place one server, of sixteen that are placed at once."""
    find_ms: float
    """To find the owner of one server."""
    list_ms: float
    """To list all placements."""
    idle_cpu: float
    """Of one core, for each node, when nothing happens."""
    broker_mb: float


async def measure_size(nodes: int, servers: int) -> Size:
    """Place servers on nodes of this process, and see what that and doing nothing costs."""
    with tempfile.TemporaryDirectory() as folder, broker_process(Path(folder)) as broker:
        settings = replace(await new_cluster(broker, _LEASE_S), capacity=servers)
        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(open_node(name_node(settings, f"n{number}"))) for number in range(nodes)
            ]
            keys = [f"{number:032x}" for number in range(servers)]
            claim_s = await _time_all(keys, lambda node, key: node.placements.claim(key, key), opened)
            find_s = await _time_all(keys, lambda node, key: node.placements.find(key), opened)
            started = perf_counter()
            found = await opened[0].placements.list_all()
            list_s = perf_counter() - started
            if len(found) != servers:
                raise CannotMeasure(f"{len(found)} placements of {servers} are listed")
            used = process_time()
            await asyncio.sleep(_IDLE_S)
            idle = (process_time() - used) / _IDLE_S / nodes
            return Size(
                nodes, servers, claim_s * 1e3, find_s * 1e3, list_s * 1e3, idle, resident(broker.process.pid) / _MB
            )


async def _time_all(keys: Sequence[str], work: Work, nodes: Sequence[ClusterNode]) -> float:
    """Do something for each key, some at once and by all nodes in turn; return the seconds for one."""
    waiting = iter(enumerate(keys))

    async def go_on() -> None:
        for number, key in waiting:
            if await work(nodes[number % len(nodes)], key) is None:
                raise CannotMeasure(f"{key} has no owner")

    started = perf_counter()
    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(go_on())
    return (perf_counter() - started) / len(keys)


def list_table() -> list[str]:
    """Measure all sizes, and return the table in Markdown."""
    head = "| nodes | servers | place one | find one | list all | idle CPU of a node | memory of the broker |"
    lines = [head, "|---|---|---|---|---|---|---|"]
    for nodes in NODES:
        for servers in SERVERS:
            one = asyncio.run(measure_size(nodes, servers))
            cells = (f"{one.claim_ms:.2f} ms", f"{one.find_ms:.2f} ms", f"{one.list_ms:,.0f} ms")
            rest = (f"{one.idle_cpu:.1%}", f"{one.broker_mb:.0f} MB")
            lines.append(f"| {nodes} | {servers:,} | {' | '.join((*cells, *rest))} |")
            print(lines[-1], flush=True)
    return lines


def _compare_sizes() -> Check:
    """Compare placing the last servers of many with placing those of few: it must not grow with their number."""
    few, many = (asyncio.run(measure_size(3, count)) for count in (SERVERS[0], SERVERS[-1]))
    ok = many.claim_ms <= 3 * few.claim_ms and many.find_ms <= 3 * few.find_ms
    note = f"placing one takes {many.claim_ms:.2f} ms among {many.servers:,}, {few.claim_ms:.2f} ms among {few.servers}"
    return Check(ok, f"{note}; finding one {many.find_ms:.2f} and {few.find_ms:.2f} ms")


# -- a simulation -----------------------------------------------------------------------------


def simulate(servers: int = _SIMULATED_SERVERS, tools: int = _SIMULATED_TOOLS) -> str:
    """Fold a ledger of so many tools, list them, and place their servers; return the times and the memory."""
    each = tools // servers
    began = perf_counter()
    ledger = BridgeLedger.empty()
    for number in range(servers):
        for request in make_requests(each, f"server{number}"):
            ledger = ledger.enroll(request, _AT)
    enrolled_s = perf_counter() - began
    log = ledger.log
    began = perf_counter()
    folded = BridgeLedger.from_log(log)
    fold_s = perf_counter() - began
    began = perf_counter()
    listed = len(folded.snapshot.live)
    list_s = perf_counter() - began
    nodes = [NodeInfo(node=f"n{number}", instance=f"i{number}", capacity=servers) for number in range(_RANKED_NODES)]
    began = perf_counter()
    for number in range(servers):
        rank_nodes(ServerTarget(f"{number:032x}"), nodes)
    place_s = perf_counter() - began
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1_000_000
    return (
        f"{servers:,} servers with {listed:,} tools: enrolled in {enrolled_s:.1f} s, folded in {fold_s:.1f} s, "
        f"listed in {list_s:.2f} s, placed on {_RANKED_NODES} nodes in {place_s:.2f} s, {memory:.1f} GB of memory"
    )


def _simulate() -> Check:
    command = [sys.executable, "-m", "bench.cluster", "--simulate"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=_SIMULATE_S, check=False)
    if done.returncode:
        raise CannotMeasure(f"the simulation failed: {done.stderr.strip()[-300:]}")
    return Check(ok=True, note=done.stdout.strip())


ROWS = (
    Row(
        "cluster-size",
        f"placing and finding a server among {SERVERS[-1]:,} at three nodes",
        f"among {SERVERS[0]}",
        _compare_sizes,
    ),
    Row(
        "cluster-simulation",
        f"{_SIMULATED_SERVERS:,} servers with {_SIMULATED_TOOLS:,} tools: fold, listing, placement",
        "nothing: it is stated",
        _simulate,
    ),
)
