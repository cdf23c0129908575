"""A request that a relay has handed on, until its answer comes back or nobody wants it any more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from indusagi.interop.protocol_bridge.host_request import NO_PARAMS, Refusal
from indusagi.interop.protocol_bridge.relay_line import UNAVAILABLE
from indusagi.interop.protocol_bridge.wire import RpcError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.host_request import HostRequest
    from indusagi.interop.protocol_bridge.wire import RequestId

LISTEN = "subscriptions/listen"
SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"


class Relayed:
    """Gives the answer of the server when it is awaited; work of a conversation."""

    def __init__(
        self,
        request: HostRequest,
        identity: RequestId,
        on_withdrawn: Callable[[Relayed], None],
        on_closed: Callable[[Relayed], None],
    ) -> None:
        self.request = request
        self.identity = identity
        """The id under which the server knows it."""
        self.withdrawn = False
        """The server was told that nobody waits."""
        self._on_withdrawn = on_withdrawn
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._answer: asyncio.Future[JsonObject] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._forget = request.cancel.on_cancel(self._cancelled)
        request.standing = request.method == LISTEN
        request.elsewhere = True

    # -- for the conversation ---------------------------------------------------------------

    def __await__(self) -> Generator[object, None, JsonObject]:
        return self._answer.__await__()

    def close(self) -> None:
        """Let go of it; a server that still works on it is told so."""
        self._forget()
        if self._timer is not None:
            self._timer.cancel()
        self._withdraw()
        # One that failed may have no reader, and is no defect.
        if not self._answer.cancel() and not self._answer.cancelled():
            self._answer.exception()
        self._on_closed(self)

    def _cancelled(self) -> None:
        self._withdraw()
        if not self._answer.done():
            # Nobody hears it, but one who listens and is let go in good order.
            meta: JsonObject = {SUBSCRIPTION: self.request.identity}
            self._answer.set_result({"resultType": "complete", "_meta": meta})

    def _withdraw(self) -> None:
        if not self._answer.done() and not self.withdrawn:
            self.withdrawn = True
            self._on_withdrawn(self)

    # -- for the relay ----------------------------------------------------------------------

    @property
    def token(self) -> JsonValue:
        """What its client wants to see again in notices of progress."""
        return self.request.meta.get("progressToken")

    def frame(self, params: JsonObject | None = None) -> JsonObject:
        """Write it for the server."""
        frame: JsonObject = {"jsonrpc": "2.0", "id": self.identity, "method": self.request.method}
        given = self.request.params if params is None else params
        return frame if given is NO_PARAMS else {**frame, "params": given}

    def withdrawal(self) -> JsonObject:
        """Write that nobody waits for it."""
        reason = self.request.cancel.reason or "no longer wanted"
        params: JsonObject = {"requestId": self.identity, "reason": reason}
        return {"jsonrpc": "2.0", "method": CANCELLED, "params": params}

    def answered(self, frame: JsonObject) -> None:
        """Take the answer, whatever it is."""
        if self._answer.done():
            return
        if "result" in frame:
            # Servers answer with all kinds of things: what it is, is for the client to judge.
            self._answer.set_result(cast("JsonObject", frame["result"]))
        else:
            self._answer.set_exception(Refusal(frame["error"]))

    def failed(self, said: str) -> None:
        """Say that no answer will come."""
        if not self._answer.done():
            self.withdrawn = True
            self._answer.set_exception(RpcError(UNAVAILABLE, said))

    def due(self, within_s: float, said: str) -> None:
        """Give it a deadline."""

        def late() -> None:
            self._withdraw()
            self.failed(said)

        self._timer = self._loop.call_later(within_s, late)
