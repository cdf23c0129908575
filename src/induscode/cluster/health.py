"""The brokers' health, from the outcomes of requests.

Pure: outcomes in, a `BrokerState` out. A failed write counts until one succeeds at the same place or a lease is
renewed, since brokers that are full or without a majority still answer some requests. Unanswered requests mean slow
brokers if the round trip to the connected one is long, otherwise brokers without a majority, unless a read found its
bucket missing. Answer times are averaged, so the state doesn't change with every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from induscode.cluster.contract import BrokerState

SLOW_S = 0.5
"""Average above which a broker is slow; also the round trip that explains a missing answer."""
_WEIGHT = 0.3
"""Weight of the last answer in the average."""
STATES: Mapping[BrokerState, str] = {
    "away": "are away: servers of this node go on until its lease ends",
    "slow": "answer slowly: calls of servers on other nodes take longer",
    "full": "have no storage left: leases cannot be renewed",
    "partitioned": "do not answer: they have no majority, too much to do, or a full disk",
    "without JetStream": "store nothing: start nats-server with -js",
    "missing": "have lost the buckets of the cluster: indus cluster init",
}
"""Meaning of each state, after `the brokers`; none for `ready`."""


def explain_state(state: BrokerState) -> str:
    """Return the brokers' state as a reason to append to a message, or "" if they're ready."""
    return f": the brokers {STATES[state].partition(':')[0]}" if state in STATES else ""


class BrokerHealth:
    """The brokers' state as one process sees it."""

    def __init__(self, leases: str = "") -> None:
        """Start with healthy brokers. A successful write to `leases` clears all failed writes."""
        self.is_connected = True
        self.round_trip_s = 0.0
        """To the connected broker, without storage."""
        self._unread: BrokerState | None = None
        """Why the last read got no answer."""
        self._leases = leases
        self._unwritten: dict[str, BrokerState] = {}
        """Why the last write to each bucket or stream failed."""
        self._average_s = 0.0

    @property
    def state(self) -> BrokerState:
        """The current state."""
        if not self.is_connected:
            return "away"
        if self._unread == "missing":
            return self._unread
        if self._unwritten:
            return self._unwritten.get(self._leases) or next(iter(self._unwritten.values()))
        if self._unread is not None:
            return self._unread
        return "slow" if max(self._average_s, self.round_trip_s) > SLOW_S else "ready"

    def take_answer(self, took_s: float, wrote: str = "") -> None:
        """Record an answer. `wrote` is a write's bucket or stream."""
        self.is_connected, self._unread = True, None
        self._average_s += _WEIGHT * (took_s - self._average_s)
        self._unwritten.pop(wrote, None)
        if wrote and wrote == self._leases:
            self._unwritten.clear()

    def take_failure(self, state: BrokerState, wrote: str = "") -> None:
        """Record a failed request, and why."""
        if wrote:
            self._unwritten[wrote] = state
        else:
            self._unread = state

    def take_silence(self, wrote: str = "") -> BrokerState:
        """Record a request that timed out, and return why."""
        state: BrokerState = "slow" if self.round_trip_s > SLOW_S else "partitioned"
        if self._unread == "missing":
            state = self._unread  # nothing answers for a missing bucket
        self.take_failure(state, wrote)
        return state if self.is_connected else "away"

    def take_unread(self) -> None:
        """Record that messages came faster than they were read."""
        self._average_s = max(self._average_s, 2 * SLOW_S)

    def connect(self, *, is_connected: bool) -> None:
        """Record that the connection was lost or is back."""
        self.is_connected = is_connected
        if is_connected:
            self._unread, self._average_s, self.round_trip_s = None, 0.0, 0.0
