"""The model loop itself.

The deck is read anew at every step, arguments go to the kernel as the model wrote them, and a tool
that fails is an answer like any other. What the library offers beyond that (retries of tools, its
own limits, its own MCP client) is not used: one way for each of these is enough.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

import anyio
from pydantic_ai import Agent, BinaryContent, CancellationToken
from pydantic_ai import exceptions as failures
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturn,
    repair_messages,
)
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets.abstract import AbstractToolset, ToolsetTool
from pydantic_ai.usage import RunUsage, UsageLimits

from indusagi.core.json import is_json_object
from indusagi.runtime.contract import ToolCall
from induscode.session.contract import RunResult, TextDelta, Usage
from induscode.session.model_loop.chat.messages import about_pictures, in_words, without_pictures
from induscode.session.model_loop.providers import fault_of
from induscode.session.tool_calls import PassThroughValidator, RepeatedCallError, ToolCalls, restore_arguments
from induscode.session.transcript import ConversationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic_ai.agent import AgentRun
    from pydantic_ai.models import Model

    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.toolbox import DeckToolBox
    from induscode.session.contract import RunPlan

_REQUEST_S = 600.0
"""The longest silence of a model's server."""
_KEEPING_S = 2.0
"""How long the end of a conversation may take to be kept."""
_FORGIVEN = 1_000
"""How often a model may ask for a tool that is not there; the limit of requests comes first."""


# -- the deck as a toolset ----------------------------------------------------------------------


class DeckToolset(AbstractToolset[None]):
    """The tools of a deck for a run of the loop."""

    def __init__(self, plan: RunPlan, *, rich: bool = False, blind: bool = False) -> None:
        self._plan = plan
        self._rich = rich
        """Whether answers of tools may hold pictures, and have a mark for failures."""
        self._blind = blind
        """Whether the model takes no pictures at all."""
        self._calls = ToolCalls(plan.sink, plan.cancel)
        self._box: DeckToolBox | None = None
        self._step = -1

    @property
    def id(self) -> str:
        """The id of the toolset."""
        return "deck"

    async def get_tools(self, ctx: RunContext[None]) -> dict[str, ToolsetTool[None]]:
        """Read the deck: what servers have listed since the last step is in it."""
        if self._box is None or ctx.run_step != self._step:
            self._box, self._step = self._plan.box(), ctx.run_step
            await self._plan.on_turn(self._box.descriptors())
        return {one.name: self._tool(self._box, one) for one in self._box.descriptors()}

    def _tool(self, box: DeckToolBox, descriptor: ToolDescriptor) -> ToolsetTool[None]:
        # The hint of a server is good enough to run calls side by side; it permits nothing.
        hinted = (descriptor.annotations or {}).get("readOnlyHint") is True
        definition = ToolDefinition(
            name=descriptor.name,
            description=descriptor.description,
            parameters_json_schema=cast("dict[str, Any]", dict(descriptor.parameters)),
            strict=False,
            sequential=not (hinted or box.runner.cards[descriptor.name].read_only),
        )
        return ToolsetTool(
            toolset=self, tool_def=definition, max_retries=_FORGIVEN, args_validator=PassThroughValidator()
        )

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[None], tool: ToolsetTool[None]
    ) -> Any:
        """Run a call, and give the model its answer."""
        assert self._box is not None
        call = ToolCall(ctx.tool_call_id or name, name, restore_arguments(tool_args))
        answer = await self._calls.run(self._box, call)
        if answer.is_error:
            if self._rich:
                raise failures.ToolFailed(answer.text)
            return f"Error: {answer.text}"
        files = [BinaryContent(one.data, media_type=one.media_type) for one in answer.attachments]
        if not files:
            return answer.text
        if self._blind:
            return "\n".join((answer.text, *(in_words(file) for file in files)))
        # Elsewhere answers of tools are text, and what is not goes into a message after it.
        beside = [f"What {name} gave beside its text:", *files]
        return [answer.text, *files] if self._rich else ToolReturn(answer.text, content=beside)

    async def missed(self, event: FunctionToolResultEvent) -> None:
        """Tell of a call that did not get here, since there is no such tool."""
        part = event.part
        if self._box is not None and part.tool_name not in self._box.runner.cards:
            await self._calls.missed(part.tool_call_id, part.tool_name, str(part.content))


# -- the loop -------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Course:
    """One run on its way: what it was given, and what has come of it so far."""

    plan: RunPlan
    token: CancellationToken
    used: RunUsage = field(default_factory=RunUsage)
    passages: list[list[str]] = field(default_factory=list[list[str]])
    """What the model has said, request by request, piece by piece."""
    messages: list[ModelMessage] = field(default_factory=list["ModelMessage"])
    """The whole conversation, as far as it came."""
    handed_on: int = 0

    def said(self) -> Sequence[str]:
        return tuple(text for pieces in self.passages if (text := "".join(pieces)))


class ModelLoop:
    """ModelRunner one model. Enter it before the first run: it holds the connection."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._blind = False
        self.usage = Usage(cost_usd=0.0)
        """What all runs have taken together."""

    async def __aenter__(self) -> ModelLoop:
        await self._model.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._model.__aexit__(*error)

    async def run(self, prompt: str, plan: RunPlan) -> RunResult:
        """Have a question answered. Whatever comes of it is in the value, also a cancellation.

        Raises:
            OSError: What is told cannot be written: nobody reads it any more.
            ConversationError: The history is not one.
        """
        # pydantic-ai and the kernel each have a token: this one stops the requests to the model.
        course = _Course(plan, CancellationToken())
        forget = plan.cancel.on_cancel(course.token.cancel)
        try:
            ended = await self._driven(prompt, course)
        finally:
            forget()
        usage = _usage(course.used)
        self.usage = self.usage.plus(usage)
        await plan.sink(usage)
        last = "".join(course.passages[-1]) if course.passages else ""
        return replace(ended, text=last, passages=course.said(), usage=usage)

    async def _driven(self, prompt: str, course: _Course) -> RunResult:
        try:
            return await self._seen(prompt, course)
        except failures.RunTimedOut:
            return RunResult(reason="time", text="", said="the time it was given is over")
        except failures.RunCancelled:
            said = f"stopped by {course.plan.cancel.reason}"
            return RunResult(reason="cancelled", text="", said=said)
        except RepeatedCallError as exc:
            said = f"{exc} was called again and again with the same outcome"
            return RunResult(reason="repeat", text="", said=said)
        except failures.UserError as exc:
            return RunResult(reason="error", text="", said=str(exc))
        except failures.AgentRunError as exc:
            fault = fault_of(exc, self._model.base_url)
            return RunResult(reason="error", text="", said=str(fault), fault=fault)

    async def _seen(self, prompt: str, course: _Course) -> RunResult:
        """Go through it; with a model that takes no pictures once more, without them."""
        try:
            return await self._through(prompt, _history(course.plan), course)
        except failures.ModelAPIError as exc:
            if self._blind or not about_pictures(exc, course.messages):
                raise
        self._blind, course.handed_on = True, 0
        return await self._through(None, [without_pictures(one) for one in course.messages], course)

    async def _through(self, prompt: str | None, history: Sequence[ModelMessage], course: _Course) -> RunResult:
        plan = course.plan
        deck = DeckToolset(plan, rich=self._model.system == "anthropic", blind=self._blind)
        agent = Agent(
            self._model,
            deps_type=type(None),
            instructions=lambda: plan.briefing(),
            toolsets=[deck],
            retries={"tools": _FORGIVEN, "output": 1},
            model_settings=ModelSettings(timeout=_REQUEST_S),
        )
        async with agent.iter(
            prompt,
            message_history=history,
            usage_limits=UsageLimits(request_limit=None),
            usage=course.used,
            cancellation_token=course.token,
            timeout=plan.time_s,
        ) as run:
            try:
                return await self._steps(agent, run, deck, course)
            finally:
                # Also what was cut short belongs to the conversation, whatever ended it.
                with anyio.move_on_after(_KEEPING_S, shield=True):
                    await _hand_on(run, course)

    async def _steps(
        self, agent: Agent[None, str], run: AgentRun[None, str], deck: DeckToolset, course: _Course
    ) -> RunResult:
        budget = course.plan.budget
        async for node in run:
            if agent.is_model_request_node(node):
                if budget.left == 0:
                    await _keep(node.request, course.plan)  # answers that nobody was asked about
                    said = f"the limit of {budget.limit} requests to the model is reached"
                    return RunResult(reason="limit", text="", said=said)
                budget.used += 1
                course.passages.append([])
                async with node.stream(run.ctx) as stream:
                    async for event in stream:
                        await _tell(event, course)
            elif agent.is_call_tools_node(node):
                async with node.stream(run.ctx) as events:
                    async for event in events:
                        if isinstance(event, FunctionToolResultEvent):
                            await deck.missed(event)
            await _hand_on(run, course)
        return RunResult(reason="done", text="", note=_cut_short(course.messages))


def _cut_short(messages: Sequence[ModelMessage]) -> str:
    """Say that an answer is not whole, if the last one is not."""
    last = messages[-1] if messages else None
    if not isinstance(last, ModelResponse):
        return ""
    # A stream that breaks off is taken for one that stops; only what the provider said tells them
    # apart.
    if last.provider_name is not None and "finish_reason" not in (last.provider_details or {}):
        return "the answer may be cut off: its end was not told"
    return {
        "length": "the answer is cut off: the model has reached its limit of words",
        "content_filter": "the answer is cut off by a filter of the model's provider",
    }.get(last.finish_reason or "", "")


async def _tell(event: AgentStreamEvent, course: _Course) -> None:
    passage = course.passages[-1]
    text, starts = "", False
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        text, starts = event.part.content, True
        if passage:
            passage.append("\n\n")
    elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        text = event.delta.content_delta
    if text or starts:
        passage.append(text)
        await course.plan.sink(TextDelta(text, starts))


async def _hand_on(run: AgentRun[None, str], course: _Course) -> None:
    course.messages = run.all_messages()
    fresh: list[ModelMessage] = run.new_messages()
    for message in fresh[course.handed_on :]:
        course.handed_on += 1
        if message.parts:
            await _keep(message, course.plan)


async def _keep(message: ModelMessage, plan: RunPlan) -> None:
    (dumped,) = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    if is_json_object(dumped):
        await plan.on_message(dumped)


def _history(plan: RunPlan) -> list[ModelMessage]:
    """Read the messages of a conversation; calls that were never answered are closed."""
    try:
        return repair_messages(ModelMessagesTypeAdapter.validate_python([*plan.history]))
    except ValueError as exc:
        raise ConversationError(f"what was kept of it cannot be read: {exc}") from exc


def _usage(used: RunUsage) -> Usage:
    return Usage(
        used.requests,
        used.input_tokens,
        used.output_tokens,
        used.cache_read_tokens,
        used.cache_write_tokens,
        None if used.cost is None else float(used.cost),
    )
