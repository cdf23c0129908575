"""The membership of a node in memory: its lease, and what it makes of the reports of others."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.support.cluster import LeaseClock

from induscode.cluster.contract import ENDED, ClusterFault, ClusterSettings, LostRaceError, NodeInfo, UnheardError
from induscode.cluster.lease import LeaseTimes
from induscode.cluster.membership import Membership

pytestmark = pytest.mark.anyio
TIMES = LeaseTimes(40.0)


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

    async def create(self, key: str, value: bytes) -> int:
        if key in self.entries:
            raise LostRaceError("it is there")
        return self.write(key, value)

    async def update(self, key: str, value: bytes, revision: int) -> int:
        if self.fault is None and self.entries[key].revision != revision:
            raise LostRaceError("it has changed")
        return self.write(key, value)

    async def get(self, key: str) -> SimpleNamespace | None:
        return self.entries.get(key)

    async def delete(self, key: str, revision: int) -> None:
        assert self.entries.pop(key).revision == revision

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

    def __post_init__(self) -> None:
        settings = ClusterSettings(brokers=["nats://127.0.0.1:1"], node="one", role="doors", capacity=7)
        broker: Any = SimpleNamespace(settings=settings, publish=self.publish, request=self.request)
        self.node = Membership(broker, cast("Any", self.leases), TIMES, self.clock, is_observer=self.is_observer)
        self.node.on_lost = lambda: self.told.append(("lost",))
        self.node.on_gone = lambda info: self.told.append(("gone", info.node, info.lease))
        self.node.on_joined = lambda info: self.told.append(("joined", info.node, info.lease))
        self.node.before_join = lambda lease: self.told.append(("before", str(len(self.leases.entries))))

    async def publish(self, subject: str, data: bytes) -> None:
        self.sent.append(json.loads(data))

    async def request(self, subject: str, data: bytes, _: float) -> None:
        self.sent.append(subject)
        if self.unheard is not None:
            raise self.unheard

    async def hear(self, **value: Any) -> None:
        await self.node.receive(cast("Any", SimpleNamespace(data=json.dumps(value).encode())))


def other(name: str, lease: str = "l1") -> dict[str, Any]:
    return NodeInfo(node=name, instance=f"i-{name}", lease=lease).to_json()


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
    assert json.loads(stage.leases.entries[lease].value) == {"beat": 1, "node": "one"}
    assert stage.sent == [node.info.to_json()]
    assert (node.info.role, node.info.capacity) == ("doors", 7)
    node.check_write()
    stage.clock.now += 35.9
    await node.renew()
    assert json.loads(stage.leases.entries[lease].value)["beat"] == 2
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
    stage.leases.write(node.info.lease, b'{"beat": 2, "node": "one"}')
    stage.clock.now += 1
    await node.renew()
    stage.clock.now += 34.9
    assert node.is_held()
    stage.clock.now += 0.2
    assert not node.is_held()


@pytest.mark.parametrize("value", [b'{"beat": 9}', b'{"beat": "2"}', b"[]", b"not json", ENDED, None])
async def test_a_lease_that_another_node_has_ended_is_lost(value: bytes | None) -> None:
    stage = Stage()
    await stage.node.join()
    entries = stage.leases.entries
    if value is None:
        stage.leases.fault, _ = LostRaceError("it is gone"), entries.clear()
    else:
        stage.leases.write(stage.node.info.lease, value)
    await stage.node.renew()
    assert stage.told[-1] == ("lost",)
    assert not stage.node.is_held()


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
    assert (stage.leases.entries, stage.sent[-1]) == ({}, {"gone": stage.node.info.instance})
    assert stage.node.list_nodes() == []
    assert ("lost",) not in stage.told


async def test_a_lease_that_has_run_out_is_ended_for_good() -> None:
    stage = Stage()
    assert await stage.node.end_lease("l1")
    assert stage.leases.entries["l1"].value == ENDED
    assert await stage.node.end_lease("l1")
    stage.leases.write("l2", b"{}")
    assert not await stage.node.end_lease("l2")


async def test_reports_of_other_nodes_are_followed() -> None:
    stage = Stage()
    await stage.node.join()
    stage.told.clear()
    await stage.hear(**other("two"))
    await stage.hear(**other("two"))
    await stage.hear(**stage.node.info.to_json())
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
        await stage.hear(waiting=other(name))
    await stage.hear(waiting=stage.node.info.to_json())
    assert stage.told == [("joined", "two", "l1"), ("gone", "two", "l1")]
    assert [info.node for info in stage.node.list_waiting()] == ["three", "two"]
    assert (stage.node.has_reported("i-two"), stage.node.has_reported("i-four")) == (True, False)
    await stage.hear(**other("two"))
    assert (stage.node.has_reported("i-two"), len(stage.node.list_waiting())) == (True, 1)
    assert [info.node for info in stage.node.list_nodes()] == ["two"]
    await stage.node.report()
    assert stage.sent == [{"waiting": {**stage.node.info.to_json(), "lease": ""}}]


@pytest.mark.parametrize("is_observer", [False, True])
async def test_a_new_node_is_answered_by_nodes_alone(is_observer: bool) -> None:
    stage = Stage(is_observer=is_observer)
    await stage.hear(hello=stage.node.info.instance)
    assert stage.sent == []
    await stage.hear(hello="i-new")
    assert len(stage.sent) == (0 if is_observer else 1)


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
    for lease, value in (
        ("a", b'{"node": "two"}'),
        ("b", b'{"node": "four"}'),
        ("c", b"{}"),
        ("d", b'{"node": "one"}'),
    ):
        stage.leases.write(lease, value)
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
    stage.leases.write("a", b'{"node": "one"}')
    await stage.node.wait_for_name()
    assert len(asked) == 2
    stage.leases.write("a", b'{"node": "one"}')
    with pytest.raises(ClusterFault, match="there is a node named 'one' already"):
        await stage.node.wait_for_name()
    assert len(asked) == 5
    await stage.hear(**replace(stage.node.info, instance="i-x", lease="l").to_json())
    with pytest.raises(ClusterFault, match="there is a node named 'one' already"):
        await stage.node.wait_for_name()
    assert len(asked) == 5
