"""Each code and word by which providers say what is wrong, for a refused request and inside a stream."""

from __future__ import annotations

import json

import pytest
from pydantic_ai import exceptions as failures

from induscode.conversations.model_loop.chat_messages import build_status_error, build_stream_error

QUOTA = [
    "insufficient_quota",
    "billing_hard_limit_reached",
    "credit_balance_exhausted",
    "organization_spend_limit_exceeded",
    "project_spend_limit_exceeded",
    "organization_usage_limit_exceeded",
]
CONTEXT = ["context_length_exceeded", "exceed_context_size_error"]
STATUS = {
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
    **dict.fromkeys(QUOTA, 429),
    **dict.fromkeys(CONTEXT, 400),
}


@pytest.mark.parametrize("field", ["code", "type"])
@pytest.mark.parametrize(
    ("names", "kind"), [(QUOTA, failures.ModelQuotaExceededError), (CONTEXT, failures.ModelContextWindowExceededError)]
)
def test_codes_say_that_the_quota_or_the_context_is_used_up(
    names: list[str], kind: type[Exception], field: str
) -> None:
    for name in names:
        body = json.dumps({"error": {"message": "no", field: name}})
        assert isinstance(build_status_error("m", 429, body, {}), kind), name


@pytest.mark.parametrize(
    "message",
    [
        "This model's Maximum context length is 9",
        "Please reduce the length of the messages",
        "the request exceeds the available context size",
        "the prompt is greater than the context length",
    ],
)
def test_messages_without_a_code_say_that_the_context_is_used_up(message: str) -> None:
    error = build_status_error("m", 400, json.dumps({"error": {"message": message}}), {})
    assert isinstance(error, failures.ModelContextWindowExceededError)


def test_a_code_inside_a_stream_stands_for_its_status() -> None:
    for name, status in STATUS.items():
        error = build_stream_error("m", {"message": "no", "code": name})
        assert isinstance(error, failures.ModelHTTPError), name
        assert error.status_code == status, name


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (413, failures.ModelRequestRejectedError),
        (422, failures.ModelRequestRejectedError),
        (500, failures.ModelServerError),
        (503, failures.ModelUnavailableError),
        (529, failures.ModelOverloadedError),
    ],
)
def test_a_status_has_its_category(status: int, kind: type[Exception]) -> None:
    assert isinstance(build_status_error("m", status, "no", {}), kind)


@pytest.mark.parametrize(("code", "is_status"), [(399, False), (400, True), (599, True), (600, False)])
def test_a_number_as_code_inside_a_stream_is_a_status_if_it_can_be(code: int, *, is_status: bool) -> None:
    error = build_stream_error("m", {"message": "no", "code": code})
    assert isinstance(error, failures.ModelHTTPError) is is_status
