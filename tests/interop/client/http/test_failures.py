"""What a failed HTTP request is called: every kind of status, header and network error."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any

import httpcore2
import httpx2
import pytest
from tests.support.networks import make_answer, to_fetch_error

from indusagi.core.time import SystemClock
from indusagi.interop.auth.contract import AuthFault, SignInRequired
from indusagi.interop.protocol_bridge.client.http.failures import (
    EVENTS,
    JSON,
    HttpRequestError,
    build_redirect_error,
    check_content_type,
    classify_auth_fault,
    classify_network_error,
    classify_status,
    find_rpc_error,
)
from indusagi.net.address import parse_url
from indusagi.net.client import get_media_type


def show(failure: Any) -> tuple[Any, ...]:
    """Show everything that a failure says."""
    detail = failure.detail
    return failure.message, detail.reason, detail.http_status, detail.retry_after_s


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [
        (400, {}, ("refused the request (HTTP 400)", "refused", 400, None)),
        (400, {"retry-after": "7"}, ("refused the request (HTTP 400)", "refused", 400, 7.0)),
        (401, {}, ("did not accept our credentials (HTTP 401)", "auth", 401, None)),
        (
            401,
            {"www-authenticate": 'Bearer realm="x"', "retry-after": "7"},
            ("did not accept our credentials (HTTP 401, it wants Bearer)", "auth", 401, None),
        ),
        (403, {"www-authenticate": "B§"}, ("did not accept our credentials (HTTP 403)", "auth", 403, None)),
        (407, {}, ("did not accept our credentials (HTTP 407)", "auth", 407, None)),
        (404, {}, ("is not there (HTTP 404)", "not_found", 404, None)),
        (410, {}, ("is not there (HTTP 410)", "not_found", 410, None)),
        (429, {}, ("is asked too often (HTTP 429)", "rate_limited", 429, None)),
        (429, {"retry-after": " 5 "}, ("is asked too often (HTTP 429; again in 5 s)", "rate_limited", 429, 5.0)),
        (429, {"retry-after": "soon"}, ("is asked too often (HTTP 429)", "rate_limited", 429, None)),
        (429, {"retry-after": "²"}, ("is asked too often (HTTP 429)", "rate_limited", 429, None)),
        (499, {}, ("refused the request (HTTP 499)", "refused", 499, None)),
        (500, {}, ("failed (HTTP 500)", "upstream", 500, None)),
        (503, {"retry-after": "99999"}, ("failed (HTTP 503)", "upstream", 503, 3600.0)),
        (503, {"retry-after": "9" * 400}, ("failed (HTTP 503)", "upstream", 503, 3600.0)),
        (503, {"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, ("failed (HTTP 503)", "upstream", 503, 0.0)),
        (503, {"retry-after": "Wed, 21 Oct 9999 07:28:00 GMT"}, ("failed (HTTP 503)", "upstream", 503, 3600.0)),
    ],
)
def test_a_status_is_a_reason_and_a_sentence(status: int, headers: dict[str, str], expected: Any) -> None:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    assert show(classify_status(make_answer(httpx2.Response(status, headers=raw)))) == expected


def test_a_date_to_come_back_at_becomes_seconds() -> None:
    later = formatdate(SystemClock().now_ms() / 1000 + 600, usegmt=True)
    failure = classify_status(make_answer(httpx2.Response(503, headers={"retry-after": later})))
    assert 0 < (failure.detail.retry_after_s or 0) <= 600


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("407 no", ("could not be reached: the proxy P did not accept our credentials (HTTP 407)", "auth", None, None)),
        ("502 Bad", ("could not be reached: the proxy P answered HTTP 502", "upstream", None, None)),
        ("403", ("could not be reached: the proxy P answered HTTP 403", "refused", None, None)),
        ("5", ("could not be reached: the proxy P answered nothing that makes sense", "upstream", None, None)),
        ("hm 500", ("could not be reached: the proxy P answered nothing that makes sense", "refused", None, None)),
    ],
)
def test_the_status_of_a_proxy_is_not_the_servers(text: str, expected: Any) -> None:
    assert show(classify_network_error(to_fetch_error(httpcore2.ProxyError(text)), "P")) == expected


def test_a_proxy_that_wants_credentials_is_told_apart_from_a_server_that_does() -> None:
    response = make_answer(httpx2.Response(407))
    assert "the proxy P did not accept" in classify_status(response, "P").message
    assert classify_status(response).detail.http_status == 407
    assert classify_status(make_answer(httpx2.Response(401)), "P").detail.http_status == 401


@pytest.mark.parametrize(
    ("error", "via", "expected"),
    [
        (TimeoutError(), None, ("did not answer in time", "closed", None, None)),
        (httpcore2.ConnectError("no route"), None, ("could not be reached: no route", "refused", None, None)),
        (
            httpcore2.ConnectTimeout(""),
            "P",
            ("could not be reached through the proxy P: the connection was not made in time", "refused", None, None),
        ),
        (
            httpcore2.LocalProtocolError("secret"),
            None,
            ("cannot be asked: a header or the url is no valid HTTP", "malformed", None, None),
        ),
        (httpcore2.ReadError("x"), None, ("closed the connection before it answered", "closed", None, None)),
    ],
)
def test_an_error_of_the_network_is_a_reason_and_a_sentence(error: Any, via: str | None, expected: Any) -> None:
    assert show(classify_network_error(to_fetch_error(error), via)) == expected


def test_a_failed_sign_in_is_temporary_or_not() -> None:
    assert show(classify_auth_fault(AuthFault("it is down", is_transient=True))) == (
        "could not be signed in to: it is down", "upstream", 401, None,
    )  # fmt: skip
    assert classify_auth_fault(AuthFault("no")).detail.reason == "auth"
    assert show(classify_auth_fault(SignInRequired("s", "wants you"))) == (
        "wants you: indus mcp login s", "sign_in", 401, None,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["application/json", " Text/Event-Stream ; charset=utf-8"])
def test_an_expected_type_of_a_body_is_returned(kind: str) -> None:
    response = make_answer(httpx2.Response(200, headers={"content-type": kind}))
    assert check_content_type(response, JSON, EVENTS) == get_media_type(response.headers)


@pytest.mark.parametrize(
    ("expected", "status", "headers", "message"),
    [
        (
            [EVENTS],
            200,
            {"content-type": JSON},
            "answered with application/json, not with text/event-stream (HTTP 200)",
        ),
        ([EVENTS, JSON], 202, {}, "answered with nothing, not with application/json or text/event-stream (HTTP 202)"),
    ],
)
def test_another_type_of_a_body_is_a_failure(expected: list[str], status: int, headers: Any, message: str) -> None:
    with pytest.raises(HttpRequestError) as caught:
        check_content_type(make_answer(httpx2.Response(status, headers=headers)), *expected)
    assert show(caught.value) == (message, "malformed", status, None)


@pytest.mark.parametrize("url", ["https://host/mcp", "https://host:81/mcp?token=x"])
def test_a_redirect_is_named_by_its_origin(url: str) -> None:
    origin = url.partition("/mcp")[0]
    message = f"redirects to {origin}, which is not followed: if that is right, use it"
    assert show(build_redirect_error(parse_url(url), 307)) == (message, "redirect", 307, None)


def test_the_type_of_a_body_has_no_parameters() -> None:
    assert get_media_type({"content-type": "A/B ;c=d"}) == "a/b"
    assert get_media_type({}) == ""


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"jsonrpc":"2.0","error":{"code":1,"message":"m"}}', True),
        (b'{"jsonrpc":"1.0","error":{"code":1,"message":"m"}}', False),
        (b'{"error":{"code":1,"message":"m"}}', False),
        (b'{"jsonrpc":"2.0","error":{"code":"1","message":"m"}}', False),
        (b'{"jsonrpc":"2.0","error":{"code":1}}', False),
        (b'{"jsonrpc":"2.0","error":{"code":1,"message":"m","message":"n"}}', False),
        (b'{"jsonrpc":"2.0","error":"m"}', False),
        (b'{"jsonrpc":"2.0","result":{}}', False),
        (b"[]", False),
        (b"{", False),
        (b"\xff", False),
        (b"[" * 100_000, False),
    ],
)
def test_an_error_of_json_rpc_is_recognized_by_all_its_fields(body: bytes, *, expected: bool) -> None:
    assert (find_rpc_error(body) is not None) is expected
