"""Statistics of calls: how many, how many failed, how long they took, by tool, server or caller.

A percentile is the value at its rank (nearest rank): a value that some call really took.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.core.records import record

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

    def to_json(self, by: str) -> JsonObject:
        """Convert to a JSON object; a tool is named with its server."""
        named: JsonObject = {by: self.name}
        if by == "tool":
            named = {"kind": self.kind, "server": self.server, "tool": self.name}
        return {
            **named,
            "calls": self.calls,
            "errors": self.errors,
            "p50_us": self.p50_us,
            "p95_us": self.p95_us,
            "slowest_us": self.slowest_us,
            "tokens": self.tokens,
        }


def read_statistics(database: CallDatabase, by: str, wanted: CallFilter) -> list[CallStatistics]:
    """Read the statistics of each group, the one with the most calls first; the last is that of all calls together."""
    durations: dict[tuple[str, str, str], list[int]] = {}
    failed: dict[tuple[str, str, str], int] = {}
    spent: dict[tuple[str, str, str], int] = {}
    for kind, server, name, outcome, calls, tokens, joined in database.measures(by, wanted):
        key = (kind, server, name)
        durations.setdefault(key, []).extend(map(int, joined.split(",")))
        failed[key] = failed.get(key, 0) + (calls if outcome != "ok" else 0)
        spent[key] = spent.get(key, 0) + tokens
    groups = [_summarize(*key, values, failed[key], spent[key]) for key, values in durations.items()]
    groups.sort(key=lambda group: (-group.calls, group.server, group.name))
    together = [duration for values in durations.values() for duration in values]
    return [*groups, _summarize("", "", "all", together, sum(failed.values()), sum(spent.values()))]


def _summarize(kind: str, server: str, name: str, durations: list[int], errors: int, tokens: int) -> CallStatistics:
    durations.sort()
    p50, p95, slowest = (find_percentile(durations, percent) for percent in (50, 95, 100))
    return CallStatistics(server, name, len(durations), errors, p50, p95, slowest, tokens, kind)


def find_percentile(ordered: Sequence[int], percent: int) -> int:
    """Find a percentile of sorted values by its nearest rank; 0 if there are none."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def format_duration(microseconds: int) -> str:
    """Format a duration in its largest unit with three digits: `1.24 ms`, `3.50 s`."""
    if microseconds < 1_000:
        return f"{microseconds} us"
    value, unit = (microseconds / 1_000, "ms") if microseconds < 1_000_000 else (microseconds / 1_000_000, "s")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"
