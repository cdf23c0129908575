"""What went wrong, told by where it happened: any exception → one `ProtocolFault`."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from typing import TypeGuard, cast

from indusagi.core.faults import describe_error
from indusagi.core.text import clean_text, cut_text
from indusagi.interop.protocol_bridge.client.start.causes import find_cause
from indusagi.interop.protocol_bridge.client.start.watch import StartedProcess, StartTimeout
from indusagi.interop.protocol_bridge.contract import FaultDetail, FaultKind, ProtocolFault, ServerConfig
from indusagi.interop.protocol_bridge.rpc.connection import (
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
)
from indusagi.interop.protocol_bridge.rpc.errors import VersionMismatchError

_SHOWN_CHARACTERS = 2_000
"""How much of a server's own words a message repeats."""


_SHOWN_NOISE = 200


class FaultSite(Enum):
    """Where something went wrong."""

    CONNECT = "connect"
    HELD = "held"
    """Ready, and nobody was asking for anything."""
    LIST = "list"
    CALL = "call"


def to_protocol_fault(
    exc: BaseException,
    config: ServerConfig,
    site: FaultSite,
    *,
    subject: str = "",
    process: StartedProcess | None = None,
) -> ProtocolFault:
    """Make a fault of an exception; one that is a fault already stays what it is.

    What the `process` of the server has written is added where the exception does not tell.
    """
    exc = _innermost(exc)
    if isinstance(exc, ProtocolFault):
        return exc
    detail = replace(_detail(exc), server=config.id)
    if site is FaultSite.CALL and (isinstance(exc, ConnectionClosedError) or detail.reason == "closed"):
        detail = replace(detail, reason="outcome_unknown")
    if process is not None:
        stderr = detail.stderr or tuple(process.read_stderr())
        detail = replace(detail, stderr=stderr, stdout=tuple(process.read_invalid_lines()))
    message = f"server {config.id!r}: {_said(exc, config, site, subject)}"
    message += _in_doubt(detail) + _quote_stderr(detail)
    if site in {FaultSite.CONNECT, FaultSite.LIST} and not _is_refusal(exc):
        message += _quote_noise(detail)
    return ProtocolFault(_kind(exc, config, site), message, exc, detail=detail)


def _innermost(exc: BaseException) -> BaseException:
    while isinstance(exc, BaseExceptionGroup):
        exc = cast("BaseExceptionGroup[BaseException]", exc).exceptions[0]
    return exc


def _kind(exc: BaseException, config: ServerConfig, site: FaultSite) -> FaultKind:
    if isinstance(exc, (TimeoutError, RequestTimeoutError)):
        return "timeout"
    made_by_link = exc.detail.reason if isinstance(exc, RpcError) and exc.detail else None
    if isinstance(exc, (VersionMismatchError, InvalidResponseError)) or made_by_link == "malformed":
        return "protocol"
    if site is FaultSite.CONNECT:
        return "spawn_failed" if config.kind == "stdio" else "transport"
    if isinstance(exc, RpcError) and made_by_link is None:
        return "protocol" if site is FaultSite.LIST else "tool_error"
    return "transport"


def _detail(exc: BaseException) -> FaultDetail:
    if isinstance(exc, ConnectionClosedError):
        return exc.end.detail
    if isinstance(exc, VersionMismatchError):
        return FaultDetail(reason="version")
    if isinstance(exc, InvalidResponseError):
        return FaultDetail(reason="malformed")
    if isinstance(exc, RpcError):
        # With a reason it was the link that failed the request, and the code says nothing.
        known = exc.detail or FaultDetail()
        return known if known.reason else replace(known, rpc_code=exc.code)
    return FaultDetail()


def _said(exc: BaseException, config: ServerConfig, site: FaultSite, subject: str) -> str:
    what = {
        FaultSite.CONNECT: "the connection could not be made",
        FaultSite.HELD: "the connection was lost",
        FaultSite.LIST: "its tools could not be listed",
        FaultSite.CALL: f"the call of {subject!r} failed",
    }[site]
    if isinstance(exc, ConnectionClosedError):
        return f"{what}: it {_end_of(exc)}"
    if isinstance(exc, TimeoutError) and not isinstance(exc, StartTimeout):
        return f"{what}: no answer within {config.limits.start_s:g} s"
    if _is_refusal(exc) and site in {FaultSite.CONNECT, FaultSite.LIST}:
        return f"{what}: {_quote_refusal(exc)}"
    if isinstance(exc, RpcError) and not exc.message.strip():
        return f"{what}: it answered with the error {exc.code} and no message"
    said = clean_text(describe_error(exc))[0].strip()
    # What is left of a message of unseen characters alone is nothing.
    return f"{what}: {cut_text(said or type(exc).__name__, _SHOWN_CHARACTERS)}"


def _end_of(exc: ConnectionClosedError) -> str:
    """Say why a connection ended; a link may know no more than a status or a reason."""
    message, detail = exc.end.message.strip(), exc.end.detail
    if message:
        return message
    if detail.http_status is not None:
        return f"refused the request (HTTP {detail.http_status})"
    return "closed the connection" + (f" ({detail.reason})" if detail.reason else "")


def _in_doubt(detail: FaultDetail) -> str:
    unknown = detail.reason == "outcome_unknown"
    return "; whether the call took effect is unknown" if unknown else ""


def _is_refusal(exc: BaseException) -> TypeGuard[RpcError]:
    """Tell whether the server itself answered with an error, and not the link for it."""
    return isinstance(exc, RpcError) and (exc.detail is None or exc.detail.reason is None)


def _quote_refusal(exc: RpcError) -> str:
    """Repeat the error of a server: its message, its code, and what it adds in words.

    JSON-RPC 2.0, section 5.1: `data` is additional information, of any type.
    """
    said = clean_text(exc.message)[0].strip() or "an error without a message"
    data = exc.data
    if isinstance(data, dict):
        data = data.get("message") or data.get("details") or data.get("error")
    more = clean_text(data)[0].strip() if isinstance(data, str) else ""
    if more and more not in said:
        said = f"{said}: {more}"
    return f"it answered with an error: {cut_text(said, _SHOWN_CHARACTERS)} (code {exc.code})"


def _quote_stderr(detail: FaultDetail) -> str:
    """Repeat the line of its standard error that tells why."""
    cause = find_cause(detail.stderr)
    return f" (its stderr: {cause})" if cause else ""


def _quote_noise(detail: FaultDetail) -> str:
    """Show what it wrote to its standard output instead of protocol messages."""
    lines = [clean_text(line)[0].strip() for line in detail.stdout]
    said = next((line for line in lines if line), None)
    if said is None:
        return ""
    shown = cut_text(said, _SHOWN_NOISE)
    return f"; its standard output is not MCP: it wrote {shown!r}, which belongs on standard error"
