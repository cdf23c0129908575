"""Cluster membership: keeps this node's lease alive and tracks the nodes that report themselves.

After every renewal, a node reports itself to all others on one subject. A node that stays silent for the lifetime of
its lease counts as gone, but only the broker decides whether its lease has ended (`end_lease`). A node that lost its
lease shares nothing until it gets another, and for that it needs the cluster's current key.

Reports and leases are sealed. Reports are numbered, and a new process counts only after it has answered our challenge,
so a replayed report can't bring a node back. If someone without the key replaces or removes a lease entry, its holder
writes it again.

A lease is the right to own servers. The broker ends it `ttl_s` after applying the last renewal. A node counts from when
it *sent* that renewal, which is earlier, and gives up `margin_s` before the end, so it has stopped before another node
can become the owner. The clock keeps running while the process or the machine sleeps.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.json import JsonObject
from indusagi.core.records import record
from indusagi.core.tasks import Listeners
from induscode.cluster.channel import NodeRequests
from induscode.cluster.contract import (
    ClusterFault,
    ClusterSettings,
    LostRaceError,
    NodeInfo,
    UnheardError,
    WrongKeyError,
)
from induscode.cluster.jetstream import Bucket, BucketEntry, open_bucket
from induscode.cluster.proofs import check_key, open_ring

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from induscode.cluster.broker import Broker
    from induscode.cluster.key import Seal, SealRing

_log = logging.getLogger(__name__)

PING: JsonObject = {"op": "ping"}
"""Request that checks whether a node is alive."""
_HELLO = b"?"
"""Prefix of a challenge asking nodes to report themselves, followed by a nonce and an instance or `*`."""
_ENDED: JsonObject = {"ended": True}
"""Written into another process's ended lease, so its holder can't renew it."""
_LAST_NUMBER = 2**53
"""Number of the final report, sent by a process's guard. Greater than all others."""
_MAX_HEARD = 4_096
_MAX_CHALLENGES = 64
_MAX_CHALLENGE_CHARS = 32
_REPORT_WAIT_S = 0.1
"""How long a new node waits for the others' reports."""
_MAX_REPORT_WAIT_S = 1.5
"""How long a command waits for a leaseholder's report; a busy node is late."""


# -- lease ------------------------------------------------------------------------------------


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Includes time in suspend: `CLOCK_BOOTTIME` on Linux (clock_gettime(2)), `CLOCK_MONOTONIC` on macOS."""


def read_lease_clock() -> float:
    """Return seconds that keep counting while the process is stopped or the machine sleeps."""
    return time.clock_gettime(_CLOCK)


@record
class LeaseTimes:
    """The times of a lease, derived from its lifetime at the broker."""

    ttl_s: float

    @property
    def renew_s(self) -> float:
        """Renewal interval. A broker's members may take nine seconds to elect a new leader."""
        return self.ttl_s / 8

    @property
    def retry_s(self) -> float:
        """Retry interval after a failed renewal."""
        return self.ttl_s / 20

    @property
    def margin_s(self) -> float:
        """How long before its end a lease no longer counts."""
        return self.ttl_s / 10


@record
class NodeLease:
    """A lease as its holder knows it. Each event returns the next state."""

    times: LeaseTimes
    revision: int | None = None
    """Revision of the entry at the broker; `None` without a lease."""
    counted_from: float = 0.0
    """When the last renewal known to be applied was sent."""

    def take_renewal(self, revision: int, sent_at: float) -> NodeLease:
        """Apply a renewal. A late one doesn't bring back a lost lease."""
        if self.revision is None:
            return self
        return replace(self, revision=revision, counted_from=max(sent_at, self.counted_from))

    def lose(self) -> NodeLease:
        """End it: rejected by the broker, expired, or released."""
        return replace(self, revision=None)

    def ends_at(self) -> float:
        """Return when it stops counting."""
        return self.counted_from + self.times.ttl_s - self.times.margin_s

    def is_held(self, now: float) -> bool:
        """Return whether servers may run and answer now."""
        return self.revision is not None and now < self.ends_at()

    def next_renewal_at(self, tried_at: float | None = None) -> float:
        """Return when to renew. `tried_at` is when the last renewal failed, if any since the last good one."""
        due = self.counted_from + self.times.renew_s
        return due if tried_at is None else max(due, tried_at + self.times.retry_s)


# -- membership -------------------------------------------------------------------------------


class Membership:
    """This node's lease, and the reports of all nodes."""

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
        self.on_lost: Listeners[[]] = Listeners()
        """Called first when the lease ends: stop everything it allowed."""
        self.on_gone: Listeners[[NodeInfo]] = Listeners()
        """Called when another node leaves or goes silent."""
        self.on_joined: Listeners[[NodeInfo]] = Listeners()
        """Called when another node first reports itself, or reports a new lease."""
        self.before_join: Callable[[str, bytes, bytes], None] = lambda lease, ended, gone: None
        """Called before creating a lease with what the guard needs: its name, the entry that ends it, and the
        report that this process is gone."""
        self.on_restored: Listeners[[]] = Listeners()
        """Called after rewriting a lease entry that someone without the key changed."""
        self.on_regained: Listeners[[]] = Listeners()
        """Called on getting a new lease after a loss."""
        self.on_refused: Listeners[[str]] = Listeners()
        """Called with the reason if there's no new lease because the cluster's key was replaced."""
        self._broker = broker
        self._is_observer = is_observer
        self._leases = leases
        self._settings = settings
        self._clock = clock
        self._lease = NodeLease(times)
        self._incarnation = 0
        self._beats = 0
        self._sent: dict[int, float] = {}
        """Send times of renewals whose outcome is unknown."""
        self._tried_at: float | None = None
        self._nodes: dict[str, tuple[NodeInfo, float]] = {}
        """Last report of each other node, and its arrival time."""
        self._waiting: dict[str, tuple[NodeInfo, float]] = {}
        """The same for nodes running without a lease."""
        self._heard: dict[str, tuple[int, Seal]] = {}
        """Number and author of each process's last report."""
        self._number = 0
        self._challenges: deque[str] = deque(maxlen=_MAX_CHALLENGES)
        """The last challenges this process sent."""
        self._challenged: dict[str, float] = {}
        """When we challenged each unknown process."""
        # An offering node may only write under its name, so the name comes first.
        instance = secrets.token_hex(6)
        if settings.role == "offers" or settings.offer is not None:
            instance = f"{settings.node}.{instance}"
        self.info = NodeInfo(
            node=settings.node,
            instance=instance,
            role=settings.role,
            capacity=settings.capacity,
            sandboxes=settings.sandboxes,
        )
        self.requests = NodeRequests(broker, ring.own, instance)

    # -- this node's lease ------------------------------------------------------------------

    def is_held(self) -> bool:
        """Return whether this node may own servers now. An expired lease is dropped at once."""
        if self._lease.is_held(self._clock()):
            return True
        self._lose()
        return False

    def holds(self, lease: str) -> bool:
        """Return whether this node still holds this lease; a lost one never comes back."""
        return self.is_held() and self.info.lease == lease

    def check_write(self) -> None:
        """Raise `ClusterFault` without a lease: the key that seals this node's data may have been replaced."""
        if not self.is_held():
            raise ClusterFault("ready", "this node has no lease now, and shares nothing")

    def _lose(self) -> None:
        if self._lease.revision is not None:
            self._lease = self._lease.lose()
            self.on_lost()

    async def join(self) -> None:
        """Create a lease, or raise `ClusterFault`."""
        self._incarnation += 1
        self.info = replace(self.info, lease=f"{self.info.instance}-{self._incarnation}")
        self._sent.clear()
        gone = self.ring.own.seal(self._settings.subject("beat"), {"number": _LAST_NUMBER, "gone": self.info.instance})
        self.before_join(self.info.lease, self._seal_entry(self.info.lease, _ENDED), gone)
        self._tried_at, sent_at = None, self._clock()
        revision = await self._leases.put(self.info.lease, self._build_value(sent_at))
        self._lease = NodeLease(self.times, revision, sent_at)
        await self.report()

    async def renew(self) -> None:
        """Renew the lease once. If another node has ended it, it's lost."""
        if not self.is_held():
            return
        lease, sent_at = self._lease, self._clock()
        assert lease.revision is not None
        try:
            revision = await self._leases.put(self.info.lease, self._build_value(sent_at), lease.revision)
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
        """Return the value of a lease entry, or nothing if it's forged."""
        opened = await self.ring.open(f"{self._settings.leases}/{lease}", entry.value)
        return opened.value if opened is not None and opened.seal.may_write(lease) else {}

    async def _read_back(self) -> None:
        """Find out who changed the entry: our own unanswered renewal, another node, or an outsider."""
        entry = await self._leases.get(self.info.lease)
        if entry is not None and entry.revision == self._lease.revision:
            self._tried_at = self._clock()  # brokers without a majority accepted a renewal but didn't commit it
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
        """Write the entry again. It can't have expired yet, so someone without the key replaced or removed it."""
        if not self.is_held():
            return
        sent_at = self._clock()
        value = self._build_value(sent_at)
        try:
            revision = await self._leases.put(self.info.lease, value, None if entry is None else entry.revision)
        except LostRaceError:
            self._tried_at = self._clock()  # the next renewal looks again
            return
        _log.warning("someone without the key of the cluster has changed the lease of this node at the broker")
        self._take_renewal(revision, sent_at)
        self.on_restored()

    async def run(self) -> None:
        """Renew the lease in time, and join again after losing it. Runs until cancelled."""
        is_refused = False
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_lease())
            tasks.create_task(self._watch_nodes())
            while True:
                try:
                    if self._lease.revision is None:
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
        """Drop the lease when it expires, even while a renewal is pending."""
        while True:
            await asyncio.sleep(max(self.times.retry_s / 2, self._lease.ends_at() - self._clock()))
            self.is_held()

    async def leave(self) -> None:
        """Release the lease, so other nodes needn't wait for it to expire."""
        lease, self._lease = self._lease, self._lease.lose()
        with suppress(ClusterFault, LostRaceError):
            if lease.revision is not None:
                await self._delete_lease(lease.revision)
        with suppress(ClusterFault):
            await self._publish({"gone": self.info.instance})

    async def _delete_lease(self, revision: int) -> None:
        try:
            await self._leases.delete(self.info.lease, revision)
        except LostRaceError:
            entry = await self._leases.get(self.info.lease)
            # Cancelled while the broker applied our last renewal.
            if entry is not None and (await self._open_entry(self.info.lease, entry)).get("beat") in self._sent:
                await self._leases.delete(self.info.lease, entry.revision)

    async def end_lease(self, lease: str) -> bool:
        """End another node's lease at the broker if it has expired, and return whether it's over.

        Creates the entry, which the broker allows only if it's gone. A node that slept can't renew it after that.
        """
        try:
            await self._leases.put(lease, self._seal_entry(lease, _ENDED))
        except LostRaceError:
            entry = await self._leases.get(lease)
            return entry is not None and await self._open_entry(lease, entry) == _ENDED
        return True

    # -- the other nodes --------------------------------------------------------------------

    async def report(self, challenge: str = "") -> None:
        """Report this node to all others, as a member or as waiting for a lease."""
        value = self.info.to_json()
        state = {"node": value} if self._lease.revision is not None else {"waiting": {**value, "lease": ""}}
        with suppress(ClusterFault):  # the next renewal reports again
            await self._publish({**state, "challenge": challenge})

    async def _publish(self, value: JsonObject) -> None:
        self._number += 1
        sealed = self.ring.own.seal(self._settings.subject("beat"), {**value, "number": self._number})
        await self._broker.publish(self._settings.subject("beat"), sealed)

    async def receive(self, message: Msg) -> None:
        """Handle a node's report or a challenge."""
        data = message.data
        if data.startswith(_HELLO):
            await self._take_challenge(data)
            return
        opened = await self.ring.open(self._settings.subject("beat"), data)
        if opened is None:
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
            return  # replayed
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
        if known is None or known[0].lease != info.lease:
            if known is not None:
                self.on_gone(known[0])
            self.on_joined(info)

    async def _take_challenge(self, data: bytes) -> None:
        """Report this node to a process that doesn't know it yet. A challenge has no other effect."""
        challenge, _, instance = data[len(_HELLO) :].decode("ascii", "replace").partition(" ")
        is_meant = instance in {"*", self.info.instance} and len(challenge) <= _MAX_CHALLENGE_CHARS
        if is_meant and challenge not in self._challenges and not self._is_observer:
            await self.report(challenge)

    async def _challenge(self, instance: str = "*") -> None:
        """Ask a process, or all of them, to report now."""
        now = self._clock()
        if instance != "*":
            if now - self._challenged.get(instance, now - self.times.ttl_s) < self.times.retry_s:
                return
            self._challenged[instance] = now
            if len(self._challenged) > _MAX_HEARD:
                del self._challenged[next(iter(self._challenged))]
        challenge = secrets.token_hex(8)
        self._challenges.append(challenge)
        with suppress(ClusterFault):  # its next report triggers another challenge
            await self._broker.publish(self._settings.subject("beat"), _HELLO + f"{challenge} {instance}".encode())

    async def ask_nodes(self) -> None:
        """Ask all nodes to report, and wait briefly for the answers."""
        await self._challenge()
        await asyncio.sleep(_REPORT_WAIT_S + 2 * self._broker.health.round_trip_s)

    async def ask(self, instance: str, value: JsonObject, within_s: float | None = None) -> JsonObject:
        """Send a request to another node and return its answer. Raises `UnheardError` if there's no such node."""
        return await self.requests.ask(instance, self.find_seal(instance), value, within_s)

    def find_seal(self, instance: str) -> Seal:
        """Return the seal of a process that has reported, or ours for any other."""
        return self._heard.get(instance, (0, self.ring.own))[1]

    async def wait_for_reports(self) -> None:
        """Wait up to `_MAX_REPORT_WAIT_S` for every leaseholder to report."""
        with suppress(ClusterFault):
            for _ in range(int(_MAX_REPORT_WAIT_S / _REPORT_WAIT_S)):
                if not await self.list_silent():
                    return
                await asyncio.sleep(_REPORT_WAIT_S)

    def _drop(self, instance: str) -> None:
        self._waiting.pop(instance, None)
        known = self._nodes.pop(instance, None)
        if len(self._heard) > _MAX_HEARD:  # a forgotten process gets challenged if it returns
            self._heard = {one: self._heard[one] for one in self._heard if self.has_reported(one)}
        if known is not None:
            self.on_gone(known[0])

    async def _watch_nodes(self) -> None:
        """Drop nodes that are silent for too long. Ping a node that missed a report."""
        while True:
            await asyncio.sleep(self.times.retry_s)
            now = self._clock()
            recent = {one: seen for one, seen in self._waiting.items() if now - seen[1] <= self.times.ttl_s}
            self._waiting = recent
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
            return  # it may be suspended; only its lease can tell

    def has_reported(self, instance: str) -> bool:
        """Return whether a process has reported recently, with or without a lease."""
        return instance in self._nodes or instance in self._waiting

    def list_nodes(self) -> Sequence[NodeInfo]:
        """List live nodes by name, including this one while it has a lease."""
        own = [self.info] if self._lease.revision is not None else []
        return sorted([*own, *(info for info, _ in self._nodes.values())], key=lambda info: (info.node, info.instance))

    def list_waiting(self) -> Sequence[NodeInfo]:
        """List the other nodes running without a lease, by name."""
        return sorted((info for info, _ in self._waiting.values()), key=lambda info: (info.node, info.instance))

    async def list_silent(self) -> Sequence[str]:
        """Name the leaseholders that didn't report: cut off, stopped, or just gone."""
        if self.ring.own.author:
            return ()  # an offering node can't read others' leases, and doesn't need permission to list them
        known = {info.node for info in self.list_nodes()}  # a node may have left behind the lease of an earlier attempt
        entries = (await self._leases.read_all()).items()
        values = [await self._open_entry(lease, entry) for lease, entry in entries]
        return sorted({str(value["node"]) for value in values if "node" in value} - known)

    async def wait_for_name(self) -> None:
        """Wait until no other lease has this node's name. A lost machine's lease expires by itself."""
        name, give_up_at = self.info.node, self._clock() + self.times.ttl_s
        while True:
            is_there = any(info.node == name for info in self.list_nodes())
            if not is_there and name not in await self.list_silent():
                return
            if is_there or self._clock() > give_up_at:
                raise ClusterFault("ready", f"there is a node named {name!r} already: choose another --node")
            await self.ask_nodes()

    async def list_offline(self) -> Sequence[str]:
        """Name the unreachable brokers among those storing the leases."""
        return (await self._leases.read_status()).offline

    def find_holder(self, lease: str) -> NodeInfo | None:
        """Find the live node that holds a lease."""
        return next((info for info in self.list_nodes() if info.lease == lease), None)


@asynccontextmanager
async def open_membership(
    broker: Broker,
    clock: Callable[[], float] = read_lease_clock,
    *,
    observer: bool = False,
    before_join: Callable[[str, bytes, bytes], None] = lambda lease, ended, gone: None,
) -> AsyncGenerator[Membership]:
    """Follow the cluster's nodes inside the block; the caller runs `run`. An `observer` gets no lease.

    Raises `WrongKeyError` if this process has a different key than the cluster.
    """
    settings: ClusterSettings = broker.settings
    leases = await open_bucket(broker, settings.leases)
    times, ring = LeaseTimes((await leases.read_status()).ttl_s), await open_ring(broker)
    membership = Membership(broker, leases, times, clock, ring, is_observer=observer)
    membership.before_join = before_join
    if not observer:
        broker.check_write = membership.check_write
    stops = [
        await broker.subscribe(
            settings.subject("reply", membership.info.instance, "*"), membership.requests.take_answer
        ),
        await broker.subscribe(settings.subject("beat"), membership.receive),
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
