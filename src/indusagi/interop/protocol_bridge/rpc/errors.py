"""What it means when a server that is met for the first time refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.rpc.connection import RpcError

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue

UNSUPPORTED_VERSION = -32022


class VersionMismatchError(Exception):
    """The server speaks no version that we speak."""


def is_final(exc: BaseException | None) -> bool:
    """Tell whether a question was answered, or no other one would get through either."""
    detail = exc.detail if isinstance(exc, RpcError) else None
    if detail is None:
        return exc is None
    # A refusal with a status may mean this question only; a refused connection means all.
    never_met = detail.reason == "refused" and detail.http_status is None
    return never_met or detail.reason in {"auth", "rate_limited", "redirect"}


def supported(exc: RpcError) -> list[JsonValue]:
    """Give the versions that a refusal names."""
    named = exc.data.get("supported") if isinstance(exc.data, dict) else None
    return named if isinstance(named, list) else []


def names_versions(exc: BaseException | None) -> bool:
    """Tell whether a server that knows the modern protocol said that it speaks another version."""
    return isinstance(exc, VersionMismatchError) or requires_modern(exc)


def requires_modern(exc: BaseException | None) -> bool:
    """Tell whether a server refused since it speaks the modern protocol, and no other any more."""
    return isinstance(exc, RpcError) and exc.code == UNSUPPORTED_VERSION
