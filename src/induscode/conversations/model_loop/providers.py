"""Creates model clients, sends requests again after transient failures, and converts errors to faults."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from contextvars import ContextVar
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

import anyio
from pydantic_ai import exceptions as failures
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.profiles import ModelProfile

from indusagi.core.secrets import hide_in_urls, hide_secrets
from indusagi.core.tasks import Backoff, parse_retry_after
from indusagi.net.address import FetchError
from induscode.conversations.contract import FaultKind, ModelFault, RetryScheduled
from induscode.conversations.model_loop.chat import ChatModel
from induscode.conversations.model_loop.chat_messages import find_message

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import RunContext

    from induscode.conversations.contract import EventSink
    from induscode.conversations.models import ModelChoice

VERBATIM = ModelProfile(json_schema_transformer=None, supports_inline_system_prompts=True)
"""Profile that sends schemas and tool results unchanged (https://ai.pydantic.dev/models/)."""
_OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_ACCOUNT = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}
"""https://platform.openai.com/docs/api-reference/authentication"""


def open_model(choice: ModelChoice) -> Model:
    """Create a client for a model. The first request opens the connection."""
    if choice.api == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings  # noqa: PLC0415 — a second of imports
        from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415 — a second of imports

        provider = AnthropicProvider(api_key=choice.api_key or "none", base_url=choice.base_url)
        # Until the deck changes, every request has the same system prompt and tools, byte for byte:
        # https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching.
        settings = AnthropicModelSettings(
            anthropic_cache_instructions=True,
            anthropic_cache_tool_definitions=True,
            anthropic_cache_messages=True,
            max_retries=0,  # `SessionModel` retries, and says so
        )
        return AnthropicModel(choice.name, provider=provider, settings=settings, profile=VERBATIM)
    headers = {"authorization": f"Bearer {choice.api_key}"} if choice.api_key else {}
    if choice.api == "openai":
        # The organisation and project to bill.
        headers |= {
            header: value for header, variable in _OPENAI_ACCOUNT.items() if (value := os.environ.get(variable))
        }
    return ChatModel(
        choice.name,
        system="openai" if choice.api == "openai" else "local",
        base_url=choice.base_url or _OPENAI_URL,
        headers=headers,
        profile=VERBATIM,
    )


# -- requests -----------------------------------------------------------------------------------


UNLISTED = "unlisted"
"""Metadata key of a callable tool that requests don't list."""
_NATIVE_SEARCH = "tool_search"
"""Kind of a provider's own search: https://ai.pydantic.dev/native-tools/"""
_MAX_RETRIES = 2
_MAX_BUSY_RETRIES = 9
_BUSY = {429: "Rate limited", 503: "The model is busy", 529: "The model is busy"}
"""Statuses that ask for patience."""
_FIRST_DELAY_S = 0.4
_MAX_DELAY_S = 60.0
_RETRY_STATUSES = {408, 409, 429}
"""Retried like 5xx: https://platform.openai.com/docs/guides/error-codes."""
_FINAL_REASONS = {"silence", "request"}
"""Failures for which a retry is useless or takes very long."""
retry_listener: ContextVar[EventSink | None] = ContextVar("retry_listener", default=None)
"""Receives the retries of a run's requests."""


def has_native_search(model: Model) -> bool:
    """Return whether the model's provider can search for unlisted cards."""
    native = model.profile.get("supported_native_tools", ())
    return model.system == "anthropic" and any(tool.kind == _NATIVE_SEARCH for tool in native)


class SessionModel(WrapperModel):
    """A model whose requests omit unlisted tools, and are sent again after transient failures."""

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Send a request with the listed tools only."""
        tools = [tool for tool in model_request_parameters.function_tools if not (tool.metadata or {}).get(UNLISTED)]
        listed = replace(model_request_parameters, function_tools=tools)
        backoff = Backoff(_FIRST_DELAY_S)
        async with AsyncExitStack() as stack:
            for attempt in count(1):
                try:
                    opening = self.wrapped.request_stream(messages, model_settings, listed, run_context)
                    stream = await stack.enter_async_context(opening)
                except failures.ModelAPIError as exc:
                    reason, retries, delay = _find_retry(exc)
                    if attempt > retries:
                        raise
                    pause_s = backoff.next_pause(delay)
                    if (listener := retry_listener.get()) is not None:
                        await listener(RetryScheduled(reason, pause_s, attempt + 1, retries + 1))
                    await anyio.sleep(pause_s)
                else:
                    yield stream
                    return


def _find_retry(error: failures.ModelAPIError) -> tuple[str, int, float | None]:
    """Find why a request is sent again, how often at most, and the delay that the server asks for."""
    if isinstance(error, failures.ModelHTTPError):
        headers, status = error.headers or {}, error.status_code
        delay, advice = parse_retry_after(headers.get("retry-after", "")), headers.get("x-should-retry")
        may_succeed = advice == "true" if advice else status in _RETRY_STATUSES or status >= 500
        reason = _BUSY.get(status, f"The model's server failed ({status})")
        retries = _MAX_BUSY_RETRIES if status in _BUSY else _MAX_RETRIES
        return reason, retries if may_succeed and (delay or 0) <= _MAX_DELAY_S else 0, delay
    cause, is_final = error.__cause__, not isinstance(error, failures.ModelConnectionError)
    if isinstance(cause, FetchError):
        is_final = cause.facts.get("reason") in _FINAL_REASONS or cause.__cause__ is None
    elif isinstance(error, failures.ModelTimeoutError):
        is_final = True
    return "Can't connect", 0 if is_final else _MAX_RETRIES, None


# -- failures -----------------------------------------------------------------------------------


_KINDS: tuple[tuple[type[Exception], FaultKind, str], ...] = (
    (failures.ModelAuthenticationError, "auth", "check the key"),
    (failures.ModelQuotaExceededError, "quota", "look at the account"),
    (failures.ModelRateLimitError, "rate_limit", "wait, or use another model"),
    (failures.ModelContextWindowExceededError, "context_window", "ask for less, or start a new conversation"),
    (failures.ModelNotFoundError, "not_found", "check --model"),
    (failures.ModelConnectionError, "connection", "check the address. Is the server running?"),
    (failures.ModelRequestRejectedError, "rejected", ""),
)


def to_model_fault(error: failures.AgentRunError, address: str | None = None, key_from: str = "") -> ModelFault:
    """Convert a model error to a fault with a remedy."""
    if not isinstance(error, failures.ModelAPIError):
        message = f"the model did not answer as it should: {error}"
    elif isinstance(error, failures.ModelConnectionError) and address:
        reason = error.message.rstrip(".").removesuffix(": All connection attempts failed")  # anyio's, without a cause
        message = f"{error.model_name} at {hide_in_urls(address)}: {reason}"
    else:
        detail = find_message(error.body)
        status = f" ({error.status_code})" if isinstance(error, failures.ModelHTTPError) else ""
        message = f"{error.model_name}{status}: {detail or error.message}"
    message = hide_secrets("; ".join((message, *getattr(error, "__notes__", ()))))  # some providers repeat the key
    for category, kind, remedy in _KINDS:
        if isinstance(error, category):
            is_key = kind == "auth" and key_from
            return ModelFault(kind, message, f"{remedy}, which is from {key_from}: indus models" if is_key else remedy)
    return ModelFault("server", message)
