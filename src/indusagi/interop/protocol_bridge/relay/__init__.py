"""The relay: serves one server through a host, as if clients reached it directly.

Nothing is renamed or translated. A client with a handshake gets a dedicated connection to the server. Clients of
revision 2026-07-28 share one over HTTP, because their requests are self-contained. The server itself refuses revisions
it doesn't support.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

from indusagi.core.json import JsonObject, JsonValue
from indusagi.interop.protocol_bridge.client.handlers import ABANDONED_S
from indusagi.interop.protocol_bridge.client.start import Supervision
from indusagi.interop.protocol_bridge.contract import ServerConfig
from indusagi.interop.protocol_bridge.host import ServingHost
from indusagi.interop.protocol_bridge.host.boundary import RateLimitedLog
from indusagi.interop.protocol_bridge.host.dispatcher import NO_PARAMS, HostLimits, HostRequest, RequestDispatcher
from indusagi.interop.protocol_bridge.host.http import open_http
from indusagi.interop.protocol_bridge.host.http.settings import HttpHost, HttpSettings
from indusagi.interop.protocol_bridge.host.identity import ClientIdentity
from indusagi.interop.protocol_bridge.host.outgoing import ResponseChannel
from indusagi.interop.protocol_bridge.relay.upstream import (
    CANCELLED,
    PROGRESS,
    UNAVAILABLE,
    ReconnectBackoff,
    RelayedRequest,
    RequestForwarder,
    ToolSchemas,
    UpstreamPool,
)
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from indusagi.interop.protocol_bridge.rpc.mcp_headers import LOG_LEVEL, SUBSCRIPTION, VERSION
from indusagi.interop.protocol_bridge.rpc.transport import (
    RequestId,
    decode_frame_verbatim,
    encode_object,
    estimate_size,
    get_object,
    is_peer_id,
)

_STOP_S = 2.5
"""Calls and the server behind them get five seconds altogether to end."""


class RelayHost(ServingHost):
    """Serves one server to clients; see `create_relay_host`."""

    def __init__(self, config: ServerConfig, limits: HostLimits, rules: Supervision | None = None) -> None:
        super().__init__(limits)
        self.pool = UpstreamPool(config, limits.upstreams)
        self._rules = rules
        self._backoff = ReconnectBackoff(rules)
        self._schemas = ToolSchemas()

    def new_session(self) -> RelaySession:
        """Create a client's session with a dedicated connection to the server."""
        return RelaySession(self.pool, self._backoff, self.limits, self._schemas)

    @asynccontextmanager
    async def serve_http(self, settings: HttpSettings | None = None) -> AsyncGenerator[HttpHost]:
        """Serve clients over HTTP until the block exits; running calls may then finish within `stop_s`."""
        chosen = settings or HttpSettings()
        chosen = replace(chosen, stop_s=min(chosen.stop_s, self.limits.stop_s))
        pool, schemas = self.pool, self._schemas
        # Separate backoff: a server that breaks on the newer revision may serve older ones well.
        shared = SharedUpstream(pool, ReconnectBackoff(self._rules), schemas)

        def new_session(_: ClientIdentity) -> RelaySession:
            return RelaySession(pool, self._backoff, self.limits, schemas, shared)

        try:
            async with open_http(
                new_session, schemas.find, chosen, find_target=lambda method, params: (method, pool.config.id)
            ) as serving:
                yield serving
        finally:
            await shared.close()


def create_relay_host(
    config: ServerConfig, *, limits: HostLimits | None = None, supervision: Supervision | None = None
) -> RelayHost:
    """Create a host that passes every message to one server and back unchanged."""
    return RelayHost(config, limits or HostLimits(stop_s=_STOP_S), supervision)


_log = logging.getLogger(__name__)

_MAX_STORED = 64
"""Limit of server frames waiting for a stream; further ones are dropped or refused."""
_MAX_UNREAD = 1_000
"""Limit of frames sent to a client that doesn't read; further ones are dropped or refused."""
_MAX_BACKLOG_BYTES = 4 * 1024 * 1024
"""Size limit of either."""
_MAX_SETTINGS = 1_000
"""Limit of subscriptions to repeat after a reconnect."""
_replay_ids = itertools.count(1)


class RelaySession:
    """Passes frames between one client and the server."""

    def __init__(
        self,
        pool: UpstreamPool,
        backoff: ReconnectBackoff,
        limits: HostLimits,
        schemas: ToolSchemas,
        shared: SharedUpstream | None = None,
    ) -> None:
        self.version: str | None = None
        """The negotiated revision; `None` before the handshake."""
        self.dispatcher = RequestDispatcher(
            self._serve,
            self._forward_notification,
            limits,
            on_response=self._forward_response,
            read=decode_frame_verbatim,
        )
        self._forwarder = RequestForwarder(pool, backoff, self._receive)
        self._schemas = schemas
        self._shared = shared
        self._limits = limits
        self._notification_channel: ResponseChannel | None = None
        self._server_requests: dict[RequestId | float, ResponseChannel | None] = {}
        """The server's open requests, with the client channel they were sent on."""
        self._stored: deque[JsonObject] = deque()
        """Frames waiting for a stream to the client."""
        self._stored_bytes = 0
        self._unread = 0
        self._unread_bytes = 0
        self._initialize: RelayedRequest | None = None
        self._settings: dict[JsonValue, JsonObject] = {}
        """Requests that changed the server's state, by subject; repeated after a reconnect."""

    @property
    def notification_channel(self) -> ResponseChannel | None:
        """Carries frames that belong to no request; `None` while they can't be sent."""
        return self._notification_channel

    @notification_channel.setter
    def notification_channel(self, channel: ResponseChannel | None) -> None:
        self._notification_channel = channel
        stored, self._stored, self._stored_bytes = self._stored, deque(), 0
        for frame in stored:
            self._send_to_client(frame)

    async def close(self, reason: str) -> None:
        """Cancel the client's requests and close its connection to the server."""
        await self.dispatcher.close(reason)
        await self._forwarder.close()

    # -- from the client ------------------------------------------------------------------------

    def _serve(self, request: HostRequest) -> RelayedRequest:
        if self._shared is not None and VERSION in request.meta and request.method != "initialize":
            return self._shared.forward(request)
        forwarder = self._forwarder
        if forwarder.connection is None:
            self._server_requests.clear()
            self._stored = deque(frame for frame in self._stored if "id" not in frame)
            self._stored_bytes = sum(estimate_size(frame) for frame in self._stored)
            replay: list[JsonObject] = []
            if request.method != "initialize" and self._initialize is not None and self.version is not None:
                # A restarted server needs the handshake and settings first.
                replay = [
                    {**self._initialize.to_frame(), "id": f"relay-{next(_replay_ids)}"},
                    {"jsonrpc": "2.0", "method": "notifications/initialized"},
                    *({**frame, "id": f"relay-{next(_replay_ids)}"} for frame in self._settings.values()),
                ]
            forwarder.connect(replay)
        relayed = forwarder.forward(request, request.id)
        if request.method == "initialize":
            self._initialize = relayed
        return relayed

    def _forward_notification(self, method: str, params: JsonObject) -> None:
        if method == CANCELLED:
            relayed = self._forwarder.find(params.get("requestId"))
            if relayed is not None:
                relayed.is_withdrawn = True
        frame: JsonObject = {"jsonrpc": "2.0", "method": method}
        self._forwarder.send(frame if params is NO_PARAMS else {**frame, "params": params})

    def _forward_response(self, frame: JsonObject) -> None:
        request_id = frame.get("id")
        if is_peer_id(request_id) and request_id in self._server_requests:
            del self._server_requests[request_id]
            self._forwarder.send(frame)

    # -- from the server ------------------------------------------------------------------------

    def _receive(self, frame: JsonObject) -> None:
        if isinstance(frame.get("method"), str):
            self._send_to_client(frame)
            return
        relayed = self._forwarder.find_by_response(frame)
        if relayed is None:
            return
        result, method, params = frame.get("result"), relayed.request.method, relayed.request.params
        uri = params.get("uri")
        subject = uri if isinstance(uri, str) else ""  # there's only one log level
        if not isinstance(result, dict):
            pass  # an error changes nothing
        elif method == "initialize":
            version = result.get("protocolVersion")
            self.version = version if isinstance(version, str) else ""
        elif method == "tools/list":
            self._schemas.learn(result)
        elif method in {"logging/setLevel", "resources/subscribe"} and len(self._settings) < _MAX_SETTINGS:
            self._settings[subject] = {"jsonrpc": "2.0", "method": method, "params": params}
        elif method == "resources/unsubscribe":
            self._settings.pop(subject, None)
        relayed.resolve(frame)

    def _send_to_client(self, frame: JsonObject) -> None:
        channel, request_id = self._choose_channel(frame), frame.get("id")
        is_request = is_peer_id(request_id)
        size = estimate_size(frame)
        if channel is None:
            has_capacity = len(self._stored) < _MAX_STORED and self._stored_bytes + size <= _MAX_BACKLOG_BYTES
        elif channel.writable.is_set():
            self._unread = self._unread_bytes = 0
            has_capacity = True
        else:
            self._unread += 1
            self._unread_bytes += size
            has_capacity = self._unread <= _MAX_UNREAD and self._unread_bytes <= _MAX_BACKLOG_BYTES
        if not has_capacity:
            _log.debug("a client reads nothing: a message to it is dropped")
            if is_request:
                error: JsonObject = {"code": UNAVAILABLE, "message": "the client reads nothing at the moment"}
                self._forwarder.send({"jsonrpc": "2.0", "id": request_id, "error": error})
            return
        if is_request:
            if len(self._server_requests) >= self._limits.asks:
                # A server may silently abandon requests; don't let them accumulate.
                del self._server_requests[next(iter(self._server_requests))]
            self._server_requests[request_id] = channel
        if channel is None:
            self._stored.append(frame)
            self._stored_bytes += size
        else:
            channel.send(frame)

    def _choose_channel(self, frame: JsonObject) -> ResponseChannel | None:
        method, params = frame.get("method"), get_object(frame, "params")
        if method == PROGRESS:
            token = params.get("progressToken")
            for relayed in reversed(self._forwarder.open.values()):
                if relayed.token == token and relayed.request.channel.accepts_notifications:
                    return relayed.request.channel
        if method == CANCELLED:
            request_id = params.get("requestId")
            channel = self._server_requests.pop(request_id, None) if is_peer_id(request_id) else None
            if channel is not None and channel.accepts_notifications:
                return channel
        calls = [relayed.request.channel for relayed in reversed(self._forwarder.open.values())]
        # News belongs to no call; a client with a GET stream expects it there.
        is_news = isinstance(method, str) and method.endswith(("list_changed", "resources/updated"))
        channels = [self._notification_channel, *calls] if is_news else [*calls, self._notification_channel]
        return next((channel for channel in channels if channel is not None and channel.accepts_notifications), None)


# -- shared connection ------------------------------------------------------------------------

_MESSAGE = "notifications/message"
_TOO_LARGE = "it holds a number that is too large to be encoded again"


class SharedUpstream:
    """Forwards requests of many clients over one connection.

    Modern requests are self-contained, so only values that must be unique per connection are replaced: ids, progress
    tokens and, with the ids, subscriptions. A notification goes to the request it names, otherwise it's dropped. The
    exception is a log message while exactly one request is open and has asked for logging. Requests from the server
    never name a client and are refused.
    """

    def __init__(self, pool: UpstreamPool, backoff: ReconnectBackoff, schemas: ToolSchemas) -> None:
        self._warnings = RateLimitedLog(f"server {pool.config.id!r}")
        self._schemas = schemas
        self._forwarder = RequestForwarder(pool, backoff, self._receive)
        self._ids = itertools.count(1)

    def forward(self, request: HostRequest) -> RelayedRequest:
        """Forward a request with an id and progress token of this connection.

        Raises `RpcError` if no connection can be opened now, or the request can't be encoded.
        """
        self._forwarder.connect()
        upstream_id = next(self._ids)
        params = None
        if request.meta.get("progressToken") is not None:
            try:
                params = encode_object({**request.params, "_meta": {**request.meta, "progressToken": upstream_id}})
            except ValueError:
                raise RpcError(INVALID_PARAMS, _TOO_LARGE) from None
        return self._forwarder.forward(request, upstream_id, params)

    async def close(self) -> None:
        """Close the connection."""
        await self._forwarder.close()

    def _receive(self, frame: JsonObject) -> None:
        method, request_id = frame.get("method"), frame.get("id")
        try:
            if isinstance(method, str) and not is_peer_id(request_id):
                self._receive_notification(frame, method)
            elif isinstance(method, str):
                self._warnings.write(f"sends a request without naming a client, which is refused: {method}")
                message = f"{method} cannot be passed on: several clients share this connection"
                error: JsonObject = {"code": METHOD_NOT_FOUND, "message": message}
                self._forwarder.send({"jsonrpc": "2.0", "id": request_id, "error": error})
            elif (relayed := self._forwarder.find_by_response(frame)) is not None:
                result = frame.get("result")
                if isinstance(result, dict) and relayed.request.method == "tools/list":
                    self._schemas.learn(result)
                if isinstance(result, dict) and relayed.request.is_subscription:
                    frame = {**frame, "result": _restore_subscription(result, relayed)}
                relayed.resolve(frame)
        except ValueError:
            self._warnings.write(f"sends a message that is dropped: {_TOO_LARGE}")

    def _receive_notification(self, frame: JsonObject, method: str) -> None:
        params = get_object(frame, "params")
        relayed = self._find_addressee(method, params)
        if relayed is None:
            self._warnings.write(f"sends a notification for no request, which is dropped: {method}")
            return
        request = relayed.request
        if method in {PROGRESS, _MESSAGE} and not request.channel.writable.is_set():
            return  # would pile up for a client that doesn't read
        if not request.is_answered:
            if "progressToken" in params and relayed.token is not None:
                params = encode_object({**params, "progressToken": relayed.token})
            elif request.is_subscription:
                params = _restore_subscription(params, relayed)
            request.channel.send({**frame, "params": params})

    def _find_addressee(self, method: str, params: JsonObject) -> RelayedRequest | None:
        if method == PROGRESS:
            relayed = self._forwarder.find(params.get("progressToken"))
            return relayed if relayed is not None and relayed.token is not None else None
        subscription = get_object(params, "_meta").get(SUBSCRIPTION)
        if subscription is not None:
            relayed = self._forwarder.find(subscription)
            return relayed if relayed is not None and relayed.request.is_subscription else None
        if method != _MESSAGE:
            return None
        calls = [relayed for relayed in self._forwarder.open.values() if not relayed.request.is_subscription]
        since_cancel_s = asyncio.get_running_loop().time() - self._forwarder.withdrawn_at
        if len(calls) != 1 or since_cancel_s < ABANDONED_S:
            return None
        return calls[0] if LOG_LEVEL in calls[0].request.meta else None


def _restore_subscription(value: JsonObject, relayed: RelayedRequest) -> JsonObject:
    """Replace our subscription id with the client's."""
    meta = get_object(value, "_meta")
    if SUBSCRIPTION not in meta:
        return value
    return encode_object({**value, "_meta": {**meta, SUBSCRIPTION: relayed.request.id}})
