"""Connections of a relay to its server (the upstream): raw frames, forwarded requests, reconnects.

Frames pass through unchanged. Frames sent before a connection is open wait for it; a connection that replaces a broken
one first repeats the client's handshake. Invalid frames from the server are dropped; if one was a response, its request
fails at once. The backlog for a server that doesn't read is limited, and so are warnings about it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Generator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from indusagi.core.tasks import BackgroundTask
from indusagi.interop.protocol_bridge.client.connect import open_transport
from indusagi.interop.protocol_bridge.client.faults import FaultSite, to_protocol_fault
from indusagi.interop.protocol_bridge.client.start import RestartRecord, Supervision
from indusagi.interop.protocol_bridge.host.boundary import RateLimitedLog, log_failure
from indusagi.interop.protocol_bridge.host.dispatcher import NO_PARAMS, ForwardedError, HostRequest
from indusagi.interop.protocol_bridge.rpc.connection import INTERNAL_ERROR, ConnectionClosedError, RpcError, parse_error
from indusagi.interop.protocol_bridge.rpc.mcp_headers import SUBSCRIPTION
from indusagi.interop.protocol_bridge.rpc.transport import (
    decode_frame_verbatim,
    estimate_size,
    find_by_id,
    find_response_id,
)

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject, JsonValue
    from indusagi.interop.protocol_bridge.contract import ProtocolFault, ServerConfig
    from indusagi.interop.protocol_bridge.rpc.transport import RequestId, Transport, TransportEnd

_log = logging.getLogger(__name__)

LISTEN = "subscriptions/listen"
CANCELLED = "notifications/cancelled"
PROGRESS = "notifications/progress"
UNAVAILABLE = -32000
_DISCOVER = "server/discover"
_CLOSE_S = 1.0
"""A relay shuts down within seconds, including its servers."""
_RETRY_S = 1.0
_MAX_BACKLOG_BYTES = 4 * 1024 * 1024
"""Limit of the backlog for a server that doesn't read."""
_MAX_SCHEMAS = 1_000
_HEADER_MARK = "x-mcp-header"


class UpstreamConnection:
    """One connection to the server, from start to end; `UpstreamPool.open` starts it."""

    def __init__(
        self,
        config: ServerConfig,
        on_frame: Callable[[JsonObject], None],
        on_end: Callable[[ProtocolFault], None],
        handshake: Sequence[JsonObject] = (),
    ) -> None:
        self._config = config
        self._on_frame = on_frame
        self._on_end = on_end
        self._handshake = [*handshake]
        self._waiting: list[JsonObject] = []
        self._unread_bytes = 0
        self._warnings = RateLimitedLog(f"server {config.id!r}")
        self._transport: Transport | None = None
        self._is_ready = False
        self._ended = asyncio.Event()
        self._task = BackgroundTask("relay")
        self._began_at = asyncio.get_running_loop().time()

    @property
    def up_s(self) -> float:
        """Seconds since the start."""
        return asyncio.get_running_loop().time() - self._began_at

    def start(self, on_closed: Callable[[UpstreamConnection], None]) -> None:
        """Connect in a background task; `on_closed` runs once everything is released."""
        self._task.start(self._run(on_closed))

    async def _run(self, on_closed: Callable[[UpstreamConnection], None]) -> None:
        try:
            async with open_transport(self._config) as transport:
                self._transport = transport
                transport.attach(self._receive, self._handle_end)
                if self._handshake:
                    self._transmit(self._handshake[0])
                else:
                    self._send_waiting()
                await self._ended.wait()
        except Exception as exc:  # noqa: BLE001 — boundary: `_fail` answers the waiting requests
            self._fail(exc)
        finally:
            on_closed(self)

    async def close(self) -> None:
        """Close the connection without calling `on_end`, and wait until it's released."""
        self._ended.set()
        await self._task.join()

    def _send_waiting(self) -> None:
        self._is_ready = True
        waiting, self._waiting = self._waiting, []
        for frame in waiting:
            self._transmit(frame)

    def _handle_end(self, end: TransportEnd) -> None:
        if end.detail.stderr and not self._ended.is_set():
            # For the relay's log only: its clients may be anyone.
            from indusagi.interop.protocol_bridge.client.causes import find_cause  # noqa: PLC0415 — its patterns compile on a fault only

            cause = find_cause(end.detail.stderr)
            _log.warning("standard error of server %r: %s", self._config.id, cause)
        self._fail(ConnectionClosedError(replace(end, detail=replace(end.detail, stderr=()))))

    def _fail(self, exc: Exception, site: FaultSite | None = None) -> None:
        if not self._ended.is_set():
            self._ended.set()
            known = FaultSite.CONNECT if self._transport is None else FaultSite.HELD
            self._on_end(to_protocol_fault(exc, self._config, site or known))

    def _read_refusal(self, frame: JsonObject) -> Exception:
        """Read why the server refused the repeated handshake: it wouldn't answer anything on this connection."""
        refusal, request_id = parse_error(frame["error"]), frame["id"]
        if isinstance(refusal, RpcError) and self._transport is not None and isinstance(request_id, (int, str)):
            refusal.detail = self._transport.detail(request_id)
        return refusal

    def send(self, frame: JsonObject) -> bool:
        """Send a frame as soon as the connection is ready; return False if the backlog is full."""
        if self._is_ready and self._transport is not None and self._transport.writable.is_set():
            self._unread_bytes = 0
        elif self._unread_bytes > _MAX_BACKLOG_BYTES:
            self._warnings.write("reads nothing: messages to it are dropped")
            return False
        else:
            self._unread_bytes += estimate_size(frame)
        if self._is_ready:
            self._transmit(frame)
        else:
            self._waiting.append(frame)
        return True

    def _transmit(self, frame: JsonObject) -> None:
        if self._transport is not None and not self._ended.is_set():
            self._transport.send(frame)

    def _receive(self, data: bytes | JsonValue) -> None:
        frames = self._parse(data) if isinstance(data, bytes) else data
        for frame in frames if isinstance(frames, list) else (frames,):
            if self._ended.is_set():
                return
            if isinstance(frame, dict):
                try:
                    self._receive_frame(frame)
                except Exception as exc:  # noqa: BLE001 — boundary: keep reading
                    log_failure("a message of a server", exc)
            elif frame is not None:
                self._warnings.write("sent a value that is not a message")

    def _parse(self, line: bytes) -> JsonValue:
        try:
            return decode_frame_verbatim(line)
        except (ValueError, RecursionError) as exc:
            self._warnings.write("sent invalid JSON")
            request_id = find_response_id(line)
            if request_id is None:
                return None
            message = f"server {self._config.id!r}: its answer cannot be read: {exc}"
            error: JsonObject = {"code": INTERNAL_ERROR, "message": message}
            return {"jsonrpc": "2.0", "id": request_id, "error": error}

    def _receive_frame(self, frame: JsonObject) -> None:
        if not self._is_ready and self._handshake and frame.get("id") == self._handshake[0]["id"]:
            if "error" in frame:
                self._fail(self._read_refusal(frame), FaultSite.CONNECT)
                return
            for other in self._handshake[1:]:
                self._transmit(other)
            self._send_waiting()
            return
        error, request_id = frame.get("error"), frame.get("id")
        if isinstance(error, dict) and isinstance(request_id, (int, str)) and self._transport is not None:
            detail = self._transport.detail(request_id)
            if detail is not None and detail.reason is not None:
                # The transport failed, not the server, so the message doesn't name the server yet.
                message = f"server {self._config.id!r}: {error.get('message')}"
                frame = {**frame, "error": {**error, "message": message}}
        self._on_frame(frame)


class ReconnectBackoff:
    """How soon a broken connection may be replaced."""

    def __init__(self, rules: Supervision | None = None) -> None:
        self._record = RestartRecord(rules or Supervision())
        self._not_before = 0.0
        self._fault: ProtocolFault | None = None

    def check(self) -> None:
        """Raise `RpcError` if the last connection broke too recently to open another."""
        wait_s = self._not_before - asyncio.get_running_loop().time()
        if wait_s > 0:
            message = f"{self._fault}; it is not started again before {wait_s:.0f} s have passed"
            raise RpcError(UNAVAILABLE, message)

    def record_failure(self, fault: ProtocolFault, up_s: float) -> None:
        """Record a connection that broke after `up_s` seconds."""
        now = asyncio.get_running_loop().time()
        wait_s = self._record.delay(fault, up_s, now)
        if wait_s is None:
            wait_s = _RETRY_S
        elif self._record.in_a_row == 1:
            wait_s = 0.0  # the next request after a first failure reconnects at once
        self._not_before = now + wait_s
        self._fault = fault


class UpstreamPool:
    """The connections to one server, limited in number."""

    def __init__(self, config: ServerConfig, limit: int) -> None:
        limits = replace(config.limits, close_s=min(config.limits.close_s, _CLOSE_S))
        self.config: ServerConfig = replace(config, limits=limits)
        self._limit = limit
        self._open: set[UpstreamConnection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, connection: UpstreamConnection) -> bool:
        return connection in self._open

    def open(
        self,
        on_frame: Callable[[JsonObject], None],
        on_end: Callable[[str], None],
        backoff: ReconnectBackoff,
        handshake: Sequence[JsonObject] = (),
    ) -> UpstreamConnection:
        """Start a connection, or raise `RpcError` if there are too many, or the last one broke too recently."""
        backoff.check()
        if len(self._open) >= self._limit:
            message = (
                f"server {self.config.id!r}: {self._limit} clients have a connection of their own, "
                "and more are not allowed: try again when one has left"
            )
            raise RpcError(UNAVAILABLE, message)

        def handle_end(fault: ProtocolFault) -> None:
            backoff.record_failure(fault, connection.up_s)
            on_end(str(fault))

        connection = UpstreamConnection(self.config, on_frame, handle_end, handshake)
        self._open.add(connection)
        connection.start(self._open.discard)
        return connection


class ToolSchemas:
    """Argument schemas of tools that map arguments to HTTP headers (`x-mcp-header`)."""

    def __init__(self) -> None:
        self._schemas: OrderedDict[str, JsonObject] = OrderedDict()

    def learn(self, result: JsonObject) -> None:
        """Remember the schemas in a `tools/list` result on its way to a client."""
        tools = result.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if not isinstance(tool, dict):
                continue
            name, schema = tool.get("name"), tool.get("inputSchema")
            if not isinstance(name, str):
                continue
            self._schemas.pop(name, None)
            if isinstance(schema, dict) and _HEADER_MARK in json.dumps(schema):
                self._schemas[name] = schema
                if len(self._schemas) > _MAX_SCHEMAS:
                    self._schemas.popitem(last=False)

    def find(self, name: str) -> JsonObject | None:
        """Return a tool's argument schema if it maps arguments to headers."""
        return self._schemas.get(name)


class RelayedRequest:
    """A forwarded request; await it for the server's result. A `PendingResult`."""

    def __init__(
        self,
        request: HostRequest,
        upstream_id: RequestId,
        on_withdraw: Callable[[RelayedRequest], None],
        on_close: Callable[[RelayedRequest], None],
    ) -> None:
        self.request = request
        self.upstream_id = upstream_id
        """Its id on the server."""
        self.is_withdrawn = False
        """Whether the server needs no cancellation: it was already notified, or never got the request."""
        self._on_withdraw = on_withdraw
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._response: asyncio.Future[JsonObject] = self._loop.create_future()
        self._timer: asyncio.TimerHandle | None = None
        self._stop_listening = request.cancel.on_cancel(self._cancel)
        request.is_subscription = request.method == LISTEN
        request.is_forwarded = True

    def __await__(self) -> Generator[object, None, JsonObject]:
        result = yield from self._response.__await__()
        # Don't hold on to it: it may have to wait for the client, and then moves to disk.
        self._response = self._loop.create_future()
        self._response.set_result({})
        return result

    def close(self) -> None:
        """Release the request, and cancel it if the server still works on it."""
        self._stop_listening()
        if self._timer is not None:
            self._timer.cancel()
        self._withdraw()
        # Mark the error as retrieved: it's fine if nothing awaits it.
        if not self._response.cancel() and not self._response.cancelled():
            self._response.exception()
        self._on_close(self)

    def _cancel(self) -> None:
        self._withdraw()
        if not self._response.done():
            # Sent only if the host ends a subscription gracefully.
            meta: JsonObject = {SUBSCRIPTION: self.request.id}
            self._response.set_result({"resultType": "complete", "_meta": meta})

    def _withdraw(self) -> None:
        if not self._response.done() and not self.is_withdrawn:
            self.is_withdrawn = True
            self._on_withdraw(self)

    @property
    def token(self) -> JsonValue:
        """The client's progress token."""
        return self.request.meta.get("progressToken")

    def to_frame(self, params: JsonObject | None = None) -> JsonObject:
        """Build the frame for the server, optionally with other `params`."""
        frame: JsonObject = {"jsonrpc": "2.0", "id": self.upstream_id, "method": self.request.method}
        chosen = self.request.params if params is None else params
        return frame if chosen is NO_PARAMS else {**frame, "params": chosen}

    def to_cancellation(self) -> JsonObject:
        """Build its cancellation."""
        reason = self.request.cancel.reason or "no longer wanted"
        params: JsonObject = {"requestId": self.upstream_id, "reason": reason}
        return {"jsonrpc": "2.0", "method": CANCELLED, "params": params}

    def resolve(self, frame: JsonObject) -> None:
        """Accept the server's response, valid or not; judging it is up to the client."""
        if self._response.done():
            return
        if "result" in frame:
            self._response.set_result(cast("JsonObject", frame["result"]))
        else:
            self._response.set_exception(ForwardedError(frame["error"]))

    def fail(self, message: str) -> None:
        """Fail the request: no response will come."""
        if not self._response.done():
            self.is_withdrawn = True
            self._response.set_exception(RpcError(UNAVAILABLE, message))

    def set_deadline(self, within_s: float, message: str) -> None:
        """Cancel the request and fail it with `message` after `within_s` seconds."""

        def expire() -> None:
            self._withdraw()
            self.fail(message)

        self._timer = self._loop.call_later(within_s, expire)


class RequestForwarder:
    """Forwards requests over one connection at a time and matches incoming frames to them."""

    def __init__(self, pool: UpstreamPool, backoff: ReconnectBackoff, on_frame: Callable[[JsonObject], None]) -> None:
        self.open: dict[RequestId, RelayedRequest] = {}
        """Requests by their id on the server, newest last."""
        self.connection: UpstreamConnection | None = None
        self.withdrawn_at = float("-inf")
        """Event loop time of the last cancellation."""
        self._pool = pool
        self._backoff = backoff
        self._on_frame = on_frame
        self._broken: list[UpstreamConnection] = []
        self._is_closed = False

    def connect(self, handshake: Sequence[JsonObject] = ()) -> UpstreamConnection:
        """Return the connection, starting one with `handshake` if necessary; raise `RpcError` if that's impossible."""
        if self._is_closed:
            raise RpcError(UNAVAILABLE, "the relay has ended")
        if self.connection is None:
            self.connection = self._pool.open(self._on_frame, self._handle_end, self._backoff, handshake)
        return self.connection

    def forward(self, request: HostRequest, upstream_id: RequestId, params: JsonObject | None = None) -> RelayedRequest:
        """Forward a request over the open connection, optionally with other `params`.

        Raises `RpcError` if the backlog of a server that doesn't read is full.
        """
        relayed = RelayedRequest(request, upstream_id, self._withdraw, self._remove)
        self.open[upstream_id] = relayed
        if request.method == _DISCOVER:
            # Servers of older revisions may never respond to it.
            limit_s = self._pool.config.limits.start_s
            message = f"it did not answer {_DISCOVER} within {limit_s:g} s"
            relayed.set_deadline(limit_s, f"server {self._pool.config.id!r}: {message}")
        if not self.send(relayed.to_frame(params)):
            relayed.is_withdrawn = True  # it was never sent
            relayed.close()
            raise RpcError(UNAVAILABLE, "the server takes nothing more at the moment")
        return relayed

    def send(self, frame: JsonObject) -> bool:
        """Send a frame if there's a connection; return False if the backlog is full."""
        return self.connection is None or self.connection.send(frame)

    def find(self, upstream_id: JsonValue) -> RelayedRequest | None:
        """Find a request, even if its id 1 comes back as `1.0` or `"1"`."""
        return find_by_id(self.open, upstream_id)

    def find_by_response(self, frame: JsonObject) -> RelayedRequest | None:
        """Find the request a response belongs to."""
        return self.find(frame.get("id")) if "result" in frame or "error" in frame else None

    async def close(self) -> None:
        """Close the connection for good, and wait for broken ones to be released."""
        self._is_closed = True
        closing, self._broken = self._broken, []
        if self.connection is not None:
            closing.append(self.connection)
            self.connection = None
        for connection in closing:
            await connection.close()

    def _withdraw(self, relayed: RelayedRequest) -> None:
        self.withdrawn_at = asyncio.get_running_loop().time()
        # https://modelcontextprotocol.io/specification/2025-06-18/basic/utilities/cancellation#behavior-requirements
        if relayed.request.method != "initialize":
            self.send(relayed.to_cancellation())

    def _remove(self, relayed: RelayedRequest) -> None:
        self.open.pop(relayed.upstream_id, None)

    def _handle_end(self, message: str) -> None:
        self._broken = [connection for connection in self._broken if connection in self._pool]
        if self.connection is not None:
            self._broken.append(self.connection)
        self.connection = None
        for relayed in [*self.open.values()]:
            relayed.fail(message)
