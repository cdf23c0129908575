"""A cluster node: owns the servers placed on it, answers other nodes, and moves its servers when it drains."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVarTuple

from indusagi.core.faults import describe_error
from indusagi.core.process.tree import MARK
from indusagi.core.tasks import Listeners
from indusagi.interop.protocol_bridge.client.connect import open_client_session
from indusagi.interop.protocol_bridge.client.session import ClientSession
from indusagi.interop.protocol_bridge.contract import EndpointPhase, FaultDetail, ProtocolFault, StdioServerConfig
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
from induscode.cluster.broker import STATES, Broker, explain_state, open_broker
from induscode.cluster.channel import Channel, ChannelTable
from induscode.cluster.contract import (
    EPOCH_VARIABLE,
    NODE_VARIABLE,
    BrokerState,
    ClusterFault,
    ClusterSettings,
    NodeInfo,
    Placement,
    UnheardError,
)
from induscode.cluster.guard import Guard, open_guard
from induscode.cluster.jetstream import open_bucket
from induscode.cluster.membership import PING, Membership, open_membership, read_lease_clock
from induscode.cluster.placement import Placements, ServerTarget, find_target
from induscode.cluster.served import CallerTokens, ServedServer

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.client.stdio import StartWatch
    from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
    from induscode.cluster.key import Seal

_log = logging.getLogger(__name__)
Ts = TypeVarTuple("Ts")

_IDLE_CHECK_INTERVAL_S = 5.0
"""How often to look for idle servers."""
_REST_S = 1.0
"""How long other nodes may take to disconnect from an idle server."""
_LEASE_LOST = "was stopped: its node has lost its lease"
_DRAIN_S = 30.0
"""How long a server's calls may take to finish before it moves."""


class ClusterNode:
    """This process as a member of the cluster. Create it with `open_node`."""

    def __init__(self, broker: Broker, membership: Membership, placements: Placements, mark: str) -> None:
        self.broker = broker
        self._mark = mark
        """Set in the environment of this node's servers so its guard can find them."""
        self.membership = membership
        self.placements = placements
        self.channels = ChannelTable(broker, membership.info.instance, membership.ring.own)
        self.served: dict[str, ServedServer] = {}
        """Servers this node owns, by key."""
        self._remote: dict[Channel, str] = {}
        """Channels to other nodes, each with the lease or instance it ends with."""
        self.wanted: dict[str, float] = {}
        """Keys other nodes asked this one to own, and when."""
        self.tokens = CallerTokens()
        self._fleet: ServerFleetImpl | None = None
        self._reported_outage = False
        self._tasks: asyncio.TaskGroup | None = None
        self.on_note: Listeners[[str]] = Listeners()
        """Called with a sentence when the brokers or the lease change."""
        self.on_back: Listeners[[]] = Listeners()
        """Called after reconnecting to the brokers."""
        self.on_task_end: Listeners[[str]] = Listeners()
        """Called with the handle of a server task that another node saw end."""
        membership.on_lost.add(self._fence)
        membership.on_regained.add(lambda: self._retry_faulted("this node has a lease again"))
        membership.on_refused.add(lambda why: self.on_note(f"this node gets no lease: {why}, and start it again"))
        membership.on_joined.add(self._meet_node)
        membership.on_restored.add(lambda: self._start(self._check_placements))
        membership.on_gone.add(self._lose_node)
        broker.on_state.add(self._report_state)
        broker.on_cut.add(lambda: self.channels.cut("was cut off: the broker is away"))
        broker.on_back.add(self._come_back)

    @property
    def info(self) -> NodeInfo:
        """This node's report about itself."""
        return self.membership.info

    def follow(self, fleet: ServerFleetImpl) -> None:
        """Own servers of this fleet when another node asks for it."""
        self._fleet = fleet

    def _start(self, run: Callable[[*Ts], Coroutine[object, object, None]], *arguments: *Ts) -> None:
        """Run something alongside, unless the node is leaving."""
        if self._tasks is not None:
            self._tasks.create_task(run(*arguments))

    def _count_owned(self) -> None:
        self.membership.info = replace(self.membership.info, owned=len(self.served))

    # -- servers of other nodes -------------------------------------------------------------

    def find_target(self, config: StdioServerConfig) -> ServerTarget:
        """Work out where a server may run."""
        return find_target(config, self.info, self.broker.settings.affinity.get(config.id))

    def open_channel(
        self, subject: str, owner: str, seal: Seal | None, on_rest: Callable[[], None] = lambda: None
    ) -> Channel:
        """Open a channel to another node. It ends with `owner`, the node's lease or instance.

        `on_rest` is called when the other end wants to end the channel if it's unused.
        """

        def forget() -> None:
            self._remote.pop(channel, None)

        channel = self.channels.open(subject, seal or self.membership.ring.own, forget, on_rest)
        self._remote[channel] = owner
        return channel

    def send_first(self, channel: Channel, instance: str, frame: JsonObject) -> None:
        """Send a channel's first frame to a node.

        Ping a node that hasn't reported first: the broker keeps accepting messages for a stopped process or a lost
        machine until it notices.
        """
        if self._tasks is None or self.membership.has_reported(instance):
            channel.send(frame)
        else:
            self._start(self._ask_and_send, channel, instance, frame)

    async def _ask_and_send(self, channel: Channel, instance: str, frame: JsonObject) -> None:
        try:
            await self.membership.ask(instance, PING)
        except ClusterFault as fault:
            channel.is_unheard = True
            channel.finish("is not there any more" if isinstance(fault, UnheardError) else "does not answer")
        else:
            channel.send(frame)

    def _lose_node(self, node: NodeInfo) -> None:
        gone = {node.lease}
        if all(other.instance != node.instance for other in self.membership.list_nodes()):
            gone.add(node.instance)
        for channel, owner in [*self._remote.items()]:
            if owner in gone:
                channel.is_unheard = True
                message = f"was on node {node.node!r}, which has left the cluster"
                channel.finish(message, FaultDetail(reason="node_changed"))

    # -- servers of this node ---------------------------------------------------------------

    @asynccontextmanager
    async def serve_here(
        self, placement: Placement, config: StdioServerConfig, handlers: Handlers, watch: StartWatch
    ) -> AsyncGenerator[ClientSession]:
        """Run a server here, for this node and all others."""
        served = ServedServer(placement, self.channels.accept)
        config = self._adapt_config(config, placement)
        self.served[placement.key] = served
        self._count_owned()
        end = TransportEnd("was stopped", FaultDetail(reason="closed"))
        stop = None

        async def receive(message: Msg) -> None:
            if not await served.receive(message) and message.reply:
                await self.channels.refuse(message, served.end_reason)

        try:
            subject = self.broker.settings.subject("call", placement.key, placement.epoch)
            async with AsyncExitStack() as opened:
                async with served.starting():
                    stop = await self.broker.subscribe(subject, receive)
                    opening = open_client_session(config, served.wrap_handlers(handlers), None, watch)
                    session = await opened.enter_async_context(opening)
                session.connection.check = partial(self._check_lease, served)
                session.share_subscription = partial(served.share_subscription, self)
                served.session = session
                served.ready.set()
                try:
                    yield session
                finally:
                    if session.connection.ended.done():
                        end = session.connection.ended.result()
                    await served.close(end)
        except ConnectionClosedError as exc:
            end = exc.end
            raise
        except ProtocolFault as fault:
            end = TransportEnd(str(fault), fault.detail)
            raise
        except Exception as exc:
            end = TransportEnd(f"could not be started: {describe_error(exc)}", FaultDetail(reason="closed"))
            raise
        finally:
            if stop is not None:
                await stop()
            await served.close(end)
            served.is_leaving = True
            if self.served.get(placement.key) is served:
                del self.served[placement.key]
            self._count_owned()
            await self._release(served.placement)

    def _adapt_config(self, config: StdioServerConfig, placement: Placement) -> StdioServerConfig:
        """Build the configuration for running a server here: it learns its epoch, and stops before the lease ends."""
        close_s = min(config.limits.close_s, self.membership.times.margin_s / 3)
        told = {NODE_VARIABLE: placement.node, EPOCH_VARIABLE: f"{placement.epoch}"}
        if self._mark:
            told[MARK] = self._mark
        return replace(config, limits=replace(config.limits, close_s=close_s), env={**config.env, **told})

    def _check_lease(self, served: ServedServer) -> None:
        if not self.membership.holds(served.placement.lease):
            served.end(_LEASE_LOST, "node_changed")

    async def _release(self, placement: Placement) -> None:
        if not self.membership.holds(placement.lease):
            return  # the placement ended with the lease
        try:
            await self.placements.release(placement)
        except ClusterFault as fault:
            _log.debug("the placement of %s ends with the lease: %s", placement.server, fault)

    def _fence(self) -> None:
        """Cut off all servers of this node, since another node may own them soon."""
        names = ", ".join(served.placement.server for served in self.served.values())
        why = explain_state(self.broker.state)
        self.on_note(f"this node has lost its lease, and stops {names or 'no server'}{why}")
        for served in [*self.served.values()]:
            served.end(_LEASE_LOST, "node_changed")

    def _meet_node(self, node: NodeInfo) -> None:
        """Handle a node that joined or got a new lease."""
        if node.node == self.info.node:
            where = f" at {node.url}" if node.url else ""
            self.on_note(f"another node{where} is named {node.node!r} too: stop one of them (indus cluster status)")
        self._retry_faulted()

    async def notice_placement(self, message: Msg) -> None:
        """Check a placement of this node after the broker's notice that it was written or removed."""
        served = self.served.get(message.subject.partition(f"{self.placements.name}.")[2])
        if served is not None:
            await self._check_placement(served)

    async def _check_placements(self) -> None:
        """Check all placements: someone tampered with the lease, so another node may have claimed one."""
        for served in [*self.served.values()]:
            await self._check_placement(served)

    async def _check_placement(self, served: ServedServer) -> None:
        """Rewrite a placement that someone without the key changed. A later owner's epoch ends the server."""
        if served.is_leaving or not self.membership.holds(served.placement.lease):
            return
        try:
            found = await self.placements.restore(served.placement)
            if found is None:
                served.end("was taken over by another node", "node_changed")
            elif served.is_leaving:  # released in the meantime
                await self.placements.release(found)
            else:
                served.placement = found
        except ClusterFault as fault:
            _log.debug("the placement of %s is not checked: %s", served.placement.server, fault)

    def _come_back(self) -> None:
        self._start(self.channels.tell_cut)
        self._retry_faulted()
        self.on_back()

    def _report_state(self, state: BrokerState) -> None:
        self.membership.info = replace(self.membership.info, brokers=state)
        if state in STATES:
            self._reported_outage = True
            self.on_note(f"the brokers of the cluster {STATES[state]}")
        elif state == "ready" and self._reported_outage:
            self._reported_outage = False
            self._retry_faulted("the brokers of the cluster answer again")  # a paused one kept its connections

    def _retry_faulted(self, note: str = "") -> None:
        """Restart faulted servers now instead of at their next retry: a node or the broker is back."""
        if note:
            self.on_note(note)
        fleet = self._fleet
        if fleet is None:
            return
        for endpoint in fleet.endpoints():
            if isinstance(endpoint.config, StdioServerConfig) and endpoint.phase is EndpointPhase.FAULTED:
                self._start(self._change_server, fleet.restart, endpoint.config.id)

    async def _change_server(self, change: Callable[[str], Awaitable[object]], server: str) -> None:
        try:
            await change(server)
        except ProtocolFault as fault:
            _log.debug("server %s was removed meanwhile: %s", server, fault)

    # -- requests of other nodes ------------------------------------------------------------

    async def receive(self, message: Msg) -> None:
        """Answer another node's request to this one."""
        request = self.membership.requests.open(message)
        if request is None:
            return  # forged, or sent again
        operation, key = request.get("op"), request.get("key")
        answer: JsonObject = {"answer": "no"}
        if operation == "task" and isinstance(key, str):
            self.on_task_end(key)
        elif operation == "ping":
            answer = {"answer": "yes"}
        elif operation == "own" and isinstance(key, str):
            answer = {"answer": self._accept(key)}
        elif operation == "drain" and self._tasks is not None:
            if not self.info.draining:
                self.membership.info = replace(self.info, draining=True)
                await self.membership.report()
                self._start(self.drain)
            answer = {"owned": len(self.served)}
        await self.membership.requests.answer(message, answer)

    def _accept(self, key: str) -> str:
        """Start owning a server another node needs. Return `yes`, `no` if there's no room, or `unknown`."""
        fleet = self._fleet
        if fleet is None or self.info.owned >= self.info.capacity:
            return "no"
        for endpoint in fleet.endpoints():
            config = endpoint.config
            if not isinstance(config, StdioServerConfig):
                continue
            target = self.find_target(config)
            if target.key == key and self.info.may_own(target.only_node, target.sandbox):
                self.wanted[key] = asyncio.get_running_loop().time()
                self._start(self._change_server, fleet.wake, config.id)
                return "yes"
        return "unknown"

    async def drain(self) -> None:
        """Move all servers to other nodes, each once its calls have finished or timed out."""
        async with asyncio.TaskGroup() as tasks:
            for served in [*self.served.values()]:
                tasks.create_task(self._move(served))

    async def _move(self, served: ServedServer) -> None:
        if await served.finish_calls(_DRAIN_S):
            served.end("is moved to another node", "moved")
            return
        self.on_note(f"server {served.placement.server!r} is moved while calls run: their outcome is unknown")
        served.end("is moved to another node", "node_changed")

    # -- idle servers -----------------------------------------------------------------------

    def rest(self, server: str) -> None:
        """Disconnect from another node's server until its next call, unless it's in use here."""
        if self._fleet is not None:
            self._start(self._change_server, self._fleet.rest, server)

    async def _watch_idle(self, idle_s: float) -> None:
        """Stop this node's idle servers. Their next call restarts them."""
        while True:
            await asyncio.sleep(min(idle_s / 4, _IDLE_CHECK_INTERVAL_S))
            for served in [*self.served.values()]:
                if self._fleet is None or not served.is_idle(idle_s) or not await served.ask_peers_to_rest(_REST_S):
                    continue
                try:
                    served.is_resting = await self._fleet.rest(served.placement.server)
                except ProtocolFault as fault:
                    _log.debug("server %s was removed in the meantime: %s", served.placement.server, fault)

    # -- lifecycle --------------------------------------------------------------------------

    async def run(self) -> None:
        """Keep the lease and serve other nodes until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            if self.broker.settings.idle_s > 0:
                tasks.create_task(self._watch_idle(self.broker.settings.idle_s))
            try:
                await self.membership.run()
            finally:
                self._tasks = None


@asynccontextmanager
async def open_node(
    settings: ClusterSettings, clock: Callable[[], float] = read_lease_clock, *, guarded: bool = False
) -> AsyncGenerator[ClusterNode]:
    """Join a cluster inside the block and keep its lease alive. Close all servers before leaving the block.

    A `guarded` node has a second process that ends its servers and its lease at once if this process is killed.
    """
    async with open_broker(settings) as broker, AsyncExitStack() as stack:
        entries = await open_bucket(broker, settings.placements)
        guard = await stack.enter_async_context(open_guard(settings)) if guarded else Guard()
        async with open_membership(broker, clock, before_join=guard.tell_lease) as membership:
            node = ClusterNode(broker, membership, Placements(entries, membership), guard.mark)
            keys = f"{settings.node}.*" if settings.role == "offers" else ">"
            stops = [
                await broker.subscribe(settings.subject("inbox", node.info.instance, "*"), node.channels.receive),
                await broker.subscribe(settings.subject("node", node.info.instance), node.receive),
                await broker.subscribe(f"$KV.{settings.placements}.{keys}", node.notice_placement),
            ]
            running = asyncio.create_task(node.run(), name="cluster node")  # noqa: TID251 — awaited below
            try:
                yield node
            finally:
                await node.channels.close()
                if running.done() and not running.cancelled() and running.exception() is not None:
                    _log.error("the node has failed", exc_info=running.exception())
                running.cancel()
                await asyncio.wait({running})
                for stop in stops:
                    await stop()
