"""How the brokers are, from the outcomes of requests.

Pure: outcomes come in, a `BrokerState` comes out. Storage that was refused stays refused until a write succeeds, since
a full broker still answers reads. Requests without an answer mean slow brokers if a round trip to the connected one
takes long, and brokers without a majority otherwise. Answer times are averaged, so that the state does not change with
every request.
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
    "partitioned": "do not answer: they have no majority, or too much to do",
    "missing": "have lost the buckets of the cluster: indus cluster init",
}
"""What each state means, after `the brokers`; none for `ready`."""


class BrokerHealth:
    """The state of the brokers as one process sees it."""

    def __init__(self) -> None:
        self.is_connected = True
        self.round_trip_s = 0.0
        """To the broker that this process is connected to, without storage."""
        self._failure: BrokerState | None = None
        self._is_full = False
        self._average_s = 0.0

    @property
    def state(self) -> BrokerState:
        """The present state."""
        if not self.is_connected:
            return "away"
        if self._failure is not None:
            return self._failure
        if self._is_full:
            return "full"
        return "slow" if max(self._average_s, self.round_trip_s) > SLOW_S else "ready"

    def take_answer(self, took_s: float, *, wrote: bool = False) -> None:
        """Take an answer; `wrote`: storage was used for it."""
        self.is_connected, self._failure = True, None
        self._average_s += _WEIGHT * (took_s - self._average_s)
        if wrote:
            self._is_full = False

    def take_full(self) -> None:
        """A write was refused for want of storage."""
        self._failure, self._is_full = None, True

    def take_refusal(self) -> None:
        """The brokers could not do what was asked."""
        self._failure = "partitioned"

    def take_missing(self) -> None:
        """A bucket or stream of the cluster is not there."""
        self._failure = "missing"

    def take_silence(self) -> BrokerState:
        """A request has no answer in time; returns why."""
        self._failure = "slow" if self.round_trip_s > SLOW_S else "partitioned"
        return self.state

    def take_unread(self) -> None:
        """Messages came faster than they were read."""
        self._average_s = max(self._average_s, 2 * SLOW_S)

    def connect(self, *, is_connected: bool) -> None:
        """The connection was lost, or is there again."""
        self.is_connected = is_connected
        if is_connected:
            self._failure, self._average_s, self.round_trip_s = None, 0.0, 0.0
