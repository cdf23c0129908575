"""Sessions with servers wherever they run.

`open_session` replaces `open_client_session` in a gateway's fleet. A stdio server opens here if this node owns it or
may claim it, otherwise over a channel to its owner. Every node connects to URL servers directly; they're never placed.
When an owner disappears, the sessions through it end, the fleet reopens them, and another node takes over.

A server whose row declares it stateless has several owners, each with a separate epoch. Each replica has a separate
placement and runs on a different node. The server's node ranking decides which nodes get one, so all nodes agree; a
chosen node claims a free placement.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.connect import InjectedTransport, open_client_session
from indusagi.interop.protocol_bridge.client.handlers import MOVED, Caller, Handlers
from indusagi.interop.protocol_bridge.client.session import LISTEN_PREFIX, ClientSession
from indusagi.interop.protocol_bridge.client.start import StartPolicy
from indusagi.interop.protocol_bridge.client.stdio import StartWatch
from indusagi.interop.protocol_bridge.contract import (
    CLUSTER_PREFIX,
    FaultDetail,
    ProtocolFault,
    ServerConfig,
    StdioServerConfig,
)
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError, RpcError
from indusagi.interop.protocol_bridge.rpc.transport import (
    BaseTransport,
    RequestId,
    TransportEnd,
    decode_frame,
    find_cancelled_id,
    find_request_id,
)
from induscode.cluster.broker import STATES
from induscode.cluster.channel import Channel
from induscode.cluster.contract import ClusterFault, NodeInfo, Placement
from induscode.cluster.placement import ServerTarget, build_replica_key, rank_nodes

if TYPE_CHECKING:
    from induscode.cluster.membership import Membership
    from induscode.cluster.node import ClusterNode

_log = logging.getLogger(__name__)

_RETRY_INTERVAL_S = 0.1
"""Polling interval for a placement that's about to change."""
_CLAIM_TIMEOUT_S = 2.0
"""How long a node may take to claim a server after accepting it."""
_UNSETTLED_RETRIES = 5
"""How often to re-read a placement that's being claimed or rewritten by its owner."""
_POLL_INTERVAL_S = 0.5
"""Polling interval for a server's replicas."""
_MAX_PAUSE_S = 30.0
_PING_TIMEOUT_S = 2.0
"""How long a replica may take to confirm that it's up. One that's still starting is asked again."""

LARGEST = 32
"""Maximum replicas per server."""


@asynccontextmanager
async def open_session(
    node: ClusterNode, config: ServerConfig, handlers: Handlers, injected: InjectedTransport | None, watch: StartWatch
) -> AsyncGenerator[ClientSession]:
    """Connect to a server, here or at its owner, and disconnect on exit."""
    if not isinstance(config, StdioServerConfig) or injected is not None:
        async with open_client_session(config, handlers, injected, watch) as session:
            yield session
        return
    target = node.find_target(config)
    try:
        if config.command.startswith(CLUSTER_PREFIX) and not all(config.command.partition("/")):
            message = f"the command {config.command!r} is incomplete: it is written {CLUSTER_PREFIX}NODE/SERVER"
            raise ClusterFault("ready", message)
        if config.replicas > 1 and target.only_node is None:
            async with ReplicatedServer(node, target, config, handlers).open(watch) as session:
                yield session
            return
        silent: Placement | None = None
        while True:
            placement = await _find_owner(node, target, config.id, silent)
            if placement.lease == node.info.lease:
                async with node.serve_here(placement, config, handlers, watch) as session:
                    yield session
                return
            session = await _connect(node, placement, config, handlers)
            if session is not None:
                break
            silent = placement
            await asyncio.sleep(_RETRY_INTERVAL_S)
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


async def _find_owner(node: ClusterNode, target: ServerTarget, server: str, silent: Placement | None) -> Placement:
    """Find a server's owner, claim the server, or ask the best-ranked node to claim it.

    Waits until it has an owner; the server's start deadline bounds that. A `silent` owner stays the owner until
    its lease ends, since it may just not listen yet.
    """
    members, key, loop = node.membership, target.key, asyncio.get_running_loop()
    # Nodes that accepted and nodes that declined, with the time until which to believe them.
    asked, refused = dict[str, float](), dict[str, float]()
    while True:
        if key in node.served:  # an earlier session on this node is still closing
            await asyncio.sleep(_RETRY_INTERVAL_S)
            continue
        found = await _find_placement(node, key)
        if found is not None and found.lease not in {"", members.info.lease}:
            holder = members.find_holder(found.lease)
            is_doubtful = holder is None or found == silent
            if not is_doubtful or not await members.end_lease(found.lease):
                if holder is not None:
                    return found
                await asyncio.sleep(_RETRY_INTERVAL_S)
                continue
        now = loop.time()
        ranked = rank_nodes(target, members.list_nodes())
        if not ranked:
            state = "ready" if members.is_held() else node.broker.state
            raise ClusterFault(state, _explain_homeless(node, target))
        best = next((one for one in ranked if refused.get(one.instance, now) <= now), None)
        is_wanted = not node.info.draining and now - node.wanted.get(key, -_CLAIM_TIMEOUT_S) < _CLAIM_TIMEOUT_S
        if is_wanted or (best is not None and best.instance == node.info.instance):
            claimed = await node.placements.claim(key, server) if members.is_held() else None
            if claimed is not None:
                node.wanted.pop(key, None)
                return claimed
        elif best is not None and asked.get(best.instance, now) <= now:
            # Silent or declined: try the next node in the order for now.
            is_late = asked.pop(best.instance, None) is not None
            accepts = not is_late and await _ask_to_own(members, best, key, is_offered=target.only_node is not None)
            (asked if accepts else refused)[best.instance] = loop.time() + _CLAIM_TIMEOUT_S
        await asyncio.sleep(_RETRY_INTERVAL_S)


async def _find_placement(node: ClusterNode, key: str) -> Placement | None:
    """Read a server's placement, waiting briefly while it's unsettled.

    Either a node is claiming it, or someone without the key changed it and its owner is about to rewrite it.
    """
    found = await node.placements.find(key)
    for _ in range(_UNSETTLED_RETRIES):
        if found is None or found.epoch or found.lease == node.info.lease:
            break
        if found.lease and node.membership.find_holder(found.lease) is None:
            break
        await asyncio.sleep(_RETRY_INTERVAL_S)
        found = await node.placements.find(key)
    return found


def _explain_homeless(node: ClusterNode, target: ServerTarget) -> str:
    nodes, offering = node.membership.list_nodes(), target.only_node
    if not nodes and not node.membership.is_held():
        return "no node has a lease now"
    if offering is not None and all(one.node != offering for one in nodes):
        return f"node {offering!r}, which offers it, is not in the cluster"
    meant = [one for one in nodes if one.may_own(offering)]
    if meant and not any(one.may_own(offering, target.sandbox) for one in meant):
        held = "; ".join(f"{one.node!r} has {one.sandboxes.replace(' ', ', ') or 'none'}" for one in meant)
        return f"no node has the sandbox {target.sandbox!r} that its row needs: {held} (install bubblewrap there)"
    return "no node may run it now: all are full, draining, or run no servers of others"


async def _ask_to_own(members: Membership, node: NodeInfo, key: str, *, is_offered: bool = False) -> bool:
    """Ask another node to own a server, and return whether it accepts.

    Raises `ClusterFault` if the server `is_offered` by that node alone, and the node doesn't have it.
    """
    try:
        answer = (await members.ask(node.instance, {"op": "own", "key": key})).get("answer")
    except ClusterFault as fault:
        _log.debug("node %s was asked to own a server: %s", node.node, fault)
        return False
    if is_offered and answer == "unknown":
        raise ClusterFault("ready", f"node {node.node!r} offers no such server")
    return answer == "yes"


async def _connect(
    node: ClusterNode, placement: Placement, config: StdioServerConfig, handlers: Handlers
) -> ClientSession | None:
    """Open a channel to the owner, or return `None` if nothing listens there."""
    subject = node.broker.settings.subject("call", placement.key, placement.epoch)
    channel = node.open_channel(subject, placement.lease, placement.seal, lambda: node.rest(config.id))
    session = ClientSession(channel, config, handlers)
    session.describe_caller = node.tokens.describe
    try:
        await session.connect()
    except BaseException as exc:
        await channel.close()
        if isinstance(exc, ConnectionClosedError) and channel.is_unheard:
            return None
        raise
    return session


# -- replicas ---------------------------------------------------------------------------------


class ReplicatedServer:
    """A server with several owners. This node uses all of them, and is one of them if it's chosen.

    It reaches its local replica over a channel like the others, and runs it outside the session: a node gains or loses
    ownership while calls continue.
    """

    def __init__(self, node: ClusterNode, target: ServerTarget, config: StdioServerConfig, handlers: Handlers) -> None:
        self._node = node
        self._config = config
        self._handlers = handlers
        self._target = target
        self._count = min(config.replicas, LARGEST)
        self._spread = SpreadTransport()
        self._failure: Exception | None = None
        """Why the local replica last failed to start."""

    @asynccontextmanager
    async def open(self, watch: StartWatch) -> AsyncGenerator[ClientSession]:
        """Connect to all replicas, and run one here if this node is chosen."""
        name = self._config.id
        host, follower = BackgroundTask(f"replica of {name}"), BackgroundTask(f"replicas of {name}")
        host.start(self._host(watch))
        session = ClientSession(self._spread, self._config, self._handlers)
        session.describe_caller = self._describe_caller
        try:
            await self._connect(session)
            follower.start(self._follow(session))
            yield session
        finally:
            await session.connection.close()
            for task in (follower, host):
                task.cancel()
                await task.join()
            await self._spread.close()

    @property
    def _keys(self) -> Sequence[str]:
        """Keys of the replicas' placements. The first is the server's key."""
        return [build_replica_key(self._target.key, number) for number in range(1, self._count + 1)]

    def _list_chosen(self) -> Sequence[NodeInfo]:
        """List the nodes that should have a replica."""
        return rank_nodes(self._target, self._node.membership.list_nodes())[: self._count]

    async def _claim(self) -> Placement | None:
        """Claim a replica for this node if it's chosen and doesn't own one yet. `None` if none is free."""
        members, placements = self._node.membership, self._node.placements
        if not members.is_held() or all(node.instance != members.info.instance for node in self._list_chosen()):
            return None
        found = [await placements.find(key) for key in self._keys]
        if any(one is not None and one.lease == members.info.lease for one in found):
            return None
        for key, one in zip(self._keys, found, strict=True):
            is_free = one is None or members.find_holder(one.lease) is None
            if is_free and (claimed := await placements.claim(key, self._config.id)) is not None:
                return claimed
        return None

    def _describe_caller(self, caller: Caller) -> JsonObject:
        """Describe a caller as not supporting tasks, since later requests about a task could reach another replica."""
        return {**self._node.tokens.describe(caller), "tasks": None}

    async def _connect(self, session: ClientSession) -> None:
        """Initialize with the first available replica, and retry if that one disappears."""
        while True:
            await self._reach_first(session)
            losses = self._spread.losses
            try:
                await session.connect()
            except RpcError:
                if self._spread.losses == losses:
                    raise
            else:
                return

    async def _reach_first(self, session: ClientSession) -> None:
        """Wait until one replica is up, asking the chosen nodes to start theirs."""
        own, self._failure = self._node.membership.info.instance, None
        while True:
            await self._connect_all(session)
            if self._spread.channels:
                return
            if self._failure is not None:
                raise self._failure
            chosen = self._list_chosen()
            if not chosen:
                raise ClusterFault("ready", _explain_homeless(self._node, self._target))
            for node in chosen:
                if node.instance != own:
                    await _ask_to_own(self._node.membership, node, self._target.key)
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _connect_all(self, session: ClientSession) -> None:
        """Open a channel to each unconnected replica that answers."""
        settings, members = self._node.broker.settings, self._node.membership

        def rest() -> None:
            idle_s = asyncio.get_running_loop().time() - session.calls.used_at
            if idle_s >= settings.idle_s > 0:
                self._node.rest(self._config.id)

        async def connect(name: str, placement: Placement) -> None:
            subject = settings.subject("call", placement.key, placement.epoch)
            channel = self._node.open_channel(subject, placement.lease, placement.seal, rest)
            if await self._is_up(channel):
                self._spread.add(name, channel)
            else:
                await channel.close()

        # Outside of the group, which would wrap the fault of a broker.
        placements = [await self._node.placements.find(key) for key in self._keys]
        async with asyncio.TaskGroup() as tasks:
            for placement in placements:
                if placement is None or not placement.epoch or members.find_holder(placement.lease) is None:
                    continue
                name = f"{placement.key}.{placement.epoch}"
                if name not in self._spread.channels:
                    tasks.create_task(connect(name, placement))

    async def _is_up(self, channel: Channel) -> bool:
        """Return whether the remote server is up. A call sent before that is lost if its start fails."""
        answered: asyncio.Future[TransportEnd | None] = asyncio.get_running_loop().create_future()

        def take(end: TransportEnd | None) -> None:
            if not answered.done():
                answered.set_result(end)

        channel.attach(lambda _: take(None), take)
        channel.send({"jsonrpc": "2.0", "id": "up", "method": "ping"})
        try:
            async with asyncio.timeout(_PING_TIMEOUT_S):
                end = await answered
        except TimeoutError:
            return False  # still starting; asked again soon
        if end is not None and not channel.is_unheard:
            self._failure = ConnectionClosedError(end)
        return end is None

    async def _follow(self, session: ClientSession) -> None:
        """Connect to replicas that come up later."""
        while True:
            await asyncio.sleep(_POLL_INTERVAL_S)
            try:
                await self._connect_all(session)
            except ClusterFault as fault:
                _log.debug("the replicas of %s are not known: %s", self._config.id, fault)

    async def _host(self, watch: StartWatch) -> None:
        """Run a replica here while this node is chosen, restarting a failed one after a delay."""
        # Notifications arrive over this node's channels.
        handlers, wait_s = replace(self._handlers, on_notification=None), _POLL_INTERVAL_S
        while True:
            try:
                placement = await self._claim()
                if placement is not None:
                    self._spread.keep(is_kept=True)
                    async with AsyncExitStack() as stack:
                        async with watch.limit():
                            opening = self._node.serve_here(placement, self._config, handlers, watch)
                            session = await stack.enter_async_context(opening)
                        wait_s = _POLL_INTERVAL_S
                        await asyncio.wait({session.connection.ended})
                    watch = StartWatch(StartPolicy().allow(self._config, seen_up=True), lambda _: None)
            except ClusterFault as fault:
                _log.debug("no replica of %s runs here: %s", self._config.id, fault)
            except Exception as exc:  # noqa: BLE001 — boundary: any behaviour of a server; the other replicas go on
                _log.debug("a replica of %s failed: %s", self._config.id, describe_error(exc))
                self._failure = exc
                wait_s = min(2 * wait_s, _MAX_PAUSE_S)
            self._spread.keep(is_kept=False)
            await asyncio.sleep(wait_s)


# -- spread -----------------------------------------------------------------------------------
#
# Each request goes to the replica with the fewest pending requests. Cancellations and answers to a replica's own
# requests go to that replica. Losing a replica fails only the requests sent to it, whose outcome is unknown. The
# transport ends with its last replica, unless this node runs one: then requests wait until it's connected, because
# ending the transport would cut off calls of other nodes to it.


_LOST = -32000
_CLOSED = FaultDetail(reason="closed")


class SpreadTransport(BaseTransport):
    """A transport over the channels to a server's replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.channels: dict[str, Channel] = {}
        """To the connected replicas, by name."""
        self._pending: dict[str, set[RequestId]] = {}
        self._leaving: set[str] = set()
        """Replicas that don't accept new requests."""
        self._failed: dict[RequestId, FaultDetail] = {}
        self._waiting: dict[RequestId, JsonObject] = {}
        """Requests waiting for this node's replica."""
        self._last_end: TransportEnd | None = None
        """Why the last replica was lost, until this node's replica is connected."""
        self._is_kept = False
        self.losses = 0
        """Number of lost replicas."""

    def add(self, name: str, channel: Channel) -> None:
        """Add a replica."""
        self.channels[name] = channel
        self._pending[name] = set()
        channel.attach(lambda data: self._receive(name, data), lambda end: self._lose(name, end))
        self._last_end = None
        waiting, self._waiting = self._waiting, {}
        for identity, frame in waiting.items():
            self._send_request(identity, frame)

    def keep(self, *, is_kept: bool) -> None:
        """Set whether this node runs a replica. Without one, the transport ends with the last other replica."""
        self._is_kept = is_kept
        if not is_kept and self._last_end is not None:
            self.finish(self._last_end.message, self._last_end.detail)

    def send(self, frame: JsonObject) -> None:
        """Send a frame to the replica it's for."""
        identity = find_request_id(frame)
        if identity is not None:
            self._send_request(identity, frame)
        elif (cancelled := find_cancelled_id(frame)) is not None:
            self._waiting.pop(cancelled, None)
            for name, pending in self._pending.items():
                if cancelled in pending:
                    self.channels[name].send(frame)
        elif "method" in frame:
            for channel in self.channels.values():
                channel.send(frame)
        else:
            name, _, number = str(frame.get("id")).partition(" ")
            if name in self.channels:
                is_number, text = number[:1] == "#", number[1:]
                self.channels[name].send({**frame, "id": int(text) if is_number else text})

    def _send_request(self, identity: RequestId, frame: JsonObject) -> None:
        names = [name for name in self.channels if name not in self._leaving] or [*self.channels]
        if names:
            # Among equals, take the least recently chosen one.
            name = min(names, key=lambda name: len(self._pending[name]))
            self.channels[name] = self.channels.pop(name)
            self._pending[name].add(identity)
            self.channels[name].send(frame)
        else:
            self._waiting[identity] = frame

    def _receive(self, name: str, data: bytes | JsonValue) -> None:
        try:
            frame = decode_frame(data) if isinstance(data, bytes) else data
        except (ValueError, RecursionError):
            self.deliver(data)  # the connection counts it as invalid
            return
        if not is_json_object(frame):
            self.deliver(frame)
        elif "method" not in frame:
            identity, error = frame.get("id"), frame.get("error")
            if isinstance(identity, (int, str)):
                self._pending[name].discard(identity)
            if is_json_object(error) and error.get("code") == MOVED:
                self._leaving.add(name)
            self.deliver(frame)
        elif "id" in frame:
            identity = frame["id"]
            mark = "#" if isinstance(identity, int) else "="
            self.deliver({**frame, "id": f"{name} {mark}{identity}"})
        else:
            self.deliver(frame)

    def _lose(self, name: str, end: TransportEnd) -> None:
        self.channels.pop(name, None)
        self._leaving.discard(name)
        lost = self._pending.pop(name, set())
        self.losses += 1
        if not self.channels:
            if not self._is_kept:
                self.finish(end.message, end.detail)
                return
            self._last_end = end
        for identity in lost:
            if str(identity).startswith(LISTEN_PREFIX):
                # Subscriptions end now and then. The client reopens this one at another replica.
                self.deliver({"jsonrpc": "2.0", "id": identity, "result": {"resultType": "complete"}})
                continue
            self._failed[identity] = _CLOSED
            error: JsonObject = {"code": _LOST, "message": f"its replica {end.message}"}
            self.deliver({"jsonrpc": "2.0", "id": identity, "error": error})

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Return and forget the fault of a request whose replica was lost."""
        return self._failed.pop(request_id, None)

    async def close(self) -> None:
        """Close the channels."""
        for channel in [*self.channels.values()]:
            await channel.close()
