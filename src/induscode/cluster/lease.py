"""The lease of a node: the right to own servers, renewed at the broker, and given up in time.

Pure: times come in, decisions come out. The broker ends a lease `ttl_s` after it has applied the last renewal. A node
counts from the moment it *sent* that renewal, which is earlier, and gives up `margin_s` before the end: it has stopped
before another node can be the owner. The clock counts while the process or the machine sleeps.
"""

from __future__ import annotations

import time
from dataclasses import replace

from indusagi.core.records import record

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Counts a suspended machine's time too: `CLOCK_BOOTTIME` on Linux (clock_gettime(2)), `CLOCK_MONOTONIC` on macOS."""


def read_lease_clock() -> float:
    """Return seconds that go on while the process is stopped or the machine sleeps."""
    return time.clock_gettime(_CLOCK)


@record
class LeaseTimes:
    """The times of a lease; all follow from how long it lives at the broker."""

    ttl_s: float

    @property
    def renew_s(self) -> float:
        """Between two renewals. The members of a broker may take nine seconds to elect a new leader."""
        return self.ttl_s / 8

    @property
    def retry_s(self) -> float:
        """Between two tries of a renewal that failed."""
        return self.ttl_s / 20

    @property
    def margin_s(self) -> float:
        """How long before its end a lease no longer counts."""
        return self.ttl_s / 10


@record
class NodeLease:
    """A lease as its holder knows it; each event returns the next state."""

    times: LeaseTimes
    revision: int | None = None
    """Of the entry at the broker; `None`: there is no lease."""
    counted_from: float = 0.0
    """When the renewal was sent that is known to have been applied last."""

    def take_creation(self, revision: int, sent_at: float) -> NodeLease:
        """The broker has created the entry."""
        return replace(self, revision=revision, counted_from=sent_at)

    def take_renewal(self, revision: int, sent_at: float) -> NodeLease:
        """The broker has applied a renewal. One that comes late does not bring a lost lease back."""
        if self.revision is None:
            return self
        return replace(self, revision=revision, counted_from=max(sent_at, self.counted_from))

    def lose(self) -> NodeLease:
        """It has ended: refused by the broker, run out, or released."""
        return replace(self, revision=None)

    def ends_at(self) -> float:
        """Return when it stops to count."""
        return self.counted_from + self.times.ttl_s - self.times.margin_s

    def is_held(self, now: float) -> bool:
        """Return whether servers may run and answer now."""
        return self.revision is not None and now < self.ends_at()

    def next_renewal_at(self, tried_at: float | None = None) -> float:
        """Return when to renew; `tried_at`: of a renewal that failed since the last good one."""
        due = self.counted_from + self.times.renew_s
        return due if tried_at is None else max(due, tried_at + self.times.retry_s)
