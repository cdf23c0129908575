"""JSON-RPC over a link, on plain dicts: ids, deadlines, progress, cancellation, inbound requests.

It knows nothing of MCP but the two notifications that belong to a request (progress, cancelled) and
`ping`. A frame is read once and handed on as it came. A frame that is odd but can be understood
(a batch, an id sent back as text, a missing version) is understood; one that cannot is counted, and
if it was meant as an answer, the one who waits for it is told at once instead of at the deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, TypeAlias

from indusagi.core.json import JsonObject, JsonValue
from indusagi.interop.protocol_bridge.contract import FaultDetail
from indusagi.interop.protocol_bridge.rpc.codec import (
    add_progress_token,
    decode_frame,
    find_response_id,
    find_responses,
)
from indusagi.interop.protocol_bridge.rpc.limits import Alarm, Slots, before

_log = logging.getLogger(__name__)

RequestId: TypeAlias = int | str
OnProgress: TypeAlias = Callable[[JsonObject], None]
OnRequest: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]
OnNotify: TypeAlias = Callable[[str, JsonObject], None]
OnUnmatched: TypeAlias = Callable[[JsonValue, Literal["answer", "progress"]], None]
"""Hears what the peer says of a request that nobody waits for."""

METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
PARSE_ERROR = -32700
_NUMBER = re.compile(r"0|[1-9][0-9]{0,14}")


class RpcError(Exception):
    """The peer answered with an error."""

    def __init__(self, code: int, message: str, data: JsonValue = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.detail: FaultDetail | None = None
        """What the link knows about it, such as the status of an HTTP response."""


class InvalidResponseError(Exception):
    """The peer answered with something that is no answer."""


class RequestTimeoutError(Exception):
    """No answer within the deadline; the peer was told that nobody waits any more."""


@dataclass(frozen=True, slots=True)
class TransportEnd:
    """Why a link carries nothing any more."""

    message: str
    detail: FaultDetail


class ConnectionClosedError(Exception):
    """The link ended before the answer came."""

    def __init__(self, end: TransportEnd) -> None:
        super().__init__(end.message)
        self.end = end


class Transport(Protocol):
    """Carries frames to one peer and back."""

    def attach(self, on_frame: Callable[[bytes | JsonValue], None], on_end: Callable[[TransportEnd], None]) -> None:
        """Deliver what comes, also what came before; `on_end` is called once."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Put a frame on its way; nothing happens on a link that has ended."""
        ...

    @property
    def writable(self) -> asyncio.Event:
        """Set while the link can take more."""
        ...

    def detail(self, request_id: RequestId) -> FaultDetail | None:
        """Tell what is known about a request that failed on the way, and forget it."""
        ...


@dataclass(slots=True)
class _Waiting:
    answer: asyncio.Future[JsonObject]
    due: float
    """When it is too late, by the clock of the loop."""
    idle_s: float
    hard_at: float
    follows: bool
    """Whether the peer was asked to tell how far it has come."""
    on_progress: OnProgress | None


class JsonRpcConnection:
    """One conversation over a link."""

    def __init__(
        self,
        link: Transport,
        *,
        on_request: OnRequest | None = None,
        on_notify: OnNotify | None = None,
        on_unmatched: OnUnmatched = lambda _, said: None,
        in_flight: int = 64,
        inbound: int = 8,
        on_invalid_frame: Callable[[bytes], None] | None = None,
    ) -> None:
        self.noise = 0
        """Frames that could not be understood."""
        self.heard = 0
        """Frames that came, understood or not."""
        # Set before the link is attached, which delivers lines that have already come.
        self._on_noise = on_invalid_frame
        self.ended: asyncio.Future[TransportEnd] = asyncio.get_running_loop().create_future()
        self._loop = asyncio.get_running_loop()
        self._alarm = Alarm(self._expire)
        self._link = link
        self._on_request = on_request
        self._on_notify = on_notify
        self._on_stray = on_unmatched
        self._slots = Slots(in_flight)
        self._inbound_limit = inbound
        self.ids = itertools.count(1)
        self._waiting: dict[RequestId, _Waiting] = {}
        self._inbound: dict[RequestId, asyncio.Task[None]] = {}
        link.attach(self._received, self._end)

    # -- outbound ---------------------------------------------------------------------------

    async def request(
        self,
        method: str,
        params: JsonObject | None = None,
        *,
        idle_s: float,
        hard_s: float | None = None,
        on_progress: OnProgress | None = None,
        request_id: RequestId | None = None,
        cancellable: bool = True,
    ) -> JsonObject:
        """Ask and wait for the answer; progress starts the idle deadline anew.

        Whoever stops waiting, by deadline or by cancellation, has the peer told so.

        Raises:
            RpcError: The peer answered with an error.
            InvalidResponseError: It answered with something else.
            RequestTimeoutError: It did not answer in time; waiting for a free slot counts.
            ConnectionClosedError: The link ended.
        """
        now = self._loop.time()
        hard_at = now + (idle_s if hard_s is None else hard_s)
        due = min(hard_at, now + idle_s)
        identity = next(self.ids) if request_id is None else request_id
        answer: asyncio.Future[JsonObject] = self._loop.create_future()
        waiting = _Waiting(answer, due, idle_s, hard_at, hard_s is not None, on_progress)
        try:
            if not self._slots.take():
                await before(due, self._slots.wait())
            try:
                return await self._ask(identity, method, params, waiting, cancellable)
            finally:
                self._slots.give()
        except TimeoutError:
            late = hard_s and self._loop.time() >= hard_at
            limit = f"{hard_s:g} s in all" if late else f"{idle_s:g} s"
            raise RequestTimeoutError(f"{method} was not answered within {limit}") from None

    async def _ask(
        self, identity: RequestId, method: str, params: JsonObject | None, waiting: _Waiting, cancellable: bool
    ) -> JsonObject:
        if self.ended.done():
            raise ConnectionClosedError(self.ended.result())
        frame: JsonObject = {"jsonrpc": "2.0", "id": identity, "method": method}
        if waiting.follows:
            frame["params"] = add_progress_token(params, identity)
        elif params is not None:
            frame["params"] = params
        answer = waiting.answer
        self._waiting[identity] = waiting
        try:
            room = self._link.writable
            if not room.is_set():
                await before(waiting.due, room.wait())
            self._link.send(frame)
            self._alarm.by(waiting.due)
            try:
                return await answer
            except (asyncio.CancelledError, TimeoutError):
                if cancellable:
                    notice: JsonObject = {"requestId": identity, "reason": "no longer wanted"}
                    self.notify("notifications/cancelled", notice)
                raise
        finally:
            self._waiting.pop(identity, None)
            # An error that arrives in the moment of a cancellation has no reader, and is no defect.
            if answer.done() and not answer.cancelled():
                answer.exception()

    def _expire(self, now: float) -> float:
        """Tell those whose deadline has passed, and give the next one."""
        if self._inbound:
            self._postpone()
        pending = [waiting for waiting in self._waiting.values() if not waiting.answer.done()]
        for waiting in pending:
            if waiting.due <= now:
                waiting.answer.set_exception(TimeoutError())
        return min((waiting.due for waiting in pending if waiting.due > now), default=math.inf)

    def _postpone(self) -> None:
        """Start idle deadlines anew: the peer waited for us, not we for it."""
        now = self._loop.time()
        for waiting in self._waiting.values():
            if waiting.follows:
                waiting.due = min(waiting.hard_at, now + waiting.idle_s)

    def notify(self, method: str, params: JsonObject | None = None) -> None:
        """Tell the peer something that needs no answer."""
        frame: JsonObject = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            frame["params"] = params
        self._link.send(frame)

    def give_up(self, end: TransportEnd) -> None:
        """Take the link for ended although it is open: whoever waits is told why."""
        self._end(end)

    async def close(self) -> None:
        """Stop answering; the link is closed by whoever opened it."""
        tasks = list(self._inbound.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # -- inbound ----------------------------------------------------------------------------

    def _end(self, end: TransportEnd) -> None:
        if self.ended.done():
            return
        self.ended.set_result(end)
        self._alarm.stop()
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(ConnectionClosedError(end))
        for task in self._inbound.values():
            task.cancel()

    def _received(self, data: bytes | JsonValue) -> None:
        self.heard += 1
        noise = self.noise
        frame = self._parsed(data) if isinstance(data, bytes) else data
        for one in frame if isinstance(frame, list) and frame else (frame,):
            self._frame(one)
        if self._on_noise is not None and self.noise > noise and isinstance(data, bytes):
            self._on_noise(data)

    def _parsed(self, line: bytes) -> JsonValue:
        try:
            return decode_frame(line)
        except (ValueError, RecursionError) as exc:
            identity = find_response_id(line)
            if identity is not None:
                self._resolve(identity, InvalidResponseError(f"the answer cannot be read: {exc}"))
                return None
            # A banner without an end of line stands before the first answer.
            return self._find_answers(line)

    def _find_answers(self, line: bytes) -> JsonValue:
        """Find answers to requests of ours in a line that has other text around them.

        Only answers that are waited for are taken: a log line may quote any message.
        """
        answers = [one for one in find_responses(line) if self._find(one.get("id")) is not None]
        if not answers:
            return None
        self.noise += 1
        return [*answers]

    def _frame(self, frame: JsonValue) -> None:
        if not isinstance(frame, dict):
            self.noise += 1
            return
        method, identity = frame.get("method"), frame.get("id")
        if isinstance(method, str):
            params = frame.get("params")
            given = params if isinstance(params, dict) else {}
            if identity is None:
                self._notified(method, given)
            elif isinstance(identity, (int, str)):
                self._requested(identity, method, given)
        elif "result" in frame:
            self._answered(identity, frame["result"])
        elif "error" in frame:
            self._resolve(identity, _rpc_error(frame["error"]))
        else:
            self.noise += 1

    def _answered(self, identity: JsonValue, result: JsonValue) -> None:
        if isinstance(result, dict):
            self._resolve(identity, result)
        else:
            shown = type(result).__name__ if result is not None else "null"
            self._resolve(identity, InvalidResponseError(f"the result is {shown}, not an object"))

    def _resolve(self, identity: JsonValue, outcome: JsonObject | Exception) -> None:
        waiting = self._find(identity)
        if waiting is None:
            self._on_stray(identity, "answer")
        if waiting is None or waiting.answer.done():
            return
        if not isinstance(outcome, Exception):
            waiting.answer.set_result(outcome)
            return
        if isinstance(outcome, RpcError) and isinstance(identity, (int, str)):
            outcome.detail = self._link.detail(identity)
        waiting.answer.set_exception(outcome)

    def _find(self, identity: JsonValue) -> _Waiting | None:
        """Find who waits, also where a number comes back as `1.0` or `"1"`."""
        if isinstance(identity, float) and identity.is_integer():
            identity = int(identity)
        if not isinstance(identity, (int, str)) or isinstance(identity, bool):
            return None
        found = self._waiting.get(identity)
        if found is None and isinstance(identity, str) and _NUMBER.fullmatch(identity):
            found = self._waiting.get(int(identity))
        return found

    def _notified(self, method: str, params: JsonObject) -> None:
        if method == "notifications/progress":
            waiting = self._find(params.get("progressToken"))
            if waiting is None:
                self._on_stray(params.get("progressToken"), "progress")
            elif waiting.follows:
                waiting.due = min(waiting.hard_at, self._loop.time() + waiting.idle_s)
                if waiting.on_progress is not None:
                    self._tell(waiting.on_progress, params)
            return
        if method == "notifications/cancelled":
            identity = params.get("requestId")
            task = self._inbound.get(identity) if isinstance(identity, (int, str)) else None
            if task is not None:
                task.cancel()
            return
        if self._on_notify is not None:
            self._tell(partial(self._on_notify, method), params)

    def _tell(self, listener: Callable[[JsonObject], None], params: JsonObject) -> None:
        try:
            listener(params)
        except Exception:  # noqa: BLE001 — boundary: a listener's defect must not stop the reading
            _log.exception("a listener failed")

    def _requested(self, identity: RequestId, method: str, params: JsonObject) -> None:
        if method == "ping":
            self._link.send({"jsonrpc": "2.0", "id": identity, "result": {}})
        elif self._on_request is None or identity in self._inbound:
            self._refuse(identity, METHOD_NOT_FOUND, f"{method} is not supported")
        elif len(self._inbound) >= self._inbound_limit:
            self._refuse(identity, INTERNAL_ERROR, "too many requests at once")
        else:
            # Owned by this wire: kept until it is done, ended by close() and by the link's end.
            task = asyncio.create_task(  # noqa: TID251
                self._answer(identity, self._on_request, method, params)
            )
            self._inbound[identity] = task
            task.add_done_callback(lambda _: self._dealt_with(identity))

    def _dealt_with(self, identity: RequestId) -> None:
        self._inbound.pop(identity, None)
        self._postpone()

    async def _answer(self, identity: RequestId, on_request: OnRequest, method: str, params: JsonObject) -> None:
        try:
            result = await on_request(method, params)
            self._link.send({"jsonrpc": "2.0", "id": identity, "result": result})
        except RpcError as exc:
            self._refuse(identity, exc.code, exc.message)
        except Exception:  # noqa: BLE001 — boundary: the handler is the user's; the peer learns no more
            self._refuse(identity, INTERNAL_ERROR, "internal error")

    def _refuse(self, identity: RequestId, code: int, message: str) -> None:
        error: JsonObject = {"code": code, "message": message}
        self._link.send({"jsonrpc": "2.0", "id": identity, "error": error})


def _rpc_error(error: JsonValue) -> Exception:
    if not isinstance(error, dict):
        return InvalidResponseError("the error is no object")
    code, message = error.get("code"), error.get("message")
    return RpcError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        message if isinstance(message, str) else "the server gave no reason",
        error.get("data"),
    )
