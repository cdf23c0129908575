"""Errors of JSON-RPC requests, and what they say about the protocol versions of a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from indusagi.core.json import JsonValue
    from indusagi.interop.protocol_bridge.contract import FaultDetail
    from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd

# https://www.jsonrpc.org/specification#error_object
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
PARSE_ERROR = -32700
UNSUPPORTED_VERSION = -32022
"""`UnsupportedProtocolVersionError` of the modern protocol; its `data.supported` lists versions."""


class RpcError(Exception):
    """An error response."""

    def __init__(self, code: int, message: str, data: JsonValue = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.detail: FaultDetail | None = None
        """What the transport knows about it, such as the status of an HTTP response."""


class InvalidResponseError(Exception):
    """A response that is neither a result object nor an error object."""


class RequestTimeoutError(Exception):
    """No response before the deadline; a cancellable request was cancelled."""


class ConnectionClosedError(Exception):
    """The transport ended before the response came."""

    def __init__(self, end: TransportEnd) -> None:
        super().__init__(end.message)
        self.end = end


class VersionMismatchError(Exception):
    """Client and server have no protocol version in common."""


def is_final(exc: BaseException | None) -> bool:
    """Return whether the first request of a handshake settled it: no other request would get further.

    `exc` is what the request raised; `None`, its response came.
    """
    detail = exc.detail if isinstance(exc, RpcError) else None
    if detail is None:
        return exc is None
    # An HTTP status may refuse this request alone; a refused connection refuses every request.
    is_unreachable = detail.reason == "refused" and detail.http_status is None
    return is_unreachable or detail.reason in {"auth", "rate_limited", "redirect"}


def find_supported_versions(exc: RpcError) -> list[JsonValue]:
    """Return the versions that an error response lists in `data.supported`."""
    versions = exc.data.get("supported") if isinstance(exc.data, dict) else None
    return versions if isinstance(versions, list) else []


def requires_modern(exc: BaseException | None) -> bool:
    """Return whether a server refused because it accepts the modern protocol only."""
    return isinstance(exc, RpcError) and exc.code == UNSUPPORTED_VERSION
