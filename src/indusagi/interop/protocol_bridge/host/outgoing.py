"""A host's requests to one client, and the channel that carries frames to it."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING, Protocol

from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import (
    INTERNAL_ERROR,
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
)
from indusagi.interop.protocol_bridge.rpc.transport import TransportEnd

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue

BUSY = -32000
_RANDOM_BYTES = 12


class ResponseChannel(Protocol):
    """Carries frames to a client."""

    @property
    def writable(self) -> asyncio.Event:
        """Set while more can be written without waiting."""
        ...

    @property
    def room(self) -> asyncio.Event:
        """Set while the client has room for a large response, on all its connections together."""
        ...

    @property
    def accepts_notifications(self) -> bool:
        """Whether frames other than responses reach the client here."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Send a frame; ignored if the client is gone."""
        ...


class OutgoingRequests:
    """Unanswered requests to one client.

    Ids are random, so a client can't answer a request sent to another one.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pending: dict[str, asyncio.Future[JsonObject]] = {}
        self._ids = (f"{os.urandom(_RANDOM_BYTES).hex()}-{number}" for number in itertools.count(1))

    async def send(
        self, method: str, params: JsonObject | None, channel: ResponseChannel, within_s: float
    ) -> JsonObject:
        """Send a request and wait for its result; notify the client on timeout or cancellation.

        Raises:
            RpcError: The client answered with an error, or has too many unanswered requests.
            InvalidResponseError: The result isn't an object.
            RequestTimeoutError: No response in time.
            ConnectionClosedError: The client is gone, or `channel` only carries responses.
        """
        if not channel.accepts_notifications:
            raise new_closed_error("cannot be asked: it reads nothing but responses")
        if len(self._pending) >= self._limit:
            raise RpcError(BUSY, "the client has too many questions to answer")
        request_id = next(self._ids)
        loop = asyncio.get_running_loop()
        response: asyncio.Future[JsonObject] = loop.create_future()
        self._pending[request_id] = response
        frame: JsonObject = {"jsonrpc": "2.0", "id": request_id, "method": method}
        try:
            channel.send(frame if params is None else {**frame, "params": params})
            async with asyncio.timeout(within_s):
                await response
        except (TimeoutError, asyncio.CancelledError) as exc:
            cancelled: JsonObject = {"requestId": request_id, "reason": "no longer wanted"}
            channel.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled})
            if isinstance(exc, TimeoutError):
                raise RequestTimeoutError(f"{method} was not answered within {within_s:g} s") from None
            raise
        finally:
            self._pending.pop(request_id, None)
            # Retrieve an error that arrived at the moment of cancellation.
            if response.done() and not response.cancelled():
                response.exception()
        return response.result()

    def resolve(self, frame: JsonObject) -> None:
        """Resolve the request that a response belongs to, ignoring unknown ones."""
        request_id = frame.get("id")
        response = self._pending.pop(request_id, None) if isinstance(request_id, str) else None
        if response is None or response.done():
            return
        result = frame.get("result")
        if isinstance(result, dict):
            response.set_result(result)
        elif "error" in frame:
            response.set_exception(_parse_error(frame["error"]))
        else:
            response.set_exception(InvalidResponseError("the client's response has no result object and no error"))

    def fail_all(self, reason: str) -> None:
        """Fail every pending request: the client is gone."""
        pending, self._pending = self._pending, {}
        for response in pending.values():
            if not response.done():
                response.set_exception(new_closed_error(reason))


def new_closed_error(reason: str) -> ConnectionClosedError:
    """Build the error for a client that can't be reached any more."""
    return ConnectionClosedError(TransportEnd(reason, FaultDetail(reason="closed")))


def _parse_error(error: JsonValue) -> RpcError | InvalidResponseError:
    if not isinstance(error, dict):
        return InvalidResponseError("the client's error is not an object")
    code, message = error.get("code"), error.get("message")
    return RpcError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        message if isinstance(message, str) else "the client gave no reason",
        error.get("data"),
    )
