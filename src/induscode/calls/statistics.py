"""Statistics of calls: how many, how many failed, how long they took, by tool, server or caller.

A percentile is the value at its rank (nearest rank): a value that some call really took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.records import record
from induscode.calls.record import DECLINED, FAILED_OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from indusagi.core.json import JsonObject
    from induscode.calls.database import CallDatabase, CallFilter

GROUPS = ("tool", "kind", "server", "client", "principal", "conversation", "agent", "via", "code")
"""The columns that calls can be grouped by."""


@record
class CallStatistics:
    """The calls of one group."""

    server: str
    name: str
    calls: int
    errors: int
    p50_us: int
    p95_us: int
    slowest_us: int
    tokens: int
    kind: str = ""
    declined: int = 0
    """Calls that the user or a rule declined. They didn't run: they're no errors, and have no duration."""

    def to_json(self, by: str) -> JsonObject:
        """Convert to a JSON object; a tool is named with its server."""
        named: JsonObject = {by: self.name}
        if by == "tool":
            named = {"kind": self.kind, "server": self.server, "tool": self.name}
        return {
            **named,
            "calls": self.calls,
            "errors": self.errors,
            "declined": self.declined,
            "p50_us": self.p50_us,
            "p95_us": self.p95_us,
            "slowest_us": self.slowest_us,
            "tokens": self.tokens,
        }


def read_statistics(database: CallDatabase, by: str, wanted: CallFilter) -> list[CallStatistics]:
    """Read the statistics of each group, the one with the most calls first; the last is that of all calls together."""
    tallies: dict[tuple[str, str, str], _Tally] = {}
    together = _Tally()
    for kind, server, name, outcome, calls, tokens, joined in database.measures(by, wanted):
        for tally in (tallies.setdefault((kind, server, name), _Tally()), together):
            tally.add(outcome, calls, tokens, joined)
    groups = [tally.summarize(*key) for key, tally in tallies.items()]
    groups.sort(key=lambda group: (-group.calls, group.server, group.name))
    return [*groups, together.summarize("", "", "all")]


class _Tally:
    """Adds up the calls of a group."""

    def __init__(self) -> None:
        self.durations: list[int] = []
        self.calls = self.errors = self.declined = self.tokens = 0

    def add(self, outcome: str, calls: int, tokens: int, durations: str) -> None:
        self.calls += calls
        self.tokens += tokens
        if outcome == DECLINED:
            self.declined += calls
            return
        self.durations.extend(map(int, durations.split(",")))
        self.errors += calls if outcome in FAILED_OUTCOMES else 0

    def summarize(self, kind: str, server: str, name: str) -> CallStatistics:
        self.durations.sort()
        p50, p95, slowest = (find_percentile(self.durations, percent) for percent in (50, 95, 100))
        return CallStatistics(
            server, name, self.calls, self.errors, p50, p95, slowest, self.tokens, kind, self.declined
        )


def find_percentile(ordered: Sequence[int], percent: int) -> int:
    """Find a percentile of sorted values by its nearest rank; 0 if there are none."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def format_duration(microseconds: int) -> str:
    """Format a duration in its largest unit with three digits: `1.24 ms`, `3.50 s`."""
    if microseconds < 1_000:
        return f"{microseconds} us"
    value, unit = (microseconds / 1_000, "ms") if microseconds < 1_000_000 else (microseconds / 1_000_000, "s")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
