"""Membership: this node's lease, kept alive, and the nodes that have reported themselves.

A node reports itself to all others after every renewal, on one subject. A node that stays silent for as long as its
lease lives is taken to be gone; whether its lease has ended is decided at the broker alone (`end_lease`). A node that
has lost its lease shares nothing until it has another one, for which it needs the key that the cluster has then.

Reports and leases are sealed. Reports are numbered, and a process that is new here counts once it has answered a
challenge of this one, so an old report brings nobody back. An entry of a lease that someone without the key has
replaced or removed is written again by its holder.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject, is_json_object
from induscode.cluster.broker import check_key
from induscode.cluster.contract import (
    ClusterFault,
    ClusterSettings,
    LostRaceError,
    NodeInfo,
    UnheardError,
    WrongKeyError,
)
from induscode.cluster.lease import LeaseTimes, NodeLease, read_lease_clock
from induscode.cluster.offers import check_offer, open_ring
from induscode.cluster.requests import NodeRequests

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from induscode.cluster.broker import Broker
    from induscode.cluster.bucket import Bucket, BucketEntry
    from induscode.cluster.seals import Seal, SealRing

_log = logging.getLogger(__name__)

PING: JsonObject = {"op": "ping"}
"""The request by which a node is asked whether it is there."""
_HELLO = b"?"
"""Begins the challenge by which nodes are asked to report themselves: a number used once, and an instance or `*`."""
_ENDED: JsonObject = {"ended": True}
"""What another process writes into a lease that has ended: its holder can't renew it any more."""
_LAST_NUMBER = 2**53
"""Of the report that says that a process has ended, which its guard sends: greater than all others."""
_MAX_HEARD = 4_096
_MAX_CHALLENGES = 64
_MAX_CHALLENGE_CHARS = 32
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
        ring: SealRing,
        *,
        is_observer: bool = False,
    ) -> None:
        settings = broker.settings
        self.ring = ring
        self.times = times
        self.on_lost: Callable[[], None] = lambda: None
        """Called when the lease has ended, before anything else happens: what it allowed has to stop."""
        self.on_gone: Callable[[NodeInfo], None] = lambda _: None
        """Called when another node has left, or stays silent."""
        self.on_joined: Callable[[NodeInfo], None] = lambda _: None
        """Called when another node reports itself for the first time, or under a new lease."""
        self.before_join: Callable[[str, bytes, bytes], None] = lambda lease, ended, gone: None
        """Called before a lease is created, with what its guard needs: its name, the entry that ends it, and the
        report that this process is gone."""
        self.on_restored: Callable[[], None] = lambda: None
        """Called when the entry of the lease was written again: someone without the key had changed it."""
        self.on_unsealed: Callable[[str], None] = lambda _: None
        """Called with the name of a node, once, that reports itself unsealed: an earlier version of indus."""
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
        self._heard: dict[str, tuple[int, Seal]] = {}
        """The number of the last report of each process, and its author."""
        self._number = 0
        self._challenges: deque[str] = deque(maxlen=_MAX_CHALLENGES)
        """The last ones that this process has sent."""
        self._challenged: dict[str, float] = {}
        """When each unknown process was challenged."""
        self._unsealed: set[str] = set()
        # The name comes first where it is a right: an offering node may write nothing else.
        instance = secrets.token_hex(6)
        if settings.role == "offers" or settings.offer is not None:
            instance = f"{settings.node}.{instance}"
        self.info = NodeInfo(node=settings.node, instance=instance, role=settings.role, capacity=settings.capacity)
        self.requests = NodeRequests(broker, ring.own, instance)

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
        gone = self.ring.own.seal(self._settings.beats, {"number": _LAST_NUMBER, "gone": self.info.instance})
        self.before_join(self.info.lease, self._seal_entry(self.info.lease, _ENDED), gone)
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
        return self._seal_entry(self.info.lease, {"beat": self._beats, "node": self.info.node})

    def _seal_entry(self, lease: str, value: JsonObject) -> bytes:
        return self.ring.own.seal(f"{self._settings.leases}/{lease}", value)

    async def _open_entry(self, lease: str, entry: BucketEntry) -> JsonObject:
        """Return what a node has written into a lease; nothing if it's forged."""
        opened = await self.ring.open(f"{self._settings.leases}/{lease}", entry.value)
        return opened.value if opened is not None and opened.seal.may_write(lease) else {}

    async def _read_back(self) -> None:
        """Find out who has changed the entry: an own renewal without an answer, another node, or someone else."""
        entry = await self._leases.get(self.info.lease)
        if entry is not None and entry.revision == self._lease.revision:
            self._tried_at = self._clock()  # brokers without a majority have taken a renewal, and not agreed on it
            return
        value = {} if entry is None else await self._open_entry(self.info.lease, entry)
        beat = value.get("beat")
        sent_at = self._sent.get(beat) if isinstance(beat, int) else None
        if value == _ENDED:
            self._lose()
        elif entry is not None and sent_at is not None:
            self._take_renewal(entry.revision, sent_at)
        else:
            await self._restore(entry)

    async def _restore(self, entry: BucketEntry | None) -> None:
        """Write the entry again. It can't have run out yet, so someone without the key has replaced or removed it."""
        if not self.is_held():
            return
        sent_at = self._clock()
        value = self._build_value(sent_at)
        try:
            if entry is None:
                revision = await self._leases.create(self.info.lease, value)
            else:
                revision = await self._leases.update(self.info.lease, value, entry.revision)
        except LostRaceError:
            self._tried_at = self._clock()  # the next renewal looks again
            return
        _log.warning("someone without the key of the cluster has changed the lease of this node at the broker")
        self._take_renewal(revision, sent_at)
        self.on_restored()

    async def run(self) -> None:
        """Renew the lease in time, and join again after a loss; runs until cancelled."""
        is_refused = False
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_lease())
            tasks.create_task(self._watch_nodes())
            while True:
                try:
                    if self._lease.revision is None:
                        await self.check_key()
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

    async def check_key(self) -> None:
        """Check that the key of this node counts.

        Raises:
            WrongKeyError: It was replaced or revoked.
            ClusterFault: The broker doesn't answer.
        """
        if self.ring.own.author:
            await check_offer(self._broker, self.ring.own)
        else:
            await check_key(self._broker)

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
            await self._publish({"gone": self.info.instance})

    async def end_lease(self, lease: str) -> bool:
        """End the lease of another node at the broker if it has run out; return whether it has ended.

        The entry is created anew, which the broker allows only if it is gone: a node that slept cannot renew it.
        """
        try:
            await self._leases.create(lease, self._seal_entry(lease, _ENDED))
        except LostRaceError:
            entry = await self._leases.get(lease)
            return entry is not None and await self._open_entry(lease, entry) == _ENDED
        return True

    # -- the other nodes --------------------------------------------------------------------

    async def report(self, challenge: str = "") -> None:
        """Report this node to all others: as a node, or as one that runs and has no lease."""
        value = self.info.to_json()
        is_waiting = self._lease.revision is None
        with suppress(ClusterFault):  # the next renewal reports it again
            await self._publish(
                {"waiting": {**value, "lease": ""}} if is_waiting else {"node": value}, {"challenge": challenge}
            )

    async def _publish(self, value: JsonObject, more: JsonObject | None = None) -> None:
        self._number += 1
        sealed = self.ring.own.seal(self._settings.beats, {**value, **(more or {}), "number": self._number})
        await self._broker.publish(self._settings.beats, sealed)

    async def receive(self, message: Msg) -> None:
        """Take a report of a node, or a challenge."""
        data = message.data
        if data.startswith(_HELLO):
            await self._take_challenge(data)
            return
        opened = await self.ring.open(self._settings.beats, data)
        if opened is None:
            self._meet_unsealed(data)
            return
        value, number = opened.value, opened.value.get("number")
        waiting, gone = NodeInfo.parse(value.get("waiting")), value.get("gone")
        info = waiting or NodeInfo.parse(value.get("node"))
        instance = info.instance if info is not None else gone if isinstance(gone, str) else ""
        is_own = instance in {"", self.info.instance}
        if is_own or not isinstance(number, int) or not opened.seal.may_write(instance):
            return
        if info is not None and opened.seal.author not in {"", info.node}:
            return
        if number <= self._heard.get(instance, (0, opened.seal))[0]:
            return  # an earlier report, sent again
        if not self.has_reported(instance) and value.get("challenge") not in self._challenges:
            if info is not None:
                await self._challenge(instance)
            return
        self._heard[instance] = number, opened.seal
        if info is None:
            self._drop(instance)
        elif waiting is not None:
            self._drop(instance)
            self._waiting[instance] = waiting, self._clock()
        else:
            self._take_report(info)

    def _take_report(self, info: NodeInfo) -> None:
        self._waiting.pop(info.instance, None)
        known = self._nodes.get(info.instance)
        self._nodes[info.instance] = info, self._clock()
        if known is not None and known[0].lease != info.lease:
            self.on_gone(known[0])
        if known is None or known[0].lease != info.lease:
            self.on_joined(info)

    def _meet_unsealed(self, data: bytes) -> None:
        """Tell once of a node that sends reports as earlier versions did; it's ignored."""
        info = NodeInfo.parse(_read(data))
        if info is not None and info.node not in self._unsealed and len(self._unsealed) < _MAX_CHALLENGES:
            self._unsealed.add(info.node)
            self.on_unsealed(info.node)

    async def _take_challenge(self, data: bytes) -> None:
        """Report this node to a process that doesn't know it yet; nothing but that follows from a challenge."""
        challenge, _, instance = data[len(_HELLO) :].decode("ascii", "replace").partition(" ")
        is_meant = instance in {"*", self.info.instance} and len(challenge) <= _MAX_CHALLENGE_CHARS
        if is_meant and challenge not in self._challenges and not self._is_observer:
            await self.report(challenge)

    async def _challenge(self, instance: str = "*") -> None:
        """Ask a process, or all of them, to report itself now."""
        now = self._clock()
        if instance != "*":
            if now - self._challenged.get(instance, now - self.times.ttl_s) < self.times.retry_s:
                return
            self._challenged[instance] = now
            if len(self._challenged) > _MAX_HEARD:
                del self._challenged[next(iter(self._challenged))]
        challenge = secrets.token_hex(8)
        self._challenges.append(challenge)
        with suppress(ClusterFault):  # its next report is a further occasion
            await self._broker.publish(self._settings.beats, _HELLO + f"{challenge} {instance}".encode())

    async def ask_nodes(self) -> None:
        """Have all nodes report themselves, and wait a moment for that."""
        await self._challenge()
        await asyncio.sleep(_ANSWERS_S + 2 * self._broker.health.round_trip_s)

    async def ask(self, instance: str, value: JsonObject, within_s: float | None = None) -> JsonObject:
        """Send a request to another node, and return its answer.

        Raises:
            UnheardError: No such node is there.
            ClusterFault: It didn't answer.
        """
        return await self.requests.ask(instance, self.find_seal(instance), value, within_s)

    def find_seal(self, instance: str) -> Seal:
        """Return the seal of a node that has reported itself; of any other process, that of this one."""
        return self._heard.get(instance, (0, self.ring.own))[1]

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
        if len(self._heard) > _MAX_HEARD:  # what of it comes again is challenged
            self._heard = {one: self._heard[one] for one in self._heard if self.has_reported(one)}
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
                if now - seen_at > self.times.ttl_s or not await self.ring.counts(self.find_seal(instance)):
                    self._drop(instance)
                elif now - seen_at > 1.5 * self.times.renew_s:
                    await self._check_node(instance)

    async def _check_node(self, instance: str) -> None:
        try:
            await self.ask(instance, PING, self.times.retry_s)
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
        if self.ring.own.author:
            return ()  # an offering node can't read the leases of others, and needs no permission to list them
        known = {info.node for info in self.list_nodes()}  # a node may have left a lease of an earlier attempt
        entries = (await self._leases.read_all()).items()
        values = [await self._open_entry(lease, entry) for lease, entry in entries]
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
    before_join: Callable[[str, bytes, bytes], None] = lambda lease, ended, gone: None,
) -> AsyncGenerator[Membership]:
    """Follow the nodes of the cluster inside the block; the caller runs `run`. An `observer` has no lease of its own.

    `before_join` is called before each lease is created (`Membership.before_join`).

    Raises:
        WrongKeyError: This process has another key than the cluster.
        ClusterFault: The cluster is not prepared, another node has the same name, or the broker does not answer.
    """
    settings: ClusterSettings = broker.settings
    leases = await broker.open_bucket(settings.leases)
    times, ring = LeaseTimes(await leases.read_ttl()), await open_ring(broker)
    membership = Membership(broker, leases, times, clock, ring, is_observer=observer)
    membership.before_join = before_join
    if not observer:
        broker.check_write = membership.check_write
    stops = [
        await broker.subscribe(settings.reply_subject(membership.info.instance), membership.requests.take_answer),
        await broker.subscribe(settings.beats, membership.receive),
    ]
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
        for stop in stops:
            await stop()
