"""Chat Completions wire format: conversion of messages, text in place of images, and errors.

Format: https://platform.openai.com/docs/api-reference/chat/create.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from pydantic_ai import BinaryContent
from pydantic_ai import exceptions as failures
from pydantic_ai.exceptions import ModelAPIError
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    SystemPromptPart,
    TextContent,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserContent,
    UserPromptPart,
)
from pydantic_ai.tools import ToolDefinition

from indusagi.core.json import is_json_object
from indusagi.net.address import FetchError

REASONING_FIELDS = ("reasoning_content", "reasoning")
"""Fields with a model's reasoning: DeepSeek, vLLM and llama.cpp use the first, Ollama and OpenRouter the second."""
THINKING_TAGS = ("<think>", "</think>")

# -- images -------------------------------------------------------------------------------------


def is_image_refusal(error: ModelAPIError, messages: Sequence[ModelMessage]) -> bool:
    """Return whether a model rejected a request because of the images in `messages`."""
    text = str(error).lower()
    if not any(word in text for word in ("image", "multimodal", "vision")):
        return False
    return any(replace_images(message) is not message for message in messages)


def replace_images(message: ModelMessage) -> ModelMessage:
    """Replace files in a message with descriptions. Returns a message without files unchanged."""
    if not isinstance(message, ModelRequest):
        return message
    parts = [*message.parts]
    for index, part in enumerate(parts):
        if isinstance(part, UserPromptPart) and not isinstance(part.content, str):
            content = [describe_file(item) if isinstance(item, BinaryContent) else item for item in part.content]
            if content != [*part.content]:
                parts[index] = replace(part, content=content)
    changed = any(new is not old for new, old in zip(parts, message.parts, strict=True))
    return replace(message, parts=parts) if changed else message


def describe_file(file: BinaryContent) -> str:
    """Describe a file that the model doesn't receive."""
    return f"[{file.media_type}, {len(file.data):,} bytes: left out, this model does not take it]"


# -- requests -----------------------------------------------------------------------------------


def write_messages(messages: Sequence[ModelMessage], instructions: Sequence[str], system: str) -> list[dict[str, Any]]:
    """Write the instructions of this request, then the conversation.

    A model's reasoning goes back to the same server in the same field, because DeepSeek rejects a tool call without
    it. Other servers get it as text in tags.
    """
    rows = [{"role": "system", "content": text} for text in instructions]
    for message in messages:
        if isinstance(message, ModelRequest):
            rows.extend(_write_request(message))
        elif (row := _write_response(message, system)) is not None:
            rows.append(row)
    _complete_reasoning(rows)
    return rows


def write_tool(tool: ToolDefinition) -> dict[str, Any]:
    """Write the definition of a tool."""
    function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters_json_schema}
    return {"type": "function", "function": function}


def _write_request(message: ModelRequest) -> Iterator[dict[str, Any]]:
    files: list[UserContent] = []
    for part in message.parts:
        if isinstance(part, SystemPromptPart):
            yield {"role": "system", "content": part.content}
        elif isinstance(part, UserPromptPart):
            yield _write_prompt(part.content)
        elif isinstance(part, ToolReturnPart):
            text, extra = part.model_response_str_and_user_content()
            files.extend(extra)
            yield {"role": "tool", "tool_call_id": part.tool_call_id, "content": text}
    if files:  # tool results are text in this API, so files follow in a separate message
        yield _write_prompt(files)


def _write_prompt(content: str | Sequence[UserContent]) -> dict[str, Any]:
    if isinstance(content, str):
        return {"role": "user", "content": content}
    parts: list[dict[str, Any]] = []
    for item in content:
        if not isinstance(item, BinaryContent):
            text = item.content if isinstance(item, TextContent) else item
            part = {"type": "text", "text": text if isinstance(text, str) else f"[{text!r}: left out]"}
        elif item.is_image:
            part = {"type": "image_url", "image_url": {"url": item.data_uri}}
        elif item.media_type in {"audio/wav", "audio/mpeg"}:
            part = {"type": "input_audio", "input_audio": {"data": item.base64, "format": item.format}}
        elif item.media_type == "application/pdf":
            part = {"type": "file", "file": {"file_data": item.data_uri, "filename": "document.pdf"}}
        elif item.media_type.startswith("text/") or item.media_type.endswith(("json", "xml", "yaml")):
            part = {"type": "text", "text": item.data.decode("utf-8", "replace")}
        else:
            part = {"type": "text", "text": describe_file(item)}
        parts.append(part)
    return {"role": "user", "content": parts}


def _write_response(message: ModelResponse, system: str) -> dict[str, Any] | None:
    """Write a response, or return `None` if it has neither text nor calls."""
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    thoughts: dict[str, list[str]] = {}
    for part in message.parts:
        if isinstance(part, TextPart):
            texts.append(part.content)
        elif isinstance(part, ThinkingPart):
            if part.id in REASONING_FIELDS and part.provider_name == system:
                thoughts.setdefault(part.id, []).append(part.content)
            else:
                start, end = THINKING_TAGS
                texts.append(f"{start}\n{part.content}\n{end}")
        elif isinstance(part, ToolCallPart):
            function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
            calls.append({"id": part.tool_call_id, "type": "function", "function": function})
    if not texts and not calls:
        return None
    row: dict[str, Any] = {"role": "assistant"}
    row |= {field: "\n\n".join(pieces) for field, pieces in thoughts.items()}
    row["content"] = "\n\n".join(texts) if texts else None
    if calls:
        row["tool_calls"] = calls
    return row


def _complete_reasoning(rows: list[dict[str, Any]]) -> None:
    """Add an empty reasoning field to calls since the last prompt that lack one.

    Once one of them has the field, DeepSeek rejects the others without it:
    https://api-docs.deepseek.com/guides/thinking_mode#tool-calls.
    """
    fields = {name for row in rows for name in REASONING_FIELDS if name in row}
    if len(fields) != 1:
        return
    (field,) = fields
    for row in reversed(rows):
        if row["role"] == "user":
            return
        if row.get("tool_calls"):
            row.setdefault(field, "")


# -- errors -------------------------------------------------------------------------------------

_MAX_QUOTED_BODY = 500
"""Characters to quote from a non-JSON body, such as a proxy's page, in an error message."""
_QUOTA_CODES = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
}
"""Sent with status 429, like a rate limit: https://platform.openai.com/docs/guides/error-codes."""
_CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error"}
"""Codes of OpenAI and llama.cpp."""
_CONTEXT_WORDS = (
    "maximum context length",
    "reduce the length of the messages",
    "available context size",
    "greater than the context length",
)
"""Messages of vLLM, Groq, llama.cpp and LM Studio, which send no code."""
_STATUS_OF_CODE = {
    "rate_limit_exceeded": 429,
    "rate_limit_error": 429,
    "too_many_requests": 429,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "model_not_found": 404,
    "invalid_request_error": 400,
    "service_unavailable": 503,
    "overloaded": 503,
    "server_error": 500,
    **dict.fromkeys(_QUOTA_CODES, 429),
    **dict.fromkeys(_CONTEXT_CODES, 400),
}
"""Status for an error inside a stream that started with status 200."""

Category: TypeAlias = type[
    failures.ModelRateLimitError
    | failures.ModelQuotaExceededError
    | failures.ModelUnavailableError
    | failures.ModelServerError
    | failures.ModelRequestRejectedError
]

_CATEGORY_OF_STATUS: dict[int, Category] = {
    400: failures.ModelRequestRejectedError,
    401: failures.ModelAuthenticationError,
    402: failures.ModelQuotaExceededError,
    403: failures.ModelAuthenticationError,
    404: failures.ModelNotFoundError,
    413: failures.ModelRequestRejectedError,
    422: failures.ModelRequestRejectedError,
    429: failures.ModelRateLimitError,
    503: failures.ModelUnavailableError,
    529: failures.ModelOverloadedError,
}


def build_status_error(model: str, status: int, body: str, headers: Mapping[str, str]) -> failures.ModelHTTPError:
    """Build the exception for a response with an error status."""
    value = parse_body(body)
    if status < 400:
        value = f"it has moved to {headers.get('location', 'somewhere else')}: give that address"
    return _build_http_error(model, status, value, headers=headers)


def build_stream_error(model: str, error: object) -> failures.ModelAPIError:
    """Build the exception for an error object in a stream that started with status 200."""
    body: object = {"error": error}
    code, kind = _find_codes(body)
    status = next((_STATUS_OF_CODE[name] for name in (code, kind) if name in _STATUS_OF_CODE), None)
    if status is None and code is not None and code.isdigit() and 400 <= int(code) < 600:
        status = int(code)  # OpenRouter and llama.cpp send the status as the code
    if status is None:
        return failures.ModelAPIError(model, find_message(body) or str(error), body=body, in_stream=True)
    return _build_http_error(model, status, body, in_stream=True)


def _build_http_error(
    model: str, status: int, body: object, *, headers: Mapping[str, str] | None = None, in_stream: bool = False
) -> failures.ModelHTTPError:
    code, kind = _find_codes(body)
    return failures.ModelHTTPError.for_category(
        _find_category(status, code, kind, find_message(body)),
        status_code=status,
        model_name=model,
        body=body,
        headers=headers,
        provider_error_code=code,
        provider_error_type=kind,
        in_stream=in_stream,
    )


def build_connection_error(model: str, error: FetchError) -> failures.ModelConnectionError:
    """Build the exception for a failed or lost connection."""
    cause = error.__cause__
    match error.facts.get("reason"):
        case "connect":
            return failures.ModelTimeoutError(model, "it does not accept the connection in time")
        case "silence":
            return failures.ModelTimeoutError(model, "it does not answer in time")
        case "refused" | "tls" | "unreachable":
            reason = str(cause) or "no connection"
            return failures.ModelConnectionError(model, f"can't connect: {reason}")
        case _:
            reason = str(error) if cause is None else str(cause) or type(cause).__name__
            return failures.ModelConnectionError(model, f"the connection broke: {reason}")


def parse_body(body: str) -> object:
    """Parse an error body. Invalid JSON becomes shortened text."""
    try:
        return json.loads(body)
    except ValueError:
        text = " ".join(body.split())
        return text if len(text) <= _MAX_QUOTED_BODY else text[:_MAX_QUOTED_BODY] + "…"


def _find_error(body: object) -> object:
    return body.get("error", body) if is_json_object(body) else body


def _find_codes(body: object) -> tuple[str | None, str | None]:
    """Return the code and type of an error body."""
    error = _find_error(body)
    if not is_json_object(error):
        return None, None
    code, kind = error.get("code"), error.get("type")
    return (str(code) if isinstance(code, str | int) else None, kind if isinstance(kind, str) else None)


def find_message(body: object) -> str:
    """Return the message of an error body, or an empty string."""
    error = _find_error(body)
    message = error.get("message") if is_json_object(error) else error
    return message if isinstance(message, str) else ""


def _find_category(status: int, code: str | None, kind: str | None, message: str) -> Category | None:
    codes, words = {code, kind}, message.lower()
    if codes & _QUOTA_CODES:
        return failures.ModelQuotaExceededError
    if codes & _CONTEXT_CODES or any(phrase in words for phrase in _CONTEXT_WORDS):
        return failures.ModelContextWindowExceededError
    if code == "model_not_found":
        return failures.ModelNotFoundError
    if code == "invalid_api_key":
        return failures.ModelAuthenticationError
    if status >= 500:
        return _CATEGORY_OF_STATUS.get(status, failures.ModelServerError)
    return _CATEGORY_OF_STATUS.get(status)
