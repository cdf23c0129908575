"""The lease of a node as a state machine: no two holders, whatever the delays."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from induscode.cluster.membership import LeaseTimes, NodeLease, read_lease_clock

TIMES = LeaseTimes(10.0)
WAITS = st.floats(0.0, 12.0)


@dataclass
class ModelEntry:
    """The entry at the broker: it ends `ttl_s` after the last write was applied."""

    holder: str = ""
    revision: int = 0
    ends_at: float = 0.0


@dataclass
class ModelHolder:
    """A node, and the renewal whose answer has not come."""

    lease: NodeLease
    under_way: tuple[float, int] | None = None
    """When it was sent, and the revision it names."""
    answers: list[tuple[int, float]] = field(default_factory=list[tuple[int, float]])


class Leases(RuleBasedStateMachine):
    """Two nodes contend for one entry; messages take any time, and nodes sleep for any time."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.entry = ModelEntry()
        self.nodes = {name: ModelHolder(NodeLease(TIMES)) for name in ("a", "b")}

    @rule(seconds=WAITS)
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(name=st.sampled_from("ab"))
    def send(self, name: str) -> None:
        node = self.nodes[name]
        if node.under_way is None:
            node.under_way = self.now, node.lease.revision or 0

    @rule(name=st.sampled_from("ab"))
    def apply(self, name: str) -> None:
        """The broker applies what was sent: a creation if the entry is gone, a renewal if the revision fits."""
        node = self.nodes[name]
        if node.under_way is None:
            return
        (sent_at, revision), node.under_way = node.under_way, None
        is_free = self.now >= self.entry.ends_at
        if is_free if revision == 0 else not is_free and self.entry.revision == revision:
            self.entry = ModelEntry(name, self.entry.revision + 1, self.now + TIMES.ttl_s)
            node.answers.append((self.entry.revision, sent_at))
        elif revision:
            node.lease = node.lease.lose()

    @rule(name=st.sampled_from("ab"))
    def answer(self, name: str) -> None:
        node = self.nodes[name]
        while node.answers:
            revision, sent_at = node.answers.pop(0)
            if node.lease.revision is None:
                node.lease = NodeLease(TIMES, revision, sent_at)
            else:
                node.lease = node.lease.take_renewal(revision, sent_at)

    @rule(name=st.sampled_from("ab"))
    def release(self, name: str) -> None:
        node = self.nodes[name]
        node.lease, revision = node.lease.lose(), node.lease.revision
        if revision is not None and revision == self.entry.revision:
            self.entry.ends_at = self.now

    @invariant()
    def a_held_lease_is_the_entry_at_the_broker(self) -> None:
        held = [name for name, node in self.nodes.items() if node.lease.is_held(self.now)]
        assert len(held) <= 1
        for name in held:
            assert self.entry.holder == name
            # What the margin is for: the servers have so long to end.
            assert self.now + TIMES.margin_s <= self.entry.ends_at


Leases.TestCase.settings = settings(stateful_step_count=40)
TestLeases = Leases.TestCase


def test_renewals_come_early_enough_for_several_tries() -> None:
    lease = NodeLease(TIMES, 1, 100.0)
    due = lease.next_renewal_at()
    assert (lease.ends_at() - due) / TIMES.retry_s >= 5
    assert lease.next_renewal_at(tried_at=due) == due + TIMES.retry_s


def test_late_answer_does_not_bring_a_lost_lease_back() -> None:
    lease = NodeLease(TIMES, 1, 0.0).lose()
    assert not lease.take_renewal(2, 1.0).is_held(1.0)


def test_clock_of_leases_goes_on() -> None:
    assert read_lease_clock() <= read_lease_clock()
