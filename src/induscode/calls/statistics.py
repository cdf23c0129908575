"""Call statistics: counts, failures and durations, by tool, server or caller.

Percentiles use the nearest rank, so each is the duration of an actual call.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.records import record
from induscode.calls.database import CallFilter
from induscode.calls.record import DECLINED, FAILED_OUTCOMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from indusagi.core.json import JsonObject
    from induscode.calls.database import CallDatabase

GROUPS = ("tool", "kind", "server", "client", "principal", "conversation", "agent", "via", "code")
"""Columns to group calls by."""


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
    """Calls the user or a rule declined. They didn't run: they aren't errors, and have no duration."""

    def to_json(self, by: str) -> JsonObject:
        """Convert to a JSON object, naming a tool with its server."""
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
    """Read each group's statistics, most calls first, followed by the total."""
    tallies: dict[tuple[str, str, str], _Tally] = {}
    together = _Tally()
    for kind, server, name, outcome, calls, tokens, joined in database.measures(by, wanted):
        for tally in (tallies.setdefault((kind, server, name), _Tally()), together):
            tally.add(outcome, calls, tokens, joined)
    groups = [tally.summarize(*key) for key, tally in tallies.items()]
    groups.sort(key=lambda group: (-group.calls, group.server, group.name))
    return [*groups, together.summarize("", "", "all")]


class _Tally:
    """Adds up a group's calls."""

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
    """Find the nearest-rank percentile of sorted values; 0 if there are none."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else 0


def format_duration(microseconds: int) -> str:
    """Format a duration in its largest unit with three digits: `1.24 ms`, `3.50 s`."""
    if microseconds < 1_000:
        return f"{microseconds} us"
    value, unit = (microseconds / 1_000, "ms") if microseconds < 1_000_000 else (microseconds / 1_000_000, "s")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


# -- series -----------------------------------------------------------------------------------


NATIVE = "native"
"""Stands for native tools, which have no server."""


@record(kw_only=True)
class CallSeries:
    """The calls between two times, in equal intervals, oldest first."""

    since_ms: int
    step_ms: int
    calls: Sequence[int]
    errors: Sequence[int]
    declined: Sequence[int]
    """Calls the user or a rule declined. They count as `calls`, and have no duration."""
    p50_us: Sequence[int]
    p95_us: Sequence[int]
    tokens: Mapping[str, Sequence[int]]
    """Estimated tokens by server."""
    latency_us: Mapping[str, Sequence[int]]
    """Median duration by server."""

    counts: Mapping[str, int]
    """Number of calls by server."""
    failures: Mapping[str, int]
    """Number of failed calls by server."""
    percentiles_us: Mapping[str, tuple[int, int]]
    """Median and p95 duration of all calls, by server."""

    @property
    def until_ms(self) -> int:
        """End of the last interval."""
        return self.since_ms + self.step_ms * len(self.calls)


def read_series(
    database: CallDatabase, until_ms: int, step_ms: int, steps: int, wanted: CallFilter | None = None
) -> CallSeries:
    """Read the calls, or the `wanted` ones, of the last `steps` intervals before `until_ms`. Blocks."""
    since_ms = until_ms - step_ms * steps
    wanted = replace(wanted or CallFilter(), since_ms=since_ms)
    durations: list[list[int]] = [[] for _ in range(steps)]
    of_server: dict[str, list[list[int]]] = {}
    calls, errors, declined = [0] * steps, [0] * steps, [0] * steps
    tokens, failures, counts = dict[str, list[int]](), dict[str, int](), dict[str, int]()
    for step, server, outcome, count, spent, joined in database.measure_steps(wanted, until_ms, step_ms):
        name = server or NATIVE
        is_error, is_declined = outcome in FAILED_OUTCOMES, outcome == DECLINED
        values = [] if is_declined else [*map(int, joined.split(","))]
        durations[step] += values
        of_server.setdefault(name, [[] for _ in range(steps)])[step] += values
        tokens.setdefault(name, [0] * steps)[step] += spent
        calls[step] += count
        errors[step] += count if is_error else 0
        declined[step] += count if is_declined else 0
        counts[name] = counts.get(name, 0) + count
        failures[name] = failures.get(name, 0) + (count if is_error else 0)
    for values in durations:
        values.sort()
    whole = {name: sorted(value for step in steps_of for value in step) for name, steps_of in of_server.items()}
    return CallSeries(
        since_ms=since_ms,
        step_ms=step_ms,
        calls=calls,
        errors=errors,
        declined=declined,
        p50_us=[find_percentile(values, 50) for values in durations],
        p95_us=[find_percentile(values, 95) for values in durations],
        tokens=dict(sorted(tokens.items())),
        counts=counts,
        failures=failures,
        percentiles_us={
            name: (find_percentile(values, 50), find_percentile(values, 95)) for name, values in whole.items()
        },
        latency_us={
            name: [find_percentile(sorted(values), 50) for values in steps_of] for name, steps_of in of_server.items()
        },
    )
