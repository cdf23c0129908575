"""Supervision: when a failed server is started again. Pure functions; the time is a parameter."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from indusagi.core.records import record
from indusagi.interop.protocol_bridge.contract import ProtocolFault

PERMANENT_REASONS = frozenset({"auth", "not_found", "untrusted", "version", "malformed", "redirect"})
"""Reasons that do not pass by themselves: the user has to change something first."""


@record(kw_only=True)
class Supervision:
    """The rules of restarts: backoff with jitter, and a circuit breaker."""

    first_s: float = 1.0
    factor: float = 1.6
    jitter: float = 0.2
    longest_s: float = 60.0
    failures: int = 5
    """Failed starts within `window_s` that open the circuit."""
    window_s: float = 60.0
    open_s: float = 60.0
    """How long the circuit stays open; doubled each time, up to `open_longest_s`."""
    open_longest_s: float = 600.0
    healthy_s: float = 120.0
    """A server that was up for so long starts with a clean record."""


@dataclass(slots=True)
class RestartRecord:
    """The failures of one server so far."""

    rules: Supervision
    starts: list[float] = field(default_factory=list[float])
    """Times of the failures within the window."""
    in_a_row: int = 0
    opened: int = 0
    """How often the circuit was opened."""

    def forget(self) -> None:
        """Clear the record."""
        self.starts.clear()
        self.in_a_row = 0
        self.opened = 0

    def delay(self, fault: ProtocolFault | None, up_s: float, now: float) -> float | None:
        """Record a failure; return the seconds until the next start, or `None`: only when it is requested."""
        rules = self.rules
        if fault is not None and fault.detail.reason in PERMANENT_REASONS:
            return None
        if up_s >= rules.healthy_s:
            self.forget()
        self.starts = [time for time in self.starts if now - time < rules.window_s]
        self.starts.append(now)
        self.in_a_row += 1
        if len(self.starts) >= rules.failures:
            self.starts.clear()
            self.opened += 1
            wait_s = _grow(rules.open_s, 2.0, self.opened - 1, rules.open_longest_s)
        else:
            wait_s = _grow(rules.first_s, rules.factor, self.in_a_row - 1, rules.longest_s)
            wait_s *= 1 + random.uniform(-rules.jitter, rules.jitter)
        retry_after_s = fault.detail.retry_after_s if fault is not None else None
        return max(wait_s, retry_after_s or 0.0)


def _grow(first_s: float, factor: float, times: int, longest_s: float) -> float:
    try:
        return min(first_s * factor**times, longest_s)
    except OverflowError:  # after a day of failures
        return longest_s
