"""Calls that wait for their client between two requests.

In the newer protocol nobody asks in the middle of a request: the request is answered with the
questions and a state, and comes again with the state and the answers. The call itself goes on
meanwhile, here: it has a deadline for every round, goes on for nobody but its owner, and there is
room for so many of each owner.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.host_callers import ANSWER_S
from indusagi.interop.protocol_bridge.wire import INVALID_PARAMS, RpcError

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host_callers import ParkedCall, Running
    from indusagi.interop.protocol_bridge.host_session import HostRequest

_CALLS = 64
_BUSY = -32000


class Parking:
    """The calls of a host that may have questions."""

    def __init__(self, calls: int = _CALLS, round_s: float = ANSWER_S) -> None:
        self._limit = calls
        self._round_s = round_s
        self._running: set[ParkedCall] = set()
        self._parked: dict[str, tuple[ParkedCall, asyncio.TimerHandle]] = {}

    async def begin(self, request: HostRequest, call: ParkedCall, running: Running) -> JsonObject:
        """Run a call until it has a result or questions.

        Raises:
            RpcError: There is no room for it.
        """
        if self._taken(call.owner) >= self._limit:
            raise RpcError(_BUSY, "too many calls at once")
        self._running.add(call)
        call.start(running, lambda: self._running.discard(call))
        return await self._round(request, call)

    def _taken(self, owner: bytes) -> int:
        # Each has its own places: one that leaves calls unanswered keeps nobody else from calling.
        running = sum(call.owner == owner for call in self._running)
        return max(running, sum(call.owner == owner for call, _ in self._parked.values()))

    async def resume(self, request: HostRequest, name: str, owner: bytes = b"") -> JsonObject:
        """Go on with the call that a request of its owner brings the answers for.

        Raises:
            RpcError: No call waits for them.
        """
        state, answers = request.params.get("requestState"), request.params.get("inputResponses")
        found = self._parked.get(state) if isinstance(state, str) else None
        if found is None or (found[0].name, found[0].owner) != (name, owner):
            said = "no call waits under this requestState: it has ended, or waited for too long"
            raise RpcError(INVALID_PARAMS, said)
        del self._parked[str(state)]
        call, alarm = found
        alarm.cancel()
        call.answer(answers if isinstance(answers, dict) else {})
        return await self._round(request, call)

    async def _round(self, request: HostRequest, call: ParkedCall) -> JsonObject:
        result = await call.following(request)
        if result is not None:
            return result
        state = secrets.token_urlsafe(32)
        late = asyncio.get_running_loop().call_later(self._round_s, self._expired, state)
        self._parked[state] = (call, late)
        questions = call.questions()
        return {
            "resultType": "input_required",
            "inputRequests": questions,
            "requestState": state,
        }

    def _expired(self, state: str) -> None:
        call, _ = self._parked.pop(state)
        call.cancel.cancel(f"the client did not answer within {self._round_s:g} s")

    async def close(self) -> None:
        """Cancel every call, and see it end."""
        for _, alarm in self._parked.values():
            alarm.cancel()
        self._parked.clear()
        for call in [*self._running]:
            call.cancel.cancel("the host was stopped")
        for call in [*self._running]:
            await call.ended()
