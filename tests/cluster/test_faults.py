"""Faults between nodes and brokers, each once: a partition of the owner, and the loss of the brokers' leader."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from tests.support.broker import (
    KEY,
    SHORT_LEASE_S,
    broker_process,
    broker_processes,
    find_leader,
    name_node,
    new_cluster,
)
from tests.support.broker_proxy import open_proxy
from tests.support.cluster import LeaseClock, end_leases, open_members
from tests.support.servers import honest
from tests.support.waiting import is_alive, until

from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.contract import EndpointPhase, ProtocolFault
from induscode.cluster.broker import open_broker
from induscode.cluster.contract import ClusterFault, ClusterSettings, LostRaceError
from induscode.cluster.jetstream import open_bucket
from induscode.cluster.opening import prepare_cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from pathlib import Path

    from tests.support.cluster import Member

pytestmark = [pytest.mark.anyio, pytest.mark.process]


async def find_pid(member: Member) -> int | None:
    """Return the process that answers a call at a node; None if none does."""
    try:
        result = await member.endpoint().invoke("pid", {})
    except ProtocolFault:
        return None
    pid = result.structured.get("pid") if is_json_object(result.structured) else None
    return pid if isinstance(pid, int) else None


async def find_next_pid(member: Member) -> int | None:
    """Return the process that answers the first call with an answer; calls before it may be cut off with the broker."""
    found: list[int | None] = []

    async def call() -> bool:
        found.append(await find_pid(member))
        return found[-1] is not None

    await until(call)
    return found[-1]


# The client of the broker leaves the transport of a connection that it gave up while it was made to the collector.
@pytest.mark.filterwarnings("ignore:.*StreamWriter:pytest.PytestUnraisableExceptionWarning")
async def test_partitioned_owner_ends_its_server_before_another_node_runs_it(tmp_path: Path) -> None:
    """Connections stay open and nothing arrives: the owner knows by its lease alone."""
    with broker_process(tmp_path) as broker:
        settings, clocks = await new_cluster(broker, SHORT_LEASE_S), {name: LeaseClock() for name in "ab"}
        async with AsyncExitStack() as stack:
            proxies = [await stack.enter_async_context(open_proxy([broker.port])) for _ in "ab"]
            named = [
                replace(name_node(settings, name), brokers=proxy.urls)
                for name, proxy in zip("ab", proxies, strict=True)
            ]
            members = [
                (await stack.enter_async_context(open_members([one], [honest()], clock=clocks[one.node])))[0]
                for one in named
            ]
            owner, other = sorted(members, key=lambda member: not member.owns)
            former = await find_pid(owner)
            assert former is not None
            assert await find_pid(other) == former
            proxy = proxies[members.index(owner)]
            proxy.hold("up", "down")
            # The owner answers its own clients for as long as its lease lasts, and ends the server by its clock.
            assert await find_pid(owner) == former
            lease = owner.node.info.lease
            clocks[owner.node.info.node].pass_lease()
            assert await find_pid(owner) is None
            await until(lambda: not is_alive(former))
            # The other node hears nothing of it for as long, and runs the server once the broker has ended the lease.
            clocks[other.node.info.node].pass_lease()
            await until(lambda: other.node.membership.find_holder(lease) is None)
            await until(other.node.membership.is_held)
            assert (await find_pid(other), other.owns) == (None, False)
            await end_leases(settings, lease)
            pid = await find_next_pid(other)
            assert pid not in {former, None}
            assert await find_pid(owner) is None
            await proxy.release()
            await until(lambda: owner.endpoint().phase is EndpointPhase.READY)
            assert await find_pid(owner) == pid


@pytest.mark.realtime
async def test_lost_leader_of_three_brokers_ends_no_server(tmp_path: Path) -> None:
    with broker_processes(tmp_path) as brokers:
        urls = [broker.url for broker in brokers]
        settings = ClusterSettings(brokers=urls, node="test", prefix="three", key=KEY)
        async with open_broker(settings) as opened:
            await until(lambda: _succeeds(prepare_cluster(opened, replicas=3)))
            name = await find_leader(opened)
        async with open_members([name_node(settings, name) for name in "ab"], [honest()]) as members:
            former = await find_pid(members[0])
            assert former is not None
            opened_at = [await open_bucket(member.node.broker, settings.placements) for member in members]
            next(broker for broker in brokers if broker.name == name).stop()
            for member, entries in zip(members, opened_at, strict=True):
                await until(lambda entries=entries, node=member.node: _succeeds(entries.put(node.info.node, b"")))
                assert await find_next_pid(member) == former


async def _succeeds(work: Awaitable[object]) -> bool:
    try:
        await work
    except ClusterFault:
        return False
    except LostRaceError:  # done before, without an answer
        pass
    return True
