"""Output formats of a run, and exit codes."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import anyio
import pytest

from induscode.cli.signals import signal_code
from induscode.conversations.contract import ExitCode, TextDelta, ToolAdvanced, ToolAnswered, ToolCalled, Usage
from induscode.conversations.run import StdoutWriter, create_reporter, event_to_json
from induscode.launch.invocation import Invocation

# -- exit codes -------------------------------------------------------------------------------


def test_exit_code_of_a_signal_is_128_plus_its_number() -> None:
    assert [signal_code(name) for name in ("SIGINT", "SIGTERM", "SIGHUP")] == [130, 143, 129]
    assert (ExitCode.INTERRUPTED, ExitCode.READER_LEFT) == (130, 128 + signal.SIGPIPE)
    assert signal_code("no signal") == ExitCode.FAILED


# -- output formats -----------------------------------------------------------------------------


def test_total_cost_is_known_if_all_costs_are() -> None:
    one = Usage(1, 10, 5, 2, 1, 0.5)
    assert one.add(one) == Usage(2, 20, 10, 4, 2, 1.0)
    assert one.add(Usage(1, 1, 1)).cost_usd is None


async def written(shape: Any, *events: object, result: str = "", error: str = "", verbose: bool = False) -> str:
    reading, writing = os.pipe()
    invocation = Invocation(cwd="/", output_format=shape, verbose=verbose)
    reporter = create_reporter(invocation, StdoutWriter(writing), shows_calls=verbose)
    try:
        await reporter.report_start({"type": "init"})
        for event in events:
            await reporter.report_event(event)  # type: ignore[arg-type]
        await reporter.report_end({"type": "result", "result": result, "error": error or None})
    finally:
        os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as file:
        return file.read()


@pytest.mark.anyio
async def test_text_output_has_no_control_characters(capfd: pytest.CaptureFixture[str]) -> None:
    out = await written(
        "text",
        TextDelta("Let me look.", starts=True),
        ToolCalled("1", "bash", {}),
        ToolAdvanced("1", "bash", 1, 2, "half"),
        ToolAdvanced("1", "bash", 1, None, "some"),
        ToolAnswered("1", "bash", "bash was not run: no", is_error=True, code="denied"),
        TextDelta("A\x1b]0;own", starts=True),
        TextDelta("ed\x07\tB\r\n"),
        TextDelta("", starts=True),
        TextDelta("C", starts=True),
        error="the limit",
        verbose=True,
    )
    assert out == "Let me look.\n\nA]0;owned\tB\n\nC\n"
    told = capfd.readouterr().err
    for line in ("calling bash", "bash: 1/2 half", "bash: 1 some", "not run", "limit"):
        assert line in told


@pytest.mark.anyio
async def test_text_output_is_the_answer() -> None:
    events = (TextDelta("Let me look.", starts=True), ToolCalled("1", "bash", {}), TextDelta("Done\x1b", starts=True))
    assert await written("text", *events, result="Done\x1b") == "Done\n"


@pytest.mark.anyio
async def test_json_output_is_one_object_at_the_end() -> None:
    out = await written("json", TextDelta("so far", starts=True), result="so far \ud800")
    (line,) = out.splitlines()
    assert json.loads(line)["result"] == "so far \ud800"


@pytest.mark.anyio
async def test_stream_json_output_is_one_line_per_event() -> None:
    events = [
        TextDelta("a\nb", starts=True),
        ToolCalled("1", "t", {"x": 1}),
        ToolAdvanced("1", "t", 1, None, ""),
        ToolAnswered("1", "t", "ok", is_error=False, attachments=("image/png",)),
        Usage(1, 2, 3, cost_usd=0.1),
    ]
    out = await written("stream-json", *events, result="a\nb")
    kinds = [json.loads(line)["type"] for line in out.splitlines()]
    assert kinds == [
        "init", "text", "tool_call", "tool_progress", "tool_result", "usage", "result",
    ]  # fmt: skip
    assert event_to_json(events[3])["attachments"] == ["image/png"]


@pytest.mark.anyio
async def test_blocked_reader_does_not_block_the_event_loop() -> None:
    reading, writing = os.pipe()
    page = StdoutWriter(writing)
    with anyio.move_on_after(0.05) as scope:
        await page.write("x" * 1_000_000)
    assert scope.cancelled_caught
    assert page.stuck
    os.close(reading)  # which ends the thread that hangs in the write
    await anyio.sleep(0.01)
    with pytest.raises(BrokenPipeError):
        await page.write("more")
    os.close(writing)
