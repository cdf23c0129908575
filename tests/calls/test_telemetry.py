"""OpenTelemetry of calls: spans by the conventions, trace context in and out, nothing loaded without a collector."""

from __future__ import annotations

import subprocess
import sys
import threading
from contextlib import AsyncExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from tests.calls.helpers import load_calls, observed_box
from tests.support.scripts import run, unmeasured

from indusagi.core.faults import Note
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.calls import (
    UNLISTED,
    CallingClient,
    ObserverChain,
    UserWait,
    current_client,
    current_requests,
    current_trace,
    current_wait,
    waiting_for_user,
)
from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolResult
from induscode.calls.exporters import ENDPOINT, ExportWatch, WatchedSpanExporter
from induscode.calls.record import CallOrigin
from induscode.calls.recorder import CallObservers, CallRecorder, open_observers
from induscode.calls.telemetry import CallTelemetry, is_configured, open_telemetry
from induscode.deck.mcp.content import ContentUse
from induscode.launch.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

pytestmark = pytest.mark.anyio
TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = {"traceparent": f"00-{TRACE}-{SPAN}-01", "baggage": "user=ada"}


class Collector:
    """Spans and metrics in memory."""

    def __init__(self) -> None:
        self._spans, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        traces = TracerProvider()
        traces.add_span_processor(SimpleSpanProcessor(self._spans))
        self.telemetry = CallTelemetry(traces, MeterProvider([self._reader]))
        self.telemetry.find_transport = lambda _: "stdio"

    def spans(self) -> list[ReadableSpan]:
        return list(self._spans.get_finished_spans())

    def counts(self) -> dict[str, list[tuple[dict[str, Any], int]]]:
        data = self._reader.get_metrics_data()
        assert data is not None
        metrics = [one for scope in data.resource_metrics[0].scope_metrics for one in scope.metrics]
        return {one.name: [(dict(p.attributes or {}), p.count) for p in one.data.data_points] for one in metrics}  # type: ignore[union-attr]


class RemoteTool:
    """A card of a server's tool, as an observer sees it."""

    ref = RemoteToolRef("weather", "forecast")


@pytest.fixture
def collector() -> Generator[Collector]:
    collector = Collector()
    yield collector
    for provider in collector.telemetry.providers:
        provider.shutdown()


def hexadecimal(number: int, digits: int) -> str:
    return f"{number:0{digits}x}"


def test_a_call_through_a_gateway_continues_the_trace_of_its_client_and_the_request_behind_it_carries_it_on(
    collector: Collector,
) -> None:
    collector.telemetry.transport = "tcp"
    current_client.set(CallingClient("editor", "1", "ada"))
    before = current_trace.set(PARENT)
    call = collector.telemetry.start(ToolCall("7", "weather__forecast", {"city": "secret"}), RemoteTool())
    requests = current_requests.get()
    assert requests is not None
    request = requests.start_request("tools/call", "forecast", "2025-11-25")
    carried = current_trace.get()
    request.finish(None, {"content": []})
    call.finish(ToolOutcome("7", ToolResult.text("secret")))
    assert current_requests.get() is None
    assert current_trace.get() == PARENT
    current_trace.reset(before)
    current_client.set(None)

    sent, served = collector.spans()
    assert (served.name, served.kind) == ("tools/call weather__forecast", SpanKind.SERVER)
    assert served.parent is not None
    assert (hexadecimal(served.parent.trace_id, 32), hexadecimal(served.parent.span_id, 16)) == (TRACE, SPAN)
    assert dict(served.attributes or {}) == {
        "mcp.method.name": "tools/call",
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "weather__forecast",
        "gen_ai.tool.call.id": "7",
        "gen_ai.tool.type": "extension",
        "jsonrpc.request.id": "7",
        "network.transport": "tcp",
        "enduser.id": "ada",
        "indus.server": "weather",
    }
    assert (sent.name, sent.kind) == ("tools/call forecast", SpanKind.CLIENT)
    assert sent.parent is not None
    assert served.context is not None
    assert sent.parent.span_id == served.context.span_id
    assert sent.context is not None
    assert carried == {"traceparent": f"00-{TRACE}-{hexadecimal(sent.context.span_id, 16)}-01", "baggage": "user=ada"}
    assert (sent.attributes or {})["network.transport"] == "pipe"
    assert (sent.attributes or {})["mcp.protocol.version"] == "2025-11-25"
    assert "secret" not in str([one.to_json() for one in (sent, served)])
    labels = {"mcp.method.name": "tools/call", "gen_ai.operation.name": "execute_tool"}
    assert collector.counts() == {
        "mcp.server.operation.duration": [({**labels, "gen_ai.tool.name": "weather__forecast"}, 1)],
        "mcp.client.operation.duration": [({**labels, "gen_ai.tool.name": "forecast"}, 1)],
    }


def test_a_call_of_a_session_is_one_span_to_which_the_request_adds_its_attributes(collector: Collector) -> None:
    with collector.telemetry.follow_turn("talk", "a-model"):
        call = collector.telemetry.start(ToolCall("1", "weather__forecast", {}), RemoteTool())
        requests = current_requests.get()
        assert requests is not None
        requests.start_request("tools/call", "forecast", "").finish(None, {"isError": True})
        call.finish(ToolOutcome("1", ToolResult.error("no", code="")))
    tool, turn = collector.spans()
    assert (tool.name, tool.kind) == ("execute_tool weather__forecast", SpanKind.INTERNAL)
    assert (tool.attributes or {})["mcp.method.name"] == "tools/call"
    assert (tool.attributes or {})["error.type"] == "tool_error"
    assert tool.status.status_code is StatusCode.ERROR
    assert turn.name == "invoke_agent indus"
    assert turn.context is not None
    assert tool.parent is not None
    assert tool.parent.span_id == turn.context.span_id
    assert (turn.attributes or {})["gen_ai.conversation.id"] == "talk"


@pytest.mark.parametrize(
    ("outcome", "error"),
    [
        (None, "cancelled"),
        (ToolResult.error("x", code="timeout"), "timeout"),
        (ToolResult.error("x", code="anything"), "tool_error"),
    ],
)
def test_the_type_of_an_error_has_few_values(collector: Collector, outcome: ToolResult | None, error: str) -> None:
    call = collector.telemetry.start(ToolCall("1", "weather__forecast", {}), RemoteTool())
    call.finish(None if outcome is None else ToolOutcome("1", outcome))
    (span,) = collector.spans()
    assert (span.attributes or {})["error.type"] == error


def test_finding_u2_declined_call_is_no_error_of_a_span_and_its_wait_is_an_attribute(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    for module in ("indusagi.runtime.calls", "induscode.calls.telemetry"):
        monkeypatch.setattr(f"{module}.perf_counter", lambda: now[0])
    current_client.set(CallingClient("editor"))
    token = current_wait.set(UserWait())
    call = collector.telemetry.start(ToolCall("1", "weather__forecast", {}), RemoteTool())
    with waiting_for_user():
        now[0] += 60
    now[0] += 1
    call.finish(ToolOutcome("1", ToolResult.error("the user declined", code="denied")))
    current_wait.reset(token)
    (span,) = collector.spans()
    attributes = span.attributes or {}
    assert (attributes["indus.outcome"], attributes["indus.user_wait"]) == ("denied", 60)
    assert "error.type" not in attributes
    assert span.status.is_unset


@pytest.mark.parametrize(
    ("failure", "error"), [(TimeoutError(), "TimeoutError"), (type("E", (Exception,), {"code": -32602})(), "-32602")]
)
def test_a_failed_request_names_its_error(collector: Collector, failure: Exception, error: str) -> None:
    current_client.set(CallingClient("editor"))
    call = collector.telemetry.start(ToolCall("1", "weather__forecast", {}), RemoteTool())
    call.start_request("prompts/get", "", "").finish(failure, {})
    call.finish(None)
    current_client.set(None)
    assert (collector.spans()[0].name, (collector.spans()[0].attributes or {})["error.type"]) == ("prompts/get", error)


@pytest.mark.parametrize(
    ("ref", "name", "attributes"),
    [
        (RemoteToolRef("lib", "greet", "prompt"), "prompts/get lib__greet", {"gen_ai.prompt.name": "lib__greet"}),
        (RemoteToolRef("lib", UNLISTED, "prompt"), "prompts/get", {}),
        (RemoteToolRef("lib", "x://a", "resource"), "resources/read", {"mcp.resource.uri": "x://a"}),
        (RemoteToolRef("lib", UNLISTED, "resource"), "resources/read", {}),
    ],
)
def test_a_resource_and_a_prompt_have_spans_of_their_own_methods(
    collector: Collector, ref: RemoteToolRef, name: str, attributes: dict[str, str]
) -> None:
    current_client.set(CallingClient("editor"))
    call = collector.telemetry.start(ToolCall("", "lib__greet", {}), ContentUse(ref))
    call.start_request(name.partition(" ")[0], "greet" if attributes and ref.kind == "prompt" else "", "").finish(
        None, {}
    )
    call.finish(ToolOutcome("", ToolResult(())))
    current_client.set(None)
    request, span = collector.spans()
    own = {"gen_ai.prompt.name": "greet"} if ref.kind == "prompt" and attributes else attributes
    for one, kind, expected in ((span, SpanKind.SERVER, attributes), (request, SpanKind.CLIENT, own)):
        found = dict(one.attributes or {})
        assert one.kind is kind
        assert found.pop("mcp.method.name") == name.partition(" ")[0]
        assert {key: value for key, value in found.items() if key.startswith(("gen_ai", "mcp.resource"))} == expected
    assert span.name == name


def test_an_unknown_name_becomes_no_name_of_a_span(collector: Collector) -> None:
    current_client.set(CallingClient("editor"))
    collector.telemetry.start(ToolCall("1", "made-up-by-a-client", {}), None).finish(None)
    current_client.set(None)
    (span,) = collector.spans()
    assert span.name == "tools/call"
    assert "gen_ai.tool.name" not in (span.attributes or {})


async def test_a_record_names_the_trace_of_its_span(collector: Collector, tmp_path: Path) -> None:
    recorder = CallRecorder(str(tmp_path / "calls.db"), CallOrigin())
    chain = CallObservers(recorder, collector.telemetry).combine()
    assert isinstance(chain, ObserverChain)
    await observed_box(chain).runner.run(ToolCall("1", "echo", {"text": "a"}))
    await recorder.aclose()
    (stored,) = await load_calls(tmp_path / "calls.db")
    (span,) = collector.spans()
    assert span.context is not None
    assert stored.trace == hexadecimal(span.context.trace_id, 32)


def test_a_collector_is_needed_and_may_be_switched_off() -> None:
    named = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}
    assert not is_configured({})
    assert is_configured(named)
    assert not is_configured({**named, "OTEL_SDK_DISABLED": "true"})
    refused = open_telemetry({**named, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"})
    assert isinstance(refused, Note)
    assert "http/protobuf" in str(refused)


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    note = open_telemetry({})
    assert isinstance(note, Note)
    assert "indus-deck[otel]" in str(note)


def observe_dead_collector(monkeypatch: pytest.MonkeyPatch, *variables: str) -> None:
    """Name collectors at an address where none listens."""
    for name in variables:
        monkeypatch.setenv(name, "http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["OTEL_EXPORTER_OTLP_ENDPOINT"], [["OTEL_EXPORTER_OTLP_ENDPOINT", "unset"]]),
        (
            ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"],
            [["metrics", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"], ["spans", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"]],
        ),
    ],
)
async def test_a_collector_that_does_not_listen_is_one_note_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, given: list[str], expected: list[list[str]]
) -> None:
    observe_dead_collector(monkeypatch, *given)
    notes: list[Note] = []
    async with AsyncExitStack() as stack:
        observers = await open_observers(stack, Settings(), CallOrigin(), notes.append)
        observer = observers.combine()
        assert observer is not None
        current_client.set(CallingClient("editor"))
        await observed_box(observer).runner.run(ToolCall("1", "echo", {"text": "a"}))
        current_client.set(None)
    texts = sorted(map(str, notes))
    assert len(texts) == len(expected)
    for text, parts in zip(texts, expected, strict=True):
        assert "Connection refused" in text
        for part in parts:
            assert part in text


def test_an_export_that_raises_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenTelemetry 1.38 raises where newer versions log."""

    def refuse(*_: object) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(OTLPSpanExporter, "export", refuse)
    watch = ExportWatch({ENDPOINT: "http://127.0.0.1:1"})
    with pytest.raises(ConnectionRefusedError):
        WatchedSpanExporter(watch).export([])
    (note,) = watch.notes
    assert "Connection refused" in str(note)
    assert ENDPOINT in str(note)


@contextmanager
def holding() -> Generator[str]:
    """Run a collector that answers nothing until the end of the block."""
    released = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            released.wait()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            released.set()
            server.shutdown()
            thread.join()


@contextmanager
def collecting() -> Generator[tuple[str, dict[str, bytes]]]:
    """Run a collector that keeps what it is sent, by path."""
    received: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            received[self.path] = received.get(self.path, b"") + body
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()


async def test_spans_and_metrics_reach_the_collector_of_the_environment_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with collecting() as (url, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        async with AsyncExitStack() as stack:
            observers = await open_observers(stack, Settings(), CallOrigin())
            observer = observers.combine()
            assert observer is not None
            assert observers.notes == ()
            current_client.set(CallingClient("editor"))
            await observed_box(observer).runner.run(ToolCall("1", "echo", {"text": "my-secret"}))
            current_client.set(None)
    assert b"tools/call echo" in received["/v1/traces"]
    assert b"mcp.server.operation.duration" in received["/v1/metrics"]
    assert b"indus" in received["/v1/traces"]
    assert b"my-secret" not in received["/v1/traces"]


@pytest.mark.process
def test_nothing_of_opentelemetry_is_loaded_without_a_collector(tmp_path: Path) -> None:
    code = """
import sys
sys.argv = ["indus", "call", "ls"]
from induscode.__main__ import main
assert main() == 0
assert not [name for name in sys.modules if name.startswith("opentelemetry.sdk") or "otlp" in name]
"""
    env = {name: value for name, value in unmeasured().items() if not name.startswith("OTEL_")}
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env=env, timeout=60, stdout=subprocess.DEVNULL
    )


@pytest.mark.process
def test_a_command_with_a_dead_collector_prints_one_line_about_it(tmp_path: Path) -> None:
    done = run("call", "ls", cwd=tmp_path, OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("indus: OpenTelemetry: ")
    assert "OTEL_EXPORTER_OTLP_ENDPOINT" in line


@pytest.mark.process
def test_a_command_ends_while_its_collector_still_holds_the_last_exports(tmp_path: Path) -> None:
    code = """
import sys
sys.argv = ["indus", "call", "ls"]
from induscode.calls import telemetry
telemetry.CLOSE_S = 0.1
from induscode.__main__ import main
sys.exit(main())
"""
    with holding() as url:
        more = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_EXPORTER_OTLP_TIMEOUT": "600"}
        words = [sys.executable, "-c", code]
        subprocess.run(words, check=True, cwd=tmp_path, env=unmeasured() | more, timeout=60, stdout=subprocess.DEVNULL)
