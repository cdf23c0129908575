"""One connection to the server that all clients of revision 2026-07-28 share over HTTP.

Their requests are self-contained, so only what must be unique on one connection is replaced: ids, progress tokens
and, with the ids, subscriptions. A notification of the server goes to the request it names. One that names none is
dropped, except a log message while exactly one request is open that has asked for log messages. A request of the
server names none: it is refused.
"""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from indusagi.interop.protocol_bridge.client.handlers import ABANDONED_S
from indusagi.interop.protocol_bridge.host.boundary import RateLimitedLog
from indusagi.interop.protocol_bridge.relay.upstream import PROGRESS, SUBSCRIPTION, RequestForwarder
from indusagi.interop.protocol_bridge.rpc.connection import INVALID_PARAMS, METHOD_NOT_FOUND, RpcError
from indusagi.interop.protocol_bridge.rpc.transport import encode_object, is_peer_id

if TYPE_CHECKING:
    from indusagi.core.json import JsonObject
    from indusagi.interop.protocol_bridge.host.dispatcher import HostRequest
    from indusagi.interop.protocol_bridge.relay.upstream import (
        ReconnectBackoff,
        RelayedRequest,
        ToolSchemas,
        UpstreamPool,
    )

VERSION = "io.modelcontextprotocol/protocolVersion"
LOG_LEVEL = "io.modelcontextprotocol/logLevel"
_MESSAGE = "notifications/message"
_TOO_LARGE = "it holds a number that is too large to be encoded again"


class SharedUpstream:
    """Forwards requests of many clients over one connection."""

    def __init__(self, pool: UpstreamPool, backoff: ReconnectBackoff, schemas: ToolSchemas) -> None:
        self._warnings = RateLimitedLog(f"server {pool.config.id!r}")
        self._schemas = schemas
        self._forwarder = RequestForwarder(pool, backoff, self._receive)
        self._ids = itertools.count(1)

    def forward(self, request: HostRequest) -> RelayedRequest:
        """Forward a request under an id and progress token of this connection.

        Raises:
            RpcError: There is no connection, and none can be opened now; or the request cannot be encoded.
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
        value = frame.get("params")
        params = value if isinstance(value, dict) else {}
        relayed = self._find_addressee(method, params)
        if relayed is None:
            self._warnings.write(f"sends a notification for no request, which is dropped: {method}")
            return
        request = relayed.request
        if method in {PROGRESS, _MESSAGE} and not request.channel.writable.is_set():
            return  # they would pile up for a client that does not read
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
        meta = params.get("_meta")
        subscription = meta.get(SUBSCRIPTION) if isinstance(meta, dict) else None
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
    """Put the client's subscription id in the place of ours."""
    meta = value.get("_meta")
    if not isinstance(meta, dict) or SUBSCRIPTION not in meta:
        return value
    return encode_object({**value, "_meta": {**meta, SUBSCRIPTION: relayed.request.id}})
