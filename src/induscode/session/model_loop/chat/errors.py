"""Errors of a Chat Completions server as the model loop's exceptions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, TypeAlias

import httpx2
from pydantic_ai import exceptions as failures

from indusagi.core.json import is_json_object

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST_BODY = 500
"""Characters of a body that is not JSON (a page of a proxy, say) that an error repeats."""

_QUOTA_CODES = {
    "insufficient_quota",
    "billing_hard_limit_reached",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
}
"""https://platform.openai.com/docs/guides/error-codes: sent with 429, as a rate limit is."""
_CONTEXT_CODES = {"context_length_exceeded", "exceed_context_size_error"}
"""Of OpenAI, and of llama.cpp."""
_CONTEXT_WORDS = (
    "maximum context length",
    "reduce the length of the messages",
    "available context size",
    "greater than the context length",
)
"""What vLLM, Groq, llama.cpp and LM Studio write where they send no code of their own."""
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
"""The status of an error that comes without one, inside a stream that began with 200."""

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


def make_status_error(model: str, status: int, body: str, headers: Mapping[str, str]) -> failures.ModelHTTPError:
    """Make the exception for an answer with an error status."""
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


def make_stream_error(model: str, error: object) -> failures.ModelAPIError:
    """Make the exception for an error object in a stream that began well."""
    body: object = {"error": error}
    code, kind = _find_codes(body)
    status = next((_STATUS_OF_CODE[one] for one in (code, kind) if one in _STATUS_OF_CODE), None)
    if status is None and code is not None and code.isdigit() and 400 <= int(code) < 600:
        status = int(code)  # OpenRouter and llama.cpp give the status as the code
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


def make_connection_error(model: str, error: httpx2.RequestError) -> failures.ModelConnectionError:
    """Make the exception for a server that is not reached, or that leaves before the end."""
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
    """Parse the body of an error; one that is not JSON is given as a short text."""
    try:
        return json.loads(body)
    except ValueError:
        text = " ".join(body.split())
        return text if len(text) <= _LONGEST_BODY else text[:_LONGEST_BODY] + "…"


def _find_error(body: object) -> object:
    return body.get("error", body) if is_json_object(body) else body


def _find_codes(body: object) -> tuple[str | None, str | None]:
    """Find the code and the type of an error, where its server sends them."""
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
    if codes & _CONTEXT_CODES or any(one in words for one in _CONTEXT_WORDS):
        return failures.ModelContextWindowExceededError
    if code == "model_not_found":
        return failures.ModelNotFoundError
    if code == "invalid_api_key":
        return failures.ModelAuthenticationError
    if status >= 500:
        return _CATEGORY_OF_STATUS.get(status, failures.ModelServerError)
    return _CATEGORY_OF_STATUS.get(status)
