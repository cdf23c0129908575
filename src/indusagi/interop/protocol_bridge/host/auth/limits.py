"""The rate limit of each principal: a token bucket (https://en.wikipedia.org/wiki/Token_bucket), bounded in number."""

from __future__ import annotations

import math
from collections import OrderedDict

_BURST_S = 10.0
"""So many seconds' worth of requests may come at once."""
_BUCKETS = 4_096


class RateLimit:
    """Counts the requests of each owner."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate * _BURST_S)
        self._buckets: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        """What is left, and when that was so; the least recently used first. A full bucket may be forgotten."""

    def take(self, owner: bytes, now: float) -> int:
        """Count a request; return 0, or after how many seconds the next one is allowed."""
        left, at = self._buckets.pop(owner, (self._most, now))
        left = min(self._most, left + (now - at) * self._rate)
        is_allowed = left >= 1
        self._buckets[owner] = (left - 1 if is_allowed else left, now)
        if len(self._buckets) > _BUCKETS:
            self._buckets.popitem(last=False)
        return 0 if is_allowed else math.ceil((1 - left) / self._rate)
