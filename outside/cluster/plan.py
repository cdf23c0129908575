"""What is made to fail in a run: a function of its seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

BATCH = 4
"""Runs that go on at once; the brokers, and what happens to these, are theirs together."""
GATEWAYS_EVERY = 10
"""One run of so many has gateways as processes, the others nodes in this process."""
_LOCAL = (
    "cut",
    "cut",
    "hold",
    "hold up",
    "hold down",
    "delay",
    "delay",
    "sleep",
    "sleep",
    "drain",
    "leave",
    "join",
    "kill server",
)
_GATEWAYS = ("kill", "kill", "stop", "stop", "end", "cut", "hold", "delay")
_DELAYS_S = (0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_BROKERS = (None, None, None, "kill leader", "kill leader", "kill broker")


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """One fault: what, to which member, when after the start, and for how long."""

    at_s: float
    what: str
    member: int | None
    """None: the owner of the server that took effect last."""
    lasting_s: float

    @property
    def delay_s(self) -> float:
        """For `delay`: how long everything takes in each direction; from a slow network to one as good as cut."""
        return _DELAYS_S[int(1_000 * self.at_s) % len(_DELAYS_S)]


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: int
    has_gateways: bool
    lease_s: float
    faults: Sequence[PlannedFault]

    @property
    def prefix(self) -> str:
        """The cluster it uses: gateways have that of the commands."""
        return "indus" if self.has_gateways else f"f{self.seed % BATCH}"


def make_plan(seed: int) -> Plan:
    """Plan a run."""
    chosen = random.Random(seed)
    has_gateways = seed % GATEWAYS_EVERY == GATEWAYS_EVERY - 1
    lease_s = 2.0 if has_gateways else 1.0
    kinds = _GATEWAYS if has_gateways else _LOCAL
    faults = [
        PlannedFault(
            at_s=chosen.uniform(0.1, 0.8 * lease_s),
            what=chosen.choice(kinds),
            member=chosen.choice((None, None, None, 0, 1, 2)),
            lasting_s=chosen.choice((0.1, 0.5, 1.0, 1.6)) * lease_s * chosen.uniform(0.8, 1.2),
        )
        for _ in range(chosen.choice((1, 1, 2, 3)))
    ]
    return Plan(seed, has_gateways, lease_s, tuple(sorted(faults, key=lambda fault: fault.at_s)))


def plan_broker_fault(batch: int) -> PlannedFault | None:
    """Plan what happens to the brokers during a batch of runs; `member` is the broker; None: the leader."""
    chosen = random.Random(f"brokers {batch}")
    what = chosen.choice(_BROKERS)
    if what is None:
        return None
    broker = None if what == "kill leader" else chosen.randrange(3)
    return PlannedFault(chosen.uniform(0.3, 1.0), what, broker, chosen.uniform(0.2, 2.5))
