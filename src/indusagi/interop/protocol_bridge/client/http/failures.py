"""Failures of HTTP requests, as messages and fault details."""

from __future__ import annotations

import json
import re
from http import HTTPStatus

from indusagi.core.json import JsonObject, build_object, is_json_object
from indusagi.core.tasks import parse_retry_after
from indusagi.interop.auth.contract import AuthFault, SignInRequired
from indusagi.interop.protocol_bridge.contract import FaultDetail, FaultReason
from indusagi.net.address import FetchError, WebUrl
from indusagi.net.client import get_media_type
from indusagi.net.dial import HttpAnswer

JSON = "application/json"
EVENTS = "text/event-stream"


class HttpRequestError(Exception):
    """A request that failed in transit, or that the server refused.

    Args:
        message: Continues a sentence that starts with "it"; empty if the server's own message is better.
        detail: The details of the fault.
        error: The JSON-RPC error in the server's response, if any.
    """

    def __init__(self, message: str, detail: FaultDetail, error: JsonObject | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail
        self.error = error

    def describe(self) -> str:
        """Return what happened as a sentence: ours, or the server's if it says more."""
        theirs = (self.error or {}).get("message")
        return f"it {self.message}" if self.message or theirs is None else str(theirs)


def build_error(
    message: str, reason: FaultReason | None, http_status: int | None = None, retry_after_s: float | None = None
) -> HttpRequestError:
    """Build an error with its detail."""
    detail = FaultDetail(reason=reason, http_status=http_status, retry_after_s=retry_after_s)
    return HttpRequestError(message, detail)


def build_incomplete_error() -> HttpRequestError:
    """Build the error for a response that ended too early."""
    return build_error("ended its answer before it was complete", "closed")


def build_redirect_error(target: WebUrl, http_status: int | None = None) -> HttpRequestError:
    """Build the error for a request that would leave the configured origin."""
    message = f"redirects to {target.origin}, which is not followed: if that is right, use it"
    return build_error(message, "redirect", http_status)


def check_content_type(answer: HttpAnswer, *expected: str) -> str:
    """Return a body's media type. Raises `HttpRequestError` if it isn't one of the expected ones."""
    content_type = get_media_type(answer.headers)
    if content_type in expected:
        return content_type
    status, shown = answer.status, content_type[:80] or "nothing"
    message = f"answered with {shown}, not with {' or '.join(sorted(expected))} (HTTP {status})"
    raise build_error(message, "malformed", status)


def classify_network_error(exc: FetchError | TimeoutError, via: str | None = None) -> HttpRequestError:
    """Turn a network error into an error; `via` is the origin of the proxy, if any."""
    reason = exc.facts.get("reason") if isinstance(exc, FetchError) else "total"
    match reason:
        case "total":
            return build_error("did not answer in time", "closed")
        case "proxy":
            return _classify_proxy_status(str(exc.__cause__), via)
        case "connect" | "refused" | "tls" | "unreachable":
            why = str(exc.__cause__) or "the connection was not made in time"
            through = "" if via is None else f" through the proxy {via}"
            return build_error(f"could not be reached{through}: {why}", "refused")
        case "request":
            # The error's text repeats the invalid header, which may be a secret.
            return build_error("cannot be asked: a header or the url is no valid HTTP", "malformed")
        case _:
            return build_error("closed the connection before it answered", "closed")


def classify_auth_fault(fault: AuthFault) -> HttpRequestError:
    """Turn a failed sign-in into an error."""
    if isinstance(fault, SignInRequired):
        return build_error(fault.problem, "sign_in", HTTPStatus.UNAUTHORIZED)
    reason = "upstream" if fault.is_transient else "auth"
    return build_error(f"could not be signed in to: {fault}", reason, HTTPStatus.UNAUTHORIZED)


def _classify_proxy_status(text: str, via: str | None) -> HttpRequestError:
    """Turn a proxy's refusal into an error; the status isn't the server's."""
    status = text.partition(" ")[0]
    shown = f"HTTP {status}" if re.fullmatch(r"[1-9]\d\d", status) else "nothing that makes sense"
    if status == str(int(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)):
        return build_error(f"could not be reached: the proxy {via} did not accept our credentials ({shown})", "auth")
    reason = "upstream" if status.startswith("5") else "refused"
    return build_error(f"could not be reached: the proxy {via} answered {shown}", reason)


def classify_status(answer: HttpAnswer, via: str | None = None) -> HttpRequestError:
    """Turn a status of 400 and above into an error (RFC 9110 §15.5, §15.6)."""
    status = answer.status
    shown = f"HTTP {status}"
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and via is not None:
        return _classify_proxy_status(str(status), via)
    if status in {401, 403, 407}:
        scheme = answer.headers.get("www-authenticate", "").partition(" ")[0]
        wants = f", it wants {scheme}" if re.fullmatch(r"[A-Za-z0-9-]{1,20}", scheme) else ""
        return build_error(f"did not accept our credentials ({shown}{wants})", "auth", status)
    retry_after_s = parse_retry_after(answer.headers.get("retry-after", ""))
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        later = "" if retry_after_s is None else f"; again in {retry_after_s:g} s"
        return build_error(f"is asked too often ({shown}{later})", "rate_limited", status, retry_after_s)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return build_error(f"failed ({shown})", "upstream", status, retry_after_s)
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
        return build_error(f"is not there ({shown})", "not_found", status)
    return build_error(f"refused the request ({shown})", "refused", status, retry_after_s)


def find_rpc_error(body: bytes) -> JsonObject | None:
    """Return the error in a body that is a JSON-RPC error response."""
    try:
        message: object = json.loads(body, object_pairs_hook=build_object)
    except (ValueError, RecursionError):
        return None
    if not is_json_object(message) or not is_json_object(error := message.get("error")):
        return None
    is_valid = isinstance(error.get("code"), int) and isinstance(error.get("message"), str)
    return error if is_valid and message.get("jsonrpc") == "2.0" else None
