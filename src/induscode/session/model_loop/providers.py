"""The client of a model, and in one line why a model did not answer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pydantic_ai import exceptions as failures
from pydantic_ai.profiles import ModelProfile

from indusagi.core.json import is_json_object
from induscode.session.contract import ModelFault
from induscode.session.model_loop.chat import ChatModel

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from induscode.session.contract import FaultKind
    from induscode.session.models import ModelChoice

VERBATIM = ModelProfile(json_schema_transformer=None, supports_inline_system_prompts=True)
"""Schemas go out as the kernel shows them, and no word of a tool's answer is escaped on the way."""

_OPENAI_URL = "https://api.openai.com/v1"
_OPENAI_ACCOUNT = {"openai-organization": "OPENAI_ORG_ID", "openai-project": "OPENAI_PROJECT_ID"}
"""https://platform.openai.com/docs/api-reference/authentication"""


def open_model(choice: ModelChoice) -> Model:
    """Make the client of a model; nothing is sent before the first request."""
    if choice.dialect == "anthropic":
        from pydantic_ai.models.anthropic import AnthropicModel, AnthropicModelSettings  # noqa: PLC0415 — a second of imports
        from pydantic_ai.providers.anthropic import AnthropicProvider  # noqa: PLC0415 — with it

        there = AnthropicProvider(api_key=choice.api_key or "none", base_url=choice.base_url)
        # The briefing and the deck are the same bytes at every request, as long as they can be.
        kept = AnthropicModelSettings(
            anthropic_cache_instructions=True, anthropic_cache_tool_definitions=True, anthropic_cache_messages=True
        )
        return AnthropicModel(choice.name, provider=there, settings=kept, profile=VERBATIM)
    headers = {"authorization": f"Bearer {choice.api_key}"} if choice.api_key else {}
    if choice.dialect == "openai":
        # Which of several organisations and projects of an account pays.
        headers |= {
            header: value for header, variable in _OPENAI_ACCOUNT.items() if (value := os.environ.get(variable))
        }
    return ChatModel(
        choice.name,
        system="openai" if choice.dialect == "openai" else "local",
        base_url=choice.base_url or _OPENAI_URL,
        headers=headers,
        profile=VERBATIM,
    )


_KINDS: tuple[tuple[type[Exception], FaultKind, str], ...] = (
    (failures.ModelAuthenticationError, "auth", "check the key"),
    (failures.ModelQuotaExceededError, "quota", "look at the account"),
    (failures.ModelRateLimitError, "rate_limit", "wait, or use another model"),
    (failures.ModelContextWindowExceededError, "context_window", "ask for less, or begin anew"),
    (failures.ModelNotFoundError, "not_found", "check --model"),
    (failures.ModelConnectionError, "connection", "check the address, and whether it runs"),
    (failures.ModelRequestRejectedError, "rejected", ""),
)


def fault_of(error: failures.AgentRunError, address: str | None = None) -> ModelFault:
    """Say in one line why a model at an address did not answer."""
    said = _words(error)
    if isinstance(error, failures.ModelConnectionError) and address:
        said = f"{error.model_name} at {address}: {error.message.rstrip('.')}"
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
