"""The membership of a node in memory: its lease, and what it makes of the reports of others."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.broker import KEY
from tests.support.cluster import LeaseClock

from induscode.cluster.contract import ClusterFault, ClusterSettings, LostRaceError, NodeInfo, UnheardError
from induscode.cluster.key import ClusterKey, Seal, SealRing
from induscode.cluster.membership import LeaseTimes, Membership

pytestmark = pytest.mark.anyio
TIMES = LeaseTimes(40.0)
SEAL = Seal.of_cluster(KEY)
ADA = Seal.of_offer(KEY.derive_offer("ada", "s1"))
BEATS, LEASES = "indus.beat", "indus_leases"
ENDED = {"ended": True}
CHALLENGE = "c-of-this-one"


def seal_entry(lease: str, **value: Any) -> bytes:
    return SEAL.seal(f"{LEASES}/{lease}", value)


async def find_offer(node: str, serial: str) -> Seal | None:
    return ADA if (node, serial) == ("ada", "s1") else None


@dataclass
class Leases:
    """A bucket in memory; `fault` is raised by the next change."""

    entries: dict[str, SimpleNamespace] = field(default_factory=dict[str, SimpleNamespace])
    revision: int = 0
    fault: Exception | None = None

    def write(self, key: str, value: bytes) -> int:
        if self.fault is not None:
            fault, self.fault = self.fault, None
            raise fault
        self.revision += 1
        self.entries[key] = SimpleNamespace(value=value, revision=self.revision)
        return self.revision

    async def put(self, key: str, value: bytes, revision: int | None = None) -> int:
        present = self.entries.get(key)
        if self.fault is None and revision != (None if present is None else present.revision):
            raise LostRaceError("it is there, or has changed")
        return self.write(key, value)

    async def get(self, key: str) -> SimpleNamespace | None:
        return self.entries.get(key)

    async def delete(self, key: str, revision: int) -> None:
        if self.entries[key].revision != revision:
            raise LostRaceError("it has changed")
        del self.entries[key]

    async def read_all(self) -> dict[str, SimpleNamespace]:
        return self.entries


@dataclass
class Stage:
    """A membership without a broker, and what it told."""

    is_observer: bool = False
    leases: Leases = field(default_factory=Leases)
    clock: LeaseClock = field(default_factory=LeaseClock)
    sent: list[Any] = field(default_factory=list[Any])
    told: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    unheard: Exception | None = None
    number: int = 0

    def __post_init__(self) -> None:
        settings = ClusterSettings(brokers=["nats://127.0.0.1:1"], node="one", role="doors", capacity=7)
        broker: Any = SimpleNamespace(settings=settings, publish=self.publish)
        ring = SealRing(SEAL, find_offer)
        self.node = Membership(broker, cast("Any", self.leases), TIMES, self.clock, ring, is_observer=self.is_observer)
        self.node.ask = self.ask
        self.node._challenges.append(CHALLENGE)
        self.node.on_lost.add(lambda: self.told.append(("lost",)))
        self.node.on_gone.add(lambda info: self.told.append(("gone", info.node, info.lease)))
        self.node.on_joined.add(lambda info: self.told.append(("joined", info.node, info.lease)))
        self.node.on_restored.add(lambda: self.told.append(("restored",)))
        self.node.before_join = lambda lease, ended, gone: self.told.append(("before", str(len(self.leases.entries))))

    async def publish(self, subject: str, data: bytes) -> None:
        self.sent.append(SEAL.open(BEATS, data) or data)

    async def ask(self, instance: str, value: Any, within_s: float | None = None) -> Any:
        self.sent.append(instance)
        if self.unheard is not None:
            raise self.unheard

    async def hear(self, **value: Any) -> bytes:
        """Hear a report that answers a challenge of this process, as every report in these tests does."""
        self.number += 1
        data = SEAL.seal(BEATS, {"challenge": CHALLENGE, "number": self.number, **value})
        await self.hear_again(data)
        return data

    async def hear_again(self, data: bytes) -> None:
        await self.node.receive(cast("Any", SimpleNamespace(data=data)))

    def open_lease(self, lease: str) -> Any:
        return SEAL.open(f"{LEASES}/{lease}", self.leases.entries[lease].value)


def other(name: str, lease: str = "l1") -> dict[str, Any]:
    return {"node": NodeInfo(node=name, instance=f"i-{name}", lease=lease).to_json()}


async def test_a_lease_is_created_renewed_and_given_up_before_its_end() -> None:
    stage = Stage()
    node = stage.node
    assert not node.is_held()
    with pytest.raises(ClusterFault, match="this node has no lease now"):
        node.check_write()
    await node.join()
    assert stage.told == [("before", "0")]
    lease = node.info.lease
    assert (lease, node.holds(lease), node.holds("other")) == (f"{node.info.instance}-1", True, False)
    assert stage.open_lease(lease) == {"beat": 1, "node": "one"}
    assert stage.sent == [{"node": node.info.to_json(), "challenge": "", "number": 1}]
    assert (node.info.role, node.info.capacity) == ("doors", 7)
    node.check_write()
    stage.clock.now += 35.9
    await node.renew()
    assert stage.open_lease(lease)["beat"] == 2
    stage.clock.now += 36.0
    assert not node.is_held()
    assert not node.is_held()
    assert stage.told[1:] == [("lost",)]
    await node.renew()
    assert stage.leases.revision == 2
    await node.join()
    assert node.info.lease == f"{node.info.instance}-2"


async def test_a_renewal_without_an_answer_counts_if_the_broker_has_it() -> None:
    stage = Stage()
    node = stage.node
    await node.join()
    stage.clock.now += 5
    stage.leases.fault = ClusterFault("away", "no answer")
    with pytest.raises(ClusterFault):
        await node.renew()
    # It was applied after all.
    stage.leases.write(node.info.lease, seal_entry(node.info.lease, beat=2, node="one"))
    stage.clock.now += 1
    await node.renew()
    stage.clock.now += 34.9
    assert node.is_held()
    stage.clock.now += 0.2
    assert not node.is_held()


async def test_a_lease_that_another_node_has_ended_is_lost() -> None:
    stage = Stage()
    await stage.node.join()
    stage.leases.write(stage.node.info.lease, seal_entry(stage.node.info.lease, ended=True))
    await stage.node.renew()
    assert stage.told[-1] == ("lost",)
    assert not stage.node.is_held()


FORGED = [
    b'{"ended":true}',
    b"",
    b"\x02\x00 not sealed",
    SEAL.seal(f"{LEASES}/another-1", {"ended": True}),
    Seal.of_cluster(ClusterKey(bytes(32))).seal(f"{LEASES}/LEASE", {"ended": True}),
    ADA.seal(f"{LEASES}/LEASE", {"ended": True}),
    None,
]


@pytest.mark.parametrize("number", range(len(FORGED)))
async def test_finding_r2_a_lease_that_was_overwritten_or_removed_without_the_key_goes_on(number: int) -> None:
    stage, value = Stage(), FORGED[number]
    await stage.node.join()
    lease = stage.node.info.lease
    if value is None:
        stage.leases.fault, _ = LostRaceError("it is gone"), stage.leases.entries.clear()
    else:
        stage.leases.write(lease, value)
    await stage.node.renew()
    assert stage.told[1:] == [("restored",)]
    assert stage.node.is_held()
    assert stage.open_lease(lease)["node"] == "one"
    await stage.node.renew()
    assert stage.node.is_held()


async def test_a_lease_of_the_own_past_is_no_renewal() -> None:
    stage = Stage()
    await stage.node.join()
    first = stage.leases.entries[stage.node.info.lease].value
    stage.clock.now += 20
    await stage.node.renew()
    stage.leases.write(stage.node.info.lease, first)  # put back
    stage.clock.now += 1
    await stage.node.renew()
    assert stage.told[-1] == ("restored",)
    stage.clock.now += 35.9
    assert stage.node.is_held()


async def test_a_lease_that_has_run_out_is_not_written_again() -> None:
    stage = Stage()
    await stage.node.join()
    stage.leases.entries.clear()
    stage.clock.pass_lease()
    await stage.node._restore(None)
    assert stage.leases.entries == {}
    assert stage.told[-1] == ("lost",)


async def test_an_unchanged_entry_keeps_the_lease_until_its_end() -> None:
    stage = Stage()
    await stage.node.join()
    stage.leases.fault = LostRaceError("no majority")
    await stage.node.renew()
    assert stage.node.is_held()
    assert stage.node._tried_at == stage.clock.now


async def test_leaving_releases_the_lease_and_says_so() -> None:
    stage = Stage()
    await stage.node.join()
    await stage.node.leave()
    assert (stage.leases.entries, stage.sent[-1]) == ({}, {"gone": stage.node.info.instance, "number": 2})
    assert stage.node.list_nodes() == []
    assert ("lost",) not in stage.told


async def test_leaving_while_a_renewal_is_on_its_way_releases_the_lease() -> None:
    stage = Stage()
    await stage.node.join()
    lease = stage.node.info.lease
    await stage.leases.put(lease, stage.node._build_value(stage.clock.now), stage.leases.revision)  # its answer is lost
    await stage.node.leave()
    assert (stage.leases.entries, stage.sent[-1]["gone"]) == ({}, stage.node.info.instance)
    await stage.node.join()
    stage.leases.write(stage.node.info.lease, b"{}")  # someone else's
    await stage.node.leave()
    assert [*stage.leases.entries] == [stage.node.info.lease]
    assert stage.sent[-1]["gone"] == stage.node.info.instance


async def test_a_lease_that_has_run_out_is_ended_for_good() -> None:
    stage = Stage()
    assert await stage.node.end_lease("l1")
    assert stage.open_lease("l1") == ENDED
    assert await stage.node.end_lease("l1")
    for value in (b"{}", seal_entry("l2", beat=1), b'{"ended":true}', ADA.seal(f"{LEASES}/l2", {"ended": True})):
        stage.leases.write("l2", value)
        assert not await stage.node.end_lease("l2")


async def test_reports_of_other_nodes_are_followed() -> None:
    stage = Stage()
    await stage.node.join()
    stage.told.clear()
    await stage.hear(**other("two"))
    await stage.hear(**other("two"))
    await stage.hear(node=stage.node.info.to_json())
    await stage.hear(odd=1)
    assert stage.told == [("joined", "two", "l1")]
    assert [info.node for info in stage.node.list_nodes()] == ["one", "two"]
    await stage.hear(**other("two", "l2"))
    assert stage.told[1:] == [("gone", "two", "l1"), ("joined", "two", "l2")]
    found = stage.node.find_holder("l2")
    assert (found is not None and found.node, stage.node.find_holder("l1")) == ("two", None)
    await stage.hear(gone="i-two")
    await stage.hear(gone="i-two")
    assert stage.told[3:] == [("gone", "two", "l2")]
    assert [info.node for info in stage.node.list_nodes()] == ["one"]


async def test_a_node_without_a_lease_waits_and_has_reported_itself() -> None:
    stage = Stage()
    await stage.hear(**other("two"))
    for name in ("three", "two"):
        await stage.hear(waiting=other(name)["node"])
    await stage.hear(waiting=stage.node.info.to_json())
    assert stage.told == [("joined", "two", "l1"), ("gone", "two", "l1")]
    assert [info.node for info in stage.node.list_waiting()] == ["three", "two"]
    assert (stage.node.has_reported("i-two"), stage.node.has_reported("i-four")) == (True, False)
    await stage.hear(**other("two"))
    assert (stage.node.has_reported("i-two"), len(stage.node.list_waiting())) == (True, 1)
    assert [info.node for info in stage.node.list_nodes()] == ["two"]
    await stage.node.report()
    assert stage.sent == [{"waiting": {**stage.node.info.to_json(), "lease": ""}, "challenge": "", "number": 1}]


@pytest.mark.parametrize("is_observer", [False, True])
async def test_a_new_node_is_answered_by_nodes_alone(is_observer: bool) -> None:
    stage = Stage(is_observer=is_observer)
    await stage.hear_again(f"?{CHALLENGE} *".encode())  # its own
    await stage.hear_again(b"?c-of-another i-another")
    await stage.hear_again(b"?" + b"c" * 1_000 + b" *")
    assert stage.sent == []
    for whom in ("*", stage.node.info.instance):
        await stage.hear_again(f"?c-of-another {whom}".encode())
    assert [sent["challenge"] for sent in stage.sent] == ([] if is_observer else ["c-of-another"] * 2)


async def test_a_silent_node_is_asked_and_dropped_if_nobody_is_there() -> None:
    stage = Stage()
    await stage.hear(**other("two"))
    for fault, is_there in ((None, True), (ClusterFault("away", "stopped"), True), (UnheardError("nobody"), False)):
        stage.unheard = fault
        await stage.node._check_node("i-two")
        assert stage.node.has_reported("i-two") is is_there


async def test_nodes_with_a_lease_and_no_report_are_silent() -> None:
    stage = Stage()
    await stage.node.join()
    for lease, name in (("a", "two"), ("b", "four"), ("d", "one")):
        stage.leases.write(lease, seal_entry(lease, node=name))
    stage.leases.write("c", b'{"node": "forged"}')
    assert await stage.node.list_silent() == ["four", "two"]
    await stage.hear(**other("two"))
    assert await stage.node.list_silent() == ["four"]


async def test_a_name_is_free_once_its_lease_has_ended() -> None:
    stage = Stage()
    asked: list[float] = []

    async def ask() -> None:
        asked.append(stage.clock.now)
        stage.clock.now += 15
        if len(asked) == 2:
            stage.leases.entries.clear()

    stage.node.ask_nodes = ask
    stage.leases.write("a", seal_entry("a", node="one"))
    await stage.node.wait_for_name()
    assert len(asked) == 2
    stage.leases.write("a", seal_entry("a", node="one"))
    with pytest.raises(ClusterFault, match="there is a node named 'one' already"):
        await stage.node.wait_for_name()
    assert len(asked) == 5
    await stage.hear(node=replace(stage.node.info, instance="i-x", lease="l").to_json())
    with pytest.raises(ClusterFault, match="there is a node named 'one' already"):
        await stage.node.wait_for_name()
    assert len(asked) == 5


async def test_finding_r2_nobody_joins_or_leaves_by_a_forged_or_repeated_report() -> None:
    stage = Stage()
    first = await stage.hear(**other("two"))
    second = await stage.hear(**other("two"))
    gone = SEAL.seal(BEATS, {"gone": "i-two", "number": 1})
    other_key = Seal.of_cluster(ClusterKey(bytes(32)))
    elsewhere = NodeInfo(node="two", instance="ada.x").to_json()
    stage.told.clear()
    for data in (
        first,  # again
        second,
        gone,  # of an earlier time
        b'{"gone": "i-two"}',
        b"\x02\x00" + bytes(60),
        other_key.seal(BEATS, {"gone": "i-two", "number": 99}),
        SEAL.seal("another place", {"gone": "i-two", "number": 99}),
        ADA.seal(BEATS, {"gone": "i-two", "number": 99}),  # an offering node speaks for itself alone
        ADA.seal(BEATS, {**other("ada"), "number": 99, "challenge": CHALLENGE}),
        ADA.seal(BEATS, {"node": elsewhere, "number": 9, "challenge": CHALLENGE}),
    ):
        await stage.hear_again(data)
    assert stage.told == []
    assert [info.node for info in stage.node.list_nodes()] == ["two"]


async def test_a_process_that_is_new_here_answers_a_challenge_first() -> None:
    stage = Stage()
    old = SEAL.seal(BEATS, {**other("ghost"), "number": 7})
    for _ in range(3):
        await stage.hear_again(old)
    assert stage.node.list_nodes() == []
    assert len(stage.sent) == 1  # it is asked once
    challenge, _, instance = stage.sent[0][1:].decode().partition(" ")
    assert instance == "i-ghost"
    await stage.hear_again(SEAL.seal(BEATS, {**other("ghost"), "number": 8, "challenge": "c-of-another"}))
    assert stage.node.list_nodes() == []
    await stage.hear_again(SEAL.seal(BEATS, {**other("ghost"), "number": 9, "challenge": challenge}))
    assert [info.node for info in stage.node.list_nodes()] == ["ghost"]


async def test_an_offering_node_reports_itself_under_its_own_key_until_that_is_revoked() -> None:
    stage = Stage()
    info = NodeInfo(node="ada", instance="ada.x", role="offers", lease="ada.x-1")
    await stage.hear_again(ADA.seal(BEATS, {"node": info.to_json(), "number": 1, "challenge": CHALLENGE}))
    assert [info.node for info in stage.node.list_nodes()] == ["ada"]
    assert stage.node.find_seal("ada.x") is ADA
    revoked = Seal.of_offer(KEY.derive_offer("ada", "s0"))
    await stage.hear_again(revoked.seal(BEATS, {"gone": "ada.x", "number": 2}))
    assert [info.node for info in stage.node.list_nodes()] == ["ada"]
    assert not await stage.node.ring.counts(revoked)


async def test_an_unsealed_report_is_ignored() -> None:
    stage = Stage()
    text = json.dumps(other("old")["node"]).encode()
    for data in (text, text, b"nonsense", b"[]"):
        await stage.hear_again(data)
    assert stage.told == []
    assert stage.node.list_nodes() == []
