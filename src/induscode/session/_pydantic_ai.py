"""The model loop, on pydantic-ai. The only module that knows it.

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
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ToolReturn,
    repair_messages,
)
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets.abstract import AbstractToolset, ToolsetTool
from pydantic_ai.usage import RunUsage, UsageLimits

from indusagi.core.json import is_json_object
from indusagi.runtime.contract import ToolCall
from induscode.session.calls import AnyArguments, Calls, Circles, as_written
from induscode.session.events import Ended, ModelFault, TextDelta, Usage
from induscode.session.transcript import NoConversation

if TYPE_CHECKING:
    from pydantic_ai.agent import AgentRun
    from pydantic_ai.models import Model

    from indusagi.runtime.contract import ToolDescriptor
    from induscode.deck.toolbox import DeckToolBox
    from induscode.session.events import FaultKind
    from induscode.session.models import ModelChoice
    from induscode.session.plan import RunPlan

_REQUEST_S = 600.0
"""The longest silence of a model's server."""
_FORGIVEN = 1_000
"""How often a model may ask for a tool that is not there; the limit of requests comes first."""


# -- the deck as a toolset ----------------------------------------------------------------------


class DeckToolset(AbstractToolset[None]):
    """The tools of a deck for a run of the loop."""

    def __init__(self, plan: RunPlan, *, rich: bool = False) -> None:
        self._plan = plan
        self._rich = rich
        """Whether answers of tools may hold pictures, and have a mark for failures."""
        self._calls = Calls(plan.sink, plan.cancel)
        self._box: DeckToolBox | None = None
        self._step = -1

    @property
    def id(self) -> str:
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
            toolset=self,
            tool_def=definition,
            max_retries=_FORGIVEN,
            args_validator=AnyArguments(),
        )

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[None],
        tool: ToolsetTool[None],
    ) -> Any:
        """Run a call, and give the model its answer."""
        assert self._box is not None
        call = ToolCall(ctx.tool_call_id or name, name, as_written(tool_args))
        answer = await self._calls.run(self._box, call)
        if answer.is_error:
            if self._rich:
                raise failures.ToolFailed(answer.text)
            return f"Error: {answer.text}"
        files = [BinaryContent(one.data, media_type=one.media_type) for one in answer.attachments]
        if not files:
            return answer.text
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
class _Told:
    """What the model has said so far, and which of its messages were handed on."""

    passage: list[str] = field(default_factory=list[str])
    messages: int = 0


class Engine:
    """Asks one model. Enter it before the first run: it holds the connection."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.usage = Usage(cost_usd=0.0)
        """What all runs have taken together."""

    async def __aenter__(self) -> Engine:
        await self._model.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._model.__aexit__(*error)

    async def run(self, prompt: str, plan: RunPlan) -> Ended:
        """Have a question answered. Whatever comes of it is in the value, also a cancellation.

        Raises:
            OSError: What is told cannot be written: nobody reads it any more.
            NoConversation: The history is not one.
        """
        used, told = RunUsage(), _Told()
        # pydantic-ai and the kernel each have a token: this one stops the requests to the model.
        token = CancellationToken()
        forget = plan.cancel.on_cancel(token.cancel)
        try:
            ended = await self._driven(prompt, plan, told, used, token)
        finally:
            forget()
        usage = _usage(used)
        self.usage = self.usage.plus(usage)
        await plan.sink(usage)
        return replace(ended, text="".join(told.passage), usage=usage)

    async def _driven(
        self, prompt: str, plan: RunPlan, told: _Told, used: RunUsage, token: CancellationToken
    ) -> Ended:
        try:
            return await self._through(prompt, plan, told, used, token)
        except failures.RunTimedOut:
            return Ended(reason="time", text="", said="the time it was given is over")
        except failures.RunCancelled:
            return Ended(reason="cancelled", text="", said=f"stopped by {plan.cancel.reason}")
        except Circles as exc:
            said = f"{exc} was called again and again with the same outcome"
            return Ended(reason="repeat", text="", said=said)
        except failures.UserError as exc:
            return Ended(reason="error", text="", said=str(exc))
        except failures.AgentRunError as exc:
            fault = fault_of(exc)
            return Ended(reason="error", text="", said=str(fault), fault=fault)

    async def _through(
        self, prompt: str, plan: RunPlan, told: _Told, used: RunUsage, token: CancellationToken
    ) -> Ended:
        deck = DeckToolset(plan, rich=self._model.system == "anthropic")
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
            message_history=_history(plan),
            usage_limits=UsageLimits(request_limit=None),
            usage=used,
            cancellation_token=token,
            timeout=plan.time_s,
        ) as run:
            try:
                return await self._steps(agent, run, deck, plan, told)
            finally:
                # Also what was cut short belongs to the conversation, whatever ended it.
                with anyio.CancelScope(shield=True):
                    await _hand_on(run, plan, told)

    async def _steps(
        self,
        agent: Agent[None, str],
        run: AgentRun[None, str],
        deck: DeckToolset,
        plan: RunPlan,
        told: _Told,
    ) -> Ended:
        async for node in run:
            if agent.is_model_request_node(node):
                if plan.budget.left == 0:
                    await _keep(node.request, plan)  # the answers that nobody was asked about
                    said = f"the limit of {plan.budget.limit} requests to the model is reached"
                    return Ended(reason="limit", text="", said=said)
                plan.budget.used += 1
                told.passage.clear()
                async with node.stream(run.ctx) as stream:
                    async for event in stream:
                        await _tell(event, plan, told)
            elif agent.is_call_tools_node(node):
                async with node.stream(run.ctx) as events:
                    async for event in events:
                        if isinstance(event, FunctionToolResultEvent):
                            await deck.missed(event)
            await _hand_on(run, plan, told)
        return Ended(reason="done", text="")


async def _tell(event: AgentStreamEvent, plan: RunPlan, told: _Told) -> None:
    text, starts = "", False
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        text, starts = event.part.content, True
        if told.passage:
            told.passage.append("\n\n")
    elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        text = event.delta.content_delta
    if text or starts:
        told.passage.append(text)
        await plan.sink(TextDelta(text, starts))


async def _hand_on(run: AgentRun[None, str], plan: RunPlan, told: _Told) -> None:
    messages: list[ModelMessage] = run.new_messages()
    for message in messages[told.messages :]:
        told.messages += 1
        if message.parts:
            await _keep(message, plan)


async def _keep(message: ModelMessage, plan: RunPlan) -> None:
    (dumped,) = ModelMessagesTypeAdapter.dump_python([message], mode="json")
    if is_json_object(dumped):
        await plan.on_message(dumped)


def _history(plan: RunPlan) -> list[ModelMessage]:
    """Read the messages of a conversation; calls that were never answered are closed."""
    try:
        return repair_messages(ModelMessagesTypeAdapter.validate_python([*plan.history]))
    except ValueError as exc:
        raise NoConversation(f"what was kept of it cannot be read: {exc}") from exc


def _usage(used: RunUsage) -> Usage:
    cost = getattr(used, "cost", None)
    return Usage(
        used.requests,
        used.input_tokens,
        used.output_tokens,
        used.cache_read_tokens,
        used.cache_write_tokens,
        None if cost is None else float(cost),
    )


# -- models and their faults ----------------------------------------------------------------------


VERBATIM = ModelProfile(json_schema_transformer=None, supports_inline_system_prompts=True)
"""Schemas go out as the kernel shows them, and no word of a tool's answer is escaped on the way."""


def open_model(choice: ModelChoice) -> Model:
    """Make the client of a model; nothing is sent before the first request."""
    if choice.dialect == "anthropic":
        from pydantic_ai.models.anthropic import (  # noqa: PLC0415 — a second of imports
            AnthropicModel,
            AnthropicModelSettings,
        )
        from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415 — with it

        there = AnthropicProvider(api_key=choice.api_key or "none", base_url=choice.base_url)
        # The briefing and the deck are the same bytes at every request, as long as they can be.
        kept = AnthropicModelSettings(
            anthropic_cache_instructions=True,
            anthropic_cache_tool_definitions=True,
            anthropic_cache_messages=True,
        )
        return AnthropicModel(choice.name, provider=there, settings=kept, profile=VERBATIM)
    from pydantic_ai.models.openai import OpenAIChatModel  # noqa: PLC0415 — half a second of imports
    from pydantic_ai.providers.openai import OpenAIProvider  # noqa: PLC0415 — with it
    from pydantic_ai.providers.openai_compatible import (  # noqa: PLC0415 — with it
        OpenAICompatibleProvider,
    )

    if choice.dialect == "openai":
        own = OpenAIProvider(base_url=choice.base_url, api_key=choice.api_key or "none")
        return OpenAIChatModel(choice.name, provider=own, profile=VERBATIM)
    assert choice.base_url is not None
    other = OpenAICompatibleProvider("local", base_url=choice.base_url, api_key=choice.api_key)
    return OpenAIChatModel(choice.name, provider=other, profile=VERBATIM)


_KINDS: tuple[tuple[type[Exception], FaultKind, str], ...] = (
    (failures.ModelAuthenticationError, "auth", "check the key"),
    (failures.ModelQuotaExceededError, "quota", "look at the account"),
    (failures.ModelRateLimitError, "rate_limit", "wait, or use another model"),
    (failures.ModelContextWindowExceededError, "context_window", "ask for less, or begin anew"),
    (failures.ModelNotFoundError, "not_found", "check --model"),
    (failures.ModelConnectionError, "connection", "check the address, and whether it runs"),
    (failures.ModelRequestRejectedError, "rejected", ""),
)


def fault_of(error: failures.AgentRunError) -> ModelFault:
    """Say in one line why a model did not answer."""
    said = _words(error)
    for kind, name, remedy in _KINDS:
        if isinstance(error, kind):
            return ModelFault(name, said, remedy)
    return ModelFault("server", said)


def _words(error: failures.AgentRunError) -> str:
    if not isinstance(error, failures.ModelAPIError):
        return f"the model did not answer as it should: {error}"
    body = error.body
    inner = body.get("error", body) if is_json_object(body) else body
    told = inner.get("message") if is_json_object(inner) else inner
    status = f" ({error.status_code})" if isinstance(error, failures.ModelHTTPError) else ""
    return f"{error.model_name}{status}: {told or error.message}"
