"""What can befall an HTTP request on its way, in words and as the detail of a fault."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx2

from indusagi.core.clock import SystemClock
from indusagi.core.json import is_json_object
from indusagi.interop.protocol_bridge.contract import FaultDetail

if TYPE_CHECKING:
    from indusagi.interop.protocol_bridge.contract import FaultReason

_LONGEST_WISH_S = 3_600.0
"""Whatever a server says, nobody waits longer than that for it."""
_NOT_REACHED = "could not be reached: the proxy"
_ANSWERS = {"application/json", "text/event-stream"}


@dataclass(frozen=True, slots=True)
class TransportFailure:
    """What befell a request on its way."""

    said: str
    """Goes on after "it"; empty where the server's own words are better."""
    detail: FaultDetail


def build_failure(
    said: str, reason: FaultReason | None, http_status: int | None = None, retry_after_s: float | None = None
) -> TransportFailure:
    """Make a build_failure in few words."""
    detail = FaultDetail(reason=reason, http_status=http_status, retry_after_s=retry_after_s)
    return TransportFailure(said, detail)


def get_origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    """Give what two addresses of one origin have in common."""
    return url.scheme, url.host, url.port


def format_origin(url: httpx2.URL) -> str:
    """Give the part of an address that holds no secret."""
    return f"{url.scheme}://{url.host}" + ("" if url.port is None else f":{url.port}")


def elsewhere(target: httpx2.URL) -> TransportFailure:
    """Say that a server wants us to go where we do not go."""
    said = f"redirects to {format_origin(target)}, which is not followed: if that is right, use it"
    return build_failure(said, "redirect")


def suspicion(request: httpx2.Request, response: httpx2.Response, *, asks: bool) -> TransportFailure | None:
    """Say what will be wrong if this response turns out to be no answer."""
    status = response.status_code
    if response.has_redirect_location:
        target = request.url.join(response.headers["location"])
        if get_origin(target) != get_origin(request.url):
            return build_failure(elsewhere(target).said, "redirect", status)
        return build_failure(f"redirects without end (HTTP {status})", "redirect", status)
    wanted = {"text/event-stream"} if request.method == "GET" else _ANSWERS
    if not asks or content_type(response) in wanted:
        return None
    given = content_type(response)[:80] or "nothing"
    said = f"answered with {given}, not with {' or '.join(sorted(wanted))} (HTTP {status})"
    return build_failure(said, "malformed", status)


def content_type(response: httpx2.Response) -> str:
    """Give the type of a body, without its parameters."""
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


def by_error(exc: httpx2.TransportError, via: str | None = None) -> TransportFailure:
    """Say what an error of the network means, on the way through a proxy if there is one."""
    if isinstance(exc, httpx2.ProxyError):
        return _by_proxy(str(exc), via)
    if isinstance(exc, (httpx2.ConnectError, httpx2.ConnectTimeout)):
        why = str(exc) or "the connection was not made in time"
        through = "" if via is None else f" through the proxy {via}"
        return build_failure(f"could not be reached{through}: {why}", "refused")
    if isinstance(exc, (httpx2.LocalProtocolError, httpx2.UnsupportedProtocol)):
        # Its text repeats the header that is wrong, and headers are nobody's business.
        return build_failure("cannot be asked: a header or the url is no valid HTTP", "malformed")
    return build_failure("closed the connection before it answered", "closed")


def _by_proxy(said: str, via: str | None) -> TransportFailure:
    """Say what a proxy means that does not connect us; its status is not one of the server."""
    status = said.partition(" ")[0]
    shown = f"HTTP {status}" if re.fullmatch(r"[1-9]\d\d", status) else "nothing that makes sense"
    if status == str(int(HTTPStatus.PROXY_AUTHENTICATION_REQUIRED)):
        return build_failure(f"{_NOT_REACHED} {via} did not accept our credentials ({shown})", "auth")
    reason = "upstream" if status.startswith("5") else "refused"
    return build_failure(f"{_NOT_REACHED} {via} answered {shown}", reason)


def by_status(response: httpx2.Response, via: str | None = None) -> TransportFailure:
    """Say what a status of 400 and above means."""
    status = response.status_code
    shown = f"HTTP {status}"
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED and via is not None:
        return _by_proxy(str(status), via)
    if status in {401, 403, 407}:
        scheme = response.headers.get("www-authenticate", "").partition(" ")[0]
        wants = f", it wants {scheme}" if re.fullmatch(r"[A-Za-z0-9-]{1,20}", scheme) else ""
        return build_failure(f"did not accept our credentials ({shown}{wants})", "auth", status)
    retry_after_s = _retry_after(response.headers.get("retry-after", ""))
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        later = "" if retry_after_s is None else f"; again in {retry_after_s:g} s"
        said = f"is asked too often ({shown}{later})"
        return build_failure(said, "rate_limited", status, retry_after_s)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return build_failure(f"failed ({shown})", "upstream", status, retry_after_s)
    if status in {HTTPStatus.NOT_FOUND, HTTPStatus.GONE}:
        return build_failure(f"is not there ({shown})", "not_found", status)
    return build_failure(f"refused the request ({shown})", "refused", status, retry_after_s)


def _retry_after(text: str) -> float | None:
    """Read a Retry-After: seconds, or a date."""
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return min(float(text[:9]), _LONGEST_WISH_S)
    try:
        at_s = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, at_s - SystemClock().now_ms() / 1000), _LONGEST_WISH_S)


def is_rpc_error(body: bytes) -> bool:
    """Tell whether a server explains itself in the terms of the protocol."""
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        return False
    if not is_json_object(found) or not is_json_object(error := found.get("error")):
        return False
    code, message = error.get("code"), error.get("message")
    return found.get("jsonrpc") == "2.0" and isinstance(code, int) and isinstance(message, str)
