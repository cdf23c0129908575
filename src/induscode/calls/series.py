"""Calls over time: equal intervals with their numbers, durations and tokens, for plots and live displays."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from indusagi.core.records import record
from induscode.calls.database import CallFilter
from induscode.calls.record import DECLINED, FAILED_OUTCOMES
from induscode.calls.statistics import find_percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from induscode.calls.database import CallDatabase

NATIVE = "native"
"""Stands for the calls of native tools, which have no server."""


@record(kw_only=True)
class CallSeries:
    """The calls between two times, in equal intervals, the oldest first."""

    since_ms: int
    step_ms: int
    calls: Sequence[int]
    errors: Sequence[int]
    declined: Sequence[int]
    """Calls that the user or a rule declined; they count among `calls`, and have no duration."""
    p50_us: Sequence[int]
    p95_us: Sequence[int]
    tokens: Mapping[str, Sequence[int]]
    """Estimated tokens by server."""
    latency_us: Mapping[str, Sequence[int]]
    """The median duration by server."""

    counts: Mapping[str, int]
    """The number of calls by server."""
    failures: Mapping[str, int]
    """The number of failed calls by server."""
    percentiles_us: Mapping[str, tuple[int, int]]
    """The durations of all calls by server: median and p95."""

    @property
    def until_ms(self) -> int:
        """The end of the last interval."""
        return self.since_ms + self.step_ms * len(self.calls)


def read_series(
    database: CallDatabase, until_ms: int, step_ms: int, steps: int, wanted: CallFilter | None = None
) -> CallSeries:
    """Read the calls of the last `steps` intervals before `until_ms`, or the `wanted` ones of them. It blocks."""
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
