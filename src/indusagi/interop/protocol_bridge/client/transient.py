"""Decides which failures are transient.

One table for everything that retries: subscriptions, task polls, lists, restarts. An answer from the server is final; a
failure on the way to it, or an answer that says "later", isn't.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from indusagi.core.backoff import TRANSIENT_STATUSES
from indusagi.interop.protocol_bridge.contract import FaultDetail, FaultReason, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.connection import RequestTimeoutError, RpcError

if TYPE_CHECKING:
    from collections.abc import Mapping

Recovery: TypeAlias = Literal["wait", "reconnect", "user"]
"""The remedy: time, a new connection or process, or a change by the user."""

RECOVERIES: Mapping[FaultReason, Recovery] = {
    "auth": "user",
    "cancelled": "reconnect",
    "closed": "wait",
    "exited": "reconnect",
    "frame_too_large": "reconnect",
    "malformed": "user",
    "moved": "wait",
    "node_changed": "wait",
    "not_found": "user",
    "outcome_unknown": "wait",
    "rate_limited": "wait",
    "redirect": "user",
    "refused": "wait",
    "sign_in": "user",
    "untrusted": "user",
    "upstream": "wait",
    "version": "user",
}


def is_transient(exc: BaseException) -> bool:
    """Return whether the same request may succeed later, over the same connection."""
    if isinstance(exc, (TimeoutError, RequestTimeoutError)) or (
        isinstance(exc, ProtocolFault) and exc.kind == "timeout"
    ):
        return True
    detail = _get_detail(exc)
    return detail is not None and is_passing(detail)


def is_passing(detail: FaultDetail) -> bool:
    """Return whether a failure is transient, from its details."""
    if detail.reason == "refused" and detail.http_status is not None:
        return detail.http_status in TRANSIENT_STATUSES
    is_expected = detail.reason is not None and RECOVERIES[detail.reason] == "wait"
    return is_expected or detail.http_status in TRANSIENT_STATUSES


def get_retry_after(exc: BaseException) -> float | None:
    """Return the server's `Retry-After` in seconds, if any."""
    detail = _get_detail(exc)
    return None if detail is None else detail.retry_after_s


def _get_detail(exc: BaseException) -> FaultDetail | None:
    return exc.detail if isinstance(exc, (RpcError, ProtocolFault)) else None
