"""Call metrics in the Prometheus text format, for `/metrics` of `indus serve --http`.

Counters live in memory and start at zero with the process. The number of series is bounded: further tools are counted
together. https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from indusagi.runtime.calls import UserWait, current_completion, current_wait
from induscode.calls.record import DECLINED, classify_end, find_tool_ref

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from indusagi.runtime.contract import ToolCall, ToolOutcome

BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
MOST_TOOLS = 1_000
_OTHER = ("tool", "", "other")


class _Series:
    """The calls of one tool."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.buckets = [0] * (len(BUCKETS_S) + 1)
        self.seconds = self.waited = 0.0


class CallMetrics:
    """A `CallObserver` that counts a gateway's calls and their durations."""

    def __init__(self, count_dropped: Callable[[], int] = lambda: 0) -> None:
        self._series: dict[tuple[str, str, str], _Series] = {}
        self.running = 0
        self._count_dropped = count_dropped
        """Returns the number of unrecorded calls."""

    def start(self, call: ToolCall, tool: object) -> MeasuredCall:
        """Count a call as running."""
        self.running += 1
        # A name made up by a client must not become a label.
        name = call.name if tool is not None else ""
        return MeasuredCall(self, name, find_tool_ref(tool), current_wait.get(), perf_counter())

    def count(self, kind: str, server: str, tool: str, outcome: str, seconds: float, waited: float = 0.0) -> None:
        """Count a call that ran for some seconds, and waited for the user for others."""
        self.running -= 1
        series = self._series.get((kind, server, tool))
        if series is None:
            key = (kind, server, tool) if len(self._series) < MOST_TOOLS else _OTHER
            series = self._series.setdefault(key, _Series())
        series.outcomes[outcome] = series.outcomes.get(outcome, 0) + 1
        series.waited += waited
        if outcome != DECLINED:
            series.buckets[bisect_left(BUCKETS_S, seconds)] += 1
            series.seconds += seconds

    def render(self) -> str:
        """Write all metrics as text."""
        lines = _head("indus_calls_total", "counter", "Calls of tools, and uses of resources and prompts, by outcome.")
        durations = _head(
            "indus_call_duration_seconds", "histogram", "How long calls ran. Declined ones, outcome denied, did not."
        )
        waits = _head("indus_call_user_wait_seconds_total", "counter", "How long calls waited for the user.")
        for (kind, server, tool), series in self._series.items():
            labels = f'kind="{kind}",server="{_escape(server)}",tool="{_escape(tool)}"'
            for outcome, number in series.outcomes.items():
                lines.append(f'indus_calls_total{{{labels},outcome="{outcome}"}} {number}')
            total = 0
            for bound, number in zip((*BUCKETS_S, "+Inf"), series.buckets, strict=True):
                total += number
                durations.append(f'indus_call_duration_seconds_bucket{{{labels},le="{bound}"}} {total}')
            durations.append(f"indus_call_duration_seconds_sum{{{labels}}} {series.seconds:.6f}")
            durations.append(f"indus_call_duration_seconds_count{{{labels}}} {total}")
            waits.append(f"indus_call_user_wait_seconds_total{{{labels}}} {series.waited:.6f}")
        lines += [*durations, *waits, *_head("indus_calls_running", "gauge", "Calls that run now.")]
        lines += [f"indus_calls_running {self.running}"]
        lines += _head("indus_call_records_dropped_total", "counter", "Calls that could not be recorded.")
        lines += [f"indus_call_records_dropped_total {self._count_dropped()}"]
        return "\n".join(lines) + "\n"


class MeasuredCall(NamedTuple):
    """A running call; an `ObservedCall`."""

    metrics: CallMetrics
    name: str
    ref: RemoteToolRef | None
    wait: UserWait | None
    began: float

    def finish(self, outcome: ToolOutcome | None) -> None:
        """Count the call, or if it became a task, once the task has ended."""
        completion = current_completion.get()
        if completion is not None and completion.is_deferred:
            completion.listen(self._complete)
        else:
            self._complete(outcome)

    def _complete(self, outcome: ToolOutcome | None, seconds: float | None = None) -> None:
        ref = self.ref
        name, _ = classify_end(outcome, is_remote=ref is not None)
        kind, server, tool = ("tool", "", self.name) if ref is None else (ref.kind, ref.server, ref.name)
        took = perf_counter() - self.began
        took = took if seconds is None else min(took, seconds)
        waited = 0.0 if self.wait is None else min(took, self.wait.seconds)
        self.metrics.count(kind, server, tool, name, took - waited, waited)


def _head(name: str, kind: str, about: str) -> list[str]:
    return [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
