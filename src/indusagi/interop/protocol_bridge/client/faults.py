"""Turns any exception into a `ProtocolFault`, with a message that fits the place where it was raised."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TypeGuard, cast

from indusagi.core.faults import describe_error
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.client.stdio import StartTimeout, StdioTransport
from indusagi.interop.protocol_bridge.contract import FaultDetail, FaultKind, ProtocolFault, ServerConfig
from indusagi.interop.protocol_bridge.redaction import Redaction
from indusagi.interop.protocol_bridge.rpc.connection import (
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
    VersionMismatchError,
)

_MAX_QUOTE_CHARS = 2_000
"""How much of a server's text a message quotes."""
_MAX_LINE_CHARS = 200


class FaultSite(Enum):
    """Where an exception was raised."""

    CONNECT = "connect"
    HELD = "held"
    """Ready, between two requests."""
    LIST = "list"
    CALL = "call"


def to_protocol_fault(
    exc: BaseException,
    config: ServerConfig,
    site: FaultSite,
    *,
    subject: str = "",
    process: StdioTransport | None = None,
) -> ProtocolFault:
    """Turn an exception into a fault without the server's secrets; a `ProtocolFault` stays unchanged.

    The `process` output is added if the exception has none. `subject` is the tool or method.
    """
    while isinstance(exc, BaseExceptionGroup):
        exc = cast("BaseExceptionGroup[BaseException]", exc).exceptions[0]
    if isinstance(exc, ProtocolFault):
        return exc
    kind, known = _classify(exc, config, site)
    detail = replace(known, server=config.id)
    is_cut = isinstance(exc, ConnectionClosedError) or detail.reason == "closed"
    # The owner of a moving server has answered every call that ran, so this one hasn't run.
    if site is FaultSite.CALL and is_cut and detail.reason != "moved":
        detail = replace(detail, reason="outcome_unknown")
    redaction = Redaction((config,))
    if process is not None:
        stderr = detail.stderr or tuple(process.read_stderr())
        detail = replace(detail, stderr=stderr, stdout=tuple(process.read_invalid_lines()))
    # Everything downstream shows, logs or stores these lines.
    stderr, stdout = redaction.hide_lines(detail.stderr), redaction.hide_lines(detail.stdout)
    detail = replace(detail, stderr=stderr, stdout=stdout)
    message = f"server {config.id!r}: {_format_error(exc, config, site, subject)}"
    if detail.reason == "outcome_unknown":
        message += "; whether the call took effect is unknown"
    written = [text for line in detail.stdout if (text := clean_text(line)[0].strip())]
    if written and site in {FaultSite.CONNECT, FaultSite.LIST} and not _is_refusal(exc):
        shown = cut_text(written[0], _MAX_LINE_CHARS)
        message += f"; its standard output is not MCP: it wrote {shown!r}, which belongs on standard error"
    from indusagi.interop.protocol_bridge.client.causes import find_cause  # noqa: PLC0415 — its patterns compile on a fault only

    if cause := find_cause(detail.stderr):
        message += f". Last output: {cause}"
    return ProtocolFault(kind, redaction.hide(message), exc, detail=detail)


def _classify(exc: BaseException, config: ServerConfig, site: FaultSite) -> tuple[FaultKind, FaultDetail]:
    """Return the kind of the fault, and the exception's own details."""
    if isinstance(exc, (TimeoutError, RequestTimeoutError)):
        return "timeout", FaultDetail()
    if isinstance(exc, (VersionMismatchError, InvalidResponseError)):
        return "protocol", FaultDetail(reason="version" if isinstance(exc, VersionMismatchError) else "malformed")
    detail = exc.end.detail if isinstance(exc, ConnectionClosedError) else FaultDetail()
    if isinstance(exc, RpcError):
        # With a reason, the transport failed the request and the code is meaningless.
        detail = exc.detail or FaultDetail()
        detail = detail if detail.reason else replace(detail, rpc_code=exc.code)
        if detail.reason == "malformed":
            return "protocol", detail
    if site is FaultSite.CONNECT:
        return "spawn_failed" if config.kind == "stdio" else "transport", detail
    if _is_refusal(exc):
        return "protocol" if site is FaultSite.LIST else "tool_error", detail
    return "transport", detail


def _format_error(exc: BaseException, config: ServerConfig, site: FaultSite, subject: str) -> str:
    what = {
        FaultSite.CONNECT: "failed",
        FaultSite.HELD: "the connection was lost",
        FaultSite.LIST: "its tools could not be listed",
        FaultSite.CALL: f"the call of {subject!r} failed",
    }[site]
    if isinstance(exc, ConnectionClosedError):
        # Some transports only know a status or a reason.
        text, detail = exc.end.message.strip(), exc.end.detail
        if not text and detail.http_status is not None:
            text = f"refused the request (HTTP {detail.http_status})"
        elif not text:
            text = "closed the connection" + (f" ({detail.reason})" if detail.reason else "")
        return f"{what}: {text}" if site is FaultSite.CONNECT else f"{what}: it {text}"
    if isinstance(exc, TimeoutError) and not isinstance(exc, StartTimeout):
        return f"{what}: no answer within {config.limits.start_s:g} s"
    if _is_refusal(exc) and site in {FaultSite.CONNECT, FaultSite.LIST}:
        # `data` has additional information of any type: https://www.jsonrpc.org/specification#error_object.
        data = exc.data
        if isinstance(data, dict):
            data = data.get("message") or data.get("details") or data.get("error")
        text = clean_text(exc.message)[0].strip() or "an error without a message"
        more = clean_text(data)[0].strip() if isinstance(data, str) else ""
        if more and more not in text:
            text = f"{text}: {more}"
        return f"{what}: it answered with an error: {cut_text(text, _MAX_QUOTE_CHARS)} (code {exc.code})"
    if isinstance(exc, RpcError) and not exc.message.strip():
        return f"{what}: it answered with the error {exc.code} and no message"
    # A message of invisible characters becomes empty when cleaned.
    text = clean_text(describe_error(exc))[0].strip() or type(exc).__name__
    if isinstance(exc, RpcError) and exc.detail is not None and exc.detail.reason == "sign_in":
        return text  # tells the user what to do, regardless of the attempted action
    return f"{what}: {cut_text(text, _MAX_QUOTE_CHARS)}"


def _is_refusal(exc: BaseException) -> TypeGuard[RpcError]:
    """Return whether the server itself, not the transport, responded with an error."""
    return isinstance(exc, RpcError) and (exc.detail is None or exc.detail.reason is None)
