"""A host's requests to its clients: for input, model sampling and roots.

Up to protocol revision 2025-11-25 the client gets a JSON-RPC request while its own request is open (`OutgoingRequests`
of the dispatcher, `LegacyCaller`). From 2026-07-28 on we answer its request with the questions, and it sends the
request again with the answers while the call is suspended (`SuspendedCalls`).
"""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from indusagi.core.cancel import CancelToken
from indusagi.core.faults import describe_error
from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.handlers import HOPS, UNKNOWN_CALLER, InputExchange
from indusagi.interop.protocol_bridge.host.identity import current_identity
from indusagi.interop.protocol_bridge.host.outgoing import BUSY
from indusagi.interop.protocol_bridge.rpc.connection import (
    HANDLER_EXIT_S,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    ConnectionClosedError,
    InvalidResponseError,
    RequestTimeoutError,
    RpcError,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.client.tasks import TaskExchange
    from indusagi.interop.protocol_bridge.host.dispatcher import HostRequest, RequestDispatcher
    from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
    from indusagi.runtime.contract import ProgressSink, ToolProgress

    RunCall: TypeAlias = Callable[["SuspendedCall"], Awaitable[JsonObject]]

ANSWER_S = 300.0
"""How long a client may take to answer."""
MAX_HOPS = 8
_SUSPENDED_CALLS = 64


def read_hops(meta: JsonObject) -> int:
    """Read how many gateways a request came through; refuse more than `MAX_HOPS`, since one of them serves itself."""
    value = meta.get(HOPS)
    hops = value if isinstance(value, int) and not isinstance(value, bool) else 0
    if hops > MAX_HOPS:
        raise RpcError(INVALID_PARAMS, f"the call came through {hops} gateways: one of them serves itself; remove it")
    return max(hops, 0)


def new_sink(request: HostRequest) -> ProgressSink | None:
    """Return a function that reports progress to a request's client; None if it didn't ask for progress."""
    token = request.meta.get("progressToken")
    if token is None:
        return None
    last = -1.0

    def report(progress: ToolProgress) -> None:
        nonlocal last
        # Values must increase: https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/progress.
        # Skip clients that don't read, so that reports don't pile up.
        if not last < progress.done < math.inf or not request.channel.writable.is_set():
            return
        last = progress.done
        params: JsonObject = {"progressToken": token, "progress": progress.done}
        if progress.total is not None and abs(progress.total) < math.inf:
            params["total"] = progress.total
        if progress.message:
            params["message"] = progress.message
        request.notify("notifications/progress", params)

    return report


@dataclass(slots=True, eq=False)
class LegacyCaller:
    """The client behind a call, up to protocol revision 2025-11-25; a `Caller`."""

    request: HostRequest
    client: RequestDispatcher
    capabilities: JsonObject
    hops: int
    log_level: str | None = None
    tasks: TaskExchange | None = None
    exchange: InputExchange | None = None
    """None: we ask the client while its request is open."""

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification for the call, unless the client doesn't read."""
        if self.request.channel.writable.is_set():
            self.request.notify(method, params)

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Send a request to the client and wait for the result."""
        try:
            return await self.request.send_request(method, params, within_s=ANSWER_S)
        except (InvalidResponseError, ConnectionClosedError, RequestTimeoutError) as exc:
            raise RpcError(UNKNOWN_CALLER, f"the client did not answer: {describe_error(exc)}") from exc


class SuspendedCall:
    """One call from its first request to its last, from protocol revision 2026-07-28 on; a `Caller`."""

    client = None  # shares its client with no other call: the next request continues it

    def __init__(
        self,
        name: str,
        capabilities: JsonObject,
        hops: int,
        owner: bytes = b"",
        *,
        log_level: str | None = None,
        exchange: InputExchange | None = None,
        tasks: TaskExchange | None = None,
    ) -> None:
        self.name = name
        self.tasks = tasks
        self.log_level = log_level
        self.exchange = exchange
        self.request: HostRequest | None = None
        """The client's currently open request."""
        self.owner = owner
        """The only client that may resume it."""
        self.identity = current_identity.get()
        self.capabilities = capabilities
        self.hops = hops
        self.cancel = CancelToken()
        self._sink: ProgressSink | None = None
        self._questions: dict[str, tuple[JsonObject, asyncio.Future[JsonObject]]] = {}
        self._asked = 0
        self._is_changed = asyncio.Event()
        self._result: JsonObject | Exception | None = None
        self._task = BackgroundTask("call of a host")

    def start(self, run_call: RunCall, on_end: Callable[[], None]) -> None:
        """Run the call in its own task, which continues between two requests."""

        async def run() -> None:
            try:
                self._result = await run_call(self)
            except Exception as exc:  # noqa: BLE001 — boundary: raised where the result is awaited
                self._result = exc

        def finish() -> None:
            on_end()
            if self._result is None:
                self._result = RpcError(INTERNAL_ERROR, "the call was stopped")
            self._is_changed.set()

        self._task = BackgroundTask("call of a host", finish)
        self._task.start(run())

    def report_progress(self, progress: ToolProgress) -> None:
        """Report progress to the client while one of its requests is open."""
        if self._sink is not None:
            self._sink(progress)

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification while a request of the client is open and it reads."""
        if self.request is not None and self.request.channel.writable.is_set():
            self.request.notify(method, params)

    async def ask(self, method: str, params: JsonObject) -> JsonObject:
        """Put a question into the response to the client's current request, and wait for the answer."""
        if not self._task.started:  # runs within one request, whose client declared no capability
            raise RpcError(UNKNOWN_CALLER, "the client cannot be asked: it declared no such capability")
        self._asked += 1
        key = f"{self._asked}"
        answer: asyncio.Future[JsonObject] = asyncio.get_running_loop().create_future()
        self._questions[key] = ({"method": method, "params": params}, answer)
        self._is_changed.set()
        try:
            return await answer
        finally:
            self._questions.pop(key, None)

    def answer(self, answers: JsonObject) -> None:
        """Process the client's answers; unanswered questions are asked again."""
        for key, value in answers.items():
            question = self._questions.pop(key, None)
            if question is not None and not question[1].done():
                if isinstance(value, dict):
                    question[1].set_result(value)
                else:
                    question[1].set_exception(RpcError(INVALID_PARAMS, f"the answer to question {key} is no object"))

    async def wait_for_result(self, request: HostRequest) -> JsonObject | None:
        """Wait for the result on behalf of a request; return None if there are questions first."""
        self._sink, self.request = new_sink(request), request

        def cancel() -> None:
            self.cancel.cancel(request.cancel.reason or "cancelled")

        forget = request.cancel.on_cancel(cancel)
        try:
            while self._result is None and not self._questions:
                self._is_changed.clear()
                await self._is_changed.wait()
        except asyncio.CancelledError:
            self.cancel.cancel("the client went away")
            raise
        finally:
            forget()
            self._sink = self.request = None
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def questions(self) -> JsonObject:
        """Return the unanswered questions by key."""
        return {key: question for key, (question, _) in self._questions.items()}

    async def end(self) -> None:
        """End a cancelled call, by force if necessary."""
        self._task.cancel()
        await self._task.join(HANDLER_EXIT_S)


class SuspendedCalls:
    """A host's running calls that may ask questions, and those waiting for answers."""

    def __init__(
        self, calls: int = _SUSPENDED_CALLS, round_s: float = ANSWER_S, seal: Callable[[str], str] | None = None
    ) -> None:
        self._seal = seal
        self._limit = calls
        self._round_s = round_s
        self._running: set[SuspendedCall] = set()
        self._waiting: dict[str, tuple[SuspendedCall, asyncio.TimerHandle]] = {}

    async def begin(self, request: HostRequest, call: SuspendedCall, run_call: RunCall) -> JsonObject:
        """Run a call until it has a result or questions; refuse it if too many calls of its owner wait for answers."""
        self._check_waiting(call)
        self._running.add(call)
        call.start(run_call, lambda: self._running.discard(call))
        return await self._next_round(request, call)

    def _check_waiting(self, call: SuspendedCall) -> None:
        # Limit each owner separately: one client's unanswered calls mustn't block another's.
        if sum(other.owner == call.owner for other, _ in self._waiting.values()) >= self._limit:
            raise RpcError(BUSY, f"{self._limit} calls wait for answers already: answer or cancel one first")

    def holds(self, state: JsonValue) -> bool:
        """Return whether a call waits under a state."""
        return isinstance(state, str) and state in self._waiting

    async def resume(self, request: HostRequest, name: str, owner: bytes = b"") -> JsonObject:
        """Continue the call that a request of its owner brings answers for, or refuse if none waits for them."""
        state, answers = request.params.get("requestState"), request.params.get("inputResponses")
        match = self._waiting.get(state) if isinstance(state, str) else None
        if match is None or (match[0].name, match[0].owner) != (name, owner):
            message = "no call waits under this requestState: it has ended, or waited for too long"
            raise RpcError(INVALID_PARAMS, message)
        del self._waiting[str(state)]
        call, timer = match
        timer.cancel()
        call.answer(answers if isinstance(answers, dict) else {})
        return await self._next_round(request, call)

    async def _next_round(self, request: HostRequest, call: SuspendedCall) -> JsonObject:
        result = await call.wait_for_result(request)
        if result is not None:
            return result
        try:
            self._check_waiting(call)
        except RpcError:
            call.cancel.cancel("too many calls wait for answers")
            raise
        state = secrets.token_urlsafe(32)
        if self._seal is not None:
            state = self._seal(state)
        timer = asyncio.get_running_loop().call_later(self._round_s, self._expire, state)
        self._waiting[state] = (call, timer)
        return {"resultType": "input_required", "inputRequests": call.questions(), "requestState": state}

    def cancel(self, is_meant: Callable[[ClientIdentity], object], reason: str) -> None:
        """Cancel the calls of some clients, those that wait for answers included."""
        for call in [*self._running]:
            if is_meant(call.identity):
                call.cancel.cancel(reason)

    def _expire(self, state: str) -> None:
        call, _ = self._waiting.pop(state)
        call.cancel.cancel(f"the client did not answer within {self._round_s:g} s")

    async def close(self) -> None:
        """Cancel every call and wait for them to end."""
        for _, timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()
        for call in [*self._running]:
            call.cancel.cancel("the host was stopped")
        for call in [*self._running]:
            await call.end()
