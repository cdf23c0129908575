"""A cluster node: opens sessions with servers wherever they run, and owns the servers placed on it.

`ClusterNode.open_session` replaces `open_client_session` in a gateway's fleet. A stdio server opens here if this node
owns it or may claim it, otherwise over a channel to its owner. Every node connects to URL servers directly; they're
never placed. When an owner disappears, the sessions through it end, the fleet reopens them, and another node takes
over.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from indusagi.core.faults import describe_error
from indusagi.core.process.tree import MARK
from indusagi.core.tasks import Listeners
from indusagi.interop.protocol_bridge.client.connect import CLIENT_INFO, open_client_session
from indusagi.interop.protocol_bridge.client.session import ClientSession
from indusagi.interop.protocol_bridge.contract import (
    CLUSTER_PREFIX,
    EndpointPhase,
    FaultDetail,
    ProtocolFault,
    StdioServerConfig,
)
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd
from induscode.cluster.broker import Broker, open_broker
from induscode.cluster.channel import Channel, ChannelTable
from induscode.cluster.contract import (
    EPOCH_VARIABLE,
    NODE_VARIABLE,
    BrokerState,
    ClusterFault,
    ClusterSettings,
    Placement,
    UnheardError,
)
from induscode.cluster.guard import Guard, open_guard
from induscode.cluster.health import STATES, explain_state
from induscode.cluster.lease import read_lease_clock
from induscode.cluster.membership import PING, Membership, open_membership
from induscode.cluster.placement import Placements, PlacementWatch, find_target, rank_nodes
from induscode.cluster.replicas import ReplicatedServer
from induscode.cluster.served import CallerTokens, ServedServer

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.client.connect import InjectedTransport
    from indusagi.interop.protocol_bridge.client.handlers import Handlers
    from indusagi.interop.protocol_bridge.client.start.watch import StartWatch
    from indusagi.interop.protocol_bridge.contract import ServerConfig
    from indusagi.interop.protocol_bridge.fleet import ServerFleetImpl
    from induscode.cluster.contract import NodeInfo
    from induscode.cluster.placement import ServerTarget
    from induscode.cluster.seals import Seal

_log = logging.getLogger(__name__)

_POLL_INTERVAL_S = 0.1
"""Polling interval for a placement that's about to change."""
_CLAIM_TIMEOUT_S = 2.0
"""How long a node may take to claim a server after accepting it."""
_UNSETTLED_RETRIES = 5
"""How often to re-read a placement that's being claimed or rewritten by its owner."""
_IDLE_CHECK_INTERVAL_S = 5.0
"""How often to look for idle servers."""
_REST_S = 1.0
"""How long other nodes may take to disconnect from an idle server."""
_LEASE_LOST = "was stopped: its node has lost its lease"
_DRAIN_S = 30.0
"""How long a server's calls may take to finish before it moves."""


class ClusterNode:
    """This process as a member of the cluster. Create it with `open_node`."""

    def __init__(
        self, broker: Broker, membership: Membership, placements: Placements, secret: bytes, mark: str = ""
    ) -> None:
        self.broker = broker
        self._mark = mark
        """Set in the environment of this node's servers so its guard can find them."""
        self.membership = membership
        self.placements = placements
        self.secret = secret
        self.channels = ChannelTable(broker, membership.info.instance, membership.ring.own)
        self._served: dict[str, ServedServer] = {}
        """Servers this node owns, by key."""
        self._remote: dict[Channel, str] = {}
        """Channels to other nodes, each with the lease or instance it ends with."""
        self._wanted: dict[str, float] = {}
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
        self.watch = PlacementWatch(placements, membership, self._served)
        membership.on_lost.add(self._fence)
        membership.on_regained.add(self._regain)
        membership.on_refused.add(lambda why: self.on_note(f"this node gets no lease: {why}, and start it again"))
        membership.on_joined.add(self._meet_node)
        membership.on_restored.add(self._check_placements)
        membership.on_unsealed.add(self._report_unsealed)
        membership.on_gone.add(self._lose_node)
        broker.on_state.add(self._report_state)
        broker.on_cut.add(lambda: self.channels.cut("was cut off: the broker is away"))
        broker.on_back.add(self._come_back)

    @property
    def info(self) -> NodeInfo:
        """This node's report about itself."""
        return self.membership.info

    def _report_unsealed(self, name: str) -> None:
        why = "which seals no messages: it is ignored; update it"
        self.on_note(f"node {name!r} runs an earlier version of indus, {why}")

    def follow(self, fleet: ServerFleetImpl) -> None:
        """Own servers of this fleet when another node asks for it."""
        self._fleet = fleet

    def _count_owned(self) -> None:
        self.membership.info = replace(self.membership.info, owned=len(self._served))

    # -- sessions with servers --------------------------------------------------------------

    @asynccontextmanager
    async def open_session(
        self, config: ServerConfig, handlers: Handlers, injected: InjectedTransport | None, watch: StartWatch
    ) -> AsyncGenerator[ClientSession]:
        """Connect to a server, here or at its owner, and disconnect on exit."""
        if not isinstance(config, StdioServerConfig) or injected is not None:
            async with open_client_session(config, handlers, injected, watch) as session:
                yield session
            return
        target = self.find_target(config)
        try:
            if config.command.startswith(CLUSTER_PREFIX) and not all(config.command.partition("/")):
                message = f"the command {config.command!r} is incomplete: it is written {CLUSTER_PREFIX}NODE/SERVER"
                raise ClusterFault("ready", message)
            if config.replicas > 1 and target.only_node is None:
                async with ReplicatedServer(self, target, config, handlers).open(watch) as session:
                    yield session
                return
            silent: Placement | None = None
            while True:
                placement = await self._find_owner(target, config.id, silent)
                if placement.lease == self.info.lease:
                    async with self.serve_here(placement, config, handlers, watch) as session:
                        yield session
                    return
                session = await self._connect(placement, config, handlers)
                if session is not None:
                    break
                silent = placement
                await asyncio.sleep(_POLL_INTERVAL_S)
            try:
                yield session
            finally:
                await session.connection.close()
                if isinstance(session.connection.transport, Channel):
                    await session.connection.transport.close()
        except ClusterFault as fault:
            detail, why = FaultDetail(server=config.id, reason="upstream"), str(fault)
            if fault.state in STATES:
                why = f"it cannot be reached: the brokers of the cluster {STATES[fault.state].partition(':')[0]}"
            raise ProtocolFault("transport", f"server {config.id!r}: {why}", fault, detail=detail) from fault

    async def _find_owner(self, target: ServerTarget, server: str, silent: Placement | None) -> Placement:
        """Find a server's owner, claim the server, or ask the best-ranked node to claim it.

        Waits until it has an owner; the server's start deadline bounds that. A `silent` owner stays the owner until
        its lease ends, since it may just not listen yet.
        """
        members, key, loop = self.membership, target.key, asyncio.get_running_loop()
        # Nodes that accepted and nodes that declined, with the time until which to believe them.
        asked, refused = dict[str, float](), dict[str, float]()
        while True:
            if key in self._served:  # an earlier session on this node is still closing
                await asyncio.sleep(_POLL_INTERVAL_S)
                continue
            found = await self._find_placement(key)
            if found is not None and found.lease not in {"", members.info.lease}:
                holder = members.find_holder(found.lease)
                is_doubtful = holder is None or found == silent
                if not is_doubtful or not await members.end_lease(found.lease):
                    if holder is not None:
                        return found
                    await asyncio.sleep(_POLL_INTERVAL_S)
                    continue
            now = loop.time()
            ranked = rank_nodes(target, members.list_nodes())
            if not ranked:
                state = "ready" if members.is_held() else self.broker.state
                raise ClusterFault(state, self._explain_homeless(target))
            best = next((node for node in ranked if refused.get(node.instance, now) <= now), None)
            is_wanted = not self.info.draining and now - self._wanted.get(key, -_CLAIM_TIMEOUT_S) < _CLAIM_TIMEOUT_S
            if is_wanted or (best is not None and best.instance == self.info.instance):
                claimed = await self.placements.claim(key, server) if members.is_held() else None
                if claimed is not None:
                    self._wanted.pop(key, None)
                    return claimed
            elif best is not None and asked.get(best.instance, now) <= now:
                # Silent or declined: try the next node in the order for now.
                is_late = asked.pop(best.instance, None) is not None
                accepts = not is_late and await self.ask_to_own(best, key, is_offered=target.only_node is not None)
                (asked if accepts else refused)[best.instance] = loop.time() + _CLAIM_TIMEOUT_S
            await asyncio.sleep(_POLL_INTERVAL_S)

    async def _find_placement(self, key: str) -> Placement | None:
        """Read a server's placement, waiting briefly while it's unsettled.

        Either a node is claiming it, or someone without the key changed it and its owner is about to rewrite it.
        """
        found = await self.placements.find(key)
        for _ in range(_UNSETTLED_RETRIES):
            if found is None or found.epoch or found.lease == self.info.lease:
                break
            if found.lease and self.membership.find_holder(found.lease) is None:
                break
            await asyncio.sleep(_POLL_INTERVAL_S)
            found = await self.placements.find(key)
        return found

    def find_target(self, config: StdioServerConfig) -> ServerTarget:
        """Work out where a server may run."""
        return find_target(config, self.info, self.broker.settings.affinity.get(config.id))

    def _explain_homeless(self, target: ServerTarget) -> str:
        nodes, offering = self.membership.list_nodes(), target.only_node
        if not nodes and not self.membership.is_held():
            return "no node has a lease now"
        if offering is not None and all(node.node != offering for node in nodes):
            return f"node {offering!r}, which offers it, is not in the cluster"
        return "no node may run it now: all are full, draining, or run no servers of others"

    async def ask_to_own(self, node: NodeInfo, key: str, *, is_offered: bool = False) -> bool:
        """Ask another node to own a server, and return whether it accepts.

        Raises:
            ClusterFault: The server `is_offered` by that node alone, and the node doesn't have it.
        """
        try:
            answer = (await self.membership.ask(node.instance, {"op": "own", "key": key})).get("answer")
        except ClusterFault as fault:
            _log.debug("node %s was asked to own a server: %s", node.node, fault)
            return False
        if is_offered and answer == "unknown":
            raise ClusterFault("ready", f"node {node.node!r} offers no such server")
        return answer == "yes"

    # -- servers of other nodes -------------------------------------------------------------

    async def _connect(
        self, placement: Placement, config: StdioServerConfig, handlers: Handlers
    ) -> ClientSession | None:
        """Open a channel to the owner, or return `None` if nothing listens there."""
        subject = self.broker.settings.call_subject(placement.key, placement.epoch)
        channel = self.open_channel(subject, placement.lease, placement.seal, lambda: self.rest(config.id))
        session = ClientSession(channel, config.limits, handlers, CLIENT_INFO)
        session.describe_caller = self.tokens.describe
        try:
            await session.connect()
        except BaseException as exc:
            await channel.close()
            if isinstance(exc, ConnectionClosedError) and channel.is_unheard:
                return None
            raise
        return session

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
            self._tasks.create_task(self._ask_and_send(channel, instance, frame))

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
        self._served[placement.key] = served
        self._count_owned()
        end = TransportEnd("was stopped", FaultDetail(reason="closed"))
        stop = None

        try:
            subject = self.broker.settings.call_subject(placement.key, placement.epoch)
            async with AsyncExitStack() as opened:
                async with served.starting():
                    stop = await self.broker.subscribe(subject, partial(self._receive_call, served))
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
            if self._served.get(placement.key) is served:
                del self._served[placement.key]
            self._count_owned()
            await self._release(served.placement)

    def _adapt_config(self, config: StdioServerConfig, placement: Placement) -> StdioServerConfig:
        """Build the configuration for running a server here: it learns its epoch, and stops before the lease ends."""
        close_s = min(config.limits.close_s, self.membership.times.margin_s / 3)
        told = {NODE_VARIABLE: placement.node, EPOCH_VARIABLE: f"{placement.epoch}"}
        if self._mark:
            told[MARK] = self._mark
        return replace(config, limits=replace(config.limits, close_s=close_s), env={**config.env, **told})

    async def _receive_call(self, served: ServedServer, message: Msg) -> None:
        if not await served.receive(message) and message.reply:
            await self.channels.refuse(message, served.end_reason)

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
        names = ", ".join(served.placement.server for served in self._served.values())
        why = explain_state(self.broker.state)
        self.on_note(f"this node has lost its lease, and stops {names or 'no server'}{why}")
        for served in [*self._served.values()]:
            served.end(_LEASE_LOST, "node_changed")

    def _meet_node(self, node: NodeInfo) -> None:
        """Handle a node that joined or got a new lease."""
        if node.node == self.info.node:
            where = f" at {node.url}" if node.url else ""
            self.on_note(f"another node{where} is named {node.node!r} too: stop one of them (indus cluster status)")
        self._retry_faulted()

    def _check_placements(self) -> None:
        if self._tasks is not None:
            self._tasks.create_task(self.watch.check_all())

    def _regain(self) -> None:
        self.on_note("this node has a lease again")
        self._retry_faulted()

    def _come_back(self) -> None:
        if self._tasks is not None:
            self._tasks.create_task(self.channels.tell_cut())
        self._retry_faulted()
        self.on_back()

    def _report_state(self, state: BrokerState) -> None:
        self.membership.info = replace(self.membership.info, brokers=state)
        if state in STATES:
            self._reported_outage = True
            self.on_note(f"the brokers of the cluster {STATES[state]}")
        elif state == "ready" and self._reported_outage:
            self._reported_outage = False
            self.on_note("the brokers of the cluster answer again")
            self._retry_faulted()  # a broker that was only paused kept its connections

    def _retry_faulted(self) -> None:
        """Restart faulted servers now instead of at their next retry: a node or the broker is back."""
        if self._fleet is None or self._tasks is None:
            return
        for endpoint in self._fleet.endpoints():
            if isinstance(endpoint.config, StdioServerConfig) and endpoint.phase is EndpointPhase.FAULTED:
                self._tasks.create_task(self._start_server(self._fleet.restart, endpoint.config.id))

    async def _start_server(self, start: Callable[[str], Awaitable[object]], server: str) -> None:
        try:
            await start(server)
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
                self._tasks.create_task(self.drain())
            answer = {"owned": len(self._served)}
        await self.membership.requests.answer(message, answer)

    def _accept(self, key: str) -> str:
        """Start owning a server another node needs. Return `yes`, `no` if there's no room, or `unknown`."""
        fleet, tasks = self._fleet, self._tasks
        if fleet is None or tasks is None or self.info.owned >= self.info.capacity:
            return "no"
        for endpoint in fleet.endpoints():
            config = endpoint.config
            if not isinstance(config, StdioServerConfig):
                continue
            target = self.find_target(config)
            if target.key == key and self.info.may_own(target.only_node):
                self._wanted[key] = asyncio.get_running_loop().time()
                tasks.create_task(self._start_server(fleet.wake, config.id))
                return "yes"
        return "unknown"

    async def drain(self) -> None:
        """Move all servers to other nodes, each once its calls have finished or timed out."""
        async with asyncio.TaskGroup() as tasks:
            for served in [*self._served.values()]:
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
        if self._fleet is not None and self._tasks is not None:
            self._tasks.create_task(self._start_server(self._fleet.rest, server))

    async def _watch_idle(self, idle_s: float) -> None:
        """Stop this node's idle servers. Their next call restarts them."""
        while True:
            await asyncio.sleep(min(idle_s / 4, _IDLE_CHECK_INTERVAL_S))
            for served in [*self._served.values()]:
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


def _find_secret(settings: ClusterSettings) -> bytes:
    """Return the secret that seals session ids. A node without clients seals nothing for others."""
    if settings.key is not None:
        return settings.key.derive("session ids")
    if settings.role != "offers":
        raise ClusterFault("missing", "a node that serves clients needs the key of the cluster (--cluster-key)")
    return secrets.token_bytes(32)


@asynccontextmanager
async def open_node(
    settings: ClusterSettings, clock: Callable[[], float] = read_lease_clock, *, guarded: bool = False
) -> AsyncGenerator[ClusterNode]:
    """Join a cluster inside the block and keep its lease alive. Close all servers before leaving the block.

    A `guarded` node has a second process that ends its servers and its lease at once if this process is killed.

    Raises:
        ClusterFault: The broker is away, the cluster isn't prepared, or another node has the same name.
    """
    async with open_broker(settings) as broker, AsyncExitStack() as stack:
        secret = _find_secret(settings)
        entries = await broker.open_bucket(settings.placements)
        guard = await stack.enter_async_context(open_guard(settings)) if guarded else Guard()
        async with open_membership(broker, clock, before_join=guard.tell_lease) as membership:
            node = ClusterNode(broker, membership, Placements(entries, membership), secret, guard.mark)
            keys = f"{settings.node}.*" if settings.role == "offers" else ">"
            stops = [
                await broker.subscribe(node.channels.subject, node.channels.receive),
                await broker.subscribe(settings.node_subject(node.info.instance), node.receive),
                await broker.subscribe(f"$KV.{settings.placements}.{keys}", node.watch.notice),
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
