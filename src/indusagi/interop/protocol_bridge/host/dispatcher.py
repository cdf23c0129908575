"""One request to a host: what it asks, who carries its answer, and what may be said on the way."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeGuard

from indusagi.core.cancel import CancelToken
from indusagi.core.json import JsonObject, JsonValue
from indusagi.interop.protocol_bridge.host.pending_requests import OutgoingRequests, closed
from indusagi.interop.protocol_bridge.rpc.codec import EncodedObject, decode_frame
from indusagi.interop.protocol_bridge.rpc.connection import INTERNAL_ERROR, PARSE_ERROR, RequestId, RpcError
from indusagi.interop.protocol_bridge.rpc.limits import Slots

if TYPE_CHECKING:
    from collections.abc import Generator


NO_PARAMS: JsonObject = {}
"""What stands for the params of a message that has none."""


class PendingResult(Protocol):
    """Gives a result when it is awaited; a coroutine, mostly."""

    def __await__(self) -> Generator[object, None, JsonObject]:
        """Wait for the result."""
        ...

    def close(self) -> None:
        """Let go of it: called once, awaited or not, done or not."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimits:
    """What one client may take of us."""

    calls: int = 64
    """Run at the same time; further ones wait in line."""
    waiting: int = 1_024
    """Run or wait in line; further ones are refused."""
    listeners: int = 16
    """Standing requests to hear of changes."""
    asks: int = 64
    """OutgoingRequests of ours that it has not answered."""
    upstreams: int = 17
    """ConnectionTracker to the server behind a relay: one for each session, and one that is shared."""
    frame_bytes: int = 16 * 1024 * 1024
    unread_bytes: int = 128 * 1024 * 1024
    """Of answers that wait for a client to read those before; larger ones become an error."""
    linger_s: float = 1.0
    """How long calls may finish after a client has said its last word and still listens."""
    stop_s: float = 5.0
    """How long calls may finish when the host is stopped, before they are cancelled."""


class ForwardedError(Exception):
    """An error that is answered as it stands."""

    def __init__(self, error: JsonValue) -> None:
        super().__init__("refused")
        self.error = error


class ResponseChannel(Protocol):
    """Takes what is said to a client."""

    @property
    def writable(self) -> asyncio.Event:
        """Set while it can take more."""
        ...

    @property
    def accepts_notifications(self) -> bool:
        """Whether the client would read more here than the answer it waits for."""
        ...

    def send(self, frame: JsonObject) -> None:
        """Put a frame on its way; nothing happens when the client is gone."""
        ...


@dataclass(slots=True, eq=False)
class HostRequest:
    """One request that waits for its answer."""

    identity: RequestId
    method: str
    params: JsonObject
    channel: ResponseChannel
    questions: OutgoingRequests
    cancel: CancelToken = field(default_factory=CancelToken)
    is_subscription: bool = False
    """It stays for as long as the client likes, and takes nobody's place."""
    elsewhere: bool = False
    """Somebody else works on it: it waits in no line of ours."""
    released: bool = False
    """It was ended by us, in good order: it is answered all the same."""
    settled: bool = False
    on_settled: Callable[[], None] | None = None

    @property
    def meta(self) -> JsonObject:
        """What was sent along with it."""
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}

    def tell(self, method: str, params: JsonObject) -> None:
        """Say something on the way to the answer; nothing is said after it."""
        if not self.settled:
            self.channel.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(self, method: str, params: JsonObject | None = None, *, within_s: float) -> JsonObject:
        """Ask its client something on the way to the answer.

        Raises:
            RpcError: The client refused, or was asked too much.
            InvalidResponseError: It answered with something else than an object.
            RequestTimeoutError: It did not answer in time, and was told that nobody waits.
            ConnectionClosedError: It is gone, hears nothing here, or wants no answer any more.
        """
        with self.cancel.guard():
            return await self.questions.ask(method, params, self.channel, within_s)
        raise closed("the request was cancelled")

    def settle(self, frame: JsonObject | None = None) -> None:
        """Answer, unless nobody wants it any more."""
        if self.settled:
            return
        if frame is not None and (self.released or not self.cancel.cancelled):
            self.channel.send(frame)
        self.settled = True
        if self.on_settled is not None:
            self.on_settled()


Serve: TypeAlias = Callable[[HostRequest], JsonObject | PendingResult]
"""Answers at once, or says what has to be awaited; what it refuses it raises as `RpcError`."""
OnNotice: TypeAlias = Callable[[str, JsonObject], None]
Reader: TypeAlias = Callable[[bytes], JsonValue]

_log = logging.getLogger(__name__)

INVALID_REQUEST = -32600
_NO_REQUEST = "the message is no request"
BUSY = -32000
_SAID = 200
_PARTS = 100
"""So many a batch may have: all of them are taken in one turn of the loop."""


class ServerSession(Protocol):
    """One client, as those who carry its requests see it."""

    @property
    def dispatcher(self) -> RequestDispatcher:
        """Takes what it asks."""
        ...

    @property
    def version(self) -> str | None:
        """What the handshake has agreed on, if there was one."""
        ...

    @property
    def notification_channel(self) -> ResponseChannel | None:
        """Takes what it is told unasked, while there is a way to tell it."""
        ...

    @notification_channel.setter
    def notification_channel(self, notification_channel: ResponseChannel | None) -> None: ...

    async def close(self, reason: str) -> None:
        """End everything it has asked for."""
        ...


class RequestDispatcher:
    """What one client has asked for, until it is answered, cancelled or gone."""

    def __init__(
        self,
        serve: Serve,
        on_notice: OnNotice | None = None,
        limits: HostLimits | None = None,
        *,
        on_answer: Callable[[JsonObject], None] | None = None,
        read: Reader = decode_frame,
    ) -> None:
        self._serve = serve
        self._on_notice = on_notice
        self._on_answer = on_answer
        self._read = read
        self._limits = limits or HostLimits()
        self._slots = Slots(self._limits.calls)
        self._questions = OutgoingRequests(self._limits.asks)
        self._open: dict[RequestId, HostRequest] = {}
        self._tasks: dict[HostRequest, asyncio.Task[None]] = {}
        self._standing = 0
        self._unread = 0
        self._closing = False

    # -- what comes -------------------------------------------------------------------------

    def receive(self, data: bytes | JsonValue, channel: ResponseChannel) -> None:
        """Take what came over a link, whatever it is."""
        if isinstance(data, bytes):
            try:
                data = self._read(data)
            except (ValueError, RecursionError):
                _refuse(channel, None, PARSE_ERROR, "the message is no JSON that can be read")
                return
        # Batches belong to one old revision; each part is taken as if it had come alone.
        parts = data if isinstance(data, list) and data else [data]
        if len(parts) > _PARTS:
            said = f"a batch may have {_PARTS} parts, and this one has {len(parts):,}"
            _refuse(channel, None, INVALID_REQUEST, said)
            return
        frames = [part for part in parts if isinstance(part, dict)]
        for frame in frames:
            self._frame(frame, channel)
        if len(frames) < len(parts):
            _refuse(channel, None, INVALID_REQUEST, _NO_REQUEST)

    def _frame(self, frame: JsonObject, channel: ResponseChannel) -> None:
        if "method" not in frame and ("result" in frame or "error" in frame):
            self._questions.answered(frame)
            if self._on_answer is not None:
                self._on_answer(frame)
            return
        method = frame.get("method")
        if not isinstance(method, str):
            _refuse(channel, None, INVALID_REQUEST, _NO_REQUEST)
            return
        given = frame.get("params")
        params = given if isinstance(given, dict) else NO_PARAMS
        if "id" not in frame:
            self.notice(method, params)
            return
        identity = frame["id"]
        if not is_request_id(identity):
            _refuse(channel, None, INVALID_REQUEST, "the id must be a text or a whole number")
        elif given is not None and not isinstance(given, dict):
            _refuse(channel, identity, INVALID_REQUEST, "params must be an object")
        else:
            self.request(identity, method, params, channel)

    def notice(self, method: str, params: JsonObject) -> None:
        """Take a notification."""
        if self._on_notice is not None:
            self._on_notice(method, params)
        if method == "notifications/cancelled":
            identity, reason = params.get("requestId"), params.get("reason")
            if is_request_id(identity):
                told = reason[:_SAID] if isinstance(reason, str) and reason else "cancelled"
                self.cancel(identity, told)

    def request(
        self,
        identity: RequestId,
        method: str,
        params: JsonObject,
        channel: ResponseChannel,
        on_settled: Callable[[], None] | None = None,
    ) -> None:
        """Take a request; its answer goes to its channel."""
        request = HostRequest(identity, method, params, channel, self._questions, on_settled=on_settled)
        if self._closing:
            request.settle(_error(identity, BUSY, "the host is stopping"))
            return
        if identity in self._open:
            request.settle(_error(identity, INVALID_REQUEST, "a request with this id is running"))
            return
        try:
            given = self._serve(request)
        except Exception as exc:  # noqa: BLE001 — boundary: whatever it is, the client is answered
            request.settle(_failure(request, exc))
            return
        if not isinstance(given, dict):
            self._start(request, given)
        elif channel.writable.is_set():
            request.settle({"jsonrpc": "2.0", "id": identity, "result": given})
        else:
            self._start(request, _known(given))

    def _start(self, request: HostRequest, work: PendingResult) -> None:
        if request.is_subscription:
            full = self._standing >= self._limits.listeners
        else:
            full = len(self._tasks) - self._standing >= self._limits.waiting
        if full:
            work.close()
            request.settle(_error(request.identity, BUSY, "too many requests at once"))
            return
        # Owned by this dispatcher: kept until it is done, ended by finish().
        task = asyncio.create_task(self._run(request, work))  # noqa: TID251
        self._open[request.identity] = request
        self._tasks[request] = task
        self._standing += request.is_subscription

        def done(_: object) -> None:
            work.close()  # of one that was cancelled before it began
            self._open.pop(request.identity, None)
            self._tasks.pop(request, None)
            self._standing -= request.is_subscription
            request.settle()

        task.add_done_callback(done)

    async def _run(self, request: HostRequest, work: PendingResult) -> None:
        try:
            if request.is_subscription or request.elsewhere:
                await self._hand_over(request, await work)
            else:
                await self._in_turn(request, work)
        except Exception as exc:  # noqa: BLE001 — boundary: whatever it is, the client is answered
            request.settle(_failure(request, exc))

    async def _in_turn(self, request: HostRequest, work: PendingResult) -> None:
        if not self._slots.take():
            with request.cancel.guard() as waiting:
                await self._slots.wait()
            if waiting.cancelled_caught:
                return
        try:
            if not request.cancel.cancelled:
                # It keeps its place until its answer is taken: those after it would only add to it.
                await self._hand_over(request, await work)
        finally:
            self._slots.give()

    async def _hand_over(self, request: HostRequest, result: JsonObject) -> None:
        """Answer as soon as there is room; what waits for a client to read has a limit."""
        room = request.channel.writable
        if not room.is_set():
            size = len(result.encoded) if isinstance(result, EncodedObject) else 0
            if self._unread + size > self._limits.unread_bytes:
                said = f"the answer of {size:,} bytes was dropped: those before it are not read"
                raise RpcError(BUSY, said)
            self._unread += size
            try:
                with request.cancel.guard():
                    while not room.is_set():  # others that waited may have filled it again
                        await room.wait()
            finally:
                self._unread -= size
        request.settle({"jsonrpc": "2.0", "id": request.identity, "result": result})

    # -- asking in turn ---------------------------------------------------------------------

    def ask(
        self, method: str, params: JsonObject | None, channel: ResponseChannel, *, within_s: float
    ) -> PendingResult:
        """Ask the client something that belongs to no request; as `HostRequest.ask` otherwise."""
        return self._questions.ask(method, params, channel, within_s)

    # -- the end ----------------------------------------------------------------------------

    def cancel(self, identity: RequestId, reason: str) -> None:
        """Cancel one request; it is not answered."""
        request = self._open.get(identity)
        if request is not None:
            request.cancel.cancel(reason)

    def gone(self, reason: str) -> None:
        """Cancel every request."""
        for request in [*self._tasks]:
            request.cancel.cancel(reason)

    def release(self, reason: str) -> None:
        """Take nothing more, and let those who listen go, with an answer."""
        self._closing = True
        for request in [*self._tasks]:
            if request.is_subscription:
                request.released = True
                request.cancel.cancel(reason)

    async def drained(self, within_s: float) -> bool:
        """Wait until every request but the standing ones is answered; False if it takes longer."""
        tasks = [task for request, task in self._tasks.items() if not request.is_subscription]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        return all(task.done() for task in tasks)

    async def finish(self, reason: str) -> None:
        """Cancel what is left, and see it end: by its token, or else by force."""
        self._questions.gone(reason)
        self.gone(reason)
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.linger_s)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.linger_s)


def is_request_id(value: object) -> TypeGuard[int | str]:
    """Tell whether JSON-RPC allows this as the id of a request."""
    return isinstance(value, (int, str)) and not isinstance(value, bool)


async def _known(result: JsonObject) -> JsonObject:
    return result


def _failure(request: HostRequest, exc: Exception) -> JsonObject:
    if isinstance(exc, ForwardedError):
        return {"jsonrpc": "2.0", "id": request.identity, "error": exc.error}
    if isinstance(exc, RpcError):
        return _error(request.identity, exc.code, exc.message, exc.data)
    # The client learns no more: what is in there is ours.
    _log.error("the host failed in %s", request.method, exc_info=exc)
    return _error(request.identity, INTERNAL_ERROR, "internal error")


def _error(identity: RequestId | None, code: int, message: str, data: JsonValue = None) -> JsonObject:
    error: JsonObject = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": identity, "error": error}


def _refuse(channel: ResponseChannel, identity: RequestId | None, code: int, message: str) -> None:
    channel.send(_error(identity, code, message))
