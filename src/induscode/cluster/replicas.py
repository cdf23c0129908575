"""Replicas: a server whose row declares it stateless has several owners, each with a separate epoch.

Each replica has a separate placement and runs on a different node. The server's node ranking decides which nodes get
one, so all nodes agree; a chosen node claims a free placement.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from indusagi.core.faults import describe_error
from indusagi.core.json import is_json_object
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.connect import CLIENT_INFO
from indusagi.interop.protocol_bridge.client.handlers import MOVED
from indusagi.interop.protocol_bridge.client.session import LISTEN_PREFIX, ClientSession
from indusagi.interop.protocol_bridge.client.start import StartPolicy
from indusagi.interop.protocol_bridge.client.stdio import StartWatch
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import ConnectionClosedError, RpcError
from indusagi.interop.protocol_bridge.rpc.transport import (
    BaseTransport,
    decode_frame,
    find_cancelled_id,
    find_request_id,
)
from induscode.cluster.contract import ClusterFault
from induscode.cluster.placement import build_replica_key, rank_nodes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Collection, Sequence
    from contextlib import AbstractAsyncContextManager

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.handlers import Caller, Handlers
    from indusagi.interop.protocol_bridge.contract import StdioServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId, TransportEnd
    from induscode.cluster.broker import Broker
    from induscode.cluster.channel import Channel
    from induscode.cluster.contract import NodeInfo, Placement
    from induscode.cluster.membership import Membership
    from induscode.cluster.placement import Placements, ServerTarget
    from induscode.cluster.seals import Seal
    from induscode.cluster.served import CallerTokens

_log = logging.getLogger(__name__)

_RETRY_INTERVAL_S = 0.1
_POLL_INTERVAL_S = 0.5
"""Polling interval for a server's replicas."""
_MAX_PAUSE_S = 30.0
_PING_TIMEOUT_S = 2.0
"""How long a replica may take to confirm that it's up. One that's still starting is asked again."""

LARGEST = 32
"""Maximum replicas per server."""


class ReplicaSet:
    """One server's replicas, as this node sees them."""

    def __init__(self, target: ServerTarget, count: int, placements: Placements, membership: Membership) -> None:
        self._target = target
        self._count = min(count, LARGEST)
        self._placements = placements
        self._membership = membership

    @property
    def keys(self) -> Sequence[str]:
        """Keys of their placements. The first is the server's key."""
        return [build_replica_key(self._target.key, number) for number in range(1, self._count + 1)]

    def list_chosen(self) -> Sequence[NodeInfo]:
        """List the nodes that should have a replica."""
        return rank_nodes(self._target, self._membership.list_nodes())[: self._count]

    async def list_live(self) -> Sequence[Placement]:
        """List the placements with live owners.

        Raises:
            ClusterFault: The broker doesn't answer.
        """
        found = [await self._placements.find(key) for key in self.keys]
        return [
            one
            for one in found
            if one is not None and one.epoch and self._membership.find_holder(one.lease) is not None
        ]

    async def claim(self, server: str) -> Placement | None:
        """Claim a replica for this node if it's chosen and doesn't own one yet. `None` if none is free.

        Raises:
            ClusterFault: The broker doesn't answer.
        """
        members = self._membership
        if not members.is_held() or all(node.instance != members.info.instance for node in self.list_chosen()):
            return None
        found = [await self._placements.find(key) for key in self.keys]
        if any(one is not None and one.lease == members.info.lease for one in found):
            return None
        for key, one in zip(self.keys, found, strict=True):
            is_free = one is None or members.find_holder(one.lease) is None
            if is_free and (claimed := await self._placements.claim(key, server)) is not None:
                return claimed
        return None


class ReplicaNode(Protocol):
    """The parts of a node that a replicated server uses."""

    broker: Broker
    membership: Membership
    placements: Placements
    tokens: CallerTokens

    def open_channel(self, subject: str, owner: str, seal: Seal | None, on_rest: Callable[[], None]) -> Channel:
        """Open a channel to a node."""
        ...

    def serve_here(
        self, placement: Placement, config: StdioServerConfig, handlers: Handlers, watch: StartWatch
    ) -> AbstractAsyncContextManager[ClientSession]:
        """Run a server here, for this node and all others."""
        ...

    async def ask_to_own(self, node: NodeInfo, key: str) -> bool:
        """Ask another node to own a server."""
        ...

    def rest(self, server: str) -> None:
        """Disconnect from a server until its next call."""
        ...


class ReplicatedServer:
    """A server with several owners. This node uses all of them, and is one of them if it's chosen.

    It reaches its local replica over a channel like the others, and runs it outside the session: a node gains or loses
    ownership while calls continue.
    """

    def __init__(self, node: ReplicaNode, target: ServerTarget, config: StdioServerConfig, handlers: Handlers) -> None:
        self._node = node
        self._config = config
        self._handlers = handlers
        self._set = ReplicaSet(target, config.replicas, node.placements, node.membership)
        self._spread = SpreadTransport()
        self._failure: Exception | None = None
        """Why the local replica last failed to start."""

    @asynccontextmanager
    async def open(self, watch: StartWatch) -> AsyncGenerator[ClientSession]:
        """Connect to all replicas, and run one here if this node is chosen.

        Raises:
            ClusterFault: No node may run one, or the broker doesn't answer.
        """
        name = self._config.id
        host, follower = BackgroundTask(f"replica of {name}"), BackgroundTask(f"replicas of {name}")
        host.start(self._host(watch))
        session = ClientSession(self._spread, self._config.limits, self._handlers, CLIENT_INFO)
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
            if self._spread.replicas:
                return
            if self._failure is not None:
                raise self._failure
            chosen = self._set.list_chosen()
            if not chosen:
                raise ClusterFault("ready", "no node may run it now: all are full, draining, or only serve clients")
            for node in chosen:
                if node.instance != own:
                    await self._node.ask_to_own(node, self._set.keys[0])
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _connect_all(self, session: ClientSession) -> None:
        """Open a channel to each unconnected replica that answers."""
        settings = self._node.broker.settings

        def rest() -> None:
            idle_s = asyncio.get_running_loop().time() - session.calls.used_at
            if idle_s >= settings.idle_s > 0:
                self._node.rest(self._config.id)

        async def connect(name: str, placement: Placement) -> None:
            subject = settings.call_subject(placement.key, placement.epoch)
            channel = self._node.open_channel(subject, placement.lease, placement.seal, rest)
            if await self._is_up(channel):
                self._spread.add(name, channel)
            else:
                await channel.close()

        async with asyncio.TaskGroup() as tasks:
            for placement in await self._set.list_live():
                name = f"{placement.key}.{placement.epoch}"
                if name not in self._spread.replicas:
                    tasks.create_task(connect(name, placement))

    async def _is_up(self, channel: Channel) -> bool:
        """Return whether the remote server is up. A call sent before that is lost if its start fails."""
        answers: list[bytes | JsonValue] = []
        ends: list[TransportEnd] = []
        answered = asyncio.Event()

        def take_answer(frame: bytes | JsonValue) -> None:
            answers.append(frame)
            answered.set()

        def take_end(end: TransportEnd) -> None:
            ends.append(end)
            answered.set()

        channel.attach(take_answer, take_end)
        channel.send({"jsonrpc": "2.0", "id": "up", "method": "ping"})
        with suppress(TimeoutError):  # still starting; asked again soon
            async with asyncio.timeout(_PING_TIMEOUT_S):
                await answered.wait()
        # A later end comes from the caller, who closes a channel that didn't answer.
        if ends and not channel.is_unheard:
            self._failure = ConnectionClosedError(ends[0])
        return bool(answers)

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
                placement = await self._set.claim(self._config.id)
                if placement is not None:
                    self._spread.keep(is_kept=True)
                    async with AsyncExitStack() as stack:
                        async with watch.limit():
                            opening = self._node.serve_here(placement, self._config, handlers, watch)
                            session = await stack.enter_async_context(opening)
                        wait_s = _POLL_INTERVAL_S
                        await asyncio.wait({session.connection.ended})
                    watch = StartWatch(StartPolicy().allow(self._config, seen_up=True), lambda: None)
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
        self._channels: dict[str, Channel] = {}
        """By replica name."""
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

    @property
    def replicas(self) -> Collection[str]:
        """Names of the connected replicas."""
        return self._channels.keys()

    def add(self, name: str, channel: Channel) -> None:
        """Add a replica."""
        self._channels[name] = channel
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
                    self._channels[name].send(frame)
        elif "method" in frame:
            for channel in self._channels.values():
                channel.send(frame)
        else:
            name, _, number = str(frame.get("id")).partition(" ")
            if name in self._channels:
                is_number, text = number[:1] == "#", number[1:]
                self._channels[name].send({**frame, "id": int(text) if is_number else text})

    def _send_request(self, identity: RequestId, frame: JsonObject) -> None:
        names = [name for name in self._channels if name not in self._leaving] or [*self._channels]
        if names:
            # Among equals, take the least recently chosen one.
            name = min(names, key=lambda name: len(self._pending[name]))
            self._channels[name] = self._channels.pop(name)
            self._pending[name].add(identity)
            self._channels[name].send(frame)
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
        self._channels.pop(name, None)
        self._leaving.discard(name)
        lost = self._pending.pop(name, set())
        self.losses += 1
        if not self._channels:
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
        for channel in [*self._channels.values()]:
            await channel.close()
