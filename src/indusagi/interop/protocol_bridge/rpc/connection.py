"""JSON-RPC 2.0 connection over a transport: request ids, deadlines, progress, cancellation, inbound requests, errors.

The only MCP methods it knows are `notifications/progress`, `notifications/cancelled` and `ping`. Each frame is parsed
once and passed on unchanged. Odd but intelligible frames (a batch, an id returned as a string, a missing version) are
accepted. Unintelligible ones are counted; if one was meant as a response, its request fails at once instead of at its
deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from indusagi.core.json import JsonObject, JsonValue
from indusagi.core.records import record
from indusagi.core.tasks import TRANSIENT_STATUSES
from indusagi.interop.protocol_bridge.contract import RECOVERIES, FaultDetail, ProtocolFault
from indusagi.interop.protocol_bridge.rpc.transport import (
    RequestId,
    Transport,
    TransportEnd,
    decode_frame,
    find_by_id,
    find_response_id,
    find_responses,
    get_object,
    is_peer_id,
)

_log = logging.getLogger(__name__)

# https://www.jsonrpc.org/specification#error_object
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
PARSE_ERROR = -32700
UNSUPPORTED_VERSION = -32022
"""`UnsupportedProtocolVersionError` of the modern protocol; `data.supported` lists the server's versions."""

HANDLER_EXIT_S = 5.0
"""How long to wait for a cancelled handler before closing the connection without it."""

OnProgress: TypeAlias = Callable[[JsonObject], None]
OnRequest: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]
OnNotify: TypeAlias = Callable[[str, JsonObject], None]
OnUnmatched: TypeAlias = Callable[[JsonValue, Literal["response", "progress"]], None]
"""Receives the id of a response or progress notification without a pending request."""


class RpcError(Exception):
    """An error response."""

    def __init__(self, code: int, message: str, data: JsonValue = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data
        self.detail: FaultDetail | None = None
        """The transport's details, such as the HTTP status."""


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
    """Return whether the first request of a handshake settled it, so that no other request would get further.

    `exc` is the exception the request raised, or `None` if its response came.
    """
    detail = exc.detail if isinstance(exc, RpcError) else None
    if detail is None:
        return exc is None
        # An HTTP status may apply to this request only; a refused connection applies to all.
    is_unreachable = detail.reason == "refused" and detail.http_status is None
    return is_unreachable or detail.reason in {"auth", "rate_limited", "redirect", "sign_in"}


def find_supported_versions(exc: RpcError) -> list[JsonValue]:
    """Return the versions listed in the `data.supported` of an error response."""
    versions = exc.data.get("supported") if isinstance(exc.data, dict) else None
    return versions if isinstance(versions, list) else []


def requires_modern(exc: BaseException | None) -> bool:
    """Return whether a server refused because it only speaks the modern protocol."""
    return isinstance(exc, RpcError) and exc.code == UNSUPPORTED_VERSION


def is_transient(exc: BaseException) -> bool:
    """Return whether the same request may succeed later, over the same connection."""
    if isinstance(exc, (TimeoutError, RequestTimeoutError)) or (
        isinstance(exc, ProtocolFault) and exc.kind == "timeout"
    ):
        return True
    detail = _get_detail(exc)
    return detail is not None and is_passing(detail)


def is_passing(detail: FaultDetail) -> bool:
    """Return whether a failure is transient, from its details."""
    if detail.reason == "refused" and detail.http_status is not None:
        return detail.http_status in TRANSIENT_STATUSES
    is_expected = detail.reason is not None and RECOVERIES[detail.reason] == "wait"
    return is_expected or detail.http_status in TRANSIENT_STATUSES


def get_retry_after(exc: BaseException) -> float | None:
    """Return the server's `Retry-After` in seconds, if any."""
    detail = _get_detail(exc)
    return None if detail is None else detail.retry_after_s


def _get_detail(exc: BaseException) -> FaultDetail | None:
    return exc.detail if isinstance(exc, (RpcError, ProtocolFault)) else None


@dataclass(slots=True)
class RequestOptions:
    """Deadlines and callbacks of one request."""

    idle_s: float
    """Longest silence; with `hard_s`, progress notifications reset it."""
    hard_s: float | None = None
    """Total deadline. If set, the request asks for progress notifications."""
    on_progress: OnProgress | None = None
    request_id: RequestId | None = None
    cancellable: bool = True
    """Whether to send `notifications/cancelled` when the wait ends without a response."""


@dataclass(slots=True)
class PendingRequest:
    """A request without a response yet."""

    response: asyncio.Future[JsonObject]
    options: RequestOptions
    due: float
    """Deadline in event loop time."""
    hard_at: float

    def postpone(self, now: float) -> None:
        """Reset the idle deadline, within the total one."""
        if self.options.hard_s is not None:
            self.due = min(self.hard_at, now + self.options.idle_s)


@record(kw_only=True)
class Cancellation:
    """How a protocol cancels a request by its id."""

    method: str
    facts: JsonObject
    """Additional parameters of the notification."""
    code: int | None = None
    """Error code of the response to a cancelled request; `None` for no response."""


MCP_CANCELLATION = Cancellation(method="notifications/cancelled", facts={"reason": "no longer wanted"})
"""https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/cancellation"""


class JsonRpcConnection:
    """One JSON-RPC connection over a transport, whose owner closes it.

    Without `on_request`, every method but `ping` is unknown. `on_notify` receives the peer's notifications, including
    progress of requests that are no longer pending; `on_unmatched` receives their responses, too. `in_flight` limits
    our requests, and further ones wait; `inbound` limits the peer's, and further ones are refused. `clean` changes the
    peer's frames.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        on_request: OnRequest | None = None,
        on_notify: OnNotify | None = None,
        on_unmatched: OnUnmatched = lambda _, kind: None,
        in_flight: int = 64,
        inbound: int = 8,
        on_invalid_frame: Callable[[bytes], None] | None = None,
        cancellation: Cancellation = MCP_CANCELLATION,
        clean: Callable[[JsonValue], JsonValue] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.invalid_frames = 0
        """Unintelligible frames."""
        self.frames_received = 0
        """All received frames, valid or not."""
        self.ended: asyncio.Future[TransportEnd] = self._loop.create_future()
        self.ids = itertools.count(1)
        self.check: Callable[[], object] | None = None
        """Called before sending each request and handling each frame; may `end` the connection."""
        self.transport = transport
        self._on_request = on_request
        self._on_notify = on_notify
        self._on_unmatched = on_unmatched
        self._on_invalid_frame = on_invalid_frame
        self._slots = asyncio.Semaphore(in_flight)
        self._inbound_limit = inbound
        self._cancellation = cancellation
        self._clean = clean
        self._pending: dict[RequestId, PendingRequest] = {}
        self._inbound: dict[RequestId | float, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        # Must be last: it delivers the frames received so far.
        transport.attach(self._receive, self.end)

    # -- outbound ---------------------------------------------------------------------------

    async def request(self, method: str, params: JsonObject | None, options: RequestOptions) -> JsonObject:
        """Send a request and wait for its response.

        If the wait ends without a response, by timeout or cancellation, notify the peer (in MCP with
        `notifications/cancelled`), unless the request isn't `cancellable`.

        Raises:
            RpcError: The peer responded with an error.
            InvalidResponseError: It responded with something else.
            RequestTimeoutError: It didn't respond in time; waiting for a free slot counts.
            ConnectionClosedError: The transport ended.
        """
        loop, idle_s, hard_s = self._loop, options.idle_s, options.hard_s
        now = loop.time()
        hard_at = now + (idle_s if hard_s is None else hard_s)
        pending = PendingRequest(loop.create_future(), options, min(hard_at, now + idle_s), hard_at)
        try:
            if self._slots.locked():
                async with _deadline(pending.due):
                    await self._slots.acquire()
            else:
                await self._slots.acquire()
            try:
                return await self._send(method, params, pending)
            finally:
                self._slots.release()
        except TimeoutError:
            is_total = hard_s is not None and loop.time() >= hard_at
            limit = f"{hard_s:g} s in all" if is_total else f"{idle_s:g} s"
            raise RequestTimeoutError(f"{method} was not answered within {limit}") from None

    async def _send(self, method: str, params: JsonObject | None, pending: PendingRequest) -> JsonObject:
        if self.check is not None:
            self.check()
        if self.ended.done():
            raise ConnectionClosedError(self.ended.result())
        options, response = pending.options, pending.response
        identity = next(self.ids) if options.request_id is None else options.request_id
        frame: JsonObject = {"jsonrpc": "2.0", "id": identity, "method": method}
        if options.hard_s is not None:
            # https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/progress
            meta = None if params is None else params.get("_meta")
            known = meta if isinstance(meta, dict) else {}
            frame["params"] = {**(params or {}), "_meta": {**known, "progressToken": identity}}
        elif params is not None:
            frame["params"] = params
        self._pending[identity] = pending
        try:
            if not self.transport.writable.is_set():
                async with _deadline(pending.due):
                    await self.transport.writable.wait()
            self.transport.send(frame)
            if pending.due < self._timer_at:
                self._set_timer(pending.due)
            try:
                return await response
            except (asyncio.CancelledError, TimeoutError):
                if options.cancellable:
                    self.notify(self._cancellation.method, {"requestId": identity, **self._cancellation.facts})
                raise
        finally:
            self._pending.pop(identity, None)
            # An error that arrives during a cancellation has no reader: mark it as retrieved.
            if response.done() and not response.cancelled():
                response.exception()

    def _set_timer(self, due: float) -> None:
        """Set the connection's single timer; one timer per request would cost a tenth of the whole request."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = None if due == math.inf else self._loop.call_at(due, self._expire)

    def _expire(self) -> None:
        now, next_due = self._loop.time(), math.inf
        for pending in self._pending.values():
            if self._inbound:
                # The peer is waiting for our response, so its silence doesn't count.
                pending.postpone(now)
            if pending.due > now:
                next_due = min(next_due, pending.due)
            elif not pending.response.done():
                pending.response.set_exception(TimeoutError())
        self._set_timer(next_due)

    def notify(self, method: str, params: JsonObject | None = None) -> None:
        """Send a notification."""
        frame: JsonObject = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            frame["params"] = params
        self.transport.send(frame)

    async def close(self) -> None:
        """Cancel the peer's running requests; the transport stays open.

        Abandon handlers that ignore the cancellation after `HANDLER_EXIT_S`.
        """
        tasks = list(self._inbound.values())
        for task in tasks:
            task.cancel()
        if tasks and (await asyncio.wait(tasks, timeout=HANDLER_EXIT_S))[1]:
            _log.warning("a handler ignores its cancellation; the connection is closed without it")

    def end(self, end: TransportEnd) -> None:
        """Fail every pending request as if the transport had ended, even if it's still open."""
        if self.ended.done():
            return
        self.ended.set_result(end)
        self._set_timer(math.inf)
        for pending in self._pending.values():
            if not pending.response.done():
                pending.response.set_exception(ConnectionClosedError(end))
        for task in self._inbound.values():
            task.cancel()

    # -- inbound ----------------------------------------------------------------------------

    def _receive(self, data: bytes | JsonValue) -> None:
        if self.check is not None:
            self.check()
            if self.ended.done():
                return
        self.frames_received += 1
        invalid = self.invalid_frames
        frame: JsonValue = None
        if not isinstance(data, bytes):
            frame = data
        else:
            try:
                frame = decode_frame(data)
            except (ValueError, RecursionError) as exc:
                identity = find_response_id(data)
                if identity is not None:
                    self._settle(identity, InvalidResponseError(f"the answer cannot be read: {exc}"))
                # A banner without a newline may precede the first response. Accept only responses to pending requests:
                # a log line may quote any message.
                elif responses := [
                    row for row in find_responses(data) if find_by_id(self._pending, row.get("id")) is not None
                ]:
                    self.invalid_frames += 1
                    frame = [*responses]
        if self._clean is not None:
            frame = self._clean(frame)
        for message in frame if isinstance(frame, list) and frame else (frame,):
            self._dispatch(message)
        if self._on_invalid_frame is not None and self.invalid_frames > invalid and isinstance(data, bytes):
            self._on_invalid_frame(data)

    def _dispatch(self, frame: JsonValue) -> None:
        if not isinstance(frame, dict):
            self.invalid_frames += 1
            return
        method, identity = frame.get("method"), frame.get("id")
        if isinstance(method, str):
            params = get_object(frame, "params")
            if identity is None:
                self._handle_notification(method, params)
            elif is_peer_id(identity):
                self._handle_request(identity, method, params)
            else:
                self._refuse(None, INVALID_REQUEST, "the id must be a text or a number")
        elif "result" in frame:
            result = frame["result"]
            if not isinstance(result, dict):
                kind = type(result).__name__ if result is not None else "null"
                result = InvalidResponseError(f"the result is {kind}, not an object")
            self._settle(identity, result)
        elif "error" in frame:
            self._settle(identity, parse_error(frame["error"]))
        else:
            self.invalid_frames += 1

    def _settle(self, identity: JsonValue, outcome: JsonObject | Exception) -> None:
        # Our ids are integers, but some servers return them as `1.0` or `"1"`.
        pending = self._pending.get(identity) if type(identity) is int else find_by_id(self._pending, identity)
        if pending is None:
            self._on_unmatched(identity, "response")
        elif not pending.response.done():
            if not isinstance(outcome, Exception):
                pending.response.set_result(outcome)
                return
            if isinstance(outcome, RpcError) and isinstance(identity, (int, str)):
                outcome.detail = self.transport.detail(identity)
            pending.response.set_exception(outcome)

    def _handle_notification(self, method: str, params: JsonObject) -> None:
        try:
            if method == "notifications/progress":
                self._handle_progress(params)
            elif method == self._cancellation.method:
                identity = params.get("requestId")
                task = self._inbound.get(identity) if is_peer_id(identity) else None
                if task is not None:
                    if self._cancellation.code is not None and is_peer_id(identity):
                        task.add_done_callback(lambda task: self._refuse_cancelled(identity, task))
                    task.cancel()
            elif self._on_notify is not None:
                self._on_notify(method, params)
        except Exception:  # noqa: BLE001 — boundary: a broken listener must not stop the reader
            _log.exception("a listener failed")

    def _handle_progress(self, params: JsonObject) -> None:
        # https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/progress
        pending = find_by_id(self._pending, params.get("progressToken"))
        if pending is None:
            self._on_unmatched(params.get("progressToken"), "progress")
            if self._on_notify is not None:  # a task outlives the request that created it
                self._on_notify("notifications/progress", params)
        elif pending.options.hard_s is not None:
            pending.postpone(self._loop.time())
            if pending.options.on_progress is not None:
                pending.options.on_progress(params)

    def _handle_request(self, identity: RequestId | float, method: str, params: JsonObject) -> None:
        if method == "ping":
            self.transport.send({"jsonrpc": "2.0", "id": identity, "result": {}})
        elif self._on_request is None or identity in self._inbound:
            self._refuse(identity, METHOD_NOT_FOUND, f"{method} is not supported")
        elif len(self._inbound) >= self._inbound_limit:
            self._refuse(identity, INTERNAL_ERROR, "too many requests at once")
        else:
            # Owned by this connection: `close` and the end of the transport cancel it.
            task = asyncio.create_task(  # noqa: TID251
                self._respond(identity, self._on_request, method, params)
            )
            self._inbound[identity] = task
            # A callback, because a task cancelled before it starts never runs its code.
            task.add_done_callback(lambda _: self._finish_inbound(identity))

    def _refuse_cancelled(self, identity: RequestId | float, task: asyncio.Task[None]) -> None:
        code = self._cancellation.code
        if code is not None and task.cancelled() and not self.ended.done():
            self._refuse(identity, code, "the request was cancelled")

    def _finish_inbound(self, identity: RequestId | float) -> None:
        self._inbound.pop(identity, None)
        now = self._loop.time()
        for pending in self._pending.values():
            pending.postpone(now)

    async def _respond(
        self, identity: RequestId | float, on_request: OnRequest, method: str, params: JsonObject
    ) -> None:
        try:
            result = await on_request(method, params)
            self.transport.send({"jsonrpc": "2.0", "id": identity, "result": result})
        except RpcError as exc:
            self._refuse(identity, exc.code, exc.message)
        except Exception:  # noqa: BLE001 — boundary: the handler is the user's; don't leak its error to the peer
            self._refuse(identity, INTERNAL_ERROR, "internal error")

    def _refuse(self, identity: RequestId | float | None, code: int, message: str) -> None:
        error: JsonObject = {"code": code, "message": message}
        self.transport.send({"jsonrpc": "2.0", "id": identity, "error": error})


def _deadline(due: float) -> asyncio.Timeout:
    return asyncio.timeout_at(None if due == math.inf else due)


def parse_error(error: JsonValue, peer: str = "server") -> RpcError | InvalidResponseError:
    """Parse a response's error."""
    if not isinstance(error, dict):
        return InvalidResponseError("the error is no object")
    code, message = error.get("code"), error.get("message")
    return RpcError(
        code if isinstance(code, int) else INTERNAL_ERROR,
        message if isinstance(message, str) else f"the {peer} gave no reason",
        error.get("data"),
    )
