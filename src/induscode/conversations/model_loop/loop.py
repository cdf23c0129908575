"""The model loop: a pydantic-ai agent run over the tools of a deck.

It re-reads the deck before every request, passes arguments to tools unchanged, and treats a failed tool as a result
like any other. The library's tool retries, usage limits and MCP client are off; the deck replaces them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import dataclass, field, fields, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import anyio
from anyio import to_thread
from pydantic_ai import Agent, BinaryContent, CancellationToken
from pydantic_ai import exceptions as failures
from pydantic_ai.capabilities import ToolSearch
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolResultEvent,
    ModelMessage,
    ModelMessagesTypeAdapter,
    ModelRequest,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolReturn,
    UserPromptPart,
    repair_messages,
)
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.usage import RunUsage, UsageLimits

from indusagi.adapters.pydantic_ai import ToolBoxToolset
from indusagi.core.json import JsonObject, JsonValue, is_json_object
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, RpcError
from indusagi.runtime.contract import ToolCall, ToolDescriptor
from induscode.conversations.contract import (
    RequestBudget,
    RetryScheduled,
    RunPlan,
    RunResult,
    TextDelta,
    ThinkingDelta,
    Usage,
)
from induscode.conversations.model_loop.chat_messages import describe_file, is_image_refusal, replace_images
from induscode.conversations.model_loop.providers import (
    UNLISTED,
    SessionModel,
    has_native_search,
    open_model,
    retry_listener,
    to_model_fault,
)
from induscode.conversations.tool_calls import RepeatedCallError, ToolCalls
from induscode.conversations.transcript import ConversationError
from induscode.search.index import FOUND
from induscode.search.options import CALL_TOOL, SEARCH_CARDS

if TYPE_CHECKING:
    from pydantic_ai.agent import AgentRun
    from pydantic_ai.toolsets.abstract import ToolsetTool

    from indusagi.adapters.calls import ModelContent
    from induscode.calls.telemetry import CallTelemetry
    from induscode.conversations.models import ModelChoice
    from induscode.deck.provision import DeckToolBox


SAMPLING_FAILED = -32000
"""Error code of a sampling request that the model didn't answer."""
_REQUEST_TIMEOUT_S = 600.0
"""Maximum silence of a model's server."""
_SAVE_TIMEOUT_S = 2.0
"""Limit for saving the last messages after a cancellation."""
_MAX_RETRIES = 1_000
"""Retries for unknown tools. The request limit always comes first."""


# -- the deck as a toolset ----------------------------------------------------------------------


class DeckToolset(ToolBoxToolset):
    """The tools of a deck for one run."""

    def __init__(
        self, plan: RunPlan, *, rich_results: bool = False, text_only: bool = False, native_search: bool = False
    ) -> None:
        """Prepare the toolset.

        `rich_results` says whether the API supports images and an error flag in tool results, `text_only` whether the
        model rejects all images, and `native_search` whether the provider can search for unlisted cards.
        """
        super().__init__("deck", _MAX_RETRIES)
        self._plan = plan
        self._native_search = native_search
        self._rich_results, self._text_only = rich_results, text_only
        self._calls = ToolCalls(plan.sink, plan.cancel, plan.notices)
        self._toolbox: DeckToolBox | None = None
        self._step = -1

    async def list_tools(self, ctx: RunContext[None]) -> list[tuple[ToolDescriptor, bool]]:
        """Read the deck, including tools that servers added since the last step."""
        if self._toolbox is None or ctx.run_step != self._step:
            self._toolbox, self._step = self._plan.toolbox(), ctx.run_step
            await self._plan.on_turn(self._toolbox.descriptors())
        toolbox = self._toolbox
        # `ToolCalls` orders the calls of a card that decides per call whether they may overlap.
        return [
            (traits.descriptor, traits.runs_alone)
            for name, traits in toolbox.runner.traits.items()
            if not (self._native_search and toolbox.hidden and name in SEARCH_CARDS)
        ]

    async def get_tools(self, ctx: RunContext[None]) -> dict[str, ToolsetTool[Any]]:
        """Build the definitions, marking unlisted cards."""
        tools, box = await super().get_tools(ctx), self._toolbox
        second, hidden = ((), ()) if box is None else (box.runner.second_names, box.hidden)
        for name in tools.keys() & {*second, *hidden}:
            is_found = self._native_search and name not in second
            marked = replace(tools[name].tool_def, defer_loading=is_found, metadata={UNLISTED: not is_found})
            tools[name] = replace(tools[name], tool_def=marked)
        return tools

    async def find_tools(self, ctx: RunContext[None], queries: Sequence[str], _: Sequence[ToolDefinition]) -> list[str]:
        """Find hidden cards for the provider's search."""
        find = None if self._toolbox is None else self._toolbox.find
        return [] if find is None else [*await find(queries)]

    async def run_call(self, call: ToolCall) -> ModelContent:
        """Run a call and report it."""
        assert self._toolbox is not None
        return await self._calls.run(self._toolbox, call)

    def to_return(self, content: ModelContent, name: str) -> Any:
        """Convert a result for the model's API."""
        if content.is_error and not self._rich_results:
            return content.marked_text
        if not content.attachments or (self._rich_results and not self._text_only):
            return super().to_return(content, name)
        files = [BinaryContent(file.data, media_type=file.media_type) for file in content.attachments]
        if self._text_only:
            return "\n".join((content.text, *map(describe_file, files)))
        # Tool results in the Chat Completions API are text, so files follow in a separate message.
        return ToolReturn(content.text, content=[f"Files returned by {name}:", *files])

    async def report_unknown_tool(self, event: FunctionToolResultEvent) -> None:
        """Report a call of an unknown tool, which the library answered itself."""
        part, toolbox = event.part, self._toolbox
        if toolbox is None or part.tool_name in (*toolbox.runner.cards, ToolSearch.function_tool_name):
            return
        if toolbox.hidden:
            # The library's answer lists every callable tool, including the many hidden ones.
            asked = ToolCall(part.tool_call_id, CALL_TOOL, {"name": part.tool_name})
            part.content = str((await toolbox.runner.run(asked)).output)
        await self._calls.report_unknown_tool(part.tool_call_id, part.tool_name, str(part.content))


# -- the loop -----------------------------------------------------------------------------------


@dataclass(slots=True)
class RunState:
    """Progress of one run."""

    plan: RunPlan
    token: CancellationToken
    usage: RunUsage = field(default_factory=RunUsage)
    passages: list[list[str]] = field(default_factory=list[list[str]])
    """The model's text, as a list of pieces per request."""
    messages: list[ModelMessage] = field(default_factory=list["ModelMessage"])
    """The conversation so far."""
    saved: int = 0
    """Number of new messages already passed to `on_message`."""
    may_drop: bool = True
    """Whether a response whose connection drops is requested again."""
    dropped: bool = False
    """Whether the connection dropped during the last response, which is requested again."""

    async def report_text(self, event: AgentStreamEvent) -> None:
        """Collect and report the text of a stream event, and report its reasoning."""
        passage = self.passages[-1]
        text, starts, thought = "", False, ""
        if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
            text, starts = event.part.content, True
            if passage:
                passage.append("\n\n")
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
            text = event.delta.content_delta
        elif isinstance(event, PartStartEvent) and isinstance(event.part, ThinkingPart):
            thought = event.part.content
        elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, ThinkingPartDelta):
            thought = event.delta.content_delta or ""
        if thought:
            await self.plan.sink(ThinkingDelta(thought))
        if text or starts:
            passage.append(text)
            await self.plan.sink(TextDelta(text, starts))

    async def save_messages(self, run: AgentRun[None, str]) -> None:
        """Pass newly completed messages to `on_message`."""
        self.messages = [*run.all_messages()]
        new: list[ModelMessage] = run.new_messages()
        if self.dropped and isinstance(self.messages[-1], ModelResponse):  # the next response replaces it
            del self.messages[-1], new[-1:]
        for message in new[self.saved :]:
            self.saved += 1
            if message.parts:
                await self.save_message(message)

    async def save_message(self, message: ModelMessage) -> None:
        """Pass a message to `on_message` as JSON."""
        await self.plan.on_message(_dump_message(message))


_UNSTORED = {"instructions", "run_id", "conversation_id", "model_id", "provider_url", "provider_response_id"}
"""Fields of a message that later requests don't need, such as the system prompt, which each has anew."""
_REQUIRED = {"kind", "part_kind", "content"}


def _dump_message(message: ModelMessage) -> JsonObject:
    """Convert a message to JSON, without defaults and members that later requests don't need."""
    (row,) = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    row = _drop_defaults(message, row)
    row["parts"] = [_drop_defaults(*pair) for pair in zip(message.parts, row["parts"], strict=True)]
    if isinstance(message, ModelResponse):
        row["usage"] = _drop_defaults(message.usage, row["usage"])
        row.pop("provider_details", None)  # the finish reason, once more
    return row


def _drop_defaults(value: Any, row: dict[str, Any]) -> dict[str, Any]:
    defaults = {one.name: one.default for one in fields(value) if one.name not in _REQUIRED}
    return {name: fact for name, fact in row.items() if name not in _UNSTORED and defaults.get(name, _REQUIRED) != fact}


class ModelLoop:
    """Client for one model. It owns the connection, so enter it before the first run."""

    def __init__(self, model: Model, key_from: str = "") -> None:
        self._model = SessionModel(model)
        self._key_from = key_from
        """Where the key is from, for the message if it's refused."""
        self._text_only = False
        self._has_ends = True
        """Whether a stream without an end is incomplete: some servers never send one."""
        self._known: tuple[list[JsonObject], list[ModelMessage]] = [], []
        """The history of the last run, as stored and as read."""
        self.usage = Usage(cost_usd=0.0)
        """Total usage of all runs."""

    async def __aenter__(self) -> ModelLoop:
        await self._model.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._model.__aexit__(*error)

    async def run(self, prompt: str | None, plan: RunPlan) -> RunResult:
        """Run until the model has answered `prompt`. Failures and cancellation are results too.

        Without a prompt, the model continues from the end of the history.

        Raises:
            OSError: The sink failed because its reader is gone.
            ConversationError: The history is invalid.
        """
        # pydantic-ai and the kernel each have a cancel token. This one stops requests to the model.
        state = RunState(plan, CancellationToken(), may_drop=self._has_ends)
        forget = plan.cancel.on_cancel(state.token.cancel)
        listening = retry_listener.set(plan.sink)
        try:
            result = await self._retry_without_images(prompt, state)
        except failures.RunTimedOut:
            result = RunResult(reason="time", message="the time limit was reached")
        except failures.RunCancelled:
            result = RunResult(reason="cancelled", message=f"stopped by {plan.cancel.reason}")
        except RepeatedCallError as exc:
            message = f"{exc} was called repeatedly with the same result"
            result = RunResult(reason="repeat", message=message)
        except failures.UserError as exc:
            result = RunResult(reason="error", message=str(exc))
        except failures.AgentRunError as exc:
            fault = to_model_fault(exc, self._model.base_url, self._key_from)
            result = RunResult(reason="error", message=str(fault), fault=fault)
        finally:
            forget()
            retry_listener.reset(listening)
        usage = _to_usage(state.usage)
        self.usage = self.usage.add(usage)
        await plan.sink(usage)
        last = "".join(state.passages[-1]) if state.passages else ""
        passages = tuple(text for pieces in state.passages if (text := "".join(pieces)))
        responses = [message for message in state.messages if isinstance(message, ModelResponse)]
        context = responses[-1].usage.input_tokens + responses[-1].usage.output_tokens if responses else 0
        return replace(result, text=last, passages=passages, usage=usage, context_tokens=context)

    async def complete_message(self, params: JsonObject, budget: RequestBudget) -> JsonObject:
        """Complete a server's sampling request with one request to the model, outside any conversation.

        `RpcError` if the request is invalid, the budget is spent, or the model didn't answer.
        """
        messages, settings = parse_sampling_request(params)
        if end := budget.find_end():
            raise RpcError(SAMPLING_FAILED, end)
        budget.spend()
        settings["timeout"] = _REQUEST_TIMEOUT_S
        try:
            async with self._model.request_stream(messages, settings, ModelRequestParameters()) as stream:
                async for _ in stream:
                    pass
                response = stream.get()
        except (failures.UserError, failures.AgentRunError) as exc:
            fault = (
                to_model_fault(exc, self._model.base_url, self._key_from)
                if isinstance(exc, failures.AgentRunError)
                else exc
            )
            raise RpcError(SAMPLING_FAILED, f"the model gave no answer: {fault}") from exc
        used = RunUsage(requests=1)
        used.incr(response.usage)
        budget.charge(_to_usage(used))
        self.usage = self.usage.add(_to_usage(used))
        return build_sampling_result(response, self._model.model_name)

    async def _retry_without_images(self, prompt: str | None, state: RunState) -> RunResult:
        """Run the loop. If the model rejects images, continue once with text in their place."""
        try:
            # An interrupted run leaves calls without a result; add one to each.
            history = repair_messages(self._read_messages(state.plan.history))
        except ValueError as exc:
            raise ConversationError(f"its stored messages cannot be read: {exc}") from exc
        if self._text_only:  # the model would reject images of earlier turns again
            history = [replace_images(message) for message in history]
        try:
            return await self._retry_dropped(prompt, history, state)
        except failures.ModelAPIError as exc:
            if self._text_only or not is_image_refusal(exc, state.messages):
                raise
        self._text_only, state.saved = True, 0
        return await self._iterate(None, [replace_images(message) for message in state.messages], state)

    def _read_messages(self, rows: Sequence[JsonObject]) -> list[ModelMessage]:
        """Read stored messages, those of the last run from memory.

        Cancelled timers hold a run's context with its messages for minutes, so that copies would pile up.
        """
        known, messages = self._known
        same = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(known, rows, strict=False)))
        new = [{name: fact for name, fact in row.items() if name != "usage"} for row in rows[same:]]
        messages = [*messages[:same], *ModelMessagesTypeAdapter.validate_python(new)]
        self._known = [*rows], messages
        return [*messages]

    async def _retry_dropped(self, prompt: str | None, history: Sequence[ModelMessage], state: RunState) -> RunResult:
        """Run the loop. If the connection drops during a response, request that response once more."""
        try:
            return await self._iterate(prompt, history, state)
        except failures.ModelConnectionError:
            if not state.dropped:
                raise
        state.passages.pop()
        await state.plan.sink(RetryScheduled("The connection dropped", 0, 2, 2))
        state.dropped, state.may_drop, state.saved = False, False, 0
        result = await self._iterate(None, state.messages, state)
        self._has_ends = not _is_open_ended(state.messages)
        return result

    async def _iterate(
        self, prompt: str | None, history: Sequence[ModelMessage], state: RunState, *, can_drop: bool = True
    ) -> RunResult:
        plan = state.plan
        deck = DeckToolset(
            plan,
            rich_results=self._model.system == "anthropic",
            text_only=self._text_only,
            native_search=has_native_search(self._model),
        )
        agent = Agent(
            self._model,
            deps_type=type(None),
            instructions=lambda: plan.system_prompt(),
            toolsets=[deck],
            capabilities=[ToolSearch(strategy=deck.find_tools, max_results=FOUND)],
            retries={"tools": _MAX_RETRIES, "output": 1},
            model_settings=ModelSettings(timeout=_REQUEST_TIMEOUT_S),
        )
        files = [BinaryContent(file.data, media_type=file.media_type) for file in plan.attachments]
        if self._text_only:
            prompt = None if prompt is None else "\n".join((prompt, *map(describe_file, files)))
        async with agent.iter(
            [prompt, *files] if prompt is not None and files and not self._text_only else prompt,
            message_history=history,
            usage_limits=UsageLimits(request_limit=None),
            usage=state.usage,
            cancellation_token=state.token,
            timeout=plan.time_s,
        ) as run:
            try:
                return await self._run_nodes(agent, run, deck, state)
            finally:
                # An interrupted message belongs to the conversation too.
                with anyio.move_on_after(_SAVE_TIMEOUT_S, shield=True):
                    await state.save_messages(run)

    async def _run_nodes(
        self, agent: Agent[None, str], run: AgentRun[None, str], deck: DeckToolset, state: RunState
    ) -> RunResult:
        """Run the nodes of the agent graph (https://ai.pydantic.dev/agents/#iterating-over-an-agents-graph)."""
        budget = state.plan.budget
        async for node in run:
            if agent.is_model_request_node(node):
                if end := budget.find_end():
                    await state.save_message(node.request)  # tool results the model hasn't received yet
                    return RunResult(reason="limit", message=end)
                if state.plan.take_messages is not None and state.passages:
                    messages = map(UserPromptPart, await state.plan.take_messages())
                    node.request.parts = [*node.request.parts, *messages]
                budget.spend()
                state.passages.append([])
                before = copy(state.usage)
                try:
                    async with node.stream(run.ctx) as stream:
                        async for event in stream:
                            await state.report_text(event)
                    self._check_end(run, state)
                except failures.ModelConnectionError:
                    state.dropped = state.may_drop and isinstance(run.all_messages()[-1], ModelResponse)
                    raise
                finally:
                    budget.charge(_subtract_usage(state.usage, before))
            elif agent.is_call_tools_node(node):
                async with node.stream(run.ctx) as events:
                    async for event in events:
                        if isinstance(event, FunctionToolResultEvent):
                            await deck.report_unknown_tool(event)
            await state.save_messages(run)
        last = state.messages[-1] if state.messages else None
        finish = last.finish_reason if isinstance(last, ModelResponse) else None
        return RunResult(reason="done", note=_find_truncation(state.messages), finish=finish or "")

    def _check_end(self, run: AgentRun[None, str], state: RunState) -> None:
        if state.may_drop and _is_open_ended(run.all_messages()):
            raise failures.ModelConnectionError(self._model.model_name, "the connection dropped")


def _to_usage(used: RunUsage) -> Usage:
    return Usage(
        used.requests,
        used.input_tokens,
        used.output_tokens,
        used.cache_read_tokens,
        used.cache_write_tokens,
        None if used.cost is None else float(used.cost),
    )


def _subtract_usage(used: RunUsage, before: RunUsage) -> Usage:
    usage = _to_usage(used).subtract(_to_usage(before))
    if not usage.input_tokens + usage.output_tokens:  # a failed request, which costs nothing
        return replace(usage, cost_usd=0.0)
    return usage if before.total_tokens else replace(usage, cost_usd=_to_usage(used).cost_usd)


def _is_open_ended(messages: Sequence[ModelMessage]) -> bool:
    """Return whether the last response has neither a finish reason nor an end."""
    last = messages[-1] if messages else None
    details = last.provider_details or {} if isinstance(last, ModelResponse) and last.provider_name else None
    return details is not None and not details.keys() & {"finish_reason", "ended"}


def _find_truncation(messages: Sequence[ModelMessage]) -> str:
    """Describe why the last answer is incomplete, or return an empty string."""
    last = messages[-1] if messages else None
    if not isinstance(last, ModelResponse):
        return ""
    # The library can't tell a broken stream from a finished one; only the provider's own reason can.
    if last.provider_name is not None and "finish_reason" not in (last.provider_details or {}):
        return "the connection dropped; the answer may be incomplete"
    return {
        "length": "the answer is cut off: the model reached its token limit",
        "content_filter": "the answer is cut off by a filter of the model's provider",
    }.get(last.finish_reason or "", "")


# -- sampling -----------------------------------------------------------------------------------
#
# https://modelcontextprotocol.io/specification/2025-06-18/client/sampling#creating-messages. The model of the session
# answers without tools and without the conversation, so a server learns nothing that it didn't send.


_STOP_REASONS = {"stop": "endTurn", "length": "maxTokens"}


def parse_sampling_request(params: JsonObject) -> tuple[list[ModelMessage], ModelSettings]:
    """Convert the parameters of `sampling/createMessage` to a model request; `RpcError` if they're unusable."""
    if params.get("tools"):
        raise RpcError(INVALID_PARAMS, "sampling with tools is not offered")
    limit, rows = params.get("maxTokens"), params.get("messages")
    if not isinstance(limit, int) or limit < 1:
        raise RpcError(INVALID_PARAMS, "maxTokens must be a positive number")
    messages = [_parse_message(row) for row in rows] if isinstance(rows, list) else []
    if not messages or not isinstance(messages[-1], ModelRequest):
        raise RpcError(INVALID_PARAMS, "the last message must be one of the user")
    system = params.get("systemPrompt")
    if isinstance(system, str) and system:
        messages[-1].instructions = system
    settings = ModelSettings(max_tokens=limit)
    temperature, stops = params.get("temperature"), params.get("stopSequences")
    if isinstance(temperature, (int, float)):
        settings["temperature"] = temperature
    if isinstance(stops, list) and stops:
        settings["stop_sequences"] = [stop for stop in stops if isinstance(stop, str)]
    return messages, settings


def _parse_message(row: JsonValue) -> ModelMessage:
    role = row.get("role") if is_json_object(row) else None
    if not is_json_object(row) or role not in ("user", "assistant"):
        raise RpcError(INVALID_PARAMS, f"a message has the role {role!r}")
    content = row.get("content")
    blocks = [_parse_block(block) for block in (content if isinstance(content, list) else [content])]
    if role == "user":
        return ModelRequest(parts=[UserPromptPart(blocks)])
    return ModelResponse(parts=[TextPart(block) for block in blocks if isinstance(block, str)])


def _parse_block(block: JsonValue) -> str | BinaryContent:
    kind = block.get("type") if is_json_object(block) else None
    if is_json_object(block) and kind == "text" and isinstance(text := block.get("text"), str):
        return text
    if is_json_object(block) and kind in ("image", "audio") and isinstance(data := block.get("data"), str):
        try:
            return BinaryContent(base64.b64decode(data, validate=True), media_type=str(block.get("mimeType")))
        except binascii.Error as exc:
            raise RpcError(INVALID_PARAMS, f"the data of a message is not valid base64: {exc}") from exc
    raise RpcError(INVALID_PARAMS, f"a message holds content of type {kind!r}")


def build_sampling_result(response: ModelResponse, model: str) -> JsonObject:
    """Convert a model response to the result of `sampling/createMessage`."""
    text = "\n\n".join(part.content for part in response.parts if isinstance(part, TextPart))
    result: JsonObject = {
        "role": "assistant",
        "content": {"type": "text", "text": text},
        "model": response.model_name or model,
    }
    details = response.provider_details or {}
    if details.get("finish_reason") == "stop_sequence":
        result["stopReason"] = "stopSequence"
    elif response.finish_reason in _STOP_REASONS:
        result["stopReason"] = _STOP_REASONS[response.finish_reason]
    return result


@asynccontextmanager
async def open_loop(choice: ModelChoice, telemetry: CallTelemetry | None = None) -> AsyncGenerator[ModelLoop]:
    """Open a model's loop for the duration of the block. `telemetry` records each request as a span without texts."""
    model = await to_thread.run_sync(open_model, choice)
    if telemetry is not None:
        from pydantic_ai.models.instrumented import InstrumentationSettings, InstrumentedModel  # noqa: PLC0415 — for a collector

        traces, metrics = telemetry.providers
        model = InstrumentedModel(
            model,
            InstrumentationSettings(
                tracer_provider=traces,
                meter_provider=metrics,
                include_binary_content=False,
                include_content=False,
                include_model_request_parameters=False,
            ),
        )
    async with ModelLoop(model, choice.key_from) as loop:
        yield loop
