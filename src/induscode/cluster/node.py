"""A node: opens sessions with servers wherever they run, and owns those that are placed on it.

`ClusterNode.open_session` replaces `open_client_session` in the fleet of a gateway. A stdio server is opened here if
this node owns it or may claim it, and over a channel to its owner otherwise. Servers behind a URL are connected from
every node: nothing of them is placed. When an owner is gone, the sessions over it end, the fleet opens them again, and
one of the nodes becomes the owner.
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
from induscode.cluster.health import STATES
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

_PAUSE_S = 0.1
"""Between two looks at a placement that is about to change."""
_ASKED_S = 2.0
"""How long a node that was asked to own a server may take to claim it."""
_UNSETTLED_LOOKS = 5
"""At a placement that is being claimed, or that its owner has to write again."""
_LOOK_S = 5.0
"""Between two looks for servers that are not called."""
_LEFT_S = 1.0
"""How long other nodes may take to leave a server that is not called."""
_LEASE_LOST = "was stopped: its node has lost its lease"
_DRAIN_S = 30.0
"""How long calls of a server may take to finish before it is moved."""


class ClusterNode:
    """This process as a member of the cluster; `open_node` makes one."""

    def __init__(
        self, broker: Broker, membership: Membership, placements: Placements, secret: bytes, mark: str = ""
    ) -> None:
        self.broker = broker
        self._mark = mark
        """In the environment of the servers of this node, for its guard."""
        self.membership = membership
        self.placements = placements
        self.secret = secret
        self.channels = ChannelTable(broker, membership.info.instance, membership.ring.own)
        self._served: dict[str, ServedServer] = {}
        """The servers that this node owns, by key."""
        self._remote: dict[Channel, str] = {}
        """The channels to other nodes, with the lease or the instance whose end ends them."""
        self._wanted: dict[str, float] = {}
        """Keys that another node has asked this one to own, and when."""
        self.tokens = CallerTokens()
        self._fleet: ServerFleetImpl | None = None
        self._is_told = False
        """Whether the last note about the brokers was a bad one."""
        self._tasks: asyncio.TaskGroup | None = None
        self.on_note: Callable[[str], None] = lambda _: None
        """Called with a sentence when the brokers or the lease have changed."""
        self.on_back: Callable[[], None] = lambda: None
        """Called when the connection to the brokers is there again."""
        self.on_task_end: Callable[[str], None] = lambda _: None
        """Called with the handle of a task of a server that another node has seen to have ended."""
        membership.on_lost = self._fence
        membership.on_regained = self._regain
        membership.on_refused = lambda reason: self.on_note(f"this node gets no lease: {reason}, and start it again")
        membership.on_joined = self._meet_node
        self.watch = PlacementWatch(placements, membership, self._served)
        membership.on_restored = self._check_placements
        membership.on_unsealed = lambda name: self.on_note(
            f"node {name!r} runs an earlier version of indus, which seals no messages: it is ignored; update it"
        )
        broker.on_state = self._report_state
        membership.on_gone = self._lose_node
        broker.on_cut = lambda: self.channels.cut("was cut off: the broker is away")
        broker.on_back = self._come_back

    @property
    def info(self) -> NodeInfo:
        """What this node reports about itself."""
        return self.membership.info

    def tell(self, text: str) -> None:
        """Pass a sentence for people on."""
        self.on_note(text)

    def follow(self, fleet: ServerFleetImpl) -> None:
        """Own servers of this fleet when another node asks for that."""
        self._fleet = fleet

    def _count_owned(self) -> None:
        self.membership.info = replace(self.membership.info, owned=len(self._served))

    # -- sessions with servers --------------------------------------------------------------

    @asynccontextmanager
    async def open_session(
        self, config: ServerConfig, handlers: Handlers, injected: InjectedTransport | None, watch: StartWatch
    ) -> AsyncGenerator[ClientSession]:
        """Connect to a server, here or at its owner, and disconnect when the block is left."""
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
                await asyncio.sleep(_PAUSE_S)
            try:
                yield session
            finally:
                await session.connection.close()
                await self._close_remote(session)
        except ClusterFault as fault:
            detail, why = FaultDetail(server=config.id, reason="upstream"), str(fault)
            if fault.state in STATES:
                why = f"it cannot be reached: the brokers of the cluster {STATES[fault.state].partition(':')[0]}"
            raise ProtocolFault("transport", f"server {config.id!r}: {why}", fault, detail=detail) from fault

    async def _find_owner(self, target: ServerTarget, server: str, silent: Placement | None) -> Placement:
        """Find the owner of a server, or become it, or have the node become it that is to own it.

        Waits until there is one; the start of a server has a deadline. An owner that is `silent` is still the owner
        until its lease has ended: it may not listen yet.
        """
        members, key, loop = self.membership, target.key, asyncio.get_running_loop()
        # Nodes that will own it, and nodes that have refused, and until when that is believed.
        asked, refused = dict[str, float](), dict[str, float]()
        while True:
            if key in self._served:  # an earlier session of this node has not ended yet
                await asyncio.sleep(_PAUSE_S)
                continue
            found = await self._find_placement(key)
            if found is not None and found.lease not in {"", members.info.lease}:
                holder = members.find_holder(found.lease)
                is_doubtful = holder is None or found == silent
                if not is_doubtful or not await members.end_lease(found.lease):
                    if holder is not None:
                        return found
                    await asyncio.sleep(_PAUSE_S)
                    continue
            now = loop.time()
            ranked = rank_nodes(target, members.list_nodes())
            if not ranked:
                state = "ready" if members.is_held() else self.broker.state
                raise ClusterFault(state, self._explain_homeless(target))
            best = next((node for node in ranked if refused.get(node.instance, now) <= now), None)
            is_wanted = not self.info.draining and now - self._wanted.get(key, -_ASKED_S) < _ASKED_S
            if is_wanted or (best is not None and best.instance == self.info.instance):
                claimed = await self.placements.claim(key, server) if members.is_held() else None
                if claimed is not None:
                    self._wanted.pop(key, None)
                    return claimed
            elif best is not None and asked.get(best.instance, now) <= now:
                # Asked in vain before, or now: the next one in the order is asked meanwhile.
                is_late = asked.pop(best.instance, None) is not None
                accepts = not is_late and await self.ask_to_own(best, key, is_offered=target.only_node is not None)
                (asked if accepts else refused)[best.instance] = loop.time() + _ASKED_S
            await asyncio.sleep(_PAUSE_S)

    async def _find_placement(self, key: str) -> Placement | None:
        """Read the placement of a server, and wait a moment for one that isn't settled.

        It's being claimed, or someone without the key has changed it, and its owner writes it again.
        """
        found = await self.placements.find(key)
        for _ in range(_UNSETTLED_LOOKS):
            if found is None or found.epoch or found.lease == self.info.lease:
                break
            if found.lease and self.membership.find_holder(found.lease) is None:
                break
            await asyncio.sleep(_PAUSE_S)
            found = await self.placements.find(key)
        return found

    def find_target(self, config: StdioServerConfig) -> ServerTarget:
        """Find out where a server of this node may run."""
        return find_target(config, self.info, self.broker.settings.affinity.get(config.id))

    def _explain_homeless(self, target: ServerTarget) -> str:
        nodes, offering = self.membership.list_nodes(), target.only_node
        if not nodes and not self.membership.is_held():
            return "no node has a lease now"
        if offering is not None and all(node.node != offering for node in nodes):
            return f"node {offering!r}, which offers it, is not in the cluster"
        return "no node may run it now: all are full, draining, or run no servers of others"

    async def ask_to_own(self, node: NodeInfo, key: str, *, is_offered: bool = False) -> bool:
        """Ask another node to become the owner of a server; return whether it will.

        Raises:
            ClusterFault: The node does not have a server that `is_offered` by it alone.
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
        """Open a channel to the owner; `None` if nothing listens there."""
        subject = self.broker.settings.call_subject(placement.key, placement.epoch)
        channel = self.open_channel(subject, placement.lease, placement.seal)
        channel.on_rest = lambda: self.rest(config.id)
        session = ClientSession(channel, config.limits, handlers, CLIENT_INFO)
        session.describe_caller = self.tokens.describe
        try:
            await session.connect()
        except ConnectionClosedError:
            await channel.close()
            if channel.is_unheard:
                return None
            raise
        except BaseException:
            await channel.close()
            raise
        return session

    async def _close_remote(self, session: ClientSession) -> None:
        transport = session.connection.transport
        if isinstance(transport, Channel):
            await transport.close()

    def open_channel(self, subject: str, owner: str, seal: Seal | None) -> Channel:
        """Open a channel to another node, named by its lease or its instance; it ends when that is gone."""

        def forget() -> None:
            self._remote.pop(channel, None)

        channel = self.channels.open(subject, seal or self.membership.ring.own, forget)
        self._remote[channel] = owner
        return channel

    def send_first(self, channel: Channel, instance: str, frame: JsonObject) -> None:
        """Send the first frame of a channel to a node.

        One that does not report itself is asked first whether it is there: the broker takes messages for a process that
        was stopped, or whose machine was lost, for as long as it has not noticed that.
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
        """Return the configuration with which a server runs here: it learns its epoch, and ends in time."""
        # Its process must have ended before the lease has.
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
            return  # it has ended with the lease
        try:
            await self.placements.release(placement)
        except ClusterFault as fault:
            _log.debug("the placement of %s ends with the lease: %s", placement.server, fault)

    def _fence(self) -> None:
        """Cut off every server of this node: another node may own it soon."""
        names = ", ".join(served.placement.server for served in self._served.values())
        state = self.broker.state
        why = f": the brokers {STATES[state].partition(':')[0]}" if state in STATES else ""
        self.on_note(f"this node has lost its lease, and stops {names or 'no server'}{why}")
        for served in [*self._served.values()]:
            served.end(_LEASE_LOST, "node_changed")

    def _meet_node(self, node: NodeInfo) -> None:
        """Take note of a node that has joined, or has another lease."""
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
            self._is_told = True
            self.on_note(f"the brokers of the cluster {STATES[state]}")
        elif state == "ready" and self._is_told:
            self._is_told = False
            self.on_note("the brokers of the cluster answer again")
            self._retry_faulted()  # a broker that was merely stopped has kept the connection

    def _retry_faulted(self) -> None:
        """Open the sessions with servers again that wait for the next try: a node or the broker is back."""
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
        """Answer a request of another node to this one."""
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
        """Begin to own a server that another node needs; return `yes`, `no` without room, or `unknown`."""
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
        """Move all servers to other nodes: each when its calls have ended, or after a while."""
        async with asyncio.TaskGroup() as tasks:
            for served in [*self._served.values()]:
                tasks.create_task(self._move(served))

    # -- servers that are not called --------------------------------------------------------

    def rest(self, server: str) -> None:
        """Leave a server of another node until its next call, unless it is used here."""
        if self._fleet is not None and self._tasks is not None:
            self._tasks.create_task(self._start_server(self._fleet.rest, server))

    async def _watch_idle(self, idle_s: float) -> None:
        """Stop servers of this node that have not been called for so long; their next call starts them again."""
        while True:
            await asyncio.sleep(min(idle_s / 4, _LOOK_S))
            for served in [*self._served.values()]:
                if self._fleet is None or not served.is_idle(idle_s) or not await served.ask_peers_to_rest(_LEFT_S):
                    continue
                try:
                    served.is_resting = await self._fleet.rest(served.placement.server)
                except ProtocolFault as fault:
                    _log.debug("server %s was removed meanwhile: %s", served.placement.server, fault)

    async def _move(self, served: ServedServer) -> None:
        if await served.finish_calls(_DRAIN_S):
            served.end("is moved to another node", "moved")
            return
        self.on_note(f"server {served.placement.server!r} is moved while calls run: their outcome is unknown")
        served.end("is moved to another node", "node_changed")

    # -- the life of the node ---------------------------------------------------------------

    async def run(self) -> None:
        """Keep the lease and serve other nodes; runs until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            if self.broker.settings.idle_s > 0:
                tasks.create_task(self._watch_idle(self.broker.settings.idle_s))
            try:
                await self.membership.run()
            finally:
                self._tasks = None


def _find_secret(settings: ClusterSettings) -> bytes:
    """Return the secret with which session ids are sealed; a node without clients seals nothing for others."""
    if settings.key is not None:
        return settings.key.derive("session ids")
    if settings.role != "offers":
        raise ClusterFault("missing", "a node that serves clients needs the key of the cluster (--cluster-key)")
    return secrets.token_bytes(32)


@asynccontextmanager
async def open_node(
    settings: ClusterSettings, clock: Callable[[], float] = read_lease_clock, *, guarded: bool = False
) -> AsyncGenerator[ClusterNode]:
    """Join a cluster inside the block, with a lease that is kept alive; servers must be closed before it is left.

    A `guarded` node has a second process, which ends its servers and its lease at once if this process is killed.

    Raises:
        ClusterFault: The broker is away, the cluster is not prepared, or another node has the same name.
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
