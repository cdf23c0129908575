"""Creates model clients, and converts their errors to faults."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic_ai import exceptions as failures
from pydantic_ai.profiles import ModelProfile

from indusagi.core.secrets import hide_in_urls, hide_secrets
from induscode.conversations.contract import FaultKind, ModelFault
from induscode.conversations.model_loop.chat import ChatModel
from induscode.conversations.model_loop.chat_messages import find_message

if TYPE_CHECKING:
    from pydantic_ai.models import Model

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
            anthropic_cache_instructions=True, anthropic_cache_tool_definitions=True, anthropic_cache_messages=True
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


_KINDS: tuple[tuple[type[Exception], FaultKind, str], ...] = (
    (failures.ModelAuthenticationError, "auth", "check the key"),
    (failures.ModelQuotaExceededError, "quota", "look at the account"),
    (failures.ModelRateLimitError, "rate_limit", "wait, or use another model"),
    (failures.ModelContextWindowExceededError, "context_window", "ask for less, or start a new conversation"),
    (failures.ModelNotFoundError, "not_found", "check --model"),
    (failures.ModelConnectionError, "connection", "check the address, and whether it runs"),
    (failures.ModelRequestRejectedError, "rejected", ""),
)


def to_model_fault(error: failures.AgentRunError, address: str | None = None, key_from: str = "") -> ModelFault:
    """Convert a model error to a fault with a remedy."""
    if not isinstance(error, failures.ModelAPIError):
        message = f"the model did not answer as it should: {error}"
    elif isinstance(error, failures.ModelConnectionError) and address:
        message = f"{error.model_name} at {hide_in_urls(address)}: {error.message.rstrip('.')}"
    else:
        detail = find_message(error.body)
        status = f" ({error.status_code})" if isinstance(error, failures.ModelHTTPError) else ""
        message = f"{error.model_name}{status}: {detail or error.message}"
    message = hide_secrets(message)  # some providers repeat the key
    for category, kind, remedy in _KINDS:
        if isinstance(error, category):
            is_key = kind == "auth" and key_from
            return ModelFault(kind, message, f"{remedy}, which is from {key_from}: indus models" if is_key else remedy)
    return ModelFault("server", message)
