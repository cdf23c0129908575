"""The guard of a node: what a killed node leaves is ended at once, a node that lives is left alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from typing import IO, TYPE_CHECKING, Any, cast

import pytest
from tests.support.broker import KEY, BrokerProcess, name_node, new_cluster
from tests.support.cluster import open_members
from tests.support.scripts import ROOT
from tests.support.servers import honest
from tests.support.waiting import is_alive, until

from indusagi.core.process.tree import MARK, end_marked
from indusagi.interop.protocol_bridge.contract import EndpointPhase
from induscode.cluster.broker import open_broker
from induscode.cluster.guard import LastWord, can_guard, end_dead_lease
from induscode.cluster.jetstream import open_bucket
from induscode.cluster.key import Seal

if TYPE_CHECKING:
    from pathlib import Path

    from induscode.cluster.contract import ClusterSettings

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.process,
    pytest.mark.skipif(not can_guard(), reason="needs /proc and pidfds"),
]
LONG_S = 300.0
"""No test waits for the end of such a lease."""


def start_node(settings: ClusterSettings) -> tuple[subprocess.Popen[bytes], dict[str, Any]]:
    words = (settings.brokers[0], settings.prefix, settings.node)
    command = [sys.executable, "-m", "tests.support.guarded_node", *words]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    return process, json.loads(cast("IO[bytes]", process.stdout).readline())


async def read_lease(settings: ClusterSettings, lease: str) -> bytes | None:
    async with open_broker(settings) as opened:
        entry = await (await open_bucket(opened, settings.leases)).get(lease)
        return None if entry is None else entry.value


async def test_servers_of_a_killed_node_go_on_elsewhere_before_its_lease_runs_out(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker, LONG_S)
    process, server = await asyncio.to_thread(start_node, name_node(settings, "killed"))
    async with open_members([name_node(settings, "other")], [honest()]) as (other,):
        assert not other.owns
        process.kill()
        await asyncio.to_thread(process.communicate)
        await until(lambda: other.owns and other.endpoint().phase is EndpointPhase.READY)
        assert not is_alive(server["pid"])
        ended = await read_lease(settings, server["lease"])
        assert ended is not None
        assert Seal.of_cluster(KEY).open(f"{settings.leases}/{server['lease']}", ended) == {"ended": True}


async def test_guard_of_a_node_that_leaves_ends_with_it(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker, LONG_S)
    process, server = await asyncio.to_thread(start_node, name_node(settings, "leaving"))
    guards = [pid for pid in _list_children(process.pid) if "induscode.cluster.guard" in _read_command(pid)]
    assert len(guards) == 1
    await asyncio.to_thread(process.communicate, b"")
    assert process.returncode == 0
    assert not is_alive(guards[0])
    # Released by the node itself, not ended.
    assert await read_lease(settings, server["lease"]) is None


def _list_children(pid: int) -> list[int]:
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def _read_command(pid: int) -> str:
    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        return file.read()


async def test_renewal_under_way_cannot_bring_an_ended_lease_back(broker: BrokerProcess) -> None:
    settings = await new_cluster(broker, LONG_S)
    async with open_broker(settings) as opened:
        leases = await open_bucket(opened, settings.leases)
        before = await leases.put("gone-1", b'{"beat":1}')
        await leases.put("gone-1", b'{"beat":2}', before)  # arrives before the guard
        last = LastWord("gone-1", b"ended", b"gone")
        await end_dead_lease(opened, last)
        entry = await leases.get("gone-1")
        assert entry is not None
        assert entry.value == b"ended"
        await end_dead_lease(opened, last)  # ended before
        await end_dead_lease(opened, LastWord("never-1", b"ended", b"gone"))
        assert await leases.get("never-1") is None


def test_servers_that_ignore_requests_to_end_are_killed_with_their_descendants(tmp_path: Path) -> None:
    mark, pids = "01TESTMARK0000000000000000", tmp_path / "pids"
    script = f"trap '' TERM; setsid sleep 60 & echo $! > {pids}; echo $$ >> {pids}; wait"
    environment = {**os.environ, MARK: f"outer {mark}"}
    with subprocess.Popen(["sh", "-c", script], env=environment, stdin=subprocess.DEVNULL) as process:
        while not pids.exists() or len(pids.read_text().split()) != 2:
            assert process.poll() is None
        assert end_marked(mark, 0.5, 5.0)
        assert not any(is_alive(int(pid)) for pid in pids.read_text().split())
    assert end_marked(mark, 0.5, 5.0)
