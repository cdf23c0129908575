"""How the brokers are, from the outcomes of requests.

Pure: outcomes come in, a `BrokerState` comes out. A write that failed counts until one succeeds at the same place, or a
lease is renewed, since brokers that are full, or have no majority, still answer some requests. Requests without an
answer mean slow brokers if a round trip to the connected one takes long, and brokers without a majority otherwise,
unless a read was told that its bucket is missing.
Answer times are averaged, so that the state does not change with every request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from induscode.cluster.contract import BrokerState

SLOW_S = 0.5
"""A broker that takes longer on average is slow; also the round trip with which a missing answer is blamed on that."""
_WEIGHT = 0.3
"""Of the last answer in the average."""
STATES: Mapping[BrokerState, str] = {
    "away": "are away: servers of this node go on until its lease ends",
    "slow": "answer slowly: calls of servers on other nodes take longer",
    "full": "have no storage left: leases cannot be renewed",
    "partitioned": "do not answer: they have no majority, too much to do, or a full disk",
    "without JetStream": "store nothing: start nats-server with -js",
    "missing": "have lost the buckets of the cluster: indus cluster init",
}
"""What each state means, after `the brokers`; none for `ready`."""


class BrokerHealth:
    """The state of the brokers as one process sees it."""

    def __init__(self, leases: str = "") -> None:
        """Begin with brokers that are well; `leases`: where a write says that all is well."""
        self.is_connected = True
        self.round_trip_s = 0.0
        """To the broker that this process is connected to, without storage."""
        self._unread: BrokerState | None = None
        """Why the last read had no answer."""
        self._leases = leases
        self._unwritten: dict[str, BrokerState] = {}
        """Why the last write of each bucket or stream was not done."""
        self._average_s = 0.0

    @property
    def state(self) -> BrokerState:
        """The present state."""
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
        """Take an answer; `wrote`: the bucket or stream of a write."""
        self.is_connected, self._unread = True, None
        self._average_s += _WEIGHT * (took_s - self._average_s)
        self._unwritten.pop(wrote, None)
        if wrote and wrote == self._leases:
            self._unwritten.clear()

    def take_failure(self, state: BrokerState, wrote: str = "") -> None:
        """Take a request that the brokers have not done, and why."""
        if wrote:
            self._unwritten[wrote] = state
        else:
            self._unread = state

    def take_silence(self, wrote: str = "") -> BrokerState:
        """Take a request without an answer in time; return why."""
        state: BrokerState = "slow" if self.round_trip_s > SLOW_S else "partitioned"
        if self._unread == "missing":
            state = self._unread  # nothing answers for a bucket that is not there
        self.take_failure(state, wrote)
        return state if self.is_connected else "away"

    def take_unread(self) -> None:
        """Messages came faster than they were read."""
        self._average_s = max(self._average_s, 2 * SLOW_S)

    def connect(self, *, is_connected: bool) -> None:
        """The connection was lost, or is there again."""
        self.is_connected = is_connected
        if is_connected:
            self._unread, self._average_s, self.round_trip_s = None, 0.0, 0.0
