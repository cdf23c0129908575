"""Runs, limits, cancels and answers the requests of one client.

The session provides a `serve` function, which answers at once or returns an awaitable. The transport passes in
messages, each with the `ResponseChannel` to answer on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator
from typing import Protocol, TypeAlias, TypeGuard

from indusagi.core.cancel import CancelToken
from indusagi.core.faults import describe_error
from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.interop.protocol_bridge.host.boundary import log_failure
from indusagi.interop.protocol_bridge.host.outgoing import (
    BUSY,
    SMALL_BYTES,
    OutgoingRequests,
    ResponseChannel,
    WaitingResponse,
    new_closed_error,
)
from indusagi.interop.protocol_bridge.rpc.connection import INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, RpcError
from indusagi.interop.protocol_bridge.rpc.transport import EncodedObject, EncodeError, RequestId, decode_frame

NO_PARAMS: JsonObject = {}
"""Stands in for missing params."""
_INVALID_MESSAGE = "the message is not a request"
_MAX_REASON_CHARS = 200
_PING = "ping"
"""Never queued: it asks whether the host is alive."""
_REQUEST_BYTES = 512
"""Approximate memory of a request on top of its message."""
_MAX_BATCH_PARTS = 100
"""All parts of a batch are handled in one turn of the event loop."""


class PendingResult(Protocol):
    """An awaitable result that can be closed; mostly a coroutine."""

    def __await__(self) -> Generator[object, None, JsonObject]:
        """Wait for the result."""
        ...

    def close(self) -> None:
        """Release it. Called once, awaited or not."""
        ...


@record(kw_only=True)
class HostLimits:
    """Limits per client."""

    calls: int = 64
    """Requests running at the same time; more have to wait."""
    waiting: int = 1_024
    """Started requests; more are queued in order."""
    queued_bytes: int = 8 * 1024 * 1024
    """Queued requests. Past the limit we stop reading from the client, or refuse its requests if its transport can't
    wait."""
    listeners: int = 16
    """Open subscriptions."""
    asks: int = 64
    """Unanswered requests to the client."""
    upstreams: int = 17
    """Connections of a relay to its server: one per session, plus a shared one."""
    frame_bytes: int = 16 * 1024 * 1024
    unread_bytes: int = 16 * 1024 * 1024
    """Responses of all clients waiting in memory until earlier ones are read; past the limit they wait on disk."""
    linger_s: float = 1.0
    """How long calls may take to finish after the client's input ends."""
    stop_s: float = 5.0
    """How long calls may take to finish when the host stops, before they're cancelled."""


class ForwardedError(Exception):
    """A JSON-RPC error object to pass on to the client unchanged."""

    def __init__(self, error: JsonValue) -> None:
        super().__init__("refused")
        self.error = error


class HostRequest:
    """One request of a client until it's answered."""

    __slots__ = ("cancel", "channel", "id", "is_answered", "is_forwarded", "is_released", "is_subscription", "meta",
                 "method", "on_answered", "outgoing", "params")  # fmt: skip

    def __init__(
        self,
        request_id: RequestId,
        method: str,
        params: JsonObject,
        channel: ResponseChannel,
        outgoing: OutgoingRequests,
        on_answered: Callable[[], None] | None = None,
    ) -> None:
        self.id = request_id
        self.method = method
        self.params = params
        meta = params.get("_meta")
        self.meta: JsonObject = meta if isinstance(meta, dict) else NO_PARAMS
        self.channel = channel
        self.outgoing = outgoing
        self.on_answered = on_answered
        self.cancel = CancelToken()
        self.is_subscription = False
        """Stays open as long as the client likes; doesn't count as a call."""
        self.is_forwarded = False
        """Another server does the work, so it needs no slot here."""
        self.is_released = False
        """Cancelled by the host in an orderly way: still gets a response."""
        self.is_answered = False

    def notify(self, method: str, params: JsonObject) -> None:
        """Send a notification for this request, unless it's answered already."""
        if not self.is_answered:
            self.channel.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def send_request(self, method: str, params: JsonObject | None = None, *, within_s: float) -> JsonObject:
        """Send the client a request as part of this one and wait for the result; raise like `OutgoingRequests.send`."""
        with self.cancel.guard():
            return await self.outgoing.send(method, params, self.channel, within_s)
        raise new_closed_error("the request was cancelled")

    def respond(self, frame: JsonObject | None = None) -> None:
        """Send the response, unless the client cancelled the request."""
        if self.is_answered:
            return
        if frame is not None and (self.is_released or not self.cancel.cancelled):
            try:
                self.channel.send(frame)
            except EncodeError as exc:
                self.channel.send(_error_frame(self.id, INTERNAL_ERROR, f"the response cannot be sent: {exc}"))
        self.is_answered = True
        if self.on_answered is not None:
            self.on_answered()


Serve: TypeAlias = Callable[[HostRequest], JsonObject | PendingResult]
"""Returns a result or an awaitable; raises `RpcError` to refuse."""
OnNotification: TypeAlias = Callable[[str, JsonObject], None]
Reader: TypeAlias = Callable[[bytes], JsonValue]


class ServerSession(Protocol):
    """A client's session, as a transport sees it."""

    @property
    def dispatcher(self) -> RequestDispatcher:
        """Receives the client's messages."""
        ...

    @property
    def version(self) -> str | None:
        """Revision agreed on in the handshake, if there was one."""
        ...

    @property
    def notification_channel(self) -> ResponseChannel | None:
        """Carries frames outside of requests, while there is a way to send them."""
        ...

    @notification_channel.setter
    def notification_channel(self, channel: ResponseChannel | None) -> None: ...

    async def close(self, reason: str) -> None:
        """Cancel the client's requests and wait for them to end."""
        ...


class RequestDispatcher:
    """The open requests of one client."""

    def __init__(
        self,
        serve: Serve,
        on_notification: OnNotification | None = None,
        limits: HostLimits | None = None,
        *,
        on_response: Callable[[JsonObject], None] | None = None,
        read: Reader = decode_frame,
    ) -> None:
        self._serve = serve
        self._on_notification = on_notification
        self._on_response = on_response
        self._read = read
        self._limits = limits or HostLimits()
        self._slots = asyncio.Semaphore(self._limits.calls)
        self._outgoing = OutgoingRequests(self._limits.asks)
        self._open: dict[RequestId, HostRequest] = {}
        self._tasks: dict[HostRequest, asyncio.Task[None]] = {}
        self._queue: deque[tuple[HostRequest, int]] = deque()
        """Requests not started yet, with their sizes."""
        self._queued_bytes = 0
        self._on_room: Callable[[], None] | None = None
        self.answered = 0
        """Number of requests answered from a task."""
        self._subscriptions = 0
        self._is_closing = False

    @property
    def is_idle(self) -> bool:
        """Whether no request is open."""
        return not self._open

    @property
    def has_room(self) -> bool:
        """Whether to read more of the client's messages."""
        return self._queued_bytes < self._limits.queued_bytes

    def watch_room(self, on_room: Callable[[], None]) -> None:
        """Call `on_room` whenever there's room again."""
        self._on_room = on_room

    # -- messages from the client ---------------------------------------------------------------

    def receive(self, data: bytes | JsonValue, channel: ResponseChannel) -> None:
        """Handle a message from a transport, valid or not."""
        size = len(data) if isinstance(data, bytes) else 0
        if isinstance(data, bytes):
            try:
                data = self._read(data)
            except (ValueError, RecursionError) as exc:
                channel.send(_error_frame(None, PARSE_ERROR, f"the message is not valid JSON: {describe_error(exc)}"))
                return
        # Only revision 2025-03-26 has batches. Handle each part as if it had come alone:
        # https://modelcontextprotocol.io/specification/2025-03-26/basic#batching
        parts = data if isinstance(data, list) and data else [data]
        if len(parts) > _MAX_BATCH_PARTS:
            message = f"a batch may have {_MAX_BATCH_PARTS} parts, and this one has {len(parts):,}"
            channel.send(_error_frame(None, INVALID_REQUEST, message))
            return
        frames = [part for part in parts if isinstance(part, dict)]
        for frame in frames:
            try:
                self._receive_frame(frame, channel, size)
            except Exception as exc:  # noqa: BLE001 — boundary: go on to the next message
                log_failure("a message of a client", exc)
        if len(frames) < len(parts):
            channel.send(_error_frame(None, INVALID_REQUEST, _INVALID_MESSAGE))

    def _receive_frame(self, frame: JsonObject, channel: ResponseChannel, size: int) -> None:
        if "method" not in frame and ("result" in frame or "error" in frame):
            self._outgoing.resolve(frame)
            if self._on_response is not None:
                self._on_response(frame)
            return
        method = frame.get("method")
        if not isinstance(method, str):
            channel.send(_error_frame(None, INVALID_REQUEST, _INVALID_MESSAGE))
            return
        value = frame.get("params")
        params = value if isinstance(value, dict) else NO_PARAMS
        if "id" not in frame:
            self._receive_notification(method, params)
            return
        request_id = frame["id"]
        if not is_request_id(request_id):
            channel.send(_error_frame(None, INVALID_REQUEST, "the id must be a text or a whole number"))
        elif value is not None and not isinstance(value, dict):
            channel.send(_error_frame(request_id, INVALID_REQUEST, "params must be an object"))
        else:
            self.request(request_id, method, params, channel, size=size)

    def _receive_notification(self, method: str, params: JsonObject) -> None:
        if self._on_notification is not None:
            self._on_notification(method, params)
        if method == "notifications/cancelled":
            # https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/cancellation
            request_id, reason = params.get("requestId"), params.get("reason")
            if is_request_id(request_id):
                reason = reason[:_MAX_REASON_CHARS] if isinstance(reason, str) and reason else "cancelled"
                self.cancel(request_id, reason)

    def request(
        self,
        request_id: RequestId,
        method: str,
        params: JsonObject,
        channel: ResponseChannel,
        on_answered: Callable[[], None] | None = None,
        *,
        size: int = 0,
    ) -> None:
        """Run a request. Its response goes to `channel`, and then `on_answered` is called."""
        request = HostRequest(request_id, method, params, channel, self._outgoing, on_answered)
        if self._is_closing:
            request.respond(_error_frame(request_id, BUSY, "the host is stopping"))
            return
        if request_id in self._open:
            request.respond(_error_frame(request_id, INVALID_REQUEST, "a request with this id is running"))
            return
        if method != _PING and (self._queue or len(self._tasks) - self._subscriptions >= self._limits.waiting):
            # A transport that can wait has stopped reading by now; one read brings a frame at most.
            if self._queued_bytes > self._limits.queued_bytes + self._limits.frame_bytes:
                request.respond(_error_frame(request_id, BUSY, "too many requests at once"))
                return
            size += _REQUEST_BYTES
            self._open[request_id] = request
            self._queue.append((request, size))
            self._queued_bytes += size
            return
        self._begin(request)

    def _begin_queued(self) -> None:
        """Start queued requests while there's room."""
        had_room = self.has_room
        while self._queue and len(self._tasks) - self._subscriptions < self._limits.waiting:
            request, size = self._queue.popleft()
            self._queued_bytes -= size
            del self._open[request.id]
            if request.cancel.cancelled:
                request.respond()
            else:
                self._begin(request)
        if not had_room and self.has_room and self._on_room is not None:
            self._on_room()

    def _begin(self, request: HostRequest) -> None:
        request_id, channel = request.id, request.channel
        try:
            result = self._serve(request)
        except Exception as exc:  # noqa: BLE001 — boundary: answer every request
            request.respond(_failure_frame(request, exc))
            return
        if isinstance(result, dict):
            if channel.writable.is_set():
                request.respond({"jsonrpc": "2.0", "id": request_id, "result": result})
                return
            result = _return_later(result)
        if request.is_subscription:
            is_full = self._subscriptions >= self._limits.listeners
        else:
            is_full = len(self._tasks) - self._subscriptions >= self._limits.waiting
        if is_full:
            result.close()
            request.respond(_error_frame(request_id, BUSY, "too many requests at once"))
            return
        # This dispatcher owns the task: it holds on to it, and `close` ends it.
        task = asyncio.create_task(self._run(request, result))  # noqa: TID251
        self._open[request_id] = request
        self._tasks[request] = task
        self._subscriptions += request.is_subscription

        def finish(_: object) -> None:
            result.close()
            self._remove(request)
            request.respond()
            if self._queue:
                self._begin_queued()

        task.add_done_callback(finish)

    def _remove(self, request: HostRequest) -> None:
        if self._tasks.pop(request, None) is not None:
            self.answered += 1
            del self._open[request.id]
            self._subscriptions -= request.is_subscription

    async def _run(self, request: HostRequest, result: PendingResult) -> None:
        takes_slot = not request.is_subscription and not request.is_forwarded
        if takes_slot and self._slots.locked():
            with request.cancel.guard() as waiting:
                await self._slots.acquire()
            if waiting.cancelled_caught:
                return
        elif takes_slot:
            await self._slots.acquire()
        try:
            if takes_slot and request.cancel.cancelled:
                return
            # Hold the slot until the response is written: the next requests would only add to the unread data.
            value = await result
            is_large = isinstance(value, EncodedObject) and len(value.encoded) > SMALL_BYTES
            if not request.channel.writable.is_set() or (is_large and not request.channel.room.is_set()):
                with WaitingResponse(value) as waiting:
                    del value  # it may move to disk
                    value = await self._wait_for_client(request, waiting)
            frame: JsonObject = {"jsonrpc": "2.0", "id": request.id, "result": value}
        except Exception as exc:  # noqa: BLE001 — boundary: answer every request
            frame = _failure_frame(request, exc)
        finally:
            if takes_slot:
                self._slots.release()
        self._remove(request)
        request.respond(frame)

    async def _wait_for_client(self, request: HostRequest, waiting: WaitingResponse) -> JsonObject:
        """Wait until a request's client has read the earlier responses."""
        with request.cancel.guard():
            await waiting.store(self._limits.unread_bytes)
            await waiting.wait(request.channel)
            return waiting.load()
        return NO_PARAMS  # cancelled

    def send_request(
        self, method: str, params: JsonObject | None, channel: ResponseChannel, *, within_s: float
    ) -> PendingResult:
        """Send the client a request outside of its own requests; see `HostRequest.send_request`."""
        return self._outgoing.send(method, params, channel, within_s)

    # -- cancelling and closing -----------------------------------------------------------------

    def cancel(self, request_id: RequestId, reason: str) -> None:
        """Cancel one request; it gets no response."""
        request = self._open.get(request_id)
        if request is not None:
            request.cancel.cancel(reason)

    def cancel_all(self, reason: str) -> None:
        """Cancel every request."""
        for request in [*self._tasks]:
            request.cancel.cancel(reason)

    def release(self, reason: str) -> None:
        """Refuse new and queued requests, and end subscriptions with a response."""
        self._is_closing = True
        self._clear_queue("the host is stopping")
        for request in [*self._tasks]:
            if request.is_subscription:
                request.is_released = True
                request.cancel.cancel(reason)

    def _clear_queue(self, reason: str) -> None:
        queue, self._queue, self._queued_bytes = self._queue, deque(), 0
        for request, _ in queue:
            del self._open[request.id]
            request.respond(_error_frame(request.id, BUSY, reason))

    async def wait_idle(self, within_s: float) -> bool:
        """Wait until all started requests except subscriptions are answered; return False if some are still open."""
        tasks = [task for request, task in self._tasks.items() if not request.is_subscription]
        if tasks:
            await asyncio.wait(tasks, timeout=within_s)
        return len(self._open) == self._subscriptions

    async def close(self, reason: str) -> None:
        """Cancel all requests through their tokens, then by force, and wait for them to end."""
        self._outgoing.fail_all(reason)
        self._is_closing = True
        self._clear_queue(reason)
        self.cancel_all(reason)
        tasks = list(self._tasks.values())
        if tasks:
            await asyncio.wait(tasks, timeout=self._limits.linger_s)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=self._limits.linger_s)


def is_request_id(value: object) -> TypeGuard[int | str]:
    """Return whether a value is a request id: https://modelcontextprotocol.io/specification/2025-06-18/basic#requests."""
    return isinstance(value, (int, str)) and not isinstance(value, bool)


async def _return_later(result: JsonObject) -> JsonObject:
    return result


def _failure_frame(request: HostRequest, exc: Exception) -> JsonObject:
    if isinstance(exc, ForwardedError):
        return {"jsonrpc": "2.0", "id": request.id, "error": exc.error}
    if isinstance(exc, RpcError):
        return _error_frame(request.id, exc.code, exc.message, exc.data)
    # Keep the details in the log: they may reveal paths and values of this machine.
    log_failure("a request", exc)
    return _error_frame(request.id, INTERNAL_ERROR, "internal error")


def _error_frame(request_id: RequestId | None, code: int, message: str, data: JsonValue = None) -> JsonObject:
    error: JsonObject = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return {"jsonrpc": "2.0", "id": request_id, "error": error}
