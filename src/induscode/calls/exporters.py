"""OpenTelemetry exporters that turn failed exports into a note, and don't repeat the last one.

The SDK reports a failed attempt only through `logging`. A handler reads these records while one of our exporters runs;
without a handler, `logging`'s last resort would print them to the terminal. A program that configures `logging` still
gets them. Only imported if the environment configures a collector.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

from indusagi.core.faults import Note, describe_error
from indusagi.core.records import record

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExportResult

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
TRACES_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
METRICS_ENDPOINT = "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
_MAX_CHAIN = 16
"""Maximum causes to follow, since a chain may be cyclic."""


class ExportWatch:
    """Collects the reasons for failed exports, one note per collector variable. Used by all SDK threads."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._notes: dict[str, Note] = {}
        self._retried: set[_Export] = set()
        """Exports waiting for their next attempt."""
        self._is_closing = False

    @property
    def notes(self) -> Sequence[Note]:
        """Export problems."""
        return tuple(self._notes.values())

    def close(self) -> None:
        """Don't repeat failed exports from now on."""
        self._is_closing = True
        for export in [*self._retried]:
            export.stop()

    def fail(self, export: _Export, reason: str) -> None:
        """Note a failed attempt. At the end of the run, it's the last."""
        self._retried.add(export)
        self._keep_failure(export, reason)
        if self._is_closing:
            export.stop()

    def finish(self, export: _Export) -> None:
        """Forget a finished export."""
        self._retried.discard(export)

    def _keep_failure(self, export: _Export, reason: str) -> None:
        """Keep a collector's first failure."""
        own = export.variable
        variable = own if self._environ.get(own) else ENDPOINT
        if variable in self._notes:
            return
        named, remedy = f"of {variable}", f"start it, or change or unset {variable}"
        if not self._environ.get(variable):
            named, remedy = "at the default address", f"set {own}"
        message = f"{export.what} do not reach the collector {named}: {reason}"
        self._notes[variable] = Note("OpenTelemetry", message, remedy)


@record
class _Export:
    """One export, until it succeeds or fails."""

    watch: ExportWatch
    what: str
    variable: str
    """The variable that names a collector for `what` alone."""
    stop: Callable[[], object]
    """Stops the exporter, and its wait for the next attempt."""


_current: ContextVar[_Export | None] = ContextVar("current export", default=None)


class _FailureHandler(logging.Handler):
    """Passes an export's warnings to its watch."""

    def emit(self, record: logging.LogRecord) -> None:
        export = _current.get()
        if export is None:
            return
        values: Sequence[object] = record.args if isinstance(record.args, tuple) else ()
        failure = next((value for value in values if isinstance(value, BaseException)), None)
        # Don't handle further records: shutting an exporter down twice logs one.
        token = _current.set(None)
        try:
            reason = record.getMessage() if failure is None else describe_error(_find_cause(failure))
            export.watch.fail(export, reason)
        finally:
            _current.reset(token)


_HANDLER = _FailureHandler(logging.WARNING)
logging.getLogger("opentelemetry").addHandler(_HANDLER)


@contextmanager
def _watched(export: _Export) -> Generator[None]:
    token = _current.set(export)
    try:
        try:
            yield
        finally:
            _current.reset(token)
    except Exception as exc:  # OpenTelemetry 1.38 raises what newer versions log
        export.watch.fail(export, describe_error(_find_cause(exc)))
        raise
    finally:
        export.watch.finish(export)


def _find_cause(failure: BaseException) -> BaseException:
    """Find the socket's exception inside the HTTP client's."""
    cause: BaseException | None = failure
    for _ in range(_MAX_CHAIN):
        if cause is None:
            break
        if isinstance(cause, OSError) and not type(cause).__module__.startswith(("requests", "urllib3")):
            return cause
        cause = cause.__cause__ or cause.__context__
    return failure


class WatchedSpanExporter(OTLPSpanExporter):
    """Exports spans to the configured collector."""

    def __init__(self, watch: ExportWatch) -> None:
        super().__init__()
        self.watch = watch

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export spans, reporting a failure to the watch."""
        with _watched(_Export(self.watch, "spans", TRACES_ENDPOINT, self.shutdown)):
            return super().export(spans)


class WatchedMetricExporter(OTLPMetricExporter):
    """Exports metrics to the configured collector."""

    def __init__(self, watch: ExportWatch) -> None:
        super().__init__()
        self.watch = watch

    def export(
        self, metrics_data: MetricsData, timeout_millis: float | None = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        """Export metrics, reporting a failure to the watch."""
        exporter: Any = super()  # its methods are partly untyped
        with _watched(_Export(self.watch, "metrics", METRICS_ENDPOINT, exporter.shutdown)):
            return exporter.export(metrics_data, timeout_millis, **kwargs)
