"""The clients behind the calls of a host, as those who have a question see them.

An older client is asked in the middle of its request. In the newer protocol the request is answered
with the questions, and comes again with the answers; the call goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.cancel import CancelToken
from indusagi.core.faults import describe_error
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.handlers import HOPS, UNKNOWN_CALLER
from indusagi.interop.protocol_bridge.rpc.connection import (
    INVALID_PARAMS,
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host.dispatcher import HostRequest, RequestDispatcher
    from indusagi.runtime.contract import ProgressSink, ToolProgress

    Running: TypeAlias = Callable[["SuspendedCall"], Awaitable[JsonObject]]

    SinkOf: TypeAlias = Callable[[HostRequest], ProgressSink | None]


ANSWER_S = 300.0
"""How long a client may take to answer."""
MAX_HOPS = 8


def read_hops(meta: JsonObject) -> int:
    """Say through how many gateways a request came.

    Raises:
        RpcError: Through so many that they must stand in a circle.
    """
    told = meta.get(HOPS)
    hops = told if isinstance(told, int) and not isinstance(told, bool) else 0
    if hops > MAX_HOPS:
        said = f"the call came through {hops} gateways: one of them serves itself; take it out"
        raise RpcError(INVALID_PARAMS, said)
    return max(hops, 0)


class LegacyCaller:
    """An older client, asked on the way to the answer of one of its requests."""

    def __init__(self, request: HostRequest, client: RequestDispatcher, capabilities: JsonObject, hops: int) -> None:
        self.client = client
        self.capabilities = capabilities
        self.hops = hops
        self._request = request

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Put a question to it, and wait for the answer."""
        try:
            return await self._request.ask(method, params, within_s=ANSWER_S)
        except (InvalidResponseError, ConnectionClosedError, RequestTimeoutError) as exc:
            raise RpcError(UNKNOWN_CALLER, f"the client did not answer: {describe_error(exc)}") from exc


class SuspendedCall:
    """One call, from its first request to its last; the `Caller` behind it."""

    client = None  # each call has its own ear: the request that comes next

    def __init__(self, name: str, capabilities: JsonObject, hops: int, sink_of: SinkOf, owner: bytes = b"") -> None:
        self.name = name
        self.owner = owner
        """Who alone may go on with it."""
        self.capabilities = capabilities
        self.hops = hops
        self.cancel = CancelToken()
        self._sink_of = sink_of
        self._sink: ProgressSink | None = None
        self._questions: dict[str, tuple[JsonObject, asyncio.Future[JsonObject]]] = {}
        self._asked = 0
        self._stirred = asyncio.Event()
        self._result: JsonObject | Exception | None = None
        self._owner = BackgroundTask("call of a host")

    def start(self, running: Running, on_end: Callable[[], None]) -> None:
        """Begin; the call goes on whether a request waits for it or not."""

        async def run() -> None:
            try:
                self._result = await running(self)
            except Exception as exc:  # noqa: BLE001 — boundary: told to whoever waits for the result
                self._result = exc
            finally:
                on_end()
                self._stirred.set()

        self._owner.start(run())

    def progressed(self, progress: ToolProgress) -> None:
        """Tell the client how far it has come, while one of its requests is open."""
        if self._sink is not None:
            self._sink(progress)

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Put a question to the client, with the answer to its present request."""
        if not self._owner.started:  # it runs within its one request, whose client takes none
            raise RpcError(UNKNOWN_CALLER, "the client cannot be asked: it declared nothing that it can do")
        self._asked += 1
        key = f"{self._asked}"
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._questions[key] = ({"method": method, "params": params}, answer)
        self._stirred.set()
        try:
            return await answer
        finally:
            self._questions.pop(key, None)

    def answer(self, answers: JsonObject) -> None:
        """Take what the client answered; what it left out is asked again."""
        for key, given in answers.items():
            found = self._questions.pop(key, None)
            if found is not None and not found[1].done():
                if isinstance(given, dict):
                    found[1].set_result(given)
                else:
                    said = f"the answer to question {key} is no object"
                    found[1].set_exception(RpcError(INVALID_PARAMS, said))

    async def wait_for_result(self, request: HostRequest) -> JsonObject | None:
        """Wait for the result on behalf of a request; None: there are questions first."""
        self._sink = self._sink_of(request)
        forget = request.cancel.on_cancel(lambda: void(self.cancel.cancel(request.cancel.reason or "cancelled")))
        try:
            while self._result is None and not self._questions:
                self._stirred.clear()
                await self._stirred.wait()
        except asyncio.CancelledError:
            self.cancel.cancel("the client went away")
            raise
        finally:
            forget()
            self._sink = None
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def questions(self) -> JsonObject:
        """Give what is to be answered."""
        return {key: question for key, (question, _) in self._questions.items()}

    async def ended(self) -> None:
        """Wait for the end of a call that was cancelled, and end it by force if need be."""
        self._owner.cancel()
        await self._owner.join()


def void(_: object) -> None:
    """Take something that nobody wants to know."""


_CALLS = 64
_BUSY = -32000


class SuspendedCalls:
    """The calls of a host that may have questions."""

    def __init__(self, calls: int = _CALLS, round_s: float = ANSWER_S) -> None:
        self._limit = calls
        self._round_s = round_s
        self._running: set[SuspendedCall] = set()
        self._suspended: dict[str, tuple[SuspendedCall, asyncio.TimerHandle]] = {}

    async def begin(self, request: HostRequest, call: SuspendedCall, running: Running) -> JsonObject:
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
        # Each has its own places: one that leaves calls unanswered keeps nobody else from current_caller.
        running = sum(call.owner == owner for call in self._running)
        return max(running, sum(call.owner == owner for call, _ in self._suspended.values()))

    async def resume(self, request: HostRequest, name: str, owner: bytes = b"") -> JsonObject:
        """Go on with the call that a request of its owner brings the answers for.

        Raises:
            RpcError: No call waits for them.
        """
        state, answers = request.params.get("requestState"), request.params.get("inputResponses")
        found = self._suspended.get(state) if isinstance(state, str) else None
        if found is None or (found[0].name, found[0].owner) != (name, owner):
            said = "no call waits under this requestState: it has ended, or waited for too long"
            raise RpcError(INVALID_PARAMS, said)
        del self._suspended[str(state)]
        call, alarm = found
        alarm.cancel()
        call.answer(answers if isinstance(answers, dict) else {})
        return await self._round(request, call)

    async def _round(self, request: HostRequest, call: SuspendedCall) -> JsonObject:
        result = await call.wait_for_result(request)
        if result is not None:
            return result
        state = secrets.token_urlsafe(32)
        late = asyncio.get_running_loop().call_later(self._round_s, self._expired, state)
        self._suspended[state] = (call, late)
        questions = call.questions()
        return {"resultType": "input_required", "inputRequests": questions, "requestState": state}

    def _expired(self, state: str) -> None:
        call, _ = self._suspended.pop(state)
        call.cancel.cancel(f"the client did not answer within {self._round_s:g} s")

    async def close(self) -> None:
        """Cancel every call, and see it end."""
        for _, alarm in self._suspended.values():
            alarm.cancel()
        self._suspended.clear()
        for call in [*self._running]:
            call.cancel.cancel("the host was stopped")
        for call in [*self._running]:
            await call.ended()
