"""A node's lease: the right to own servers, renewed at the broker, and given up in time.

Pure: times in, decisions out. The broker ends a lease `ttl_s` after applying the last renewal. A node counts from when
it *sent* that renewal, which is earlier, and gives up `margin_s` before the end, so it has stopped before another node
can become the owner. The clock keeps running while the process or the machine sleeps.
"""

from __future__ import annotations

import time
from dataclasses import replace

from indusagi.core.records import record

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

    def take_creation(self, revision: int, sent_at: float) -> NodeLease:
        """Apply the creation of the entry."""
        return replace(self, revision=revision, counted_from=sent_at)

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
