"""When to start a server again, and when to leave it alone for a while. Pure; time is given."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from indusagi.interop.protocol_bridge.contract import ProtocolFault

PERMANENT_REASONS = frozenset({"auth", "not_found", "untrusted", "version", "malformed", "redirect"})
"""Reasons that do not pass by themselves: somebody has to change something first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How patient we are with a server that does not stay up."""

    first_s: float = 1.0
    factor: float = 1.6
    jitter: float = 0.2
    longest_s: float = 60.0
    failures: int = 5
    """So many failed starts within `window_s` open the circuit."""
    window_s: float = 60.0
    open_s: float = 60.0
    """How long the circuit stays open; each time twice as long, up to `open_longest_s`."""
    open_longest_s: float = 600.0
    healthy_s: float = 120.0
    """Up for so long, a server has a clean record."""


@dataclass(slots=True)
class RestartRecord:
    """What a server has done so far."""

    rules: Supervision
    starts: list[float] = field(default_factory=list[float])
    """When it failed to stay up, within the window."""
    in_a_row: int = 0
    opened: int = 0
    """How often the circuit was opened."""

    def forget(self) -> None:
        """Give it a clean record."""
        self.starts.clear()
        self.in_a_row = 0
        self.opened = 0

    def delay(self, fault: ProtocolFault | None, up_s: float, now: float) -> float | None:
        """Say how long to wait before the next start; None: until somebody asks for it."""
        rules = self.rules
        if fault is not None and fault.detail.reason in PERMANENT_REASONS:
            return None
        if up_s >= rules.healthy_s:
            self.forget()
        self.starts = [at for at in self.starts if now - at < rules.window_s]
        self.starts.append(now)
        self.in_a_row += 1
        if len(self.starts) >= rules.failures:
            self.starts.clear()
            self.opened += 1
            wait = _grown(rules.open_s, 2.0, self.opened - 1, rules.open_longest_s)
        else:
            wait = _grown(rules.first_s, rules.factor, self.in_a_row - 1, rules.longest_s)
            wait *= 1 + random.uniform(-rules.jitter, rules.jitter)
        asked = fault.detail.retry_after_s if fault is not None else None
        return max(wait, asked or 0.0)


def _grown(first_s: float, factor: float, times: int, longest_s: float) -> float:
    try:
        return min(first_s * factor**times, longest_s)
    except OverflowError:  # a day of failures is enough
        return longest_s
