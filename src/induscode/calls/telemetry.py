"""OpenTelemetry for calls, following the semantic conventions for MCP and generative AI; metrics for Prometheus.

A call from a gateway's client is a SERVER span whose parent is the trace context in the request's `_meta`; the request
to the server behind it is a CLIENT child. A call from a session is a single `execute_tool` span, and the request to a
server adds its attributes to that span. Requests propagate the trace context. Arguments and results are never exported.
https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md

OpenTelemetry is only loaded if the environment configures a collector
(https://opentelemetry.io/docs/specs/otel/protocol/exporter/) and the extra `otel` is installed.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import Token
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from indusagi import __version__
from indusagi.core.faults import Note
from indusagi.core.json import JsonObject
from indusagi.runtime.calls import (
    UNLISTED,
    UserWait,
    current_agent,
    current_client,
    current_completion,
    current_requests,
    current_trace,
    current_wait,
)
from indusagi.runtime.contract import ToolCall, ToolOutcome
from induscode.calls.record import DECLINED, classify_end, find_tool_ref, report_new_notes

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import Span, Tracer, TracerProvider
    from opentelemetry.util.types import AttributeValue

    from indusagi.interop.protocol_bridge.contract import RemoteToolRef
    from induscode.calls.exporters import ExportWatch

_ENDPOINTS = (
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
    "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
)
BUCKETS_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 120, 300)
"""https://github.com/open-telemetry/semantic-conventions-genai/blob/main/docs/gen-ai/mcp.md#metrics"""
_METHODS = {"resource": "resources/read", "prompt": "prompts/get"}
CLOSE_S = 5.0
"""Longest wait for all last exports together."""


def is_configured(environ: Mapping[str, str]) -> bool:
    """Return whether the environment configures a collector and doesn't disable the SDK."""
    return any(environ.get(name) for name in _ENDPOINTS) and environ.get("OTEL_SDK_DISABLED", "").lower() != "true"


def open_telemetry(
    environ: Mapping[str, str], on_note: Callable[[Note], None] | None = None, transport: str = ""
) -> CallTelemetry | Note:
    """Load the SDK and connect it to the configured collector, or return a note saying why not. Blocks."""
    owner = "OpenTelemetry"
    if environ.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf") != "http/protobuf":
        message = "nothing is sent: of the OTLP protocols only http/protobuf is supported"
        return Note(owner, message, "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf")
    try:
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 — an extra
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415 — an extra
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 — an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 — an extra
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 — an extra

        from induscode.calls.exporters import ExportWatch, WatchedMetricExporter, WatchedSpanExporter  # noqa: PLC0415 — an extra
    except ImportError:
        return Note(owner, "a collector is configured, and the package is missing", "pip install 'indus-deck[otel]'")
    named = {} if environ.get("OTEL_SERVICE_NAME") else {"service.name": "indus"}
    resource = Resource.create({**named, "service.version": __version__})
    # Don't wait at process exit: the end of the run has its own limit.
    watch, traces, readers = ExportWatch(environ), TracerProvider(resource=resource, shutdown_on_exit=False), ()
    if environ.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp":
        traces.add_span_processor(BatchSpanProcessor(WatchedSpanExporter(watch)))
    if environ.get("OTEL_METRICS_EXPORTER", "otlp") == "otlp":
        readers = (PeriodicExportingMetricReader(WatchedMetricExporter(watch)),)
    return CallTelemetry(traces, MeterProvider(readers, resource, shutdown_on_exit=False), watch, on_note, transport)


class CallTelemetry:
    """A `CallObserver` that creates a span and a measurement for every call.

    `on_note` receives export problems, in the event loop's thread.
    """

    def __init__(
        self,
        traces: TracerProvider,
        metrics: MeterProvider,
        watch: ExportWatch | None = None,
        on_note: Callable[[Note], None] | None = None,
        transport: str = "",
    ) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415 — an extra

        self.providers: tuple[Any, Any] = (traces, metrics)
        self._watch = watch
        self._on_note = on_note
        self._said = 0
        self.tracer: Tracer = traces.get_tracer("indus")
        self.propagator = TraceContextTextMapPropagator()
        self.find_transport: Callable[[str], str] = lambda _: ""
        """Returns a server's transport: `stdio`, `http` or `sse`."""
        self.transport = transport
        """Transport of a gateway's clients: `pipe` or `tcp`."""
        meter = metrics.get_meter("indus")
        self.server_duration, self.client_duration = (
            meter.create_histogram(
                f"mcp.{side}.operation.duration", "s", explicit_bucket_boundaries_advisory=[*BUCKETS_S]
            )
            for side in ("server", "client")
        )

    @property
    def notes(self) -> Sequence[Note]:
        """Export problems."""
        return () if self._watch is None else self._watch.notes

    def _report_notes(self) -> None:
        self._said = report_new_notes(self.notes, self._said, self._on_note)

    def start(self, call: ToolCall, tool: object) -> ObservedSpan:
        """Start the span of a call."""
        self._report_notes()
        return ObservedSpan(self, call, tool)

    @contextmanager
    def follow_turn(self, conversation: str, model: str) -> Generator[None]:
        """Create a span for a turn. Model requests and calls inside the block belong to it."""
        attributes: dict[str, AttributeValue] = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": "indus",
            "gen_ai.conversation.id": conversation,
            "gen_ai.request.model": model,
        }
        with self.tracer.start_as_current_span("invoke_agent indus", attributes=attributes):
            yield

    async def aclose(self) -> None:
        """Export the rest within `CLOSE_S`, all exporters in parallel, without retries."""
        from anyio import CancelScope, to_thread  # noqa: PLC0415 — loaded wherever a loop runs

        if self._watch is not None:
            self._watch.close()
        # Daemons, unlike pool threads: the process doesn't wait for them again.
        threads = [threading.Thread(target=provider.shutdown, daemon=True) for provider in self.providers]

        def wait_for_exports() -> None:
            deadline = monotonic() + CLOSE_S
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(max(0.0, deadline - monotonic()))

        with CancelScope(shield=True):
            await to_thread.run_sync(wait_for_exports)
        self._report_notes()


class ObservedSpan:
    """The span of one call: an `ObservedCall`, and the `RequestObserver` of its requests."""

    def __init__(self, telemetry: CallTelemetry, call: ToolCall, tool: object) -> None:
        from opentelemetry.trace import SpanKind  # noqa: PLC0415 — an extra

        self._telemetry = telemetry
        self.ref = find_tool_ref(tool)
        client, came_with = current_client.get(), current_trace.get()
        self.is_served = client is not None
        self.method = _METHODS.get("tool" if self.ref is None else self.ref.kind, "tools/call")
        is_content = self.method != "tools/call"
        # Clients may call any name. Only names of real tools and prompts become span names, so there are few.
        is_named = tool is not None and self.method != "resources/read" and (not is_content or not self.is_unlisted)
        self.name = call.name if is_named else ""
        operation = self.method if self.is_served or is_content else "execute_tool"
        attributes: dict[str, AttributeValue] = describe_target(self.method, self.name)
        if not is_content:
            attributes |= {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.call.id": call.id,
                "gen_ai.tool.type": "function" if self.ref is None else "extension",
            }
        if self.ref is not None:
            attributes["indus.server"] = self.ref.server
            if self.ref.kind == "resource" and not self.is_unlisted:
                attributes["mcp.resource.uri"] = self.ref.name
        if agent := current_agent.get():
            attributes["gen_ai.agent.name"] = agent
        if client is not None:
            attributes["mcp.method.name"] = self.method
            if call.id:
                attributes["jsonrpc.request.id"] = call.id
            if telemetry.transport:
                attributes["network.transport"] = telemetry.transport
            if client.principal:
                attributes["enduser.id"] = client.principal
        self.span: Span = telemetry.tracer.start_span(
            f"{operation} {self.name}".rstrip(),
            None if came_with is None else telemetry.propagator.extract(came_with),
            SpanKind.SERVER if self.is_served else SpanKind.CLIENT if is_content else SpanKind.INTERNAL,
            attributes,
        )
        self._baggage = {} if came_with is None or "baggage" not in came_with else {"baggage": came_with["baggage"]}
        self._trace, self._requests = self.carry(self.span), current_requests.set(self)
        self._began, self._wait = perf_counter(), current_wait.get()

    @property
    def is_unlisted(self) -> bool:
        """Whether it's a resource or prompt its server doesn't list, so its name is an argument."""
        return self.ref is not None and self.ref.name == UNLISTED

    def start_request(self, method: str, target: str, version: str) -> _RequestSpan:
        """Start the span of a request to a server, or add its attributes to the call's span."""
        return _RequestSpan(self._telemetry, self, method, target, version)

    def carry(self, span: Span) -> Token[Mapping[str, str] | None]:
        """Make this task's requests carry a span's context."""
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 — an extra

        carrier: dict[str, str] = {}
        self._telemetry.propagator.inject(carrier, set_span_in_context(span))
        return current_trace.set({**carrier, **self._baggage})

    def finish(self, outcome: ToolOutcome | None) -> None:
        """End the span, and measure the call if it came from a gateway's client."""
        current_requests.reset(self._requests)
        current_trace.reset(self._trace)
        name, code = classify_end(outcome, is_remote=self.ref is not None)
        # A declined call isn't a tool error.
        error = {"ok": "", DECLINED: "", "fault": code, "error": "tool_error"}.get(name, name)
        waited = 0.0 if self._wait is None else self._wait.seconds
        if name == DECLINED:
            self.span.set_attribute("indus.outcome", name)
        if waited:
            self.span.set_attribute("indus.user_wait", waited)
        end_span(self.span, error)
        if self.is_served:
            measure, took = self._telemetry.server_duration, perf_counter() - self._began
            record_duration(measure, max(0.0, took - waited), self.method, self.name, error)


class _RequestSpan:
    """An `ObservedRequest`: one request to a server."""

    def __init__(self, telemetry: CallTelemetry, call: ObservedSpan, method: str, target: str, version: str) -> None:
        self._telemetry, self._method, self._target = telemetry, method, target
        attributes: dict[str, AttributeValue] = {"mcp.method.name": method}
        if version:
            attributes["mcp.protocol.version"] = version
        ref: RemoteToolRef | None = call.ref
        if ref is not None:
            kind = telemetry.find_transport(ref.server)
            attributes["network.transport"] = "pipe" if kind == "stdio" else "tcp"
        self._span: Span | None = None
        self._token: Token[Mapping[str, str] | None] | None = None
        if call.is_served:
            from opentelemetry.trace import SpanKind, set_span_in_context  # noqa: PLC0415 — an extra

            attributes |= describe_target(method, target)
            if ref is not None:
                attributes["indus.server"] = ref.server
                if ref.kind == "resource" and not call.is_unlisted:
                    attributes["mcp.resource.uri"] = ref.name
            self._span = telemetry.tracer.start_span(
                f"{method} {target}".rstrip(), set_span_in_context(call.span), SpanKind.CLIENT, attributes
            )
            self._token = call.carry(self._span)
        else:
            call.span.set_attributes(attributes)
        self._began = perf_counter()

    def finish(self, error: BaseException | None, result: JsonObject) -> None:
        """End the span, and measure the request."""
        if self._token is not None:
            current_trace.reset(self._token)
        name = "tool_error" if result.get("isError") is True else ""
        if error is not None:
            code = getattr(error, "code", None)  # of a JSON-RPC error
            name = str(code) if isinstance(code, int) else type(error).__name__
        if self._span is not None:
            end_span(self._span, name)
        record_duration(self._telemetry.client_duration, perf_counter() - self._began, self._method, self._target, name)


def end_span(span: Span, error: str) -> None:
    """End a span, with the type of its error if any."""
    if error:
        from opentelemetry.trace import StatusCode  # noqa: PLC0415 — an extra

        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR)
    span.end()


def describe_target(method: str, target: str) -> dict[str, AttributeValue]:
    """Return the attributes naming a request's tool or prompt; empty without a target."""
    if not target:
        return {}
    if method == "prompts/get":
        return {"gen_ai.prompt.name": target}
    return {"gen_ai.tool.name": target, "gen_ai.operation.name": "execute_tool"}


def record_duration(measure: Histogram, seconds: float, method: str, target: str, error: str) -> None:
    """Record an operation's duration."""
    attributes: dict[str, AttributeValue] = {"mcp.method.name": method, **describe_target(method, target)}
    if error:
        attributes["error.type"] = error
    measure.record(seconds, attributes)


# -- metrics of a gateway -----------------------------------------------------------------------
#
# Counters live in memory and start at zero with the process. The number of series is bounded: further tools are counted
# together. https://prometheus.io/docs/instrumenting/exposition_formats/


METRIC_BUCKETS_S = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0)
MOST_TOOLS = 1_000
_OTHER = ("tool", "", "other")


class _Series:
    """The calls of one tool."""

    def __init__(self) -> None:
        self.outcomes: dict[str, int] = {}
        self.buckets = [0] * (len(METRIC_BUCKETS_S) + 1)
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
            series.buckets[bisect_left(METRIC_BUCKETS_S, seconds)] += 1
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
            for bound, number in zip((*METRIC_BUCKETS_S, "+Inf"), series.buckets, strict=True):
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
