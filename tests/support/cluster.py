"""Nodes of a cluster in one process, each with a fleet of its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tests.support.broker import name_node

from indusagi.interop.protocol_bridge.client.start import Supervision
from indusagi.interop.protocol_bridge.client.tasks import TaskExchange
from indusagi.interop.protocol_bridge.contract import BridgeConfig
from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
from induscode.cluster.broker import open_broker
from induscode.cluster.jetstream import open_bucket
from induscode.cluster.membership import read_lease_clock
from induscode.cluster.node import ClusterNode, open_node
from induscode.cluster.server_sessions import open_session

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.endpoint import ServerEndpointImpl
    from induscode.cluster.contract import ClusterSettings


class LeaseClock:
    """A clock of leases that the test moves: however slow the machine is, no node loses its lease by it."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        """Return the time of this clock."""
        return self.now

    def pass_lease(self) -> None:
        """Move it past the end of each lease."""
        self.now += 100.0


async def end_leases(settings: ClusterSettings, *leases: str) -> None:
    """Remove leases at the broker, as it does when they run out."""
    async with open_broker(settings) as broker:
        bucket = await open_bucket(broker, settings.leases)
        for lease in leases:
            entry = await bucket.get(lease)
            if entry is not None:
                await bucket.delete(lease, entry.revision)


SOON = Supervision(first_s=0.05, factor=1.0, jitter=0.0, failures=1_000)


@dataclass
class Member:
    """A node with its fleet."""

    node: ClusterNode
    fleet: ServerFleetImpl

    @property
    def owns(self) -> bool:
        """Whether it owns a server."""
        return self.node.info.owned > 0

    def endpoint(self, server: str = "honest") -> ServerEndpointImpl:
        """Return its present endpoint of a server."""
        endpoint = self.fleet.endpoint(server)
        assert endpoint is not None
        return endpoint


class TaskCaller:
    """A client that knows tasks; a `Caller`."""

    def __init__(self, core: JsonObject | None = None) -> None:
        self.client = self.log_level = self.exchange = None
        self.capabilities: JsonObject = {}
        self.hops = 0
        self.tasks = TaskExchange(core)

    def notify(self, method: str, params: JsonObject) -> None:
        """Fail: a test with notifications has handlers for them."""
        raise AssertionError(method)

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Fail: nothing is asked."""
        raise AssertionError(method)


@asynccontextmanager
async def open_members(
    settings: Sequence[ClusterSettings],
    servers: Sequence[ServerConfig],
    handlers: Handlers | None = None,
    clock: Callable[[], float] = read_lease_clock,
) -> AsyncGenerator[list[Member]]:
    """Run nodes whose fleets have the same servers, and start these."""
    members: list[Member] = []
    async with AsyncExitStack() as stack:
        for one in settings:
            node = await stack.enter_async_context(open_node(one, clock))
            fleet = ServerFleetImpl(supervision=SOON, open_session=partial(open_session, node), handlers=handlers)
            stack.push_async_callback(fleet.tear_down)
            node.follow(fleet)
            members.append(Member(node, fleet))
            await fleet.start(BridgeConfig(servers), waiting={server.id: "asleep" for server in servers})
        async with asyncio.TaskGroup() as tasks:
            for member in members:
                for server in servers:
                    tasks.create_task(member.fleet.wake(server.id))
        yield members


@asynccontextmanager
async def open_pair(
    settings: ClusterSettings,
    server: ServerConfig,
    handlers: Handlers | None = None,
    clock: Callable[[], float] = read_lease_clock,
) -> AsyncGenerator[tuple[Member, Member]]:
    """Run two nodes with one server; yields its owner, and the other node."""
    named = [name_node(settings, name) for name in ("one", "two")]
    async with open_members(named, [server], handlers, clock) as members:
        owner, other = sorted(members, key=lambda member: not member.owns)
        assert owner.owns
        assert not other.owns
        yield owner, other
