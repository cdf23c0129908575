"""What a client was asked and has not yet answered.

A host may ask in turn: for input, for a sample of a model, for roots. The answer comes as a message
of its own, over whatever way the client chooses, and is found by its id. Ids are made of chance, so
that nobody answers what somebody else was asked.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.connection import (
    INTERNAL_ERROR,
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
    TransportEnd,
)
from indusagi.interop.protocol_bridge.rpc.limits import before

if TYPE_CHECKING:
    from typing import Protocol

    from indusagi.core.json import JsonObject, JsonValue

    class Asked(Protocol):
        """Takes questions to a client."""

        @property
        def hears(self) -> bool:
            """Whether a question would reach it."""
            ...

        def send(self, frame: JsonObject) -> None:
            """Put a frame on its way."""
            ...


_BUSY = -32000
_CHANCE = 12


class OutgoingRequests:
    """The open questions to one client."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: dict[str, asyncio.Future[JsonObject]] = {}
        self._ids = (f"{os.urandom(_CHANCE).hex()}-{number}" for number in itertools.count(1))

    async def ask(self, method: str, params: JsonObject | None, channel: Asked, within_s: float) -> JsonObject:
        """Ask, and wait for the answer; a client that nobody waits for any more is told so.

        Raises:
            RpcError: The client refused, or there are too many questions.
            InvalidResponseError: It answered with something else than an object.
            RequestTimeoutError: It did not answer in time.
            ConnectionClosedError: It is gone, or hears nothing on this channel.
        """
        if not channel.accepts_notifications:
            raise closed("cannot be asked: it reads nothing but answers")
        if len(self._open) >= self._limit:
            raise RpcError(_BUSY, "the client has too many questions to answer")
        identity = next(self._ids)
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._open[identity] = answer
        frame: JsonObject = {"jsonrpc": "2.0", "id": identity, "method": method}
        try:
            channel.send(frame if params is None else {**frame, "params": params})
            await before(asyncio.get_running_loop().time() + within_s, answer)
        except TimeoutError:
            _withdraw(channel, identity)
            raise RequestTimeoutError(f"{method} was not answered within {within_s:g} s") from None
        except asyncio.CancelledError:
            _withdraw(channel, identity)
            raise
        finally:
            self._open.pop(identity, None)
            # An error that arrives in the moment of a cancellation has no reader.
            if answer.done() and not answer.cancelled():
                answer.exception()
        return answer.result()

    def answered(self, frame: JsonObject) -> None:
        """Take an answer; one that nobody waits for changes nothing."""
        identity = frame.get("id")
        answer = self._open.pop(identity, None) if isinstance(identity, str) else None
        if answer is None or answer.done():
            return
        result = frame.get("result")
        if isinstance(result, dict):
            answer.set_result(result)
        elif "error" in frame:
            answer.set_exception(refusal(frame["error"]))
        else:
            answer.set_exception(InvalidResponseError("the client answered with something else than a result"))

    def gone(self, reason: str) -> None:
        """Tell those who wait that no answer will come."""
        waiting, self._open = self._open, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(closed(reason))


def closed(reason: str) -> ConnectionClosedError:
    """Say that a client answers nothing any more."""
    return ConnectionClosedError(TransportEnd(reason, FaultDetail(reason="closed")))


def refusal(error: JsonValue) -> RpcError | InvalidResponseError:
    """Read the error that a client answers with."""
    if not isinstance(error, dict):
        return InvalidResponseError("the client's error is no object")
    code, message = error.get("code"), error.get("message")
    return RpcError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        message if isinstance(message, str) else "the client gave no reason",
        error.get("data"),
    )


def _withdraw(channel: Asked, identity: str) -> None:
    params: JsonObject = {"requestId": identity, "reason": "no longer wanted"}
    notice: JsonObject = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
    channel.send(notice)
