"""Errors of a Chat Completions server as exceptions of pydantic-ai."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

import httpx2
from pydantic_ai import exceptions as failures

from indusagi.core.json import is_json_object

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_BODY = 500
"""Characters of a non-JSON body, such as a proxy's page, that an error message quotes."""

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
"""Status for an error inside a stream that began with status 200."""

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
    code, kind = _find_codes(value)
    return failures.ModelHTTPError.for_category(
        _find_category(status, code, kind, _find_message(value)),
        status_code=status,
        model_name=model,
        body=value,
        headers=headers,
        provider_error_code=code,
        provider_error_type=kind,
    )


def build_stream_error(model: str, error: object) -> failures.ModelAPIError:
    """Build the exception for an error object in a stream that began with status 200."""
    body: object = {"error": error}
    code, kind = _find_codes(body)
    status = next((_STATUS_OF_CODE[name] for name in (code, kind) if name in _STATUS_OF_CODE), None)
    if status is None and code is not None and code.isdigit() and 400 <= int(code) < 600:
        status = int(code)  # OpenRouter and llama.cpp send the status as the code
    if status is None:
        return failures.ModelAPIError(model, _find_message(body) or str(error), body=body, in_stream=True)
    return failures.ModelHTTPError.for_category(
        _find_category(status, code, kind, _find_message(body)),
        status_code=status,
        model_name=model,
        body=body,
        provider_error_code=code,
        provider_error_type=kind,
        in_stream=True,
    )


def build_connection_error(model: str, error: httpx2.RequestError) -> failures.ModelConnectionError:
    """Build the exception for a failed or lost connection."""
    if isinstance(error, httpx2.ConnectTimeout):
        return failures.ModelTimeoutError(model, "it does not accept the connection in time")
    if isinstance(error, httpx2.TimeoutException):
        return failures.ModelTimeoutError(model, "it does not answer in time")
    if isinstance(error, httpx2.ConnectError):
        reason = str(error) or "no connection"
        return failures.ModelConnectionError(model, f"it cannot be reached: {reason}")
    reason = str(error) or type(error).__name__
    return failures.ModelConnectionError(model, f"the connection broke: {reason}")


def parse_body(body: str) -> object:
    """Parse an error body; invalid JSON is returned as shortened text."""
    try:
        return json.loads(body)
    except ValueError:
        text = " ".join(body.split())
        return text if len(text) <= _LONGEST_BODY else text[:_LONGEST_BODY] + "…"


def _find_error(body: object) -> object:
    return body.get("error", body) if is_json_object(body) else body


def _find_codes(body: object) -> tuple[str | None, str | None]:
    """Find the code and the type in an error body."""
    error = _find_error(body)
    if not is_json_object(error):
        return None, None
    code, kind = error.get("code"), error.get("type")
    return (str(code) if isinstance(code, str | int) else None, kind if isinstance(kind, str) else None)


def _find_message(body: object) -> str:
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
