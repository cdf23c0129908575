"""Membership: this node's lease, kept alive, and the nodes that have reported themselves.

A node reports itself to all others after every renewal, on one subject. A node that stays silent for as long as its
lease lives is taken to be gone; whether its lease has ended is decided at the broker alone (`end_lease`). A node that
has lost its lease shares nothing until it has another one, for which it needs the key that the cluster has then.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.json import compact_json, is_json_object
from induscode.cluster.broker import check_key
from induscode.cluster.contract import (
    ENDED,
    ClusterFault,
    ClusterSettings,
    LostRaceError,
    NodeInfo,
    UnheardError,
    WrongKeyError,
)
from induscode.cluster.lease import LeaseTimes, NodeLease, read_lease_clock

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from indusagi.core.json import JsonObject
    from induscode.cluster.broker import Broker
    from induscode.cluster.bucket import Bucket

_log = logging.getLogger(__name__)

PING = b'{"op":"ping"}'
"""The request by which a node is asked whether it is there."""
_ANSWERS_S = 0.1
"""How long a new node waits for the reports of the others."""
_LATE_S = 1.5
"""How long a command waits for the report of a node that has a lease: a busy one is late."""


class Membership:
    """The lease of this node, and the reports of all nodes."""

    def __init__(
        self,
        broker: Broker,
        leases: Bucket,
        times: LeaseTimes,
        clock: Callable[[], float],
        *,
        is_observer: bool = False,
    ) -> None:
        settings = broker.settings
        self.times = times
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the lease has ended, before anything else happens: what it allowed has to stop."""
        self.on_gone: Callable[[NodeInfo], None] = lambda _: None
        """Called when another node has left, or stays silent."""
        self.on_joined: Callable[[NodeInfo], None] = lambda _: None
        """Called when another node reports itself for the first time, or under a new lease."""
        self.before_join: Callable[[str], None] = lambda _: None
        """Called with the name of a lease before it is created."""
        self.on_regained: Callable[[], None] = lambda: None
        """Called when there is a lease again after a loss."""
        self.on_refused: Callable[[str], None] = lambda _: None
        """Called, with the reason, when there is none since the key of the cluster was replaced meanwhile."""
        self._broker = broker
        self._is_observer = is_observer
        self._leases = leases
        self._settings = settings
        self._clock = clock
        self._lease = NodeLease(times)
        self._incarnation = 0
        self._beats = 0
        self._sent: dict[int, float] = {}
        """When each renewal was sent whose outcome is unknown."""
        self._tried_at: float | None = None
        self._nodes: dict[str, tuple[NodeInfo, float]] = {}
        """The last report of each other node, and when it came."""
        self._waiting: dict[str, tuple[NodeInfo, float]] = {}
        """The same of nodes that run without a lease."""
        self.info = NodeInfo(
            node=settings.node, instance=secrets.token_hex(6), role=settings.role, capacity=settings.capacity
        )

    # -- the own lease ----------------------------------------------------------------------

    def is_held(self) -> bool:
        """Return whether this node may own servers now; a lease that has run out is given up at once."""
        if self._lease.is_held(self._clock()):
            return True
        self._lose()
        return False

    def holds(self, lease: str) -> bool:
        """Return whether this node may own servers under this lease now: one that it has lost does not come back."""
        return self.is_held() and self.info.lease == lease

    def check_write(self) -> None:
        """Check that this node may share something with the others now.

        Raises:
            ClusterFault: It has no lease: the key that seals what it shares may have been replaced.
        """
        if not self.is_held():
            raise ClusterFault("ready", "this node has no lease now, and shares nothing")

    def _lose(self) -> None:
        if self._lease.revision is not None:
            self._lease = self._lease.lose()
            self.on_lost()

    async def join(self) -> None:
        """Create a lease.

        Raises:
            ClusterFault: The broker did not do it.
        """
        self._incarnation += 1
        self.info = replace(self.info, lease=f"{self.info.instance}-{self._incarnation}")
        self._sent.clear()
        self.before_join(self.info.lease)
        self._tried_at, sent_at = None, self._clock()
        revision = await self._leases.create(self.info.lease, self._build_value(sent_at))
        self._lease = NodeLease(self.times).take_creation(revision, sent_at)
        await self.report()

    async def renew(self) -> None:
        """Renew the lease once; a lease that another node has ended is lost."""
        if not self.is_held():
            return
        lease, sent_at = self._lease, self._clock()
        assert lease.revision is not None
        try:
            revision = await self._leases.update(self.info.lease, self._build_value(sent_at), lease.revision)
        except LostRaceError:
            await self._read_back()
            return
        except ClusterFault:
            self._tried_at = self._clock()
            raise
        self._take_renewal(revision, sent_at)
        await self.report()

    def _take_renewal(self, revision: int, sent_at: float) -> None:
        self._lease = self._lease.take_renewal(revision, sent_at)
        self._tried_at = None
        self._sent.clear()

    def _build_value(self, sent_at: float) -> bytes:
        self._beats += 1
        self._sent[self._beats] = sent_at
        return compact_json({"beat": self._beats, "node": self.info.node}).encode()

    async def _read_back(self) -> None:
        """Find out whether an own renewal without an answer has changed the entry, or another node."""
        entry = await self._leases.get(self.info.lease)
        if entry is not None and entry.revision == self._lease.revision:
            self._tried_at = self._clock()  # brokers without a majority have taken a renewal, and not agreed on it
            return
        value = {} if entry is None else _read(entry.value)
        beat = value.get("beat")
        sent_at = self._sent.get(beat) if isinstance(beat, int) else None
        if entry is None or sent_at is None:
            self._lose()
        else:
            self._take_renewal(entry.revision, sent_at)

    async def run(self) -> None:
        """Renew the lease in time, and join again after a loss; runs until cancelled."""
        is_refused = False
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_lease())
            tasks.create_task(self._watch_nodes())
            while True:
                try:
                    if self._lease.revision is None:
                        if self._settings.key is not None:
                            await check_key(self._broker)
                        await self.join()
                        self.on_regained()
                    else:
                        await self.renew()
                except (ClusterFault, LostRaceError) as exc:
                    _log.debug("no renewal: %s", exc)
                    if isinstance(exc, WrongKeyError) and not is_refused:
                        is_refused = True
                        self.on_refused(str(exc))
                    await self.report()
                due = self._lease.next_renewal_at(self._tried_at) - self._clock()
                await asyncio.sleep(max(self.times.retry_s, due))

    async def _watch_lease(self) -> None:
        """Give the lease up at its end, also while a renewal has no answer."""
        while True:
            await asyncio.sleep(max(self.times.retry_s / 2, self._lease.ends_at() - self._clock()))
            self.is_held()

    async def leave(self) -> None:
        """Release the lease: other nodes need not wait for its end."""
        lease, self._lease = self._lease, self._lease.lose()
        with suppress(ClusterFault, LostRaceError):
            if lease.revision is not None:
                await self._leases.delete(self.info.lease, lease.revision)
            gone: JsonObject = {"gone": self.info.instance}
            await self._broker.publish(self._settings.beats, compact_json(gone).encode())

    async def end_lease(self, lease: str) -> bool:
        """End the lease of another node at the broker if it has run out; return whether it has ended.

        The entry is created anew, which the broker allows only if it is gone: a node that slept cannot renew it.
        """
        try:
            await self._leases.create(lease, ENDED)
        except LostRaceError:
            entry = await self._leases.get(lease)
            return entry is not None and entry.value == ENDED
        return True

    # -- the other nodes --------------------------------------------------------------------

    async def report(self) -> None:
        """Report this node to all others: as a node, or as one that runs and has no lease."""
        value = self.info.to_json()
        if self._lease.revision is None:
            value = {"waiting": {**value, "lease": ""}}
        with suppress(ClusterFault):  # the next renewal reports it again
            await self._broker.publish(self._settings.beats, compact_json(value).encode())

    async def receive(self, message: Msg) -> None:
        """Take a report of a node."""
        value = _read(message.data)
        if value.get("hello") is not None and value.get("hello") != self.info.instance:
            if not self._is_observer:
                await self.report()
            return
        if isinstance(gone := value.get("gone"), str):
            self._drop(gone)
            return
        if (waiting := NodeInfo.parse(value.get("waiting"))) is not None:
            if waiting.instance != self.info.instance:
                self._drop(waiting.instance)
                self._waiting[waiting.instance] = waiting, self._clock()
            return
        info = NodeInfo.parse(value)
        if info is None or info.instance == self.info.instance:
            return
        self._waiting.pop(info.instance, None)
        known = self._nodes.get(info.instance)
        self._nodes[info.instance] = info, self._clock()
        if known is not None and known[0].lease != info.lease:
            self.on_gone(known[0])
        if known is None or known[0].lease != info.lease:
            self.on_joined(info)

    async def ask_nodes(self) -> None:
        """Have all nodes report themselves, and wait a moment for that."""
        hello: JsonObject = {"hello": self.info.instance}
        await self._broker.publish(self._settings.beats, compact_json(hello).encode())
        await asyncio.sleep(_ANSWERS_S + 2 * self._broker.health.round_trip_s)

    async def wait_for_reports(self) -> None:
        """Wait until each node that has a lease has reported itself, for `_LATE_S` at most."""
        with suppress(ClusterFault):
            for _ in range(int(_LATE_S / _ANSWERS_S)):
                if not await self.list_silent():
                    return
                await asyncio.sleep(_ANSWERS_S)

    def _drop(self, instance: str) -> None:
        self._waiting.pop(instance, None)
        known = self._nodes.pop(instance, None)
        if known is not None:
            self.on_gone(known[0])

    async def _watch_nodes(self) -> None:
        """Drop nodes that are silent for too long; one that misses a report is asked whether it is there."""
        while True:
            await asyncio.sleep(self.times.retry_s)
            now = self._clock()
            for instance, (_, seen_at) in [*self._waiting.items()]:
                if now - seen_at > self.times.ttl_s:
                    del self._waiting[instance]
            for instance, (_, seen_at) in [*self._nodes.items()]:
                if now - seen_at > self.times.ttl_s:
                    self._drop(instance)
                elif now - seen_at > 1.5 * self.times.renew_s:
                    await self._check_node(instance)

    async def _check_node(self, instance: str) -> None:
        try:
            await self._broker.request(self._settings.node_subject(instance), PING, self.times.retry_s)
        except UnheardError:
            self._drop(instance)
        except ClusterFault:
            return  # it may be stopped: only its lease tells

    def has_reported(self, instance: str) -> bool:
        """Return whether a process has reported itself not long ago, with a lease or without."""
        return instance in self._nodes or instance in self._waiting

    def list_nodes(self) -> Sequence[NodeInfo]:
        """List the live nodes by name, this one among them while it has a lease."""
        own = [self.info] if self._lease.revision is not None else []
        return sorted([*own, *(info for info, _ in self._nodes.values())], key=lambda info: (info.node, info.instance))

    def list_waiting(self) -> Sequence[NodeInfo]:
        """List the other nodes that run and have no lease, by name."""
        return sorted((info for info, _ in self._waiting.values()), key=lambda info: (info.node, info.instance))

    async def list_silent(self) -> Sequence[str]:
        """Name the nodes that have a lease and did not report themselves: cut off, stopped, or just gone.

        Raises:
            ClusterFault: The broker does not answer.
        """
        known = {info.node for info in self.list_nodes()}  # a node may have left a lease of an earlier attempt
        values = [_read(entry.value) for entry in (await self._leases.read_all()).values()]
        return sorted({str(value["node"]) for value in values if "node" in value} - known)

    async def wait_for_name(self) -> None:
        """Wait until no other lease has the name of this node: that of a lost machine ends by itself.

        Raises:
            ClusterFault: A node of this name is there, or the broker does not answer.
        """
        name, give_up_at = self.info.node, self._clock() + self.times.ttl_s
        while True:
            is_there = any(info.node == name for info in self.list_nodes())
            if not is_there and name not in await self.list_silent():
                return
            if is_there or self._clock() > give_up_at:
                raise ClusterFault("ready", f"there is a node named {name!r} already: choose another --node")
            await self.ask_nodes()

    async def list_offline(self) -> Sequence[str]:
        """Name the brokers that should keep the leases and are away; raises as `list_silent`."""
        return await self._leases.list_offline()

    def find_holder(self, lease: str) -> NodeInfo | None:
        """Find the live node that holds a lease."""
        return next((info for info in self.list_nodes() if info.lease == lease), None)


def _read(data: bytes) -> JsonObject:
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if is_json_object(value) else {}


@asynccontextmanager
async def open_membership(
    broker: Broker,
    clock: Callable[[], float] = read_lease_clock,
    *,
    observer: bool = False,
    before_join: Callable[[str], None] = lambda _: None,
) -> AsyncGenerator[Membership]:
    """Follow the nodes of the cluster inside the block; the caller runs `run`. An `observer` has no lease of its own.

    `before_join` is called with the name of each lease before it is created.

    Raises:
        ClusterFault: The cluster is not prepared, another node has the same name, or the broker does not answer.
    """
    settings: ClusterSettings = broker.settings
    leases = await broker.open_bucket(settings.leases)
    membership = Membership(broker, leases, LeaseTimes(await leases.read_ttl()), clock, is_observer=observer)
    membership.before_join = before_join
    if not observer:
        broker.check_write = membership.check_write
    stop = await broker.subscribe(settings.beats, membership.receive)
    try:
        await membership.ask_nodes()
        if observer:
            await membership.wait_for_reports()
        else:
            await membership.wait_for_name()
            await membership.join()
        yield membership
    finally:
        if not observer:
            await membership.leave()
        await stop()
