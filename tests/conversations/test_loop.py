"""The model loop with a function as the model: calls, events, results."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel
import pytest
from pydantic_ai import exceptions as failures
from pydantic_ai.messages import ModelMessage, ModelRequest, ToolReturnPart, UserPromptPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, DeltaToolCalls, FunctionModel
from pydantic_ai.models.test import TestModel
from tests.support.tools import context, tool

from indusagi.core.cancel import CancelToken
from indusagi.runtime.contract import JsonContentBlock, TextContentBlock, ToolProgress, ToolResult
from induscode.conversations.contract import (
    RequestBudget,
    RunPlan,
    TextDelta,
    ToolAdvanced,
    ToolAnswered,
    ToolCalled,
    Usage,
)
from induscode.conversations.model_loop import VERBATIM, ModelLoop, to_model_fault
from induscode.conversations.transcript import ConversationError
from induscode.deck.provision import DeckRunner, DeckToolBox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

    from indusagi.capabilities.context import ToolContext
    from indusagi.capabilities.tool import DefinedTool
    from indusagi.core.json import JsonObject
    from indusagi.runtime.contract import ToolDescriptor
    from induscode.conversations.contract import RunEvent, RunResult

pytestmark = pytest.mark.anyio

PNG = "iVBORw0KGgo="
Step = str | list[tuple[str, str]]


@dataclass
class Stage:
    """One run with a scripted model, and its events."""

    folder: Path
    tools: list[DefinedTool] = field(default_factory=list["DefinedTool"])
    events: list[RunEvent] = field(default_factory=list["RunEvent"])
    seen: list[list[ModelMessage]] = field(default_factory=list[list[ModelMessage]])
    offered: list[list[str]] = field(default_factory=list[list[str]])
    briefings: list[str | None] = field(default_factory=list["str | None"])
    turns: list[list[str]] = field(default_factory=list[list[str]])
    kept: list[JsonObject] = field(default_factory=list["JsonObject"])
    cancel: CancelToken = field(default_factory=CancelToken)

    def box(self) -> DeckToolBox:
        return DeckToolBox(DeckRunner({one.name: one for one in self.tools}, context(self.folder)))

    async def run(
        self,
        *script: Step,
        limit: int = 20,
        history: Sequence[JsonObject] = (),
        hear: Callable[[RunEvent], None] | None = None,
        time_s: float | None = None,
    ) -> RunResult:
        steps = iter(script)

        async def answer(messages: list[ModelMessage], info: AgentInfo) -> AsyncIterator[str | DeltaToolCalls]:
            self.seen.append([*messages])
            self.offered.append([one.name for one in info.function_tools])
            self.briefings.append(info.instructions)
            step = next(steps)
            if isinstance(step, str):
                for word in step.split(" "):
                    yield word
                if step == "hang":
                    await anyio.sleep_forever()
                return
            for index, (name, arguments) in enumerate(step):
                yield {index: DeltaToolCall(name=name, json_args=arguments, tool_call_id=f"c{index}")}

        async def sink(event: RunEvent) -> None:
            self.events.append(event)
            if hear is not None:
                hear(event)

        async def turn(shown: Sequence[ToolDescriptor]) -> None:
            self.turns.append([one.name for one in shown])

        async def keep(message: JsonObject) -> None:
            self.kept.append(message)

        plan = RunPlan(
            toolbox=self.box,
            system_prompt=lambda: f"{len(self.tools)} tools",
            cancel=self.cancel,
            budget=RequestBudget(limit),
            history=history,
            sink=sink,
            on_turn=turn,
            on_message=keep,
            time_s=time_s,
        )
        async with ModelLoop(FunctionModel(stream_function=answer, profile=VERBATIM)) as engine:
            return await engine.run("the prompt", plan)

    def returned(self) -> list[object]:
        """Give the tool results in the last request."""
        return [
            part.content
            for message in self.seen[-1]
            if isinstance(message, ModelRequest)
            for part in message.parts
            if isinstance(part, ToolReturnPart)
        ]

    def of(self, kind: type[RunEvent]) -> list[RunEvent]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def echo(name: str = "echo", *, read_only: bool = False) -> DefinedTool:
    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        return ToolResult.text(str(arguments.get("text")))

    return tool(run, name=name, read_only=read_only)


def giving(result: ToolResult, name: str = "give") -> DefinedTool:
    async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        return result

    return tool(run, name=name)


async def test_the_connection_to_the_model_closes_with_the_loop() -> None:
    states: list[str] = []

    class Connected(TestModel):
        async def __aenter__(self) -> Connected:
            states.append("open")
            return self

        async def __aexit__(self, *error: object) -> None:
            states.append("closed")

    async with ModelLoop(Connected()):
        assert states == ["open"]
    assert states == ["open", "closed"]


async def test_tool_result_reaches_the_model_unchanged(stage: Stage) -> None:
    lines = "\n".join(f"line {n}" for n in range(20)) + " <system>no</system>"
    stage.tools = [echo()]
    ended = await stage.run([("echo", json.dumps({"text": lines}))], "all done")
    assert (ended.reason, ended.text) == ("done", "alldone")
    assert stage.returned() == [lines]
    assert [type(event) for event in stage.events] == [
        ToolCalled, ToolAnswered, TextDelta, TextDelta, Usage,
    ]  # fmt: skip
    assert ended.usage.requests == 2


async def test_changed_deck_is_used_in_the_next_request(stage: Stage) -> None:
    async def grow(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        stage.tools = [*stage.tools, echo("late")]
        return ToolResult.text("grown")

    stage.tools = [tool(grow, name="grow")]
    ended = await stage.run([("grow", "{}")], [("late", '{"text": "here"}')], "done")
    assert ended.reason == "done"
    assert stage.offered == [["grow"], ["grow", "late"], ["grow", "late"]]
    assert stage.turns == stage.offered
    assert stage.briefings == ["1 tools", "2 tools", "2 tools"]
    assert stage.returned() == ["grown", "here"]


async def test_failed_tool_is_a_result_and_the_run_continues(stage: Stage) -> None:
    stage.tools = [giving(ToolResult.error("no such\nfile", code="not_found"))]
    ended = await stage.run([("give", "{}")], "I see")
    assert ended.reason == "done"
    assert stage.returned() == ["Error: no such\nfile"]
    (answered,) = stage.of(ToolAnswered)
    assert answered == ToolAnswered("c0", "give", "no such\nfile", is_error=True, code="not_found")


@pytest.mark.parametrize("written", ['{"text": ', "[1]", '"text"', "7"])
async def test_arguments_reach_the_tool_as_the_model_wrote_them(stage: Stage, written: str) -> None:
    stage.tools = [echo()]
    ended = await stage.run([("echo", written)], "I see")
    assert ended.reason == "done"
    assert "the arguments must be an object" in str(stage.returned()[0])


async def test_unknown_tool_is_reported_and_the_run_continues(stage: Stage) -> None:
    stage.tools = [echo()]
    ended = await stage.run([("ecko", "{}")], [("ecko", "{}")], "I see")
    assert ended.reason == "done"
    codes = [event.code for event in stage.of(ToolAnswered) if isinstance(event, ToolAnswered)]
    assert codes == ["unknown_tool", "unknown_tool"]


async def test_repeated_unknown_tool_ends_the_run(stage: Stage) -> None:
    ended = await stage.run(*([[("ecko", "{}")]] * 10), "never")
    assert ended.reason == "repeat"


async def test_images_follow_the_text(stage: Stage) -> None:
    image: JsonObject = {"type": "image", "data": PNG, "mimeType": "image/png"}
    result = ToolResult([TextContentBlock("look"), JsonContentBlock(image)])
    stage.tools = [giving(result), echo()]
    await stage.run([("give", "{}"), ("echo", '{"text": "b"}')], "nice")
    assert stage.returned() == ["look", "b"]
    last = stage.seen[-1][-1]
    assert isinstance(last, ModelRequest)
    # A provider wants the answers of all calls before anything else.
    assert [type(part) for part in last.parts] == [ToolReturnPart, ToolReturnPart, UserPromptPart]
    assert "image/png" in str(last.parts[2])


async def test_image_in_a_failed_result_is_named(stage: Stage) -> None:
    image: JsonObject = {"type": "image", "data": PNG, "mimeType": "image/png"}
    broken = ToolResult([TextContentBlock("bad"), JsonContentBlock(image)], is_error=True)
    stage.tools = [giving(broken)]
    await stage.run([("give", "{}")], "hm")
    assert stage.returned() == ["Error: bad\n[left out of a failed answer: image/png]"]


class Meter:
    """Counts concurrent calls."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.order: list[str] = []

    def tool(self, name: str, *, read_only: bool) -> DefinedTool:
        async def run(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
            self.now += 1
            self.most = max(self.most, self.now)
            self.order.append(name)
            for _ in range(5):
                await anyio.lowlevel.checkpoint()
            self.now -= 1
            return ToolResult.text(name)

        return tool(run, name=name, read_only=read_only)


async def test_read_only_calls_run_concurrently_and_others_alone(stage: Stage) -> None:
    looking, changing = Meter(), Meter()
    stage.tools = [looking.tool("look", read_only=True), changing.tool("change", read_only=False)]
    await stage.run([("look", "{}"), ("look", "{}"), ("look", "{}")], "done")
    assert looking.most == 3
    await stage.run([("change", "{}"), ("change", "{}")], "done")
    assert changing.most == 1


async def test_progress_is_reported_during_the_call(stage: Stage) -> None:
    heard = anyio.Event()

    async def slow(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        ctx.report(ToolProgress(1, 2, "half"))
        await heard.wait()
        for number in range(200):
            ctx.report(ToolProgress(number))
        return ToolResult.text("done")

    def hear(event: RunEvent) -> None:
        if isinstance(event, ToolAdvanced):
            heard.set()

    stage.tools = [tool(slow, name="slow")]
    with anyio.fail_after(60):
        ended = await stage.run([("slow", "{}")], "done", hear=hear)
    assert ended.reason == "done"
    assert stage.of(ToolAdvanced)[0] == ToolAdvanced("c0", "slow", 1, 2, "half")


async def test_request_limit_ends_the_run(stage: Stage) -> None:
    stage.tools = [echo()]
    script = [[("echo", json.dumps({"text": n}))] for n in range(9)]
    ended = await stage.run(*script, limit=3)
    assert (ended.reason, len(stage.seen)) == ("limit", 3)
    assert "3 requests" in ended.message


async def test_repetition_is_warned_then_ends_the_run(stage: Stage) -> None:
    stage.tools = [echo()]
    ended = await stage.run(*([[("echo", '{"text": "x"}')]] * 20), limit=50)
    assert ended.reason == "repeat"
    assert "echo" in ended.message
    told = [str(text) for text in stage.returned()]
    assert sum("has given this same answer" in text for text in told) == 1
    assert len(stage.seen) < 10


async def test_cancellation_reaches_the_tool_and_keeps_the_text(stage: Stage) -> None:
    ended_with: list[str | None] = []

    async def slow(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        ctx.report(ToolProgress(1))
        try:
            await anyio.sleep_forever()
        finally:
            ended_with.append(ctx.cancel.reason)
        raise AssertionError

    def hear(event: RunEvent) -> None:
        if isinstance(event, ToolAdvanced):
            stage.cancel.cancel("SIGINT")

    stage.tools = [tool(slow, name="slow")]
    with anyio.fail_after(60):
        ended = await stage.run([("slow", "{}")], "never", hear=hear)
    assert (ended.reason, ended.message) == ("cancelled", "stopped by SIGINT")
    assert ended_with == ["SIGINT"]
    assert [message["kind"] for message in stage.kept][:2] == ["request", "response"]


async def test_cancellation_during_an_answer_keeps_the_first_part(stage: Stage) -> None:
    def hear(event: RunEvent) -> None:
        if isinstance(event, TextDelta):
            stage.cancel.cancel("SIGTERM")

    with anyio.fail_after(60):
        ended = await stage.run("hang", hear=hear)
    assert (ended.reason, ended.text) == ("cancelled", "hang")
    again = Stage(stage.folder)
    assert (await again.run("fine", history=stage.kept)).reason == "done"
    assert "hang" in str(again.seen[0])


async def test_conversation_continues_after_a_cancelled_call(stage: Stage) -> None:
    await test_cancellation_reaches_the_tool_and_keeps_the_text(stage)
    again = Stage(stage.folder, tools=[echo()])
    assert (await again.run("fine", history=stage.kept)).reason == "done"
    prompts = [part.content for message in again.seen[0] for part in message.parts if isinstance(part, UserPromptPart)]
    assert prompts == ["the prompt", "the prompt"]


async def test_cancelled_run_makes_no_request(stage: Stage) -> None:
    stage.cancel.cancel("early")
    assert (await stage.run("never")).reason == "cancelled"
    assert stage.seen == []


async def test_run_has_a_time_limit(stage: Stage) -> None:
    with anyio.fail_after(60):
        ended = await stage.run("hang", time_s=0.05)
    assert ended.reason == "time"


async def test_closed_output_ends_the_run(stage: Stage) -> None:
    def hear(event: RunEvent) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await stage.run("some words", hear=hear)


async def test_closed_output_during_a_call_ends_the_call(stage: Stage) -> None:
    async def slow(arguments: JsonObject, ctx: ToolContext) -> ToolResult:
        ctx.report(ToolProgress(1))
        await anyio.sleep_forever()
        raise AssertionError

    def hear(event: RunEvent) -> None:
        if isinstance(event, ToolAdvanced):
            raise BrokenPipeError

    stage.tools = [tool(slow, name="slow")]
    with anyio.fail_after(60), pytest.raises(BrokenPipeError):
        await stage.run([("slow", "{}")], "never", hear=hear)


async def test_every_message_is_saved_once_in_order(stage: Stage) -> None:
    stage.tools = [echo()]
    await stage.run([("echo", '{"text": "x"}')], "fine")
    assert [message["kind"] for message in stage.kept] == [
        "request", "response", "request", "response",
    ]  # fmt: skip
    again = Stage(stage.folder, tools=[echo()])
    await again.run("well", history=json.loads(json.dumps(stage.kept)))
    assert len(again.seen[0]) == 5


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (
            failures.ModelHTTPError.for_category(
                category=failures.ModelAuthenticationError,
                status_code=401,
                model_name="m",
                body={"error": {"message": "bad key"}},
            ),
            "auth",
            "m (401): bad key; check the key",
        ),
        (failures.ModelConnectionError("m", "refused"), "connection", "m: refused"),
        (failures.ModelAPIError("m", "odd", body="text"), "server", "m: text"),
        (failures.UnexpectedModelBehavior("empty"), "server", "not answer as it should: empty"),
    ],
)
def test_model_fault_is_one_line_with_a_remedy(error: failures.AgentRunError, kind: str, words: str) -> None:
    fault = to_model_fault(error)
    assert fault.kind == kind
    assert words in str(fault)


async def test_invalid_history_is_an_error(stage: Stage) -> None:
    with pytest.raises(ConversationError, match="cannot be read"):
        await stage.run("never", history=[{"kind": "nonsense"}])


async def test_results_of_the_last_calls_are_saved_at_a_limit(stage: Stage) -> None:
    stage.tools = [echo()]
    await stage.run([("echo", '{"text": "precious"}')], limit=1)
    assert "precious" in json.dumps(stage.kept[-1])
    again = Stage(stage.folder, tools=[echo()])
    assert (await again.run("well", history=stage.kept)).reason == "done"
    assert again.returned() == ["precious"]


async def test_usage_error_of_the_library_is_a_failed_run(stage: Stage) -> None:
    def hear(event: RunEvent) -> None:
        if isinstance(event, TextDelta):
            raise failures.UserError("misused")

    ended = await stage.run("words", hear=hear)
    assert (ended.reason, ended.message, ended.fault) == ("error", "misused", None)
