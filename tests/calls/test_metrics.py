"""Metrics of calls: the text that a Prometheus server reads, behind the token."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import anyio
import httpx2
import pytest
from tests.calls.helpers import observed_box
from tests.support.host_tools import Bench

from indusagi.interop import HttpSettings, create_provider_host
from indusagi.interop.protocol_bridge.contract import RemoteToolRef
from indusagi.runtime.contract import ToolCall, ToolOutcome, ToolResult
from induscode.calls import telemetry as metrics_module
from induscode.calls.telemetry import CallMetrics

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.anyio
TOKEN = "t" * 32
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\\n]|\\.)*",?)*)\})? ([0-9.]+)')
"""https://prometheus.io/docs/instrumenting/exposition_formats/#text-format-details"""


def read_samples(text: str) -> dict[str, float]:
    """Parse the text format; a line that is none fails."""
    assert text.endswith("\n")
    samples: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith(("# HELP ", "# TYPE ")):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            samples[f"{match[1]}{{{match[2] or ''}}}"] = float(match[3])
    return samples


async def run(metrics: CallMetrics, *names: str) -> None:
    box = observed_box(metrics)
    for name in names:
        await box.runner.run(ToolCall("1", name, {}))


async def test_calls_are_counted_by_tool_and_outcome_with_a_histogram() -> None:
    metrics = CallMetrics(lambda: 7)
    await run(metrics, "echo", "echo", "fail")
    samples = read_samples(metrics.render())
    assert samples['indus_calls_total{kind="tool",server="",tool="echo",outcome="ok"}'] == 2
    assert samples['indus_calls_total{kind="tool",server="",tool="fail",outcome="error"}'] == 1
    assert samples['indus_call_duration_seconds_bucket{kind="tool",server="",tool="echo",le="+Inf"}'] == 2
    assert samples['indus_call_duration_seconds_count{kind="tool",server="",tool="echo"}'] == 2
    assert samples["indus_calls_running{}"] == 0
    assert samples["indus_call_records_dropped_total{}"] == 7
    buckets = [value for name, value in samples.items() if "_bucket" in name and "echo" in name]
    assert buckets == sorted(buckets)


async def test_a_running_call_is_counted_and_a_cancelled_one_has_its_outcome() -> None:
    metrics = CallMetrics()
    box, began = observed_box(metrics), anyio.Event()

    async def hang() -> None:
        await box.runner.run(ToolCall("1", "hang", {}), on_progress=lambda _: began.set())

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hang)
        await began.wait()
        assert read_samples(metrics.render())["indus_calls_running{}"] == 1
        tasks.cancel_scope.cancel()
    assert (
        read_samples(metrics.render())['indus_calls_total{kind="tool",server="",tool="hang",outcome="cancelled"}'] == 1
    )


def test_names_are_escaped_and_their_number_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_module, "MOST_TOOLS", 1)
    metrics = CallMetrics()

    def call(name: str, tool: object) -> None:
        metrics.start(ToolCall("1", name, {}), tool).finish(ToolOutcome("1", ToolResult.text("")))

    odd = type("Card", (), {"ref": RemoteToolRef('a"b\\', "new\nline")})
    for name, tool in (("x", odd), ("more", object()), ("made-up", None)):
        call(name, tool)
    totals: Sequence[str] = [name for name in read_samples(metrics.render()) if name.startswith("indus_calls_total")]
    assert totals == [
        'indus_calls_total{kind="tool",server="a\\"b\\\\",tool="new\\nline",outcome="ok"}',
        'indus_calls_total{kind="tool",server="",tool="other",outcome="ok"}',
    ]


async def test_a_host_serves_metrics_with_the_token_of_the_user_only() -> None:
    host = create_provider_host(Bench().box)
    settings = HttpSettings(
        tokens=(TOKEN,), view_tokens={"v" * 32: "v"}, views={"v": lambda _: True}, metrics=CallMetrics().render
    )
    async with host.serve_http(settings) as serving, httpx2.AsyncClient() as client:
        url = serving.url.replace("/mcp", "/metrics")
        assert (await client.get(url)).status_code == 401
        # The token of a view: what the others call is unknown to its clients.
        for path in ("/metrics", "/health"):
            viewed = {"authorization": f"Bearer {'v' * 32}"}
            assert (await client.get(serving.url.replace("/mcp", path), headers=viewed)).status_code == 403
        headers = {"authorization": f"Bearer {TOKEN}"}
        answer = await client.get(url, headers=headers)
        assert answer.status_code == 200
        assert answer.headers.get_list("content-type") == ["text/plain; version=0.0.4; charset=utf-8"]
        samples = read_samples(answer.text)
        assert (samples["indus_sessions{}"], samples["indus_calls_running{}"]) == (0, 0)
        assert (await client.post(url, headers=headers)).status_code == 405
    async with host.serve_http(HttpSettings(tokens=(TOKEN,))) as serving, httpx2.AsyncClient() as client:
        url = serving.url.replace("/mcp", "/metrics")
        assert (await client.get(url, headers=headers)).status_code == 404
